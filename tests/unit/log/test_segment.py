"""One segment: its indexes, what it finds, what it cuts, and what its caches hold."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from simulation.log_bench import FOLDER, NOW_MS, LogBench, batch
from simulation.storage import SimFiles
from tailrace.errors import BatchFault, CorruptBatch
from tailrace.log import segment as segment_module
from tailrace.log.index import SegmentIndex
from tailrace.log.segment import IndexCache, Segment, Slice, segment_name
from tailrace.record.header import HEADER_BYTES, BatchHeader, read_header

BASE = 100


def new_segment(bench: LogBench, *, index_interval_bytes: int = 0) -> Segment:
    return Segment.create(
        bench.storage, bench.folder, BASE, index_interval_bytes=index_interval_bytes
    )


def filled(
    bench: LogBench,
    timestamps: Sequence[Sequence[int]] = ((1,), (2, 2), (3, 3, 3)),
    *,
    index_interval_bytes: int = 0,
) -> Segment:
    """A segment with a batch for each entry and a record for each timestamp in it."""
    segment = new_segment(bench, index_interval_bytes=index_interval_bytes)
    for times in timestamps:
        put(segment, times)
    return segment


def put(segment: Segment, times: Sequence[int], *, now_ms: int = NOW_MS) -> BatchHeader:
    data = batch(
        *(f"r{at}".encode() for at in times), timestamps=times, base_offset=segment.next_offset
    )
    segment.write([data])
    header = read_header(data)
    segment.added(header, now_ms=now_ms)
    return header


def found_again(bench: LogBench, segment: Segment, *, index_interval_bytes: int = 0) -> Segment:
    """The segment as an opening after a crash finds it."""
    bench.storage = bench.new_storage()
    return Segment(
        bench.storage,
        bench.folder,
        BASE,
        next_offset=segment.next_offset,
        size=bench.files.size(segment.path),
        index_interval_bytes=index_interval_bytes,
    )


def sync_names(disk: SimFiles) -> None:
    for folder in (FOLDER, "/data", "/"):
        disk.sync_folder(folder)


def entries(index: SegmentIndex) -> list[tuple[int, int]]:
    return list(zip(index.offsets, index.positions, strict=True))


def test_names_have_twenty_digits() -> None:
    assert segment_name(7, ".log") == "00000000000000000007.log"
    assert segment_name(2**63 - 1, ".index") == "09223372036854775807.index"


def test_a_new_segment_is_empty(bench: LogBench) -> None:
    segment = new_segment(bench)
    assert (segment.size, segment.next_offset) == (0, BASE)
    assert list(segment.walk(0)) == []
    assert bench.names() == ["00000000000000000100.log"]


def test_creating_cuts_what_had_the_name_before(bench: LogBench) -> None:
    filled(bench).save_index(final=True)
    assert len(bench.names()) == 3
    again = new_segment(bench)
    assert bench.names() == ["00000000000000000100.log"]
    assert bench.files.size(again.path) == 0
    assert entries(again.index) == []


def test_added_batches_move_the_end_and_are_indexed(bench: LogBench) -> None:
    segment = filled(bench)
    sizes = [header.length for _, header in segment.walk(0)]
    assert segment.next_offset == BASE + 6
    assert segment.size == sum(sizes) == bench.files.size(segment.path)
    assert entries(segment.index) == [(0, 0), (1, sizes[0]), (3, sizes[0] + sizes[1])]
    assert segment.max_timestamp_ms == 3
    assert (segment.index.created_ms, segment.index.appended_ms) == (NOW_MS, NOW_MS)


def test_broker_times_are_those_of_the_first_and_last_append(bench: LogBench) -> None:
    segment = new_segment(bench)
    put(segment, [1], now_ms=50)
    put(segment, [1], now_ms=70)
    assert (segment.index.created_ms, segment.index.appended_ms) == (50, 70)


def test_an_index_is_sparse(bench: LogBench) -> None:
    segment = filled(bench, [[1]] * 10, index_interval_bytes=1000)
    length = segment.size // 10
    per_entry = -(-1000 // length)
    assert [at for at, _ in entries(segment.index)] == list(range(0, 10, per_entry))


@pytest.mark.parametrize("interval", [0, 900, 10**6])
@pytest.mark.parametrize("offset", range(BASE, BASE + 7))
def test_position_of_is_where_the_batch_with_the_offset_starts(
    bench: LogBench, interval: int, offset: int
) -> None:
    segment = filled(bench, index_interval_bytes=interval)
    starts = {
        covered: at
        for at, header in segment.walk(0)
        for covered in range(header.base_offset, header.next_offset)
    }
    assert segment.position_of(offset) == starts.get(offset, segment.size)


def test_an_offset_that_the_file_lacks_is_at_its_end(bench: LogBench) -> None:
    segment = filled(bench, index_interval_bytes=10**6)
    segment.next_offset += 5
    assert segment.position_of(BASE + 8) == segment.size


def locate(
    segment: Segment, offset: int, bytes_max: int, *, up_to: int = BASE + 6, min_one: bool = True
) -> list[int]:
    """The base offsets of what is found."""
    found = segment.locate(offset, up_to=up_to, bytes_max=bytes_max, min_one=min_one)
    assert found.path == segment.path
    data = segment.read(found.position, found.size)
    bases = []
    at = 0
    while at < len(data):
        header = read_header(data, at)
        bases.append(header.base_offset - BASE)
        at += header.length
    assert at == found.size
    return bases


@pytest.mark.parametrize("interval", [0, 900, 10**6])
def test_locate_gives_whole_batches_within_the_limits(bench: LogBench, interval: int) -> None:
    segment = filled(bench, index_interval_bytes=interval)
    lengths = [header.length for _, header in segment.walk(0)]
    assert locate(segment, BASE, 10**6) == [0, 1, 3]
    assert locate(segment, BASE + 2, 10**6) == [1, 3]
    assert locate(segment, BASE, 10**6, up_to=BASE + 3) == [0, 1]
    assert locate(segment, BASE, 10**6, up_to=BASE + 2) == [0]
    assert locate(segment, BASE + 1, 10**6, up_to=BASE + 1) == []
    assert locate(segment, BASE, sum(lengths)) == [0, 1, 3]
    assert locate(segment, BASE, lengths[0] + lengths[1]) == [0, 1]
    assert locate(segment, BASE, sum(lengths) - 1)[0] == 0
    assert locate(segment, BASE, lengths[0]) == [0]
    assert locate(segment, BASE, 1) == [0]
    assert locate(segment, BASE, 1, min_one=False) == []
    assert locate(segment, BASE, lengths[0], min_one=False) == [0]


def test_a_read_that_begins_where_one_ended_walks_nowhere(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = filled(bench, index_interval_bytes=10**6)
    locate(segment, BASE, 10**6, up_to=BASE + 3)
    put(segment, [4])
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "walk", None)
        assert locate(segment, BASE + 3, 10**6, up_to=BASE + 7) == [3, 6]
    assert locate(segment, BASE + 4, 10**6, up_to=BASE + 7) == [3, 6]
    for _ in range(segment_module.EDGES_MAX + 1):
        offset = put(segment, [5]).base_offset
        assert locate(segment, offset, 10**6, up_to=offset + 1) == [offset - BASE]


def test_what_was_cut_off_is_not_found_where_it_was(bench: LogBench) -> None:
    segment = filled(bench, [[1], [2], [3]], index_interval_bytes=10**6)
    locate(segment, BASE + 2, 10**6)
    segment.truncate(BASE + 1)
    put(segment, [4] * 50)
    put(segment, [5])
    assert locate(segment, BASE + 2, 10**6, up_to=BASE + 52) == [1, 51]
    segment.resume_at(BASE)
    assert locate(segment, BASE + 51, 10**6, up_to=BASE + 52) == []


def test_locate_of_nothing_is_an_empty_slice(bench: LogBench) -> None:
    segment = filled(bench)
    assert segment.locate(BASE + 6, up_to=BASE + 6, bytes_max=10, min_one=True) == Slice(
        segment.path, segment.size, 0, BASE + 6, BASE + 6
    )


def test_walk_reads_on_where_a_chunk_ends(bench: LogBench, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = filled(bench, [[at] for at in range(20)])
    expected = [(at, header.base_offset) for at, header in segment.walk(0)]
    assert len(expected) == 20
    for chunk_bytes in (HEADER_BYTES, HEADER_BYTES + 1, 400, 1000):
        monkeypatch.setattr(segment_module, "WALK_CHUNK_BYTES", chunk_bytes)
        assert [(at, header.base_offset) for at, header in segment.walk(0)] == expected


def test_walk_refuses_what_is_cut_or_damaged(bench: LogBench, disk: SimFiles) -> None:
    segment = filled(bench)
    *_, (last, _) = segment.walk(0)
    disk.cut(segment.path, segment.size - 8)
    assert len(list(segment.walk(0))) == 3, "bodies are not read"
    segment.size -= 8
    with pytest.raises(CorruptBatch, match="cut short") as refused:
        list(segment.walk(0))
    assert refused.value.fault is BatchFault.CUT_SHORT
    segment.size = last + 8
    with pytest.raises(CorruptBatch, match="cut short"):
        list(segment.walk(0))
    disk.flip_bits(segment.path, 0)
    with pytest.raises(CorruptBatch, match="prefix"):
        list(segment.walk(0))


def test_scan_verifies_batches_of_any_size(
    bench: LogBench, disk: SimFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = filled(bench, [[at] * (1 + 50 * (at % 2)) for at in range(8)])
    expected = list(segment.walk(0))
    for chunk_bytes in (HEADER_BYTES, 400, 500, 10**6):
        monkeypatch.setattr(segment_module, "SCAN_CHUNK_BYTES", chunk_bytes)
        assert list(segment.scan(0, segment.size)) == expected
        assert list(segment.scan(expected[3][0], segment.size)) == expected[3:]
    at, header = expected[5]
    disk.flip_bits(segment.path, at + header.length - 1)
    for chunk_bytes in (HEADER_BYTES, 400, 10**6):
        monkeypatch.setattr(segment_module, "SCAN_CHUNK_BYTES", chunk_bytes)
        seen: list[tuple[int, BatchHeader]] = []
        with pytest.raises(CorruptBatch, match="CRC does not match"):
            seen.extend(segment.scan(0, segment.size))
        assert seen == expected[:5]


@pytest.mark.parametrize("missing", [1, 8, 300, 399])
def test_scan_finds_a_cut_tail(bench: LogBench, disk: SimFiles, missing: int) -> None:
    segment = filled(bench, [[1], [2]])
    size = segment.size - missing
    disk.cut(segment.path, size)
    good: list[tuple[int, BatchHeader]] = []
    with pytest.raises(CorruptBatch, match="cut short"):
        good.extend(segment.scan(0, size))
    assert len(good) == 1


# Indexes that come back.


def test_a_closed_segment_has_its_index_in_the_cache(bench: LogBench) -> None:
    segment = filled(bench)
    before = entries(segment.index)
    assert bench.storage.indexes.memory_bytes == 0
    segment.release_index()
    assert bench.storage.indexes.memory_bytes > 0
    assert entries(segment.index) == before
    segment.release_index()
    segment.hold_index()
    assert bench.storage.indexes.memory_bytes == 0
    assert entries(segment.index) == before


def test_an_index_is_read_from_its_files(bench: LogBench, disk: SimFiles) -> None:
    segment = filled(bench)
    segment.save_index(final=True)
    again = found_again(bench, segment)
    read_before = disk.bytes_read
    assert entries(again.index) == entries(segment.index)
    assert again.max_timestamp_ms == 3
    assert again.index.created_ms == NOW_MS
    assert disk.bytes_read - read_before < segment.size


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "flipped", "empty"])
def test_a_bad_index_is_built_anew(
    bench: LogBench, disk: SimFiles, suffix: str, damage: str
) -> None:
    segment = filled(bench, [[5], [2, 9], [3]])
    segment.save_index(final=True)
    path = bench.path(segment_name(BASE, suffix))
    if damage == "missing":
        disk.remove(path)
    elif damage == "flipped":
        disk.flip_bits(path, 40)
    else:
        disk.cut(path, 0)
    again = found_again(bench, segment)
    assert again.load_index() is None
    assert entries(again.index) == entries(segment.index)
    assert again.max_timestamp_ms == 9


def test_an_index_of_a_shorter_life_is_not_used(bench: LogBench, disk: SimFiles) -> None:
    """A power loss may bring back index files that were saved before the segment was full."""
    segment = filled(bench, [[1], [2]])
    segment.save_index(final=True)
    old = {name: disk.read(bench.path(name)) for name in bench.names("index")}
    put(segment, [50])
    put(segment, [3])
    for name, data in old.items():
        disk.remove(bench.path(name))
        disk.open(bench.path(name), create=True).write_at(0, [data])
    again = found_again(bench, segment)
    assert again.max_timestamp_ms == 50
    assert entries(again.index) == entries(segment.index)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_one_old_index_file_spoils_both(bench: LogBench, disk: SimFiles, suffix: str) -> None:
    segment = filled(bench, [[1], [50]])
    segment.save_index(final=True)
    path = bench.path(segment_name(BASE, suffix))
    old = disk.read(path)
    put(segment, [3])
    put(segment, [4])
    segment.save_index(final=True)
    disk.cut(path, 0)
    disk.open(path).write_at(0, [old])
    again = found_again(bench, segment)
    assert again.load_index() is None
    assert again.resume_at(BASE + 3) == 0


def test_an_index_is_saved_only_when_it_has_grown(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_module, "INDEX_SAVE_ENTRIES", 3)
    segment = filled(bench, [[1], [2]])
    segment.save_index()
    assert bench.names("index") == []
    put(segment, [3])
    segment.save_index()
    assert len(bench.names("index")) == 2


def test_the_largest_timestamp_survives_opening_and_appending(bench: LogBench) -> None:
    segment = filled(bench, [[100], [7]])
    segment.save_index(final=True)
    again = found_again(bench, segment)
    put(again, [20])
    assert again.max_timestamp_ms == 100
    assert again.index.before_time(100) == -1


# Recovery goes on in the middle.


@pytest.mark.parametrize("interval", [0, 900, 10**6])
@pytest.mark.parametrize("saved", [True, False])
def test_resuming_and_scanning_comes_to_the_same_segment(
    bench: LogBench, interval: int, saved: bool
) -> None:
    times = [[10], [100], [20], [30, 40], [25], [110], [60], [61]]
    whole = filled(bench, times, index_interval_bytes=interval)
    if saved:
        whole.save_index(final=True)
    for offset in range(BASE, whole.next_offset + 1):
        again = found_again(bench, whole, index_interval_bytes=interval)
        size = again.size
        position = again.resume_at(offset)
        assert (again.size, position <= whole.position_of(offset)) == (position, True)
        for _, header in again.scan(position, size):
            assert header.base_offset == again.next_offset
            again.added(header)
        assert (again.size, again.next_offset) == (whole.size, whole.next_offset)
        assert again.max_timestamp_ms == 110
        for timestamp_ms in (10, 11, 60, 100, 101, 110):
            first = next(
                BASE + at
                for at, stamp in enumerate([10, 100, 20, 30, 40, 25, 110, 60, 61])
                if stamp >= timestamp_ms
            )
            assert BASE + again.index.before_time(timestamp_ms) < first
        assert again.index.before_time(111) < whole.next_offset - BASE


def test_resuming_does_not_trust_an_index_that_points_into_a_batch(
    bench: LogBench, disk: SimFiles
) -> None:
    segment = filled(bench, [[1], [2], [3]])
    segment.save_index(final=True)
    *_, (last, _) = segment.walk(0)
    again = found_again(bench, segment)
    assert again.resume_at(BASE + 2) == last
    disk.flip_bits(segment.path, last + 3)
    again = found_again(bench, segment)
    assert again.resume_at(BASE + 2) == 0
    assert entries(again.hold_index()) == []


def test_resuming_an_empty_segment_starts_at_nothing(bench: LogBench) -> None:
    again = found_again(bench, new_segment(bench))
    assert again.resume_at(BASE + 50) == 0
    assert again.next_offset == BASE


# Cutting and removing.


@pytest.mark.parametrize("interval", [0, 900, 10**6])
@pytest.mark.parametrize(
    ("offset", "next_offset", "largest"),
    [(100, 100, -1), (101, 101, 50), (102, 102, 50), (103, 102, 50), (104, 104, 50)],
)
def test_truncating_cuts_whole_batches(
    bench: LogBench, disk: SimFiles, interval: int, offset: int, next_offset: int, largest: int
) -> None:
    segment = filled(bench, [[50], [2], [3, 60]], index_interval_bytes=interval)
    segment.save_index(final=True)
    segment.truncate(offset)
    if offset == 104:
        largest = 60
    assert segment.next_offset == next_offset
    assert segment.max_timestamp_ms == largest
    assert bench.files.size(segment.path) == segment.size
    assert bench.names("index") == []
    sync_names(disk)
    disk.crash(power_loss=True)
    assert disk.size(segment.path) == segment.size


def test_a_truncated_segment_goes_on(bench: LogBench) -> None:
    segment = filled(bench, [[50], [2], [3]], index_interval_bytes=10**6)
    segment.truncate(BASE + 1)
    put(segment, [7])
    assert [header.base_offset for _, header in segment.walk(0)] == [BASE, BASE + 1]
    assert [position for _, position in entries(segment.index)] == [0, segment.size // 2]
    assert segment.position_of(BASE + 1) == segment.size // 2


def test_removing_takes_all_files_and_disturbs_no_reader(bench: LogBench) -> None:
    segment = filled(bench)
    segment.save_index(final=True)
    segment.release_index()
    with bench.storage.cache.use(segment.path) as file:
        segment.remove()
        assert bench.names() == []
        assert len(file.read_at(0, 10**6)) == segment.size
    assert bench.storage.indexes.memory_bytes == 0


def test_a_write_that_fails_is_undone(bench: LogBench, disk: SimFiles) -> None:
    segment = filled(bench)
    disk.disk_bytes_max = disk.size(segment.path) + 100
    with pytest.raises(OSError, match="No space"):
        segment.write([batch(b"x" * 1000)])
    assert disk.size(segment.path) == segment.size + 100
    segment.undo_write()
    sync_names(disk)
    disk.crash(power_loss=True)
    assert disk.size(segment.path) == segment.size
    disk.disk_bytes_max = None
    again = found_again(bench, segment)
    put(again, [9])
    assert len(list(again.scan(0, again.size))) == 4


def test_a_cut_is_written_even_if_it_changes_nothing(bench: LogBench, disk: SimFiles) -> None:
    """After a failed sync the file on the disk may be longer than it looks."""
    segment = filled(bench)
    segment.sync()
    sync_names(disk)
    segment.next_offset, segment.size = BASE, 0
    with bench.storage.cache.use(segment.path) as file:
        file.truncate(0)
        disk.fail_next_sync(".log")
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
    segment.cut(again=True)
    disk.crash(power_loss=True)
    assert disk.size(segment.path) == 0


def test_a_synced_segment_survives_a_power_loss(bench: LogBench, disk: SimFiles) -> None:
    segment = filled(bench)
    segment.sync()
    sync_names(disk)
    disk.crash(power_loss=True)
    assert len(list(found_again(bench, segment).scan(0, segment.size))) == 3


# The cache of indexes.


def test_the_cache_drops_what_was_unused_for_longest() -> None:
    size = SegmentIndex().memory_bytes
    cache = IndexCache(bytes_max=2 * size)
    first, second, third = SegmentIndex(), SegmentIndex(), SegmentIndex()
    cache.put("1", first)
    cache.put("2", second)
    assert cache.get("1") is first
    cache.put("3", third)
    assert (cache.get("1"), cache.get("2"), cache.get("3")) == (first, None, third)
    assert cache.memory_bytes == 2 * size


def test_the_cache_keeps_one_index_however_large() -> None:
    cache = IndexCache(bytes_max=1)
    index = SegmentIndex()
    cache.put("1", index)
    assert cache.get("1") is index
    cache.put("1", index)
    assert cache.memory_bytes == index.memory_bytes
    cache.drop("1")
    cache.drop("1")
    assert (cache.get("1"), cache.memory_bytes) == (None, 0)


def test_an_index_that_grows_in_the_cache_is_not_miscounted() -> None:
    cache = IndexCache(bytes_max=10**6)
    index = SegmentIndex()
    cache.put("1", index)
    index.add(1, 2)
    cache.drop("1")
    assert cache.memory_bytes == 0
