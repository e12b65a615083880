"""The plan of what is read: routing, tags, credit, pauses and seeks; events in, decisions out."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.client.fetch_plan import LATEST, NEVER_MS, FetchPlan
from tailrace.errors import (
    NotLeader,
    OffsetOutOfRange,
    TailraceError,
    UnknownTopic,
    UnknownTopicId,
    UnreadableBatch,
)
from tailrace.model import TopicPartition
from tailrace.record.build import BatchBuilder

A, B, C = (TopicPartition("t", number) for number in range(3))


class Picture:
    """A cluster that a test can change."""

    def __init__(self, leaders: dict[TopicPartition, tuple[int, int]]) -> None:
        self.leaders = leaders
        self.topic_id = "id"
        self.is_there = True
        self.is_heard = True

    def is_known(self) -> bool:
        return self.is_heard

    def topic(self, name: str) -> tuple[str, int] | None:
        return (self.topic_id, len(self.leaders)) if self.is_there and self.is_heard else None

    def leader_of(self, partition: TopicPartition) -> tuple[int, int]:
        return self.leaders[partition]


def plan_of(bytes_max: int = 1 << 20) -> FetchPlan:
    return FetchPlan(bytes_max=bytes_max, topic_timeout_ms=5_000, jitter=lambda: 1.0)


def batch(offset: int, records: int = 1, size: int = 10, epoch: int = 0) -> bytes:
    builder = BatchBuilder()
    for _ in range(records):
        builder.append(bytes(size), timestamp_ms=1)
    return builder.build(base_offset=offset, leader_epoch=epoch)


def read_all(plan: FetchPlan) -> list[tuple[TopicPartition, int]]:
    found = []
    while (arrival := plan.take()) is not None:
        assert arrival.fetched is not None
        found.append((arrival.reading.partition, arrival.fetched.header.base_offset))
        arrival.reading.position = arrival.fetched.header.next_offset
    return found


def problem_of(plan: FetchPlan) -> TailraceError | None:
    arrival = plan.take()
    assert arrival is not None
    assert arrival.fetched is None
    return arrival.problem


def test_partitions_are_read_on_the_streams_to_their_leaders() -> None:
    plan, picture = plan_of(), Picture({A: (1, 0), B: (2, 0), C: (1, 3)})
    for partition in (A, B, C):
        plan.seek(plan.add(partition), 7, last_epoch=2)
    assert plan.route(picture, now_ms=0) == NEVER_MS
    assert plan.brokers() == [1, 2]
    assert [(each.partition, each.offset, each.leader_epoch) for each in plan.opened(1)] == [
        (A, 7, 0),
        (C, 7, 3),
    ]
    picture.leaders[C] = (2, 4)
    plan.route(picture, now_ms=0)
    assert plan.changed(1) == ([], [C])
    (place,) = plan.changed(2)[0][1:]
    assert (place.partition, place.leader_epoch, place.last_epoch, place.topic_id) == (
        *(C, 4, 2),
        "id",
    )
    assert plan.changed(2) == ([], [])


def test_what_was_on_its_way_before_a_seek_is_dropped() -> None:
    plan, picture = plan_of(), Picture({A: (1, 0)})
    reading = plan.add(A)
    plan.seek(reading, 0)
    plan.route(picture, now_ms=0)
    old = reading.tag
    plan.opened(1)
    plan.grant(1)
    plan.receive(1, plan.find(A, old), batch(0), now_ms=0)
    plan.seek(reading, 5)
    plan.route(picture, now_ms=0)
    plan.receive(1, plan.find(A, old), batch(1), now_ms=0)
    plan.receive(1, plan.find(A, reading.tag), batch(5), now_ms=0)
    assert read_all(plan) == [(A, 5)]
    assert plan.accounts[1].held == 0


def test_a_problem_is_told_after_what_has_arrived_and_a_seek_forgets_it() -> None:
    plan, picture = plan_of(), Picture({A: (1, 0)})
    reading = plan.add(A)
    plan.seek(reading, 0)
    plan.route(picture, now_ms=0)
    plan.opened(1)
    plan.receive(1, reading, batch(0), now_ms=0)
    plan.refused(reading, OffsetOutOfRange(1, log_start=3, log_end=9), now_ms=0)
    first = plan.take()
    assert first is not None
    assert isinstance(problem_of(plan), OffsetOutOfRange)
    assert plan.route(picture, now_ms=10**6) == NEVER_MS
    assert plan.brokers() == []
    plan.seek(reading, 3)
    plan.route(picture, now_ms=10**6)
    assert plan.brokers() == [1]


def test_what_can_be_tried_again_is_and_a_new_picture_ends_the_wait() -> None:
    plan, picture = plan_of(), Picture({A: (1, 0)})
    reading = plan.add(A)
    plan.seek(reading, 0)
    plan.route(picture, now_ms=0)
    plan.opened(1)
    plan.refused(reading, NotLeader("b"), now_ms=100)
    plan.refused(reading, NotLeader("b"), now_ms=100)
    assert plan.route(picture, now_ms=100) == 140
    assert plan.brokers() == []
    plan.hurry()
    plan.route(picture, now_ms=101)
    assert plan.brokers() == [1]
    plan.closed(1, spoke=False, trouble="gone", now_ms=101)
    assert (plan.route(picture, now_ms=101), reading.trouble) == (121, "gone")


def test_topics_that_vanish_or_were_made_anew() -> None:
    plan, picture = plan_of(), Picture({A: (1, 0)})
    reading = plan.add(A)
    plan.seek(reading, 0)
    picture.is_heard = False
    assert plan.route(picture, now_ms=0) == NEVER_MS
    picture.is_heard, picture.is_there = True, False
    assert plan.route(picture, now_ms=10) == 5_010, "it was never seen: it may yet come"
    picture.is_there = True
    plan.route(picture, now_ms=20)
    picture.is_there = False
    assert plan.route(picture, now_ms=30) == 1_030
    plan.route(picture, now_ms=1_030)
    assert isinstance(problem_of(plan), UnknownTopic)
    plan.seek(reading, 0)
    picture.is_there, picture.topic_id = True, "other"
    plan.route(picture, now_ms=2_000)
    assert (reading.problem, reading.topic_id) == (None, "other")
    picture.topic_id = "third"
    plan.route(picture, now_ms=2_000)
    assert isinstance(problem_of(plan), UnknownTopicId)
    plan.add(TopicPartition("t", 9))
    plan.route(picture, now_ms=2_000)
    assert "partitions 0 to 0" in str(problem_of(plan))


def test_a_topic_that_is_back_is_read_on_or_known_to_be_another_one() -> None:
    plan, picture = plan_of(), Picture({A: (1, 0)})
    reading = plan.add(A)
    plan.seek(reading, 0)
    picture.is_there = False
    plan.route(picture, now_ms=0)
    plan.route(picture, now_ms=5_000)
    assert "create it first" in str(problem_of(plan))
    picture.is_there = True
    plan.route(picture, now_ms=5_001)
    assert (reading.problem, plan.brokers()) == (None, [1]), "it is the one that was waited for"
    plan.opened(1)
    plan.receive(1, reading, batch(0), now_ms=5_001)
    picture.is_there = False
    plan.route(picture, now_ms=6_000)
    plan.route(picture, now_ms=7_000)
    assert "it was deleted" in str(reading.problem)
    picture.is_there = True
    plan.route(picture, now_ms=7_001)
    assert read_all(plan) == [(A, 0)], "nobody is told of what is over"
    assert plan.brokers() == [1]
    picture.is_there = False
    plan.route(picture, now_ms=8_000)
    plan.route(picture, now_ms=9_000)
    picture.is_there, picture.topic_id = True, "other"
    plan.route(picture, now_ms=9_001)
    assert "seek to read the new one" in str(problem_of(plan))
    assert isinstance(reading.problem, UnknownTopicId)
    assert plan.take() is None


def test_a_partition_that_is_made_later_is_read() -> None:
    plan, picture = plan_of(), Picture({A: (1, 0)})
    reading = plan.add(B)
    plan.seek(reading, 0)
    plan.route(picture, now_ms=0)
    assert "partitions 0 to 0" in str(problem_of(plan))
    picture.leaders[B] = (1, 0)
    plan.route(picture, now_ms=1)
    assert (reading.problem, plan.brokers()) == (None, [1])


def test_offsets_are_looked_up_once_and_a_seek_overtakes_them() -> None:
    plan, picture = plan_of(), Picture({A: (1, 0)})
    reading = plan.add(A)
    plan.seek(reading, LATEST)
    plan.route(picture, now_ms=0)
    assert (list(plan.look_ups()), plan.brokers()) == ([reading], [])
    version = reading.version
    plan.seek(reading, 4)
    plan.looked_up(reading, version, 99)
    assert reading.arrived == 4
    plan.seek(reading, LATEST)
    plan.looked_up(reading, reading.version, 99)
    plan.route(picture, now_ms=0)
    assert (reading.position, plan.brokers(), list(plan.look_ups())) == (99, [1], [])


def test_a_paused_partition_keeps_its_place_and_holds_nobody_up() -> None:
    plan, picture = plan_of(), Picture({A: (1, 0), B: (1, 0)})
    for partition in (A, B):
        plan.seek(plan.add(partition), 0)
    plan.route(picture, now_ms=0)
    plan.opened(1)
    a, b = plan.readings[A], plan.readings[B]
    for offset in range(3):
        plan.receive(1, a, batch(offset), now_ms=0)
        plan.receive(1, b, batch(offset), now_ms=0)
    first = plan.take()
    assert first is not None
    assert first.reading is a
    plan.pause(a)
    plan.put_back(first)
    assert plan.changed(1) == ([], [A])
    assert read_all(plan) == [(B, 0), (B, 1), (B, 2)]
    plan.resume(a)
    plan.route(picture, now_ms=0)
    (place,) = plan.changed(1)[0]
    assert (place.partition, place.offset) == (A, 3), "what has arrived is not asked for again"
    assert read_all(plan) == [(A, 0), (A, 1), (A, 2)]
    assert plan.accounts[1].held == 0


def test_paused_partitions_hold_half_of_the_memory_at_most() -> None:
    plan, picture = plan_of(100_000), Picture({A: (1, 0), B: (1, 0)})
    for partition in (A, B):
        plan.seek(plan.add(partition), 0)
    plan.route(picture, now_ms=0)
    plan.opened(1)
    a = plan.readings[A]
    for offset in range(9):
        plan.receive(1, a, batch(offset, size=10_000), now_ms=0)
    plan.pause(a)
    assert plan.take() is None
    assert plan.accounts[1].held <= 50_000
    plan.resume(a)
    plan.route(picture, now_ms=0)
    assert a.arrived == 0, "what was dropped is asked for again"


@pytest.mark.parametrize("is_alone_first", [False, True])
def test_what_a_paused_partition_holds_leaves_credit_to_others_of_its_leader(
    is_alone_first: bool,
) -> None:
    others = {TopicPartition("t", number): (number, 0) for number in (2, 3)}
    plan, alone = plan_of(300_000), Picture({A: (1, 0), B: (1, 0)})
    picture = Picture({**alone.leaders, **others})
    first = alone if is_alone_first else picture
    for partition in first.leaders:
        plan.seek(plan.add(partition), 0)
    plan.route(first, now_ms=0)
    plan.opened(1)
    a, offset = plan.readings[A], 0
    while (credit := plan.grant(1)) or plan.accounts[1].granted > plan.accounts[1].received:
        assert credit >= 0
        plan.receive(1, a, batch(offset, size=10_000), now_ms=0)
        offset += 1
    plan.pause(a)
    assert plan.take() is None
    for partition in others:
        plan.seek(plan.add(partition), 0)
    plan.route(picture, now_ms=0)
    for broker in (2, 3):
        plan.opened(broker)
        assert plan.grant(broker) > 0
    assert plan.grant(1) > 0, "the other partition has no place to come to"


def test_every_stream_gets_credit_however_little_there_is() -> None:
    plan = plan_of(64 << 10)
    picture = Picture({TopicPartition("t", number): (number, 0) for number in range(10)})
    for partition in picture.leaders:
        plan.seek(plan.add(partition), 0)
    plan.route(picture, now_ms=0)
    for broker in plan.brokers():
        plan.opened(broker)
        assert plan.grant(broker) > 0


def test_what_a_paused_partition_holds_keeps_no_other_alive() -> None:
    plan, picture = plan_of(), Picture({A: (1, 0)})
    reading = plan.add(A)
    plan.seek(reading, 0)
    plan.route(picture, now_ms=0)
    plan.opened(1)
    message = batch(0) + bytes(1 << 16)
    plan.receive(1, reading, memoryview(message)[: len(batch(0))], now_ms=0)
    plan.pause(reading)
    assert plan.take() is None
    (held,) = reading.held
    assert held.fetched is not None
    assert held.fetched.data == batch(0)
    assert isinstance(held.fetched.data, bytes)


def test_damaged_batches_are_asked_for_again_and_then_told() -> None:
    plan, picture = plan_of(), Picture({A: (1, 0)})
    reading = plan.add(A)
    plan.seek(reading, 0)
    bad = bytearray(batch(0) + batch(1))
    bad[-10] ^= 1
    for attempt in range(5):
        plan.route(picture, now_ms=attempt * 10_000)
        plan.opened(1)
        plan.receive(1, reading, bytes(bad), now_ms=attempt * 10_000)
        plan.closed(1, spoke=True, trouble="", now_ms=attempt * 10_000)
    assert plan.accounts[1].received == 5 * len(bad)
    assert plan.take() is not None
    problem = problem_of(plan)
    assert isinstance(problem, UnreadableBatch)
    assert (problem.partition, problem.first_offset, problem.last_offset) == (0, 1, 1)
    assert plan.accounts[1].held == 0
    plan.route(picture, now_ms=100_000)
    assert reading.problem is problem, "the same leader would send the same"
    picture.leaders[A] = (2, 1)
    plan.route(picture, now_ms=100_001)
    assert plan.take() is None, "nobody is told of what is over"
    assert (reading.broker, reading.arrived, plan.brokers()) == (2, 1, [2])


class Reckless:
    """Brokers that push as far as they have credit, and a program that takes now and then."""

    bytes_max = 200_000
    size = 3_000

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.partitions = [TopicPartition("t", number) for number in range(6)]
        self.picture = Picture({each: (self.rng.randrange(4), 0) for each in self.partitions})
        self.plan = FetchPlan(bytes_max=self.bytes_max, topic_timeout_ms=1, jitter=self.rng.random)
        for partition in self.partitions:
            self.plan.seek(self.plan.add(partition), 0)
        self.granted = dict.fromkeys(range(4), 0)
        self.is_open: set[int] = set()
        self.got = dict.fromkeys(self.partitions, 0)
        self.pushed: dict[tuple[TopicPartition, int], int] = {}
        self.now_ms = 0

    def step(self) -> None:
        self.now_ms += 200
        self.plan.route(self.picture, now_ms=self.now_ms)
        for broker in self.plan.brokers():
            if broker in self.is_open and self.plan.has_too_much(broker):
                self.close(broker)
            elif broker not in self.is_open:
                self.open(broker)
        for broker in sorted(self.is_open & set(self.plan.brokers())):
            self.push(broker)
        held = sum(each.held for each in self.plan.accounts.values())
        assert held <= self.bytes_max + 4 * (self.size + 1_000), "one batch beyond for each stream"
        self.take(self.rng.randrange(60))
        self.disturb()

    def open(self, broker: int) -> None:
        self.is_open.add(broker)
        for place in self.plan.opened(broker):
            self.pushed[place.partition, place.tag] = place.offset
        self.granted[broker] = self.plan.grant(broker)

    def close(self, broker: int) -> None:
        self.is_open.discard(broker)
        spoke = self.rng.random() < 0.5
        self.plan.closed(broker, spoke=spoke, trouble="", now_ms=self.now_ms)

    def push(self, broker: int) -> None:
        places, _ = self.plan.changed(broker)
        self.pushed.update({(each.partition, each.tag): each.offset for each in places})
        self.granted[broker] += self.plan.grant(broker)
        mine = [each for each in self.plan.readings.values() if each.broker == broker]
        while mine and self.granted[broker] > 0 and self.rng.random() < 0.95:
            reading = self.rng.choice(mine)
            data = batch(self.pushed[reading.partition, reading.tag], size=self.size)
            self.pushed[reading.partition, reading.tag] += 1
            self.granted[broker] -= len(data)
            self.plan.receive(broker, reading, data, now_ms=self.now_ms)

    def take(self, count: int) -> None:
        for _ in range(count):
            arrival = self.plan.take()
            if arrival is None:
                return
            assert arrival.fetched is not None
            reading = arrival.reading
            assert arrival.fetched.header.base_offset == self.got[reading.partition]
            self.got[reading.partition] += 1
            reading.position = arrival.fetched.header.next_offset

    def disturb(self) -> None:
        some = self.plan.readings[self.rng.choice(self.partitions)]
        match self.rng.randrange(20):
            case 0 | 1:
                epoch = self.picture.leaders[some.partition][1] + 1
                self.picture.leaders[some.partition] = (self.rng.randrange(-1, 4), epoch)
            case 2 | 3:
                self.plan.pause(some)
            case 4 | 5 | 6:
                self.plan.resume(some)
            case 7 if self.is_open:
                self.close(self.rng.choice(sorted(self.is_open)))


@pytest.mark.parametrize("seed", range(8))
def test_memory_is_bounded_and_nothing_is_missed_whatever_happens(seed: int) -> None:
    """Leaders move, streams break, partitions pause; every offset comes once, in order."""
    run = Reckless(seed)
    for _ in range(250):
        run.step()
    for partition in run.partitions:
        run.plan.resume(run.plan.readings[partition])
        run.picture.leaders[partition] = (1, 10**6)
    before = dict(run.got)
    for _ in range(40):
        run.step()
    assert all(run.got[each] > before[each] for each in run.partitions), "all go on"
