"""The live tail of a topic: what arrives in all of its partitions, as far as it is looked for.

A browser that is slower than the topic gets the newest records and is told how many it missed:
nothing is kept for it beyond TAIL_RECORDS_MAX. One consumer reads all partitions of a tail, so that
what is read ahead stays within TAIL_BYTES_MAX, however many partitions there are and however busy.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from tailrace.client.consumer_settings import ConsumerSettings
from tailrace.client.records import ConsumerRecord
from tailrace.console.showing import matches
from tailrace.errors import TailraceError, UnreadableBatch
from tailrace.model import TopicPartition
from tailrace.runtime import Tasks

TAIL_RECORDS_MAX: Final = 200
PARTITIONS_MAX: Final = 64
PUSH_MS: Final = 250
SHOWN_CHARACTERS: Final = 400
# Of one tail: what brokers have sent and nobody has looked at yet.
TAIL_BYTES_MAX: Final = 4 << 20
POLL_RECORDS: Final = 500
POLL_MS: Final = 1_000
# After what a partition cannot go on from: long enough for a person to read it.
AGAIN_MS: Final = 1_000

SETTINGS: Final = ConsumerSettings(
    auto_offset_reset="latest",
    fetch_max_bytes=TAIL_BYTES_MAX,
    max_poll_records=POLL_RECORDS,
    client_id="tailrace console",
)


class TailConsumer(Protocol):
    """As much of a consumer as a tail needs."""

    async def assign(self, partitions: Iterable[TopicPartition]) -> None: ...

    async def poll(self, *, timeout_ms: int | None) -> Sequence[ConsumerRecord]: ...

    def stuck(self) -> list[TopicPartition]: ...

    async def seek(self, partition: TopicPartition, offset: int) -> None: ...

    async def seek_to_end(self, partitions: Iterable[TopicPartition]) -> None: ...

    async def close(self) -> None: ...


class Tail:
    """Reads the end of a topic for one browser: `pushes` until it goes away."""

    def __init__(
        self, open_consumer: Callable[[], TailConsumer], topic: str, partitions: int, search: str
    ) -> None:
        self._open = open_consumer
        self._partitions = [
            TopicPartition(topic, number) for number in range(min(partitions, PARTITIONS_MAX))
        ]
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
        tasks.spawn("tail", self._read())
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

    async def _read(self) -> None:
        consumer = self._open()
        try:
            await consumer.assign(self._partitions)
            while True:
                try:
                    for record in await consumer.poll(timeout_ms=POLL_MS):
                        self.take(record)
                    # What has arrived is given at once: others have their turn in between.
                    await asyncio.sleep(0)
                except UnreadableBatch as error:
                    # All else is shown, what stands before it and behind it.
                    self._tell(str(error))
                    bad = TopicPartition(error.topic, error.partition)
                    await consumer.seek(bad, error.last_offset + 1)
                except TailraceError as error:
                    # A tail goes on with what comes; the other partitions go on as they were.
                    self._tell(str(error))
                    await asyncio.sleep(AGAIN_MS / 1_000)
                    if stuck := consumer.stuck():
                        await consumer.seek_to_end(stuck)
        finally:
            await consumer.close()

    def take(self, record: ConsumerRecord) -> None:
        """One record has arrived."""
        self._seen += 1
        shown = record_shown(record)
        if not self._search or matches(self._search, _searched(shown, record)):
            self._found += 1
            self._waiting.append(shown)
        self._arrived.set()

    def _tell(self, problem: str) -> None:
        self._problem = problem
        self._arrived.set()

    def _failed(self, name: str, error: BaseException) -> None:
        self._tell(f"{name}: {error}")


def record_shown(record: ConsumerRecord) -> dict[str, Any]:
    """A record for people: text where it is text, else hexadecimal; cut where it is long."""
    return {
        "partition": record.partition,
        "offset": record.offset,
        "time_ms": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
    }


def _searched(shown: dict[str, Any], record: ConsumerRecord) -> Iterator[str]:
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
