"""A model of a cluster, for tests of clients: brokers and a controller that keep the real rules.

Partitions are lists of batches with the shipped `ProducerStates`; replication is a delay after
which a batch is committed. What is not committed is lost when the leader changes, if the test says
so. It runs on any `Network`: on simulated wires, and on gRPC for the faces that programs use.

`fate` decides what happens to each produce request: see `Fate`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum, auto
from itertools import chain, repeat
from typing import Any, Final, NamedTuple

from simulation.model_coordinator import ModelCoordinators
from tailrace.errors import (
    BatchTooLarge,
    FencedEpoch,
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    ProducerFenced,
    RequestTooLarge,
    TailraceError,
    Truncated,
    UnknownEpoch,
    UnknownTopic,
    UnknownTopicId,
    Unreachable,
)
from tailrace.log.producers import ProducerStates
from tailrace.model import TopicPartition
from tailrace.record.header import BatchHeader, split, stamp, verify
from tailrace.record.view import BatchView
from tailrace.runtime import Tasks
from tailrace.transport import methods
from tailrace.transport.addresses import split_address
from tailrace.transport.envelopes import (
    FetchResponse,
    Named,
    PartitionBatches,
    PartitionFetched,
    ProduceRequest,
)
from tailrace.transport.rpc import Handler, Method, Network, Server, Stream
from tailrace.transport.wire import code_of, from_partition, to_partition
from tailrace.v1 import broker_pb2 as pb
from tailrace.v1 import common_pb2, controller_pb2

CONTROLLER_ID: Final = 100
CLUSTER_ID: Final = "model"
GROUP_SHARDS: Final = 50


class Fate(Enum):
    """What happens to a produce request."""

    SERVED = auto()
    LOST = auto()
    """The stream breaks before the request is looked at."""
    UNANSWERED = auto()
    """Appended, then the stream breaks."""
    LATE = auto()
    """The stream breaks, and the broker gets to the request only later."""
    REFUSED = auto()
    """Overloaded: nothing is appended."""
    PARTLY = auto()
    """Its first partition is refused, the others are served, all in one answer."""
    TOO_LARGE = auto()
    """More than the broker reads at once: nothing is appended."""
    IGNORED = auto()
    """The broker hangs: no answer, and the stream stays as it is."""


class Entry(NamedTuple):
    header: BatchHeader
    data: bytes


class ModelPartition:
    """One partition's log, wherever its leader is."""

    def __init__(self, partition: TopicPartition, topic_id: str, replicas: tuple[int, ...]) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.replicas = replicas
        self.isr = replicas
        self.leader = replicas[0] if replicas else -1
        self.leader_epoch = 0
        self.entries: list[Entry] = []
        self.states = ProducerStates()
        self.committed = 0
        self.log_start = 0
        self.batch_bytes_max = 1 << 30
        self.changed = asyncio.Event()

    @property
    def end(self) -> int:
        return self.entries[-1].header.next_offset if self.entries else self.log_start

    def append(self, data: bytes, *, broker: int, epoch: int) -> list[pb.BatchProduced]:
        """Raises what a real leader refuses with; results are those of a real leader."""
        self.check_leader(broker, epoch)
        for position, header in split(data):
            verify(data, position, header)
            if header.length > self.batch_bytes_max:
                raise BatchTooLarge(f"{header.length} bytes, limit {self.batch_bytes_max}")
        return [
            self._append_one(data[position : position + header.length], header)
            for position, header in split(data)
        ]

    def check_leader(self, broker: int, epoch: int) -> None:
        if broker != self.leader:
            raise NotLeader(f"{self.partition} is led by {self.leader}")
        if 0 <= epoch < self.leader_epoch:
            raise FencedEpoch(f"{epoch}, here {self.leader_epoch}")
        if epoch > self.leader_epoch:
            raise UnknownEpoch(f"{epoch}, here {self.leader_epoch}")

    def _append_one(self, data: bytes, header: BatchHeader) -> pb.BatchProduced:
        if header.producer_id >= 0:
            try:
                found = self.states.check(
                    producer_id=header.producer_id,
                    producer_epoch=header.producer_epoch,
                    base_sequence=header.base_sequence,
                    record_count=header.record_count,
                )
            except TailraceError as error:
                result = pb.BatchProduced(error=code_of(error), message=str(error))
                due = self._due(header)
                if due is not None:
                    result.due_sequence = due
                return result
            if found is not None:
                return pb.BatchProduced(
                    base_offset=found.base_offset,
                    last_offset=found.last_offset,
                    timestamp_ms=found.timestamp_ms,
                    duplicate=True,
                )
        placed = bytearray(data)
        stamp(placed, base_offset=self.end, leader_epoch=self.leader_epoch)
        self.store(bytes(placed))
        stored = self.entries[-1].header
        return pb.BatchProduced(
            base_offset=stored.base_offset,
            last_offset=stored.last_offset,
            timestamp_ms=stored.max_timestamp_ms,
        )

    def _due(self, header: BatchHeader) -> int | None:
        for entry in self.states.entries():
            is_same = entry.producer_id == header.producer_id
            if is_same and entry.producer_epoch == header.producer_epoch and entry.batches:
                return entry.batches[-1].last_sequence + 1
        return None

    def store(self, data: bytes) -> None:
        header = BatchView(data).header
        self.entries.append(Entry(header, data))
        self._remember(header)

    def _remember(self, header: BatchHeader) -> None:
        if header.producer_id >= 0:
            self.states.update(
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                last_sequence=header.last_sequence,
                base_offset=header.base_offset,
                last_offset=header.last_offset,
                timestamp_ms=header.max_timestamp_ms,
                now_ms=0,
            )

    def commit(self, offset: int) -> None:
        if self.committed < offset <= self.end:
            self.committed = offset
            self.notify()

    def truncate(self, offset: int) -> None:
        """Cut the log; what is known of producers is what is left of them in it."""
        self.entries = [each for each in self.entries if each.header.next_offset <= offset]
        self.committed = min(self.committed, self.end)
        self.forget_producers()
        for entry in self.entries:
            self._remember(entry.header)

    def forget_producers(self) -> None:
        self.states = ProducerStates()

    def notify(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def records(self) -> list[bytes]:
        """The values of all committed records, in order."""
        return [
            record.value or b""
            for entry in self.entries
            if entry.header.next_offset <= self.committed
            for record in BatchView(entry.data).records()
        ]


class ModelCluster:
    """Brokers 0 to n - 1 and one controller. Each gets its network from `network_for`."""

    def __init__(
        self, network_for: Callable[[str], Network], *, brokers: int = 3, address: str = "{name}:0"
    ) -> None:
        self._network_for = network_for
        self._address = address
        self.brokers = {number: ModelBroker(self, number) for number in range(brokers)}
        self.controller = ModelController(self)
        self.coordinators = ModelCoordinators(range(200, 202))
        self.partitions: dict[TopicPartition, ModelPartition] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.revision, self.changed = 0, asyncio.Event()
        self.alive = dict.fromkeys(self.brokers, True)
        self.fate: Callable[[], Fate] = lambda: Fate.SERVED
        self.late_s: Callable[[], float] = lambda: 0.05
        self.commit_lag_s: Callable[[], float] = lambda: 0.0
        self.tasks = Tasks(lambda name, error: self.problems.append(f"{name}: {error!r}"))
        self.problems, self.requests = list[str](), 0
        # The client ids that produce and fetch streams have told.
        self.clients: list[str] = []
        self.request_bytes_max = 1 << 40
        self.retry_after_ms = self.throttle_ms = 0

    async def start(self) -> None:
        for number, broker in self.brokers.items():
            name = f"b{number}"
            await broker.start(self._network_for(name), self._address.format(name=name))
        name = f"c{CONTROLLER_ID}"
        await self.controller.start(self._network_for(name), self._address.format(name=name))
        await self.coordinators.start(self._network_for, self._address)

    async def stop(self) -> None:
        await self.tasks.close()
        await self.coordinators.stop()
        servers = [*(broker.server for broker in self.brokers.values()), self.controller.server]
        for server in filter(None, servers):
            await server.stop(grace_ms=0)

    @property
    def bootstrap(self) -> list[str]:
        return [broker.address for broker in self.brokers.values()]

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        self.configs[topic] = config
        self._lay_out(topic, f"id-{topic}-{self.revision}", range(partitions))

    def add_partitions(self, topic: str, partitions: int) -> None:
        there = len([each for each in self.partitions if each.topic == topic])
        self._lay_out(topic, self.get(topic).topic_id, range(there, partitions))

    def _lay_out(self, topic: str, topic_id: str, numbers: range) -> None:
        for number in numbers:
            replicas = tuple((number + each) % len(self.brokers) for each in self.brokers)
            partition = TopicPartition(topic, number)
            self.partitions[partition] = ModelPartition(partition, topic_id, replicas)
        self.tell()

    def delete(self, topic: str) -> None:
        for partition in [each for each in self.partitions if each.topic == topic]:
            self.partitions.pop(partition).notify()
        self.tell()

    def get(self, topic: str, number: int = 0) -> ModelPartition:
        return self.partitions[TopicPartition(topic, number)]

    def move(self, partition: ModelPartition, leader: int, *, lose_tail: bool = False) -> None:
        """Another leader (-1: none), in a new epoch."""
        if lose_tail:
            partition.truncate(partition.committed)
        partition.leader = leader
        partition.leader_epoch += 1
        partition.commit(partition.end)
        partition.notify()
        self.tell()

    def move_groups(self, owner: int) -> None:
        """Another coordinator owns all groups."""
        self.coordinators.move(owner)
        self.tell()

    def tell(self) -> None:
        """Everybody who follows the metadata gets a new picture."""
        self.revision += 1
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def metadata(self) -> common_pb2.ClusterMetadata:
        topics = sorted({each.topic for each in self.partitions})
        return common_pb2.ClusterMetadata(
            revision=self.revision,
            cluster_id=CLUSTER_ID,
            brokers=[
                _endpoint(number, broker.address)
                for number, broker in self.brokers.items()
                if self.alive[number]
            ],
            controller=_endpoint(CONTROLLER_ID, self.controller.address)
            if self.controller.is_active
            else None,
            topics=[self.topic_metadata(topic) for topic in topics],
            coordinators=[
                _endpoint(number, each.address) for number, each in self.coordinators.all.items()
            ],
            group_shards=[
                common_pb2.GroupShard(owner=self.coordinators.owner, epoch=self.coordinators.epoch)
            ]
            * GROUP_SHARDS,
        )

    def topic_metadata(self, topic: str) -> common_pb2.TopicMetadata:
        mine = [each for each in self.partitions.values() if each.partition.topic == topic]
        return common_pb2.TopicMetadata(
            name=topic,
            topic_id=mine[0].topic_id,
            config=self.configs[topic],
            partitions=[
                common_pb2.PartitionMetadata(
                    partition=each.partition.partition,
                    leader=each.leader,
                    leader_epoch=each.leader_epoch,
                    replicas=each.replicas,
                    isr=each.isr,
                )
                for each in mine
            ],
        )


class ModelBroker:
    """Serves clients as a broker does."""

    def __init__(self, cluster: ModelCluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.address = ""
        self.server: Server | None = None
        # While it is set, followers of the metadata hear nothing from here.
        self.is_deaf = self.is_behind = False

    async def start(self, network: Network, address: str) -> None:
        self.server = await network.serve(address, self.handlers())
        self.address = self.server.address

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.BROKER_PRODUCE: self.produce,
            methods.BROKER_FETCH: self.fetch,
            methods.BROKER_LIST_OFFSETS: self.list_offsets,
            methods.BROKER_WATCH_METADATA: self.watch,
        }

    async def watch(self, _: Any, stream: Stream[Any, Any]) -> None:
        with suppress(Unreachable):
            while True:
                changed = self.cluster.changed
                if not self.is_deaf:
                    await stream.send(pb.WatchMetadataResponse(metadata=self.cluster.metadata()))
                await changed.wait()

    async def produce(self, stream: Stream[pb.ProduceResponse, ProduceRequest]) -> None:
        tasks = Tasks(lambda _, __: stream.cancel())
        try:
            while (request := await stream.recv()) is not None:
                fate = self.cluster.fate()
                self.cluster.requests += 1
                self.cluster.clients += [request.client_id] if request.client_id else []
                if fate is Fate.LOST:
                    return
                if fate is Fate.LATE:
                    self.cluster.tasks.spawn("a late request", self._late(request))
                    return
                size = sum(len(part.batches) for part in request.partitions)
                if size > self.cluster.request_bytes_max:
                    fate = Fate.TOO_LARGE
                first = Fate.REFUSED if fate is Fate.PARTLY else fate
                parts = [*map(self._append, request.partitions, chain([first], repeat(fate)))]
                if fate is Fate.UNANSWERED:
                    return
                if fate is not Fate.IGNORED and request.acks != pb.ACKS_NONE:
                    tasks.spawn("answer", self._answer(stream, request.correlation, parts))
        except Unreachable:
            return
        finally:
            await tasks.close()

    async def _late(self, request: ProduceRequest) -> None:
        await asyncio.sleep(self.cluster.late_s())
        for part in request.partitions:
            self._append(part, Fate.SERVED)

    def _append(self, part: PartitionBatches, fate: Fate) -> pb.PartitionProduced:
        answer = pb.PartitionProduced(
            partition=to_partition(part.partition), leader=-1, leader_epoch=-1
        )
        found: ModelPartition | None = None
        try:
            if fate is Fate.REFUSED:
                answer.retry_after_ms = self.cluster.retry_after_ms
                raise Overloaded("too much at the moment")
            if fate is Fate.TOO_LARGE:
                raise RequestTooLarge("more than this broker reads at once")
            found = self.find(part.partition, part.topic_id)
            results = found.append(bytes(part.batches), broker=self.number, epoch=part.leader_epoch)
        except TailraceError as error:
            answer.error, answer.message = code_of(error), str(error)
            if isinstance(error, NotLeader) and found is not None:
                answer.leader, answer.leader_epoch = found.leader, found.leader_epoch
            return answer
        answer.batches.extend(results)
        answer.error = next((each.error for each in results if each.error), answer.error)
        self.cluster.tasks.spawn("commit", self._commit(found, found.end))
        return answer

    async def _commit(self, partition: ModelPartition, offset: int) -> None:
        lag_s, epoch = self.cluster.commit_lag_s(), partition.leader_epoch
        if lag_s:
            await asyncio.sleep(lag_s)
        if partition.leader_epoch == epoch:
            partition.commit(offset)

    async def _answer(
        self,
        stream: Stream[pb.ProduceResponse, Any],
        correlation: int,
        parts: list[pb.PartitionProduced],
    ) -> None:
        for part in parts:
            if not part.error:
                await self._wait_for_commit(part)
        await stream.send(
            pb.ProduceResponse(
                correlation=correlation, partitions=parts, throttle_ms=self.cluster.throttle_ms
            )
        )

    async def _wait_for_commit(self, part: pb.PartitionProduced) -> None:
        try:
            found = self.find(part.partition, "")
            epoch = found.leader_epoch
            while found.committed <= part.batches[-1].last_offset:
                changed = found.changed
                await changed.wait()
                found.check_leader(self.number, epoch)
        except TailraceError as error:
            part.error, part.message = code_of(error), str(error)

    def find(self, partition: Named, topic_id: str) -> ModelPartition:
        found = self.cluster.partitions.get(from_partition(partition))
        if found is None or self.is_behind:
            raise UnknownTopic(f"no {partition.topic}-{partition.partition} here")
        if topic_id and found.topic_id != topic_id:
            raise UnknownTopicId(f"{found.topic_id} is here, not {topic_id}")
        return found

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        return pb.ListOffsetsResponse(offsets=[self._offset(each) for each in request.queries])

    def _offset(self, query: pb.OffsetQuery) -> pb.OffsetFound:
        found = pb.OffsetFound(partition=query.partition, offset=-1, timestamp_ms=-1)
        try:
            log = self.find(query.partition, "")
            log.check_leader(self.number, -1)
        except TailraceError as error:
            found.error, found.message = code_of(error), str(error)
            return found
        found.leader_epoch = log.leader_epoch
        if query.position == pb.OFFSET_POSITION_EARLIEST:
            found.offset = log.log_start
        elif query.position == pb.OFFSET_POSITION_LATEST:
            found.offset = log.committed
        else:
            for entry in log.entries:
                for record in BatchView(entry.data).records():
                    if found.offset < 0 and record.timestamp_ms >= query.timestamp_ms:
                        found.offset, found.timestamp_ms = record.offset, record.timestamp_ms
        return found

    async def fetch(self, stream: Stream[FetchResponse, pb.FetchRequest]) -> None:
        session = _FetchSession(self, stream)
        await session.run()


class _FetchSession:
    """A fetch stream: a task for each partition, which share the credit."""

    def __init__(self, broker: ModelBroker, stream: Stream[FetchResponse, pb.FetchRequest]) -> None:
        self._broker = broker
        self._stream = stream
        self._credit = 0
        self._credited = asyncio.Event()
        self._max_wait_ms = 500
        # What is read now; what was asked for before may still push once more.
        self._wanted: dict[TopicPartition, pb.FetchPartition] = {}

    async def run(self) -> None:
        tasks = Tasks(lambda _, __: self._stream.cancel())
        try:
            while (request := await self._stream.recv()) is not None:
                self._credit += request.credit_bytes
                self._broker.cluster.clients += [request.client_id] if request.client_id else []
                self._max_wait_ms = request.max_wait_ms or self._max_wait_ms
                self._credited.set()
                for each in request.remove:
                    self._wanted.pop(from_partition(each), None)
                for wanted in request.add:
                    self._wanted[from_partition(wanted.partition)] = wanted
                    tasks.spawn("push", self._push(wanted))
        except Unreachable:
            return
        finally:
            await tasks.close()

    async def _push(self, wanted: pb.FetchPartition) -> None:
        partition, offset = wanted.partition, wanted.offset
        try:
            log = self._broker.find(partition, wanted.topic_id)
            log.check_leader(self._broker.number, wanted.leader_epoch)
            _check_agreement(log, wanted)
            while self._wanted.get(log.partition) is wanted:
                log.check_leader(self._broker.number, -1)
                self._broker.find(partition, wanted.topic_id)
                offset = await self._push_some(log, wanted, offset)
        except TailraceError as error:
            found = self._broker.cluster.partitions.get(from_partition(partition))
            refusal = PartitionFetched(
                partition=partition,
                error=code_of(error),
                message=str(error),
                leader=-1,
                tag=wanted.tag,
            )
            if found is not None:
                refusal.log_start, refusal.high_watermark = found.log_start, found.committed
                refusal.leader_epoch = found.leader_epoch
                refusal.leader = -1 if found.leader == self._broker.number else found.leader
            refusal.agreed_offset = getattr(error, "agreed_offset", -1)
            await self._stream.send(FetchResponse(partitions=[refusal]))

    async def _push_some(self, log: ModelPartition, wanted: pb.FetchPartition, offset: int) -> int:
        """Push what is there and credited, or wait for one of both; return where to go on."""
        if self._credit <= 0:
            self._credited.clear()
            await self._credited.wait()
            return offset
        room = min(wanted.bytes_max or 1 << 20, self._credit)
        data, changed = b"", log.changed
        for entry in log.entries:
            header = entry.header
            is_beyond = 0 < wanted.end_offset <= header.base_offset
            if is_beyond or header.next_offset <= offset or header.next_offset > log.committed:
                continue
            if data and len(data) + header.length > room:
                break
            data += entry.data
            offset = header.next_offset
        if not data:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._max_wait_ms / 1000):
                    await changed.wait()
                return offset
        self._credit -= len(data)
        pushed = PartitionFetched(
            partition=to_partition(log.partition),
            high_watermark=log.committed,
            log_start=log.log_start,
            batches=data,
            leader=-1,
            leader_epoch=log.leader_epoch,
            tag=wanted.tag,
        )
        await self._stream.send(FetchResponse(partitions=[pushed]))
        return offset


