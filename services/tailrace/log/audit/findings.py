"""What a verification finds in a log folder, and what opening the folder will do about it.

Values only. `Symptom` is what the bytes show; `Finding` adds what a rehearsed opening said of it.
The texts of the enums are part of the output of `tailrace log verify` and never change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tailrace.log.log import PartitionLog

NO_OFFSET: Final = -1
SAME_FINDINGS_PER_FILE_MAX: Final = 20
"""Of one kind in one file; the rest is counted. A file of noise must not fill the memory."""


class Kind(StrEnum):
    """Every kind of thing that can be wrong, or worth a word."""

    TORN_TAIL = "torn-tail"
    CORRUPT_BATCH = "corrupt-batch"
    UNREADABLE_BODY = "unreadable-body"
    OFFSET_GAP = "offset-gap"
    OFFSET_OVERLAP = "offset-overlap"
    EPOCH_FALLS = "epoch-falls"
    MISNAMED_SEGMENT = "misnamed-segment"
    INDEX_MISSING = "index-missing"
    INDEX_CORRUPT = "index-corrupt"
    INDEX_WRONG = "index-wrong"
    INDEX_STALE = "index-stale"
    TIME_INDEX_MISSING = "timeindex-missing"
    TIME_INDEX_CORRUPT = "timeindex-corrupt"
    TIME_INDEX_WRONG = "timeindex-wrong"
    TIME_INDEX_STALE = "timeindex-stale"
    SNAPSHOT_CORRUPT = "snapshot-corrupt"
    SNAPSHOT_WRONG = "snapshot-wrong"
    CHECKPOINT_CORRUPT = "checkpoint-corrupt"
    METADATA_MISSING = "metadata-missing"
    FOLDER_MISSING = "folder-missing"
    NEVER_FINISHED = "never-finished"
    EPOCHS_MISSING = "epochs-missing"
    EPOCHS_CORRUPT = "epochs-corrupt"
    EPOCHS_WRONG = "epochs-wrong"
    RECOVERY_POINT_AHEAD = "recovery-point-ahead"
    LOG_START_AHEAD = "log-start-ahead"
    OFFSET_AHEAD = "offset-ahead"
    CLEAN_MARKER_WRONG = "clean-marker-wrong"
    NOT_CLOSED = "not-closed"
    SYNC_FAILED = "sync-failed"
    LEFTOVER = "leftover"
    UNFINISHED_SWAP = "unfinished-swap"
    UNFINISHED_DELETE = "unfinished-delete"
    STRAY_FILE = "stray-file"
    UNREADABLE_FILE = "unreadable-file"


class Severity(StrEnum):
    """How much it matters."""

    NOTE = "note"
    """Worth knowing; nothing is lost and nothing has to be done."""
    MENDS = "mends"
    """Opening the folder mends it; nothing that was durable is lost."""
    DAMAGE = "damage"
    """Something that was durable is gone or wrong, or opening does not notice what is wrong."""


class Action(StrEnum):
    """What opening the folder does about a finding."""

    NOTHING = "nothing"
    CUT = "cut"
    REBUILD = "rebuild"
    IGNORE = "ignore"
    REMOVE = "remove"
    FINISH = "finish"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What opening does; a cut says where and which offsets go with it (-1: none)."""

    action: Action
    text: str
    at_byte: int = NO_OFFSET
    first_lost: int = NO_OFFSET
    last_lost: int = NO_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """Something that is wrong with a file, wherever the file is looked at.

    `position` is the byte in the file, -1 where it is about the whole file. `offset` is the first
    offset concerned. `is_mended` looks at the log as opened and says whether it is right there.
    """

    kind: Kind
    path: str
    what: str
    position: int = -1
    offset: int = NO_OFFSET
    is_mended: Callable[[PartitionLog], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A symptom, how much it matters, and what opening the folder will do about it."""

    kind: Kind
    severity: Severity
    path: str
    position: int
    what: str
    recovery: Recovery


@dataclass(slots=True)
class Symptoms:
    """A list that keeps the first few of a kind in a file and counts the others."""

    found: list[Symptom] = field(default_factory=list)
    left_out: Counter[tuple[str, Kind]] = field(default_factory=Counter)
    _kept: Counter[tuple[str, Kind]] = field(default_factory=Counter)

    def add(self, symptom: Symptom) -> None:
        key = (symptom.path, symptom.kind)
        if self._kept[key] >= SAME_FINDINGS_PER_FILE_MAX:
            self.left_out[key] += 1
            return
        self._kept[key] += 1
        self.found.append(symptom)


def worst(findings: Iterable[Finding]) -> Severity:
    """The severity that matters most; a note when there are no findings at all."""
    order = list(Severity)
    return max((each.severity for each in findings), key=order.index, default=Severity.NOTE)
