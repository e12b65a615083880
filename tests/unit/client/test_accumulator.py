"""The rules of order, numbering, doubt and epochs, without any network."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from tailrace.client.accumulator import Accumulator, Ended, Pending, Queue, State
from tailrace.client.settings import ProducerSettings
from tailrace.errors import (
    BatchTooLarge,
    DeliveryTimedOut,
    InvariantViolation,
    NotLeader,
    TailraceError,
    UnknownProducer,
)
from tailrace.model import TopicPartition
from tailrace.record.header import SEQUENCE_MODULUS, read_header
from tailrace.record.view import BatchView

PARTITION = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
LOST = NotLeader("lost")


class Told:
    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.parts = 1


class Driver:
    """An accumulator with an id, and a clock that stands still."""

    def __init__(self, *, producer_id: int = 7, **settings: Any) -> None:
        self.accumulator: Accumulator[Told] = Accumulator(ProducerSettings(**settings), Told)
        if producer_id >= 0:
            self.accumulator.begin_epoch(producer_id, 0)
        self.now_ms = 1_000

    def queue(self, partition: TopicPartition = PARTITION) -> Queue[Told]:
        return self.accumulator.queue(partition)

    def add(self, value: bytes = b"v", partition: TopicPartition = PARTITION) -> Pending[Told]:
        """A record in a batch of its own: the one before is sealed."""
        self.accumulator.flush()
        return self.accumulator.open_batch(
            self.queue(partition), value, None, None, 1, size=100, now_ms=self.now_ms
        )

    def take(self, partition: TopicPartition = PARTITION) -> Pending[Told] | None:
        return self.accumulator.take(self.queue(partition), self.now_ms)

    def send(self, number: int, partition: TopicPartition = PARTITION) -> list[Pending[Told]]:
        """So many batches, all on their way."""
        batches = [self.add(b"%d" % each, partition) for each in range(number)]
        assert [self.take(partition) for _ in range(number)] == batches
        return batches

    def refuse(self, batch: Pending[Told], pause_ms: int = 0) -> list[Ended[Told]]:
        return self.accumulator.refused(batch, LOST, now_ms=self.now_ms, pause_ms=pause_ms)

    def lose(self, batch: Pending[Told]) -> list[Ended[Told]]:
        return self.accumulator.unanswered(batch, LOST, now_ms=self.now_ms, pause_ms=0)

    def give_up(self, batch: Pending[Told]) -> list[Pending[Told]]:
        return [each.batch for each in self.accumulator.give_up(batch, TailraceError("no"))]


def _values(batch: Pending[Told]) -> list[bytes | None]:
    return [record.value for record in BatchView(batch.data).records()]


def test_records_gather_until_the_batch_is_full() -> None:
    driver = Driver(batch_size=2_000, linger_ms=10)
    accumulator, queue = driver.accumulator, driver.queue()
    first = accumulator.open_batch(queue, bytes(500), None, None, 1, size=564, now_ms=1_000)
    assert accumulator.add(queue, bytes(500), None, None, 1, size=564) is first
    assert driver.take() is None, "it lingers"
    assert accumulator.add(queue, bytes(500), None, None, 1, size=564) is None
    assert (first.count, accumulator.memory_bytes) == (2, 1_128)
    second = accumulator.open_batch(queue, bytes(500), None, None, 1, size=564, now_ms=1_000)
    assert driver.take() is first, "it is full"
    assert driver.take() is None
    assert accumulator.due_ms(queue) == 1_010
    driver.now_ms = 1_010
    assert driver.take() is second
    accumulator.acknowledged(first)
    accumulator.acknowledged(second)
    assert accumulator.memory_bytes == 0
    assert accumulator.is_empty()


def test_a_record_that_never_fits_is_refused_and_leaves_no_trace() -> None:
    driver = Driver(max_request_size=2_000, batch_size=2_000)
    todo = r"larger than max_request_size=2000: raise max_request_size \(up to 33554432\); max"
    with pytest.raises(BatchTooLarge, match=todo):
        driver.add(bytes(3_000))
    assert driver.accumulator.is_empty()
    assert driver.accumulator.has_room(10**12), "alone, anything may come"
    driver.add()
    assert not driver.accumulator.has_room(10**12)


def test_sequences_follow_one_another_and_retries_have_the_same_bytes() -> None:
    driver = Driver()
    one, two = driver.send(2)
    assert [read_header(each.data).base_sequence for each in (one, two)] == [0, 1]
    before = one.data
    assert driver.refuse(one) == []
    assert driver.refuse(one) == [], "an answer that comes twice changes nothing"
    assert driver.take() is one
    assert one.data is before
    assert one.attempts == 2


def test_nothing_overtakes_what_waits() -> None:
    driver = Driver()
    one, two = driver.send(2)
    third = driver.add()
    driver.refuse(one, pause_ms=50)
    driver.refuse(two)
    assert driver.take() is None, "the first has to wait, and so do the others"
    assert driver.accumulator.due_ms(driver.queue()) == 1_050
    driver.now_ms = 1_050
    assert [driver.take() for _ in range(3)] == [one, two, third]


def test_a_new_leader_ends_the_pause_and_is_told_what_the_old_one_has() -> None:
    driver = Driver()
    one, two = driver.send(2)
    one.leader_epoch = two.leader_epoch = 4
    driver.refuse(one, pause_ms=10_000)
    assert driver.accumulator.moved(driver.queue(), 5) == [two]
    assert driver.accumulator.moved(driver.queue(), 4) == []
    assert driver.take() is one


def test_never_more_are_open_than_the_broker_remembers() -> None:
    """An acknowledgement in between does not count: the first may still have to be recognised."""
    driver = Driver()
    batches = driver.send(5)
    sixth = driver.add()
    assert driver.take() is None
    for batch in batches[1:]:
        driver.accumulator.acknowledged(batch)
    assert driver.take() is None
    assert driver.accumulator.due_ms(driver.queue()) is None
    driver.accumulator.acknowledged(batches[0])
    assert driver.take() is sixth


def test_a_batch_that_was_never_in_doubt_gives_its_number_back() -> None:
    driver = Driver()
    one, two = driver.send(2)
    driver.refuse(two)
    assert driver.give_up(one) == [one]
    assert not driver.accumulator.needs_epoch
    assert driver.take() is two
    assert read_header(two.data).base_sequence == 0


@pytest.mark.parametrize("is_in_doubt", [True, False])
def test_a_gap_takes_down_what_is_in_doubt_behind_it(is_in_doubt: bool) -> None:
    driver = Driver()
    one, two, three = driver.send(3)
    (elsewhere,) = driver.send(1, OTHER)
    driver.lose(elsewhere)
    driver.lose(one)
    if is_in_doubt:
        driver.lose(two)
    else:
        driver.refuse(two)
    assert driver.give_up(one) == ([one, two] if is_in_doubt else [one])
    assert driver.accumulator.needs_epoch
    assert not driver.accumulator.can_begin_epoch(), "the third is still on its way"
    assert [each.batch for each in driver.lose(three)] == [three]
    assert not driver.accumulator.can_begin_epoch(), "another partition's is in doubt"
    with pytest.raises(InvariantViolation):
        driver.accumulator.begin_epoch(7, 1)
    assert driver.take(OTHER) is elsewhere, "which is retried under its old number"
    driver.add(partition=OTHER)
    assert driver.take(OTHER) is None, "but nothing gets a new one"
    driver.accumulator.acknowledged(elsewhere)
    driver.accumulator.begin_epoch(7, 1)
    if not is_in_doubt:
        assert driver.take() is two
        header = read_header(two.data)
        assert (header.base_sequence, header.producer_epoch) == (0, 1)
        assert _values(two) == [b"1"]


def test_what_stands_before_the_gap_goes_on() -> None:
    driver = Driver()
    one, two = driver.send(2)
    driver.lose(one)
    driver.lose(two)
    assert driver.give_up(two) == [two]
    assert driver.take() is one


def test_deadlines_end_batches_also_those_on_their_way() -> None:
    driver = Driver(delivery_timeout_ms=100)
    (sent,) = driver.send(1)
    driver.now_ms = 1_050
    waiting = driver.add()
    assert driver.accumulator.next_deadline_ms() == 1_100
    assert driver.accumulator.expire(1_099) == []
    (ended,) = driver.accumulator.expire(1_100)
    assert ended.batch is sent
    assert isinstance(ended.error, DeliveryTimedOut)
    assert driver.accumulator.needs_epoch, "it may be in the log"
    assert not driver.accumulator.acknowledged(sent), "the answer comes too late"
    assert driver.give_up(sent) == []
    assert driver.accumulator.next_deadline_ms() == 1_150
    driver.accumulator.begin_epoch(7, 1)
    assert driver.take() is waiting
    driver.accumulator.acknowledged(waiting)
    assert driver.accumulator.next_deadline_ms() is None


def test_what_has_ended_is_not_held_until_its_deadline() -> None:
    """It was: for as long as one batch, or nobody, asked for deadlines, all that was sent."""
    driver = Driver()
    # One that nobody takes: its deadline stays the first of all.
    waiting = driver.add(partition=OTHER)
    batches = driver.send(5)
    told = [weakref.ref(each.outcome) for each in batches]
    for each in batches:
        assert driver.accumulator.acknowledged(each)
    del batches, each
    assert [each() for each in told] == [None] * 5
    assert driver.accumulator.next_deadline_ms() == waiting.deadline_ms


def test_the_message_says_why_nothing_was_sent() -> None:
    driver = Driver(delivery_timeout_ms=100)
    driver.add()
    driver.accumulator.note(driver.queue(), NotLeader("t-0 has no leader"))
    (ended,) = driver.accumulator.expire(2_000)
    assert "NOT_LEADER: t-0 has no leader" in str(ended.error)


def test_a_log_that_forgot_the_producer_has_nothing_of_what_waits() -> None:
    driver = Driver()
    one, two, three = driver.send(3)
    driver.lose(two)
    driver.lose(one)
    assert driver.take() is one
    assert driver.accumulator.forgotten(one, UnknownProducer("who?")) == []
    assert driver.accumulator.needs_epoch
    assert driver.take() is None
    assert driver.lose(three) == [], "it is known not to be there"
    driver.accumulator.begin_epoch(7, 1)
    assert [driver.take() for _ in range(3)] == [one, two, three]
    assert [read_header(each.data).base_sequence for each in (one, two, three)] == [0, 1, 2]


def test_a_batch_that_is_too_large_becomes_two() -> None:
    driver = Driver()
    accumulator, queue = driver.accumulator, driver.queue()
    batch = accumulator.open_batch(queue, b"0", b"k", [("h", b"x")], 1, size=100, now_ms=1_000)
    for number in range(1, 5):
        accumulator.add(queue, b"%d" % number, None, None, 1, size=100)
    assert driver.take() is batch
    assert accumulator.split(batch, BatchTooLarge("no")) == []
    assert batch.outcome.parts == 2
    parts = [driver.take(), driver.take()]
    assert [(each.first, each.count, each.sequence) for each in parts if each] == [
        (0, 2, 0),
        (2, 3, 2),
    ]
    assert [_values(each) for each in parts if each] == [[b"0", b"1"], [b"2", b"3", b"4"]]
    assert queue.batch_bytes == 1_024
    for each in parts:
        assert each is not None
        accumulator.acknowledged(each)
    assert accumulator.memory_bytes == 0


def test_one_record_that_is_too_large_fails() -> None:
    driver = Driver()
    (batch,) = driver.send(1)
    ended = driver.accumulator.split(batch, BatchTooLarge("no"))
    assert [each.batch for each in ended] == [batch]
    assert not driver.accumulator.needs_epoch
    assert driver.accumulator.split(batch, BatchTooLarge("no")) == []


def test_records_that_the_log_has_are_skipped() -> None:
    driver = Driver(producer_id=-1)
    driver.accumulator.resume(9, 3, {PARTITION: 40})
    accumulator, queue = driver.accumulator, driver.queue()
    batch = accumulator.open_batch(queue, b"40", None, None, 1, size=100, now_ms=1_000)
    for number in range(41, 45):
        accumulator.add(queue, b"%d" % number, None, None, 1, size=100)
    assert driver.take() is batch
    assert accumulator.skip(batch, 2)
    assert driver.take() is batch
    header = read_header(batch.data)
    assert (header.base_sequence, header.producer_id, header.producer_epoch) == (42, 9, 3)
    assert (batch.first, _values(batch)) == (2, [b"42", b"43", b"44"])
    assert not accumulator.skip(batch, 3)
    assert accumulator.is_empty()
    assert accumulator.sequences() == {PARTITION: 45}


def test_sequences_wrap() -> None:
    driver = Driver(producer_id=-1)
    driver.accumulator.resume(9, 3, {PARTITION: SEQUENCE_MODULUS - 1})
    one, two = driver.send(2)
    assert [one.sequence, two.sequence] == [SEQUENCE_MODULUS - 1, 0]


def test_the_state_is_only_known_when_nothing_is_on_its_way() -> None:
    driver = Driver()
    (batch,) = driver.send(1)
    with pytest.raises(InvariantViolation):
        driver.accumulator.sequences()
    driver.accumulator.acknowledged(batch)
    assert driver.accumulator.sequences() == {PARTITION: 1}


def test_without_idempotence_there_are_no_numbers() -> None:
    driver = Driver(producer_id=-1, enable_idempotence=False)
    batches = driver.send(5)
    driver.add()
    assert driver.take() is None
    header = read_header(batches[0].data)
    assert (header.producer_id, header.base_sequence) == (-1, -1)
    driver.lose(batches[0])
    assert driver.give_up(batches[0]) == [batches[0]]
    assert not driver.accumulator.needs_epoch


def test_before_there_is_an_id_nothing_is_sent() -> None:
    driver = Driver(producer_id=-1)
    batch = driver.add()
    assert driver.take() is None
    assert driver.accumulator.can_begin_epoch()
    driver.accumulator.begin_epoch(1, 0)
    assert driver.take() is batch
    assert batch.state is State.IN_FLIGHT


def test_whole_batches_stand_in_line() -> None:
    driver = Driver()
    queue = driver.queue()
    (sample,) = Driver(producer_id=-1, enable_idempotence=False).send(1)
    first = driver.accumulator.open_batch(queue, b"a", None, None, 1, size=100, now_ms=1_000)
    whole = driver.accumulator.add_batch(queue, sample.data, count=1, now_ms=1_000)
    assert [driver.take(), driver.take()] == [first, whole]
    header = read_header(whole.data)
    assert (header.base_sequence, header.producer_id) == (1, 7)
    assert _values(whole) == [b"0"]
    assert driver.accumulator.peek(queue) is None
    ended = driver.accumulator.end_all(TailraceError("over"))
    assert [each.batch for each in ended] == [first, whole]
    assert driver.accumulator.busy() == []
