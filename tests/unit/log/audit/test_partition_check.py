"""Damage beside the segments of a partition: is it found, and what does opening do?"""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation import log_folders
from simulation.foretold import (
    check_cut,
    check_mends,
    check_refused,
    check_sound,
    check_unnoticed,
    findings_of,
    only,
)
from simulation.log_folders import (
    FLUSHED,
    PARTITION,
    RECORDS,
    TIME_MS,
    batches_of,
    flip,
    resize,
    segment_paths,
)
from simulation.proofs import refilled
from tailrace.cli.sources import SourceFiles
from tailrace.epochs import EpochEntry
from tailrace.errors import DamagedLog
from tailrace.log.audit.findings import Action, Kind, Severity
from tailrace.log.audit.verification import verify
from tailrace.log.checkpoints import (
    CLEAN_SHUTDOWN,
    LEADER_EPOCHS,
    LOG_STARTS,
    PARTITION_METADATA,
    TOPIC_IDS,
    CleanShutdown,
    decode,
    encode,
)
from tailrace.log.flushing import encode_marker
from tailrace.log.producers import ProducerStates
from tailrace.model import LeaderEpoch, Offset

FOLDER = str(PARTITION)


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    return log_folders.closed_folder(tmp_path / "data")


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    return log_folders.killed_folder(tmp_path / "data")


def test_corrupt_snapshot(closed: Path) -> None:
    path = max((closed / FOLDER).glob("*.snapshot"))
    flip(path, 30)
    found = only(closed)
    assert (found.kind, found.severity) == (Kind.SNAPSHOT_CORRUPT, Severity.MENDS)
    assert found.recovery.action is Action.IGNORE
    check_mends(closed)


def test_snapshot_above_the_end(killed: Path) -> None:
    path = killed / FOLDER / f"{RECORDS + 5:020d}.snapshot"
    path.write_bytes(ProducerStates().to_bytes(RECORDS + 5))
    found = only(killed)
    assert (found.kind, found.severity) == (Kind.SNAPSHOT_WRONG, Severity.MENDS)
    assert found.recovery.action is Action.REMOVE
    check_mends(killed)
    assert not path.exists()


def test_snapshot_under_another_name(closed: Path) -> None:
    path = max((closed / FOLDER).glob("*.snapshot"))
    path.write_bytes(ProducerStates().to_bytes(5))
    found = only(closed)
    assert (found.kind, found.severity) == (Kind.SNAPSHOT_WRONG, Severity.DAMAGE)


@pytest.mark.parametrize("missing", [True, False])
def test_partition_without_its_topic(closed: Path, missing: bool) -> None:
    path = closed / FOLDER / PARTITION_METADATA.file_name
    if missing:
        path.unlink()
    else:
        flip(path, 40)
    (closed / TOPIC_IDS.file_name).unlink()
    found = only(closed)
    assert found.kind is (Kind.METADATA_MISSING if missing else Kind.CHECKPOINT_CORRUPT)
    assert (found.severity, found.recovery.action) == (Severity.DAMAGE, Action.REFUSE)
    manager, report = log_folders.reopen(closed)
    assert list(report.damaged) == [PARTITION]
    log_folders.abandon(manager)


def test_partition_that_was_never_finished(closed: Path) -> None:
    path = closed / "half-1"
    path.mkdir()
    found = only(closed)
    assert (found.kind, found.path) == (Kind.NEVER_FINISHED, str(path))
    assert (found.severity, found.recovery.action) == (Severity.MENDS, Action.REMOVE)
    check_mends(closed)
    assert not path.exists()


@pytest.mark.parametrize("missing", [True, False])
def test_leader_epochs_are_rebuilt(closed: Path, missing: bool) -> None:
    path = closed / FOLDER / LEADER_EPOCHS.file_name
    before = decode(LEADER_EPOCHS, path.read_bytes())
    if missing:
        path.unlink()
    else:
        flip(path, 50)
    found = only(closed)
    assert found.kind is (Kind.EPOCHS_MISSING if missing else Kind.EPOCHS_CORRUPT)
    assert (found.severity, found.recovery.action) == (Severity.MENDS, Action.REBUILD)
    manager, _ = log_folders.reopen(closed)
    assert manager.logs[PARTITION].epochs.entries == before
    manager.close()


@pytest.mark.parametrize(
    "entries",
    [
        [(0, 0), (1, 200), (2, 390)],
        [(0, 0), (1, 205), (2, 400)],
        [(0, 0), (2, 400)],
        [(1, 200), (2, 400)],
        [(0, 0), (1, 200), (2, 400), (3, 500)],
        [],
    ],
)
def test_leader_epochs_that_contradict_the_batches(
    closed: Path, entries: list[tuple[int, int]]
) -> None:
    path = closed / FOLDER / LEADER_EPOCHS.file_name
    wrong = [EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in entries]
    path.write_bytes(encode(LEADER_EPOCHS, wrong))
    found = only(closed)
    assert (found.kind, found.severity) == (Kind.EPOCHS_WRONG, Severity.DAMAGE)
    check_unnoticed(closed, Kind.EPOCHS_WRONG)


