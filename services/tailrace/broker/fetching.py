"""Fetch streams: the broker pushes what a client reads, as long as the client has given credit.

Reads end at the high watermark. A stream wakes when the high watermark of one of its partitions
moves, when the client gives credit, or when `max_wait_ms` is over; nothing polls. A slow client
holds up only itself: without credit nothing is read for it. What is read and not yet taken is
bounded over all streams (`fetch.bytes.max`): they take turns, and one that takes nothing for
`client.stall.timeout.ms` is cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal

from tailrace.broker.clients import ClientStream, ClientStreams
from tailrace.broker.hosted import Hosted
from tailrace.broker.log_reads import LogRead, LogReads, is_cold
from tailrace.broker.quotas import ClientQuota, Quotas
from tailrace.broker.replicas import Replicas
from tailrace.broker.settings import BrokerSettings
from tailrace.broker.sluice import Sluice
from tailrace.clock import Clock
from tailrace.errors import (
    DamagedLog,
    FencedEpoch,
    NotLeader,
    OffsetOutOfRange,
    StorageError,
    TailraceError,
    Truncated,
    UnknownEpoch,
    Unreachable,
)
from tailrace.model import NO_LEADER_EPOCH, LeaderEpoch, TopicPartition
from tailrace.replication.partition import Role
from tailrace.runtime import Blocking, Tasks
from tailrace.transport.envelopes import FetchResponse, PartitionFetched
from tailrace.transport.rpc import Stream
from tailrace.transport.wire import error_code, from_partition, to_partition
from tailrace.v1 import broker_pb2 as pb

DEFAULT_MAX_WAIT_MS: Final = 500
DEFAULT_PARTITION_BYTES: Final = 1 << 20
NO_END: Final = 2**63 - 1


class FetchService:
    """Serves fetch streams."""

    def __init__(
        self,
        settings: BrokerSettings,
        replicas: Replicas,
        blocking: Blocking,
        *,
        clock: Clock,
        clients: ClientStreams,
        quotas: Quotas,
        streams: Callable[[FetchService, ClientStream], FetchStream] | None = None,
    ) -> None:
        """`streams`: what serves a stream, if not a FetchStream."""
        self._streams = streams or FetchStream
        self.settings = settings
        self.replicas = replicas
        self.reads = LogReads(blocking, cold_reads_max=settings.fetch_cold_reads_max)
        self.clock = clock
        self.quotas = quotas
        self.sluice = Sluice(settings.fetch_bytes_max, clock)
        self._clients = clients

    async def fetch(self, stream: Stream[FetchResponse, pb.FetchRequest]) -> None:
        client = self._clients.enter("fetch", stream)
        try:
            await self._streams(self, client).run()
        finally:
            self._clients.leave(client)


class _Reading:
    """Where one partition is being read."""

    __slots__ = ("bytes_max", "end", "hosted", "offset", "tag")

    def __init__(self, hosted: Hosted, wanted: pb.FetchPartition) -> None:
        self.hosted = hosted
        self.offset = wanted.offset
        self.bytes_max = wanted.bytes_max or DEFAULT_PARTITION_BYTES
        self.tag = wanted.tag
        self.end = wanted.end_offset or NO_END

    @property
    def limit(self) -> int:
        """Batches that begin below it may be sent, as far as they are replicated."""
        return min(self.hosted.machine.high_watermark, self.end)


class FetchStream:
    """One client's stream."""

    def __init__(self, service: FetchService, client: ClientStream) -> None:
        self._settings = service.settings
        self._replicas = service.replicas
        self._reads = service.reads
        self._clock = service.clock
        self._quotas = service.quotas
        self._sluice = service.sluice
        self._client = client
        self._stream: Stream[FetchResponse, pb.FetchRequest] = client.stream
        self._quota = ClientQuota("")
        self._readings: dict[TopicPartition, _Reading] = {}
        self._dirty: dict[TopicPartition, None] = {}
        self._refusals: list[PartitionFetched] = []
        self._wake = asyncio.Event()
        self._credit = 0
        self._min_bytes = 1
        self._max_wait_ms = DEFAULT_MAX_WAIT_MS
        self._opened = asyncio.Event()

    async def run(self) -> None:
        tasks = Tasks(lambda _, __: self._stream.cancel())
        tasks.spawn("push fetched data", self._push_all())
        try:
            while (request := await self._stream.recv()) is not None:
                self._client.heard()
                self._take(request)
                if self._quota.is_limited:
                    self._quota.requested(self._clock.monotonic_ms())
        except Unreachable:
            return
        finally:
            await tasks.close()
            if self._opened.is_set():
                self._quotas.leave(self._quota, self._clock.monotonic_ms())
            for partition in list(self._readings):
                self._stop_reading(partition)

    def mark(self, partition: TopicPartition) -> None:
        """Something may have changed in a partition that is read here."""
        self._dirty[partition] = None
        self._wake.set()

    def _take(self, request: pb.FetchRequest) -> None:
        if not self._opened.is_set():
            self._opened.set()
            self._quota = self._quotas.enter(request.client_id, self._clock.monotonic_ms())
            self._client.client_id = request.client_id
            self._min_bytes = max(request.min_bytes, 1)
            self._max_wait_ms = request.max_wait_ms or DEFAULT_MAX_WAIT_MS
        limit = self._settings.fetch_credit_bytes_max
        self._credit = min(self._credit + request.credit_bytes, limit)
        for each in request.remove:
            self._stop_reading(from_partition(each))
        for wanted in request.add:
            self._start_reading(wanted)
        self._wake.set()

    def _start_reading(self, wanted: pb.FetchPartition) -> None:
        partition = from_partition(wanted.partition)
        self._stop_reading(partition)
        try:
            hosted = self._replicas.find(partition, wanted.topic_id)
            _check_epoch(hosted, _known(wanted, "leader_epoch"))
            _check_agreement(hosted, wanted, self._clock.monotonic_ms())
        except TailraceError as error:
            self._refuse(partition, error, wanted.tag)
            return
        self._readings[partition] = _Reading(hosted, wanted)
        hosted.fetchers[self] = None
        self.mark(partition)

    def _stop_reading(self, partition: TopicPartition) -> None:
        reading = self._readings.pop(partition, None)
        self._dirty.pop(partition, None)
        if reading is not None:
            reading.hosted.fetchers.pop(self, None)

    def _refuse(self, partition: TopicPartition, error: TailraceError, tag: int) -> None:
        self._stop_reading(partition)
        self._replicas.counts.fetch_refused[error.code] += 1
        hosted = self._replicas.get(partition)
        refusal = PartitionFetched(
            partition=to_partition(partition),
            error=error_code(error.code),
            message=str(error),
            leader=-1,
            leader_epoch=-1,
            tag=tag,
        )
        if hosted is not None:
            refusal.leader_epoch = hosted.machine.leader_epoch
            refusal.high_watermark = hosted.machine.high_watermark
            refusal.log_start = hosted.log.log_start
            if hosted.machine.leader != self._replicas.broker_id:
                refusal.leader = hosted.machine.leader
        if isinstance(error, Truncated):
            refusal.agreed_offset = error.agreed_offset
        self._refusals.append(refusal)
        self._wake.set()

    async def _push_all(self) -> None:
        # The first request says how long to wait.
        await self._opened.wait()
        while True:
            enough = await self.wait()
            if self._quota.is_limited:
                owed_ms = self._quota.fetch_wait_ms(self._clock.monotonic_ms())
                await asyncio.sleep(owed_ms / 1000)
            size = min(self._credit, self._settings.fetch_response_bytes)
            await self._sluice.enter(size)
            try:
                response, credit = FetchResponse(partitions=self._refusals), self._credit
                self._refusals = []
                if self._credit > 0:
                    await self.gather(response, tell_all=not enough)
                if self._quota.is_limited:
                    sent = max(credit - self._credit, 0)
                    now_ms = self._clock.monotonic_ms()
                    response.throttle_ms = self._quota.fetched(sent, now_ms)
                if response.partitions:
                    self._replicas.counts.fetch_responses += 1
                    await self._client.send(response)
                    self._client.heard()
            finally:
                self._sluice.leave(size)

    async def wait(self) -> bool:
        """Until there is enough to send (True) or the longest wait is over."""
        if self._refusals or self._is_enough():
            # No timer for who does not have to wait: a reader of a backlog never has to.
            return True
        try:
            async with asyncio.timeout(self._max_wait_ms / 1000):
                while not (self._refusals or self._is_enough()):
                    self._wake.clear()
                    await self._wake.wait()
        except TimeoutError:
            return False
        return True

    def _is_enough(self) -> bool:
        if self._credit <= 0:
            return False
        found = 0
        for partition in list(self._dirty):
            reading = self._readings.get(partition)
            if reading is None:
                del self._dirty[partition]
                continue
            if reading.hosted.machine.role is not Role.LEADER:
                return True
            if reading.offset >= reading.limit:
                if reading.offset > reading.hosted.log.log_end:
                    return True
                del self._dirty[partition]
            elif self._min_bytes <= 1:
                return True
            else:
                found += self._available(reading)
        return found >= self._min_bytes

    def _available(self, reading: _Reading) -> int:
        log = reading.hosted.log
        if is_cold(log, reading.offset):
            # There is so much before the end that it would be idle to look how much.
            return self._min_bytes
        try:
            piece = log.locate(reading.offset, bytes_max=reading.bytes_max, up_to=reading.limit)
        except TailraceError:
            return self._min_bytes
        return piece.size if piece is not None else 0

    async def gather(self, response: FetchResponse, *, tell_all: bool) -> None:
        """Read what is new, within the credit and the size of a response."""
        room = min(self._credit, self._settings.fetch_response_bytes)
        for partition in list(self._readings if tell_all else self._dirty):
            reading = self._readings.get(partition)
            if reading is None or room <= 0:
                continue
            self._dirty.pop(partition, None)
            try:
                size = await self._read(partition, reading, room, response)
            except (TailraceError, OSError) as error:
                told = error if isinstance(error, TailraceError) else StorageError(str(error))
                if isinstance(error, DamagedLog) and self._replicas.damaged(reading.hosted, error):
                    told = NotLeader(f"{partition}: another leads soon: {error}")
                # While it was read the client may have asked for another place, which is not meant.
                if self._readings.get(partition) is reading:
                    self._refuse(partition, told, reading.tag)
                continue
            room -= size
            self._credit -= size

    async def _read(
        self, partition: TopicPartition, reading: _Reading, room: int, response: FetchResponse
    ) -> int:
        hosted = reading.hosted
        machine, log = hosted.machine, hosted.log
        if machine.role is not Role.LEADER or self._replicas.get(partition) is not hosted:
            raise NotLeader(f"{partition} is led by {machine.leader}")
        if reading.offset > log.log_end:
            raise OffsetOutOfRange(reading.offset, log_start=log.log_start, log_end=log.log_end)
        high_watermark, epoch = machine.high_watermark, machine.leader_epoch
        data: bytes | memoryview = b""
        if reading.offset < reading.limit:
            found = await self._find(reading, min(reading.bytes_max, room), high_watermark)
            if found is not None:
                data = found.data
                hosted.traffic.bytes_out += len(data)
                hosted.traffic.records_out += found.piece.next_offset - reading.offset
                reading.offset = found.piece.next_offset
                if reading.offset < reading.limit:
                    self.mark(partition)
        response.partitions.append(
            PartitionFetched(
                partition=to_partition(partition),
                high_watermark=high_watermark,
                log_start=log.log_start,
                batches=data,
                leader=-1,
                leader_epoch=epoch,
                tag=reading.tag,
            )
        )
        return len(data)

    async def _find(self, reading: _Reading, bytes_max: int, high_watermark: int) -> LogRead | None:
        log, limit = reading.hosted.log, min(high_watermark, reading.end)
        found = await self._reads.read(log, reading.offset, bytes_max=bytes_max, up_to=limit)
        if found is None and limit < high_watermark:
            # The end that the client named lies within this batch: it is the last one.
            return await self._reads.read(log, reading.offset, bytes_max=1, up_to=high_watermark)
        return found


