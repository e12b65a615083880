"""Services whose wall clocks can be set wrong, while they run: `Clocks` beside them.

As a program (`shifted_clock.py FILE broker …`) it is `tailrace` with a wall clock that is off by as
many ms as the file says, from the moment it says so. Nobody reads time but `tailrace.clock`, so
this is all it takes: no other process, no library and no compiler.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from pathlib import Path
from typing import Final

from tailrace.cli.main import main
from tailrace.clock import SystemClock

_OFF_MS: Final = struct.Struct("<q")


class Clocks:
    """The clocks of processes by name: for `DevCluster(command_for=…)`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def command_for(self, name: str, command: list[str]) -> list[str]:
        """Put this program in the place of `-m tailrace.cli.main`."""
        python, *module, service = command[:4]
        assert module == ["-m", "tailrace.cli.main"], command
        self.set(name, 0)
        return [python, __file__, str(self.path(name)), service, *command[4:]]

    def set(self, name: str, off_ms: int) -> None:
        """Let the wall clock of a process jump; 0: it is right again."""
        descriptor = os.open(self.path(name), os.O_RDWR | os.O_CREAT)
        try:
            os.pwrite(descriptor, _OFF_MS.pack(off_ms), 0)
        finally:
            os.close(descriptor)

    def path(self, name: str) -> Path:
        """Where the program reads how far a clock is off."""
        return self._folder / f"{name}.clock"


def shift(path: Path) -> None:
    """From now on the wall clock of this process is off by what the file says."""
    right = SystemClock.wall_ms
    with path.open("rb") as file:
        off = mmap.mmap(file.fileno(), _OFF_MS.size, access=mmap.ACCESS_READ)

    def wall_ms(clock: SystemClock) -> int:
        return right(clock) + int(_OFF_MS.unpack(off)[0])

    SystemClock.wall_ms = wall_ms  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    shift(Path(sys.argv.pop(1)))
    main()
