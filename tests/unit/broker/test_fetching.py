"""Fetch streams: what is pushed, when, and how much; and what ends the reading of a partition."""

from __future__ import annotations

import asyncio

import pytest

from simulation.loop import InlineBlocking
from simulation.proofs import given_up
from tailrace.errors import Unreachable
from tailrace.transport.envelopes import FetchResponse, PartitionFetched
from tailrace.transport.rpc import Stream
from tailrace.transport.wire import code_name, to_partition
from tailrace.v1 import broker_pb2 as pb
from unit.broker.trio import T0, T1, TOPIC_ID, Trio, batch, next_offset, simulate

Fetching = Stream[pb.FetchRequest, FetchResponse]
MUCH = 1 << 20


def wanted(
    offset: int = 0,
    *,
    leader_epoch: int = -1,
    last_epoch: int = -1,
    topic_id: str = "",
    end_offset: int = 0,
) -> pb.FetchPartition:
    return pb.FetchPartition(
        partition=to_partition(T0),
        topic_id=topic_id,
        offset=offset,
        leader_epoch=leader_epoch,
        last_epoch=last_epoch,
        end_offset=end_offset,
    )


async def one(stream: Fetching) -> PartitionFetched:
    response = await stream.recv()
    assert response is not None
    (part,) = response.partitions
    return part


async def nothing_more_comes(stream: Fetching, seconds: float) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            # To cancel it breaks the stream.
            await stream.recv()


async def lead_alone(trio: Trio, **settings: int) -> None:
    """One broker, one replica: all that is appended is committed."""
    await trio.start(0, **settings)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))


async def refusal(trio: Trio, partition: pb.FetchPartition, *, to: int = 0) -> PartitionFetched:
    stream = trio.fetching(to)
    await stream.send(pb.FetchRequest(add=[partition], credit_bytes=MUCH))
    part = await one(stream)
    stream.cancel()
    return part


