"""What a program learns of its records."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.client.delivery import (
    BatchDelivery,
    BatchMetadata,
    BatchOutcome,
    Delivery,
    RecordMetadata,
)
from tailrace.errors import NotLeader
from tailrace.model import TopicPartition

PARTITION = TopicPartition("t", 2)


async def test_each_record_has_its_place_in_the_batch() -> None:
    outcome = BatchOutcome(PARTITION)
    one, two = Delivery(outcome, 0, 100), Delivery(outcome, 1, 200)
    assert not one.done()
    assert not one.cancelled()
    with pytest.raises(asyncio.InvalidStateError):
        one.exception()
    waiting = asyncio.ensure_future(two)
    await asyncio.sleep(0)
    outcome.stored(0, 2, base_offset=40)
    assert await one == RecordMetadata("t", 2, 40, 100)
    assert await waiting == RecordMetadata("t", 2, 41, 200)
    assert one.exception() is None


async def test_the_time_of_the_append_counts_where_there_is_one() -> None:
    outcome = BatchOutcome(PARTITION)
    outcome.stored(0, 2, base_offset=40, append_time_ms=999)
    assert (await Delivery(outcome, 1, 200)).timestamp_ms == 999


async def test_parts_are_told_one_by_one() -> None:
    outcome = BatchOutcome(PARTITION)
    outcome.parts = 2
    deliveries = [Delivery(outcome, index, 1) for index in range(3)]
    told: list[int] = []
    for index, each in enumerate(deliveries):
        each.call_back(lambda metadata, error, index=index: told.append(index))  # type: ignore[misc]
    whole = BatchDelivery([outcome])
    outcome.stored(2, 1, base_offset=9)
    assert told == [2]
    assert not outcome.is_over
    assert not whole.done()
    with pytest.raises(asyncio.InvalidStateError):
        whole.result()
    outcome.stored(0, 2, base_offset=5)
    assert told == [2, 0, 1]
    assert [each.result().offset for each in deliveries] == [5, 6, 9]
    assert await whole == [BatchMetadata("t", 2, 5, 2), BatchMetadata("t", 2, 9, 1)]


async def test_records_that_were_there_have_no_known_place() -> None:
    outcome = BatchOutcome(PARTITION)
    outcome.stored(0, 1, base_offset=-1, is_part=False)
    assert Delivery(outcome, 0, 1).result().offset == -1
    assert not Delivery(outcome, 1, 1).done()
    outcome.stored(1, 1, base_offset=7)
    assert Delivery(outcome, 1, 1).result().offset == 7
    assert outcome.is_over


async def test_failures() -> None:
    outcome = BatchOutcome(PARTITION)
    delivery = Delivery(outcome, 0, 1)
    told: list[object] = []
    delivery.add_done_callback(told.append)
    assert outcome.is_awaited
    outcome.failed(0, 1, NotLeader("no"))
    delivery.add_done_callback(told.append)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert told == [delivery, delivery]
    assert isinstance(delivery.exception(), NotLeader)
    with pytest.raises(NotLeader):
        await delivery
    with pytest.raises(NotLeader):
        await BatchDelivery([outcome])
