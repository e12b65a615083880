"""Asks leaders now and then where the partitions end that groups have positions in.

Only for metrics: nothing depends on it, and what a leader does not answer stays as it was. At most
PARTITIONS_MAX partitions are followed; a round has one call to each leader for every
QUERIES_PER_CALL of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tailrace.client.metadata import MetadataWatcher
from tailrace.clock import Clock
from tailrace.errors import TailraceError
from tailrace.metrics.lag import EndTimes
from tailrace.model import TopicPartition
from tailrace.transport import methods
from tailrace.transport.rpc import Network
from tailrace.transport.wire import from_partition, to_partition
from tailrace.v1 import broker_pb2 as pb

# How often a round is made.
INTERVAL_MS: Final = 10_000
CALL_MS: Final = 5_000
PARTITIONS_MAX: Final = 10_000
QUERIES_PER_CALL: Final = 1_000


class Ends:
    """Where partitions end, and since when."""

    def __init__(self, network: Network, clock: Clock) -> None:
        self._network = network
        self._clock = clock
        self._ends: dict[TopicPartition, EndTimes] = {}
        self.asked_ms: int | None = None

    @property
    def known(self) -> Mapping[TopicPartition, EndTimes]:
        return self._ends

    async def ask(self, wanted: Iterable[TopicPartition], metadata: MetadataWatcher) -> None:
        """One round: the ends of these partitions; what is known of others is forgotten."""
        partitions = sorted(set(wanted))[:PARTITIONS_MAX]
        keep = set(partitions)
        for gone in [each for each in self._ends if each not in keep]:
            del self._ends[gone]
        by_leader: dict[str, list[TopicPartition]] = {}
        for partition in partitions:
            leader, _ = metadata.leader_of(partition)
            address = metadata.picture.brokers.get(leader)
            if address is not None:
                by_leader.setdefault(address, []).append(partition)
        for address, led in sorted(by_leader.items()):
            for first in range(0, len(led), QUERIES_PER_CALL):
                await self._ask_one(address, led[first : first + QUERIES_PER_CALL])
        self.asked_ms = self._clock.monotonic_ms()

    async def _ask_one(self, address: str, partitions: list[TopicPartition]) -> None:
        queries = [
            pb.OffsetQuery(partition=to_partition(each), position=pb.OFFSET_POSITION_LATEST)
            for each in partitions
        ]
        channel = self._network.channel(address)
        try:
            answer = await channel.call(
                methods.BROKER_LIST_OFFSETS,
                pb.ListOffsetsRequest(queries=queries),
                timeout_ms=CALL_MS,
            )
        except TailraceError:
            return
        finally:
            await channel.close()
        now_ms = self._clock.monotonic_ms()
        for found in answer.offsets:
            if not found.error:
                partition = from_partition(found.partition)
                self._ends.setdefault(partition, EndTimes()).note(found.offset, now_ms)
