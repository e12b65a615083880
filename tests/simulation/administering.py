"""What administrators do while everything else happens, and what must have come of it at the end.

Replicas are moved, moves are cancelled, partitions are added, leaders are balanced, settings
changed, brokers cordoned, topics made and deleted. Each is asked for once; nobody may hear the
answer, so that either outcome is allowed then. At the end no work is left half done: every
partition has replicas that were asked for, and a topic that was deleted has left nothing behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from simulation.checkers import Violation
from simulation.cluster import SimCluster
from tailrace.meta.keys import DELETIONS, REASSIGNMENTS
from tailrace.model import TopicPartition
from tailrace.transport import methods
from tailrace.transport.rpc import Method
from tailrace.transport.wire import to_partition
from tailrace.v1 import controller_pb2 as pb

REPLICAS = 3
PARTITIONS_MAX = 4
ASK_TIMEOUT_S = 4.0
SHORT_LIVED = "short-lived"


class Administrator:
    """One who asks for something now and then."""

    def __init__(self, cluster: SimCluster, topic: str, rng: Random) -> None:
        self._cluster = cluster
        self._topic = topic
        self._rng = rng
        # The replicas that each partition may end with: those asked for since the last certain one.
        self._allowed: dict[int, list[tuple[int, ...]]] = {}
        self._deletes = False

    async def act(self) -> None:
        deeds: dict[Callable[[], Awaitable[None]], int] = {
            self._move: 8,
            self._cancel: 2,
            self._add_partition: 1,
            self._elect: 2,
            self._configure: 2,
            self._cordon: 1,
            self._make_and_delete: 2,
        }
        await self._rng.choices(list(deeds), list(deeds.values()))[0]()

    async def finish(self) -> None:
        """At the healing: nobody is cordoned any more, and what is half deleted is deleted."""
        for node in self._cluster.brokers:
            request = pb.CordonBrokerRequest(broker_id=node.number, cordon=False)
            await self._cluster.ask_controller(methods.CONTROLLER_CORDON_BROKER, request)
        if self._deletes and SHORT_LIVED in self._cluster.topics():
            await self._ask(
                methods.CONTROLLER_DELETE_TOPIC, pb.DeleteTopicRequest(name=SHORT_LIVED)
            )

    def is_done(self) -> bool:
        """Whether all that was asked for has been done."""
        etcd = self._cluster.etcd.right
        if etcd.snapshot(REASSIGNMENTS).entries or etcd.snapshot(DELETIONS).entries:
            return False
        return not (self._deletes and SHORT_LIVED in self._cluster.topics())

    def check_end(self) -> None:
        for number, replicas in self._cluster.assignment(self._topic).items():
            allowed = self._allowed.get(number)
            if allowed is not None and replicas not in allowed:
                raise Violation(f"{self._topic}-{number} is on {replicas}, not on {allowed}")
        for node in self._cluster.brokers:
            left = [name for name in node.files.list("/data") if name.startswith(SHORT_LIVED)]
            if self._deletes and left:
                raise Violation(f"{node.name} still has {left}")

    # What is asked for.

    async def _move(self) -> None:
        assignment = self._cluster.assignment(self._topic)
        number = self._rng.randrange(len(assignment))
        brokers = [node.number for node in self._cluster.brokers]
        replicas = tuple(self._rng.sample(brokers, REPLICAS))
        plan = [pb.PartitionReplicas(partition=self._partition(number), replicas=replicas)]
        allowed = self._allowed.setdefault(number, [assignment[number]])
        allowed.append(replicas)
        answer = await self._ask(methods.CONTROLLER_REASSIGN, pb.ReassignRequest(plan=plan))
        if answer is not None and answer.error:
            allowed.remove(replicas)

    async def _cancel(self) -> None:
        # Those that are under way may go back or have arrived: all of them are allowed already.
        for number, replicas in self._cluster.assignment(self._topic).items():
            self._allowed.setdefault(number, [replicas])
        await self._ask(methods.CONTROLLER_CANCEL_REASSIGNMENTS, pb.CancelReassignmentsRequest())

    async def _add_partition(self) -> None:
        count = len(self._cluster.assignment(self._topic)) + 1
        if count <= PARTITIONS_MAX:
            request = pb.AddPartitionsRequest(name=self._topic, partitions=count)
            await self._ask(methods.CONTROLLER_ADD_PARTITIONS, request)

    async def _elect(self) -> None:
        await self._ask(methods.CONTROLLER_ELECT_LEADERS, pb.ElectLeadersRequest())

    async def _configure(self) -> None:
        request = pb.AlterConfigRequest(
            kind=pb.CONFIG_KIND_TOPIC,
            name=self._topic,
            set={"flush": self._rng.choice(["ack", "none"])},
        )
        await self._ask(methods.CONTROLLER_ALTER_CONFIG, request)

    async def _cordon(self) -> None:
        node = self._rng.choice(self._cluster.brokers)
        request = pb.CordonBrokerRequest(
            broker_id=node.number, cordon=self._rng.random() < 0.5, reason="a test"
        )
        await self._ask(methods.CONTROLLER_CORDON_BROKER, request)

    async def _make_and_delete(self) -> None:
        request = pb.CreateTopicRequest(name=SHORT_LIVED, partitions=2, replication_factor=3)
        await self._ask(methods.CONTROLLER_CREATE_TOPIC, request)
        await asyncio.sleep(self._rng.uniform(0.0, 1.0))
        self._deletes = True
        await self._ask(methods.CONTROLLER_DELETE_TOPIC, pb.DeleteTopicRequest(name=SHORT_LIVED))

    def _partition(self, number: int) -> Any:
        return to_partition(TopicPartition(self._topic, number))

    async def _ask(self, method: Method[Any, Any], request: Any) -> Any:
        """The answer; None when none came."""
        answer = await self._cluster.ask_once(method, request, timeout_s=ASK_TIMEOUT_S)
        what = "unheard" if answer is None else answer.message or "done"
        self._cluster.loop.note(f"ADMIN {method.name.rsplit('/')[-1]} {request}: {what}")
        return answer
