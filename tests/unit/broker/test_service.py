"""Produce, offsets and metadata as a client sees them: every request is answered."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.broker.service import BATCHES_PER_REQUEST_MAX
from tailrace.errors import RequestTimedOut, Unreachable
from tailrace.transport import methods
from tailrace.transport.envelopes import PartitionBatches, ProduceRequest
from tailrace.transport.wire import code_name, to_partition
from tailrace.v1 import broker_pb2 as pb
from tailrace.v1 import control_pb2
from tailrace.v1.common_pb2 import ClusterMetadata, TopicMetadata
from unit.broker.trio import T0, T1, TOPIC_ID, Trio, batch, simulate


def part(partition: int = 0, data: bytes | None = None) -> PartitionBatches:
    named = to_partition(T0 if partition == 0 else T1)
    return PartitionBatches(
        partition=named, leader_epoch=-1, batches=batch() if data is None else data
    )


async def offset(
    trio: Trio, position: pb.OffsetPosition.ValueType, *, to: int = 0, timestamp_ms: int = 0
) -> pb.OffsetFound:
    query = pb.OffsetQuery(partition=to_partition(T0), position=position, timestamp_ms=timestamp_ms)
    response = await trio.host.channel(f"b{to}:9092").call(
        methods.BROKER_LIST_OFFSETS, pb.ListOffsetsRequest(queries=[query]), timeout_ms=1_000
    )
    return response.offsets[0]


@simulate
async def test_acks_all_waits_for_the_replicas(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    answer = await trio.produce()
    assert not answer.error
    assert (answer.batches[0].base_offset, answer.batches[0].last_offset) == (0, 2)
    assert trio.ends() == [3, 3, 3]
    assert trio.hosted(0).machine.high_watermark == 3


@simulate
async def test_acks_all_runs_out_of_time_where_acks_leader_does_not_wait(trio: Trio) -> None:
    await trio.start(0)
    await trio.lead(0, 0)
    answer = await trio.produce(acks=pb.ACKS_LEADER)
    assert not answer.error
    assert answer.batches[0].last_offset == 2
    answer = await trio.produce(timeout_ms=1_000)
    assert code_name(answer.error) == RequestTimedOut.code
    assert 1_000 <= trio.loop.now_ms < 2_000
    assert trio.hosted(0).log.log_end == 6


@simulate
async def test_acks_none_is_not_answered(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    stream = trio.producing()
    await stream.send(ProduceRequest(correlation=1, acks=pb.ACKS_NONE, partitions=[part()]))
    await stream.send(ProduceRequest(correlation=2, acks=pb.ACKS_ALL, partitions=[part()]))
    answer = await stream.recv()
    assert answer is not None
    assert answer.correlation == 2
    assert answer.partitions[0].batches[0].base_offset == 3


@simulate
async def test_a_stream_that_is_finished_gets_its_last_answers(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    stream = trio.producing()
    for number in range(3):
        await stream.send(ProduceRequest(correlation=number, partitions=[part()]))
    await stream.finish()
    got = []
    while (answer := await stream.recv()) is not None:
        got.append(answer.correlation)
    assert got == [0, 1, 2]


@simulate
async def test_what_does_not_fit_the_partition_is_refused(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 2)
    assert code_name((await trio.produce(partition=T1)).error) == "UNKNOWN_TOPIC"
    assert code_name((await trio.produce(topic_id="another")).error) == "UNKNOWN_TOPIC_ID"
    assert code_name((await trio.produce(leader_epoch=1)).error) == "FENCED_EPOCH"
    assert code_name((await trio.produce(leader_epoch=3)).error) == "UNKNOWN_EPOCH"
    assert code_name((await trio.produce(b"not a batch")).error) == "CORRUPT_BATCH"
    follower = await trio.produce(to=1)
    assert code_name(follower.error) == "NOT_LEADER"
    assert (follower.leader, follower.leader_epoch) == (0, 2)
    assert trio.hosted(0).log.log_end == 0
    assert not (await trio.produce(topic_id=TOPIC_ID, leader_epoch=2)).error


@simulate
async def test_too_few_in_sync_refuse_acks_all_only(trio: Trio) -> None:
    await trio.start(0)
    await trio.lead(0, 0, isr=(0,))
    assert code_name((await trio.produce()).error) == "NOT_ENOUGH_REPLICAS"
    assert not (await trio.produce(acks=pb.ACKS_LEADER)).error


@simulate
async def test_a6_what_has_no_room_in_a_request_is_to_be_sent_again(trio: Trio) -> None:
    """A request is appended in one turn of the loop."""
    await trio.start()
    await trio.lead(0, 0, isr=(0,))
    stream = trio.producing()
    many = part()
    many.batches = batch() * BATCHES_PER_REQUEST_MAX
    other = part(1)
    await stream.send(ProduceRequest(correlation=1, acks=pb.ACKS_LEADER, partitions=[many, other]))
    answer = await stream.recv()
    assert answer is not None
    first, second = answer.partitions
    assert (first.error, len(first.batches)) == (0, BATCHES_PER_REQUEST_MAX)
    assert code_name(second.error) == "OVERLOADED"
    assert "send the rest again" in second.message


@simulate
async def test_a_request_names_each_partition_once(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    stream = trio.producing()
    nameless = PartitionBatches(batches=batch())
    for parts in ([part(), part()], [part(), nameless]):
        await stream.send(ProduceRequest(correlation=1, partitions=parts))
        answer = await stream.recv()
        assert answer is not None
        assert [code_name(each.error) for each in answer.partitions] == ["INVALID_REQUEST"] * 2
    await stream.send(ProduceRequest(correlation=9))
    answer = await stream.recv()
    assert answer is not None
    assert (answer.correlation, len(answer.partitions)) == (9, 0)
    assert trio.hosted(0).log.log_end == 0


@simulate
async def test_bytes_that_wait_are_bounded(trio: Trio) -> None:
    size = len(batch())
    await trio.start(0, produce_bytes_max=size + 10)
    await trio.lead(0, 0)
    stream = trio.producing()
    await stream.send(ProduceRequest(correlation=1, timeout_ms=2_000, partitions=[part()]))
    await asyncio.sleep(0.1)
    refused = await trio.produce()
    assert code_name(refused.error) == "OVERLOADED"
    assert refused.retry_after_ms > 0
    answer = await stream.recv()
    assert answer is not None
    assert code_name(answer.partitions[0].error) == RequestTimedOut.code
    # There is room again.
    assert not (await trio.produce(acks=pb.ACKS_LEADER)).error


@simulate
async def test_a_client_that_goes_away_gives_its_bytes_back(trio: Trio) -> None:
    size = len(batch())
    await trio.start(0, produce_bytes_max=size)
    await trio.lead(0, 0)
    stream = trio.producing()
    await stream.send(ProduceRequest(correlation=1, partitions=[part()]))
    await asyncio.sleep(0.1)
    stream.cancel()
    await asyncio.sleep(0.1)
    assert not (await trio.produce(acks=pb.ACKS_LEADER)).error


@simulate
async def test_a_stream_with_much_in_flight_is_not_read_on(trio: Trio) -> None:
    await trio.start(0, connection_bytes_max=1)
    await trio.lead(0, 0)
    stream = trio.producing()
    for number in (1, 2):
        request = ProduceRequest(correlation=number, timeout_ms=1_000, partitions=[part()])
        await stream.send(request)
    await asyncio.sleep(0.5)
    assert trio.hosted(0).log.log_end == 3
    for number in (1, 2):
        answer = await stream.recv()
        assert answer is not None
        assert answer.correlation == number
    assert trio.hosted(0).log.log_end == 6


@simulate
async def test_a_request_that_is_too_large_is_answered(trio: Trio) -> None:
    size = len(batch())
    await trio.start(socket_request_max_bytes=size)
    await trio.lead(0, 0)
    await trio.lead(0, 0, partition=T1)
    stream = trio.producing()
    await stream.send(ProduceRequest(correlation=1, partitions=[part(), part(1)]))
    await stream.send(ProduceRequest(correlation=2, partitions=[part()]))
    answers = {}
    for _ in range(2):
        answer = await stream.recv()
        assert answer is not None
        answers[answer.correlation] = [code_name(each.error) for each in answer.partitions]
    assert answers == {1: ["REQUEST_TOO_LARGE"] * 2, 2: [""]}


@simulate
async def test_a_client_that_ignores_the_hint_slows_down_itself(trio: Trio) -> None:
    size = len(batch())
    await trio.start(0, produce_bytes_max=size)
    await trio.lead(0, 0)
    first = trio.producing()
    await first.send(ProduceRequest(correlation=1, timeout_ms=3_000, partitions=[part()]))
    await asyncio.sleep(0.1)
    hasty, begun_ms, hint_ms = trio.producing(), trio.loop.now_ms, 0
    for number in range(10):
        await hasty.send(ProduceRequest(correlation=number, partitions=[part()]))
        answer = await hasty.recv()
        assert answer is not None
        assert code_name(answer.partitions[0].error) == "OVERLOADED"
        hint_ms = answer.partitions[0].retry_after_ms
    assert hint_ms > 0
    assert trio.loop.now_ms - begun_ms >= 9 * (hint_ms // 2)


@simulate
async def test_a_client_that_does_not_take_its_answers_is_cut_off(trio: Trio) -> None:
    await trio.start(client_stall_timeout_ms=2_000)
    await trio.lead(0, 0)
    stream = trio.producing()

    async def send_for_ever() -> None:
        # Answers pile up, then requests do, then the stream is cut.
        async with asyncio.timeout(60):
            while True:
                await stream.send(ProduceRequest(correlation=1, partitions=[part()]))

    with pytest.raises(Unreachable):
        await send_for_ever()
    assert trio.heard("client.stall.timeout.ms=2000")
    assert len(trio.brokers[0].clients) == 0
    assert not (await trio.produce()).error


@simulate
async def test_a_client_above_its_quota_is_told_and_waits(trio: Trio) -> None:
    size = len(batch())
    await trio.start(quota_producer_default=size)
    await trio.lead(0, 0)
    stream, begun_ms, told = trio.producing(), trio.loop.now_ms, []
    for number in range(5):
        request = ProduceRequest(correlation=number, partitions=[part()], client_id="greedy")
        await stream.send(request)
    for _ in range(5):
        answer = await stream.recv()
        assert answer is not None
        assert not answer.partitions[0].error
        told.append(answer.throttle_ms)
    # A burst of one second is free, then each request takes a second.
    assert told[0] == 0
    assert all(900 <= each <= 1_100 for each in told[1:])
    assert 3_000 <= trio.loop.now_ms - begun_ms <= 4_500
    # It is not a matter of the stream, and others are not held up.
    stream.cancel()
    other = trio.loop.now_ms
    await trio.produce()
    assert trio.loop.now_ms - other < 100
    again = trio.producing()
    await again.send(ProduceRequest(correlation=1, partitions=[part()], client_id="greedy"))
    assert await again.recv() is not None
    assert trio.loop.now_ms - other >= 800


@simulate
async def test_a_quota_that_the_controller_tells_acts_on_open_streams(trio: Trio) -> None:
    size = len(batch())
    await trio.start()
    await trio.lead(0, 0)
    stream = trio.producing()

    async def throttle_ms() -> int:
        request = ProduceRequest(correlation=1, partitions=[part()], client_id="greedy")
        await stream.send(request)
        answer = await stream.recv()
        assert answer is not None
        return answer.throttle_ms

    async def tell(*clients: control_pb2.ClientSettings) -> None:
        await trio.host.channel("b0:9095").call(
            methods.CONTROL_UPDATE_SETTINGS,
            control_pb2.UpdateSettingsRequest(header=trio.header(0), clients=clients),
            timeout_ms=1_000,
        )

    assert await throttle_ms() == 0
    rate = {"producer_byte_rate": str(size // 2)}
    await tell(control_pb2.ClientSettings(client_id="greedy", settings=rate))
    assert await throttle_ms() > 900
    await tell()
    assert await throttle_ms() == 0


@simulate
async def test_an_idle_stream_is_closed(trio: Trio) -> None:
    await trio.start(connections_max_idle_ms=5_000)
    await trio.lead(0, 0)
    stream = trio.producing()
    await stream.send(ProduceRequest(correlation=1, partitions=[part()]))
    assert await stream.recv() is not None
    begun_ms = trio.loop.now_ms
    with pytest.raises(Unreachable):
        await stream.recv()
    assert 5_000 <= trio.loop.now_ms - begun_ms < 10_000
    assert trio.heard("connections.max.idle.ms=5000")


@simulate
async def test_a_lost_leadership_ends_the_wait(trio: Trio) -> None:
    await trio.start(0)
    await trio.lead(0, 0)
    stream = trio.producing()
    await stream.send(ProduceRequest(correlation=1, timeout_ms=60_000, partitions=[part()]))
    await asyncio.sleep(0.1)
    await trio.lead(1, 1)
    answer = await stream.recv()
    assert answer is not None
    assert code_name(answer.partitions[0].error) == "NOT_LEADER"
    assert answer.partitions[0].leader == 1
    assert trio.loop.now_ms < 2_000


@simulate
async def test_offsets_end_at_the_high_watermark(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 4)
    await trio.produce(batch(timestamp_ms=100))
    await trio.produce(batch(timestamp_ms=200))
    assert (await offset(trio, pb.OFFSET_POSITION_EARLIEST)).offset == 0
    latest = await offset(trio, pb.OFFSET_POSITION_LATEST)
    assert (latest.offset, latest.leader_epoch) == (6, 4)
    timed = await offset(trio, pb.OFFSET_POSITION_TIME, timestamp_ms=150)
    assert (timed.offset, timed.timestamp_ms) == (3, 200)
    assert (await offset(trio, pb.OFFSET_POSITION_TIME, timestamp_ms=999)).offset == -1
    follower = await offset(trio, pb.OFFSET_POSITION_LATEST, to=1)
    assert code_name(follower.error) == "NOT_LEADER"


@simulate
async def test_offsets_of_an_unknown_partition(trio: Trio) -> None:
    await trio.start(0)
    found = await offset(trio, pb.OFFSET_POSITION_LATEST)
    assert (code_name(found.error), found.offset) == ("UNKNOWN_TOPIC", -1)


@simulate
async def test_l1_that_the_store_is_not_believed_is_pushed_at_once(trio: Trio) -> None:
    await trio.start(0)
    channel = trio.host.channel("b0:9092")
    stream = channel.open(methods.BROKER_WATCH_METADATA, pb.WatchMetadataRequest())
    first = await stream.recv()
    assert first is not None
    assert (first.store_problem, first.store_problem_since_ms) == ("", 0)
    for problem, since_ms in (("it is empty", 77), ("", 0)):
        trio.brokers[0].metadata.doubt(problem, since_ms)
        told = await stream.recv()
        assert told is not None
        assert (told.store_problem, told.store_problem_since_ms) == (problem, since_ms)
    stream.cancel()


@simulate
async def test_metadata_is_pushed_when_it_changes(trio: Trio) -> None:
    await trio.start(0)
    topics = [TopicMetadata(name="t"), TopicMetadata(name="u")]
    channel = trio.host.channel("b0:9092")
    every = channel.open(methods.BROKER_WATCH_METADATA, pb.WatchMetadataRequest())
    some = channel.open(methods.BROKER_WATCH_METADATA, pb.WatchMetadataRequest(topics=["u"]))
    for stream in (every, some):
        first = await stream.recv()
        assert first is not None
        assert first.metadata.revision == -1
    await trio.tell_metadata(0, ClusterMetadata(revision=3, topics=topics))
    told = await every.recv()
    assert told is not None
    assert [topic.name for topic in told.metadata.topics] == ["t", "u"]
    told = await some.recv()
    assert told is not None
    assert (told.metadata.revision, [each.name for each in told.metadata.topics]) == (3, ["u"])
    await trio.tell_metadata(0, ClusterMetadata(revision=2))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await every.recv()
    some.cancel()
    await trio.tell_metadata(0, ClusterMetadata(revision=4))
