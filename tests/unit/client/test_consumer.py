"""The consumer against a model cluster, in virtual time: without a group, and in one."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from tailrace.client.consumer import ConsumerCore
from tailrace.client.group_member import OffsetAndMetadata
from tailrace.errors import (
    ClientClosed,
    CommitFailed,
    DeserializationFailed,
    InvalidRequest,
    NoOffset,
    OffsetOutOfRange,
    RequestTimedOut,
    Truncated,
    UnknownTopic,
    UnknownTopicId,
    WokenUp,
)
from tailrace.model import TopicPartition
from tailrace.record.build import BatchBuilder

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def fill(world: Any, number: int, values: list[bytes], *, topic: str = "t", each: int = 1) -> None:
    """Committed batches of `each` records."""
    log = world.cluster.get(topic, number)
    for at in range(0, len(values), each):
        builder = BatchBuilder()
        for value in values[at : at + each]:
            builder.append(value, timestamp_ms=1_000 + log.end)
        log.store(builder.build(base_offset=log.end, leader_epoch=log.leader_epoch))
    log.commit(log.end)


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


async def values(consumer: ConsumerCore, count: int, **options: Any) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        found += [each.value for each in await consumer.poll(timeout_ms=60_000, **options)]
    return found


def test_all_partitions_without_a_group_and_positions_by_record(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 2)
        fill(world, 0, numbers(0, 10), each=10)
        consumer = world.consumer(auto_offset_reset="earliest")
        await consumer.assign_topics(["t"])
        assert [each.value for each in await consumer.poll(max_records=4)] == numbers(0, 4)
        assert await consumer.position(T0) == 4
        record, *_ = await consumer.poll(max_records=4)
        assert record == ("t", 0, 4, 1_000, None, b"4", ())
        assert (record.topic, record.partition, record.offset, record.value) == ("t", 0, 4, b"4")
        assert len(await consumer.poll()) == 2
        before_ms = world.loop.now_ms
        assert await consumer.poll(timeout_ms=800) == []
        assert world.loop.now_ms - before_ms == 800
        assert consumer.lag() == {T0: 0, T1: 0}
        assert await consumer.poll(timeout_ms=0) == []
        world.cluster.add_partitions("t", 3)
        fill(world, 2, [b"new"])
        assert await values(consumer, 1) == [b"new"]
        assert consumer.metrics()["records"] == 11
        await consumer.close()
        with pytest.raises(ClientClosed):
            await consumer.poll()

    simulate(main)


def test_brokers_are_told_who_reads(simulate: Any) -> None:
    """Quotas are by that name."""

    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        fill(world, 0, numbers(0, 1))
        consumer = world.consumer(auto_offset_reset="earliest", client_id="me")
        await consumer.assign_topics(["t"])
        assert await values(consumer, 1) == numbers(0, 1)
        assert world.cluster.clients == ["me"]
        await consumer.close()

    simulate(main)


def test_seek_pause_and_look_ups(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 2)
        for number in range(2):
            fill(world, number, numbers(0, 100), each=10)
        consumer = world.consumer(auto_offset_reset="earliest", max_poll_records=7)
        await consumer.assign([T0, T1])
        await values(consumer, 30)
        await consumer.seek(T0, 55)
        await consumer.pause([T1])
        assert await values(consumer, 45) == numbers(55, 100)
        position = await consumer.position(T1)
        assert await consumer.poll(timeout_ms=500) == []
        assert (consumer.paused(), consumer.assignment()) == ({T1}, {T0, T1})
        await consumer.resume([T1])
        assert await values(consumer, 100 - position) == numbers(position, 100)
        await consumer.seek_to_beginning([T0])
        await consumer.seek_to_end([T1])
        assert (await consumer.position(T0), await consumer.position(T1)) == (0, 100)
        found = await consumer.offsets_for({T0: 1_055, T1: 10**9})
        assert [found[T0].offset, found[T1].offset] == [60, -1]
        with pytest.raises(InvalidRequest, match="not assigned"):
            await consumer.seek(TopicPartition("u", 0), 1)
        with pytest.raises(InvalidRequest, match="below 0"):
            await consumer.seek(T0, -5)
        with pytest.raises(InvalidRequest, match="group_id"):
            await consumer.commit()
        with pytest.raises(InvalidRequest, match="group"):
            await consumer.subscribe(["t"])
        await consumer.close()

    simulate(main)


def test_wakeup_ends_a_poll_and_two_polls_at_once_are_refused(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        consumer = world.consumer()
        await consumer.assign([T0])
        polling = asyncio.ensure_future(consumer.poll(timeout_ms=None))
        await asyncio.sleep(1)
        with pytest.raises(InvalidRequest, match="two tasks"):
            await consumer.poll()
        consumer.wakeup()
        with pytest.raises(WokenUp):
            await polling
        consumer.wakeup()
        with pytest.raises(WokenUp):
            await consumer.poll()
        assert await consumer.poll(timeout_ms=10) == []
        await consumer.close()

    simulate(main)


def test_a_topic_that_comes_after_it_was_missed_is_read(simulate: Any) -> None:
    async def main(world: Any) -> None:
        consumer = world.consumer(auto_offset_reset="earliest")
        with pytest.raises(InvalidRequest, match="nothing to poll"):
            await consumer.poll()
        await consumer.assign([T0])
        with pytest.raises(UnknownTopic, match="create it first"):
            await consumer.poll(timeout_ms=10_000)
        world.cluster.create("t", 1)
        fill(world, 0, numbers(0, 10))
        await asyncio.sleep(1)
        assert await values(consumer, 10) == numbers(0, 10)
        await consumer.close()

    simulate(main)


@pytest.mark.parametrize(("policy", "expected"), [("earliest", 5), ("latest", 10), ("none", -1)])
def test_an_offset_that_is_gone(simulate: Any, policy: str, expected: int) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        fill(world, 0, numbers(0, 10))
        log = world.cluster.get("t")
        log.entries, log.log_start = log.entries[5:], 5
        consumer = world.consumer(auto_offset_reset=policy)
        await consumer.assign([T0])
        await consumer.seek(T0, 2)
        if expected < 0:
            for _ in range(2):
                with pytest.raises(OffsetOutOfRange):
                    await consumer.poll()
        else:
            await consumer.poll(timeout_ms=500)
            assert await consumer.position(T0) == 10
            assert consumer.metrics()["records"] == 10 - expected
            assert consumer.metrics()["resets"] == 1
        await consumer.close()

    simulate(main)


def test_truncated_logs_and_topics_made_anew_are_told(simulate: Any) -> None:
    async def main(world: Any) -> None:
        cluster = world.cluster
        cluster.create("t", 1)
        fill(world, 0, numbers(0, 10))
        consumer = world.consumer(auto_offset_reset="earliest")
        await consumer.assign([T0])
        await values(consumer, 10)
        cluster.get("t").truncate(4)
        cluster.move(cluster.get("t"), 1)
        fill(world, 0, [b"other"] * 20)
        with pytest.raises(Truncated) as caught:
            await consumer.poll(timeout_ms=5_000)
        assert caught.value.agreed_offset == 4
        await consumer.seek(T0, 4)
        assert await values(consumer, 20) == [b"other"] * 20
        cluster.delete("t")
        cluster.create("t", 1)
        fill(world, 0, [b"anew"] * 50)
        with pytest.raises(UnknownTopicId):
            await consumer.poll(timeout_ms=5_000)
        await consumer.seek_to_beginning()
        assert (await values(consumer, 50))[0] == b"anew"
        cluster.delete("t")
        with pytest.raises(UnknownTopic, match="deleted"):
            await consumer.poll(timeout_ms=5_000)
        cluster.create("t", 1)
        await asyncio.sleep(1)
        with pytest.raises(UnknownTopicId, match="seek"):
            await consumer.poll(timeout_ms=5_000)
        await consumer.close()

    simulate(main)


def test_records_that_cannot_be_read_stop_their_partition_after_those_before(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        fill(world, 0, [b"1", b"2", b"{", b"4"], each=4)
        consumer = world.consumer(auto_offset_reset="earliest", value_deserializer=json.loads)
        await consumer.assign([T0])
        assert await values(consumer, 2) == [1, 2]
        for _ in range(2):
            with pytest.raises(DeserializationFailed, match=r"offset 2 .* seek to 3") as caught:
                await consumer.poll()
            assert (caught.value.offset, await consumer.position(T0)) == (2, 2)
        await consumer.seek(T0, 3)
        assert await values(consumer, 1) == [4]
        await consumer.close()

    simulate(main)


def test_arrow_batches(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        fill(world, 0, numbers(0, 30), each=10)
        consumer = world.consumer(auto_offset_reset="earliest")
        await consumer.assign([T0])
        await consumer.seek(T0, 4)
        found = await consumer.next_batch()
        assert found.column("offset").to_pylist() == list(range(4, 10))
        assert found.schema.names == [
            *("topic", "partition", "offset", "timestamp", "key", "value"),
        ]
        assert found.column("topic").to_pylist() == ["t"] * 6
        assert await consumer.position(T0) == 10
        assert (await consumer.next_batch(headers=True)).column("headers").null_count == 10
        await consumer.next_batch()
        assert await consumer.next_batch(timeout_ms=10) is None
        await consumer.close()

    simulate(main)


class Listener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self.now: set[TopicPartition] = set()

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("revoked", partitions))
        self.now -= set(partitions)

    async def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("assigned", partitions))
        self.now |= set(partitions)

    async def on_lost(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("lost", partitions))
        self.now -= set(partitions)


def in_group(world: Any, **settings: Any) -> ConsumerCore:
    consumer: ConsumerCore = world.consumer(
        **{
            "group_id": "g",
            "auto_offset_reset": "earliest",
            "session_timeout_ms": 6_000,
            "heartbeat_interval_ms": 500,
            "max_poll_interval_ms": 20_000,
            **settings,
        }
    )
    return consumer


async def until_calm(*consumers: ConsumerCore, partitions: int) -> None:
    """Poll all until they own all partitions between them."""
    for _ in range(400):
        for each in consumers:
            await each.poll(timeout_ms=50)
        owned = [partition for each in consumers for partition in each.assignment()]
        if len(owned) == len(set(owned)) == partitions and all(
            each._member is not None and each._member.is_calm for each in consumers
        ):
            return
    raise AssertionError([each.assignment() for each in consumers])


@pytest.mark.parametrize(
    "strategy", ["cooperative-sticky", "sticky", "range", "roundrobin", ["sticky", "range"]]
)
def test_a_group_divides_its_partitions_and_goes_on_where_it_stopped(
    simulate: Any, strategy: Any
) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 4)
        for number in range(4):
            fill(world, number, numbers(0, 10))
        first, second, listener = (
            in_group(world, partition_assignment_strategy=strategy),
            in_group(world, partition_assignment_strategy=strategy),
            Listener(),
        )
        await first.subscribe(["t"], listener)
        assert sorted(await values(first, 40)) == sorted(numbers(0, 10) * 4)
        await second.subscribe(["t"])
        await until_calm(first, second, partitions=4)
        assert len(first.assignment()) == len(second.assignment()) == 2
        assert listener.now == first.assignment()
        for number in range(4):
            fill(world, number, numbers(10, 12))
        found = await values(first, 4) + await values(second, 4)
        assert sorted(found) == sorted(numbers(10, 12) * 4), "none twice: both began as committed"
        await first.close()
        assert listener.now == set()
        await until_calm(second, partitions=4)
        assert await second.poll(timeout_ms=500) == [], "the first committed when it left"
        await second.close()
        third = in_group(world, partition_assignment_strategy=strategy)
        await third.subscribe(["t"])
        await until_calm(third, partitions=4)
        assert await third.poll(timeout_ms=1_000) == []
        await third.close()

    simulate(main)


def test_cooperative_members_keep_reading_what_they_keep(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 4)
        first, listener = in_group(world), Listener()
        await first.subscribe(["t"], listener)
        await until_calm(first, partitions=4)
        second = in_group(world)
        await second.subscribe(["t"])
        await until_calm(first, second, partitions=4)
        revoked = [each for what, each in listener.told if what == "revoked"]
        assert [len(each) for each in revoked] == [2], "only what moved was given up"
        await first.close()
        await second.close()

    simulate(main)


def test_commits_of_all_kinds(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 2)
        fill(world, 0, numbers(0, 10), each=5)
        consumer = in_group(world, enable_auto_commit=False)
        await consumer.subscribe(["t"])
        await values(consumer, 3, max_records=3)
        await consumer.commit()
        assert (await consumer.committed([T0]))[T0].offset == 3
        told: list[Any] = []
        for offset in range(4, 9):
            consumer.commit_later(
                {T0: OffsetAndMetadata(offset, metadata=f"at {offset}")},
                lambda offsets, error: told.append((offsets[T0].offset, error)),
            )
        await consumer.commit({T1: OffsetAndMetadata(0)})
        assert told == [(offset, None) for offset in range(4, 9)]
        stored = (await consumer.committed([T0, T1]))[T0]
        assert (stored.offset, stored.metadata, stored.topic_id[:4]) == (8, "at 8", "id-t")
        offsets = [
            offset
            for _, partition, offset in world.cluster.coordinators.groups["g"].commits
            if partition == T0
        ]
        assert offsets == sorted(offsets)
        await consumer.close()
        assert (await _committed(world))[T0] == 8, "close commits nothing without auto commit"

    simulate(main)


async def _committed(world: Any) -> dict[TopicPartition, int]:
    group = world.cluster.coordinators.groups["g"]
    return {partition: each.offset for partition, each in group.offsets.items()}


def test_auto_commit_commits_what_earlier_polls_gave(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        fill(world, 0, numbers(0, 10))
        consumer = in_group(world, auto_commit_interval_ms=1_000)
        await consumer.subscribe(["t"])
        await values(consumer, 4, max_records=4)
        await asyncio.sleep(5)
        assert T0 not in await _committed(world), "they may not be processed yet"
        await values(consumer, 3, max_records=3)
        await asyncio.sleep(0.5)
        assert (await _committed(world))[T0] == 4
        await consumer.close()
        assert (await _committed(world))[T0] == 7

    simulate(main)


def test_what_an_iteration_did_not_hand_out_is_not_committed(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        fill(world, 0, numbers(0, 10), each=10)
        consumer = in_group(world)
        await consumer.subscribe(["t"])
        first, second, *rest = await consumer.poll(timeout_ms=10_000)
        consumer.taker.unread(rest)
        assert (first.value, second.value) == (b"0", b"1")
        assert await consumer.position(T0) == 2
        third = consumer.taker.next_unread()
        assert third is not None
        await consumer.commit()
        assert (await _committed(world))[T0] == 3
        assert [each.value for each in await consumer.poll(max_records=2)] == numbers(3, 5)
        await consumer.close()
        assert (await _committed(world))[T0] == 5

    simulate(main)


def test_no_committed_offset_and_no_policy(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        fill(world, 0, numbers(0, 2))
        consumer = in_group(world, auto_offset_reset="none")
        await consumer.subscribe(["t"])
        with pytest.raises(NoOffset):
            await consumer.poll(timeout_ms=10_000)
        await consumer.seek_to_beginning()
        assert await values(consumer, 2) == numbers(0, 2)
        await consumer.close()

    simulate(main)


def test_patterns_find_new_topics_and_groups_new_partitions(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t-a", 1)
        world.cluster.create("other", 1)
        consumer = in_group(world)
        await consumer.subscribe(re.compile(r"t-.*"))
        await until_calm(consumer, partitions=1)
        assert consumer.subscription() == {"t-a"}
        world.cluster.create("t-b", 2)
        await until_calm(consumer, partitions=3)
        world.cluster.add_partitions("t-a", 2)
        await until_calm(consumer, partitions=4)
        world.cluster.delete("t-b")
        await until_calm(consumer, partitions=2)
        await consumer.unsubscribe()
        assert consumer.assignment() == set()
        await asyncio.sleep(1)
        assert world.cluster.coordinators.groups["g"].members == {}
        other = TopicPartition("other", 0)
        await consumer.assign([other])
        await consumer.commit({other: OffsetAndMetadata(0)})
        assert (await consumer.committed([other]))[other].offset == 0
        await consumer.close()

    simulate(main)


def test_F30_a_member_that_was_away_cannot_commit_and_is_told_what_it_lost(  # noqa: N802
    simulate: Any,
) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        fill(world, 0, numbers(0, 10))
        client = world.network.host("away", world.loop.process("away"))
        away, listener = in_group(world, host=client, enable_auto_commit=False), Listener()
        await away.subscribe(["t"], listener)
        assert await values(away, 3, max_records=3) == numbers(0, 3)
        world.network.isolate("away", ["b0", "b1", "b2", "g200", "g201"])
        await asyncio.sleep(10)
        other = in_group(world)
        await other.subscribe(["t"])
        assert await values(other, 10) == numbers(0, 10)
        await other.commit()
        world.network.heal()
        with pytest.raises((CommitFailed, RequestTimedOut)):
            await away.commit(timeout_ms=30_000)
        assert (await _committed(world))[T0] == 10
        await until_calm(away, other, partitions=1)
        assert ("lost", [T0]) in listener.told
        await away.close()
        await other.close()

    simulate(main)


def test_a_program_that_does_not_poll_leaves_and_comes_back(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 2)
        lazy, listener = in_group(world, max_poll_interval_ms=5_000), Listener()
        busy = in_group(world)
        await lazy.subscribe(["t"], listener)
        await until_calm(lazy, partitions=2)
        await busy.subscribe(["t"])
        await until_calm(lazy, busy, partitions=2)
        for _ in range(100):
            await busy.poll(timeout_ms=100)
        assert len(busy.assignment()) == 2, "heartbeats alone do not keep partitions"
        await until_calm(lazy, busy, partitions=2)
        assert any(what == "lost" for what, _ in listener.told)
        assert len(lazy.assignment()) == 1
        await lazy.close()
        await busy.close()

    simulate(main)


def test_a_program_that_waits_in_its_poll_is_alive(simulate: Any) -> None:
    """One that has no partitions hears nothing for hours, until it is needed."""

    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        members = [in_group(world, max_poll_interval_ms=5_000) for _ in range(2)]
        for each in members:
            await each.subscribe(["t"])
        await until_calm(*members, partitions=1)
        busy, idle = sorted(members, key=lambda each: not each.assignment())
        waiting = asyncio.ensure_future(idle.poll(timeout_ms=None))
        for _ in range(200):
            await busy.poll(timeout_ms=100)
        assert len(world.cluster.coordinators.groups["g"].members) == 2
        await busy.close()
        fill(world, 0, numbers(0, 1))
        async with asyncio.timeout(60):
            assert [each.value for each in await waiting] == numbers(0, 1)
        assert await idle.poll(timeout_ms=4_900) == []
        await asyncio.sleep(4.9)
        assert idle._member is not None
        assert idle._member.is_calm, "the interval begins when the poll ends"
        await idle.close()

    simulate(main)


@pytest.mark.parametrize("told", ["on_assigned", "on_revoked"])
def test_a_callback_may_close_the_consumer(simulate: Any, told: str) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 2)
        consumer, other, listener = in_group(world), in_group(world), Listener()

        async def close(_: list[TopicPartition]) -> None:
            await consumer.close()

        setattr(listener, told, close)
        await consumer.subscribe(["t"], listener)
        if told == "on_revoked":
            await until_calm(consumer, partitions=2)
        await other.subscribe(["t"])
        polling = asyncio.ensure_future(consumer.poll(timeout_ms=None))
        async with asyncio.timeout(60):
            while not polling.done():
                await other.poll(timeout_ms=100)
            with pytest.raises(ClientClosed):
                await polling
        await until_calm(other, partitions=2)
        assert len(world.cluster.coordinators.groups["g"].members) == 1
        await other.close()

    simulate(main)


def test_another_coordinator_takes_over_and_nobody_loses_anything(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 2)
        fill(world, 0, numbers(0, 10))
        consumer, listener = in_group(world), Listener()
        await consumer.subscribe(["t"], listener)
        await values(consumer, 10)
        world.cluster.move_groups(201)
        await asyncio.sleep(8)
        fill(world, 0, numbers(10, 12))
        assert await values(consumer, 2) == numbers(10, 12)
        await consumer.commit()
        assert (await _committed(world))[T0] == 12
        assert [what for what, _ in listener.told] == ["assigned"]
        world.cluster.coordinators.is_loading = True
        committing = asyncio.ensure_future(consumer.commit())
        await asyncio.sleep(2)
        assert not committing.done()
        world.cluster.coordinators.is_loading = False
        await committing
        await consumer.close()

    simulate(main)


def test_a_static_member_that_comes_back_keeps_its_place(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 2)
        first = in_group(world, group_instance_id="one")
        second, listener = in_group(world, group_instance_id="two"), Listener()
        await first.subscribe(["t"])
        await second.subscribe(["t"], listener)
        await until_calm(first, second, partitions=2)
        await first.close()
        await asyncio.sleep(1)
        assert len(world.cluster.coordinators.groups["g"].members) == 2
        before = second.assignment()
        again = in_group(world, group_instance_id="one")
        await again.subscribe(["t"])
        await until_calm(again, second, partitions=2)
        assert second.assignment() == before
        assert not any(what == "lost" for what, _ in listener.told)
        await again.close()
        await second.close()

    simulate(main)


class Noting:
    """An interceptor that counts, and fails now and then."""

    def __init__(self) -> None:
        self.records = 0
        self.commits: list[int] = []

    def on_consume(self, partition: TopicPartition, records: int, size: int) -> None:
        self.records += records
        assert size >= 0
        raise ValueError("its own business")

    def on_commit(self, offsets: Any) -> None:
        self.commits += [each.offset for each in offsets.values()]


def test_interceptors_see_what_is_handed_out_and_committed(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        fill(world, 0, numbers(0, 5))
        noting = Noting()
        consumer = in_group(world, interceptors=[noting])
        await consumer.subscribe(["t"])
        await values(consumer, 5)
        await consumer.close()
        assert (noting.records, noting.commits) == (5, [5])

    simulate(main)