@simulate
async def test_what_is_committed_is_pushed_as_it_comes(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    await trio.produce()
    stream = trio.fetching()
    await stream.send(pb.FetchRequest(add=[wanted(topic_id=TOPIC_ID)], credit_bytes=MUCH))
    part = await one(stream)
    assert (part.high_watermark, next_offset(part.batches)) == (3, 3)
    assert (part.leader, part.leader_epoch, part.log_start) == (-1, 0, 0)
    began_ms = trio.loop.now_ms
    await trio.produce()
    part = await one(stream)
    assert next_offset(part.batches) == 6
    assert trio.loop.now_ms - began_ms < 100


@simulate
async def test_what_is_not_committed_is_not_read(trio: Trio) -> None:
    await trio.start(0)
    await trio.lead(0, 0)
    await trio.produce(acks=pb.ACKS_LEADER)
    stream = trio.fetching()
    await stream.send(pb.FetchRequest(add=[wanted()], credit_bytes=MUCH, max_wait_ms=100))
    part = await one(stream)
    assert (part.high_watermark, part.batches) == (0, b"")


@simulate
async def test_nothing_is_sent_without_credit(trio: Trio) -> None:
    await lead_alone(trio)
    for _ in range(4):
        await trio.produce()
    size = len(batch())
    stream = trio.fetching()
    await stream.send(pb.FetchRequest(add=[wanted()], max_wait_ms=100))
    for credit, end in ((2 * size, 6), (size, 9)):
        receiving = trio.loop.create_task(one(stream), name="receive")
        await asyncio.sleep(2)
        assert not receiving.done()
        await stream.send(pb.FetchRequest(credit_bytes=credit))
        assert next_offset((await receiving).batches) == end


@simulate
async def test_a_response_has_a_size_and_the_rest_comes_after_it(trio: Trio) -> None:
    await lead_alone(trio, fetch_response_bytes=len(batch()) + 1)
    for _ in range(3):
        await trio.produce()
    stream = trio.fetching()
    await stream.send(pb.FetchRequest(add=[wanted()], credit_bytes=MUCH))
    assert [next_offset((await one(stream)).batches) for _ in range(3)] == [3, 6, 9]


@simulate
async def test_nothing_is_sent_that_begins_after_the_end_that_the_client_named(trio: Trio) -> None:
    await lead_alone(trio)
    for _ in range(3):
        await trio.produce()
    for end, sent in ((3, 3), (4, 6), (6, 6), (100, 9)):
        stream = trio.fetching()
        request = pb.FetchRequest(add=[wanted(end_offset=end)], credit_bytes=MUCH, max_wait_ms=100)
        await stream.send(request)
        reached = 0
        while reached < sent:
            reached = next_offset((await one(stream)).batches)
        assert reached == sent
        # The high watermark is told all the same.
        part = await one(stream)
        assert (part.high_watermark, part.batches) == (9, b"")
        stream.cancel()


@simulate
async def test_credit_is_bounded(trio: Trio) -> None:
    size = len(batch())
    await lead_alone(trio, fetch_credit_bytes_max=size)
    for _ in range(3):
        await trio.produce()
    stream = trio.fetching()
    await stream.send(pb.FetchRequest(add=[wanted()], credit_bytes=10 * size, max_wait_ms=100))
    assert next_offset((await one(stream)).batches) == 3
    await nothing_more_comes(stream, 1)


@simulate
async def test_few_bytes_wait_for_more_or_for_the_longest_wait(trio: Trio) -> None:
    await lead_alone(trio)
    size = len(batch())
    await trio.produce()
    stream = trio.fetching()
    began_ms = trio.loop.now_ms
    await stream.send(
        pb.FetchRequest(add=[wanted()], credit_bytes=MUCH, min_bytes=size + 1, max_wait_ms=1_000)
    )
    assert next_offset((await one(stream)).batches) == 3
    assert 1_000 <= trio.loop.now_ms - began_ms < 1_100
    began_ms = trio.loop.now_ms
    await trio.produce()
    await trio.produce()
    assert next_offset((await one(stream)).batches) == 9
    assert trio.loop.now_ms - began_ms < 500


@simulate
async def test_a_quiet_partition_is_told_of_after_the_longest_wait(trio: Trio) -> None:
    await lead_alone(trio)
    stream = trio.fetching()
    await stream.send(pb.FetchRequest(add=[wanted()], credit_bytes=MUCH, max_wait_ms=200))
    for _ in range(2):
        part = await one(stream)
        assert (part.error, part.batches, part.high_watermark) == (0, b"", 0)
    assert 400 <= trio.loop.now_ms < 600


@simulate
async def test_a_partition_that_is_removed_is_read_no_more(trio: Trio) -> None:
    await lead_alone(trio)
    stream = trio.fetching()
    await stream.send(pb.FetchRequest(add=[wanted()], credit_bytes=MUCH, max_wait_ms=100))
    await one(stream)
    assert len(trio.hosted(0).fetchers) == 1
    await stream.send(pb.FetchRequest(remove=[to_partition(T0)]))
    await trio.until(lambda: not trio.hosted(0).fetchers)
    await trio.produce()
    await nothing_more_comes(stream, 1)


@simulate
async def test_a_client_that_goes_away_is_forgotten(trio: Trio) -> None:
    await lead_alone(trio)
    stream = trio.fetching()
    await stream.send(pb.FetchRequest(add=[wanted()], credit_bytes=MUCH))
    await one(stream)
    stream.cancel()
    await trio.until(lambda: not trio.hosted(0).fetchers)


@simulate
async def test_a_new_leader_is_named_when_the_role_changes(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    stream = trio.fetching()
    await stream.send(pb.FetchRequest(add=[wanted()], credit_bytes=MUCH, max_wait_ms=60_000))
    await asyncio.sleep(0.1)
    await trio.lead(1, 1)
    part = await one(stream)
    assert (code_name(part.error), part.leader, part.leader_epoch) == ("NOT_LEADER", 1, 1)
    assert not trio.hosted(0).fetchers


@simulate
async def test_a_role_change_is_told_to_a_client_without_credit(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    stream = trio.fetching()
    await stream.send(pb.FetchRequest(add=[wanted()], max_wait_ms=100))
    await asyncio.sleep(0.1)
    await trio.lead(1, 1)
    await stream.send(pb.FetchRequest(credit_bytes=1))
    assert code_name((await one(stream)).error) == "NOT_LEADER"


@simulate
async def test_who_must_not_read_here_is_told_why(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 3)
    unknown = pb.FetchPartition(partition=to_partition(T1), leader_epoch=-1, last_epoch=-1)
    part = await refusal(trio, unknown)
    assert (code_name(part.error), part.leader) == ("UNKNOWN_TOPIC", -1)
    part = await refusal(trio, wanted(topic_id="another"))
    assert code_name(part.error) == "UNKNOWN_TOPIC_ID"
    part = await refusal(trio, wanted(), to=2)
    assert (code_name(part.error), part.leader, part.leader_epoch) == ("NOT_LEADER", 0, 3)
    assert code_name((await refusal(trio, wanted(leader_epoch=2))).error) == "FENCED_EPOCH"
    assert code_name((await refusal(trio, wanted(leader_epoch=4))).error) == "UNKNOWN_EPOCH"


@simulate
async def test_an_epoch_that_is_not_set_is_none_and_not_the_first(trio: Trio) -> None:
    """Clients of other languages leave out what they do not know."""
    await trio.start()
    await trio.lead(0, 3)
    await trio.produce()
    part = await refusal(trio, pb.FetchPartition(partition=to_partition(T0)))
    assert (part.error, part.leader_epoch) == (0, 3)
    # One that is set to 0 is the first epoch.
    assert code_name((await refusal(trio, wanted(leader_epoch=0))).error) == "FENCED_EPOCH"


@simulate
async def test_offsets_outside_of_the_log_are_refused(trio: Trio) -> None:
    await lead_alone(trio)
    await trio.produce()
    await trio.produce()
    trio.hosted(0).log.advance_log_start(3, given_up(3))
    for offset in (2, 7):
        part = await refusal(trio, wanted(offset))
        assert (code_name(part.error), part.log_start) == ("OFFSET_OUT_OF_RANGE", 3)
    stream = trio.fetching()
    await stream.send(pb.FetchRequest(add=[wanted(3)], credit_bytes=MUCH))
    assert next_offset((await one(stream)).batches) == 6


@simulate
async def test_a_leader_of_the_past_does_not_call_the_present_gone(trio: Trio) -> None:
    await lead_alone(trio)
    await trio.produce()
    # This was read in an epoch that this broker has not heard of: it is replaced, and knows not.
    for offset in (2, 3, 9):
        part = await refusal(trio, wanted(offset, leader_epoch=0, last_epoch=1))
        assert code_name(part.error) == "UNKNOWN_EPOCH"


@simulate
async def test_a_past_that_is_gone_is_told_with_where_it_parted(trio: Trio) -> None:
    await lead_alone(trio)
    await trio.produce()
    await trio.lead(0, 4, isr=(0,), replicas=(0,))
    await trio.produce()
    # Records up to 5 were read in epoch 0, which ended at 3 here.
    part = await refusal(trio, wanted(5, last_epoch=0))
    assert (code_name(part.error), part.agreed_offset) == ("TRUNCATED", 3)
    # Epoch 2 was never led here.
    part = await refusal(trio, wanted(2, last_epoch=2))
    assert (code_name(part.error), part.agreed_offset) == ("TRUNCATED", 2)
    stream = trio.fetching()
    await stream.send(pb.FetchRequest(add=[wanted(3, last_epoch=0)], credit_bytes=MUCH))
    assert next_offset((await one(stream)).batches) == 6


@simulate
async def test_f44_nothing_is_called_gone_before_the_replicas_were_heard(trio: Trio) -> None:
    """The log of a leader that just began may be an older copy, and theirs may have the rest."""
    await trio.start(0, replica_lag_time_max_ms=3_000)
    await trio.lead(0, 1, isr=(0,))
    part = await refusal(trio, wanted(5, last_epoch=0))
    assert code_name(part.error) == "UNKNOWN_EPOCH"
    await asyncio.sleep(3)
    part = await refusal(trio, wanted(5, last_epoch=0))
    assert code_name(part.error) == "TRUNCATED"
    # An election that may have lost records is on record: nobody has to be heard.
    await trio.lead(0, 2, isr=(0,), unclean_epoch=2)
    part = await refusal(trio, wanted(5, last_epoch=0))
    assert code_name(part.error) == "TRUNCATED"


@simulate
async def test_what_is_not_in_the_last_segment_is_read_off_the_loop(trio: Trio) -> None:
    await lead_alone(trio)
    await trio.produce()
    trio.hosted(0).log.roll()
    await trio.produce()
    stream = trio.fetching()
    await stream.send(pb.FetchRequest(add=[wanted()], credit_bytes=MUCH))
    assert [next_offset((await one(stream)).batches) for _ in range(2)] == [3, 6]


@simulate
async def test_what_is_read_carries_the_tag_of_the_place_that_was_asked_for(trio: Trio) -> None:
    await lead_alone(trio)
    await trio.produce()
    stream = trio.fetching()
    first, second, wrong = wanted(0), wanted(1), wanted(99)
    first.tag, second.tag, wrong.tag = 7, 8, 9
    await stream.send(pb.FetchRequest(add=[first], credit_bytes=MUCH))
    assert (await one(stream)).tag == 7
    await stream.send(pb.FetchRequest(add=[second]))
    part = await one(stream)
    assert (part.tag, len(part.batches) > 0) == (8, True)
    await stream.send(pb.FetchRequest(add=[wrong]))
    part = await one(stream)
    assert (part.tag, code_name(part.error)) == (9, "OFFSET_OUT_OF_RANGE")


@simulate
async def test_data_that_is_not_taken_is_bounded_over_all_streams(trio: Trio) -> None:
    """Readers that take nothing fill `fetch.bytes.max`; they are cut off, and others go on."""
    response = 64 << 10
    await lead_alone(
        trio,
        fetch_bytes_max=2 * response,
        fetch_response_bytes=response,
        client_stall_timeout_ms=3_000,
    )
    for _ in range(40):
        await trio.produce(batch(1, value=bytes(60 << 10)))
    stuck = [trio.fetching() for _ in range(6)]
    for stream in stuck:
        await stream.send(pb.FetchRequest(add=[wanted()], credit_bytes=1 << 30))
    await asyncio.sleep(1)
    service = trio.brokers[0].fetching
    assert service is not None
    sluice = service.sluice
    assert sluice.bytes <= 2 * response
    stream = trio.fetching()
    await stream.send(pb.FetchRequest(add=[wanted()], credit_bytes=MUCH, max_wait_ms=100))
    assert next_offset((await one(stream)).batches) >= 1
    await trio.until(lambda: trio.heard("client.stall.timeout.ms=3000"))
    await trio.until(lambda: sluice.bytes == 0)


@simulate
async def test_a_reader_without_credit_is_closed_when_it_is_idle(trio: Trio) -> None:
    await lead_alone(trio, connections_max_idle_ms=4_000)
    quiet, reading = trio.fetching(), trio.fetching()
    await quiet.send(pb.FetchRequest(add=[wanted()], max_wait_ms=100))
    await reading.send(pb.FetchRequest(add=[wanted()], credit_bytes=MUCH, max_wait_ms=100))
    with pytest.raises(Unreachable):
        await quiet.recv()
    # One that is told the high watermark now and then is not idle.
    assert (await one(reading)).high_watermark == 0
    assert len(trio.brokers[0].clients) == 1


@simulate
async def test_a_reader_above_its_quota_is_told_and_waits(trio: Trio) -> None:
    await lead_alone(trio, quota_consumer_default=64 << 10, fetch_response_bytes=64 << 10)
    for _ in range(8):
        await trio.produce(batch(1, value=bytes(60 << 10)))
    stream, begun_ms, end = trio.fetching(), trio.loop.now_ms, 0
    opening = pb.FetchRequest(add=[wanted()], credit_bytes=MUCH, client_id="greedy")
    await stream.send(opening)
    throttled = 0
    while end < 8:
        response = await stream.recv()
        assert response is not None
        throttled += response.throttle_ms > 0
        for each in response.partitions:
            end = max(end, next_offset(each.batches))
    assert throttled >= 5
    assert 5_000 <= trio.loop.now_ms - begun_ms <= 9_000


@simulate
async def test_a_reader_of_a_slow_disk_does_not_slow_producers_f39(trio: Trio) -> None:
    """What is read from the disk waits for it; nobody else does."""
    await lead_alone(trio, fetch_cold_reads_max=2)
    for _ in range(20):
        await trio.produce()
        trio.hosted(0).log.roll()
    blocking = trio.brokers[0]._blocking
    assert isinstance(blocking, InlineBlocking)
    blocking.delay_us = (300_000, 400_000)
    streams = [trio.fetching() for _ in range(4)]
    for stream in streams:
        await stream.send(pb.FetchRequest(add=[wanted()], credit_bytes=MUCH, max_wait_ms=100))
    began_ms = trio.loop.now_ms

    async def read(stream: Fetching) -> int:
        end = 0
        while end < 60:
            end = next_offset((await one(stream)).batches)
        return trio.loop.now_ms - began_ms

    readers = [trio.loop.create_task(read(stream), name="read") for stream in streams]
    waits: list[int] = []
    while not all(reader.done() for reader in readers):
        before_ms = trio.loop.now_ms
        assert not (await trio.produce()).error
        waits.append(trio.loop.now_ms - before_ms)
        await asyncio.sleep(0.1)
    assert len(waits) > 20
    assert max(waits) < 100
    # Twenty segments each, two of the four readers at a time: none came from the loop.
    assert min(reader.result() for reader in readers) > 20 * 300 * 1.5
