"""What the operator counts, for Prometheus: names in one place, served on a port of its own."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

PORT: Final = 8081
_ROUND_S: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """One operator's."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # Every family: its name, kind, meaning and labels, for docs/metrics.md.
        self.families: list[tuple[str, str, str, tuple[str, ...]]] = []

        def counter(name: str, text: str, *labels: str) -> Counter:
            self.families.append((f"tailrace_operator_{name}", "counter", text, labels))
            return Counter(f"tailrace_operator_{name}", text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            self.families.append((f"tailrace_operator_{name}", "gauge", text, labels))
            return Gauge(f"tailrace_operator_{name}", text, labels, registry=self.registry)

        rounds = "How long a round over all resources took"
        self.families.append(("tailrace_operator_round_seconds", "histogram", rounds, ()))
        self.rounds = Histogram(
            "tailrace_operator_round_seconds",
            rounds,
            registry=self.registry,
            buckets=_ROUND_S,
        )
        self.errors = counter("errors", "Requests that failed, by what was asked", "about")
        self.steps = counter("steps", "Steps taken for a cluster, by kind", "cluster", "step")
        self.fences = counter("fences", "Brokers fenced since their pods were gone", "cluster")
        self.drills = counter("drills", "Drills that ended", "cluster", "kind", "verdict")
        self.last_list = gauge("last_list_timestamp_seconds", "When resources were listed last")
        self.leading = gauge("leading", "1 while this operator is the one that acts")
        self.brokers = gauge("cluster_brokers", "Brokers that are registered", "cluster")
        self.ready = gauge("cluster_ready", "1 while a cluster is whole", "cluster")
        self.under_replicated = gauge(
            "cluster_under_replicated_partitions", "Partitions without all replicas", "cluster"
        )
        self.offline = gauge(
            "cluster_offline_partitions", "Partitions that nobody leads", "cluster"
        )

    def serve(self, port: int = PORT, address: str = "0.0.0.0") -> None:  # noqa: S104 - a pod's own.
        """In a thread, for as long as the process lives."""
        start_http_server(port, address, registry=self.registry)
