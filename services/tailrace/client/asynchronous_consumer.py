"""The consumer that asyncio programs import (as `tailrace.aio.Consumer`), on the real ports."""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Unpack

import pyarrow as pa

from tailrace.client.admin import EARLIEST, LATEST
from tailrace.client.arguments import check_topics, milliseconds
from tailrace.client.commits import CommitCallback, OffsetsGiven
from tailrace.client.consumer import CLOSE_TIMEOUT_MS, ConsumerCore
from tailrace.client.consumer_settings import ConsumerOptions, ConsumerSettings
from tailrace.client.group_member import OffsetAndMetadata
from tailrace.client.listening import Interceptor, RebalanceListener
from tailrace.client.metadata import parse_bootstrap
from tailrace.client.records import ConsumerRecord
from tailrace.client.serializers import Deserializer, deserializer_for
from tailrace.clock import SystemClock
from tailrace.errors import ClientClosed
from tailrace.model import NO_LEADER_EPOCH, TopicPartition
from tailrace.tracing import open_tracer
from tailrace.transport.http2.network import Http2Network


def named_deserializer(choice: str | Deserializer | None, option: str) -> Deserializer | None:
    """A deserializer by name or as it is; bytes, which are there already, need none."""
    return None if choice in {None, "bytes"} else deserializer_for(choice, option)