def test_wrong_leader_epochs_above_the_recovery_point_are_rebuilt(killed: Path) -> None:
    path = killed / FOLDER / LEADER_EPOCHS.file_name
    entries = [(0, 0), (1, 200), (2, 450)]
    wrong = [EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in entries]
    path.write_bytes(encode(LEADER_EPOCHS, wrong))
    found = only(killed)
    assert (found.kind, found.severity) == (Kind.EPOCHS_WRONG, Severity.MENDS)
    check_mends(killed)
    check_sound(killed)


def test_an_epoch_that_has_written_nothing_yet_is_fine(closed: Path) -> None:
    path = closed / FOLDER / LEADER_EPOCHS.file_name
    entries = [*decode(LEADER_EPOCHS, path.read_bytes())]
    entries.append(EpochEntry(LeaderEpoch(9), Offset(RECORDS)))
    path.write_bytes(encode(LEADER_EPOCHS, entries))
    check_sound(closed)


def test_log_start_above_the_end(killed: Path) -> None:
    path = killed / LOG_STARTS.file_name
    path.write_bytes(encode(LOG_STARTS, {PARTITION: Offset(RECORDS + 100)}))
    found = only(killed)
    assert (found.kind, found.recovery.action) == (Kind.LOG_START_AHEAD, Action.REMOVE)
    check_mends(killed, log_end=RECORDS + 100)


def test_clean_marker_with_a_wrong_end(closed: Path) -> None:
    path = closed / CLEAN_SHUTDOWN.file_name
    marker = decode(CLEAN_SHUTDOWN, path.read_bytes())
    entry = marker.partitions[PARTITION]._replace(log_end=Offset(RECORDS + 3))
    path.write_bytes(encode(CLEAN_SHUTDOWN, CleanShutdown(marker.boot_id, {PARTITION: entry})))
    found = only(closed)
    assert found.kind is Kind.CLEAN_MARKER_WRONG
    manager, _ = log_folders.reopen(closed)
    is_noticed = manager.logs[PARTITION].log_end == RECORDS
    assert found.recovery.action is (Action.IGNORE if is_noticed else Action.NOTHING)
    log_folders.abandon(manager)


def test_clean_marker_that_does_not_fit(closed: Path) -> None:
    last = segment_paths(closed)[-1]
    position, header = batches_of(last)[-1]
    resize(last, position)
    kinds = {each.kind: each for each in findings_of(closed)}
    found = kinds[Kind.CLEAN_MARKER_WRONG]
    # All of it was durable: the end that is missing is refused.
    assert header.next_offset == RECORDS
    check_refused(closed, kinds[Kind.RECOVERY_POINT_AHEAD])
    assert found.severity is Severity.DAMAGE


def test_failed_sync(killed: Path) -> None:
    (killed / FOLDER / "sync-failed").write_bytes(encode_marker(FLUSHED + 50))
    found = only(killed)
    assert found.kind is Kind.SYNC_FAILED
    assert (found.recovery.first_lost, found.recovery.last_lost) == (FLUSHED + 50, RECORDS - 1)
    check_cut(killed, found, log_end=FLUSHED + 50)


@pytest.mark.parametrize(
    "name",
    ["00000000000000000100.index.tmp", f"{0:020d}.{100:020d}.cleaned", f"{0:020d}.log.removed"],
)
def test_leftovers_of_a_crash(killed: Path, name: str) -> None:
    path = killed / FOLDER / name
    path.write_bytes(b"half")
    found = only(killed)
    assert (found.kind, found.path) == (Kind.LEFTOVER, str(path))
    assert (found.severity, found.recovery.action) == (Severity.MENDS, Action.REMOVE)
    check_mends(killed)
    assert not path.exists()
    check_sound(killed)


def test_unfinished_compaction(killed: Path) -> None:
    first, second, third, *_ = segment_paths(killed)
    swap = first.with_name(f"{int(first.stem):020d}.{int(third.stem):020d}.swap")
    swap.write_bytes(first.read_bytes() + second.read_bytes())
    for suffix in (".index", ".timeindex", ".log"):
        second.with_suffix(suffix).unlink()
    content = swap.read_bytes()
    found = only(killed)
    assert (found.kind, found.path) == (Kind.UNFINISHED_SWAP, str(swap))
    assert (found.severity, found.recovery.action) == (Severity.MENDS, Action.FINISH)
    check_mends(killed)
    assert first.read_bytes() == content
    assert not swap.exists()


