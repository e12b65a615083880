"""Services that write down which turns of their event loop cost too much: `TurnMeter` beside them.

As a program (`turn_meter.py FILE broker …`) it is `tailrace` whose event loop measures the CPU time
of every callback that it runs, and writes those that took long into the file, one JSON object a
line. CPU time of the loop's thread, not time on the wall: a machine that does other things as well
changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from tailrace.cli.main import main

# What is written down; how much is too much, a test says.
NOTED_MS: Final = 30.0
CALLBACK_CHARACTERS_MAX: Final = 400


class Turn(NamedTuple):
    """A callback that took long, and what it was."""

    cpu_ms: float
    callback: str


class TurnMeter:
    """The meters of processes by name: for `DevCluster(command_for=…)`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}

    def command_for(self, name: str, command: list[str]) -> list[str]:
        """Put this program in the place of `-m tailrace.cli.main`."""
        python, *module, service = command[:4]
        assert module == ["-m", "tailrace.cli.main"], command
        path = self.path(name)
        path.touch()
        return [python, __file__, str(path), service, *command[4:]]

    def path(self, name: str) -> Path:
        """Where the program writes to."""
        return self._folder / f"{name}.turns"

    def take(self, name: str) -> list[Turn]:
        """The turns that took long since this was asked last."""
        with self.path(name).open() as file:
            file.seek(self._read.get(name, 0))
            lines = file.read()
        whole = lines[: lines.rfind("\n") + 1]
        self._read[name] = self._read.get(name, 0) + len(whole.encode())
        return [Turn(**json.loads(each)) for each in whole.splitlines()]


def measure(path: Path) -> None:
    """From now on every callback of every loop of this process is measured."""
    # Its callbacks cannot be measured; without it a service takes the loop of asyncio.
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    run = asyncio.Handle._run
    file = path.open("a", buffering=1)

    def measured(handle: Any) -> None:
        began = time.thread_time()
        run(handle)
        cpu_ms = (time.thread_time() - began) * 1_000
        if cpu_ms >= NOTED_MS:
            turn = Turn(round(cpu_ms, 1), repr(handle)[:CALLBACK_CHARACTERS_MAX])
            file.write(json.dumps(turn._asdict()) + "\n")

    asyncio.Handle._run = measured  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
    sys.argv[1:2] = []
    main()
