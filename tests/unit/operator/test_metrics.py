"""The names that dashboards and alerts go by."""

from __future__ import annotations

import socket
from urllib.request import urlopen

from prometheus_client import generate_latest

from tailrace_operator.metrics import Metrics


def test_every_metric_carries_the_operators_name() -> None:
    metrics = Metrics()
    metrics.errors.labels("api").inc()
    text = generate_latest(metrics.registry).decode()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert all(name.startswith("tailrace_operator_") for name in names)
    assert 'tailrace_operator_errors_total{about="api"} 1.0' in text


def test_they_are_served() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    Metrics().serve(port, "127.0.0.1")
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"tailrace_operator_leading" in answer.read()
