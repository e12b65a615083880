"""The journal of deletions: what went from one data folder, when, and what proved that it may.

One file per data folder, `deletions`, a line of JSON with a checksum for each deletion, cut and
replica that was set aside. It holds the newest LINES_MAX lines of log starts that moved, and as
many of all else, and is replaced as a whole. It explains, it decides nothing: a line that cannot
be read is left out and counted. Deletions of whole replicas are stored before anything goes; cuts
of logs are stored with the next checkpoint. Enter at `DeletionJournal`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from threading import Lock
from typing import Any, Final

from tailrace.errors import is_no_room
from tailrace.log.checkpoints import write_atomically
from tailrace.log.evidence import Evidence
from tailrace.log.files import Files
from tailrace.model import TopicPartition
from tailrace.record.codec import crc32c

FILE_NAME: Final = "deletions"
# The newest that are kept of log starts, and of all else; what a line and so the file may have.
LINES_MAX: Final = 500
WHY_CHARACTERS_MAX: Final = 400
LINE_BYTES_MAX: Final = 4 << 10
FILE_BYTES_MAX: Final = 2 * LINES_MAX * LINE_BYTES_MAX

_CRC_CHARACTERS: Final = 8


class DeletionKind(StrEnum):
    """What went."""

    REPLICA = "replica"
    STRAY = "stray"
    SET_ASIDE = "set-aside"
    """Nothing went: the replica was put out of the way, and is kept."""
    LOG_START = "log-start"
    """Records below an offset: retention, or a request to delete them."""
    LOG_END = "log-end"
    """Records from an offset on."""
    REPAIR = "repair"
    """What of a damaged log could not be read; its leader fills it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """One line. Offsets are -1 where it is not about records."""

    at_ms: int
    partition: TopicPartition
    kind: DeletionKind
    topic_id: str = ""
    from_offset: int = -1
    to_offset: int = -1
    # The class of the evidence, its sentence, and its fields.
    evidence: str = ""
    why: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        kind: DeletionKind,
        partition: TopicPartition,
        evidence: Evidence,
        *,
        now_ms: int,
        topic_id: str = "",
        from_offset: int = -1,
        to_offset: int = -1,
    ) -> Deletion:
        """The line that tells of a deletion with its evidence."""
        return cls(
            at_ms=now_ms,
            partition=partition,
            kind=kind,
            topic_id=topic_id,
            from_offset=from_offset,
            to_offset=to_offset,
            evidence=type(evidence).__name__,
            why=str(evidence)[:WHY_CHARACTERS_MAX],
            details=asdict(evidence),
        )


class DeletionJournal:
    """The lines of one data folder. Several threads may note; one at a time stores."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._path = f"{folder}/{FILE_NAME}"
        self._mutex = Lock()
        # Retention is the rule: it must not push out what is rare. By whether it is a log start.
        self._lines: Mapping[bool, deque[tuple[Deletion, bytes]]] = {
            is_start: deque(maxlen=LINES_MAX) for is_start in (False, True)
        }
        self._noted = 0
        self._stored = 0
        # Lines that could not be read when the journal was opened.
        self.unreadable = 0

    def open(self) -> None:
        """Read what is there."""
        try:
            if self._files.size(self._path) > FILE_BYTES_MAX:
                self.unreadable = 1
                return
            data = self._files.read(self._path)
        except FileNotFoundError:
            return
        read = [_decoded(line) for line in data.splitlines()]
        self.unreadable = read.count(None)
        self._add(each for each in read if each is not None)

    def note(self, *entries: Deletion) -> None:
        """Remember; `store` makes it last."""
        with self._mutex:
            self._add(entries)
            self._noted += len(entries)

    def store(self) -> None:
        """Write what was noted since; durable on return.

        A disk without room does not keep a deletion from making some: the lines wait.
        """
        with self._mutex:
            if self._noted == self._stored:
                return
            noted = self._noted
            data = b"".join(line for lines in self._lines.values() for _, line in lines)
            try:
                write_atomically(self._files, self._path, data, durable=True)
            except OSError as error:
                if not is_no_room(error):
                    raise
                return
            self._stored = noted

    def entries(self, partitions: Iterable[TopicPartition] = ()) -> list[Deletion]:
        """Those of some partitions, all when none is named; the oldest first."""
        wanted = set(partitions)
        with self._mutex:
            all_of_them = [each for lines in self._lines.values() for each, _ in lines]
        found = [each for each in all_of_them if not wanted or each.partition in wanted]
        return sorted(found, key=lambda each: each.at_ms)

    def _add(self, entries: Iterable[Deletion]) -> None:
        for each in entries:
            self._lines[each.kind is DeletionKind.LOG_START].append((each, _encoded(each)))


def _encoded(entry: Deletion) -> bytes:
    fields = {**asdict(entry), "partition": str(entry.partition)}
    body = _body(fields)
    if len(body) > LINE_BYTES_MAX - _CRC_CHARACTERS - 2:
        # The sentence stays; an assignment of very many replicas is what is left out.
        body = _body({**fields, "details": {}})
    return b"%08x %s\n" % (crc32c(body), body)


def _body(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def _decoded(line: bytes) -> Deletion | None:
    crc, _, body = line.partition(b" ")
    try:
        if len(crc) != _CRC_CHARACTERS or int(crc, 16) != crc32c(body):
            return None
        fields = json.loads(body)
        partition = TopicPartition.parse(fields.pop("partition"))
        if partition is None:
            return None
        kind = DeletionKind(fields.pop("kind"))
        return Deletion(partition=partition, kind=kind, **fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
