"""Which of several operators acts: a Lease of Kubernetes, as its own controllers use it. Pure.

Clocks of two machines are never compared. Whoever stands by looks at whether the lease changes, by
its own clock; only one that has not changed for its whole duration is taken. The holder stops
acting well before others may take over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

DURATION_S: Final = 15
# A holder that could not renew for this long does nothing more, until it could.
ACT_WITHIN_MS: Final = 10_000
RENEW_EVERY_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Take:
    """Write us into the lease, unless it changed meanwhile."""

    transitions: int


@dataclass(frozen=True, slots=True)
class Stand:
    """Somebody else holds it."""

    holder: str


class Election:
    """What one operator knows of the lease."""

    def __init__(self, me: str) -> None:
        self.me = me
        self._seen: tuple[Any, ...] | None = None
        self._seen_ms = 0
        self._renewed_ms: int | None = None

    def is_mine(self, now_ms: int) -> bool:
        """Whether we may act."""
        return self._renewed_ms is not None and now_ms - self._renewed_ms < ACT_WITHIN_MS

    def look(self, lease: Mapping[str, Any], now_ms: int) -> Take | Stand:
        """What to do about the lease as it was just read; `lease` is its spec."""
        holder = str(lease.get("holderIdentity") or "")
        transitions = int(lease.get("leaseTransitions") or 0)
        record = (holder, lease.get("renewTime"), transitions)
        if record != self._seen:
            self._seen, self._seen_ms = record, now_ms
        if holder == self.me:
            return Take(transitions)
        duration_ms = 1000 * int(lease.get("leaseDurationSeconds") or DURATION_S)
        if not holder or now_ms - self._seen_ms >= duration_ms:
            return Take(transitions + 1)
        self._renewed_ms = None
        return Stand(holder)

    def taken(self, asked_ms: int) -> None:
        """It was written; our time runs from when we asked."""
        self._renewed_ms = asked_ms

    def lost(self) -> None:
        """Somebody else was quicker, or we give it up."""
        self._renewed_ms = None

    def spec(self, act: Take, now: str) -> dict[str, Any]:
        """The lease as it is to be written."""
        return {
            "holderIdentity": self.me,
            "leaseDurationSeconds": DURATION_S,
            "renewTime": now,
            "leaseTransitions": act.transitions,
        }