class Consumer:
    """Reads records. Use it as `async with Consumer("topic", ...)`, or `start` and `close` it.

    `Consumer("orders", bootstrap_servers="host:port", group_id="billing")` shares the topic with
    the other members of the group. Without a group it reads all partitions of the topics itself, or
    those that `assign` names. Deserializers are functions or one of "bytes", "str", "int", "json".
    All other settings have Kafka's names with underscores.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Sequence[str],
        key_deserializer: str | Deserializer | None = None,
        value_deserializer: str | Deserializer | None = None,
        interceptors: Sequence[Interceptor] = (),
        **settings: Unpack[ConsumerOptions],
    ) -> None:
        check_topics(topics)
        self._topics = topics
        self._settings = ConsumerSettings.of(dict(settings))
        self.client_id, self.group_id = self._settings.client_id, self._settings.group_id
        self._network = Http2Network()
        self._is_open = self._has_begun = False
        self._tracer = open_tracer(
            self._settings.tracing,
            service="tailrace-consumer",
            instance=self.client_id,
            rng=Random(),
        )
        self._core = ConsumerCore(
            parse_bootstrap(bootstrap_servers),
            self._settings,
            network=self._network,
            clock=SystemClock(),
            rng=Random(),
            key_deserializer=named_deserializer(key_deserializer, "key_deserializer"),
            value_deserializer=named_deserializer(value_deserializer, "value_deserializer"),
            interceptors=interceptors,
            tracer=self._tracer,
        )

    @property
    def core(self) -> ConsumerCore:
        """What does the work."""
        return self._core

    async def start(self) -> None:
        """Begin to read the topics that it was made with; the first `poll` does it if need be."""
        self._is_open = True
        if self._has_begun:
            return
        self._has_begun = True
        try:
            await self._core.start()
            if self._topics and self._settings.group_id:
                await self._core.subscribe(self._topics)
            elif self._topics:
                await self._core.assign_topics(self._topics)
        except BaseException:
            # The next call tries again: the topic may be made by then, the broker back. Who went on
            # without would read nothing for ever.
            self._has_begun = False
            raise

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Commit what was handed out (with auto commit), leave the group at once, and end."""
        self._is_open = False
        await self._core.close(timeout_ms=timeout_ms)
        # A callback that calls this while it is closed already must not cut that off.
        if self._core.is_over:
            await self._network.close()
            if self._tracer is not None:
                await asyncio.to_thread(self._tracer.close)

    # What is read.

    async def subscribe(
        self,
        topics: str | Iterable[str] | re.Pattern[str],
        *,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read these topics, or all whose names match the pattern, together with the group.

        The listener's coroutines `on_revoked`, `on_assigned` and `on_lost` are called in `poll`.
        """
        self._is_open = self._has_begun = True
        await self._core.subscribe(topics, listener)

    async def unsubscribe(self) -> None:
        """Read nothing any more, and leave the group."""
        await self._core.unsubscribe()

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, whoever else does."""
        self._is_open = self._has_begun = True
        await self._core.assign(partitions)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read."""
        return self._core.assignment()

    def subscription(self) -> set[str]:
        """The topics that are subscribed to."""
        return self._core.subscription()

    # Reading.

    async def poll(
        self, timeout: float | None = 1.0, *, max_records: int | None = None
    ) -> list[ConsumerRecord]:
        """Records that have arrived, `max_poll_records` at most.

        Waits up to `timeout` seconds (None: for ever) for the first one. Callbacks of a rebalance
        run in here.
        """
        await self.start()
        return await self._core.poll(timeout_ms=milliseconds(timeout), max_records=max_records)

    async def batches(
        self, *, timeout: float | None = None, headers: bool = False
    ) -> AsyncIterator[pa.RecordBatch]:
        """Stored batches as Arrow columns: topic, partition, offset, timestamp, key, value.

        Ends when none came for `timeout` seconds; without one, never.
        """
        await self.start()
        while True:
            found = await self._core.next_batch(timeout_ms=milliseconds(timeout), headers=headers)
            if found is None:
                return
            yield found

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        record = self._core.taker.next_unread()
        if record is not None:
            return record
        try:
            first, *rest = await self.poll(None)
        except ClientClosed:
            raise StopAsyncIteration from None
        self._core.taker.unread(rest)
        return first

    def wakeup(self) -> None:
        """Have the poll under way, or the next one, raise WokenUp."""
        self._core.wakeup()

    # Positions.

    async def seek(
        self, partition: TopicPartition, offset: int, *, last_epoch: int = NO_LEADER_EPOCH
    ) -> None:
        """Go on from another offset; with `last_epoch` a log that was cut below it is noticed."""
        await self._core.seek(partition, offset, last_epoch=last_epoch)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on from the first offset of these partitions, of all when none is named."""
        await self._core.seek_to_beginning(partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on from the end of these partitions, of all when none is named."""
        await self._core.seek_to_end(partitions)

    async def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions until `resume`; of all when none is named."""
        await self._core.pause(partitions)

    async def resume(self, *partitions: TopicPartition) -> None:
        await self._core.resume(partitions)

    def paused(self) -> set[TopicPartition]:
        return self._core.paused()

    async def position(self, partition: TopicPartition, *, timeout: float | None = None) -> int:
        """The offset of the next record that is handed out; waits until it is known."""
        return await self._core.position(partition, timeout_ms=milliseconds(timeout))

    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets lie between the position and the end, where both are known."""
        return self._core.lag()

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time; None where no record is that late."""
        found = await self._core.offsets_for(times_ms, timeout_ms=milliseconds(timeout))
        return {each: at.offset if at.offset >= 0 else None for each, at in found.items()}

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        found = await self._core.offsets_for(
            dict.fromkeys(partitions, EARLIEST), timeout_ms=milliseconds(timeout)
        )
        return {each: at.offset for each, at in found.items()}

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        found = await self._core.offsets_for(
            dict.fromkeys(partitions, LATEST), timeout_ms=milliseconds(timeout)
        )
        return {each: at.offset for each, at in found.items()}

    # Commits.

    async def commit(
        self, offsets: OffsetsGiven | None = None, *, timeout: float | None = None
    ) -> None:
        """Commit these positions, or those of all that was handed out, and wait for it."""
        await self._core.commit(offsets, timeout_ms=milliseconds(timeout))

    def commit_async(
        self, offsets: OffsetsGiven | None = None, *, callback: CommitCallback | None = None
    ) -> None:
        """Commit without waiting; `callback(offsets, error)` is told of the end."""
        self._core.commit_later(offsets, callback)

    async def committed(
        self, *partitions: TopicPartition, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed positions of these partitions, of those assigned when none is named."""
        return await self._core.committed(partitions, timeout_ms=milliseconds(timeout))

    @property
    def skipped_batches(self) -> int:
        """How many stored batches could not be decoded and were passed over (on_corrupt="skip")."""
        return self._core.counts["skipped_batches"]

    def metrics(self) -> dict[str, Any]:
        """What was polled, handed out and committed so far."""
        return self._core.metrics()

    def __del__(self) -> None:
        if getattr(self, "_is_open", False) and not self._core.is_over:
            warnings.warn("a Consumer was not closed", ResourceWarning, source=self, stacklevel=1)
