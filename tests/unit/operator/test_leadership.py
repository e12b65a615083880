"""Two operators and one lease, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from simulation.loop import LoopClock, SimLoop
from tailrace_operator.election import RENEW_EVERY_S
from tailrace_operator.kube import KubeError
from tailrace_operator.leadership import Leadership


class FakeLease:
    """A Lease with versions; `away`: the API does not answer."""

    def __init__(self) -> None:
        self.version = 1
        self.spec: dict[str, Any] = {}
        self.away: set[str] = set()
        self.exists = True

    def of(self, name: str) -> OneApi:
        return OneApi(self, name)


class OneApi:
    """The API as one operator reaches it."""

    def __init__(self, lease: FakeLease, name: str) -> None:
        self._lease = lease
        self._name = name

    async def get(self, api_version: str, kind: str, name: str) -> dict[str, Any] | None:
        self._check()
        version = {"resourceVersion": self._lease.version}
        return {"metadata": version, "spec": dict(self._lease.spec)} if self._lease.exists else None

    async def patch(self, api_version: str, kind: str, name: str, patch: dict[str, Any]) -> None:
        self._check()
        wanted = (patch.get("metadata") or {}).get("resourceVersion", self._lease.version)
        if wanted != self._lease.version:
            raise KubeError("somebody was quicker", 409)
        self._lease.version += 1
        self._lease.spec |= patch["spec"]

    def _check(self) -> None:
        if self._name in self._lease.away:
            raise KubeError("the Kubernetes API does not answer")


def leadership(lease: FakeLease, name: str, loop: SimLoop, said: list[str]) -> Leadership:
    return Leadership(
        lease.of(name), "operator", name, clock=LoopClock(loop), moment=str, say=said.append
    )


def test_one_acts_and_the_other_takes_over_when_it_is_gone() -> None:
    async def main(loop: SimLoop) -> None:
        lease, said, changes = FakeLease(), list[str](), list[str]()
        one, two = (leadership(lease, name, loop, said) for name in ("one", "two"))
        async with asyncio.TaskGroup() as tasks:
            await one.round()
            await two.round()
            running = [
                tasks.create_task(one.run(lambda: changes.append("one"))),
                tasks.create_task(two.run(lambda: changes.append("two"))),
            ]
            both = 0
            for moment in range(600):
                await asyncio.sleep(0.1)
                both += one.is_mine() and two.is_mine()
                if moment == 200:
                    assert one.is_mine()
                    lease.away.add("one")
                if moment == 500:
                    lease.away.clear()
            assert both == 0
            assert two.is_mine()
            assert not one.is_mine()
            await two.release()
            await asyncio.sleep(2 * RENEW_EVERY_S)
            for each in running:
                each.cancel()
        assert changes[:2] == ["one", "two"]
        assert lease.spec["leaseTransitions"] == 3
        assert "standing by: one is the operator that acts" in said

    SimLoop(1).run(main)


def test_two_that_ask_at_once_do_not_both_have_it() -> None:
    async def main(loop: SimLoop) -> None:
        lease, said = FakeLease(), list[str]()
        one, two = (leadership(lease, name, loop, said) for name in ("one", "two"))
        await asyncio.gather(one.round(), two.round())
        assert [one.is_mine(), two.is_mine()].count(True) == 1

    SimLoop(1).run(main)


def test_without_a_lease_nobody_acts_and_without_a_name_we_do() -> None:
    async def main(loop: SimLoop) -> None:
        lease, said = FakeLease(), list[str]()
        lease.exists = False
        one = leadership(lease, "one", loop, said)
        await one.round()
        assert not one.is_mine()
        alone = Leadership(
            lease.of("x"), "", "x", clock=LoopClock(loop), moment=str, say=said.append
        )
        await alone.round()
        await alone.run(lambda: None)
        await alone.release()
        assert alone.is_mine()
        assert said == ["there is no Lease operator: this operator does nothing"]

    SimLoop(1).run(main)
