"""Processes of this machine, told apart for sure: by id, start time and boot.

A process id alone is soon another process's: whoever stops processes by ids from a file must look
twice. Invariant: a signal goes only to the very process that an identity was taken of; the check
and the signal go through one file descriptor of it (pidfd), so that nobody can slip in between.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_BOOT_ID: Final = _PROC / "sys/kernel/random/boot_id"
# Places in /proc/<pid>/stat after the name in parentheses, which may hold anything.
_STATE: Final = 0
_START_TIME: Final = 19


class Life(StrEnum):
    """How a process is."""

    RUNNING = "running"
    PAUSED = "paused"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One life of one process."""

    pid: int
    started_ticks: int
    boot_id: str


def identify(pid: int) -> ProcessIdentity | None:
    """Take the identity of a process that runs now."""
    fields = _stat(pid)
    if fields is None or _life(fields) is Life.EXITED:
        return None
    return ProcessIdentity(pid, int(fields[_START_TIME]), boot_id())


def life_of(identity: ProcessIdentity) -> Life:
    """How that very process is; EXITED when its id is free or another's."""
    if identity.boot_id != boot_id():
        return Life.EXITED
    fields = _stat(identity.pid)
    if fields is None or int(fields[_START_TIME]) != identity.started_ticks:
        return Life.EXITED
    return _life(fields)


def send(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Send a signal to that very process; False when it has ended."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        if life_of(identity) is Life.EXITED:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def boot_id() -> str:
    return _BOOT_ID.read_text(encoding="ascii").strip()


def _stat(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _life(fields: list[str]) -> Life:
    state = fields[_STATE]
    if state in "ZX":
        # It has ended; whoever started it has not looked yet.
        return Life.EXITED
    return Life.PAUSED if state in "Tt" else Life.RUNNING
