"""Writing compacted segments: what covers what, where a file ends, what is left when it fails."""

from __future__ import annotations

import numpy as np
import pytest

from simulation.compaction_model import keyed
from simulation.log_bench import LogBench, Producer
from simulation.storage import SimFiles
from tailrace.log.cleaning.chunks import SourceSegment
from tailrace.log.cleaning.rewriting import RewriteLimits, Rewriter, may_merge, rebuilt
from tailrace.log.cleaning.survivors import Offsets
from tailrace.log.retention import RELATIVE_OFFSET_MAX
from tailrace.log.segment import Segment
from tailrace.log.swap import CLEANED_SUFFIX
from tailrace.record.codec import Compression
from tailrace.record.header import BatchHeader, append_time, read_header
from tailrace.record.view import BatchView

LIMITS = RewriteLimits(
    batch_bytes=1000, segment_bytes=4096, segment_index_bytes=10_000, index_interval_bytes=100
)


def source(
    base_offset: int, next_offset: int, *, size_bytes: int = 100, index_bytes: int = 0
) -> SourceSegment:
    return SourceSegment(
        path="",
        base_offset=base_offset,
        next_offset=next_offset,
        size_bytes=size_bytes,
        index_bytes=index_bytes,
        created_ms=base_offset + 1,
        appended_ms=next_offset + 1,
    )


def placed(data: bytes, base_offset: int, *, epoch: int = 0) -> BatchHeader:
    return read_header(data)._replace(base_offset=base_offset, leader_epoch=epoch)


def offsets_of(*offsets: int) -> Offsets:
    return np.array(offsets, np.int64)


def shape(segment: Segment) -> list[tuple[int, int, int]]:
    """Base offset, next offset and number of records of each batch."""
    return [(h.base_offset, h.next_offset, h.record_count) for _, h in segment.walk(0)]


@pytest.fixture
def rewriter(bench: LogBench) -> Rewriter:
    return Rewriter(bench.storage, bench.folder, LIMITS)


def start(rewriter: Rewriter, segment: SourceSegment) -> None:
    """Begin a segment whose first batch is gone."""
    rewriter.start_segment(segment)
    rewriter.enter(placed(keyed(("gone", "1")), segment.base_offset))


def merge(rewriter: Rewriter, *offsets: int, epoch: int = 0, value: str = "v") -> None:
    data = keyed(*((str(each), value) for each in offsets))
    header = placed(data, offsets[0], epoch=epoch)
    rewriter.enter(header)
    rewriter.merge(header, BatchView(data).record_batch(), offsets_of(*offsets))


def test_rows_that_are_merged_cover_what_went(rewriter: Rewriter) -> None:
    start(rewriter, source(10, 20))
    merge(rewriter, 12, 13)
    merge(rewriter, 16)
    rewriter.finish(20)
    ((swap, segment),) = rewriter.outputs
    assert (swap.base, swap.end) == (10, 20)
    assert shape(segment) == [(10, 20, 3)]


def test_large_runs_are_cut_where_the_next_row_is(rewriter: Rewriter) -> None:
    start(rewriter, source(0, 30))
    merge(rewriter, 1, 4, 6, 10, 11, 15, value="x" * 400)
    merge(rewriter, 20, value="x" * 5000)
    merge(rewriter, 25)
    rewriter.finish(30)
    ((_, segment),) = rewriter.outputs
    assert shape(segment) == [(0, 6, 2), (6, 11, 2), (11, 20, 2), (20, 25, 1), (25, 30, 1)]


def test_an_epoch_of_which_nothing_is_left_is_filled(rewriter: Rewriter) -> None:
    rewriter.start_segment(source(0, 30))
    gone = keyed(("a", "1"))
    for base_offset, epoch in ((0, 1), (10, 2), (20, 3)):
        rewriter.enter(placed(gone, base_offset, epoch=epoch))
    merge(rewriter, 25, epoch=3)
    rewriter.finish(30)
    ((_, segment),) = rewriter.outputs
    found = [(h.leader_epoch, h.base_offset, h.record_count) for _, h in segment.walk(0)]
    assert found == [(1, 0, 0), (2, 10, 0), (3, 20, 1)]


