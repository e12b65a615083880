"""What a broker that traces tells of produce requests, of responses to readers, and of orders.

The streams here stand in for the plain ones when there is a tracer; without one a broker runs none
of this. What takes place inside is not touched: a span is begun before a step and ended after it.
Spans of a produce request: the whole of it, below it the appends (which are done in one go), and
for each partition the wait for its replicas, with a note when a follower was sent the last of
it and one when it said that it has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from tailrace.broker.clients import ClientStream
from tailrace.broker.fetching import FetchService, FetchStream
from tailrace.broker.hosted import Hosted, ReplicaTrace
from tailrace.broker.quotas import ClientQuota
from tailrace.broker.service import Pending, ProduceService, ProduceStream, Request
from tailrace.log.admission import BodyVerdict
from tailrace.model import BrokerId
from tailrace.tracing import Role, Span, Tracer
from tailrace.transport.envelopes import FetchResponse, ProduceRequest
from tailrace.transport.wire import code_name
from tailrace.v1 import control_pb2

WAITS_TRACED_MAX: Final = 100
"""Of one partition at the same time: each report of a follower looks at all of them."""

PARTITIONS_TOLD_MAX: Final = 16
"""So many of a request or response are told by name."""

Orders = Callable[[control_pb2.LeaderAndIsrRequest], Awaitable[control_pb2.LeaderAndIsrResponse]]


class TracedProduceStream(ProduceStream):
    """A produce stream some of whose requests are traced."""

    def __init__(self, tracer: Tracer, service: ProduceService, client: ClientStream) -> None:
        super().__init__(service, client)
        self._tracer = tracer

    def take(
        self,
        message: ProduceRequest,
        quota: ClientQuota,
        verdicts: Sequence[BodyVerdict | None] = (),
    ) -> Request:
        span = self._tracer.sample("broker produce", message.traceparent, role=Role.SERVER)
        if span is None:
            return super().take(message, quota, verdicts)
        parts = message.partitions
        names = [f"{each.partition.topic}-{each.partition.partition}" for each in parts]
        span.about(
            partitions=len(parts),
            which=", ".join(names[:PARTITIONS_TOLD_MAX]),
            bytes=sum(len(each.batches) for each in parts),
        )
        append = span.child("append")
        request = super().take(message, quota, verdicts)
        append.end()
        span.about(acks=request.acks, throttle_ms=request.throttle_ms)
        waits = [each for each in request.pending if each.waiter is not None]
        for each in waits:
            _trace_wait(each, span)
        for each in waits:
            assert each.waiter is not None
            # Who answers was called before us: when nothing is left open, the answer is ready.
            each.waiter.add_done_callback(partial(_end_with, span, request))
        if not waits:
            _end_with(span, request)
        return request


def _end_with(span: Span, request: Request, _: object = None) -> None:
    """End the span of a request when the whole of it is answered."""
    if request.open == 0:
        span.end(next((each for each in map(_problem, request.pending) if each), ""))


def _problem(pending: Pending) -> str:
    answer = pending.answer
    return f"{code_name(answer.error)}: {answer.message}" if answer.error else ""


def _trace_wait(pending: Pending, span: Span) -> None:
    """Tell how long one partition waits for its replicas, and for which."""
    hosted, waiter = pending.hosted, pending.waiter
    assert hosted is not None
    assert waiter is not None
    offset = max(each.last_offset for each in pending.answer.batches) + 1
    wait = span.child(
        "replicate",
        partition=str(hosted.partition),
        offset=offset,
        isr=str(list(hosted.machine.isr)),
    )
    watched = hosted.trace = hosted.trace or ReplicaWaits(hosted)
    watched.add(offset, wait)

    def over(_: object) -> None:
        watched.remove(wait)
        error = None if waiter.cancelled() else waiter.result()
        wait.end("" if error is None else f"{error.code}: {error}")

    waiter.add_done_callback(over)


class ReplicaWaits(ReplicaTrace):
    """Who waits for the followers of one partition, and how far each follower is. While any do."""

    def __init__(self, hosted: Hosted) -> None:
        self._hosted = hosted
        self._waits: dict[Span, tuple[int, set[tuple[str, BrokerId]]]] = {}

    def add(self, offset: int, wait: Span) -> None:
        if len(self._waits) < WAITS_TRACED_MAX:
            self._waits[wait] = (offset, set())

    def remove(self, wait: Span) -> None:
        self._waits.pop(wait, None)
        if not self._waits and self._hosted.trace is self:
            self._hosted.trace = None

    def pushed(self, broker: BrokerId, next_offset: int) -> None:
        self._note("sent", broker, next_offset)

    def reported(self, broker: BrokerId, log_end: int) -> None:
        self._note("replicated", broker, log_end)

    def _note(self, what: str, broker: BrokerId, up_to: int) -> None:
        for wait, (offset, noted) in self._waits.items():
            if up_to >= offset and (what, broker) not in noted:
                noted.add((what, broker))
                wait.note(what, broker=broker)


class TracedFetchStream(FetchStream):
    """A fetch stream some of whose responses are traced: read, then sent."""

    def __init__(self, tracer: Tracer, service: FetchService, client: ClientStream) -> None:
        super().__init__(service, client)
        self._tracer = tracer
        self._span: Span | None = None

    async def wait(self) -> bool:
        # What was gathered before has been taken by the client's connection.
        self._end()
        return await super().wait()

    async def gather(self, response: FetchResponse, *, tell_all: bool) -> None:
        span = self._tracer.sample("broker fetch", role=Role.PRODUCER)
        if span is None:
            await super().gather(response, tell_all=tell_all)
            return
        read = span.child("read")
        await super().gather(response, tell_all=tell_all)
        found = [each for each in response.partitions if each.batches]
        if not found:
            # Nobody is told of what was never ended.
            return
        read.end()
        names = [f"{each.partition.topic}-{each.partition.partition}" for each in found]
        span.about(
            partitions=len(found),
            which=", ".join(names[:PARTITIONS_TOLD_MAX]),
            bytes=sum(len(each.batches) for each in found),
        )
        response.traceparent = span.context
        self._span = span

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            self._end("the stream ended before all was sent")

    def _end(self, error: str = "") -> None:
        span, self._span = self._span, None
        if span is not None:
            span.end(error)


def traced_orders(tracer: Tracer, obey: Orders) -> Orders:
    """Orders of the controller, told below its own span where it has one."""

    async def traced(
        request: control_pb2.LeaderAndIsrRequest,
    ) -> control_pb2.LeaderAndIsrResponse:
        if not request.traceparent:
            return await obey(request)
        span = tracer.begin(
            "obey", request.traceparent, role=Role.SERVER, partitions=len(request.partitions)
        )
        response = await obey(request)
        failed = [each.message for each in response.errors]
        span.end(response.message or "; ".join(failed[:PARTITIONS_TOLD_MAX]))
        return response

    return traced