def test_damage_in_an_unfinished_compaction(killed: Path) -> None:
    first, second, *_ = segment_paths(killed)
    swap = first.with_name(f"{int(first.stem):020d}.{int(second.stem):020d}.swap")
    swap.write_bytes(first.read_bytes())
    position, _ = batches_of(first)[2]
    flip(swap, position + 300)
    kinds = {each.kind: each for each in findings_of(killed)}
    assert set(kinds) == {Kind.UNFINISHED_SWAP, Kind.CORRUPT_BATCH}
    assert kinds[Kind.CORRUPT_BATCH].path == str(swap)
    assert kinds[Kind.CORRUPT_BATCH].severity is Severity.DAMAGE


def test_what_moves_is_not_reported(killed: Path) -> None:
    """A torn tail that is whole when it is looked at again was an append under way."""
    segments = segment_paths(killed)
    last = segments[-1]
    position, _ = batches_of(last)[-1]
    whole = last.read_bytes()
    resize(last, position + 100)
    temporary = killed / FOLDER / "leader-epoch-checkpoint.tmp"
    temporary.write_bytes(b"half")
    scanned: list[int] = []

    def finish_append(size_bytes: int) -> None:
        scanned.append(size_bytes)
        if len(scanned) == len(segments):
            last.write_bytes(whole)
            temporary.unlink()

    folder, partition = verify(
        SourceFiles(), str(killed), now_ms=TIME_MS, in_use=True, progress=finish_append
    )
    assert folder.findings == ()
    assert partition.findings == ()


def test_what_does_not_move_is_reported_though_the_folder_is_in_use(killed: Path) -> None:
    last = segment_paths(killed)[-1]
    resize(last, last.stat().st_size - 10)
    _, partition = verify(SourceFiles(), str(killed), now_ms=TIME_MS, in_use=True)
    assert [each.kind for each in partition.findings] == [Kind.TORN_TAIL]


@pytest.mark.parametrize(
    "name", [f"{0:020d}.log", "leader-epoch-checkpoint", f"{RECORDS:020d}.snapshot", "sync-failed"]
)
def test_a_file_that_cannot_be_read(killed: Path, name: str) -> None:
    """A folder stands in for a disk that gives an error: root may read everything else."""
    path = killed / FOLDER / name
    path.unlink(missing_ok=True)
    path.mkdir()
    found = next(each for each in findings_of(killed) if each.kind is Kind.UNREADABLE_FILE)
    assert (found.path, found.severity) == (str(path), Severity.DAMAGE)
    assert "not a regular file" in found.what


HUGE_BYTES = 1 << 40
"""More than fits into memory; on the disk it takes nothing, being a hole."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{0:020d}.index", Kind.INDEX_CORRUPT),
        (f"{0:020d}.timeindex", Kind.TIME_INDEX_CORRUPT),
        (f"{RECORDS:020d}.snapshot", Kind.SNAPSHOT_CORRUPT),
        ("leader-epoch-checkpoint", Kind.EPOCHS_CORRUPT),
        ("partition.metadata", Kind.CHECKPOINT_CORRUPT),
        ("sync-failed", Kind.SYNC_FAILED),
    ],
)
def test_a_file_larger_than_it_can_be_is_not_read(closed: Path, name: str, kind: Kind) -> None:
    path = closed / FOLDER / name
    path.touch()
    resize(path, HUGE_BYTES)
    _, partition = verify(SourceFiles(), str(closed), now_ms=TIME_MS)
    assert [each.kind for each in partition.findings] == [kind]


@pytest.mark.parametrize("marked", [True, False])
def test_f43_l3_a_first_segment_that_is_gone(closed: Path, marked: bool) -> None:
    """The log start says where the log begins, be the folder closed in order or not."""
    if not marked:
        (closed / CLEAN_SHUTDOWN.file_name).unlink()
    first, second = segment_paths(closed)[:2]
    for path in (closed / FOLDER).glob(f"{first.stem}.*"):
        path.unlink()
    _, partition = verify(SourceFiles(), str(closed), now_ms=TIME_MS)
    (found,) = (each for each in partition.findings if each.severity is Severity.DAMAGE)
    assert (found.kind, found.path) == (Kind.OFFSET_GAP, str(second))
    assert (found.severity, found.recovery.action) == (Severity.DAMAGE, Action.REFUSE)
    assert f"offsets 0 to {int(second.stem) - 1}" in found.what
    manager, report = log_folders.reopen(closed)
    assert isinstance(report.damaged[PARTITION], DamagedLog)
    assert PARTITION not in manager.logs
    manager.repair(PARTITION, refilled(manager, PARTITION), now_ms=TIME_MS)
    assert (manager.logs[PARTITION].log_start, manager.logs[PARTITION].log_end) == (0, 0)
    log_folders.abandon(manager)


def test_a_name_that_only_looks_like_a_compaction(closed: Path) -> None:
    (closed / FOLDER / "5.7.swap").write_bytes(b"x")
    found = only(closed)
    assert (found.kind, found.severity) == (Kind.STRAY_FILE, Severity.NOTE)
