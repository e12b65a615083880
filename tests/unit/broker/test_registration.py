"""A broker's key in the store: one for every life, never two at once; and what it says besides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from simulation.loop import SimLoop, run
from tailrace.broker.registration import Life, NoAnswer, RegisteredBroker, judge_life
from tailrace.errors import FolderLocked
from tailrace.meta.keys import BrokerRegistration, broker_key, decode, encode
from tailrace.meta.memory import MemoryEtcd
from tailrace.meta.registration import OtherLife
from tailrace.meta.store import Delete, Put
from tailrace.model import BrokerId

KEY = broker_key(1)
TTL_MS = 3_000
FACTS = BrokerRegistration(
    broker_id=BrokerId(1),
    host="b1",
    port=9092,
    link_host="b1",
    link_port=9093,
    incarnation="mine",
    rack="r",
    tail_may_be_lost=False,
)


class Bench:
    """A store, and registrations that run against it."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.etcd = MemoryEtcd()
        self.said: list[str] = []
        self.epochs: list[int] = []
        self.task: asyncio.Task[None] | None = None
        # What is found at the address of a registration that has our key.
        self.answer: Life | NoAnswer = NoAnswer.REFUSED

    def start(self, facts: BrokerRegistration = FACTS) -> RegisteredBroker:
        registration = RegisteredBroker(
            self.etcd.connect(timeout_ms=500),
            facts,
            process="this-start",
            ask=self._ask,
            lease_ttl_ms=TTL_MS,
            on_registered=lambda: self.epochs.append(registration.epoch or 0),
            say=self.said.append,
        )
        self.task = self.loop.create_task(registration.run(), name="registration")
        return registration

    async def _ask(self, _: BrokerRegistration) -> Life | NoAnswer:
        return self.answer

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])

    def stored(self) -> BrokerRegistration:
        entry = self.etcd.get(KEY)
        assert entry is not None
        return decode(BrokerRegistration, entry.value)


