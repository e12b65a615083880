"""Interceptors see everything, and their errors harm nobody."""

from __future__ import annotations

import logging

import pytest

from tailrace.client.commits import Offsets
from tailrace.client.group_member import OffsetAndMetadata
from tailrace.client.listening import Interceptors
from tailrace.model import TopicPartition

A = TopicPartition("t", 0)


class Broken:
    def on_consume(self, partition: TopicPartition, records: int, size: int) -> None:
        raise ValueError(partition)

    def on_commit(self, offsets: Offsets) -> None:
        raise KeyError(offsets)


class Noting:
    def __init__(self) -> None:
        self.seen: list[object] = []

    def on_consume(self, partition: TopicPartition, records: int, size: int) -> None:
        self.seen.append((partition, records, size))

    def on_commit(self, offsets: Offsets) -> None:
        self.seen.append(offsets)


def test_all_are_told_and_failures_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    noting = Noting()
    interceptors = Interceptors([Broken(), noting])
    offsets = {A: OffsetAndMetadata(5)}
    with caplog.at_level(logging.ERROR):
        interceptors.consumed(A, 3, 100)
        interceptors.committed(offsets)
    assert noting.seen == [(A, 3, 100), offsets]
    assert len(caplog.records) == 2
    assert interceptors.counts == {
        "polls": 0,
        "records": 3,
        "bytes": 100,
        "resets": 0,
        "skipped_batches": 0,
        "commits": 1,
    }
