"""What opening the folder does about a symptom, read off a rehearsal of the opening.

Pure reading: the rehearsed log and the changes it made in memory say it all. Invariant: nothing is
foretold that the rehearsal did not do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tailrace.errors import TailraceError
from tailrace.log.audit.findings import (
    Action,
    Finding,
    Kind,
    Recovery,
    Severity,
    Symptom,
)
from tailrace.log.audit.overlay import ChangeKind
from tailrace.log.audit.rehearsal import LogRehearsal
from tailrace.log.log import PartitionLog

# Left alone by an opening and yet no damage.
_HARMLESS: Final = {Kind.STRAY_FILE, Kind.OFFSET_AHEAD, Kind.NOT_CLOSED}


def foretell(symptom: Symptom, rehearsal: LogRehearsal, *, known_end: int) -> Finding:
    """Add to a symptom what becomes of it; `known_end` is where the last whole batch ends."""
    return as_finding(symptom, _REMEDIES[symptom.kind](symptom, rehearsal, known_end))


def as_finding(symptom: Symptom, recovery: Recovery) -> Finding:
    """Add to a symptom what is known to become of it, and how much it matters."""
    if recovery.action is Action.REFUSE:
        severity = Severity.DAMAGE
    elif recovery.action is Action.NOTHING:
        severity = Severity.NOTE if symptom.kind in _HARMLESS else Severity.DAMAGE
    else:
        severity = Severity.MENDS
    return Finding(
        kind=symptom.kind,
        severity=severity,
        path=symptom.path,
        position=symptom.position,
        what=symptom.what,
        recovery=recovery,
    )


def _of_batches(symptom: Symptom, rehearsal: LogRehearsal, known_end: int) -> Recovery:
    log = rehearsal.log
    if log is None:
        return _of_error(symptom, rehearsal)
    if log.log_end <= symptom.offset:
        return _cut(rehearsal, log, known_end)
    change = rehearsal.changes.get(symptom.path)
    if change is not None and change.kind is ChangeKind.REMOVED and symptom.offset < log.log_start:
        return _of_log_start(symptom, rehearsal, known_end)
    return Recovery(
        action=Action.NOTHING,
        text="not noticed: opening trusts what is below the recovery point; readers will meet "
        "it, so repair this replica from its leader",
    )


def _of_offset_ahead(symptom: Symptom, rehearsal: LogRehearsal, known_end: int) -> Recovery:
    if rehearsal.error is not None:
        return Recovery(action=Action.REFUSE, text=f"opening fails: {rehearsal.error}")
    return _of_nothing(symptom, rehearsal, known_end)


def _of_error(symptom: Symptom, rehearsal: LogRehearsal) -> Recovery:
    refused_from = rehearsal.refused_from
    if refused_from is None:
        return Recovery(action=Action.REFUSE, text=f"opening fails: {rehearsal.error}")
    if symptom.offset >= refused_from:
        return Recovery(
            action=Action.REFUSE,
            text=f"refuses to open the log, because what was durable is damaged; the replica is "
            f"repaired from its leader from offset {refused_from:,} on",
            first_lost=refused_from,
            last_lost=max(rehearsal.recovery_point - 1, refused_from),
        )
    return Recovery(
        action=Action.NOTHING,
        text=f"not noticed: the log is refused from offset {refused_from:,} on only; remove the "
        "folder and let the replica copy all from its leader",
    )


def _cut(rehearsal: LogRehearsal, log: PartitionLog, known_end: int) -> Recovery:
    last, log_end = log.segments[-1], log.log_end
    if last.path in rehearsal.changes:
        text = f"cuts {_name(last.path)} at byte {last.size:,}"
    else:
        text = f"removes the segments after {_name(last.path)}"
    if log_end >= known_end:
        return Recovery(
            action=Action.CUT, text=f"{text}; no whole batch is lost", at_byte=last.size
        )
    return Recovery(
        action=Action.CUT,
        text=f"{text}, losing offsets {log_end:,} to {known_end - 1:,}, none of which was flushed",
        at_byte=last.size,
        first_lost=log_end,
        last_lost=known_end - 1,
    )


def _of_index(symptom: Symptom, rehearsal: LogRehearsal, known_end: int) -> Recovery:
    if symptom.path in rehearsal.changes:
        return Recovery(action=Action.REBUILD, text="rebuilt from the batches")
    if symptom.is_mended is None:
        return Recovery(
            action=Action.REBUILD, text="not used: rebuilt from the batches when it is needed"
        )
    if _is_mended(symptom, rehearsal):
        return Recovery(action=Action.REBUILD, text="rebuilt from the batches in memory")
    return Recovery(
        action=Action.NOTHING,
        text="not noticed: look-ups through it go wrong; remove the file while no broker runs, "
        "and it is rebuilt from the batches",
    )


def _of_derived(symptom: Symptom, rehearsal: LogRehearsal, known_end: int) -> Recovery:
    """Leader epochs: the batches tell the same."""
    if rehearsal.error is not None:
        return Recovery(
            action=Action.REFUSE, text="the log is not opened, for another reason (see there)"
        )
    if _is_mended(symptom, rehearsal):
        return Recovery(action=Action.REBUILD, text="rebuilt from the batches")
    return Recovery(
        action=Action.NOTHING,
        text="not noticed: replicas would disagree about where epochs end; remove the file while "
        "no broker runs, and it is rebuilt from the batches",
    )


def _of_snapshot(symptom: Symptom, rehearsal: LogRehearsal, known_end: int) -> Recovery:
    change = rehearsal.changes.get(symptom.path)
    if change is not None and change.kind is ChangeKind.REMOVED:
        return Recovery(action=Action.REMOVE, text="removed; the batches tell the same")
    if symptom.kind is Kind.SNAPSHOT_CORRUPT or symptom.offset >= known_end:
        return Recovery(
            action=Action.IGNORE, text="not used: an older one and the batches tell the same"
        )
    return Recovery(
        action=Action.NOTHING,
        text="not noticed: retries of these producers may be judged wrongly; remove the file "
        "while no broker runs",
    )


def _of_leftover(symptom: Symptom, rehearsal: LogRehearsal, known_end: int) -> Recovery:
    if symptom.path not in rehearsal.changes:
        return Recovery(action=Action.NOTHING, text="nothing: nobody reads it")
    if symptom.kind is Kind.UNFINISHED_SWAP:
        return Recovery(
            action=Action.FINISH, text="finishes the compaction: it replaces the old segments"
        )
    return Recovery(action=Action.REMOVE, text="removed")


def _of_marker(symptom: Symptom, rehearsal: LogRehearsal, known_end: int) -> Recovery:
    """The clean-shutdown marker and the offsets in checkpoints that the log does not reach."""
    if rehearsal.error is not None:
        return _of_error(symptom, rehearsal)
    if symptom.is_mended is not None and not _is_mended(symptom, rehearsal):
        return Recovery(
            action=Action.NOTHING,
            text="not noticed: the log would end at a wrong offset; remove the marker while no "
            "broker runs, and the log is scanned",
        )
    report = rehearsal.report
    if report is None or report.clean:
        return Recovery(
            action=Action.IGNORE, text="not used: the clean-shutdown marker says where it ends"
        )
    return Recovery(
        action=Action.IGNORE, text=f"not used: scans {report.scanned_bytes:,} bytes instead"
    )


def _of_failed_sync(symptom: Symptom, rehearsal: LogRehearsal, known_end: int) -> Recovery:
    log = rehearsal.log
    if log is None:
        return _of_error(symptom, rehearsal)
    if log.log_end < known_end:
        return _cut(rehearsal, log, known_end)
    return Recovery(action=Action.REMOVE, text="removed: nothing stands above that offset")


def _of_log_start(symptom: Symptom, rehearsal: LogRehearsal, known_end: int) -> Recovery:
    if rehearsal.log is None:
        return _of_error(symptom, rehearsal)
    return Recovery(
        action=Action.REMOVE,
        text=f"removes all segments and goes on, empty, at offset {rehearsal.log.log_start:,}",
    )


def _of_nothing(symptom: Symptom, rehearsal: LogRehearsal, known_end: int) -> Recovery:
    return Recovery(action=Action.NOTHING, text="nothing")


def _of_metadata(symptom: Symptom, rehearsal: LogRehearsal, known_end: int) -> Recovery:
    if symptom.is_mended is not None:
        return Recovery(action=Action.REBUILD, text="written anew from its second copy")
    return Recovery(
        action=Action.REFUSE,
        text="refuses to open the log: which topic the folder belongs to cannot be said",
    )


def _of_no_log(symptom: Symptom, rehearsal: LogRehearsal, known_end: int) -> Recovery:
    return Recovery(action=Action.REMOVE, text="removes the folder: nobody can know of it yet")


def _of_unreadable(symptom: Symptom, rehearsal: LogRehearsal, known_end: int) -> Recovery:
    return Recovery(action=Action.REFUSE, text="opening fails in the same way, if it reads it")


def _is_mended(symptom: Symptom, rehearsal: LogRehearsal) -> bool:
    if symptom.is_mended is None or rehearsal.log is None:
        return False
    try:
        return symptom.is_mended(rehearsal.log)
    except (TailraceError, OSError):
        # What the index would be rebuilt from is damaged itself.
        return False


def _name(path: str) -> str:
    return path.rpartition("/")[2]


_REMEDIES: Final[dict[Kind, Callable[[Symptom, LogRehearsal, int], Recovery]]] = {
    Kind.TORN_TAIL: _of_batches,
    Kind.CORRUPT_BATCH: _of_batches,
    Kind.UNREADABLE_BODY: _of_batches,
    Kind.OFFSET_GAP: _of_batches,
    Kind.OFFSET_OVERLAP: _of_batches,
    Kind.EPOCH_FALLS: _of_batches,
    Kind.MISNAMED_SEGMENT: _of_batches,
    Kind.INDEX_MISSING: _of_index,
    Kind.INDEX_CORRUPT: _of_index,
    Kind.INDEX_WRONG: _of_index,
    Kind.INDEX_STALE: _of_index,
    Kind.TIME_INDEX_MISSING: _of_index,
    Kind.TIME_INDEX_CORRUPT: _of_index,
    Kind.TIME_INDEX_WRONG: _of_index,
    Kind.TIME_INDEX_STALE: _of_index,
    Kind.SNAPSHOT_CORRUPT: _of_snapshot,
    Kind.SNAPSHOT_WRONG: _of_snapshot,
    Kind.CHECKPOINT_CORRUPT: _of_metadata,
    Kind.METADATA_MISSING: _of_metadata,
    Kind.FOLDER_MISSING: _of_no_log,
    Kind.NEVER_FINISHED: _of_no_log,
    Kind.EPOCHS_MISSING: _of_derived,
    Kind.EPOCHS_CORRUPT: _of_derived,
    Kind.EPOCHS_WRONG: _of_derived,
    Kind.RECOVERY_POINT_AHEAD: _of_marker,
    Kind.LOG_START_AHEAD: _of_log_start,
    Kind.OFFSET_AHEAD: _of_offset_ahead,
    Kind.CLEAN_MARKER_WRONG: _of_marker,
    Kind.NOT_CLOSED: _of_nothing,
    Kind.SYNC_FAILED: _of_failed_sync,
    Kind.LEFTOVER: _of_leftover,
    Kind.UNFINISHED_SWAP: _of_leftover,
    Kind.UNFINISHED_DELETE: _of_leftover,
    Kind.STRAY_FILE: _of_nothing,
    Kind.UNREADABLE_FILE: _of_unreadable,
}
