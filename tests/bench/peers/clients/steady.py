"""Clients that go on while others break or change the cluster, and what they noticed of it.

Who breaks things talks to them by lines: `flowing T` is answered by `ok` when records are known to
have gone through after the moment T, `stop` ends the client. Moments are those of the system's
monotonic clock, which all processes share.
"""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from typing import Any

INTERVAL_S = 0.002
FLOWING_RECORDS = 5
FELT_S = 0.02
POLL_S = 0.01


class Steady(ABC):
    """Listens for what it is told; who inherits says what flowing means."""

    def __init__(self) -> None:
        self.is_stopped = False
        threading.Thread(target=self._listen, daemon=True).start()

    @abstractmethod
    def count_since(self, moment: float) -> int:
        """How many records went through after a moment."""

    def _listen(self) -> None:
        for line in sys.stdin:
            word, _, moment = line.strip().partition(" ")
            if word == "stop":
                break
            while not self.is_stopped and self.count_since(float(moment)) < FLOWING_RECORDS:
                time.sleep(POLL_S)
            print("ok", flush=True)
        self.is_stopped = True


class Sending(Steady):
    """A producer at a steady rate: of each record, when it was handed over and acknowledged."""

    def __init__(self) -> None:
        self.failed = 0
        self._sent: list[float] = []
        self._acked: dict[int, float] = {}
        super().__init__()

    def sent(self) -> int:
        self._sent.append(time.monotonic())
        return len(self._sent) - 1

    def acked(self, number: int, *, failed: bool = False) -> None:
        self._acked[number] = time.monotonic()
        self.failed += failed

    def pause_s(self) -> float:
        """How long until the next record is due."""
        return max(self._sent[0] + len(self._sent) * INTERVAL_S - time.monotonic(), 0.0)

    def count_since(self, moment: float) -> int:
        """Handed over after it, and acknowledged."""
        done = 0
        for number in range(len(self._sent) - 1, -1, -1):
            if self._sent[number] < moment:
                break
            done += number in self._acked
        return done

    def report(self) -> dict[str, Any]:
        """Waits that were felt, as pairs; a record that was never acknowledged waits until now."""
        now = time.monotonic()
        pairs = ((each, self._acked.get(at, now)) for at, each in enumerate(self._sent))
        felt = [[sent, acked] for sent, acked in pairs if acked - sent > FELT_S]
        missing = len(self._sent) - len(self._acked)
        return {"waits": felt, "failed": self.failed + missing, "records": len(self._sent)}


class Receiving(Steady):
    """A member of a group: when records came, by partition."""

    def __init__(self) -> None:
        self._moments: dict[int, list[float]] = {}
        self._last: list[float] = []
        super().__init__()

    def received(self, partition: int) -> None:
        now = time.monotonic()
        self._moments.setdefault(partition, []).append(now)
        self._last = [*self._last[1 - FLOWING_RECORDS :], now]

    def count_since(self, moment: float) -> int:
        return sum(each > moment for each in self._last)

    def report(self) -> dict[str, Any]:
        return {"moments": self._moments, "records": sum(map(len, self._moments.values()))}