def test_copied_batches_do_not_stretch(rewriter: Rewriter) -> None:
    start(rewriter, source(0, 9))
    data = keyed(("a", "1"))
    header = placed(data, 4)
    rewriter.enter(header)
    assert not rewriter.adjoins(header)
    rewriter.copy(header, data)
    assert rewriter.adjoins(placed(data, 5))
    merge(rewriter, 7)
    assert rewriter.adjoins(placed(data, 8))
    rewriter.finish(9)
    assert rewriter.bytes_written == rewriter.outputs[0].segment.size


def test_segments_are_joined_while_there_is_room(rewriter: Rewriter) -> None:
    sources = [
        source(0, 10, size_bytes=3000),
        source(10, 20, size_bytes=3000),
        source(20, 30, size_bytes=4096),
        source(30, 40, index_bytes=9900),
        source(40, RELATIVE_OFFSET_MAX + 31),
        source(RELATIVE_OFFSET_MAX + 31, RELATIVE_OFFSET_MAX + 32),
    ]
    for each in sources:
        start(rewriter, each)
        merge(rewriter, each.base_offset)
    rewriter.finish(RELATIVE_OFFSET_MAX + 32)
    found = [(each.swap.base, each.swap.end) for each in rewriter.outputs]
    end = RELATIVE_OFFSET_MAX + 32
    assert found == [(0, 20), (20, 30), (30, end - 1), (end - 1, end)]
    index = rewriter.outputs[0].segment.index
    assert (index.created_ms, index.appended_ms) == (1, 21)


def test_what_is_discarded_leaves_no_file(bench: LogBench, rewriter: Rewriter) -> None:
    for base_offset in (0, 10, 20):
        rewriter.start_segment(source(base_offset, base_offset + 10, size_bytes=4096))
        merge(rewriter, base_offset + 3)
    assert len(bench.names(CLEANED_SUFFIX)) == 3
    rewriter.discard()
    assert bench.names(CLEANED_SUFFIX) == []
    assert rewriter.outputs == []


def test_what_was_left_by_another_is_not_used(bench: LogBench, rewriter: Rewriter) -> None:
    for _ in range(2):
        start(rewriter, source(0, 10))
        merge(rewriter, 3)
        rewriter.finish(10)
    first, second = (each.segment for each in rewriter.outputs)
    assert first.size == second.size == bench.files.size(second.path)


def test_a_batch_that_is_rebuilt_keeps_its_range_and_its_producer() -> None:
    data = keyed(("a", "1"), ("b", "2"), ("c", "3"), producer=Producer(5, 1, 7))
    header = placed(data, 40, epoch=2)
    rows = BatchView(data).record_batch().slice(1, 1)
    view = BatchView(rebuilt(header, rows, offsets_of(41), delete_horizon_ms=9))
    view.verify()
    assert [(each.offset, each.value) for each in view.records()] == [(41, b"2")]
    kept = (view.header.base_offset, view.header.next_offset, view.header.leader_epoch)
    assert kept == (40, 43, 2)
    assert (view.header.producer_id, view.header.last_sequence) == (5, 9)
    assert view.header.delete_horizon_ms == 9


def test_only_batches_that_say_the_same_are_merged() -> None:
    plain = read_header(keyed(("a", "1")))
    compressed = read_header(keyed(("a", "x" * 500), compression=Compression.ZSTD))
    timed = read_header(append_time(keyed(("a", "1")), 5))
    assert may_merge(plain, plain._replace(base_offset=7, producer_id=3))
    assert not may_merge(plain, plain._replace(leader_epoch=1))
    assert not may_merge(plain, compressed)
    assert not may_merge(plain, read_header(keyed(("a", "1"), headers=(("h", b"1"),))))
    assert not may_merge(plain, timed)
    assert may_merge(timed, timed)
    assert not may_merge(timed, read_header(append_time(keyed(("a", "1")), 6)))


def test_a_disk_that_is_full_while_writing(disk: SimFiles, rewriter: Rewriter) -> None:
    rewriter.start_segment(source(0, 10))
    merge(rewriter, 3)
    disk.disk_bytes_max = 0
    with pytest.raises(OSError, match="No space"):
        rewriter.finish(10)
    rewriter.discard()
    assert disk.list("/data/orders-0") == []
