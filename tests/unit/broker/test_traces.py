"""What a broker that traces tells: of a request, of its followers, of what is read, of orders."""

from __future__ import annotations

import asyncio

from opentelemetry.trace import SpanKind, StatusCode

from tailrace.broker.traces import WAITS_TRACED_MAX, ReplicaWaits
from tailrace.model import BrokerId
from tailrace.transport import methods
from tailrace.transport.envelopes import PartitionBatches, ProduceRequest
from tailrace.transport.wire import to_partition
from tailrace.v1 import broker_pb2 as pb
from tailrace.v1 import control_pb2
from unit.broker.trio import T0, T1, Trio, batch, simulate
from unit.spans import Spans, about, notes

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def traced(trio: Trio, *, ratio: float = 1.0) -> Spans:
    """Three brokers that trace, of which 0 leads T0 and T1."""
    spans = Spans(ratio=ratio)
    trio.tracer = spans.tracer
    await trio.start()
    await trio.lead(0, 0)
    await trio.lead(0, 0, partition=T1)
    return spans


async def ask(trio: Trio, request: ProduceRequest) -> pb.ProduceResponse:
    stream = trio.producing()
    await stream.send(request)
    answer = await stream.recv()
    assert answer is not None
    await stream.finish()
    return answer


def parts(*partitions: object) -> list[PartitionBatches]:
    return [
        PartitionBatches(partition=to_partition(each), leader_epoch=-1, batches=batch())
        for each in (T0, T1)
        if each in partitions
    ]


@simulate
async def test_a_request_is_told_with_its_append_and_its_waits(trio: Trio) -> None:
    spans = await traced(trio)
    request = ProduceRequest(correlation=1, partitions=parts(T0, T1), traceparent=PARENT)
    answer = await ask(trio, request)
    assert not any(each.error for each in answer.partitions)
    whole = spans.one("broker produce")
    assert whole.kind is SpanKind.SERVER
    assert whole.parent is not None
    assert f"{whole.parent.trace_id:032x}-{whole.parent.span_id:016x}" == PARENT[3:-3]
    assert (about(whole, "partitions"), about(whole, "which")) == (2, "t-0, t-1")
    assert sorted(spans.tree()) == [
        "append < broker produce",
        "broker produce < ?",
        "replicate < broker produce",
        "replicate < broker produce",
    ]
    for wait in spans.named("replicate"):
        assert sorted(notes(wait)) == ["replicated", "replicated", "sent", "sent"]
        assert about(wait, "offset") == 3
        assert about(wait, "isr") == "[0, 1, 2]"
    for partition in (T0, T1):
        assert trio.hosted(0, partition).trace is None, "nobody waits: nobody is watched"


@simulate
async def test_only_what_is_asked_for_is_traced_where_the_ratio_is_zero(trio: Trio) -> None:
    spans = await traced(trio, ratio=0.0)
    await ask(trio, ProduceRequest(correlation=1, partitions=parts(T0)))
    unsampled = PARENT[:-1] + "0"
    await ask(trio, ProduceRequest(correlation=2, partitions=parts(T0), traceparent=unsampled))
    assert spans.all() == []
    await ask(trio, ProduceRequest(correlation=3, partitions=parts(T0), traceparent=PARENT))
    assert len(spans.named("broker produce")) == 1


@simulate
async def test_what_does_not_wait_has_no_wait_and_what_is_refused_says_why(trio: Trio) -> None:
    spans = await traced(trio)
    await ask(trio, ProduceRequest(correlation=1, acks=pb.ACKS_LEADER, partitions=parts(T0)))
    assert sorted(spans.tree()) == ["append < broker produce", "broker produce"]
    nobody = PartitionBatches(partition=to_partition(T0), leader_epoch=9, batches=batch())
    await ask(trio, ProduceRequest(correlation=2, partitions=[nobody]))
    refused = spans.named("broker produce")[1]
    assert refused.status.status_code is StatusCode.ERROR
    assert (refused.status.description or "").startswith("UNKNOWN_EPOCH: ")


