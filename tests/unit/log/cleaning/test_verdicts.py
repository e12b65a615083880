"""Rows that stay are handed on together, as far as one batch may hold them."""

from __future__ import annotations

import numpy as np
import pytest

from simulation.log_bench import LogBench, append, batch
from tailrace.log.cleaning.chunks import ALL_OFFSETS, Chunk, SourceSegment, read_chunks, row_offsets
from tailrace.log.cleaning.rewriting import RewriteLimits, Rewriter
from tailrace.log.cleaning.survivors import NO_HORIZON_MS
from tailrace.log.cleaning.verdicts import Stretch, Verdict
from tailrace.log.log import PartitionLog
from tailrace.record.view import BatchView

LIMITS = RewriteLimits(
    batch_bytes=1 << 20, segment_bytes=1 << 20, segment_index_bytes=1 << 20, index_interval_bytes=0
)


def chunk_of(log: PartitionLog) -> tuple[SourceSegment, Chunk]:
    segment = log.segments[0]
    source = SourceSegment(
        path=segment.path,
        base_offset=0,
        next_offset=segment.next_offset,
        size_bytes=segment.size,
        index_bytes=0,
        created_ms=0,
        appended_ms=0,
    )
    with log.storage.cache.use(source.path) as file:
        (chunk,) = read_chunks(file, source, chunk_bytes=1 << 20, decoded=ALL_OFFSETS)
    return source, chunk


def verdict_of(chunk: Chunk, kept: list[int], horizons: dict[int, int] | None = None) -> Verdict:
    offsets = row_offsets(chunk)
    mask = np.isin(offsets, kept)
    times = None
    if horizons is not None:
        times = np.array([horizons.get(int(at), NO_HORIZON_MS) for at in offsets], np.int64)
    bounds = [0, *np.cumsum([each.header.record_count for each in chunk]).tolist()]
    return Verdict(offsets, mask, times, bounds)


def test_a_verdict_counts_by_batch(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"1", b"2", b"3", key=b"a"), batch(b"4", None, key=b"a"))
    _, chunk = chunk_of(log)
    verdict = verdict_of(chunk, [0, 2, 4], {4: 70})
    assert verdict.kept_counts == [2, 1]
    assert not verdict.needs_horizon(0, chunk[0].header)
    assert verdict.needs_horizon(1, chunk[1].header)
    left = BatchView(verdict.rebuilt(1, chunk[1]))
    assert [each.offset for each in left.records()] == [4]
    assert (left.header.base_offset, left.header.next_offset) == (3, 5)
    assert left.header.delete_horizon_ms == 70


@pytest.mark.parametrize(
    ("epochs", "headers"),
    [([1, 1, 1], [(0, 6)]), ([1, 1, 2], [(0, 4), (4, 6)]), ([1, 2, 3], [(0, 2), (2, 4), (4, 6)])],
)
def test_batches_of_one_epoch_are_merged(
    bench: LogBench, epochs: list[int], headers: list[tuple[int, int]]
) -> None:
    log = bench.open()
    for number, epoch in enumerate(epochs):
        append(log, batch(b"%d" % number, b"x", key=b"a"), epoch=epoch)
    source, chunk = chunk_of(log)
    rewriter = Rewriter(log.storage, log.folder, LIMITS)
    rewriter.start_segment(source)
    stretch = Stretch(rewriter, chunk, verdict_of(chunk, [0, 2, 4]))
    for number in range(3):
        stretch.add(number, gone=False)
    stretch.end()
    rewriter.finish(6)
    (cleaned,) = rewriter.outputs
    found = [header for _, header in cleaned.segment.walk(0)]
    assert [(each.base_offset, each.next_offset) for each in found] == headers
    assert sum(each.record_count for each in found) == 3
