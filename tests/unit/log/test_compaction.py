"""Compaction as a whole: what stays equals a model's answer, whatever comes in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Thread

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.compaction_model import (
    BUFFER_BYTES,
    CompactionModel,
    begin,
    check_structure,
    compact_once,
    records_of,
)
from simulation.log_bench import NOW_MS, LogBench, Producer, append
from simulation.storage import SimFiles, SimulatedCrash
from tailrace.config import LogConfig, TimestampType
from tailrace.errors import DamagedLog, LogClosed, StorageError
from tailrace.log.compaction import (
    compact,
    dirtiness,
    end_compaction,
    fail_compaction,
)
from tailrace.log.files import OsFiles
from tailrace.log.log import PartitionLog
from tailrace.log.snapshots import remove_snapshots
from tailrace.log.swap import CLEANED_SUFFIX, SWAP_SUFFIX
from tailrace.record.build import BatchBuilder, batch_from_columns
from tailrace.record.codec import Compression
from tailrace.record.header import BatchHeader, assemble, read_header
from tailrace.record.view import BatchView, Record

RETENTION_MS = 1000
CONFIG = LogConfig(
    segment_bytes=4096, index_interval_bytes=512, delete_retention_ms=RETENTION_MS, segment_ms=10**9
)
Pairs = list[tuple[str | None, str | None]]


def keyed(
    *pairs: tuple[str | None, str | None],
    producer: Producer | None = None,
    control: bool = False,
    transactional: bool = False,
    compression: Compression = Compression.NONE,
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> bytes:
    """A batch of keys and values, each with a time of its own."""
    builder = BatchBuilder(compression)
    for number, (key, value) in enumerate(pairs):
        builder.append(
            None if value is None else value.encode(),
            None if key is None else key.encode(),
            NOW_MS + number,
            headers,
        )
    at = producer or Producer(-1, -1, -1)
    return builder.build(
        producer_id=at.producer_id,
        producer_epoch=at.epoch,
        base_sequence=at.sequence,
        control=control,
        transactional=transactional,
    )


def closed(log: PartitionLog) -> PartitionLog:
    """All that is in the log may be compacted now."""
    log.roll()
    log.flush()
    return log


def filled(bench: LogBench, *batches: bytes) -> PartitionLog:
    log = bench.open()
    append(log, *batches)
    return closed(log)


def pairs_of(log: PartitionLog) -> list[tuple[int, str | None, str | None]]:
    return [
        (
            each.offset,
            None if each.key is None else each.key.decode(),
            None if each.value is None else each.value.decode(),
        )
        for each in records_of(log)
    ]


def headers_of(log: PartitionLog) -> list[BatchHeader]:
    return list(log.headers(log.log_start))


@pytest.fixture
def bench(disk: SimFiles) -> LogBench:
    return LogBench(disk, CONFIG)


# What stays


def test_the_last_record_of_each_key_stays_at_its_offset(bench: LogBench) -> None:
    log = filled(
        bench,
        keyed(("a", "1"), ("b", "2"), ("a", "3")),
        keyed(("c", "4"), ("b", "5")),
        keyed(("d", "6"),),
    )
    report = compact_once(log)
    assert pairs_of(log) == [(2, "a", "3"), (3, "c", "4"), (4, "b", "5"), (5, "d", "6")]
    assert (report.records_before, report.records_after) == (6, 4)
    assert (report.cleaned_to, report.is_complete) == (6, True)
    check_structure(log)
    # One merged batch covers everything.
    assert [(each.base_offset, each.next_offset) for each in headers_of(log)] == [(0, 6)]


def test_the_clean_part_loses_only_keys_that_the_dirty_part_has(bench: LogBench) -> None:
    log = filled(bench, keyed(("a", "1"), ("b", "2"), ("c", "3")))
    cleaned_to = compact_once(log).cleaned_to
    append(log, keyed(("b", "4")))
    closed(log)
    report = compact_once(log, cleaned_to=cleaned_to)
    assert pairs_of(log) == [(0, "a", "1"), (2, "c", "3"), (3, "b", "4")]
    assert report.cleaned_to == 4
    check_structure(log)


def test_records_without_a_key_always_stay(bench: LogBench) -> None:
    log = filled(bench, keyed((None, "1"), ("a", "2"), (None, None)), keyed((None, "3"), ("a", "4")))
    cleaned_to = compact_once(log).cleaned_to
    expected = [(0, None, "1"), (2, None, None), (3, None, "3"), (4, "a", "4")]
    assert pairs_of(log) == expected
    append(log, keyed((None, "5")))
    closed(log)
    compact_once(log, cleaned_to=cleaned_to, now_ms=10**15)
    assert pairs_of(log) == [*expected, (5, None, "5")]


def test_a_tombstone_goes_with_the_first_cleaning_at_its_horizon(bench: LogBench) -> None:
    log = filled(bench, keyed(("a", "1"), ("b", "1")), keyed(("a", None)))
    cleaned_to = compact_once(log, now_ms=100).cleaned_to
    assert pairs_of(log) == [(1, "b", "1"), (2, "a", None)]
    assert headers_of(log)[0].delete_horizon_ms == 100 + RETENTION_MS
    for now_ms, expected in ((99 + RETENTION_MS, [1, 2]), (100 + RETENTION_MS, [1])):
        append(log, keyed((None, "x")))
        closed(log)
        report = compact_once(log, cleaned_to=cleaned_to, now_ms=now_ms)
        cleaned_to = report.cleaned_to
        assert [each.offset for each in records_of(log) if each.key] == expected
    assert report.tombstones_expired == 1


def test_tombstones_of_different_age_do_not_wait_for_each_other(bench: LogBench) -> None:
    log = filled(bench, keyed(("a", None), ("x", "1")))
    cleaned_to = compact_once(log, now_ms=100).cleaned_to
    append(log, keyed(("b", None), ("y", "1")))
    closed(log)
    cleaned_to = compact_once(log, cleaned_to=cleaned_to, now_ms=200).cleaned_to
    horizons = [each.delete_horizon_ms for each in headers_of(log)]
    assert horizons == [100 + RETENTION_MS, 200 + RETENTION_MS]
    append(log, keyed(("z", "1")))
    closed(log)
    compact_once(log, cleaned_to=cleaned_to, now_ms=150 + RETENTION_MS)
    assert [each.key for each in records_of(log)] == [b"x", b"b", b"y", b"z"]


def test_headers_compression_and_timestamps_are_kept(bench: LogBench) -> None:
    value = "v" * 400
    batches = [
        keyed(("a", value), ("b", value), headers=(("h", b"1"), ("i", None))),
        keyed(("a", value), ("c", value), compression=Compression.ZSTD),
        keyed(("d", value), ("d", value + "!"), compression=Compression.LZ4),
    ]
    log = filled(bench, *batches)
    before = {each.offset: each for each in records_of(log)}
    compact_once(log)
    assert records_of(log) == [before[offset] for offset in (1, 2, 3, 5)]
    found = [(each.compression, each.has_headers, each.record_count) for each in headers_of(log)]
    assert found == [
        (Compression.NONE, True, 1),
        (Compression.ZSTD, False, 2),
        (Compression.LZ4, False, 1),
    ]
    for header in headers_of(log):
        kept = [
            each.timestamp_ms
            for each in records_of(log)
            if header.base_offset <= each.offset < header.next_offset
        ]
        assert (header.first_timestamp_ms, header.max_timestamp_ms) == (kept[0], max(kept))


def test_batches_with_the_time_of_their_append_keep_it(disk: SimFiles) -> None:
    config = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    log = LogBench(disk, config).open()
    for now_ms in (50, 50, 60):
        append(log, keyed(("a", "1"), (f"b{now_ms}", "2")), now_ms=now_ms)
    closed(log)
    compact_once(log)
    found = [(each.offset, each.timestamp_ms) for each in records_of(log)]
    assert found == [(3, 50), (4, 60), (5, 60)]
    assert all(each.is_append_time for each in headers_of(log))


def test_what_is_large_and_whole_is_copied_as_it_is(disk: SimFiles) -> None:
    log = LogBench(disk).open()
    value = "x" * 1000
    large = keyed(*((f"k{number}", value) for number in range(700)))
    append(log, keyed(("a", "1")), large, keyed(("a", "2")))
    closed(log)
    before = headers_of(log)
    compact_once(log)
    after = headers_of(log)
    # Nothing else is left to cover offset 0, so that the large batch has to.
    assert [each.base_offset for each in after] == [0]
    append(log, large, keyed(("b", "1")), large.replace(b"k", b"K"))
    closed(log)
    compact_once(log, cleaned_to=702)
    assert len(before) == 3
    assert headers_of(log)[-1].is_compacted is False
    check_structure(log)


# Batches with a range of their own


def test_control_batches_stay_as_they_are(bench: LogBench) -> None:
    marker = keyed(("a", "marker"), producer=Producer(7, 0, -1), control=True)
    log = filled(bench, keyed(("a", "1")), marker, keyed(("a", "2")), marker, keyed(("b", "1")))
    compact_once(log)
    found = [(each.base_offset, each.is_control, each.record_count) for each in headers_of(log)]
    assert found == [(0, False, 0), (1, True, 1), (2, False, 1), (3, True, 1), (4, False, 1)]
    assert pairs_of(log) == [(2, "a", "2"), (4, "b", "1")]
    check_structure(log)


def test_a_batch_that_does_not_decode_stays_and_is_reported(bench: LogBench) -> None:
    good = keyed(("a", "rubbish"))
    rubbish = assemble(read_header(good), bytes(read_header(good).body_bytes))
    log = filled(bench, keyed(("a", "1")), rubbish, keyed(("a", "2"), ("b", "1")))
    for cleaned_to in (0, 4):
        report = compact_once(log, cleaned_to=cleaned_to)
        assert len(report.copied_blindly) == 1
        assert "at offset 1:" in report.copied_blindly[0]
        assert [each.record_count for each in headers_of(log)][:2] == [0, 1]
        assert log.read(1, bytes_max=1)[24 : len(rubbish)] == rubbish[24:]
        check_structure(log)
        append(log, keyed(("c", "1")))
        closed(log)


def test_the_last_batch_of_a_producer_keeps_its_sequences(bench: LogBench) -> None:
    one, two = Producer(1), Producer(2, epoch=3)
    log = filled(
        bench,
        keyed(("a", "1"), ("b", "1"), producer=one),
        keyed(("a", "2"), producer=two),
        keyed(("a", "3"), ("c", "1"), producer=one.after(2)),
        keyed(("a", "4"), ("b", "4"), ("c", "4")),
    )
    compact_once(log)
    assert [each.offset for each in records_of(log)] == [5, 6, 7]
    assert [
        (each.base_offset, each.next_offset, each.producer_id, each.last_sequence)
        for each in headers_of(log)
    ] == [(0, 2, -1, -1), (2, 3, 2, 0), (3, 5, 1, 3), (5, 8, -1, -1)]
    remove_snapshots(log.storage, log.folder, lambda _: True)
    log = bench.open()
    found = {each.producer_id: each for each in log.producers.entries()}
    assert {key: (each.producer_epoch, each.batches[-1][:4]) for key, each in found.items()} == {
        1: (0, (2, 3, 3, 4)),
        2: (3, (0, 0, 2, 2)),
    }
    append(log, keyed(("z", "1"), producer=one.after(4)))
    # A pass that finds the producer's last batch above, or in the clean part, keeps it there.
    closed(log)
    compact_once(log, cleaned_to=8)
    assert [each.base_offset for each in headers_of(log) if each.producer_id == 2] == [2]
    assert [each.base_offset for each in headers_of(log) if each.producer_id == 1] == [8]


def test_a_producer_that_expired_is_not_kept(bench: LogBench) -> None:
    log = filled(bench, keyed(("a", "1"), producer=Producer(1)), keyed(("a", "2")))
    log.producers.expire(10**15, 1)
    compact_once(log)
    assert [each.producer_id for each in headers_of(log)] == [-1]


def test_batches_of_transactions_keep_their_producer_while_they_have_records(
    bench: LogBench,
) -> None:
    one = Producer(1)
    log = filled(
        bench,
        keyed(("a", "1"), ("b", "1"), producer=one, transactional=True),
        keyed(("a", "2"), producer=one.after(2), transactional=True),
        keyed(("a", "3"), producer=one.after(3)),
    )
    compact_once(log)
    found = [(each.base_offset, each.is_transactional, each.producer_id) for each in headers_of(log)]
    assert found == [(0, True, 1), (2, False, -1), (3, False, 1)]
    assert pairs_of(log) == [(1, "b", "1"), (3, "a", "3")]


def test_every_leader_epoch_keeps_a_batch(bench: LogBench) -> None:
    log = bench.open()
    for epoch in (0, 3, 4, 9):
        append(log, keyed(("a", "1"), ("a", "2")), epoch=epoch)
        append(log, keyed(("a", "3")), epoch=epoch)
    closed(log)
    entries = log.epochs.entries
    compact_once(log)
    assert [(each.leader_epoch, each.record_count) for each in headers_of(log)] == [
        (0, 0),
        (3, 0),
        (4, 0),
        (9, 1),
    ]
    check_structure(log)
    bench.files.remove(bench.path("leader-epoch-checkpoint"))
    assert bench.open().epochs.entries == entries


# Segments


def test_small_cleaned_segments_become_one(bench: LogBench) -> None:
    log = bench.open()
    for number in range(40):
        append(log, keyed(("a", "x" * 900), (f"k{number}", "1")))
    closed(log)
    snapshots = bench.names(".snapshot")
    report = compact_once(log)
    assert report.segments_before > report.segments_after == 1 == len(log.segments) - 1
    assert report.bytes_after == log.segments[0].size < report.bytes_before
    assert len(snapshots) > 2
    assert len(bench.names(".snapshot")) == 1
    assert len(bench.names(".index")) == 1
    check_structure(log)
    log = bench.open()
    check_structure(log)
    assert len(records_of(log)) == 41


def test_segments_that_stay_full_are_not_joined(bench: LogBench) -> None:
    log = bench.open()
    for number in range(40):
        append(log, keyed((f"k{number}", "x" * 900)))
    closed(log)
    report = compact_once(log)
    assert report.segments_after > 5
    assert all(each.size <= CONFIG.segment_bytes for each in log.segments)
    check_structure(log)


def test_times_of_append_outlive_a_compaction(bench: LogBench) -> None:
    log = bench.open()
    for now_ms in (1000, 2000, 3000):
        append(log, keyed(("a", "1")), now_ms=now_ms)
        log.roll()
    closed(log)
    compact_once(log)
    log = bench.open()
    assert (log.segments[0].index.created_ms, log.segments[0].index.appended_ms) == (1000, 3000)


def test_only_what_is_closed_flushed_and_below_the_bound_is_compacted(bench: LogBench) -> None:
    log = bench.open()
    append(log, keyed(("a", "1"), ("a", "2")))
    assert begin(log) is None
    log.roll()
    assert begin(log) is None
    log.flush()
    args = {"cleaned_to": 0, "now_ms": 0, "buffer_bytes": BUFFER_BYTES}
    assert compact(log, bound=1, **args) is None
    assert dirtiness(log, cleaned_to=0, bound=1, now_ms=0).dirty_bytes == 0
    assert dirtiness(log, cleaned_to=0, bound=2, now_ms=0).ratio == 1
    assert compact(log, bound=2, **args) is not None
    assert dirtiness(log, cleaned_to=2, bound=2, now_ms=0).ratio == 0
    assert pairs_of(log) == [(1, "a", "2")]


def test_the_lag_counts_from_the_last_append(disk: SimFiles) -> None:
    bench = LogBench(disk, LogConfig(min_compaction_lag_ms=100))
    log = bench.open()
    append(log, keyed(("a", "1")), now_ms=1000)
    closed(log)
    assert begin(log, now_ms=1099) is None
    assert begin(log, now_ms=1100) is not None
    for name in bench.names("index"):
        bench.files.remove(bench.path(name))
    log = bench.open()
    # Nobody knows any more when it came: the record's own time is all there is.
    assert begin(log, now_ms=1100) is None
    assert begin(log, now_ms=NOW_MS + 100) is not None


# Passes that do not reach the end


def test_a_small_buffer_takes_several_passes(bench: LogBench) -> None:
    log = bench.open()
    model = CompactionModel()
    for number in range(60):
        append(log, keyed((f"k{number % 23}", f"{number}"), (f"l{number}", "1")))
    closed(log)
    model.appended(records_of(log))
    cleaned_to, passes = 0, 0
    while cleaned_to < log.log_end:
        report = compact_once(log, cleaned_to=cleaned_to, buffer_bytes=1500, chunk_bytes=1500)
        assert report.cleaned_to > cleaned_to
        assert report.is_complete == (report.cleaned_to == log.log_end)
        model.compacted(dirty_from=cleaned_to, covered_to=report.cleaned_to, now_ms=0)
        assert records_of(log) == model.expected()
        check_structure(log)
        cleaned_to, passes = report.cleaned_to, passes + 1
    assert passes > 3
    assert len(model.records) == 23 + 60


def test_a_chunk_that_exceeds_the_buffer_is_taken_all_the_same(bench: LogBench) -> None:
    log = filled(bench, *(keyed((f"k{number}", "1"), ("a", "1")) for number in range(5)))
    report = compact_once(log, buffer_bytes=1)
    assert report.is_complete
    assert len(records_of(log)) == 6


# What happens meanwhile


def test_the_owner_goes_on_while_the_work_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(tmp_path_factory.mktemp("log"))
    log = LogBench(OsFiles(), CONFIG, folder=folder).open()
    for number in range(300):
        append(log, keyed((f"k{number % 7}", f"{number}")))
    closed(log)
    work = begin(log, chunk_bytes=4096)
    assert work is not None
    thread = Thread(target=work.run)
    thread.start()
    while thread.is_alive():
        append(log, keyed(("k0", "later")))
    thread.join()
    append(log, keyed(("k0", "last")))
    report = end_compaction(log, work)
    assert report is not None
    assert report.cleaned_to == 300
    assert [each.offset for each in records_of(log)][:7] == list(range(293, 300))
    assert records_of(log)[-1].value == b"last"
    check_structure(log)


@pytest.mark.parametrize(
    "disturb",
    [
        lambda log: log.truncate_to(1, now_ms=0),
        lambda log: log.start_over_at(1),
        lambda log: log.advance_log_start(log.segments[1].base_offset),
        lambda log: log.close(),
    ],
    ids=["truncated", "started over", "segments removed", "closed"],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_work_is_thrown_away_when_the_log_is_cut(
    bench: LogBench, disturb: Callable[[PartitionLog], object], when: str
) -> None:
    log = bench.open()
    for number in range(40):
        append(log, keyed(("a", "x" * 200), (f"k{number}", "1")))
    closed(log)
    work = begin(log)
    assert work is not None
    if when == "after":
        work.run()
        disturb(log)
        assert end_compaction(log, work) is None
    else:
        disturb(log)
        with pytest.raises((OSError, DamagedLog)) as caught:
            work.run()
            raise FileNotFoundError
        assert isinstance(caught.value, OSError | DamagedLog)
        assert fail_compaction(log, work, caught.value) is None
    assert bench.names(CLEANED_SUFFIX) == []
    if log.is_open:
        check_structure(log)


def test_work_can_be_cancelled(bench: LogBench) -> None:
    log = filled(bench, keyed(("a", "1"), ("a", "2")))
    work = begin(log)
    assert work is not None
    work.cancel()
    with pytest.raises(LogClosed) as caught:
        work.run()
    assert fail_compaction(log, work, caught.value) is caught.value
    assert bench.names(CLEANED_SUFFIX) == []
    assert len(records_of(log)) == 2


def test_damage_is_reported_and_never_written_anew(bench: LogBench) -> None:
    log = filled(bench, keyed(("a", "1")), keyed(("a", "2")))
    path = log.segments[0].path
    size = bench.files.size(path)
    assert isinstance(bench.files, SimFiles)
    bench.files.flip_bits(path, size - 1)
    before = bench.files.read(path)
    with pytest.raises(DamagedLog):
        compact(log, cleaned_to=0, bound=2, now_ms=0, buffer_bytes=BUFFER_BYTES)
    assert bench.files.read(path) == before
    assert bench.names(CLEANED_SUFFIX) == []


def test_a_full_disk_leaves_the_log_as_it_was(bench: LogBench) -> None:
    log = filled(bench, keyed(("a", "1"), ("b", "1")), keyed(("a", "2")))
    before = records_of(log)
    assert isinstance(bench.files, SimFiles)
    bench.files.disk_bytes_max = 0
    with pytest.raises(StorageError):
        compact(log, cleaned_to=0, bound=3, now_ms=0, buffer_bytes=BUFFER_BYTES)
    assert records_of(log) == before
    assert bench.names(CLEANED_SUFFIX) == []
    bench.files.disk_bytes_max = None
    append(log, keyed(("c", "1")))
    compact_once(closed(log))
    assert len(records_of(log)) == 3


# Crashes


def crash_scenario(seed: int) -> tuple[SimFiles, LogBench, PartitionLog]:
    files = SimFiles(seed)
    bench = LogBench(files, CONFIG)
    log = bench.open()
    for number in range(24):
        # Half of the segments stay full, so that there are several swaps, of one and of many.
        filler = "x" * 700 if number < 12 else ""
        append(log, keyed(("a", filler), (f"k{number % 16}", filler), ("gone", None)))
    closed(log)
    files.sync_folder("/")
    files.sync_folder("/data")
    bench.checkpoint(log)
    return files, bench, log


@pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "power loss"])
def test_a_crash_at_any_file_operation_leaves_each_range_as_before_or_after(
    power_loss: bool,
) -> None:
    _, _, log = crash_scenario(0)
    before = records_of(log)
    work = begin(log)
    assert work is not None
    work.run()
    bounds = [0, *(each.swap.end for each in work.outputs)]
    assert end_compaction(log, work) is not None
    after = records_of(log)
    possible = [
        [each for each in after if each.offset < bound]
        + [each for each in before if each.offset >= bound]
        for bound in bounds
    ]
    assert len(bounds) > 3
    seen, number, died = set(), 0, True
    while died:
        number += 1
        files, bench, log = crash_scenario(number)
        files.crash_at_operation(number)
        try:
            compact_once(log)
            died = False
        except SimulatedCrash:
            pass
        files.crash(power_loss=power_loss)
        log = bench.open()
        found = records_of(log)
        assert found in possible, files.trace()
        seen.add(possible.index(found))
        check_structure(log)
        assert bench.names(CLEANED_SUFFIX) + bench.names(SWAP_SUFFIX) == []
        compact_once(log)
        assert records_of(log) == after
    assert seen == set(range(len(bounds)))
    assert number > 50


# Against the model


KEYS = st.sampled_from(["a", "b", "c", "d", "e", None])
VALUES = st.sampled_from(["1", "22", "x" * 300, None])
BATCH = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5)


@dataclass
class Append:
    pairs: Pairs
    producer: int | None
    compression: Compression
    with_headers: bool


@dataclass
class Compact:
    buffer_bytes: int
    chunk_bytes: int
    later_ms: int


APPEND = st.builds(
    Append,
    BATCH,
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([Compression.NONE, Compression.NONE, Compression.ZSTD]),
    st.booleans(),
)
COMPACT = st.builds(
    Compact,
    st.sampled_from([1, 500, 2000, BUFFER_BYTES]),
    st.sampled_from([1, 1000, 3000, 1 << 20]),
    st.sampled_from([0, RETENTION_MS // 2, RETENTION_MS]),
)
STEP = st.one_of(APPEND, APPEND, APPEND, COMPACT, st.sampled_from(["roll", "epoch", "reopen"]))


@dataclass
class Run:
    """One sequence of steps on a log, with the model beside it."""

    bench: LogBench
    model: CompactionModel = field(default_factory=lambda: CompactionModel(RETENTION_MS))
    producers: dict[int, Producer] = field(default_factory=dict)
    epoch: int = 0
    cleaned_to: int = 0
    now_ms: int = 1000

    def __post_init__(self) -> None:
        self.log = self.bench.open()

    def take(self, step: Append | Compact | str) -> None:
        if isinstance(step, Append):
            self.append(step)
        elif isinstance(step, Compact):
            self.compact(step)
        elif step == "roll":
            self.log.roll()
        elif step == "epoch":
            self.epoch += 1
        else:
            self.reopen()

    def append(self, step: Append) -> None:
        producer = None
        if step.producer is not None:
            producer = self.producers.get(step.producer, Producer(step.producer))
            self.producers[step.producer] = producer.after(len(step.pairs))
        data = keyed(
            *step.pairs,
            producer=producer,
            compression=step.compression,
            headers=(("h", b"x"),) if step.with_headers else (),
        )
        base = self.log.log_end
        append(self.log, data, epoch=self.epoch)
        self.model.appended(
            each._replace(offset=base + each.offset) for each in BatchView(data).records()
        )

    def compact(self, step: Compact) -> None:
        self.log.flush()
        self.now_ms += step.later_ms
        work = begin(
            self.log,
            now_ms=self.now_ms,
            cleaned_to=self.cleaned_to,
            buffer_bytes=step.buffer_bytes,
            chunk_bytes=step.chunk_bytes,
        )
        if work is None:
            return
        work.run()
        report = end_compaction(self.log, work)
        assert report is not None
        self.model.compacted(
            dirty_from=self.cleaned_to, covered_to=report.cleaned_to, now_ms=self.now_ms
        )
        assert report.cleaned_to > self.cleaned_to
        self.cleaned_to = report.cleaned_to
        self.check()

    def reopen(self) -> None:
        """What the producers wrote last must be known from the batches alone."""
        remove_snapshots(self.log.storage, self.log.folder, lambda _: True)
        self.log.flush()
        self.bench.checkpoint(self.log)
        self.log = self.bench.open()
        states = {each.producer_id: each.batches[-1] for each in self.log.producers.entries()}
        assert {each: batch.last_sequence + 1 for each, batch in states.items()} == {
            each: producer.sequence for each, producer in self.producers.items()
        }
        self.check()

    def check(self) -> None:
        assert records_of(self.log) == self.model.expected()
        check_structure(self.log)


@settings(max_examples=250)
@given(st.lists(STEP, min_size=3, max_size=40))
def test_a_compacted_log_equals_the_model(steps: list[Append | Compact | str]) -> None:
    run = Run(LogBench(SimFiles(0), CONFIG))
    for step in steps:
        run.take(step)
    run.log.roll()
    run.compact(Compact(BUFFER_BYTES, 1 << 20, 0))
    run.reopen()


# A million


RECORDS = 1_000_000
DISTINCT = 100_000
PER_BATCH = 5000


def test_a_million_records_equal_the_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, DISTINCT, RECORDS)
    names = pa.array([b"key-%06d" % number for number in range(DISTINCT)], pa.binary())
    keys = names.take(pa.array(ids))
    values = pa.array(np.arange(RECORDS)).cast(pa.string()).cast(pa.binary())
    times = pa.array(np.arange(RECORDS) + NOW_MS)
    bench = LogBench(
        OsFiles(),
        LogConfig(segment_bytes=4 << 20),
        folder=str(tmp_path_factory.mktemp("million")),
    )
    log = bench.open()
    for start in range(0, RECORDS, PER_BATCH):
        columns = (each.slice(start, PER_BATCH) for each in (keys, values, times))
        append(log, batch_from_columns(*columns))
    closed(log)
    # Room for a part of the keys only: the passes after the first have a clean part.
    cleaned_to, passes = 0, 0
    while cleaned_to < RECORDS:
        report = compact_once(log, cleaned_to=cleaned_to, buffer_bytes=4 << 20)
        cleaned_to, passes = report.cleaned_to, passes + 1
    assert passes > 1
    expected = dict(zip(ids.tolist(), range(RECORDS), strict=True))
    found = records_of(bench.open())
    assert found == [
        Record(at, NOW_MS + at, b"key-%06d" % ids[at], b"%d" % at, ())
        for at in sorted(expected.values())
    ]
    assert all(one.next_offset == two.base_offset for one, two in pairwise(headers_of(log)))
