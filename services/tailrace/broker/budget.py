"""Bytes in hand of one kind, over all connections: a limit, and a hint when to try again. Pure.

The hint is how long it takes, at the speed of the last seconds, until half of what is in hand has
gone. Who comes back earlier would be refused again; who is told too long a time leaves the server
idle. Invariant: `bytes` is the sum of what was admitted and not released.
"""

from __future__ import annotations

from typing import Final

HINT_MIN_MS: Final = 20
HINT_MAX_MS: Final = 2_000
# The speed is measured over spans of this length; the last whole one counts.
SPAN_MS: Final = 500


class Budget:
    """See the module's description."""

    __slots__ = ("_released", "_span_ms", "_speed", "bytes", "bytes_max", "refused")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        # How often somebody was sent away, for those who measure.
        self.refused = 0
        self._span_ms = 0
        self._released = 0
        # Bytes a second.
        self._speed = 0.0

    def admit(self, size: int) -> bool:
        """Take so many bytes in hand if there is room. Whoever comes alone is let in, always."""
        if self.bytes and self.bytes + size > self.bytes_max:
            self.refused += 1
            return False
        self.bytes += size
        return True

    def release(self, size: int, now_ms: int) -> None:
        self.bytes -= size
        elapsed_ms = now_ms - self._span_ms
        if elapsed_ms >= SPAN_MS:
            self._speed = self._released * 1_000 / elapsed_ms
            self._span_ms, self._released = now_ms, 0
        self._released += size

    def hint_ms(self) -> int:
        """How long to wait before it is worth to try again."""
        if self._speed <= 0:
            return HINT_MAX_MS // 10
        return int(min(max(self.bytes * 500 / self._speed, HINT_MIN_MS), HINT_MAX_MS))
