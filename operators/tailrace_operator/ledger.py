"""What a probe wrote, what was acknowledged and what was read: the figures of a drill. Pure.

A record is a number. Waits are from when it was handed over until its fate was known; what is
still open counts up to now, so a cluster that never answers again is not taken for a quick one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

RECORDS_MAX: Final = 500_000
PROBLEMS_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How a probe fared; `lost` and `duplicated` are known after the count alone."""

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    read: int = 0
    repeated: int = 0
    unavailable_ms: int = 0
    unread_ms: int = 0
    lost: int = 0
    duplicated: int = 0
    misplaced: int = 0
    counted: bool = False
    problems: tuple[str, ...] = ()


class Ledger:
    """Everything that happened to the records of one probe."""

    def __init__(self) -> None:
        self._sent_ms: list[int] = []
        self._open: dict[int, int] = {}
        self._acked: dict[int, tuple[int, int]] = {}
        self._acked_ms: dict[int, int] = {}
        self._waits: list[tuple[int, int]] = []
        self._failed = 0
        self._read: Counter[int] = Counter()
        self._read_waits: list[tuple[int, int]] = []
        self._found: Counter[int] = Counter()
        self._misplaced = 0
        self._counted = False
        self._problems: list[str] = []

    @property
    def is_full(self) -> bool:
        return len(self._sent_ms) >= RECORDS_MAX

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def behind(self) -> int:
        """Acknowledged, and not read yet."""
        return len(self._acked_ms)

    def send(self, now_ms: int) -> int:
        """A record is handed over; gives its number."""
        number = len(self._sent_ms)
        self._sent_ms.append(now_ms)
        self._open[number] = now_ms
        return number

    def acknowledged(self, number: int, *, partition: int, offset: int, now_ms: int) -> None:
        self._ended(number, now_ms)
        self._acked[number] = (partition, offset)
        if number not in self._read:
            self._acked_ms[number] = now_ms

    def failed(self, number: int, why: str, now_ms: int) -> None:
        self._ended(number, now_ms)
        self._failed += 1
        self.problem(why)

    def read(self, number: int, now_ms: int) -> None:
        """The group's reader was given it."""
        self._read[number] += 1
        since = self._acked_ms.pop(number, None)
        if since is not None:
            self._read_waits.append((now_ms, now_ms - since))

    def found(self, number: int, *, partition: int, offset: int) -> None:
        """The count at the end came upon it."""
        self._found[number] += 1
        told = self._acked.get(number)
        self._misplaced += told is not None and told != (partition, offset)

    def counted(self) -> None:
        self._counted = True

    def problem(self, text: str) -> None:
        if len(self._problems) < PROBLEMS_MAX and text not in self._problems:
            self._problems.append(text)

    def figures(self, *, since_ms: int, now_ms: int) -> Figures:
        """What is known now; waits that were over before `since_ms` are left out."""
        return Figures(
            sent=len(self._sent_ms),
            acknowledged=len(self._acked),
            failed=self._failed,
            read=len(self._read),
            repeated=sum(count - 1 for count in self._read.values()),
            unavailable_ms=_longest(self._waits, self._open, since_ms, now_ms),
            unread_ms=_longest(self._read_waits, self._acked_ms, since_ms, now_ms),
            lost=sum(each not in self._found for each in self._acked) if self._counted else 0,
            duplicated=sum(count - 1 for count in self._found.values()),
            misplaced=self._misplaced,
            counted=self._counted,
            problems=tuple(self._problems),
        )

    def _ended(self, number: int, now_ms: int) -> None:
        self._waits.append((now_ms, now_ms - self._open.pop(number)))


def _longest(
    ended: list[tuple[int, int]], still: dict[int, int], since_ms: int, now_ms: int
) -> int:
    over = max((ms for at_ms, ms in ended if at_ms >= since_ms), default=0)
    return max(over, max((now_ms - began for began in still.values()), default=0))
