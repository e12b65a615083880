"""What clients ask of a broker: produce, list offsets, follow the metadata (fetch: `fetching`).

Every request is answered, with an error if need be; a stream is only broken when it breaks the
rules. Bytes that wait for their replicas are bounded per stream (it is not read on meanwhile) and
in all (refused with OVERLOADED and a hint when to try again; a stream that was refused is not read
on for half of that time, so that who ignores the hint slows down only itself). Answers that a
client does not take are bounded too, and after `client.stall.timeout.ms` the stream is cut off.
A client above its quota is told for how long, and its next request is looked at after that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tailrace.broker.budget import Budget
from tailrace.broker.clients import ClientStream, ClientStreams
from tailrace.broker.guard import ProduceGuard
from tailrace.broker.hosted import Hosted
from tailrace.broker.quotas import ClientQuota, Quotas
from tailrace.broker.replicas import Replicas
from tailrace.broker.settings import BrokerSettings
from tailrace.broker.time_lookups import TimeLookups
from tailrace.clock import Clock
from tailrace.errors import (
    DiskFull,
    InvalidRequest,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OutOfOrderSequence,
    Overloaded,
    RequestTooLarge,
    TailraceError,
    Unreachable,
)
from tailrace.log.admission import BatchResult, BodyVerdict
from tailrace.metrics.values import Traffic
from tailrace.model import TopicPartition, is_internal
from tailrace.replication.partition import Role
from tailrace.runtime import Tasks
from tailrace.transport.envelopes import PartitionBatches, ProduceRequest
from tailrace.transport.rpc import Stream
from tailrace.transport.wire import error_code, from_partition, to_partition
from tailrace.v1 import broker_pb2 as pb
from tailrace.v1.common_pb2 import ClusterMetadata

PRODUCE_TIMEOUT_MS: Final = 30_000
PRODUCE_TIMEOUT_MAX_MS: Final = 600_000
# A disk is measured about once a second.
DISK_FULL_RETRY_MS: Final = 1_000
# What a request takes until it is answered, besides its batches.
REQUEST_OVERHEAD_BYTES: Final = 1_024
# Answers that a client has not taken: with more of them its stream is not read on.
ANSWERS_WAITING_MAX: Final = 256

_ACKS: Final[dict[int, str]] = {pb.ACKS_NONE: "none", pb.ACKS_LEADER: "leader"}

# So many entries of a request are worked on before others have their turn.
ENTRIES_PER_TURN: Final = 500
# A request is appended in one turn of the loop: batches of all its partitions together.
BATCHES_PER_REQUEST_MAX: Final = 5_000


class ProduceService:
    """Serves produce streams."""

    def __init__(
        self,
        settings: BrokerSettings,
        replicas: Replicas,
        clock: Clock,
        clients: ClientStreams,
        quotas: Quotas,
        guard: ProduceGuard,
        *,
        streams: Callable[[ProduceService, ClientStream], ProduceStream] | None = None,
    ) -> None:
        """`streams`: what serves a stream, if not a ProduceStream."""
        self._settings = settings
        self._replicas = replicas
        self._clients = clients
        self._streams = streams or ProduceStream
        self.clock = clock
        self.quotas = quotas
        self.guard = guard
        self.budget = Budget(settings.produce_bytes_max)
        self.counts = replicas.counts

    async def produce(self, stream: Stream[pb.ProduceResponse, ProduceRequest]) -> None:
        """Read requests in order, append at once, answer when the replicas have it."""
        client = self._clients.enter("produce", stream)
        try:
            await self._streams(self, client).run()
        finally:
            self._clients.leave(client)

    def admit(self, size: int) -> TailraceError | None:
        """Take a request of so many bytes in hand, or say why not."""
        limit = self._settings.socket_request_max_bytes
        if size > limit:
            return RequestTooLarge(
                f"a request with {size} bytes of batches exceeds socket.request.max.bytes={limit}"
            )
        if self.budget.admit(size + REQUEST_OVERHEAD_BYTES):
            return None
        return Overloaded(
            f"{self.budget.bytes} bytes already wait for their replicas, "
            f"the limit is produce.bytes.max={self.budget.bytes_max}"
        )

    def release(self, size: int) -> None:
        self.budget.release(size, self.clock.monotonic_ms())

    def answered(self, request: Request) -> None:
        times = self.counts.produced[_ACKS.get(request.acks, "all")]
        times.observe(self.clock.monotonic_ms() - request.began_ms)

    @property
    def retry_after_ms(self) -> int:
        return self.budget.hint_ms()

    @property
    def connection_bytes_max(self) -> int:
        return self._settings.connection_bytes_max

    def append(
        self,
        part: PartitionBatches,
        *,
        acks: int,
        timeout_ms: int,
        bodies: BodyVerdict | None = None,
    ) -> Pending:
        """Append the batches of one partition; what is to be answered may have to wait.

        `bodies`: what the guard found, where it had to look.
        """
        partition = from_partition(part.partition)
        answer = pb.PartitionProduced(partition=to_partition(partition), leader=-1, leader_epoch=-1)
        try:
            hosted = self._replicas.find(partition, part.topic_id)
            acks_all = acks in {pb.ACKS_ALL, pb.ACKS_UNSPECIFIED}
            results = self._replicas.append(
                hosted,
                part.batches,
                leader_epoch=part.leader_epoch,
                acks_all=acks_all,
                bodies=self._believed(hosted, bodies),
            )
        except TailraceError as error:
            self._refuse(answer, partition, error)
            return Pending(answer, None)
        needed = _fill(answer, results, hosted.traffic)
        hosted.traffic.bytes_in += len(part.batches)
        if not acks_all or needed <= hosted.machine.high_watermark:
            return Pending(answer, None)
        deadline_ms = self.clock.monotonic_ms() + timeout_ms
        try:
            waiter = self._replicas.waiting.for_offset(partition, needed, deadline_ms)
        except Overloaded as error:
            # It is appended: the client learns where, and that nobody vouches for it yet.
            self._refuse(answer, partition, error)
            return Pending(answer, None)
        return Pending(answer, waiter, hosted)

    def put_off(self, part: PartitionBatches) -> Pending:
        """Refuse what would hold the loop for too long: in a request of its own it goes."""
        partition = from_partition(part.partition)
        answer = pb.PartitionProduced(partition=to_partition(partition), leader=-1, leader_epoch=-1)
        what = f"a request appends {BATCHES_PER_REQUEST_MAX} batches at most, send the rest again"
        self._refuse(answer, partition, Overloaded(what))
        return Pending(answer, None)

    @staticmethod
    def _believed(hosted: Hosted, bodies: BodyVerdict | None) -> BodyVerdict | None:
        """Nothing goes to a topic of the cluster's own that the guard has not let pass.

        It has not looked where another led the partition a moment ago: that is tried again.
        """
        if bodies is None and hosted.leads and is_internal(hosted.partition.topic):
            raise NotLeader(f"{hosted.partition}: led here only since a moment ago")
        return bodies

    def confirmed(self, pending: Pending) -> None:
        """The replicas have it, or it failed: complete the answer."""
        waiter = pending.waiter
        if waiter is None:
            return
        error = waiter.result()
        hosted = pending.hosted
        if error is None and hosted is not None:
            machine = hosted.machine
            if machine.role is Role.LEADER and len(machine.isr) < machine.min_insync:
                error = NotEnoughReplicasAfterAppend(
                    f"{hosted.partition}: appended, but only {list(machine.isr)} are in sync"
                )
        if error is not None:
            self._refuse(pending.answer, from_partition(pending.answer.partition), error)

    def _refuse(
        self, answer: pb.PartitionProduced, partition: TopicPartition, error: TailraceError
    ) -> None:
        answer.error = error_code(error.code)
        answer.message = str(error)
        self.counts.produce_refused[error.code] += 1
        hosted = self._replicas.get(partition)
        if isinstance(error, NotLeader) and hosted is not None:
            if hosted.machine.leader != self._replicas.broker_id:
                answer.leader = hosted.machine.leader
            answer.leader_epoch = hosted.machine.leader_epoch
        if isinstance(error, Overloaded):
            answer.retry_after_ms = self.retry_after_ms
        elif isinstance(error, DiskFull):
            answer.retry_after_ms = DISK_FULL_RETRY_MS


class Pending:
    """The answer for one partition, and what it waits for."""

    __slots__ = ("answer", "hosted", "waiter")

    def __init__(
        self,
        answer: pb.PartitionProduced,
        waiter: asyncio.Future[TailraceError | None] | None,
        hosted: Hosted | None = None,
    ) -> None:
        self.answer = answer
        self.waiter = waiter
        self.hosted = hosted


class Request:
    """One produce request until it is answered."""

    __slots__ = ("acks", "began_ms", "correlation", "open", "pending", "size", "throttle_ms")

    def __init__(self, correlation: int, size: int, *, acks: int, began_ms: int) -> None:
        self.correlation = correlation
        self.size = size
        self.acks = acks
        self.began_ms = began_ms
        self.pending: list[Pending] = []
        self.open = 0
        self.throttle_ms = 0


class ProduceStream:
    """One client's stream: requests in, answers out as they finish."""

    def __init__(self, service: ProduceService, client: ClientStream) -> None:
        self._service = service
        self._client = client
        self._stream: Stream[pb.ProduceResponse, ProduceRequest] = client.stream
        self._ready: deque[pb.ProduceResponse] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._bytes = 0
        self._quota: ClientQuota | None = None
        # How long not to read on, in ms.
        self._hold_ms = 0
        self._ended = False

    async def run(self) -> None:
        tasks = Tasks(lambda _, __: self._end())
        tasks.spawn("answer produce requests", self._answer_all())
        try:
            while (request := await self._stream.recv()) is not None:
                self._client.heard()
                quota = self._quota or self._meet(request.client_id)
                if quota.is_limited:
                    owed_ms = quota.produce_wait_ms(self._service.clock.monotonic_ms())
                    await asyncio.sleep(owed_ms / 1000)
                guard = self._service.guard
                if guard.takes_time(request):
                    self.take(request, quota, await guard.prepare(request))
                else:
                    self.take(request, quota)
                if self._hold_ms:
                    hold_ms, self._hold_ms = self._hold_ms, 0
                    await asyncio.sleep(hold_ms / 1000)
                while not self._ended and self._is_full():
                    await self._until_room()
            while not self._ended and (self._bytes or self._ready):
                await self._until_room()
        except Unreachable:
            return
        finally:
            self._ended = True
            await tasks.close()
            self._service.release(self._bytes)
            if self._quota is not None:
                self._service.quotas.leave(self._quota, self._service.clock.monotonic_ms())

    def _meet(self, client_id: str) -> ClientQuota:
        """The first request says who the client is."""
        now_ms = self._service.clock.monotonic_ms()
        self._quota = quota = self._service.quotas.enter(client_id, now_ms)
        self._client.client_id = client_id
        return quota

    def _is_full(self) -> bool:
        is_behind = len(self._ready) >= ANSWERS_WAITING_MAX
        return is_behind or self._bytes > self._service.connection_bytes_max

    async def _until_room(self) -> None:
        self._room.clear()
        await self._room.wait()

    def _end(self) -> None:
        """Answers can be sent no more: the client is gone, or was cut off."""
        self._ended = True
        self._room.set()
        self._stream.cancel()

    def take(
        self,
        message: ProduceRequest,
        quota: ClientQuota,
        verdicts: Sequence[BodyVerdict | None] = (),
    ) -> Request:
        """Append what a request brings; it is answered now, or when the replicas have it.

        `verdicts`: what the guard found, of each partition, where it had to look.
        """
        size = sum(len(part.batches) for part in message.partitions)
        request = Request(
            message.correlation,
            size + REQUEST_OVERHEAD_BYTES,
            acks=message.acks,
            began_ms=self._service.clock.monotonic_ms(),
        )
        if quota.is_limited:
            request.throttle_ms = quota.produced(size, self._service.clock.monotonic_ms())
        error = self._problem(message) or self._service.admit(size)
        if error is not None:
            self._refuse(request, message, error)
            return request
        self._bytes += request.size
        timeout_ms = min(message.timeout_ms or PRODUCE_TIMEOUT_MS, PRODUCE_TIMEOUT_MAX_MS)
        left = BATCHES_PER_REQUEST_MAX
        for index, part in enumerate(message.partitions):
            if left <= 0:
                request.pending.append(self._service.put_off(part))
                continue
            pending = self._service.append(
                part,
                acks=message.acks,
                timeout_ms=timeout_ms,
                bodies=verdicts[index] if verdicts else None,
            )
            left -= max(len(pending.answer.batches), 1)
            request.pending.append(pending)
            if pending.waiter is not None:
                request.open += 1
                pending.waiter.add_done_callback(partial(self._closer, request))
        if request.open == 0:
            self._finish(request)
        return request

    def _refuse(self, request: Request, message: ProduceRequest, error: TailraceError) -> None:
        """Answer the whole request with one error."""
        retry_after_ms = 0
        if isinstance(error, Overloaded):
            retry_after_ms = self._service.retry_after_ms
            self._hold_ms = retry_after_ms // 2
        self._service.counts.produce_refused[error.code] += len(message.partitions)
        for part in message.partitions:
            answer = pb.PartitionProduced(
                partition=to_partition(part.partition),
                leader=-1,
                leader_epoch=-1,
                error=error_code(error.code),
                message=str(error),
                retry_after_ms=retry_after_ms,
            )
            request.pending.append(Pending(answer, None))
        request.size = 0
        self._finish(request)

    def _problem(self, message: ProduceRequest) -> TailraceError | None:
        try:
            named = [from_partition(part.partition) for part in message.partitions]
        except InvalidRequest as error:
            return error
        if not named or len(set(named)) != len(named):
            return InvalidRequest("a produce request names each of its partitions once")
        return None

    def _closer(self, request: Request, _: object) -> None:
        request.open -= 1
        if request.open == 0 and not self._ended:
            for pending in request.pending:
                self._service.confirmed(pending)
            self._finish(request)

    def _finish(self, request: Request) -> None:
        self._bytes -= request.size
        self._service.release(request.size)
        self._service.answered(request)
        if request.acks != pb.ACKS_NONE:
            answers = [pending.answer for pending in request.pending]
            self._ready.append(
                pb.ProduceResponse(
                    correlation=request.correlation,
                    partitions=answers,
                    throttle_ms=request.throttle_ms,
                )
            )
            self._wake.set()
        self._room.set()

    async def _answer_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._ready:
                await self._client.send(self._ready[0])
                self._ready.popleft()
            self._room.set()


