"""A compaction that is given up, at whatever moment, takes nothing with it that is the log's."""

from __future__ import annotations

import pytest

from simulation.compaction_model import (
    CONFIG,
    begin,
    check_structure,
    closed,
    keyed,
    records_of,
)
from simulation.log_bench import NOW_MS, PARTITION, LogBench, append
from simulation.storage import SimFiles
from tailrace.config import FolderConfig
from tailrace.errors import StorageError
from tailrace.log.cleaning.compaction import end_compaction, fail_compaction
from tailrace.log.data_folder import Identity
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.log.swap import CLEANED_SUFFIX
from tailrace.model import BrokerId, TopicId

KEYS = 30
COUNT = 40
ROWS = 20


@pytest.fixture
def bench(disk: SimFiles) -> LogBench:
    return LogBench(disk, CONFIG)


def filled(bench: LogBench) -> PartitionLog:
    """Several segments, with some records that are superseded."""
    log = bench.open()
    for number in range(COUNT):
        append(log, keyed(*((f"{number % KEYS}-{row}", "x" * 50) for row in range(ROWS))))
    return closed(log)


@pytest.mark.parametrize("files", [0, 1])
def test_a_pass_that_is_not_through_counts_for_nothing(bench: LogBench, files: int) -> None:
    """It would tell that all was compacted to where its map of keys reaches."""
    log = filled(bench)
    before = records_of(log)
    work = begin(log, chunk_bytes=1)
    assert work is not None
    assert not work.advance(1)
    while work.report().cleaned_to < COUNT * ROWS or len(work.outputs) < files:
        assert not work.advance(1)
    assert end_compaction(log, work) is None
    assert bench.names(CLEANED_SUFFIX) == []
    assert records_of(log) == before


@pytest.mark.parametrize("is_error", [False, True])
def test_what_was_swapped_in_is_not_thrown_away(bench: LogBench, is_error: bool) -> None:
    """Whoever cannot store the cleaner checkpoint, or is stopped just then, gives the work up."""
    log = filled(bench)
    work = begin(log)
    assert work is not None
    work.run()
    assert end_compaction(log, work) is not None
    wanted = records_of(log)
    if is_error:
        fail_compaction(log, work, OSError(28, "No space left on device"))
    else:
        work.discard()
    assert records_of(log) == wanted
    check_structure(log)
    assert records_of(bench.open()) == wanted


def test_a_swap_that_fails_leaves_those_before_it(
    bench: LogBench, disk: SimFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(bench)
    work = begin(log)
    assert work is not None
    work.run()
    assert len(work.outputs) > 1
    rename, renamed = disk.rename, list[str]()

    def refusing(source: str, target: str) -> None:
        # The first output goes in by two renames; the second one does not.
        if len(renamed) == 2:
            raise OSError(5, "Input/output error")
        renamed.append(target)
        rename(source, target)

    monkeypatch.setattr(disk, "rename", refusing)
    with pytest.raises(StorageError) as caught:
        end_compaction(log, work)
    fail_compaction(log, work, caught.value)
    monkeypatch.undo()
    log = bench.open()
    newest = {each.key: (each.offset, each.value) for each in records_of(log)}
    assert len(newest) == KEYS * ROWS
    assert min(offset for offset, _ in newest.values()) == (COUNT - KEYS) * ROWS
    check_structure(log)


def test_the_checkpoint_is_never_above_what_recovery_has_cut(disk: SimFiles) -> None:
    """What is appended there next was not compacted, whatever was there before."""

    def opened() -> LogManager:
        identity = Identity("cluster", BrokerId(1), "incarnation")
        manager = LogManager(disk, FolderConfig(log_dirs=("/data",)), identity=identity)
        manager.open(now_ms=NOW_MS)
        return manager

    manager = opened()
    log = manager.create(PARTITION, TopicId("topic"))
    for number in range(4):
        append(log, keyed((f"{number}", "x")))
    manager.set_cleaned(PARTITION, 4)
    # Damage above the stored recovery point, which lags behind: the log is cut there.
    disk.flip_bits(log.segments[-1].path, log.segments[-1].size - 1)
    disk.crash(power_loss=False)
    manager = opened()
    assert manager.logs[PARTITION].log_end == 3
    assert manager.cleaned_to(PARTITION) == 3
