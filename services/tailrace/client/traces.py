"""What a client that traces tells: requests from sending to answer, and responses that came.

The sender and the fetcher here stand in for the plain ones when there is a tracer; without one a
client runs none of this. A trace of a produce request begins here, and the broker goes on with it;
one of what is read begins at the broker that pushes it, and the consumer goes on with it.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace.client.fetcher import Fetcher
from tailrace.client.sender import Request, Sender, Sent
from tailrace.errors import TailraceError
from tailrace.tracing import Role, Span, Tracer
from tailrace.transport.envelopes import FetchResponse, PartitionBatches, ProduceRequest
from tailrace.transport.wire import code_name
from tailrace.v1 import broker_pb2 as pb

PARTITIONS_TOLD_MAX: Final = 16
"""So many of a request are told by name."""


class TracedSender(Sender):
    """Sends to one broker; some of the requests are traced until they are answered."""

    def __init__(self, tracer: Tracer, *parts: Any, **ports: Any) -> None:
        super().__init__(*parts, **ports)
        self._tracer = tracer
        # Of those that were sent and not answered, by their numbers.
        self._spans: dict[int, Span] = {}

    def request(
        self, number: int, parts: list[PartitionBatches], sent: list[Sent], *, is_first: bool
    ) -> ProduceRequest:
        request = super().request(number, parts, sent, is_first=is_first)
        span = self._tracer.sample("produce", role=Role.CLIENT)
        if span is not None:
            names = [f"{each.partition.topic}-{each.partition.partition}" for each in parts]
            settings, oldest_ms = self._settings, min(each.batch.deadline_ms for each in sent)
            waited_ms = self._clock.monotonic_ms() - oldest_ms + settings.delivery_timeout_ms
            span.about(
                broker=self.broker,
                address=self.address,
                partitions=len(parts),
                which=", ".join(names[:PARTITIONS_TOLD_MAX]),
                batches=len(sent),
                records=sum(each.batch.count for each in sent),
                bytes=sum(len(each.batches) for each in parts),
                attempt=max(each.attempt for each in sent),
                # Since the first record of the oldest batch was handed over.
                waited_ms=waited_ms,
            )
            self._spans[number] = span
            request.traceparent = span.context
        return request

    def take(self, request: Request, response: pb.ProduceResponse) -> None:
        super().take(request, response)
        self._end(response.correlation, _problem(response))

    def assume_sent(self, number: int) -> None:
        super().assume_sent(number)
        self._end(number)

    def give_back(self) -> TailraceError:
        problem = super().give_back()
        for number in list(self._spans):
            self._end(number, f"{problem.code}: {problem}")
        return problem

    def _end(self, number: int, error: str = "") -> None:
        span = self._spans.pop(number, None)
        if span is not None:
            span.end(error)


def _problem(response: pb.ProduceResponse) -> str:
    """The first of what went wrong."""
    failed = (each for each in response.partitions if each.error)
    return next((f"{code_name(each.error)}: {each.message}" for each in failed), "")


class TracedFetcher(Fetcher):
    """Reads; goes on with the traces of brokers."""

    def __init__(self, tracer: Tracer, *parts: Any, **ports: Any) -> None:
        super().__init__(*parts, **ports)
        self._tracer = tracer

    def receive(self, broker: int, response: FetchResponse) -> None:
        if not response.traceparent:
            super().receive(broker, response)
            return
        span = self._tracer.begin(
            "receive",
            response.traceparent,
            role=Role.CONSUMER,
            broker=broker,
            bytes=sum(len(each.batches) for each in response.partitions),
        )
        super().receive(broker, response)
        span.end()
