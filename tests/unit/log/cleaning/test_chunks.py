"""Reading segments for a compaction: all batches, all verified, in pieces of any size."""

from __future__ import annotations

import pytest

from simulation.compaction_model import compact_once
from simulation.log_bench import LogBench, append, batch
from simulation.storage import SimFiles
from tailrace.errors import CorruptBatch
from tailrace.log.cleaning.chunks import (
    ALL_OFFSETS,
    Chunk,
    Epoch,
    Piece,
    SourceSegment,
    SurveyedChunk,
    pieces_left,
    read_chunks,
    row_offsets,
    survey,
)
from tailrace.log.log import PartitionLog
from tailrace.record.codec import Compression


def source_of(log: PartitionLog, *, next_offset: int | None = None) -> SourceSegment:
    segment = log.segments[0]
    return SourceSegment(
        path=segment.path,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset if next_offset is None else next_offset,
        size_bytes=segment.size,
        index_bytes=0,
        created_ms=0,
        appended_ms=0,
    )


def chunks_of(
    log: PartitionLog, chunk_bytes: int, decoded: range = ALL_OFFSETS, *, end: int | None = None
) -> list[Chunk]:
    source = source_of(log, next_offset=end)
    with log.storage.cache.use(source.path) as file:
        return list(read_chunks(file, source, chunk_bytes=chunk_bytes, decoded=decoded))


@pytest.fixture
def log(bench: LogBench) -> PartitionLog:
    log = bench.open()
    for number in range(12):
        append(log, batch(b"1", b"x" * 100 * number, b"3"))
    return log


@pytest.mark.parametrize("chunk_bytes", [1, 87, 88, 700, 1500, 4000, 1 << 20])
def test_every_batch_comes_once(log: PartitionLog, chunk_bytes: int) -> None:
    chunks = chunks_of(log, chunk_bytes)
    found = [each for chunk in chunks for each in chunk]
    assert b"".join(each.data for each in found) == log.read(0, bytes_max=1 << 20)
    assert [each.header.base_offset for each in found] == list(range(0, 36, 3))
    for chunk in chunks:
        assert len(chunk) == 1 or sum(each.header.length for each in chunk) <= chunk_bytes
    assert [at for chunk in chunks for at in row_offsets(chunk).tolist()] == list(range(36))


def test_a_chunk_has_a_limit_once_decoded(bench: LogBench) -> None:
    log = bench.open()
    append(log, *[batch(b"x" * 10_000, compression=Compression.ZSTD)] * 7, batch(b"x" * 30_000))
    source = source_of(log)
    with log.storage.cache.use(source.path) as file:
        chunks = read_chunks(
            file, source, chunk_bytes=1 << 20, decoded=ALL_OFFSETS, decoded_bytes_max=25_000
        )
        assert [len(each) for each in chunks] == [2, 2, 2, 1, 1]


def test_only_a_range_is_decoded(log: PartitionLog) -> None:
    (chunk,) = chunks_of(log, 1 << 20, range(4, 10))
    decoded = [each.header.base_offset for each in chunk if each.columns is not None]
    assert decoded == [3, 6, 9]
    assert row_offsets(chunk).tolist() == list(range(3, 12))
    (chunk,) = chunks_of(log, 1 << 20, range(0))
    assert row_offsets(chunk).tolist() == []


def test_offsets_of_compacted_batches_are_their_own(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"1", b"2", key=b"a"), batch(b"3"), batch(b"4", key=b"a"))
    log.roll()
    log.flush()
    compact_once(log)
    assert [row_offsets(each).tolist() for each in chunks_of(log, 1)] == [[2, 3]]


def surveyed_of(log: PartitionLog, *, dirty_from: int = 0) -> list[SurveyedChunk]:
    found: list[SurveyedChunk] = []
    for chunk in chunks_of(log, 1):
        start_bytes = found[-1].piece.end_bytes if found else 0
        found.append(survey(chunk, start_bytes, dirty_from=dirty_from))
    return found


def test_a_survey_sums_up_what_rewriting_needs_to_know(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"1", b"2", key=b"a"))
    append(log, batch(b"3", key=b"a"), epoch=4)
    append(log, batch(b"4"), epoch=4)
    first, second, third = surveyed_of(log, dirty_from=1)
    assert first.must_read, "it begins in the clean part"
    assert not second.must_read
    assert third.must_read, "a record without a key stays"
    assert (first.records, first.epochs, second.epochs) == (2, (Epoch(0, 0),), (Epoch(4, 2),))
    assert second.piece == Piece(first.piece.end_bytes, third.piece.start_bytes, 2, 3)
    assert third.piece.end_bytes == log.segments[0].size


@pytest.mark.parametrize("gone", [set(), {0}, {11}, {3, 4}, {0, 2, 11}, set(range(12))])
def test_what_is_gone_and_what_is_left_to_read_make_up_the_segment(
    log: PartitionLog, gone: set[int]
) -> None:
    source = source_of(log)
    surveyed = surveyed_of(log)
    wanted = {surveyed[number].piece for number in gone}
    parts = list(pieces_left(source, surveyed, lambda chunk: chunk.piece in wanted))
    pieces = [each.piece if isinstance(each, SurveyedChunk) else each for each in parts]
    assert {each.piece for each in parts if isinstance(each, SurveyedChunk)} == wanted
    assert [each.start_bytes for each in pieces] == [0, *(each.end_bytes for each in pieces[:-1])]
    assert (pieces[-1].end_bytes, pieces[-1].next_offset) == (source.size_bytes, 36)
    with log.storage.cache.use(source.path) as file:
        for part in parts:
            if isinstance(part, Piece):
                chunks = read_chunks(file, source, chunk_bytes=700, decoded=ALL_OFFSETS, piece=part)
                offsets = [at for chunk in chunks for at in row_offsets(chunk).tolist()]
                assert offsets == list(range(part.base_offset, part.next_offset))


def test_a_flipped_bit_is_found(disk: SimFiles, log: PartitionLog) -> None:
    path = log.segments[0].path
    for position in (0, 50, 400, disk.size(path) - 1):
        disk.flip_bits(path, position)
        for chunk_bytes in (1, 1 << 20):
            with pytest.raises(CorruptBatch):
                chunks_of(log, chunk_bytes)
        disk.flip_bits(path, position)
    assert chunks_of(log, 1)


@pytest.mark.parametrize("chunk_bytes", [1, 1000, 1 << 20])
def test_a_missing_end_is_found(disk: SimFiles, log: PartitionLog, chunk_bytes: int) -> None:
    with pytest.raises(CorruptBatch, match="ends at offset 36"):
        chunks_of(log, chunk_bytes, end=37)
    path = log.segments[0].path
    for missing in (1, 1800, disk.size(path)):
        disk.cut(path, disk.size(path) - missing)
        with pytest.raises(CorruptBatch):
            chunks_of(log, chunk_bytes)


def test_a_missing_batch_is_found(disk: SimFiles, log: PartitionLog) -> None:
    path = log.segments[0].path
    data = disk.read(path)
    first = chunks_of(log, 1)[0][0].header.length
    with log.storage.cache.use(path) as file:
        file.write_at(0, [data[first:]])
    with pytest.raises(CorruptBatch, match="offset 3 does not continue 0"):
        chunks_of(log, 1)
