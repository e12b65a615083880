"""A simulated cluster whose controllers are real and whose brokers only do what orders ask of them.

Brokers register by lease, answer on the health stream, check the epochs of every order as the
protocol says, remember what they were told, and change the ISR of what they lead when a test says
so, by the guarded transaction of DESIGN.md.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from simulation.etcd import SimEtcd
from simulation.loop import LoopClock, Process, SimLoop
from simulation.network import SimHost, SimNetwork
from tailrace.controller.controller import Controller
from tailrace.controller.settings import ControllerSettings
from tailrace.controller.traces import FailoverTraces
from tailrace.errors import LeaseLost, StoreUnavailable, Unreachable
from tailrace.meta.image import ClusterImage, StoredState
from tailrace.meta.keys import (
    CONTROLLER,
    BrokerRegistration,
    PartitionHistory,
    PartitionState,
    broker_key,
    decode,
    encode,
    history_key,
    state_key,
)
from tailrace.meta.store import CreatedAt, ModifiedAt, Put, TxnResult
from tailrace.model import BrokerId, TopicPartition
from tailrace.transport import methods
from tailrace.transport.rpc import Stream
from tailrace.transport.wire import code_name, from_partition
from tailrace.v1 import common_pb2, control_pb2
from tailrace.v1 import controller_pb2 as pb

T = TypeVar("T")
Main = Callable[["Cluster"], Coroutine[Any, Any, None]]

BROKER_PORT: Final = 9092
CONTROLLER_PORT: Final = 9090
LEASE_TTL_MS: Final = 5_000
HEALTH_INTERVAL_S: Final = 1.0
REQUEST_MS: Final = 8_000
US_IN_S: Final = 1_000_000


def simulate(main: Main, *, seed: int = 1, **settings: Any) -> None:
    """Run a scenario on a cluster of its own."""

    async def start(loop: SimLoop) -> None:
        cluster = Cluster(loop, settings)
        await main(cluster)
        assert cluster.network.handler_failures == []

    PunctualLoop(seed).run(start)


class PunctualLoop(SimLoop):
    """A timer never comes early, not by a part of a microsecond either.

    Whoever looks at the time when it comes, and waits again if it is not due, would wait for ever.
    """

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        when_us = math.ceil(when * US_IN_S)
        if when_us / US_IN_S < when:
            when_us += 1
        return super().call_at(when_us / US_IN_S, callback, *args, context=context)


class Cluster:
    """Hosts `c1`, `c2`… with controllers and `b1`, `b2`… with brokers, around one etcd."""

    def __init__(self, loop: SimLoop, settings: dict[str, Any]) -> None:
        self.loop = loop
        self.network = SimNetwork(loop)
        self.etcd = SimEtcd(loop.fork_rng("etcd"))
        self.settings = settings
        self.brokers: dict[int, FakeBroker] = {}
        self.controllers: dict[int, RunningController] = {}
        self.said: list[str] = []
        # What controllers that are started from now on trace with.
        self.traces: FailoverTraces | None = None
        self.admin = self.network.host("admin", loop.process("admin"))
        self.store = self.etcd.connect("admin")

    async def start(self, *, brokers: int = 3, controllers: int = 1) -> None:
        """Start controllers and brokers, and wait until all have their orders."""
        for number in range(1, controllers + 1):
            await self.start_controller(number)
            await self.until(lambda: self.holder() is not None)
        for number in range(1, brokers + 1):
            await self.start_broker(number)
        await self.until(lambda: all(each.full_orders for each in self.brokers.values()))

    async def start_controller(self, number: int) -> RunningController:
        process = self.loop.process(f"c{number}")
        settings = ControllerSettings(
            controller_id=number, listen=f"c{number}:{CONTROLLER_PORT}", **self.settings
        )
        controller = Controller(
            settings,
            store=self.etcd.connect(f"c{number}"),
            network=self.network.host(f"c{number}", process),
            clock=LoopClock(self.loop),
            rng=self.loop.fork_rng(f"c{number}/{self.loop.now_us}"),
            say=lambda text: self.said.append(f"{self.loop.now_ms} c{number} {text}"),
            traces=self.traces,
        )
        running = self.controllers[number] = RunningController(controller, process)
        await process.spawn("start", controller.start())
        running.task = process.spawn("run", controller.run())
        return running

    async def start_broker(self, number: int, **facts: Any) -> FakeBroker:
        former = self.brokers.get(number)
        broker = self.brokers[number] = FakeBroker(self, number, facts)
        if former is not None:
            broker.replicas, broker.strays = dict(former.replicas), dict(former.strays)
        await broker.process.spawn("start", broker.start())
        return broker

    def active(self) -> RunningController:
        """The active controller of the highest epoch."""
        return max(self.controllers.values(), key=lambda each: each.epoch)

    async def until(
        self, holds: Callable[[], bool], *, within_s: float = 30, every_s: float = 0.001
    ) -> float:
        """Wait until something holds; gives how many ms that took."""
        before = self.loop.time()
        while not holds():
            if self.loop.time() - before > within_s:
                shown = "\n".join([*self.said[-30:], *map(str, self.states().items())])
                raise AssertionError(f"it did not come to hold:\n{shown}")
            await asyncio.sleep(every_s)
        return (self.loop.time() - before) * 1_000

    async def create(self, name: str, **fields: Any) -> pb.CreateTopicResponse:
        request = pb.CreateTopicRequest(name=name, **fields)
        response: pb.CreateTopicResponse = await self.call(methods.CONTROLLER_CREATE_TOPIC, request)
        return response

    async def call(self, method: Any, request: Any, *, number: int | None = None) -> Any:
        """Ask a controller, the active one unless told otherwise."""
        where = self.active().address if number is None else self.controllers[number].address
        channel = self.admin.channel(where)
        return await channel.call(method, request, timeout_ms=REQUEST_MS)

    # What is in the store, right now.

    def image(self) -> ClusterImage:
        return ClusterImage.from_snapshot(self.etcd.server.snapshot("/"))

    def states(self) -> dict[TopicPartition, PartitionState]:
        image = self.image()
        found = ((each, image.state(each)) for each, _ in image.partitions())
        return {each: stored.state for each, stored in found if stored is not None}

    def state(self, topic: str = "t", partition: int = 0) -> PartitionState:
        return self.stored(topic, partition).state

    def stored(self, topic: str = "t", partition: int = 0) -> StoredState:
        stored = self.image().state(TopicPartition(topic, partition))
        assert stored is not None
        return stored

    def history(self, topic: str = "t", partition: int = 0) -> PartitionHistory:
        entry = self.etcd.server.get(history_key(TopicPartition(topic, partition)))
        assert entry is not None
        return decode(PartitionHistory, entry.value)

    def holder(self) -> int | None:
        """The create revision of `/controller`."""
        entry = self.etcd.server.get(CONTROLLER)
        return None if entry is None else entry.create_revision

    def texts(self) -> str:
        return "\n".join(self.said)


class RunningController:
    def __init__(self, controller: Controller, process: Process) -> None:
        self.controller = controller
        self.process = process
        self.task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return self.controller.address

    @property
    def epoch(self) -> int:
        term = self.controller.term
        return -1 if term is None else term.epoch


@dataclass(frozen=True)
class Told:
    """A partition as a broker was last told of it."""

    topic_id: str
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    revision: int
    leader_link: str
    at_ms: int
    config: dict[str, str] = field(default_factory=dict)
    replicas: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()

    def is_newer_than(self, other: Told) -> bool:
        mine, theirs = (self.leader_epoch, self.revision), (other.leader_epoch, other.revision)
        return self.topic_id == other.topic_id and mine > theirs


class FakeBroker:
    """One life of a broker."""

    def __init__(self, cluster: Cluster, number: int, facts: dict[str, Any]) -> None:
        self.cluster = cluster
        self.number = number
        name = f"b{number}"
        self.process = cluster.loop.process(name)
        self.host: SimHost = cluster.network.host(name, self.process)
        self.store = cluster.etcd.connect(name)
        self.facts = BrokerRegistration(
            broker_id=BrokerId(number),
            host=name,
            port=BROKER_PORT,
            link_host=name,
            link_port=BROKER_PORT + 1,
            incarnation=f"disk-of-{name}",
        )
        self.facts = replace(self.facts, **facts)
        self.epoch: int | None = None
        self.lease = 0
        self.renews = True
        self.hangs = False
        self.draining = False
        self.unfit = ""
        self.controller_epoch = -1
        # What the broker has on its disk, by partition: the topic's id.
        self.replicas: dict[TopicPartition, str] = {}
        self.told: dict[TopicPartition, Told] = {}
        self.failing: dict[TopicPartition, common_pb2.ErrorCode.ValueType] = {}
        self.full_orders = 0
        self.order_count = 0
        self.refused: list[str] = []
        self.stopped: list[TopicPartition] = []
        self.deleted: list[TopicPartition] = []
        # What it was told to keep under another name.
        self.strays: dict[TopicPartition, str] = {}
        # Up to which revision that is meant: a later order wants the replica.
        self.aside_at: list[int] = []
        self.pictures: list[common_pb2.ClusterMetadata] = []
        self.settings: list[dict[str, str]] = []
        self.clients: dict[str, dict[str, str]] = {}
        self.server: Any = None

    async def start(self) -> None:
        self.server = await self.host.serve(
            f"b{self.number}:{BROKER_PORT}",
            {
                methods.CONTROL_HEALTH: self.health,
                methods.CONTROL_LEADER_AND_ISR: self.leader_and_isr,
                methods.CONTROL_STOP_REPLICA: self.stop_replica,
                methods.CONTROL_UPDATE_METADATA: self.update_metadata,
                methods.CONTROL_UPDATE_SETTINGS: self.update_settings,
            },
        )
        await self.register()
        self.process.spawn("keep alive", self.keep_registered())

    async def register(self) -> None:
        """Take the key, as soon as it is free."""
        key = broker_key(self.facts.broker_id)
        self.lease = await self.store.grant_lease(LEASE_TTL_MS)
        while True:
            result = await self.store.txn(
                [CreatedAt(key, 0)], [Put(key, encode(self.facts), self.lease)]
            )
            if result.succeeded:
                self.epoch = result.revision
                return
            entry = await self.store.get(key)
            if entry is not None and entry.lease:
                # A former life of ours: the lock on the folder says so.
                await self.store.revoke_lease(entry.lease)

    async def keep_registered(self) -> None:
        key = broker_key(self.facts.broker_id)
        while True:
            await asyncio.sleep(LEASE_TTL_MS / 3_000)
            if not self.renews:
                continue
            try:
                if not await self.is_registered(key):
                    self.epoch = None
                    self.facts = replace(self.facts, tail_may_be_lost=False)
                    await self.register()
            except (LeaseLost, StoreUnavailable):
                continue

    async def is_registered(self, key: str) -> bool:
        try:
            await self.store.keep_alive(self.lease)
        except LeaseLost:
            return False
        entry = await self.store.get(key)
        return entry is not None and entry.create_revision == self.epoch

    def kill(self) -> None:
        self.process.kill()

    async def stop_in_order(self) -> None:
        """As on SIGTERM, after the leaderships were handed over."""
        assert self.epoch is not None
        await self.server.stop(grace_ms=0)
        await self.store.revoke_lease(self.lease)
        self.process.kill()

    def leads(self, topic: str = "t", partition: int = 0) -> bool:
        """Whether it was told to lead, and nothing newer."""
        told = self.told.get(TopicPartition(topic, partition))
        return told is not None and told.leader == self.number

    async def change_isr(
        self,
        isr: list[int],
        elr: list[int] | None = None,
        *,
        topic: str = "t",
        partition: int = 0,
        added: dict[int, int] | None = None,
    ) -> TxnResult:
        """What a leader does, from the state that it was told; `added` with their epochs."""
        where = TopicPartition(topic, partition)
        told = self.told[where]
        state = PartitionState(
            controller_epoch=self.controller_epoch,
            leader=BrokerId(self.number),
            leader_epoch=self.cluster.state(topic, partition).leader_epoch,
            isr=tuple(map(BrokerId, isr)),
            elr=tuple(map(BrokerId, elr or [])),
            last_leader=BrokerId(self.number),
        )
        return await self.store.txn(
            [
                ModifiedAt(state_key(where), told.revision),
                CreatedAt(broker_key(self.number), self.epoch or 0),
                *(CreatedAt(broker_key(each), at) for each, at in (added or {}).items()),
            ],
            [Put(state_key(where), encode(state))],
        )

    # The service.

    async def health(
        self,
        request: control_pb2.HealthRequest,
        stream: Stream[control_pb2.HealthResponse, control_pb2.HealthRequest],
    ) -> None:
        if self._problem(request.header, "health"):
            return
        try:
            while True:
                await stream.send(
                    control_pb2.HealthResponse(
                        broker_id=self.number,
                        broker_epoch=self.epoch or 0,
                        draining=self.draining,
                        unfit=self.unfit,
                    )
                )
                await asyncio.sleep(HEALTH_INTERVAL_S)
        except Unreachable:
            return

    async def leader_and_isr(
        self, request: control_pb2.LeaderAndIsrRequest
    ) -> control_pb2.LeaderAndIsrResponse:
        await self._maybe_hang()
        problem = self._problem(request.header)
        if problem:
            return control_pb2.LeaderAndIsrResponse(error=problem, message="stale")
        self.order_count += 1
        response = control_pb2.LeaderAndIsrResponse()
        named = []
        for order in request.partitions:
            partition = from_partition(order.partition)
            named.append(partition)
            failure = self.failing.get(partition)
            if failure is not None and order.leader in {self.number, -1}:
                response.errors.add(
                    partition=order.partition, error=failure, message=f"as the test says: {failure}"
                )
                continue
            known = self.told.get(partition)
            told = Told(
                order.topic_id,
                order.leader,
                order.leader_epoch,
                tuple(order.isr),
                order.revision,
                order.leader_link,
                self.cluster.loop.now_ms,
                dict(order.config),
                tuple(order.replicas),
                tuple(order.adding),
            )
            if known is not None and known.is_newer_than(told):
                continue
            self.told[partition] = told
            self.replicas[partition] = order.topic_id
        if request.full:
            self.full_orders += 1
            unnamed = [each for each in self.replicas.items() if each[0] not in named]
            # What is set aside is reported for as long as it is there.
            for partition, topic_id in sorted([*unnamed, *self.strays.items()]):
                response.stray.add(
                    partition=common_pb2.TopicPartition(
                        topic=partition.topic, partition=partition.partition
                    ),
                    topic_id=topic_id,
                )
        return response

    async def stop_replica(
        self, request: control_pb2.StopReplicaRequest
    ) -> control_pb2.StopReplicaResponse:
        await self._maybe_hang()
        problem = self._problem(request.header)
        if problem:
            return control_pb2.StopReplicaResponse(error=problem, message="stale")
        for each in request.partitions:
            partition = from_partition(each.partition)
            if self.replicas.get(partition) == each.topic_id and (each.delete or each.set_aside):
                if each.set_aside:
                    self.strays[partition] = each.topic_id
                    self.aside_at.append(each.revision)
                else:
                    self.deleted.append(partition)
                del self.replicas[partition]
                self.told.pop(partition, None)
            self.stopped.append(partition)
        return control_pb2.StopReplicaResponse()

    async def update_metadata(
        self, request: control_pb2.UpdateMetadataRequest
    ) -> control_pb2.UpdateMetadataResponse:
        await self._maybe_hang()
        problem = self._problem(request.header)
        if problem:
            return control_pb2.UpdateMetadataResponse(error=problem, message="stale")
        self.pictures.append(request.metadata)
        return control_pb2.UpdateMetadataResponse()

    async def update_settings(
        self, request: control_pb2.UpdateSettingsRequest
    ) -> control_pb2.UpdateSettingsResponse:
        await self._maybe_hang()
        problem = self._problem(request.header)
        if problem:
            return control_pb2.UpdateSettingsResponse(error=problem, message="stale")
        self.settings.append(dict(request.broker))
        self.clients = {each.client_id: dict(each.settings) for each in request.clients}
        return control_pb2.UpdateSettingsResponse()

    async def _maybe_hang(self) -> None:
        if self.hangs:
            await asyncio.sleep(10_000)

    def _problem(
        self, header: control_pb2.OrderHeader, what: str = "order"
    ) -> common_pb2.ErrorCode.ValueType:
        code = common_pb2.ERROR_CODE_UNSPECIFIED
        if header.controller_epoch < self.controller_epoch:
            code = common_pb2.ERROR_CODE_STALE_CONTROLLER
        elif header.broker_epoch != self.epoch:
            code = common_pb2.ERROR_CODE_STALE_BROKER
        self.controller_epoch = max(self.controller_epoch, header.controller_epoch)
        if code:
            self.refused.append(f"{what} {code_name(code)}")
        return code
