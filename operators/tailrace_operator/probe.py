"""A producer and a reader that never give up, and the count of their records: a drill's probe.

The producer is idempotent and writes to every partition in turn; the reader is a member of a group,
so coordinators are drilled too. The count reads the whole topic with a reader of its own.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from tailrace.aio import Consumer, Producer, RecordMetadata, TopicPartition
from tailrace.clock import Clock
from tailrace.errors import TailraceError
from tailrace_operator.ledger import Ledger

OPEN_MAX: Final = 5_000
POLL_S: Final = 0.5
AGAIN_S: Final = 0.5
# How long records may stay without a fate, or unread, after the last one was written.
SETTLE_S: Final = 60.0
COUNT_S: Final = 120.0


class Probe:
    """Use: `run` in a task of its own, `stop` it, then `count` once."""

    def __init__(
        self, bootstrap: str, topic: str, *, partitions: int, rate: int, clock: Clock
    ) -> None:
        self.ledger = Ledger()
        self.group = topic
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._interval_s = 1 / rate
        self._clock = clock
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Write and read until `stop`, and then until all that was acknowledged is read."""
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read())
            await self._write()
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    while self.ledger.behind:  # noqa: ASYNC110 - nobody tells.
                        await asyncio.sleep(POLL_S / 5)
            reading.cancel()

    def stop(self) -> None:
        self._stop.set()

    async def count(self) -> None:
        """Look for every record; `Figures.counted` stays false when that cannot be done."""
        try:
            async with asyncio.timeout(COUNT_S):
                await self._count()
        except TimeoutError:
            self.ledger.problem(f"not all records could be read within {COUNT_S:.0f} s")
        except TailraceError as error:
            self.ledger.problem(str(error))
        else:
            self.ledger.counted()

    async def _write(self) -> None:
        async with Producer(self._bootstrap, client_id=self._topic) as producer:
            while not self._stop.is_set():
                if self.ledger.open < OPEN_MAX and not self.ledger.is_full:
                    await self._send(producer)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s):
                        await self._stop.wait()
            await producer.flush()

    async def _send(self, producer: Producer) -> None:
        ledger, now = self.ledger, self._clock.monotonic_ms
        number = ledger.send(now())

        def ended(metadata: RecordMetadata | None, error: TailraceError | None) -> None:
            if metadata is None:
                ledger.failed(number, str(error), now())
            else:
                ledger.acknowledged(
                    number, partition=metadata.partition, offset=metadata.offset, now_ms=now()
                )

        value, partition = b"%d" % number, number % self._partitions
        try:
            await producer.send(self._topic, value, partition=partition, callback=ended)
        except TailraceError as error:
            ended(None, error)

    async def _read(self) -> None:
        while True:
            try:
                async with Consumer(
                    self._topic,
                    bootstrap_servers=self._bootstrap,
                    group_id=self.group,
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                    client_id=self._topic,
                ) as consumer:
                    while True:
                        await self._read_some(consumer)
            except TailraceError as error:
                self.ledger.problem(f"reading: {error}")
                await asyncio.sleep(AGAIN_S)

    async def _read_some(self, consumer: Consumer) -> None:
        records = await consumer.poll(timeout=POLL_S)
        now_ms = self._clock.monotonic_ms()
        for record in records:
            self.ledger.read(int(record.value), now_ms)
        if not records:
            return
        try:
            await consumer.commit()
        except TailraceError as error:
            # Positions are committed again with the next records.
            self.ledger.problem(f"committing: {error}")

    async def _count(self) -> None:
        wanted = [TopicPartition(self._topic, each) for each in range(self._partitions)]
        async with Consumer(
            bootstrap_servers=self._bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            await consumer.assign(wanted)
            left = sum((await consumer.end_offsets(wanted)).values())
            while left > 0:
                for record in await consumer.poll(timeout=POLL_S):
                    left -= 1
                    self.ledger.found(
                        int(record.value), partition=record.partition, offset=record.offset
                    )
