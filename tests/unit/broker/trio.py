"""Brokers in a virtual-time loop, driven by hand-made orders: the tests play the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any

from simulation.loop import InlineBlocking, LoopClock, Process, SimLoop, run
from simulation.network import SimNetwork
from simulation.storage import SimFiles
from tailrace.broker.broker import Broker
from tailrace.broker.hosted import Hosted
from tailrace.broker.replicas import Replicas
from tailrace.broker.settings import BrokerSettings
from tailrace.config import FolderConfig
from tailrace.log.disk_faults import DiskFaults, FaultyFiles
from tailrace.log.file_cache import FileCache
from tailrace.meta.keys import (
    CLUSTER,
    CONTROLLER,
    CONTROLLER_EPOCH,
    BrokerRegistration,
    ClusterRecord,
    ControllerRecord,
    PartitionState,
    TermRecord,
    TopicDeletion,
    TopicRecord,
    TopicTombstone,
    broker_key,
    decode,
    deletion_key,
    encode,
    encode_counter,
    state_key,
    term_key,
    tombstone_key,
    topic_key,
)
from tailrace.meta.memory import MemoryEtcd
from tailrace.meta.store import Delete, Put
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition
from tailrace.record.build import BatchBuilder
from tailrace.record.header import split
from tailrace.tracing import Tracer
from tailrace.transport import methods
from tailrace.transport.envelopes import FetchResponse, PartitionBatches, ProduceRequest
from tailrace.transport.rpc import Link, Stream
from tailrace.transport.wire import to_partition
from tailrace.v1 import broker_pb2, control_pb2, replica_pb2
from tailrace.v1.common_pb2 import ClusterMetadata

CLUSTER_ID = "cluster-1"
TOPIC_ID = "id-of-t"
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
ALL = (0, 1, 2)


def simulate(main: Callable[[Trio], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that runs in virtual time, with brokers yet to be started."""

    def test() -> None:
        async def body(loop: SimLoop) -> None:
            trio = Trio(loop)
            # Of virtual time: what waits for ever fails.
            async with asyncio.timeout(120):
                await main(trio)
            assert trio.network.handler_failures == []
            assert [each.failure for each in trio.brokers.values()] == [None] * len(trio.brokers)

        run(body, 1)

    test.__name__ = getattr(main, "__name__", "test")
    test.__doc__ = main.__doc__
    return test


def batch(count: int = 3, *, value: bytes = b"v", timestamp_ms: int = 1) -> bytes:
    builder = BatchBuilder()
    for number in range(count):
        builder.append(value + b"%d" % number, timestamp_ms=timestamp_ms)
    return builder.build()


def next_offset(data: bytes | memoryview) -> int:
    """Where the batches end."""
    end = -1
    for _, header in split(data):
        end = header.next_offset
    return end


async def mark_deleted(trio: Trio, *topic_ids: str, name: str = "t") -> None:
    """The store has it on record that topics of this name were deleted, the last one just now."""
    *former, last = topic_ids or (TOPIC_ID,)
    puts = [Put(deletion_key(name), encode(TopicDeletion(topic_id=TopicId(last))))]
    tombstone = TopicTombstone(name=name, deleted_ms=1, controller_epoch=1)
    puts += [Put(tombstone_key(TopicId(each)), encode(tombstone)) for each in former]
    await trio.store.txn([], puts)


async def assign(
    trio: Trio, replicas: Sequence[int], *, topic_id: str = TOPIC_ID, name: str = "t"
) -> None:
    """The store has it on record which brokers have a replica of partition 0."""
    record = TopicRecord(
        topic_id=TopicId(topic_id), assignment={0: tuple(map(BrokerId, replicas))}, config={}
    )
    await trio.store.txn([], [Put(topic_key(name), encode(record))])


