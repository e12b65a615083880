"""What a process has used so far, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """User and system time."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def fine_cpu_s(pid: int) -> float:
    """The same to the nanosecond, not to a tick, of threads that still run."""
    total_ns = 0
    for each in Path(f"/proc/{pid}/task").iterdir():
        total_ns += int((each / "schedstat").read_text(encoding="ascii").split()[0])
    return total_ns / 1e9


def resident_bytes(pid: int) -> int:
    """Memory that it holds; 0 when it has ended."""
    try:
        text = Path(f"/proc/{pid}/statm").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(text.split()[1]) * _PAGE_BYTES