def _fill(answer: pb.PartitionProduced, results: list[BatchResult], traffic: Traffic) -> int:
    """Put the results into the answer; return the offset that must be replicated."""
    needed = 0
    for result in results:
        batch = answer.batches.add(
            base_offset=result.base_offset,
            last_offset=result.last_offset,
            timestamp_ms=result.timestamp_ms,
            duplicate=result.duplicate,
        )
        if result.error is not None:
            batch.error, batch.message = error_code(result.error.code), str(result.error)
            if isinstance(result.error, OutOfOrderSequence) and result.error.due_sequence >= 0:
                batch.due_sequence = result.error.due_sequence
            if not answer.error:
                answer.error, answer.message = batch.error, batch.message
        else:
            needed = max(needed, result.last_offset + 1)
            if not result.duplicate:
                traffic.records_in += result.last_offset - result.base_offset + 1
    return needed


class OffsetService:
    """Looks up offsets."""

    def __init__(self, replicas: Replicas, lookups: TimeLookups) -> None:
        self._replicas = replicas
        self._lookups = lookups

    async def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        response = pb.ListOffsetsResponse()
        timed = sum(1 for query in request.queries if query.position not in _ENDS)
        for number, query in enumerate(request.queries):
            response.offsets.append(await self._look_up(query, timed))
            if number % ENTRIES_PER_TURN == ENTRIES_PER_TURN - 1:
                await asyncio.sleep(0)
        return response

    async def _look_up(self, query: pb.OffsetQuery, timed: int) -> pb.OffsetFound:
        found = pb.OffsetFound(partition=query.partition, offset=-1, timestamp_ms=-1)
        try:
            hosted = self._replicas.find(from_partition(query.partition))
            if hosted.machine.role is not Role.LEADER:
                raise NotLeader(f"{hosted.partition} is led by {hosted.machine.leader}")
            found.leader_epoch = hosted.machine.leader_epoch
            high_watermark = hosted.machine.high_watermark
            if query.position == pb.OFFSET_POSITION_EARLIEST:
                found.offset = hosted.log.log_start
            elif query.position == pb.OFFSET_POSITION_LATEST:
                found.offset = high_watermark
            else:
                self._lookups.check(timed)
                at = await self._lookups.find(hosted.log, query.timestamp_ms, up_to=high_watermark)
                if at is not None:
                    found.offset, found.timestamp_ms = at
        except TailraceError as error:
            found.error, found.message = error_code(error.code), str(error)
        return found


