"""Reads shards from their partitions: one fetch stream a leader for all that are being read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from tailrace.client.fetch_plan import EARLIEST, Fetched
from tailrace.client.fetcher import Fetcher, FetchSettings
from tailrace.client.metadata import MetadataWatcher
from tailrace.clock import Clock
from tailrace.coordinator.records import Change, decode
from tailrace.errors import CorruptBatch, CorruptCheckpoint, InvariantViolation, TailraceError
from tailrace.model import TopicPartition
from tailrace.transport.rpc import Network

PARTITION_BYTES: Final = 4 << 20
MAX_WAIT_MS: Final = 500
TOPIC_TIMEOUT_MS: Final = 60_000
# Others get their turn after so many records: among them the lease, which a starved coordinator
# lost while it read ten thousand in one go, and then read again.
TURN_RECORDS: Final = 500


class _Load:
    def __init__(self, up_to: int, take: Callable[[Change], None]) -> None:
        self.up_to = up_to
        self.take = take
        self.records = 0
        self.done: asyncio.Future[int] = asyncio.get_running_loop().create_future()


class Loader:
    """Reads partitions from their beginning: `run` in a task, `load` for each."""

    def __init__(
        self,
        metadata: MetadataWatcher,
        *,
        network: Network,
        clock: Clock,
        rng: Random,
        bytes_max: int,
        say: Callable[[str], None],
    ) -> None:
        self._say = say
        self._loads: dict[TopicPartition, _Load] = {}
        self._news = asyncio.Event()
        self._failed: BaseException | None = None
        # What stands in shards and cannot be read.
        self.batches_skipped = 0
        self.records_skipped = 0
        self._fetcher = Fetcher(
            metadata,
            FetchSettings(
                bytes_max=bytes_max,
                partition_bytes=min(PARTITION_BYTES, bytes_max),
                min_bytes=1,
                max_wait_ms=MAX_WAIT_MS,
                topic_timeout_ms=TOPIC_TIMEOUT_MS,
                client_id="coordinator",
            ),
            network=network,
            clock=clock,
            rng=rng,
            on_news=self._news.set,
            on_failure=self._fetch_failed,
        )

    def metadata_changed(self) -> None:
        self._fetcher.metadata_changed()

    async def fetch(self) -> None:
        """Keep the streams, for ever."""
        await self._fetcher.run()

    async def run(self) -> None:
        """Hand over what comes, for ever."""
        plan = self._fetcher.plan
        while True:
            self._news.clear()
            if self._failed is not None:
                raise InvariantViolation(f"reading shards failed: {self._failed!r}")
            while plan.arrivals:
                reading = plan.arrivals[0].reading
                try:
                    arrival = plan.take()
                except TailraceError as error:
                    self._end(reading.partition, error)
                    continue
                if arrival is not None and arrival.fetched is not None:
                    header = arrival.fetched.header
                    reading.position, reading.position_epoch = (
                        header.next_offset,
                        header.leader_epoch,
                    )
                    await self._take(reading.partition, arrival.fetched)
                for broker in self._fetcher.credit_due():
                    self._fetcher.give_credit(broker)
            await self._news.wait()

    async def load(
        self, partition: TopicPartition, *, up_to: int, take: Callable[[Change], None]
    ) -> int:
        """Read all changes up to (and with) an offset; gives how many records there were.

        Raises what cannot be gone on from: begin again, with a state of its own.
        """
        load = self._loads[partition] = _Load(up_to, take)
        plan = self._fetcher.plan
        plan.seek(plan.add(partition), EARLIEST)
        self._fetcher.poke()
        try:
            return await load.done
        finally:
            self._loads.pop(partition, None)
            plan.remove(partition)
            self._fetcher.poke()

    async def _take(self, partition: TopicPartition, fetched: Fetched) -> None:
        load = self._loads.get(partition)
        if load is None:
            return
        if not fetched.header.is_control:
            try:
                await self._read(load, partition, fetched)
            except CorruptBatch as error:
                # One bad batch must not take all groups of the shard down with it.
                header = fetched.header
                self.batches_skipped += 1
                self._say(
                    f"{partition}: offsets {header.base_offset} to {header.last_offset} cannot be "
                    f"read: {error}; they are passed over, and what they said of groups and "
                    "positions is not known"
                )
        if fetched.header.next_offset > load.up_to and not load.done.done():
            load.done.set_result(load.records)

    async def _read(self, load: _Load, partition: TopicPartition, fetched: Fetched) -> None:
        for record in fetched.view.records():
            if record.offset > load.up_to:
                break
            self._apply(load, record.key, record.value, partition)
            if load.records % TURN_RECORDS == 0:
                await asyncio.sleep(0)

    def _apply(
        self, load: _Load, key: bytes | None, value: bytes | None, partition: TopicPartition
    ) -> None:
        load.records += 1
        try:
            change = decode(key, value)
        except CorruptCheckpoint as error:
            # One bad record must not take all groups of the shard down with it.
            self.records_skipped += 1
            self._say(f"{partition}: {error}; it is passed over")
            return
        if change is not None:
            load.take(change)

    def _end(self, partition: TopicPartition, error: TailraceError) -> None:
        load = self._loads.get(partition)
        if load is not None and not load.done.done():
            load.done.set_exception(error)

    def _fetch_failed(self, name: str, error: BaseException) -> None:
        self._failed = error
        self._news.set()
