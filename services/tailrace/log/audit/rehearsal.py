"""What would happen if a broker opened this folder now? Found out by opening it, in memory.

The real code of `log.manager` and `log.recovery` runs on an `OverlayFiles`, so what is foretold
here cannot differ from what it does. Nothing is written, and the lock of the folder is not taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tailrace.config import LogConfig
from tailrace.errors import CorruptCheckpoint, DamagedLog, TailraceError
from tailrace.log.audit.overlay import Change, OverlayFiles, ReadOnlyFiles
from tailrace.log.checkpoints import META_PROPERTIES, CleanPartition, MetaProperties
from tailrace.log.data_folder import DataFolder
from tailrace.log.facts import NO_FACTS, LogFacts
from tailrace.log.file_cache import FileCache
from tailrace.log.log import PartitionLog
from tailrace.log.recovery import OpenReport, open_log
from tailrace.log.report import ManagerReport
from tailrace.log.segment import IndexCache, Storage
from tailrace.model import LogStartCause, TopicPartition

_OPEN_FILES_MAX: Final = 16
_INDEX_CACHE_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FolderRehearsal:
    """How the data folder itself would open; `error` is why it would not."""

    error: TailraceError | OSError | None
    report: ManagerReport
    meta: MetaProperties | None
    recovery_points: Mapping[TopicPartition, int]
    log_starts: Mapping[TopicPartition, int]
    clean: Mapping[TopicPartition, CleanPartition] | None
    changes: Mapping[str, Change]
    # What is known of each log besides, and logs of which nothing else is there.
    facts: Mapping[TopicPartition, LogFacts]
    missing: Sequence[TopicPartition]
    has_causes: bool


@dataclass(frozen=True, slots=True)
class LogRehearsal:
    """How the log of one partition would open: either `error` or `log` and `report` are there."""

    recovery_point: int
    changes: Mapping[str, Change]
    error: TailraceError | OSError | None = None
    log: PartitionLog | None = None
    report: OpenReport | None = None

    @property
    def refused_from(self) -> int | None:
        """From which offset on the log is damaged, so that it stays closed until repaired."""
        return self.error.offset if isinstance(self.error, DamagedLog) else None


def rehearse_folder(files: ReadOnlyFiles, path: str) -> FolderRehearsal:
    """Open a data folder as a broker does when it starts, without the logs in it."""
    overlay = OverlayFiles(files)
    folder, report = DataFolder(overlay, path), ManagerReport()
    error: TailraceError | OSError | None = None
    try:
        folder.open(report)
    except CorruptCheckpoint as refused:
        # Nothing but the identity of the folder is that important. The rest is worth a look too:
        # it is what counts when the file has been restored.
        error = refused
        overlay.remove(f"{path}/{META_PROPERTIES.file_name}")
        folder.open(report)
    return FolderRehearsal(
        error=error,
        report=report,
        meta=folder.meta,
        recovery_points=dict(folder.recovery_points),
        log_starts=dict(folder.log_starts),
        facts={each: folder.facts(each) for each in folder.known()},
        missing=folder.missing(),
        has_causes=folder.has_causes,
        clean=dict(folder.clean.partitions) if folder.clean is not None else None,
        changes=overlay.changes(),
    )


@contextmanager
def rehearsed_log(
    files: ReadOnlyFiles,
    folder: str,
    partition: TopicPartition,
    *,
    recovery_point: int,
    log_start: int,
    clean: CleanPartition | None,
    now_ms: int,
    facts: LogFacts = NO_FACTS,
) -> Iterator[LogRehearsal]:
    """Open the log of one partition as a broker does when it starts; it is closed at the end."""
    overlay = OverlayFiles(files)
    cache = FileCache(overlay, open_files_max=_OPEN_FILES_MAX)
    error: TailraceError | OSError | None = None
    log: PartitionLog | None = None
    report: OpenReport | None = None
    try:
        log, report = open_log(
            Storage(overlay, cache, IndexCache(bytes_max=_INDEX_CACHE_BYTES)),
            folder,
            partition,
            config=LogConfig(),
            checkpoints=_NoCheckpoints(),
            recovery_point=recovery_point,
            log_start=log_start,
            clean=clean,
            now_ms=now_ms,
            facts=facts,
        )
    except (TailraceError, OSError) as failure:
        error = failure
    try:
        yield LogRehearsal(recovery_point, overlay.changes(), error, log, report)
    finally:
        cache.close()


class _NoCheckpoints:
    """Takes the offsets that a log wants stored: in a rehearsal nobody reads them again."""

    def lower_recovery_point(self, offset: int) -> None:
        """It would be stored."""

    def set_log_start(self, offset: int, cause: LogStartCause | None = None) -> None:
        """It would be stored."""
