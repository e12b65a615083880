"""What is known of one data folder's disk: room, speed, failure. Pure.

- Room. Below `min_free_bytes` the disk is *full*: leaders on it refuse records and want to be
  relieved. Followers use on the rest, down to the half of it; then it is *exhausted* and they stop,
  so that checkpoints and the like can always be written. It has room again a quarter above.
- Speed. One probe (a small write and its sync) at a time. SLOW_PROBES in a row that took `slow_ms`,
  or one that takes as long as all of them, make it *slow*: the broker wants to lead nothing. It is
  well again when all probes were quick for `recovery_ms`, so that a disk that is slow now and then
  does not send leaderships back and forth.
- Failure. For good, in this life of the broker.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Final

from tailrace.errors import errno_of

SLOW_PROBES: Final = 3

# What says that the device is gone, not that one file or one call is bad.
_FATAL: Final = {
    errno.EIO,
    errno.ENXIO,
    errno.ENODEV,
    errno.EROFS,
    errno.EUCLEAN,
    errno.EREMOTEIO,
    errno.ESTALE,
    errno.ENOMEDIUM,
}
# The same for the data folder itself: it was unmounted, moved away, or given to somebody else.
_GONE: Final = _FATAL | {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimits:
    """When a disk counts as full and as slow."""

    min_free_bytes: int
    slow_ms: int
    recovery_ms: int


class Disk:
    """See the module's description."""

    __slots__ = (
        "_good_since_ms",
        "_limits",
        "_slow_probes",
        "failure",
        "free_bytes",
        "is_exhausted",
        "is_full",
        "is_slow",
        "path",
        "total_bytes",
    )

    def __init__(self, path: str, limits: DiskLimits) -> None:
        self.path = path
        self.free_bytes = -1
        self.total_bytes = -1
        self.failure = ""
        self.is_full = False
        self.is_exhausted = False
        self.is_slow = False
        self._limits = limits
        self._slow_probes = 0
        self._good_since_ms: int | None = None

    @property
    def trouble(self) -> str:
        """What is wrong with it, for people; empty: nothing."""
        if self.failure:
            return f"failed: {self.failure}"
        parts = []
        if self.is_full:
            parts.append(
                f"full: {self.free_bytes} bytes are free, "
                f"log.dir.min.free.bytes={self._limits.min_free_bytes}"
            )
        if self.is_slow:
            parts.append(f"slow: syncs take disk.slow.ms={self._limits.slow_ms} or more")
        return "; ".join(parts)

    @property
    def is_unfit(self) -> bool:
        """Whether nothing should be led on it while another broker can."""
        return self.is_full or self.is_slow

    def measured(self, free_bytes: int, total_bytes: int) -> None:
        limit = self._limits.min_free_bytes
        self.free_bytes, self.total_bytes = free_bytes, total_bytes
        if free_bytes < limit:
            self.is_full = True
        elif free_bytes >= limit + limit // 4:
            self.is_full = False
        if free_bytes < limit // 2:
            self.is_exhausted = True
        elif free_bytes >= limit // 2 + limit // 8:
            self.is_exhausted = False

    def ran_out(self) -> None:
        """Somebody met ENOSPC before the next measurement could tell."""
        self.free_bytes = 0
        self.is_full = self.is_exhausted = True

    def failed(self, reason: str) -> bool:
        """It is gone; says whether that is news."""
        if self.failure:
            return False
        self.failure = reason
        return True

    def is_probing(self, took_ms: int) -> None:
        """A probe has taken so long and is not over."""
        if took_ms >= SLOW_PROBES * self._limits.slow_ms:
            self.is_slow = True
            self._good_since_ms = None

    def probed(self, took_ms: int, now_ms: int) -> None:
        """A probe has ended."""
        if took_ms >= self._limits.slow_ms:
            self._slow_probes += 1
            self._good_since_ms = None
            if self._slow_probes >= SLOW_PROBES:
                self.is_slow = True
            self.is_probing(took_ms)
            return
        self._slow_probes = 0
        if self._good_since_ms is None:
            self._good_since_ms = now_ms
        if now_ms - self._good_since_ms >= self._limits.recovery_ms:
            self.is_slow = False


def is_fatal(error: BaseException) -> bool:
    """Whether the disk itself is gone, as far as an error and what caused it say."""
    return errno_of(error) in _FATAL


def is_folder_gone(error: BaseException) -> bool:
    """The same, of an error that a probe of the whole folder met."""
    return errno_of(error) in _GONE