class ModelController:
    """Hands out producers' ids, makes and deletes topics."""

    def __init__(self, cluster: ModelCluster) -> None:
        self.cluster = cluster
        self.address = ""
        self.server: Server | None = None
        self.is_active, self.creates = True, False
        self.named: dict[str, tuple[int, int]] = {}
        self.next_id = 1
        # Answers of the next calls, instead of doing anything.
        self.errors: list[TailraceError] = []
        self.lag_s: Callable[[], float] = lambda: 0.0

    async def start(self, network: Network, address: str) -> None:
        self.server = await network.serve(
            address,
            {
                methods.CONTROLLER_INIT_PRODUCER: self.init_producer,
                methods.CONTROLLER_CREATE_TOPIC: self.create_topic,
                methods.CONTROLLER_DELETE_TOPIC: self.delete_topic,
                methods.CONTROLLER_EXPLAIN: self.explain,
                methods.CONTROLLER_FENCE_BROKER: self.fence_broker,
            },
        )
        self.address = self.server.address

    async def init_producer(
        self, request: controller_pb2.InitProducerRequest
    ) -> controller_pb2.InitProducerResponse:
        response = controller_pb2.InitProducerResponse()
        await asyncio.sleep(self.lag_s())
        if self._refuses(response):
            return response
        known = self.named.get(request.name) if request.name else None
        if known is not None and request.producer_id > 0 and known[1] > request.producer_epoch:
            error = ProducerFenced(f"{request.name} was started again")
            response.error, response.message = code_of(error), str(error)
            return response
        if known is None and request.producer_id > 0:
            known = (request.producer_id, request.producer_epoch)
        if known is None:
            found = (self.next_id, 0)
            self.next_id += 1
        else:
            found = (known[0], known[1] + 1)
        if request.name:
            self.named[request.name] = found
        response.producer_id, response.producer_epoch = found
        return response

    async def create_topic(
        self, request: controller_pb2.CreateTopicRequest
    ) -> controller_pb2.CreateTopicResponse:
        response = controller_pb2.CreateTopicResponse()
        if request.automatic and not self.creates:
            response.error = code_of(UnknownTopic(""))
        elif not self._refuses(response):
            self.cluster.create(request.name, request.partitions or 1, **dict(request.config))
            response.topic.CopyFrom(self.cluster.topic_metadata(request.name))
        return response

    async def delete_topic(
        self, request: controller_pb2.DeleteTopicRequest
    ) -> controller_pb2.DeleteTopicResponse:
        response = controller_pb2.DeleteTopicResponse()
        if not self._refuses(response):
            self.cluster.delete(request.name)
        return response

    async def explain(
        self, request: controller_pb2.ExplainRequest
    ) -> controller_pb2.ExplainResponse:
        response = controller_pb2.ExplainResponse()
        if not self._refuses(response):
            response.changes.add(cause=f"asked for {request.partition.topic}", new_leader=1)
        return response

    async def fence_broker(
        self, request: controller_pb2.FenceBrokerRequest
    ) -> controller_pb2.FenceBrokerResponse:
        response = controller_pb2.FenceBrokerResponse()
        if not self._refuses(response):
            self.cluster.alive[request.broker_id] = False
            self.cluster.tell()
        return response

    def _refuses(self, response: Any) -> bool:
        if not self.errors:
            return False
        error = self.errors.pop(0)
        response.error, response.message = code_of(error), str(error)
        return True


def _check_agreement(log: ModelPartition, wanted: pb.FetchPartition) -> None:
    if wanted.offset < log.log_start or (wanted.offset > log.end and wanted.last_epoch < 0):
        raise OffsetOutOfRange(wanted.offset, log_start=log.log_start, log_end=log.end)
    if wanted.last_epoch < 0:
        return
    end = max(
        (e.header.next_offset for e in log.entries if e.header.leader_epoch <= wanted.last_epoch),
        default=log.log_start,
    )
    if end < wanted.offset:
        error = Truncated(f"{log.partition}: cut at {end}")
        error.agreed_offset = end
        raise error


def _endpoint(number: int, address: str) -> common_pb2.Endpoint:
    host, port = split_address(address)
    return common_pb2.Endpoint(id=number, host=host, port=port, rack=f"r{number}")
