"""The image follows the store, and what we write is in it at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from simulation.etcd import SimEtcd, SimStore
from simulation.loop import LoopClock, SimLoop, run
from tailrace.controller.facts import Transaction
from tailrace.controller.ledger import DEAF_WATCH_MS, Ledger, incarnation_key
from tailrace.controller.settings import ControllerSettings
from tailrace.errors import NotController, StoreUnavailable
from tailrace.meta.image import ClusterImage
from tailrace.meta.keys import TopicRecord, broker_key, encode, history_key, topic_key
from tailrace.meta.store import CreatedAt, Delete, ModifiedAt, Operation, Put
from tailrace.model import BrokerId, TopicId, TopicPartition


class World:
    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.etcd = SimEtcd(loop.fork_rng("etcd"))
        self.other: SimStore = self.etcd.connect("other")
        self.said: list[str] = []
        self.changes: list[int] = []
        self.ledger = Ledger(
            ControllerSettings(controller_id=1),
            store=self.etcd.connect("c"),
            clock=LoopClock(loop),
            rng=loop.rng,
            say=self.said.append,
            on_change=lambda old: self.changes.append(old.revision),
        )

    async def follow(self) -> None:
        self.loop.create_task(self.ledger.follow())
        await asyncio.sleep(0.1)

    def write(self, *operations: Operation) -> int:
        return self.etcd.server.txn([], operations).revision

    def is_in_step(self) -> bool:
        whole = ClusterImage.from_snapshot(self.etcd.server.snapshot("/"))
        return self.ledger.image == whole


def simulate(main: Callable[[World], Coroutine[Any, Any, None]], *, seed: int = 1) -> None:
    async def start(loop: SimLoop) -> None:
        await main(World(loop))

    run(start, seed)


def topic(name: str, topic_id: str = "id") -> Put:
    record = TopicRecord(topic_id=TopicId(topic_id), assignment={0: (BrokerId(1),)}, config={})
    return Put(topic_key(name), encode(record))


def transaction(*operations: Operation, guards: tuple[Any, ...] = ()) -> Transaction:
    return Transaction(what="a test", guards=guards, operations=operations)


def test_the_image_is_a_full_read_and_then_every_change() -> None:
    async def main(world: World) -> None:
        world.write(topic("a"))
        await world.follow()
        assert list(world.ledger.image.topics) == ["a"]
        world.write(topic("b"))
        world.write(Delete(topic_key("a")))
        await asyncio.sleep(0.1)
        assert list(world.ledger.image.topics) == ["b"]
        assert world.is_in_step()
        assert world.changes == sorted(world.changes)

    simulate(main)


def test_what_we_write_is_known_at_once() -> None:
    async def main(world: World) -> None:
        await world.follow()
        history = history_key(TopicPartition("a", 0))
        done = await world.ledger.commit(
            transaction(topic("a"), Put(history, b"h"), Put(incarnation_key(BrokerId(7)), b"disk"))
        )
        assert done
        assert list(world.ledger.image.topics) == ["a"]
        assert world.ledger.histories == {history: b"h"}
        assert world.ledger.incarnations == {7: "disk"}
        await world.ledger.commit(transaction(Delete(history)))
        assert world.ledger.histories == {}
        await asyncio.sleep(0.1)
        assert world.is_in_step()
        world.write(Put(history, b"i"), Put(incarnation_key(BrokerId(8)), b"x"))
        world.write(Put("/brokers/incarnations/what", b"?"))
        await world.ledger.read_anew()
        assert world.ledger.histories == {history: b"i"}
        assert world.ledger.incarnations == {7: "disk", 8: "x"}

    simulate(main)


@pytest.mark.parametrize("seed", range(5))
def test_a_refusal_leaves_an_image_that_knows_why(seed: int) -> None:
    async def main(world: World) -> None:
        world.write(topic("a"))
        await world.follow()
        revision = world.ledger.image.topics["a"].revision
        world.write(topic("a", "other"))
        guards = (ModifiedAt(topic_key("a"), revision),)
        assert not await world.ledger.commit(transaction(topic("a", "mine"), guards=guards))
        assert world.ledger.image.topics["a"].record.topic_id == "other"

    simulate(main, seed=seed)


def test_a_refusal_that_the_watch_does_not_explain_leads_to_a_full_read() -> None:
    async def main(world: World) -> None:
        await world.follow()
        # The watch is deaf.
        world.etcd.server.wake = lambda: None  # type: ignore[method-assign]
        world.write(topic("a"))
        guards = (CreatedAt(topic_key("a"), 0),)
        assert not await world.ledger.commit(transaction(topic("a", "mine"), guards=guards))
        assert world.ledger.image.topics["a"].record.topic_id == "id"

    simulate(main)


def test_an_unknown_outcome_leads_to_a_full_read() -> None:
    async def main(world: World) -> None:
        await world.follow()
        world.etcd.cut("c", replies_only=True)
        writing = world.loop.create_task(world.ledger.commit(transaction(topic("a"))))
        await asyncio.sleep(3)
        assert world.ledger.trouble != ""
        world.etcd.heal("c")
        assert not await writing
        assert list(world.ledger.image.topics) == ["a"], "it was done after all"
        await asyncio.sleep(10)
        assert world.ledger.trouble == ""
        assert "the metadata store answers again" in world.said

    simulate(main)


def test_while_the_store_is_away_the_image_stays() -> None:
    async def main(world: World) -> None:
        world.write(topic("a"))
        await world.follow()
        world.etcd.stop()
        await asyncio.sleep(30)
        assert list(world.ledger.image.topics) == ["a"]
        with pytest.raises(StoreUnavailable):
            await world.ledger.get("/x")
        world.etcd.start()
        await asyncio.sleep(2)
        assert await world.ledger.get("/x") is None
        world.write(topic("b"))
        await asyncio.sleep(0.1)
        assert world.is_in_step()

    simulate(main)


def test_f20_a_compacted_watch_starts_anew_with_a_full_read() -> None:
    async def main(world: World) -> None:
        world.write(topic("a"))
        await world.follow()
        world.etcd.cut("c")
        await asyncio.sleep(8)
        world.write(Delete(topic_key("a")))
        world.write(topic("b"))
        world.etcd.compact()
        world.etcd.heal("c")
        await asyncio.sleep(3)
        assert world.is_in_step()
        assert any("compacted away" in each for each in world.said)

    simulate(main)


def test_a_lease_that_is_gone_is_no_reason_to_hurry() -> None:
    async def main(world: World) -> None:
        await world.follow()
        before = world.loop.time()
        assert not await world.ledger.commit(transaction(Put(broker_key(1), b"x", 999)))
        assert world.loop.time() - before > 0.02

    simulate(main)


def test_waiting_for_the_image_ends_when_it_holds_or_the_term_does() -> None:
    async def main(world: World) -> None:
        await world.follow()
        waiting = world.loop.create_task(
            world.ledger.until(lambda: "a" in world.ledger.image.topics)
        )
        in_vain = world.loop.create_task(world.ledger.until(lambda: False))
        await asyncio.sleep(1)
        assert not waiting.done()
        world.write(topic("a"))
        await waiting
        world.ledger.close()
        with pytest.raises(NotController):
            await in_vain

    simulate(main)


def test_a_watch_is_deaf_when_the_store_is_ahead_for_too_long() -> None:
    async def main(world: World) -> None:
        await world.follow()
        revision = world.ledger.image.revision
        assert not world.ledger.is_deaf(revision)
        assert not world.ledger.is_deaf(revision + 1)
        await asyncio.sleep(DEAF_WATCH_MS / 2_000)
        assert not world.ledger.is_deaf(revision + 1)
        await asyncio.sleep(DEAF_WATCH_MS / 1_000)
        assert world.ledger.is_deaf(revision + 1)
        assert not world.ledger.is_deaf(revision + 1), "it starts to count anew"

    simulate(main)


def test_what_cannot_be_read_is_said_once() -> None:
    async def main(world: World) -> None:
        await world.follow()
        world.write(Put(topic_key("a"), b"{"))
        world.write(topic("b"))
        await asyncio.sleep(0.1)
        assert len([each for each in world.said if "left alone" in each]) == 1

    simulate(main)