_ENDS: Final = frozenset({pb.OFFSET_POSITION_EARLIEST, pb.OFFSET_POSITION_LATEST})


class MetadataService:
    """Keeps the newest picture of the cluster and pushes it to those who watch."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        self._on_change = on_change
        self._changed = asyncio.Event()
        # Before the controller has told anything.
        self.metadata = ClusterMetadata(revision=-1)
        self._store_problem = ""
        self._store_problem_since_ms = 0

    def update(self, metadata: ClusterMetadata) -> None:
        """Take a newer picture; an older one is ignored."""
        mine = self.metadata
        if (metadata.generation, metadata.revision) < (mine.generation, mine.revision):
            return
        self.metadata = metadata
        self._push()
        self._on_change()

    def doubt(self, problem: str, since_ms: int) -> None:
        """Tell those who watch that the store is not believed, and why; empty: it is again."""
        self._store_problem, self._store_problem_since_ms = problem, since_ms
        self._push()

    def _push(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def watch(
        self,
        request: pb.WatchMetadataRequest,
        stream: Stream[pb.WatchMetadataResponse, pb.WatchMetadataRequest],
    ) -> None:
        wanted = set(request.topics)
        try:
            while True:
                changed = self._changed
                await stream.send(
                    pb.WatchMetadataResponse(
                        metadata=self._picture(wanted),
                        store_problem=self._store_problem,
                        store_problem_since_ms=self._store_problem_since_ms,
                    )
                )
                await changed.wait()
        except Unreachable:
            return

    def _picture(self, wanted: set[str]) -> ClusterMetadata:
        if not wanted:
            return self.metadata
        picture = ClusterMetadata()
        picture.CopyFrom(self.metadata)
        del picture.topics[:]
        picture.topics.extend(topic for topic in self.metadata.topics if topic.name in wanted)
        return picture
