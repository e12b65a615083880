"""Runs of records, and what their futures say, before, while and after they get a place."""

from __future__ import annotations

import asyncio
import weakref
from functools import partial
from typing import Any

import pytest

from tailrace.client.background import background
from tailrace.client.delivery import BatchOutcome, Delivery, RecordMetadata
from tailrace.client.handing import DeliveryFuture, Run, Shared
from tailrace.errors import BatchTooLarge, ClientClosed, TailraceError
from tailrace.model import TopicPartition

OUTCOME_OF = TopicPartition("t", 2)
SHARED = Shared(background(), lambda: "nobody listens")


def run_of(count: int) -> tuple[Run, list[DeliveryFuture]]:
    run = Run("t")
    run.times.extend(range(100, 100 + count))
    run.values.extend([b"v"] * count)
    return run, [DeliveryFuture(run, number, SHARED) for number in range(count)]


def test_records_of_a_run_end_in_several_batches() -> None:
    run, futures = run_of(5)
    assert not any(each.done() for each in futures)
    first, second = BatchOutcome(OUTCOME_OF), BatchOutcome(OUTCOME_OF)
    run.put(0, 2, first, 7)
    run.put(2, 2, second, 0)
    too_large = BatchTooLarge("no")
    run.refuse(4, 1, too_large)
    assert [each.done() for each in futures] == [False, False, False, False, True]
    first.stored(0, 9, base_offset=50)
    assert futures[1].result() == RecordMetadata("t", 2, 58, 101)
    assert futures[1].exception() is None
    second.failed(0, 2, lost := TailraceError("lost"))
    assert futures[2].exception() is lost
    with pytest.raises(BatchTooLarge):
        futures[4].result()
    assert futures[4].exception() is too_large
    assert isinstance(run.find(0), Delivery)


def test_what_a_record_costs_does_not_grow_with_the_batches_of_its_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of 2,000 was looked for in all batches, by everybody, whenever one of them was known."""
    looked, find = [0], Run.find

    def counted(run: Run, number: int) -> Any:
        looked[0] += 1
        return find(run, number)

    monkeypatch.setattr(Run, "find", counted)
    run, futures = run_of(2_000)
    told: list[DeliveryFuture] = []
    outcome = BatchOutcome(OUTCOME_OF)

    async def happen() -> None:
        # From the last to the first: who asks sooner need not be known sooner.
        for each in reversed(futures):
            each._when_done(partial(told.append, each))
        for number in range(len(futures)):
            run.put(number, 1, outcome, number)
        outcome.stored(0, len(futures), base_offset=0)

    background().wait(happen())
    assert told == futures
    assert [each.result().offset for each in futures] == list(range(2_000))
    assert looked[0] <= 8 * len(futures)


def test_who_asks_before_there_is_a_place_is_told_when_all_is_known() -> None:
    run, futures = run_of(2)
    with pytest.raises(TimeoutError, match="nobody listens"):
        futures[0].result(timeout=0.01)
    told: list[DeliveryFuture] = []
    futures[0].add_done_callback(told.append)
    outcome = BatchOutcome(OUTCOME_OF)

    async def happen() -> None:
        run.put(0, 1, outcome, 0)
        assert told == []
        outcome.stored(0, 1, base_offset=3)

    background().wait(happen())
    assert futures[0].result(timeout=5).offset == 3
    background().wait(_turn())
    assert told == [futures[0]]


def test_a_callback_that_raises_keeps_nobody_from_hearing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The pump ended by it: what was sent after that waited for ever."""
    run, futures = run_of(1)
    told: list[DeliveryFuture] = []
    futures[0].add_done_callback(lambda each: each.result())
    futures[0].add_done_callback(told.append)

    async def refuse() -> None:
        run.refuse(0, 1, BatchTooLarge("no"))

    background().wait(refuse())
    assert told == [futures[0]]

    def bad(*_: object) -> None:
        raise RuntimeError("of the program")

    alone = Run("t", place=(b"v", b"k", None, 0), callback=bad)
    alone.times.append(100)
    alone.refuse(0, 1, ClientClosed("closed"))
    assert [each.message for each in caplog.records] == ["a callback of a producer raised"] * 2


def test_who_asks_of_a_record_that_has_its_place_leaves_nothing_behind() -> None:
    class Value:
        pass

    value: Any = Value()
    kept = weakref.ref(value)
    run, futures = run_of(0)
    run.times.append(100)
    run.values.append(value)
    future = DeliveryFuture(run, 0, SHARED)
    outcome = BatchOutcome(OUTCOME_OF)
    run.put(0, 1, outcome, 0)

    async def happen(outcome: BatchOutcome) -> None:
        # By now somebody waits.
        await asyncio.sleep(0.05)
        outcome.stored(0, 1, base_offset=3)

    done = background().start(happen(outcome))
    assert future.result(timeout=5).offset == 3
    done.result(5)
    del run, futures, future, outcome, value
    assert kept() is None


async def _turn() -> None:
    """What was called before in the loop is done."""


def test_what_has_no_place_at_the_end_is_refused_and_callbacks_are_told_once() -> None:
    run, futures = run_of(3)
    run.put(0, 1, BatchOutcome(OUTCOME_OF), 0)
    run.refuse_rest(closed := ClientClosed("closed"))
    assert [each.done() for each in futures] == [False, True, True]
    assert futures[2].exception() is closed
    told: list[object] = []
    alone = Run("t", place=(b"v", b"k", None, 0), callback=lambda *each: told.append(each))
    alone.times.append(1)
    alone.refuse(0, 1, closed)
    assert told == [(None, closed)]
