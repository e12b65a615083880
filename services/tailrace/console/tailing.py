"""The live tail of a topic: what arrives in all of its partitions, as far as it is looked for.

A browser that is slower than the topic gets the newest records and is told how many it missed:
nothing is kept for it beyond TAIL_RECORDS_MAX.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

from tailrace.client.reader import PartitionReader
from tailrace.console.showing import matches
from tailrace.record.view import Record
from tailrace.runtime import Tasks

TAIL_RECORDS_MAX: Final = 200
PARTITIONS_MAX: Final = 64
PUSH_MS: Final = 250
SHOWN_CHARACTERS: Final = 400


class Tail:
    """Reads the end of a topic for one browser: `pushes` until it goes away."""

    def __init__(
        self, open_reader: Callable[[int], PartitionReader], partitions: int, search: str
    ) -> None:
        self._open = open_reader
        self._partitions = min(partitions, PARTITIONS_MAX)
        self._search = search
        self._waiting: deque[dict[str, Any]] = deque(maxlen=TAIL_RECORDS_MAX)
        self._found = 0
        self._seen = 0
        self._arrived = asyncio.Event()
        self._problem = ""
        if partitions > PARTITIONS_MAX:
            self._problem = f"of {partitions:,} partitions only the first {PARTITIONS_MAX} are read"

    async def pushes(self) -> AsyncIterator[dict[str, Any]]:
        """What came since the last push, and how much of it there was in all."""
        tasks = Tasks(self._failed)
        for number in range(self._partitions):
            tasks.spawn(f"tail {number}", self._read(number))
        try:
            while True:
                # Whatever comes from here on is waited for no longer than until it has come.
                self._arrived.clear()
                records = list(self._waiting)
                self._waiting.clear()
                yield {
                    "records": records,
                    "seen": self._seen,
                    "found": self._found,
                    "problem": self._problem,
                }
                await self._arrived.wait()
                # Records that come together go together.
                await asyncio.sleep(PUSH_MS / 1_000)
        finally:
            await tasks.close()

    async def _read(self, number: int) -> None:
        reader = self._open(number)
        try:
            async for record in reader.records():
                self.take(number, record)
        finally:
            await reader.close()

    def take(self, number: int, record: Record) -> None:
        """One record has arrived."""
        self._seen += 1
        shown = record_shown(number, record)
        if not self._search or matches(self._search, _searched(shown, record)):
            self._found += 1
            self._waiting.append(shown)
        self._arrived.set()

    def _failed(self, name: str, error: BaseException) -> None:
        self._problem = f"{name}: {error}"
        self._arrived.set()


def record_shown(partition: int, record: Record) -> dict[str, Any]:
    """A record for people: text where it is text, else hexadecimal; cut where it is long."""
    return {
        "partition": partition,
        "offset": record.offset,
        "time_ms": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
    }


def _searched(shown: dict[str, Any], record: Record) -> Iterator[str]:
    """What is looked through: what is shown, and what was cut off of it."""
    for name, data in (("key", record.key), ("value", record.value)):
        yield shown[name] or ""
        if data is not None and len(data) > SHOWN_CHARACTERS:
            yield data.decode("utf-8", errors="replace")


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    part = data[: SHOWN_CHARACTERS * 4]
    try:
        text = part.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character may have been cut at the end; all else is no text.
        if error.start < len(part) - 3 or len(part) == len(data):
            return f"0x{data[: SHOWN_CHARACTERS // 2].hex()}"
        text = part[: error.start].decode("utf-8")
    is_cut = len(text) > SHOWN_CHARACTERS or len(part) < len(data)
    return f"{text[:SHOWN_CHARACTERS]}…" if is_cut else text