def simulate(main: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        run(lambda loop: main(Bench(loop)), 1)

    return test


@simulate
async def test_the_create_revision_is_the_epoch_for_as_long_as_it_is_renewed(bench: Bench) -> None:
    registration = bench.start()
    await asyncio.sleep(10 * TTL_MS / 1000)
    entry = bench.etcd.get(KEY)
    assert entry is not None
    assert bench.epochs == [entry.create_revision]
    assert registration.epoch == entry.create_revision
    assert bench.stored() == FACTS
    assert entry.lease in bench.etcd.leases()


@simulate
async def test_another_folders_key_is_waited_for(bench: Bench) -> None:
    other = bench.etcd.grant_lease(60_000)
    bench.etcd.txn([], [Put(KEY, encode(replace(FACTS, incarnation="other", host="x")), other)])
    registration = bench.start()
    # Longer than our own lease, which must not lapse meanwhile.
    await asyncio.sleep(3 * TTL_MS / 1000)
    assert registration.epoch is None
    assert bench.stored().host == "x"
    assert "another broker 1 is registered from x:9092" in bench.said[0]
    bench.etcd.revoke_lease(other)
    await asyncio.sleep(1)
    assert bench.epochs == [registration.epoch]
    assert bench.stored() == FACTS


@simulate
async def test_a_former_life_is_ended_at_once(bench: Bench) -> None:
    former = bench.etcd.grant_lease(60_000)
    bench.etcd.txn([], [Put(KEY, encode(FACTS), former)])
    before = bench.etcd.revision
    registration = bench.start()
    await asyncio.sleep(0.1)
    assert former not in bench.etcd.leases()
    assert registration.epoch is not None
    assert registration.epoch > before


@simulate
async def test_a_key_that_is_gone_is_made_anew_with_a_new_epoch(bench: Bench) -> None:
    registration = bench.start()
    await asyncio.sleep(0.1)
    first = registration.epoch
    bench.etcd.txn([], [Delete(KEY)])
    await asyncio.sleep(TTL_MS / 1000)
    assert first is not None
    assert len(bench.epochs) == 2
    assert registration.epoch == bench.epochs[1] > first


@simulate
async def test_a_lease_that_lapsed_is_made_anew(bench: Bench) -> None:
    registration = bench.start()
    await asyncio.sleep(0.1)
    (lease,) = bench.etcd.leases()
    bench.etcd.revoke_lease(lease)
    await asyncio.sleep(TTL_MS / 1000)
    assert len(bench.epochs) == 2
    assert registration.epoch == bench.epochs[-1]


@simulate
async def test_a_store_that_does_not_answer_changes_nothing(bench: Bench) -> None:
    registration = bench.start()
    await asyncio.sleep(0.1)
    bench.etcd.stop()
    await asyncio.sleep(10)
    assert registration.epoch == bench.epochs[0]
    assert any("does not answer" in each for each in bench.said)
    bench.etcd.start()
    await asyncio.sleep(10)
    assert bench.epochs == [registration.epoch]


@simulate
async def test_draining_keeps_the_other_facts(bench: Bench) -> None:
    registration = bench.start()
    await asyncio.sleep(0.1)
    entry = bench.etcd.get(KEY)
    assert entry is not None
    # As a controller may: a fact changed, the lease kept.
    bench.etcd.txn([], [Put(KEY, encode(replace(FACTS, tail_may_be_lost=True)), entry.lease)])
    await registration.set_draining()
    assert bench.stored() == replace(FACTS, tail_may_be_lost=True, draining=True)
    await asyncio.sleep(2 * TTL_MS / 1000)
    assert len(bench.epochs) == 1


@simulate
async def test_draining_is_said_even_if_the_controller_changes_the_key_meanwhile(
    bench: Bench,
) -> None:
    registration = bench.start()
    await asyncio.sleep(0.1)
    changed = replace(FACTS, tail_may_be_lost=True)
    draining = asyncio.get_running_loop().create_task(registration.set_draining())
    for _ in range(3):
        await asyncio.sleep(0)
        entry = bench.etcd.get(KEY)
        assert entry is not None
        bench.etcd.txn([], [Put(KEY, encode(changed), entry.lease)])
    await draining
    assert bench.stored() == replace(changed, draining=True)


@simulate
async def test_draining_touches_no_other_life(bench: Bench) -> None:
    registration = bench.start()
    await asyncio.sleep(0.1)
    bench.etcd.txn([], [Delete(KEY)])
    bench.etcd.txn([], [Put(KEY, encode(replace(FACTS, incarnation="other")))])
    await registration.set_draining()
    assert not bench.stored().draining


@simulate
async def test_to_close_takes_the_key_and_the_lease_away(bench: Bench) -> None:
    registration = bench.start()
    await asyncio.sleep(0.1)
    await bench.stop()
    await registration.close()
    assert bench.etcd.get(KEY) is None
    assert bench.etcd.leases() == []
    assert registration.epoch is None


@simulate
async def test_to_close_leaves_anothers_key(bench: Bench) -> None:
    registration = bench.start()
    await asyncio.sleep(0.1)
    await bench.stop()
    bench.etcd.txn([], [Delete(KEY)])
    bench.etcd.txn([], [Put(KEY, encode(replace(FACTS, incarnation="other")))])
    await registration.close()
    assert bench.stored().incarnation == "other"


@simulate
async def test_f44_l7_a_copy_of_a_live_folder_is_refused_and_the_first_one_stays(
    bench: Bench,
) -> None:
    first = bench.start()
    await asyncio.sleep(1)
    first_task, epoch = bench.task, first.epoch
    bench.answer = Life(1, "mine", "the-first-start")
    bench.start(replace(FACTS, host="elsewhere"))
    second_task = bench.task
    assert second_task is not None
    await asyncio.sleep(3 * TTL_MS / 1000)
    error = second_task.exception()
    assert isinstance(error, FolderLocked)
    assert "b1:9092" in str(error)
    assert "copy" in str(error)
    assert first.epoch == epoch, "the first one was never disturbed"
    bench.task = first_task
    await bench.stop()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Life(1, "mine", "this-start"), OtherLife.GONE),
        (Life(1, "mine", "another-start"), OtherLife.COPY),
        (Life(2, "theirs", "another-start"), OtherLife.GONE),
        (Life(1, "", ""), OtherLife.UNKNOWN),
        (Life(1, "theirs", "another-start"), OtherLife.UNKNOWN),
        (NoAnswer.REFUSED, OtherLife.GONE),
        (NoAnswer.SILENT, OtherLife.UNKNOWN),
    ],
)
def test_what_an_answer_proves_about_the_registration_at_another_address(
    answer: Life | NoAnswer, expected: OtherLife
) -> None:
    other = replace(FACTS, host="elsewhere")
    assert judge_life(other, FACTS, "this-start", answer) is expected


def test_silence_at_our_own_address_proves_that_the_former_life_is_gone() -> None:
    assert judge_life(FACTS, FACTS, "this-start", NoAnswer.SILENT) is OtherLife.GONE


def test_nothing_proves_that_a_broker_with_another_folder_is_gone() -> None:
    other = replace(FACTS, incarnation="theirs")
    assert judge_life(other, FACTS, "this-start", NoAnswer.REFUSED) is OtherLife.UNKNOWN