class Trio:
    """Up to three brokers, their store and network, and a host `ctl` that the test acts from."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.clock = LoopClock(loop)
        self.network = SimNetwork(loop)
        self.etcd = MemoryEtcd()
        self.store = self.etcd.connect()
        self.host = self.network.host("ctl", loop.process("ctl"))
        self.brokers: dict[int, Broker] = {}
        self.processes: dict[int, Process] = {}
        self.files = {number: SimFiles(number) for number in ALL}
        # What is wrong with the disks of each broker.
        self.faults = {number: DiskFaults() for number in ALL}
        self.said: list[str] = []
        # What brokers that are made from now on trace with.
        self.tracer: Tracer | None = None

    async def start(self, *numbers: int, **settings: Any) -> None:
        """Start brokers (all three unless told) and wait until they are registered."""
        await self.store.txn([], [Put(CLUSTER, encode(ClusterRecord(cluster_id=CLUSTER_ID)))])
        await self.elect(1)
        for number in numbers or ALL:
            await self.start_broker(number, **settings)
        await self.until(lambda: all(each.epoch for each in self.brokers.values()))

    def make(self, number: int, **settings: Any) -> tuple[Process, Broker]:
        """A broker that was not started yet, and the process it is to run in."""
        name = f"b{number}"
        process = self.loop.process(name)
        host = self.network.host(name, process)
        broker = Broker(
            BrokerSettings(
                broker_id=number,
                listen=f"{name}:9092",
                link_listen=f"{name}:9093",
                control_listen=f"{name}:9095",
                **{"folders": FolderConfig(log_dirs=("/data",)), **settings},
            ),
            files=FaultyFiles(self.files[number], self.faults[number]),
            store=self.etcd.connect(),
            network=host,
            links=lambda manager: host.links(manager.storage.cache),
            clock=self.clock,
            blocking=InlineBlocking(self.loop, name),
            rng=Random(number),
            new_id=lambda: f"incarnation-{number}",
            say=lambda text: self.said.append(f"{name}: {text}"),
            tracer=self.tracer,
        )
        return process, broker

    async def start_broker(self, number: int, **settings: Any) -> Broker:
        process, broker = self.make(number, **settings)
        self.brokers[number], self.processes[number] = broker, process
        await process.spawn("start", broker.start())
        return broker

    async def stop_broker(self, number: int) -> None:
        await self.processes[number].spawn("stop", self.brokers[number].stop())
        self.processes[number].kill()
        self.files[number].crash(power_loss=False)

    async def until(self, is_so: Callable[[], object], *, within_s: float = 30) -> None:
        """Let time pass until something holds."""
        async with asyncio.timeout(within_s):
            while not is_so():  # noqa: ASYNC110 - it is virtual time.
                await asyncio.sleep(0.01)

    def heard(self, text: str) -> bool:
        return any(text in each for each in self.said)

    # As the controller.

    async def elect(self, epoch: int, *, controller_id: int = 9, token: str = "") -> None:
        """The store names this controller from now on; without a token: one of an older version."""
        record = ControllerRecord(controller_id=controller_id, epoch=epoch, host="ctl", port=9090)
        term = TermRecord(controller_id=controller_id, token=token)
        await self.store.txn(
            [],
            [
                Put(CONTROLLER, encode(record)),
                Put(CONTROLLER_EPOCH, encode_counter(epoch)),
                *([Put(term_key(epoch), encode(term))] if token else []),
            ],
        )

    def header(
        self, to: int, *, controller_epoch: int = 1, term_token: str = ""
    ) -> control_pb2.OrderHeader:
        return control_pb2.OrderHeader(
            controller_id=9,
            controller_epoch=controller_epoch,
            term_token=term_token,
            broker_epoch=self.brokers[to].epoch or 0,
            broker_incarnation=self.incarnation(to),
        )

    def incarnation(self, number: int) -> str:
        """What the registration of a broker says."""
        return self.brokers[number]._incarnation()

    async def lead(
        self,
        leader: int,
        epoch: int,
        *,
        isr: Sequence[int] = ALL,
        to: Sequence[int] | None = None,
        partition: TopicPartition = T0,
        topic_id: str = TOPIC_ID,
        replicas: Sequence[int] = ALL,
        config: dict[str, str] | None = None,
        leader_link: str = "",
        adding: Sequence[int] = (),
        unclean_epoch: int = 0,
        leader_process: str = "",
    ) -> list[control_pb2.LeaderAndIsrResponse]:
        """Store a state of the partition and order it to the brokers that run."""
        state = PartitionState(
            controller_epoch=1,
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(epoch),
            isr=tuple(map(BrokerId, isr)),
            last_leader=BrokerId(leader),
            unclean_epoch=unclean_epoch,
        )
        result = await self.store.txn([], [Put(state_key(partition), encode(state))])
        order = control_pb2.PartitionOrder(
            partition=to_partition(partition),
            topic_id=topic_id,
            leader=leader,
            leader_epoch=epoch,
            isr=isr,
            replicas=replicas,
            revision=result.revision,
            leader_link=leader_link or f"b{leader}:9093",
            config=config or {},
            adding=adding,
            unclean_epoch=unclean_epoch,
            leader_process=leader_process,
        )
        targets = sorted(self.brokers) if to is None else to
        return [await self.send_order(each, order) for each in targets]

    async def send_order(
        self, to: int, *orders: control_pb2.PartitionOrder, full: bool = False
    ) -> control_pb2.LeaderAndIsrResponse:
        request = control_pb2.LeaderAndIsrRequest(
            header=self.header(to), partitions=orders, full=full
        )
        return await self.host.channel(f"b{to}:9095").call(
            methods.CONTROL_LEADER_AND_ISR, request, timeout_ms=2_000
        )

    async def stored(self, partition: TopicPartition = T0) -> PartitionState:
        entry = await self.store.get(state_key(partition))
        assert entry is not None
        return decode(PartitionState, entry.value)

    async def tell_metadata(self, to: int, metadata: ClusterMetadata) -> None:
        await self.host.channel(f"b{to}:9095").call(
            methods.CONTROL_UPDATE_METADATA,
            control_pb2.UpdateMetadataRequest(header=self.header(to), metadata=metadata),
            timeout_ms=2_000,
        )

    async def tell_settings(self, to: int, **settings: str) -> None:
        """`__` in a name stands for a dot."""
        dotted = {name.replace("__", "."): text for name, text in settings.items()}
        response = await self.host.channel(f"b{to}:9095").call(
            methods.CONTROL_UPDATE_SETTINGS,
            control_pb2.UpdateSettingsRequest(header=self.header(to), broker=dotted),
            timeout_ms=2_000,
        )
        assert not response.error, response.message

    # As a client.

    def producing(self, to: int = 0) -> Stream[ProduceRequest, broker_pb2.ProduceResponse]:
        return self.host.channel(f"b{to}:9092").open(methods.BROKER_PRODUCE)

    def fetching(self, to: int = 0) -> Stream[broker_pb2.FetchRequest, FetchResponse]:
        return self.host.channel(f"b{to}:9092").open(methods.BROKER_FETCH)

    async def produce(
        self,
        data: bytes | None = None,
        *,
        to: int = 0,
        acks: broker_pb2.Acks.ValueType = broker_pb2.ACKS_ALL,
        partition: TopicPartition = T0,
        topic_id: str = "",
        leader_epoch: int = -1,
        timeout_ms: int = 3_000,
    ) -> broker_pb2.PartitionProduced:
        """One request on a stream of its own."""
        stream = self.producing(to)
        part = PartitionBatches(
            partition=to_partition(partition),
            topic_id=topic_id,
            leader_epoch=leader_epoch,
            batches=batch() if data is None else data,
        )
        await stream.send(
            ProduceRequest(correlation=7, acks=acks, timeout_ms=timeout_ms, partitions=[part])
        )
        response = await stream.recv()
        assert response is not None
        assert response.correlation == 7
        await stream.finish()
        return response.partitions[0]

    # Inside of the brokers.

    def replicas(self, number: int) -> Replicas:
        found = self.brokers[number].replicas
        assert found is not None
        return found

    def hosted(self, number: int, partition: TopicPartition = T0) -> Hosted:
        return self.replicas(number).find(partition)

    def ends(self, partition: TopicPartition = T0) -> list[int]:
        """Where each broker's log ends."""
        return [self.hosted(each, partition).log.log_end for each in sorted(self.brokers)]

    # As another broker, on a bare replica link.

    def cache(self) -> FileCache:
        return FileCache(SimFiles(9), open_files_max=8)

    async def registered(self, number: int, *, anew: bool = False) -> int:
        """The epoch of a broker's registration, which is made (as of an older one) if need be."""
        key = broker_key(number)
        entry = await self.store.get(key)
        if entry is not None and not anew:
            return entry.create_revision
        facts = BrokerRegistration(
            broker_id=BrokerId(number),
            host=f"b{number}",
            port=9092,
            link_host=f"b{number}",
            link_port=9093,
            incarnation=f"incarnation-{number}",
        )
        await self.store.txn([], [Delete(key)])
        return (await self.store.txn([], [Put(key, encode(facts))])).revision

    async def follow_by_hand(
        self, leader: int, hello: replica_pb2.ReplicaHello | None = None, *, number: int = 2
    ) -> Link:
        """A link to a leader, on which a follower has said hello."""
        address = f"b{leader}:9093"
        link = await self.host.links(self.cache()).connect(address, timeout_ms=1_000)
        said = hello or replica_pb2.ReplicaHello(
            broker_id=number,
            broker_epoch=await self.registered(number),
            version=1,
            cluster_id=CLUSTER_ID,
            leader_id=leader,
        )
        await link.send(replica_pb2.ReplicaFrame(hello=said).SerializeToString())
        return link
