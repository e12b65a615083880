"""A tracer on the real SDK whose spans stay in memory, and ways to look at them."""

from __future__ import annotations

from random import Random

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tailrace.tracing import Tracer, make_provider


class Spans:
    """What was told so far."""

    def __init__(self, *, ratio: float = 1.0) -> None:
        self._exporter = InMemorySpanExporter()
        self._provider = make_provider(self._exporter, service="test", instance="test-1")
        self.tracer = Tracer(self._provider, ratio=ratio, rng=Random(7))

    def all(self) -> list[ReadableSpan]:
        self._provider.force_flush()
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [each for each in self.all() if each.name == name]

    def one(self, name: str) -> ReadableSpan:
        found = self.named(name)
        assert len(found) == 1, [each.name for each in self.all()]
        return found[0]

    def tree(self) -> list[str]:
        """Every span as `name < parent`, in the order in which they ended."""
        spans = self.all()
        names = {each.context.span_id: each.name for each in spans if each.context is not None}
        return [
            each.name
            if each.parent is None
            else f"{each.name} < {names.get(each.parent.span_id, '?')}"
            for each in spans
        ]


def about(span: ReadableSpan, name: str) -> object:
    return (span.attributes or {}).get(f"tailrace.{name}")


def notes(span: ReadableSpan) -> list[str]:
    return [each.name for each in span.events]
