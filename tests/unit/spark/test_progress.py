"""Showing progress never ends a query."""

from __future__ import annotations

from tailrace_spark.cluster import cluster_for
from tailrace_spark.offsets import Offsets, Position, TopicOffsets
from tailrace_spark.progress import Progress
from unit.spark.conftest import Model


def test_without_a_coordinator_nothing_fails(model: Model) -> None:
    model.create("t")
    progress = Progress(cluster_for(model.bootstrap, timeout_ms=1_000), "job")
    progress.commit(Offsets({"t": TopicOffsets("i", {0: Position(3)})}))