@simulate
async def test_a_wait_that_is_over_in_vain_says_who_had_it(trio: Trio) -> None:
    spans = await traced(trio)
    trio.processes[2].pause()
    answer = await trio.produce(timeout_ms=1_000)
    assert answer.error
    wait = spans.one("replicate")
    assert (wait.status.description or "").startswith("REQUEST_TIMED_OUT")
    told = [(each.name, dict(each.attributes or {})["tailrace.broker"]) for each in wait.events]
    assert ("replicated", 1) in told
    assert ("replicated", 2) not in told
    assert spans.one("broker produce").status.status_code is StatusCode.ERROR


@simulate
async def test_no_more_waits_are_watched_than_allowed(trio: Trio) -> None:
    spans = await traced(trio)
    hosted = trio.hosted(0)
    waits = ReplicaWaits(hosted)
    hosted.trace = waits
    begun = [spans.tracer.begin("wait") for _ in range(WAITS_TRACED_MAX + 1)]
    for each in begun:
        waits.add(1, each)
    waits.reported(BrokerId(1), 1)
    waits.reported(BrokerId(1), 1)
    for each in begun:
        each.end()
        waits.remove(each)
    assert [len(each.events) for each in spans.named("wait")] == [1] * WAITS_TRACED_MAX + [0]
    assert hosted.trace is None


@simulate
async def test_a_response_carries_the_trace_to_who_reads(trio: Trio) -> None:
    spans = await traced(trio)
    await trio.produce()
    stream = trio.fetching()
    place = pb.FetchPartition(partition=to_partition(T0), leader_epoch=-1, last_epoch=-1)
    await stream.send(pb.FetchRequest(add=[place], credit_bytes=1 << 20, max_wait_ms=100))
    response = await stream.recv()
    assert response is not None
    assert response.partitions[0].batches
    # With nothing new only the high watermark is told, and no trace of that.
    idle = await stream.recv()
    assert idle is not None
    assert not idle.traceparent
    pushed, read = spans.one("broker fetch"), spans.one("read")
    assert pushed.context is not None
    assert response.traceparent == (
        f"00-{pushed.context.trace_id:032x}-{pushed.context.span_id:016x}-01"
    )
    assert read.parent == pushed.context
    assert about(pushed, "which") == "t-0"
    assert about(pushed, "bytes") == len(response.partitions[0].batches)
    assert pushed.status.status_code is not StatusCode.ERROR
    stream.cancel()


@simulate
async def test_a_stream_that_breaks_while_something_is_sent_says_so(trio: Trio) -> None:
    spans = await traced(trio)
    for _ in range(40):
        await trio.produce(batch(value=bytes(100_000)))
    stream = trio.fetching()
    place = pb.FetchPartition(partition=to_partition(T0), leader_epoch=-1, last_epoch=-1)
    await stream.send(pb.FetchRequest(add=[place], credit_bytes=64 << 20))
    # Nobody takes what comes: after a while it cannot be sent.
    await trio.until(lambda: spans.named("read"))
    await asyncio.sleep(1)
    sending = len(spans.named("read")) - len(spans.named("broker fetch"))
    stream.cancel()
    await trio.until(lambda: len(spans.named("read")) == len(spans.named("broker fetch")))
    failed = [
        each
        for each in spans.named("broker fetch")
        if each.status.description == "the stream ended before all was sent"
    ]
    assert len(failed) == sending == 1


@simulate
async def test_an_order_is_told_below_the_span_of_the_controller(trio: Trio) -> None:
    spans = await traced(trio)
    assert spans.named("obey") == [], "these orders were part of no trace"
    order = control_pb2.PartitionOrder(
        partition=to_partition(T0),
        topic_id="id-of-t",
        leader=1,
        leader_epoch=1,
        isr=(0, 1, 2),
        replicas=(0, 1, 2),
        revision=1_000,
        leader_link="b1:9093",
    )
    for epoch in (1, 0):
        await trio.host.channel("b1:9095").call(
            methods.CONTROL_LEADER_AND_ISR,
            control_pb2.LeaderAndIsrRequest(
                header=trio.header(1, controller_epoch=epoch),
                partitions=[order],
                traceparent=PARENT,
            ),
            timeout_ms=2_000,
        )
    obeyed, refused = spans.named("obey")
    assert obeyed.parent is not None
    assert f"{obeyed.parent.span_id:016x}" == PARENT.split("-")[2]
    assert about(obeyed, "partitions") == 1
    assert obeyed.status.status_code is not StatusCode.ERROR
    assert "another controller has taken over" in (refused.status.description or "")
