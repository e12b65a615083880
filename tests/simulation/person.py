"""The person whom a cluster asks when it must not decide by itself.

Two things wait for one: a broker that refuses to start with what is in its data folder, and a
partition whose replicas contradict each other about what was committed. The person empties such a
folder, and lets the replica lead that holds most: what it is asked for is never more than the
runbooks say. A decision may cost records only where the partition's state has it on record.
"""

from __future__ import annotations

import asyncio
from typing import Final

from simulation.cluster import BrokerNode, SimCluster
from simulation.disk_copies import FolderCopy, put_back
from tailrace.errors import CorruptCheckpoint, FolderMismatch
from tailrace.log.data_folder import DataFolder
from tailrace.meta.keys import NO_BROKER, PartitionState, decode, state_key
from tailrace.model import TopicPartition
from tailrace.transport import methods
from tailrace.transport.wire import to_partition
from tailrace.v1 import controller_pb2 as pb

LOOK_S: Final = 1.0
# What has no leader for so long is not about to get one.
PATIENCE_S: Final = 8.0
ASK_TIMEOUT_S: Final = 4.0


def known_folder(node: BrokerNode, partition: TopicPartition) -> DataFolder | None:
    broker = node.broker
    return None if broker is None else broker._manager_of_logs().folder_of(partition)


class Person:
    """Looks after one topic of a cluster."""

    def __init__(self, cluster: SimCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._headless_s: dict[TopicPartition, float] = {}
        self.decisions: list[str] = []
        """What it has done."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for node in self._cluster.brokers:
                self._see_to(node)
            self._cluster.start_all()
            for number in self._cluster.assignment(self._topic):
                await self._lead(TopicPartition(self._topic, number))

    def _see_to(self, node: BrokerNode) -> None:
        """Empty the folder that a broker refuses to start with."""
        if not node.is_up and isinstance(node.refusal, CorruptCheckpoint | FolderMismatch):
            self._note(f"emptied the folder of {node.name}: {node.refusal}")
            put_back(node.files, FolderCopy((), {}))
            node.refusal = None

    async def _lead(self, partition: TopicPartition) -> None:
        """Decide who leads where nobody has for long, though all are there."""
        state = self.state(partition)
        if state is None or state.leader != NO_BROKER:
            self._headless_s.pop(partition, None)
            return
        now_s = self._cluster.loop.time()
        if now_s - self._headless_s.setdefault(partition, now_s) < PATIENCE_S:
            return
        best = self._best(partition)
        if best is None:
            return
        self._note(f"lets {best} lead {partition}: {state.conflict or 'nobody does'}")
        wish = pb.LeaderWish(partition=to_partition(partition), leader=best, loss="a test")
        await self._cluster.ask_once(
            methods.CONTROLLER_ELECT_LEADERS,
            pb.ElectLeadersRequest(partitions=[wish], unclean=True),
            timeout_s=ASK_TIMEOUT_S,
        )

    def state(self, partition: TopicPartition) -> PartitionState | None:
        """As the right store has it."""
        entry = self._cluster.etcd.right.get(state_key(partition))
        return None if entry is None else decode(PartitionState, entry.value, key=entry.key)

    def _best(self, partition: TopicPartition) -> int | None:
        """Who knows most to be committed, and of those who holds most; as `describe` shows it.

        Not who has the newest epoch: an older copy that has led for a moment has that.
        """
        found = []
        for node in self._cluster.brokers:
            hosted = node.hosted(partition) if node.is_up else None
            folder = known_folder(node, partition)
            if hosted is not None and hosted.log.is_open and folder is not None:
                known = max(folder.high_watermarks.get(partition, 0), hosted.machine.high_watermark)
                found.append((known, int(hosted.log.log_end), -node.number))
        return -max(found)[2] if found else None

    def _note(self, what: str) -> None:
        self.decisions.append(what)
        self._cluster.loop.note(f"PERSON {what}")
