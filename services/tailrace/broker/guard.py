"""What a produce request has to pass before its batches are appended, where that takes time.

A look into bodies that are compressed or very large is taken off the loop: one that says that it
becomes 48 MiB would hold up all others for as long as that takes. So few looks are taken at the
same time, and so few bytes are in hand for them, that syncs and reads keep their threads and
memory. The stream that brought the request waits meanwhile: its requests are appended in their
order, and who sends what is costly holds up itself. Between two looks of a stream others get their
turn, since those who wait are served in order.

Who writes to a topic of the cluster's own must do so as the owner of its shard, in an epoch that
the log knows; the metadata store is asked about a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from tailrace.broker.hosted import Hosted
from tailrace.broker.internal_topics import check_records, claimed_epoch, is_known
from tailrace.clock import Clock
from tailrace.errors import (
    CorruptCheckpoint,
    InvalidRequest,
    NotCoordinator,
    ProducerFenced,
    TailraceError,
)
from tailrace.log.admission import BodyVerdict, check_bodies
from tailrace.meta.keys import ShardOwner, decode, shard_key
from tailrace.meta.store import MetadataStore
from tailrace.model import TopicPartition, is_internal
from tailrace.record.validation import steps, work_bytes
from tailrace.runtime import Blocking
from tailrace.transport.envelopes import PartitionBatches, ProduceRequest
from tailrace.transport.wire import from_partition

INLINE_WORK_BYTES_MAX: Final = 256 << 10
"""What the bodies of a request may be, decompressed, to be looked into on the loop: 0.1 ms."""

LOOKS_MAX: Final = 2
"""Looks at the same time: most of the threads are left for syncs and reads."""

LOOK_BYTES_MAX: Final = 16 << 20
"""One look takes batches up to this many bytes, decompressed, or a single larger one."""

OWNER_ANSWER_MS: Final = 100
"""The store is asked again about the owner of a shard after this long, not earlier."""

OWNERS_KNOWN_MAX: Final = 10_000
"""Shards whose owner was asked for; far above what a topic has partitions."""

Find = Callable[[TopicPartition], Hosted | None]


class _Owner(NamedTuple):
    epoch: int | None
    asked_ms: int


class ProduceGuard:
    """One for a broker: all of its streams ask it."""

    def __init__(
        self, find: Find, store: MetadataStore, *, blocking: Blocking, clock: Clock
    ) -> None:
        self._find = find
        self._store = store
        self._blocking = blocking
        self._clock = clock
        self._looks = asyncio.Semaphore(LOOKS_MAX)
        self._owners: dict[int, _Owner] = {}
        self.looks = 0
        """How many were taken off the loop."""

    def takes_time(self, message: ProduceRequest) -> bool:
        """Whether `prepare` has something to do: mostly it has not."""
        work = 0
        for part in message.partitions:
            if is_internal(part.partition.topic):
                return True
            work += work_bytes(part.batches)
        return work > INLINE_WORK_BYTES_MAX

    async def prepare(self, message: ProduceRequest) -> list[BodyVerdict | None]:
        """For each partition what the look came to; None: it was not taken."""
        is_large = (
            sum(work_bytes(part.batches) for part in message.partitions) > INLINE_WORK_BYTES_MAX
        )
        return [await self._verdict(part, is_large=is_large) for part in message.partitions]

    async def _verdict(self, part: PartitionBatches, *, is_large: bool) -> BodyVerdict | None:
        try:
            partition = from_partition(part.partition)
        except InvalidRequest:
            # The whole request is refused for that.
            return None
        hosted = self._find(partition)
        if hosted is None or not hosted.leads:
            return None
        try:
            if is_large:
                await self._look(hosted, part.batches)
            if is_internal(partition.topic):
                await self._check_writer(hosted, part.batches, are_checked=is_large)
                return BodyVerdict()
        except TailraceError as error:
            return BodyVerdict(error)
        return BodyVerdict() if is_large else None

    async def _look(self, hosted: Hosted, data: bytes | memoryview) -> None:
        topic, config = hosted.partition.topic, hosted.log.config
        for piece in pieces(data):
            work = partial(check_bodies, piece, topic, config, now_ms=self._clock.wall_ms())
            async with self._looks:
                self.looks += 1
                await self._blocking.run(work)

    async def _check_writer(
        self, hosted: Hosted, data: bytes | memoryview, *, are_checked: bool
    ) -> None:
        """Only who owns a shard writes to it, and only what a coordinator would."""
        partition, log = hosted.partition, hosted.log
        epoch = claimed_epoch(partition, data)
        if not are_checked:
            check_bodies(data, partition.topic, log.config, now_ms=self._clock.wall_ms())
        check_records(partition, data)
        if not is_known(log.producers, partition, epoch):
            await self._check_owner(partition, epoch)

    async def _check_owner(self, partition: TopicPartition, epoch: int) -> None:
        shard = partition.partition
        now_ms = self._clock.monotonic_ms()
        owner = self._owners.get(shard)
        if owner is None or (owner.epoch != epoch and now_ms - owner.asked_ms >= OWNER_ANSWER_MS):
            # Before it is asked: who sends a thousand batches has it asked once.
            self._remember(shard, _Owner(None if owner is None else owner.epoch, now_ms))
            owner = _Owner(await self._stored_epoch(shard), now_ms)
            self._remember(shard, owner)
        if owner.epoch is not None and epoch < owner.epoch:
            raise ProducerFenced(f"{partition}: epoch {epoch} of the shard was replaced")
        if epoch != owner.epoch:
            # The news of it may be on its way: it is tried again.
            raise NotCoordinator(f"{partition}: nobody owns the shard in this epoch")

    def _remember(self, shard: int, owner: _Owner) -> None:
        if len(self._owners) >= OWNERS_KNOWN_MAX:
            self._owners.clear()
        self._owners[shard] = owner

    async def _stored_epoch(self, shard: int) -> int | None:
        """StoreUnavailable: who claims the epoch tries again."""
        key = shard_key(shard)
        entry = await self._store.get(key)
        if entry is None:
            return None
        try:
            return decode(ShardOwner, entry.value, key=key).epoch
        except CorruptCheckpoint:
            return None


def pieces(data: bytes | memoryview) -> Iterator[memoryview]:
    """The batches in pieces that one look takes; what is no batch goes with the last piece."""
    view = memoryview(data)
    start = end = work = 0
    for position, length, size in steps(view):
        if work and work + size > LOOK_BYTES_MAX:
            yield view[start:position]
            start, work = position, 0
        end, work = position + length, work + size
    if start < len(view) or end < len(view):
        yield view[start:]
