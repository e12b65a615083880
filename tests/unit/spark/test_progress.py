"""Progress is shown as a named reader's, and showing it never ends a query."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from tailrace.model import TopicPartition
from tailrace_spark import progress as progress_module
from tailrace_spark.cluster import cluster_for
from tailrace_spark.offsets import Offsets, Position, TopicOffsets
from tailrace_spark.progress import Progress
from unit.spark.conftest import Model


def _progress(model: Model) -> Progress:
    return Progress(cluster_for(model.bootstrap, timeout_ms=10_000), "job")


def _at(offset: int) -> Offsets:
    return Offsets({"t": TopicOffsets("i", {0: Position(offset, 2)})})


def test_the_newest_positions_are_shown(model: Model) -> None:
    progress = _progress(model)
    for offset in range(20):
        progress.commit(_at(offset))
    progress.close()
    assert progress.problem == ""
    coordinators: Any = model.cluster.coordinators
    stored = coordinators.groups["job"].offsets[TopicPartition("t", 0)]
    assert (stored.offset, stored.topic_id, stored.leader_epoch) == (19, "i", 2)


def test_what_is_shown_already_is_not_sent_again(model: Model) -> None:
    progress = _progress(model)
    groups: Any = model.cluster.coordinators.groups
    for offset in (7, 7, 7, 8):
        progress.commit(_at(offset))
        until = time.monotonic() + 10
        while not ("job" in groups and groups["job"].commits) and time.monotonic() < until:
            time.sleep(0.01)
    progress.close()
    assert [offset for _, _, offset in groups["job"].commits] == [7, 8]


def test_without_a_coordinator_nothing_fails(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress_module, "COMMIT_TIMEOUT_MS", 200)
    model.cluster.coordinators.owner = -1
    model.do(model.cluster.tell)
    progress = _progress(model)
    with caplog.at_level(logging.WARNING):
        progress.commit(_at(1))
        progress.close()
    assert "the progress of job cannot be shown" in caplog.text
    assert "no coordinator is known" in progress.problem
