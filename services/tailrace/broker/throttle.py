"""A rate of bytes: who takes more than there is waits until the debt is paid. Pure.

One bucket for a whole broker. It is never fuller than what flows in during `BURST_MS`, and whoever
finds anything in it may take as much as it must, whole batches at the least: then others wait.
"""

from __future__ import annotations

from typing import Final

BURST_MS: Final = 100


class Throttle:
    """Bytes a second; without a rate there is no limit."""

    def __init__(self, rate: int | None = None) -> None:
        self._rate = rate
        self._bytes = 0.0
        self._filled_ms: int | None = None

    @property
    def rate(self) -> int | None:
        return self._rate

    def set_rate(self, rate: int | None) -> None:
        """From now on; what is owed stays owed."""
        self._rate = rate

    def room(self, now_ms: int) -> int | None:
        """How many bytes may go now, 0: none; None: any number."""
        if self._rate is None:
            return None
        self._fill(self._rate, now_ms)
        return max(0, int(self._bytes))

    def take(self, size: int, now_ms: int) -> None:
        """So many went."""
        if self._rate is not None:
            self._fill(self._rate, now_ms)
            self._bytes -= size

    def wait_ms(self) -> int:
        """How long it takes until there is room again."""
        if self._rate is None or self._bytes >= 1:
            return 0
        return int((1 - self._bytes) * 1_000 / self._rate) + 1

    def _fill(self, rate: int, now_ms: int) -> None:
        burst = max(1.0, rate * BURST_MS / 1_000)
        if self._filled_ms is None:
            self._bytes = burst
        else:
            self._bytes += (now_ms - self._filled_ms) * rate / 1_000
        self._bytes = min(self._bytes, burst)
        self._filled_ms = now_ms
