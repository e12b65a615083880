"""A reader that keeps its positions elsewhere and shows them here, under a name.

Spark's checkpoint is one such place. What is committed is for people, tools and metrics: lag is
then shown as that of a group. Nobody reads on from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from tailrace.client.coordinator import CoordinatorClient
from tailrace.client.lifetime import Lifetime
from tailrace.client.metadata import MetadataWatcher
from tailrace.clock import Clock
from tailrace.model import NO_LEADER_EPOCH, TopicPartition
from tailrace.runtime import Tasks
from tailrace.transport import methods
from tailrace.transport.rpc import Network
from tailrace.transport.wire import raise_for
from tailrace.v1 import group_pb2 as pb

KIND: Final = "reader"
NO_GENERATION: Final = -1


class ShownPosition(NamedTuple):
    """The next offset to read, of which topic, and the epoch of the last record if known."""

    offset: int
    topic_id: str = ""
    leader_epoch: int = NO_LEADER_EPOCH


class NamedReader:
    """Shows positions under one name. Use: `commit` as often as wanted, `close`."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        name: str,
        *,
        network: Network,
        clock: Clock,
        rng: Random,
    ) -> None:
        self.name = name
        self._metadata = MetadataWatcher(network, bootstrap, rng)
        self._coordinator = CoordinatorClient(
            name, self._metadata, network=network, clock=clock, rng=rng
        )
        self._lifetime = Lifetime("named reader")
        self._tasks = Tasks(self._failed)
        self._started = False

    async def commit(
        self, positions: Mapping[TopicPartition, ShownPosition], *, timeout_ms: int
    ) -> None:
        """Store positions; raises why they were not, also when no coordinator is there in time."""
        self._lifetime.check()
        if not self._started:
            self._started = True
            self._tasks.spawn(f"metadata for {self.name}", self._metadata.run())
        request = pb.CommitOffsetsRequest(
            group=self.name,
            generation=NO_GENERATION,
            kind=KIND,
            offsets=[
                pb.OffsetToCommit(
                    topic=partition.topic,
                    topic_id=position.topic_id,
                    partition=partition.partition,
                    offset=position.offset,
                    leader_epoch=position.leader_epoch,
                )
                for partition, position in sorted(positions.items())
            ],
        )
        answer = await self._coordinator.call(
            methods.GROUP_COMMIT_OFFSETS, request, timeout_ms=timeout_ms
        )
        raise_for(answer.error, answer.message)
        for each in answer.partitions:
            raise_for(each.error, each.message)

    async def close(self) -> None:
        if self._lifetime.end():
            await self._tasks.close()

    def _failed(self, task: str, error: BaseException) -> None:
        self._lifetime.fail(f"{task}: {error!r}")