def _known(wanted: pb.FetchPartition, field: Literal["leader_epoch", "last_epoch"]) -> int:
    """An epoch that the client knows; unset is none, and not 0."""
    if not wanted.HasField(field):
        return int(NO_LEADER_EPOCH)
    return wanted.leader_epoch if field == "leader_epoch" else wanted.last_epoch


def _check_epoch(hosted: Hosted, wanted: int) -> None:
    machine = hosted.machine
    if machine.role is not Role.LEADER:
        raise NotLeader(f"{hosted.partition} is led by {machine.leader}")
    if 0 <= wanted < machine.leader_epoch:
        raise FencedEpoch(f"{hosted.partition}: epoch {wanted}, now {machine.leader_epoch}")
    if wanted > machine.leader_epoch:
        raise UnknownEpoch(f"{hosted.partition}: epoch {wanted}, here {machine.leader_epoch}")


def _check_agreement(hosted: Hosted, wanted: pb.FetchPartition, now_ms: int) -> None:
    """Refuse to go on where the client's past is not this log's past.

    A leader that was just elected may find out from its replicas that its log is an older copy. So
    before it has heard them it does not say that anything is gone, but for an election on record.
    """
    log, epoch = hosted.log, hosted.machine.leader_epoch
    last_epoch = _known(wanted, "last_epoch")
    if last_epoch > epoch:
        # A newer leadership than ours has been seen: we are the one who does not know yet.
        raise UnknownEpoch(f"{hosted.partition}: read in {last_epoch}, here is {epoch}")
    is_above = wanted.offset > log.log_end and last_epoch < 0
    if wanted.offset < log.log_start or is_above:
        raise OffsetOutOfRange(wanted.offset, log_start=log.log_start, log_end=log.log_end)
    if last_epoch < 0:
        return
    end = log.epoch_end(LeaderEpoch(last_epoch))
    if end.epoch == last_epoch and end.end_offset >= wanted.offset:
        return
    is_on_record = hosted.machine.unclean_epoch > last_epoch
    if not is_on_record and not hosted.machine.is_borne_out(now_ms=now_ms):
        raise UnknownEpoch(
            f"{hosted.partition}: offset {wanted.offset} was read in {last_epoch}, and not every "
            "replica has told this leader yet what it has"
        )
    agreed = min(max(end.end_offset, log.log_start), wanted.offset)
    error = Truncated(
        f"{hosted.partition}: records from {agreed} on that were read in epoch "
        f"{last_epoch} are gone"
    )
    error.agreed_offset = agreed
    raise error
