"""Registrations: one key for each life of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from simulation.etcd import SimEtcd
from simulation.loop import SimLoop
from tailrace.meta.keys import CoordinatorRegistration, coordinator_key, encode
from tailrace.meta.registration import OtherLife, Registration
from tailrace.meta.store import Delete, MetadataStore, Put

FACTS = CoordinatorRegistration(coordinator_id=1, host="k1", port=9)


def simulate(main: Callable[[SimLoop, SimEtcd], Awaitable[None]]) -> None:
    async def start(loop: SimLoop) -> None:
        await main(loop, SimEtcd(loop.fork_rng("etcd")))

    SimLoop(1).run(start)


def make(
    store: MetadataStore, facts: CoordinatorRegistration = FACTS
) -> tuple[Registration[CoordinatorRegistration], list[int | None]]:
    seen: list[int | None] = []

    async def judge(other: CoordinatorRegistration) -> OtherLife:
        return OtherLife.GONE if other == facts else OtherLife.UNKNOWN

    registration = Registration(
        store,
        coordinator_key(facts.coordinator_id),
        facts,
        who=f"coordinator {facts.coordinator_id}",
        judge=judge,
        lease_ttl_ms=3_000,
        on_change=lambda: seen.append(registration.epoch),
        say=lambda _: None,
    )
    return registration, seen


def _epoch(registration: Registration[CoordinatorRegistration]) -> int:
    return -1 if registration.epoch is None else registration.epoch


def test_a_coordinator_registers_and_goes_at_once_when_it_is_closed() -> None:
    async def main(loop: SimLoop, etcd: SimEtcd) -> None:
        store = etcd.connect("k1")
        registration, seen = make(store)
        running = loop.create_task(registration.run())
        await asyncio.sleep(10)
        entry = await store.get(coordinator_key(1))
        assert entry is not None
        assert seen == [entry.create_revision]
        running.cancel()
        await registration.close()
        assert await store.get(coordinator_key(1)) is None
        assert seen[-1] is None

    simulate(main)


def test_a_registration_that_was_taken_away_is_noticed_and_made_anew() -> None:
    async def main(loop: SimLoop, etcd: SimEtcd) -> None:
        store = etcd.connect("k1")
        registration, seen = make(store)
        running = loop.create_task(registration.run())
        await asyncio.sleep(1)
        await store.txn([], [Delete(coordinator_key(1))])
        await asyncio.sleep(4)
        assert seen[1] is None
        assert (seen[2] or 0) > (seen[0] or 0)
        registration.begin_anew()
        await asyncio.sleep(1)
        assert (seen[-1] or 0) > (seen[2] or 0)
        etcd.stop()
        await asyncio.sleep(2)
        assert registration.epoch is not None, "while the store is away it goes on"
        etcd.start()
        running.cancel()

    simulate(main)


def test_a_former_life_at_the_same_address_is_ended_and_another_one_is_waited_for() -> None:
    async def main(loop: SimLoop, etcd: SimEtcd) -> None:
        store = etcd.connect("k1")
        old = await store.grant_lease(600_000)
        await store.txn([], [Put(coordinator_key(1), encode(FACTS), old)])
        registration, _ = make(store)
        running = loop.create_task(registration.run())
        await asyncio.sleep(1)
        first = registration.epoch
        assert first is not None
        elsewhere, _ = make(store, CoordinatorRegistration(coordinator_id=1, host="k2", port=9))
        waiting = loop.create_task(elsewhere.run())
        await asyncio.sleep(5)
        assert _epoch(elsewhere) == -1
        running.cancel()
        await registration.close()
        await asyncio.sleep(1)
        assert _epoch(elsewhere) > first
        waiting.cancel()

    simulate(main)
