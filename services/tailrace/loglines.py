"""What a service says, a line each: for people on a terminal, else JSON.

Something that goes wrong all the time says so all the time. Lines that are alike but for their
numbers are written `ALIKE_MAX` times in `WINDOW_MS`; the rest is counted, and one line tells how
many there were. So a disk is not filled by a log, and what is rare is not lost among what is not.
"""

from __future__ import annotations

import json
import logging
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, TextIO

from tailrace.clock import Clock

WINDOW_MS: Final = 10_000
ALIKE_MAX: Final = 100
# So many kinds of lines are counted at once; more than these, and the oldest is forgotten.
KINDS_MAX: Final = 256
# What lines have to have in common, from their beginning on.
KIND_CHARS: Final = 60

_NUMBERS: Final = re.compile(r"\d+")


class Repetition:
    """Counts lines that are alike. Pure."""

    def __init__(self) -> None:
        # When each kind was first seen, how often since, and the first that was left out.
        self._kinds: dict[str, tuple[int, int, str]] = {}

    def admit(self, text: str, now_ms: int) -> list[str]:
        """What to write when this is said: maybe nothing, maybe what was left out before, too."""
        told = self.expire(now_ms)
        kind = _NUMBERS.sub("#", text[:KIND_CHARS])
        since_ms, seen, sample = self._kinds.get(kind, (now_ms, 0, ""))
        if seen < ALIKE_MAX:
            told.append(text)
        elif seen == ALIKE_MAX:
            sample = text
        self._kinds[kind] = (since_ms, seen + 1, sample)
        if len(self._kinds) > KINDS_MAX:
            told += self._forget(next(iter(self._kinds)))
        return told

    def expire(self, now_ms: int) -> list[str]:
        """End the windows that are over, and tell what was left out of them."""
        over = []
        for kind, (since_ms, _, _) in self._kinds.items():
            if now_ms - since_ms < WINDOW_MS:
                # The others began later.
                break
            over.append(kind)
        return [line for kind in over for line in self._forget(kind)]

    def _forget(self, kind: str) -> list[str]:
        _, seen, sample = self._kinds.pop(kind)
        if seen <= ALIKE_MAX:
            return []
        return [f"{seen - ALIKE_MAX} more lines like this one were left out: {sample}"]


class LogLines:
    """The lines of one service, to a stream."""

    def __init__(self, who: str, stream: TextIO, clock: Clock, *, as_json: bool) -> None:
        self._who = who
        self._stream = stream
        self._clock = clock
        self._as_json = as_json
        self._repetition = Repetition()

    def __call__(self, text: str) -> None:
        self.write("info", text)

    def write(self, level: str, text: str) -> None:
        lines = self._repetition.admit(text, self._clock.monotonic_ms())
        # A log that nobody reads any more is no reason to end.
        with suppress(OSError, ValueError):
            for line in lines:
                self._stream.write(self._line(level, line) + "\n")
            self._stream.flush()

    def capture(self) -> None:
        """Let what libraries log from warnings on come out in the same way."""
        logging.basicConfig(handlers=[_Handler(self)], level=logging.WARNING, force=True)

    def _line(self, level: str, text: str) -> str:
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        if self._as_json:
            time = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            line = {"time": time, "level": level, "who": self._who, "text": text}
            return json.dumps(line, ensure_ascii=False)
        mark = "" if level == "info" else f"{level}: "
        local = now.astimezone().isoformat(sep=" ", timespec="milliseconds")[11:23]
        return f"{local} {self._who}: {mark}{text}"


class _Handler(logging.Handler):
    def __init__(self, lines: LogLines) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        self._lines.write(record.levelname.lower(), text)
