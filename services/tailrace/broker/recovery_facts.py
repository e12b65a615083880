"""Tells what this broker holds, and its copy of the metadata, to whoever rebuilds a lost store.

It answers on the control port, also while the store is away or not believed: that is when it is
asked. It changes nothing. Large answers are built off the loop and sent in pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Final

from tailrace.broker.hosted import Hosted
from tailrace.broker.metadata_copier import MetadataCopier
from tailrace.broker.replicas import Replicas
from tailrace.errors import TailraceError, Unreachable
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.log.strays import Stray
from tailrace.meta.copies import encode_copy
from tailrace.meta.shard_producers import PRODUCER_ID_BASE
from tailrace.model import Offset, TopicPartition
from tailrace.runtime import Blocking
from tailrace.transport.rpc import Stream
from tailrace.transport.wire import to_partition
from tailrace.v1 import control_pb2 as pb

REPLICAS_PER_MESSAGE: Final = 1_000
COPY_PIECE_BYTES: Final = 1 << 20
# Logs whose producers are looked at without letting others have the loop.
LOGS_PER_TURN: Final = 16


class RecoveryFactsService:
    """Answers ReadRecoveryFacts."""

    def __init__(
        self,
        broker_id: int,
        manager: LogManager,
        replicas: Replicas,
        *,
        copier: Callable[[], MetadataCopier | None],
        cluster_id: Callable[[], str],
        store_problem: Callable[[], str],
        blocking: Blocking,
    ) -> None:
        self._broker_id = broker_id
        self._manager = manager
        self._replicas = replicas
        self._copier = copier
        self._cluster_id = cluster_id
        self._store_problem = store_problem
        self._blocking = blocking

    async def read(
        self,
        _: pb.ReadRecoveryFactsRequest,
        stream: Stream[pb.ReadRecoveryFactsResponse, pb.ReadRecoveryFactsRequest],
    ) -> None:
        """Send who this is, the replicas, then the copy in pieces."""
        about = pb.RecoveryBroker(
            broker_id=self._broker_id,
            cluster_id=self._cluster_id(),
            incarnation=self._manager.incarnation,
            store_problem=self._store_problem(),
            producer_id_max=await self._highest_producer_id(),
        )
        try:
            await stream.send(pb.ReadRecoveryFactsResponse(broker=about))
            found = iter([*self._facts(), *await self._strays()])
            while part := list(islice(found, REPLICAS_PER_MESSAGE)):
                await stream.send(pb.ReadRecoveryFactsResponse(replicas=part))
            copier = self._copier()
            if copier is None:
                return
            current = copier.current()
            data = await self._blocking.run(lambda: encode_copy(current))
            for start in range(0, len(data), COPY_PIECE_BYTES):
                piece = data[start : start + COPY_PIECE_BYTES]
                await stream.send(pb.ReadRecoveryFactsResponse(copy=piece))
        except Unreachable:
            return

    def _facts(self) -> list[pb.RecoveryReplica]:
        """Every log of this moment: those that are served, and those that wait for an order."""
        manager, stored = self._manager, self._manager.load_high_watermarks()
        found = [
            self._sound(partition, log, stored.get(partition, Offset(0)))
            for partition, log in sorted(manager.logs.items())
        ]
        for partition, error in sorted(manager.damaged.items()):
            if partition not in manager.logs:
                found.append(self._damaged(partition, error, stored.get(partition, Offset(0))))
        return found

    async def _strays(self) -> list[pb.RecoveryReplica]:
        """Those that were set aside, with how far their records go."""
        manager = self._manager
        found = await self._blocking.run(manager.strays)
        return [await self._blocking.run(partial(self._stray, each)) for each in found]

    def _stray(self, stray: Stray) -> pb.RecoveryReplica:
        about = pb.RecoveryReplica(
            partition=to_partition(stray.partition),
            topic_id=stray.topic_id or "",
            led_epoch=-1,
            log_end=-1,
            last_epoch=-1,
            stray=True,
        )
        note = stray.note
        if note is None:
            about.problem = "what was known of it when it was set aside cannot be read"
            return about
        about.log_start, about.high_watermark = note.log_start, note.high_watermark
        try:
            extent = self._manager.stray_extent(stray)
        except (OSError, TailraceError) as error:
            about.problem = f"its records cannot be read: {error}"
            return about
        about.log_end, about.last_epoch = extent.log_end, extent.last_epoch
        return about

    def _sound(
        self, partition: TopicPartition, log: PartitionLog, stored: Offset
    ) -> pb.RecoveryReplica:
        hosted = self._replicas.get(partition)
        problem = self._replicas.offline.get(partition)
        return pb.RecoveryReplica(
            partition=to_partition(partition),
            topic_id=self._manager.topic_id(partition) or "",
            led_epoch=hosted.machine.leader_epoch if hosted is not None and hosted.leads else -1,
            log_start=log.log_start,
            log_end=log.log_end if log.is_open else -1,
            high_watermark=max(stored, _high_watermark(hosted)),
            last_epoch=log.last_epoch,
            problem="" if problem is None else str(problem),
        )

    def _damaged(
        self, partition: TopicPartition, error: TailraceError, stored: Offset
    ) -> pb.RecoveryReplica:
        return pb.RecoveryReplica(
            partition=to_partition(partition),
            topic_id=self._manager.topic_id(partition) or "",
            led_epoch=-1,
            log_end=-1,
            high_watermark=stored,
            last_epoch=-1,
            problem=str(error),
        )

    async def _highest_producer_id(self) -> int:
        highest = 0
        for turn, log in enumerate(list(self._manager.logs.values())):
            highest = max(highest, _highest(log.producers.ids()))
            if turn % LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
        return highest


def _high_watermark(hosted: Hosted | None) -> int:
    return 0 if hosted is None else hosted.machine.high_watermark


def _highest(ids: Iterable[int]) -> int:
    return max((each for each in ids if each < PRODUCER_ID_BASE), default=0)
