"""What one round of a workload or of a yardstick took. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.figures import percentile

GB: Final = 1e9


@dataclass(frozen=True, slots=True)
class Flow:
    """Records or frames that went through."""

    value_bytes: int
    seconds: float
    server_cpu_s: float
    client_cpu_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.value_bytes / self.seconds

    @property
    def server_cpu_s_per_gb(self) -> float:
        return self.server_cpu_s / self.value_bytes * GB

    @property
    def client_cpu_s_per_gb(self) -> float:
        return self.client_cpu_s / self.value_bytes * GB

    @property
    def cpu_s_per_gb(self) -> float:
        return self.server_cpu_s_per_gb + self.client_cpu_s_per_gb


@dataclass(frozen=True, slots=True)
class Waits:
    """One after the other: how long each took."""

    p50_ms: float
    p99_ms: float


def waits(seconds: Sequence[float]) -> Waits:
    return Waits(percentile(seconds, 0.5) * 1_000, percentile(seconds, 0.99) * 1_000)


def volume(probe: Flow, seconds: float, *, least: int, most: int) -> int:
    """How many bytes take about so long, judging by a first round."""
    return int(min(max(probe.bytes_per_s * seconds, least), most))
