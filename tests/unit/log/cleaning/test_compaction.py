"""Compaction as a whole: what stays equals a model's answer, whatever comes in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Thread

import pytest

from simulation.compaction_model import (
    BUFFER_BYTES,
    CONFIG,
    RETENTION_MS,
    CompactionModel,
    begin,
    check_structure,
    closed,
    compact_once,
    headers_of,
    keyed,
    records_of,
)
from simulation.log_bench import NOW_MS, PARTITION, LogBench, Producer, append
from simulation.proofs import DIVERGED, given_up
from simulation.storage import SimFiles
from tailrace.config import BatchValidation, FolderConfig, LogConfig, TimestampType
from tailrace.errors import DamagedLog, LogClosed, StorageError
from tailrace.log.cleaning.compaction import (
    CompactionWork,
    compact,
    dirtiness,
    end_compaction,
    fail_compaction,
)
from tailrace.log.data_folder import Identity
from tailrace.log.files import OsFiles
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.log.snapshots import remove_snapshots
from tailrace.log.swap import CLEANED_SUFFIX
from tailrace.model import BrokerId, TopicId
from tailrace.record.codec import Compression
from tailrace.record.header import assemble, read_header


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


@pytest.fixture
def bench(disk: SimFiles) -> LogBench:
    return LogBench(disk, CONFIG)


# What stays


def test_the_last_record_of_each_key_stays_at_its_offset(bench: LogBench) -> None:
    log = filled(
        bench,
        keyed(("a", "1"), ("b", "2"), ("a", "3")),
        keyed(("c", "4"), ("b", "5")),
        keyed(
            ("d", "6"),
        ),
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
    log = filled(
        bench, keyed((None, "1"), ("a", "2"), (None, None)), keyed((None, "3"), ("a", "4"))
    )
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
    cases = ((99 + RETENTION_MS, [1, 2], 0), (100 + RETENTION_MS, [1], 1))
    for now_ms, expected, expired in cases:
        append(log, keyed((None, "x")))
        closed(log)
        report = compact_once(log, cleaned_to=cleaned_to, now_ms=now_ms)
        cleaned_to = report.cleaned_to
        assert [each.offset for each in records_of(log) if each.key] == expected
        assert report.tombstones_expired == expired


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


def test_a_large_batch_that_loses_nothing_is_copied(disk: SimFiles) -> None:
    large = keyed(*((f"k{number}", "x" * 1000) for number in range(700)))
    log = filled(LogBench(disk), keyed(("a", "1"), ("b", "1")), large, keyed(("a", "2")))
    compact_once(log)
    # The batch before it covers offset 0, which is gone.
    found = [(each.base_offset, each.is_compacted) for each in headers_of(log)]
    assert found == [(0, True), (2, False), (702, True)]
    check_structure(log)


def test_a_large_batch_covers_what_went_when_nothing_else_can(disk: SimFiles) -> None:
    large = keyed(*((f"k{number}", "x" * 1000) for number in range(700)))
    log = filled(LogBench(disk), keyed(("a", "1")), large, keyed(("a", "2")))
    compact_once(log)
    assert [(each.base_offset, each.record_count) for each in headers_of(log)] == [(0, 701)]
    check_structure(log)


# Batches with a range of their own


def test_control_batches_stay_as_they_are(bench: LogBench) -> None:
    marker = keyed(("a", "marker"), control=True)
    log = filled(bench, keyed(("a", "1")), marker, keyed(("a", "2")), marker, keyed(("b", "1")))
    compact_once(log)
    found = [(each.base_offset, each.is_control, each.record_count) for each in headers_of(log)]
    assert found == [(0, False, 0), (1, True, 1), (2, False, 1), (3, True, 1), (4, False, 1)]
    assert pairs_of(log) == [(2, "a", "2"), (4, "b", "1")]
    check_structure(log)


def test_a_batch_that_does_not_decode_stays_and_is_reported(bench: LogBench) -> None:
    good = keyed(("a", "rubbish"))
    rubbish = assemble(read_header(good), bytes(read_header(good).body_bytes))
    # Only a topic that says so takes it; logs of an older release have some.
    bench.config = replace(bench.config, batch_validation=BatchValidation.NONE)
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
    found = [
        (each.base_offset, each.is_transactional, each.producer_id) for each in headers_of(log)
    ]
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
    cleaned_to = compact_once(log).cleaned_to
    append(log, keyed(("a", "last")))
    report = compact_once(closed(log), cleaned_to=cleaned_to)
    assert report.segments_before > report.segments_after == 1 == len(log.segments) - 1
    assert report.bytes_after == log.segments[0].size < report.bytes_before
    assert len(snapshots) > 10
    assert len(bench.names(".snapshot")) == len(bench.names(".index")) == 1
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
    first_ms, last_ms = NOW_MS + 1000, NOW_MS + 3000
    for now_ms in (first_ms, NOW_MS + 2000, last_ms):
        append(log, keyed(("a", "1")), now_ms=now_ms)
        log.roll()
    closed(log)
    compact_once(log)
    log = bench.open()
    index = log.segments[0].index
    assert (index.created_ms, index.appended_ms) == (first_ms, last_ms)


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


def test_a_checkpoint_in_the_middle_of_a_batch(bench: LogBench) -> None:
    log = filled(bench, keyed(("a", "1"), ("b", "1")), keyed(("c", "1"), ("b", "2")))
    compact_once(log)
    # The checkpoint is an old one: 0 is in the clean part, 2 and 3 in the dirty one.
    compact_once(log, cleaned_to=1)
    assert pairs_of(log) == [(0, "a", "1"), (2, "c", "1"), (3, "b", "2")]


def test_what_is_all_superseded_is_read_once(bench: LogBench, disk: SimFiles) -> None:
    log = bench.open()
    for number in range(40):
        append(log, keyed(*((f"k{row}", f"{number}") for row in range(20))))
    closed(log)
    work = begin(log, chunk_bytes=1)
    assert work is not None
    work.run()
    size_bytes = sum(each.size for each in log.segments)
    last_bytes = headers_of(log)[-1].length
    assert work.progress.bytes_read == size_bytes + last_bytes
    assert end_compaction(log, work) is not None
    work.release()
    assert [each.offset for each in records_of(log)] == list(range(780, 800))
    check_structure(log)


def test_the_epochs_of_what_is_not_read_again_stay(bench: LogBench) -> None:
    log = bench.open()
    for epoch in (1, 3, 4, 9):
        for _ in range(5):
            append(log, keyed(("a", "1"), ("b", "1")), epoch=epoch)
    closed(log)
    compact_once(log, chunk_bytes=1)
    assert sorted({each.leader_epoch for each in headers_of(log)}) == [1, 3, 4, 9]
    assert [each.offset for each in records_of(log)] == [38, 39]
    check_structure(log)


def test_a_producer_of_what_is_not_read_again_is_remembered(bench: LogBench) -> None:
    log = bench.open()
    append(log, keyed(("a", "1"), producer=Producer(1)))
    for sequence in range(5):
        append(log, keyed(("a", "2"), producer=Producer(2, sequence=sequence)))
    closed(log)
    compact_once(log, chunk_bytes=1)
    found = [(each.producer_id, each.record_count) for each in headers_of(log)]
    assert [each for each in found if each[0] >= 0] == [(1, 0), (2, 1)]


def test_a_pass_can_be_made_in_steps(bench: LogBench) -> None:
    log = bench.open()
    for number in range(40):
        append(log, keyed(*((f"k{row}", f"{number}") for row in range(20))))
    closed(log)
    work = begin(log, chunk_bytes=1)
    assert work is not None
    steps = 0
    while not work.advance(2000):
        steps += 1
        append(log, keyed(("later", f"{steps}")))
    size_bytes = sum(each.size for each in log.segments[:-1])
    assert size_bytes // 4000 < steps <= size_bytes // 2000
    assert end_compaction(log, work) is not None
    work.release()
    assert len(records_of(log)) == 20 + steps
    check_structure(log)


def test_steps_that_are_given_up_leave_nothing(bench: LogBench) -> None:
    log = bench.open()
    for number in range(40):
        append(log, keyed(*((f"{number}-{row}", "x") for row in range(20))))
    closed(log)
    work = begin(log, chunk_bytes=1)
    assert work is not None
    before = log.storage.cache.counters().open_files
    while not bench.names(CLEANED_SUFFIX):
        assert not work.advance(1)
    work.discard()
    assert bench.names(CLEANED_SUFFIX) == []
    assert log.storage.cache.counters().open_files <= before + 1
    assert len(records_of(log)) == 800


# What happens meanwhile


def test_a_work_that_was_given_up_does_not_touch_the_files_of_the_next(bench: LogBench) -> None:
    log = filled(bench, keyed(("a", "1"), ("b", "1")), keyed(("a", "2")))
    late, work = begin(log), begin(log)
    assert late is not None
    assert work is not None
    work.run()
    late.run()
    assert len(bench.names(CLEANED_SUFFIX)) == 2
    assert end_compaction(log, work) is not None
    work.release()
    assert end_compaction(log, late) is None
    assert bench.names(CLEANED_SUFFIX) == []
    assert pairs_of(log) == [(1, "b", "1"), (2, "a", "2")]
    check_structure(log)


def test_old_files_go_when_they_are_released(bench: LogBench) -> None:
    log = filled(bench, keyed(("a", "1"), ("b", "1")), keyed(("a", "2")))
    work = begin(log)
    assert work is not None
    before = log.storage.cache.counters().open_files
    work.run()
    assert end_compaction(log, work) is not None
    held = log.storage.cache.counters().open_files
    work.release()
    work.release()
    assert log.storage.cache.counters().open_files < held <= before + 1


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
    work.release()
    assert report is not None
    assert report.cleaned_to == 300
    assert [each.offset for each in records_of(log)][:7] == list(range(293, 300))
    assert records_of(log)[-1].value == b"last"
    check_structure(log)


def failure_of(work: CompactionWork) -> OSError | DamagedLog:
    """How the work fails; where it does not notice, as if the disk had failed it."""
    try:
        work.run()
    except (OSError, DamagedLog) as error:
        return error
    return OSError()


def cut_and_go_on(log: PartitionLog) -> None:
    """Cut into the last closed segment, so that it takes other batches and is closed again."""
    log.truncate_to(log.segments[-1].base_offset - 2, DIVERGED, now_ms=0)
    append(log, keyed(("a", "other"), ("b", "other")))
    log.roll()


@pytest.mark.parametrize(
    "disturb",
    [
        lambda log: log.truncate_to(1, DIVERGED, now_ms=0),
        cut_and_go_on,
        lambda log: log.start_over_at(1, DIVERGED),
        lambda log: log.advance_log_start(
            log.segments[1].base_offset, given_up(log.segments[1].base_offset)
        ),
        lambda log: log.close(),
    ],
    ids=["truncated", "truncated and written", "started over", "segments removed", "closed"],
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
        assert fail_compaction(log, work, failure_of(work)) is None
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


@pytest.mark.parametrize("cleaned_to", [0, 2])
@pytest.mark.parametrize("position", [10, -1])
def test_damage_is_reported_and_never_written_anew(
    bench: LogBench, disk: SimFiles, cleaned_to: int, position: int
) -> None:
    """In the dirty part and in the clean one, in a header and in a body."""
    log = filled(bench, keyed(("a", "1"), ("b", "1"), producer=Producer(1)))
    append(log, keyed(("a", "2")))
    closed(log)
    path = log.segments[0].path
    disk.flip_bits(path, position % disk.size(path))
    before = disk.read(path)
    with pytest.raises(DamagedLog):
        compact(log, cleaned_to=cleaned_to, bound=3, now_ms=0, buffer_bytes=BUFFER_BYTES)
    assert disk.read(path) == before
    assert bench.names(CLEANED_SUFFIX) == []


def test_a_retention_without_end(disk: SimFiles) -> None:
    log = filled(LogBench(disk, LogConfig(delete_retention_ms=2**63 - 1)), keyed(("a", None)))
    compact_once(log, now_ms=NOW_MS)
    assert headers_of(log)[0].delete_horizon_ms == 2**63 - 1


def test_a_full_disk_leaves_the_log_as_it_was(bench: LogBench, disk: SimFiles) -> None:
    log = filled(bench, keyed(("a", "1"), ("b", "1")), keyed(("a", "2")))
    before = records_of(log)
    disk.disk_bytes_max = 0
    with pytest.raises(StorageError):
        compact(log, cleaned_to=0, bound=3, now_ms=0, buffer_bytes=BUFFER_BYTES)
    assert records_of(log) == before
    assert bench.names(CLEANED_SUFFIX) == []
    disk.disk_bytes_max = None
    append(log, keyed(("c", "1")))
    compact_once(closed(log))
    assert len(records_of(log)) == 3


# The checkpoint


def test_the_checkpoint_is_durable_and_never_above_a_cut(disk: SimFiles) -> None:
    def opened() -> LogManager:
        identity = Identity("cluster", BrokerId(1), "incarnation")
        manager = LogManager(disk, FolderConfig(log_dirs=("/data",)), identity=identity)
        manager.open(now_ms=0)
        return manager

    manager = opened()
    log = manager.create(PARTITION, TopicId("topic"))
    assert manager.cleaned_to(PARTITION) == 0
    for _ in range(2):
        append(log, keyed(("a", "1"), ("b", "1")))
        log.roll()
    log.flush()
    manager.set_cleaned(PARTITION, compact_once(log).cleaned_to)
    assert manager.cleaned_to(PARTITION) == 4
    disk.crash(power_loss=True)
    manager = opened()
    assert manager.cleaned_to(PARTITION) == 4
    # The one batch that is left covers everything.
    manager.logs[PARTITION].truncate_to(3, DIVERGED, now_ms=0)
    assert manager.cleaned_to(PARTITION) == 0
    disk.crash(power_loss=True)
    assert opened().cleaned_to(PARTITION) == 0
