"""Traces: what became of one frame, one failover, one rebalance, told as OpenTelemetry spans.

Off unless an endpoint is given. Then nobody has a Tracer, nothing of OpenTelemetry is imported, and
who could trace does not look. This is the only module that knows OpenTelemetry; spans are made
where I/O is done, never in the cores, which know nothing of them.

What is sampled is decided where a trace begins, before anything is made for it; who is told of a
trace (`traceparent`, as W3C writes it) goes on with it. Spans are handed to a thread, which sends
them; a collector that is away or slow costs spans (SPANS_WAITING_MAX), never time.
"""

from __future__ import annotations

import re
from enum import Enum
from random import Random
from threading import Thread
from typing import TYPE_CHECKING, Final

from tailrace import __version__
from tailrace.config import TraceSettings
from tailrace.errors import InvalidConfig

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

SPANS_WAITING_MAX: Final = 2_048
SPANS_PER_REQUEST_MAX: Final = 512
SEND_INTERVAL_MS: Final = 1_000
SEND_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 2.0
"""How long the end of a process waits for its last spans to be sent."""

_NS_PER_MS: Final = 1_000_000
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_NOBODY: Final = 0
_SAMPLED: Final = 1

Value = str | int | float | bool


class Role(Enum):
    """On which side of a call a span is."""

    INTERNAL = "INTERNAL"
    CLIENT = "CLIENT"
    SERVER = "SERVER"
    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"


class Span:
    """Something that takes time. One that is never ended is never told."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def context(self) -> str:
        """The `traceparent` by which others go on."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"

    def child(
        self, name: str, *, role: Role = Role.INTERNAL, at_ms: int | None = None, **about: Value
    ) -> Span:
        return self._tracer.begin_in(self._span, name, role=role, at_ms=at_ms, **about)

    def about(self, **about: Value) -> None:
        """Say more of it."""
        self._span.set_attributes(_attributes(about))

    def note(self, what: str, *, at_ms: int | None = None, **about: Value) -> None:
        """Something happened, just now or then (wall time)."""
        self._span.add_event(what, _attributes(about), _ns(at_ms))

    def end(self, error: str = "") -> None:
        if error:
            self._tracer.mark_failed(self._span, error)
        self._span.end()


class Tracer:
    """Makes the spans of one process, or of one client."""

    def __init__(self, provider: TracerProvider, *, ratio: float, rng: Random) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - it is an extra.
        from opentelemetry.context import Context  # noqa: PLC0415

        self._api = trace
        self._provider = provider
        self._tracer = provider.get_tracer("tailrace", __version__)
        self._ratio = ratio
        self._rng = rng
        self._sampled = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        # Never the context of the program around us: a frame has the records of many.
        self._nothing = Context()

    def sample(self, name: str, parent: str = "", *, role: Role = Role.INTERNAL) -> Span | None:
        """A span of something that happens often: as the parent says, else now and then."""
        known = _parsed(parent) if parent else None
        if known is None:
            if self._rng.random() >= self._ratio:
                return None
            return self.begin(name, role=role)
        return self.begin(name, parent, role=role) if known[2] & _SAMPLED else None

    def begin(
        self,
        name: str,
        parent: str = "",
        *,
        role: Role = Role.INTERNAL,
        at_ms: int | None = None,
        **about: Value,
    ) -> Span:
        """A span that is told in any case. `at_ms`: when it began, if not now (wall time)."""
        return self.begin_in(self._remote(parent), name, role=role, at_ms=at_ms, **about)

    def begin_in(
        self,
        parent: trace.Span,
        name: str,
        *,
        role: Role = Role.INTERNAL,
        at_ms: int | None = None,
        **about: Value,
    ) -> Span:
        """For `Span.child`: below a span that is here."""
        span = self._tracer.start_span(
            name,
            context=self._api.set_span_in_context(parent, self._nothing),
            kind=self._api.SpanKind[role.value],
            attributes=_attributes(about),
            start_time=_ns(at_ms),
        )
        return Span(self, span)

    def mark_failed(self, span: trace.Span, error: str) -> None:
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, error))

    def close(self) -> None:
        """Send what is left, for CLOSE_TIMEOUT_S at most: it may block so long."""
        closing = Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_S)

    def _remote(self, parent: str) -> trace.Span:
        known = _parsed(parent)
        if known is None:
            return self._api.INVALID_SPAN
        trace_id, span_id, _ = known
        return self._api.NonRecordingSpan(
            self._api.SpanContext(trace_id, span_id, is_remote=True, trace_flags=self._sampled)
        )


def open_tracer(
    settings: TraceSettings, *, service: str, instance: str, rng: Random
) -> Tracer | None:
    """What makes the spans of a process; None when nothing is traced.

    `service`: what it is ("tailrace-broker"), `instance`: which one ("broker-1").
    """
    if not settings.endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
    except ImportError:
        raise InvalidConfig(
            f"traces are to go to {settings.endpoint}, but OpenTelemetry is not installed: "
            "pip install 'tailrace[otel]'"
        ) from None
    exporter = OTLPSpanExporter(settings.url, timeout=SEND_TIMEOUT_S)
    provider = make_provider(exporter, service=service, instance=instance)
    return Tracer(provider, ratio=settings.ratio, rng=rng)


def make_provider(exporter: SpanExporter, *, service: str, instance: str) -> TracerProvider:
    """The SDK with our limits; whatever comes to it is told, we have decided before."""
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON  # noqa: PLC0415

    resource = Resource.create(
        {
            "service.name": service,
            "service.instance.id": instance,
            "service.version": __version__,
        }
    )
    provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=SPANS_WAITING_MAX,
            max_export_batch_size=SPANS_PER_REQUEST_MAX,
            schedule_delay_millis=SEND_INTERVAL_MS,
        )
    )
    return provider


def _parsed(parent: str) -> tuple[int, int, int] | None:
    """The trace, the span and the flags that a `traceparent` names; None when it names none."""
    found = _TRACEPARENT.fullmatch(parent)
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    return (trace_id, span_id, flags) if _NOBODY not in {trace_id, span_id} else None


def _ns(at_ms: int | None) -> int | None:
    return None if at_ms is None else at_ms * _NS_PER_MS


def _attributes(about: dict[str, Value]) -> dict[str, Value]:
    return {f"tailrace.{name}": value for name, value in about.items()}
