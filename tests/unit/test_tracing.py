"""Spans: who is sampled, who goes on with whose, what a span says; and that all of it is off."""

from __future__ import annotations

import subprocess
import sys
import threading
from random import Random

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from tailrace.config import TraceSettings
from tailrace.errors import InvalidConfig
from tailrace.tracing import Role, open_tracer
from unit.spans import Spans, about, notes

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-2] + "00"

IMPORTS = """
import sys
import tailrace.aio, tailrace.broker.main, tailrace.controller.main, tailrace.coordinator.main
from random import Random
from tailrace.config import TraceSettings
from tailrace.tracing import open_tracer
assert open_tracer(TraceSettings(), service="s", instance="i", rng=Random()) is None
print([name for name in sys.modules if name.startswith(("opentelemetry", "requests"))])
"""


def test_without_an_endpoint_nothing_of_it_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"


def test_a_child_belongs_to_its_parent_and_to_its_trace() -> None:
    spans = Spans()
    root = spans.tracer.begin("root", role=Role.CLIENT)
    root.child("child").end()
    root.end()
    assert spans.tree() == ["child < root", "root"]
    child, parent = spans.one("child"), spans.one("root")
    assert child.context is not None
    assert parent.context is not None
    assert child.context.trace_id == parent.context.trace_id
    assert (parent.kind, child.kind) == (SpanKind.CLIENT, SpanKind.INTERNAL)


def test_another_process_goes_on_with_a_trace() -> None:
    here, there = Spans(), Spans()
    root = here.tracer.begin("here")
    there.tracer.begin("there", root.context, role=Role.SERVER).end()
    root.end()
    found, parent = there.one("there"), here.one("here")
    assert found.parent is not None
    assert parent.context is not None
    assert found.parent.is_remote
    assert (found.parent.trace_id, found.parent.span_id) == (
        parent.context.trace_id,
        parent.context.span_id,
    )


def test_traces_begin_now_and_then_and_always_go_on() -> None:
    spans = Spans(ratio=0.25)
    begun = [spans.tracer.sample("frame") for _ in range(2_000)]
    share = sum(each is not None for each in begun) / len(begun)
    assert 0.2 < share < 0.3
    assert all(spans.tracer.sample("frame", PARENT) is not None for _ in range(50))
    assert all(spans.tracer.sample("frame", UNSAMPLED) is None for _ in range(50))


@pytest.mark.parametrize(
    "parent",
    [
        "nonsense",
        PARENT + "-more",
        PARENT.upper(),
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
    ],
)
def test_what_is_no_trace_is_none(parent: str) -> None:
    never, always = Spans(ratio=0.0), Spans(ratio=1.0)
    assert never.tracer.sample("frame", parent) is None
    span = always.tracer.sample("frame", parent)
    assert span is not None
    span.end()
    assert always.one("frame").parent is None


def test_a_span_says_what_it_is_about_what_happened_and_what_went_wrong() -> None:
    spans = Spans()
    span = spans.tracer.begin("frame", at_ms=1_000, partitions=3)
    span.about(bytes=12)
    span.note("sent", at_ms=1_500, broker=2)
    span.end("NOT_LEADER: somebody else is")
    found = spans.one("frame")
    assert found.start_time == 1_000_000_000
    assert (about(found, "partitions"), about(found, "bytes")) == (3, 12)
    assert notes(found) == ["sent"]
    assert found.events[0].timestamp == 1_500_000_000
    assert dict(found.events[0].attributes or {}) == {"tailrace.broker": 2}
    assert found.status.status_code is StatusCode.ERROR
    assert found.status.description == "NOT_LEADER: somebody else is"
    attributes = found.resource.attributes
    assert (attributes["service.name"], attributes["service.instance.id"]) == ("test", "test-1")


def test_what_is_never_ended_is_never_told() -> None:
    spans = Spans()
    spans.tracer.begin("frame")
    assert spans.all() == []


def test_the_path_of_otlp_goes_below_an_address() -> None:
    assert TraceSettings("http://otel:4318").url == "http://otel:4318/v1/traces"
    assert TraceSettings("http://otel:4318/").url == "http://otel:4318/v1/traces"
    assert TraceSettings("https://otel/own/path").url == "https://otel/own/path"


@pytest.mark.parametrize("endpoint", ["otel:4318", "grpc://otel:4317", "http://", "http://a:x"])
def test_what_is_no_collector_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidConfig, match="OTLP/HTTP"):
        TraceSettings(endpoint)


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_a_ratio_is_a_share(ratio: float) -> None:
    with pytest.raises(InvalidConfig, match="from 0 to 1"):
        TraceSettings("", ratio)


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InvalidConfig, match=r"tailrace\[otel\]"):
        open_tracer(TraceSettings("http://127.0.0.1:1"), service="s", instance="i", rng=Random())


def test_a_collector_that_is_away_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    settings = TraceSettings("http://127.0.0.1:1", 1.0)
    tracer = open_tracer(settings, service="s", instance="i", rng=Random())
    assert tracer is not None
    for _ in range(3):
        tracer.begin("frame").end()
    tracer.close()
    # The span that could not be sent is a line in the log, not an error of the program.
    assert any("127.0.0.1" in each.getMessage() for each in caplog.records)
    # What it still tries in the background draws random numbers, which disturbs the tests after it.
    for thread in threading.enumerate():
        if thread.name == "last spans":
            thread.join(60)
            assert not thread.is_alive()
