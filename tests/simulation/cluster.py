"""A whole cluster in one virtual-time loop: the shipped brokers, controllers and producers.

Only the ports are simulated: network, links, disk, store, clock, threads. Nodes can be killed, lose
power, pause, be cut off; they come back on the same disk. What a node says goes into the trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from simulation.etcd import SimEtcd
from simulation.loop import InlineBlocking, LoopClock, Process, SimLoop, run_outside
from simulation.network import SimHost, SimNetwork
from simulation.storage import SimFiles
from tailrace.broker.broker import Broker
from tailrace.broker.hosted import Hosted
from tailrace.broker.settings import BrokerSettings
from tailrace.client.producer import ProducerCore
from tailrace.client.settings import ProducerSettings
from tailrace.config import FolderConfig, LogConfig
from tailrace.controller.controller import Controller
from tailrace.controller.settings import ControllerSettings
from tailrace.coordinator.coordinator import Coordinator
from tailrace.coordinator.settings import CoordinatorSettings
from tailrace.coordinator.traces import RebalanceTraces
from tailrace.errors import TailraceError
from tailrace.meta.keys import TOPICS, Kind, TopicRecord, broker_key, decode, place_of, topic_key
from tailrace.model import BrokerId, TopicPartition
from tailrace.process import StartAnew
from tailrace.transport import methods
from tailrace.transport.rpc import Method
from tailrace.v1 import controller_pb2

BROKER_PORT = 9092
LINK_PORT = 9093
CONTROL_PORT = 9095
CONTROLLER_PORT = 9191
COORDINATOR_PORT = 9292
# Fewer than a real cluster has: each is a partition that is loaded anew with every owner.
GROUP_SHARDS = 2


class Node:
    """One broker or controller: its machine (name, disk) and its process, if it runs."""

    def __init__(self, cluster: SimCluster, name: str, number: int) -> None:
        self.cluster = cluster
        self.name = name
        self.number = number
        self.lives = 0
        self.process: Process | None = None
        self.files = SimFiles(cluster.loop.fork_rng(f"disk of {name}"))

    @property
    def is_up(self) -> bool:
        return self.process is not None and not self.process.is_dead

    @property
    def is_paused(self) -> bool:
        return self.process is not None and self.process.is_paused

    def kill(self, *, power_loss: bool = False) -> None:
        """SIGKILL, or the machine goes down: what was not synced may be gone."""
        if self.process is not None and not self.process.is_dead:
            self.process.kill()
        self.files.crash(power_loss=power_loss)

    def pause(self) -> None:
        if self.process is not None:
            self.process.pause()

    def resume(self) -> None:
        if self.process is not None:
            self.process.resume()

    def _begin(self) -> tuple[Process, SimHost, Random]:
        self.lives += 1
        cluster = self.cluster
        self.process = process = cluster.loop.process(f"{self.name}#{self.lives}")
        host = cluster.network.host(self.name, process)
        return process, host, cluster.loop.fork_rng(f"{self.name}#{self.lives}")

    def _start_anew(self) -> None:
        """The process restarts itself: what it remembers is of no use any more."""
        process = self.process

        def restart() -> None:
            if process is not None and not process.is_dead and self.process is process:
                self.kill()
                self.start()

        run_outside(self.cluster.loop.call_soon, restart)

    def start(self) -> None:
        raise NotImplementedError

    def _say(self) -> Callable[[str], None]:
        life = f"{self.name}#{self.lives}"
        return lambda text: self.cluster.loop.note(f"{life}: {text}")


class BrokerNode(Node):
    """A broker and its disk.

    `is_harmed`: somebody took something from its disk, so that it may refuse to start (`refusal`).
    `clone`: another process with a copy of its folder.
    """

    def __init__(self, cluster: SimCluster, number: int, *, name: str = "") -> None:
        super().__init__(cluster, name or f"b{number}", number)
        self.broker: Broker | None = None
        self.is_harmed = False
        self.refusal: BaseException | None = None
        self.clone: BrokerNode | None = None

    @property
    def is_registered(self) -> bool:
        """Whether the store has the registration that this life of it knows of."""
        if not self.is_up or self.is_paused or self.broker is None or self.broker.epoch is None:
            return False
        entry = self.cluster.etcd.right.get(broker_key(BrokerId(self.number)))
        return entry is not None and entry.create_revision == self.broker.epoch

    def kill(self, *, power_loss: bool = False) -> None:
        super().kill(power_loss=power_loss)
        if self.clone is not None:
            self.clone.kill()

    def start(self) -> None:
        if self.is_up:
            return
        cluster = self.cluster
        process, host, rng = self._begin()
        settings = BrokerSettings(
            broker_id=self.number,
            listen=f"{self.name}:{BROKER_PORT}",
            link_listen=f"{self.name}:{LINK_PORT}",
            control_listen=f"{self.name}:{CONTROL_PORT}",
            folders=FolderConfig(log_dirs=("/data",), open_files_max=64),
            log_defaults=cluster.log_defaults,
            replica_lag_time_max_ms=cluster.lag_max_ms,
            flush_interval_ms=3_000,
            checkpoint_interval_ms=1_000,
            retention_check_interval_ms=1_000,
            retention_clock_settle_ms=2_000,
            cleaner_backoff_ms=1_000,
            scrub_interval_ms=2_000,
        )
        clock = LoopClock(cluster.loop, wall_skew_ms=rng.randrange(-200, 200))
        broker = Broker(
            settings,
            files=self.files,
            store=cluster.etcd.connect(self.name),
            network=host,
            links=lambda manager: host.links(manager.storage.cache),
            clock=clock,
            blocking=InlineBlocking(cluster.loop, self.name),
            rng=rng,
            new_id=lambda: f"incarnation-{self.name}-{rng.getrandbits(32):08x}",
            say=self._say(),
        )
        self.broker = broker
        process.spawn("broker", self._run(broker))

    def hosted(self, partition: TopicPartition) -> Hosted | None:
        """Its replica of a partition, if it has one now."""
        if self.broker is None or self.broker.replicas is None:
            return None
        return self.broker.replicas.get(partition)

    async def _run(self, broker: Broker) -> None:
        try:
            await broker.start()
        except (TailraceError, OSError) as error:
            self._end_refused(error)
            return
        await broker.failed.wait()
        if isinstance(broker.failure, StartAnew):
            self._start_anew()
            return
        self._end_refused(broker.failure or RuntimeError("a broker failed"))

    def _end_refused(self, error: BaseException) -> None:
        """The process ends with the reason. It may do so only on a disk that is not what it was."""
        process = self.process
        self.refusal = error
        self._say()(f"ends: {error!r}")
        if not self.is_harmed:
            self.cluster.problems.append(f"{self.name} failed: {error!r}")
            raise error
        if process is not None:
            run_outside(self._ended, process)

    async def stop(self) -> None:
        """SIGTERM: hand over, then stop in order."""
        broker, process = self.broker, self.process
        if broker is None or process is None or not self.is_up:
            return

        async def leave() -> None:
            try:
                await broker.hand_over()
                await broker.stop()
            except (TailraceError, OSError) as error:
                self._say()(f"stopped with an error: {error}")
            # The process ends with it, whether or not anybody still waits for that.
            run_outside(self._ended, process)

        process.spawn("stop", leave())
        await process.killed()

    def _ended(self, process: Process) -> None:
        process.kill()
        if self.process is process:
            self.files.crash(power_loss=False)


class ControllerNode(Node):
    """A controller; it keeps nothing."""

    def __init__(self, cluster: SimCluster, number: int) -> None:
        super().__init__(cluster, f"c{number}", number)
        self.controller: Controller | None = None

    def start(self) -> None:
        if self.is_up:
            return
        cluster = self.cluster
        process, host, rng = self._begin()
        controller = Controller(
            ControllerSettings(
                controller_id=self.number,
                listen=f"{self.name}:{CONTROLLER_PORT}",
                log_defaults=cluster.log_defaults,
                group_shards=GROUP_SHARDS,
            ),
            store=cluster.etcd.connect(self.name),
            network=host,
            clock=LoopClock(cluster.loop, wall_skew_ms=rng.randrange(-200, 200)),
            rng=rng,
            say=self._say(),
        )
        self.controller = controller
        process.spawn("controller", self._run(controller))

    async def _run(self, controller: Controller) -> None:
        try:
            await controller.start()
            await controller.run()
        except StartAnew:
            self._start_anew()


class CoordinatorNode(Node):
    """A coordinator of groups; it keeps nothing."""

    def __init__(self, cluster: SimCluster, number: int) -> None:
        super().__init__(cluster, f"k{number}", number)
        self.coordinator: Coordinator | None = None
        # What its next life traces with.
        self.traces: RebalanceTraces | None = None

    def start(self) -> None:
        if self.is_up:
            return
        cluster = self.cluster
        process, host, rng = self._begin()
        coordinator = Coordinator(
            CoordinatorSettings(
                coordinator_id=self.number, listen=f"{self.name}:{COORDINATOR_PORT}"
            ),
            store=cluster.etcd.connect(self.name),
            network=host,
            clock=LoopClock(cluster.loop, wall_skew_ms=rng.randrange(-200, 200)),
            rng=rng,
            say=self._say(),
            traces=self.traces,
        )
        self.coordinator = coordinator
        process.spawn("coordinator", self._run(coordinator))

    async def _run(self, coordinator: Coordinator) -> None:
        await coordinator.start()
        await coordinator.failed.wait()
        if isinstance(coordinator.failure, StartAnew):
            self._start_anew()
            return
        self.cluster.problems.append(f"{self.name} failed: {coordinator.failure!r}")
        raise coordinator.failure or RuntimeError("a coordinator failed")

    async def stop(self) -> None:
        """SIGTERM: the registration goes first."""
        coordinator, process = self.coordinator, self.process
        if coordinator is None or process is None or not self.is_up:
            return

        async def leave() -> None:
            await coordinator.stop()
            run_outside(process.kill)

        process.spawn("stop", leave())
        await process.killed()


class SimCluster:
    """Brokers, controllers, a store and the network between them."""

    def __init__(
        self,
        loop: SimLoop,
        *,
        brokers: int = 3,
        controllers: int = 2,
        coordinators: int = 0,
        lag_max_ms: int = 3_000,
    ) -> None:
        self.loop = loop
        self.lag_max_ms = lag_max_ms
        self.log_defaults = LogConfig(segment_bytes=64 * 1024)
        self.network = SimNetwork(loop)
        self.etcd = SimEtcd(loop.fork_rng("etcd"))
        self.problems: list[str] = []
        self.brokers = [BrokerNode(self, number) for number in range(brokers)]
        self.controllers = [ControllerNode(self, 100 + number) for number in range(controllers)]
        self.coordinators = [CoordinatorNode(self, 200 + each) for each in range(coordinators)]
        self._client_count = 0

    @property
    def nodes(self) -> list[BrokerNode | ControllerNode | CoordinatorNode]:
        return [*self.brokers, *self.controllers, *self.coordinators]

    @property
    def bootstrap(self) -> list[str]:
        return [f"{node.name}:{BROKER_PORT}" for node in self.brokers]

    def start_all(self) -> None:
        for node in self.nodes:
            node.resume()
            node.start()

    def client_host(self, name: str) -> tuple[Process, SimHost, Random]:
        self._client_count += 1
        process = self.loop.process(f"{name}#{self._client_count}")
        host = self.network.host(name, process)
        return process, host, self.loop.fork_rng(f"{name}#{self._client_count}")

    def producer(self, name: str, **settings: object) -> tuple[Process, Callable[[], ProducerCore]]:
        """A process with a producer in it; call the function inside of that process."""
        process, host, rng = self.client_host(name)

        def make() -> ProducerCore:
            return ProducerCore(
                self.bootstrap,
                ProducerSettings(**settings),  # type: ignore[arg-type]
                network=host,
                clock=LoopClock(self.loop),
                rng=rng,
            )

        return process, make

    async def active_controller(self, *, timeout_s: float = 30) -> ControllerNode:
        """The controller that reigns, as far as it knows itself."""
        async with asyncio.timeout(timeout_s):
            while True:
                for node in self.controllers:
                    controller = node.controller
                    if node.is_up and not node.is_paused and controller and controller.image:
                        return node
                await asyncio.sleep(0.05)

    async def create_topic(
        self, name: str, *, partitions: int, config: dict[str, str] | None = None
    ) -> None:
        request = controller_pb2.CreateTopicRequest(
            name=name, partitions=partitions, replication_factor=3, config=config or {}
        )
        await self.ask_controller(methods.CONTROLLER_CREATE_TOPIC, request)

    async def delete_topic(self, name: str) -> None:
        """Have it deleted; it may take a while until the name is free."""
        request = controller_pb2.DeleteTopicRequest(name=name)
        await self.ask_controller(methods.CONTROLLER_DELETE_TOPIC, request)

    def topics(self) -> list[str]:
        """As the store has them."""
        entries = self.etcd.right.snapshot(TOPICS).entries
        places = [place_of(entry.key) for entry in entries]
        return [each.name for each in places if each is not None and each.kind is Kind.TOPIC]

    def assignment(self, topic: str) -> dict[int, tuple[int, ...]]:
        """The replicas of each partition as the store has them; nothing: there is no such topic."""
        entry = self.etcd.right.get(topic_key(topic))
        if entry is None:
            return {}
        record = decode(TopicRecord, entry.value, key=entry.key)
        return {number: tuple(record.assignment[number]) for number in sorted(record.assignment)}

    async def ask_once(self, method: Method[Any, Any], request: Any, *, timeout_s: float) -> Any:
        """Ask whoever says that it is the active controller; None when no answer came."""
        process, host, _ = self.client_host("admin")
        try:
            async with asyncio.timeout(timeout_s):
                node = await self.active_controller()
                channel = host.channel(f"{node.name}:{CONTROLLER_PORT}")
                call = channel.call(method, request, timeout_ms=int(timeout_s * 1000))
                return await process.spawn(method.name, _answer(call))
        except TimeoutError:
            return None

    async def ask_controller(self, method: Method[Any, Any], request: Any) -> Any:
        """Ask the active controller, again and again until it says yes."""
        process, host, _ = self.client_host("admin")
        answer: Any = None
        for _ in range(100):
            node = await self.active_controller()
            channel = host.channel(f"{node.name}:{CONTROLLER_PORT}")
            call = channel.call(method, request, timeout_ms=5_000)
            answer = await process.spawn(method.name, _caught(call))
            await channel.close()
            if not isinstance(answer, str):
                return answer
            await asyncio.sleep(0.2)
        raise AssertionError(f"{method.name} was never done: {answer}")


async def _answer(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except TailraceError:
        return None


async def _caught(call: Awaitable[Any]) -> Any:
    """The answer, or what went wrong in words."""
    try:
        response = await call
    except TailraceError as error:
        return str(error)
    return (response.message or "refused") if response.error else response
