"""The replicas of one broker: runs their machines, performs what they say, in order.

The machines decide (`tailrace.replication`), the logs keep (`tailrace.log`); this shell joins them
to the links, the store and the requests that wait. All of it runs on one loop, so an event and its
effects are never interleaved with another's; only transactions in the store and syncs of the disk
take time, and their ends come back as events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import Final, assert_never

from tailrace.broker.disk_watch import DiskWatch
from tailrace.broker.disks import Disk
from tailrace.broker.evidence import gather
from tailrace.broker.fetcher import LeaderLink, event_of
from tailrace.broker.flushes import TimedBlocking, flush
from tailrace.broker.follower_guard import FollowerGuard
from tailrace.broker.hosted import (
    Hosted,
    ReplicaOrder,
    StopOrder,
    TopicSettings,
    is_current,
    order_record,
)
from tailrace.broker.isr import IsrStore
from tailrace.broker.leader_links import (
    PROTOCOL_VERSION,
    FollowerSession,
    cut_stalled,
    hello_of,
)
from tailrace.broker.live import LiveSettings
from tailrace.broker.log_reads import LogReads
from tailrace.broker.logs import ReplicaLogs, StrayTotals
from tailrace.broker.settings import BrokerSettings
from tailrace.broker.throttle import Throttle
from tailrace.broker.waiting import Waiting
from tailrace.clock import Clock
from tailrace.config import UNLIMITED
from tailrace.errors import (
    CorruptBatch,
    DamagedLog,
    DiskFull,
    FencedEpoch,
    HighWatermarkConflict,
    InvariantViolation,
    LogClosed,
    NonContiguousAppend,
    ReplicaOffline,
    RequestTimedOut,
    StaleBroker,
    StorageError,
    TailraceError,
    UnknownEpoch,
    UnknownTopic,
    UnknownTopicId,
    error_for,
)
from tailrace.log.admission import BatchResult, BodyVerdict
from tailrace.log.deletions import DeletionKind
from tailrace.log.evidence import CutEvidence, LeaderDiverged, LogStartMoved, NothingHeld
from tailrace.log.manager import LogManager
from tailrace.log.recovery import OpenReport
from tailrace.meta.copies import ReplicaOrderRecord
from tailrace.meta.store import MetadataStore
from tailrace.metrics.values import BrokerCounts
from tailrace.model import (
    DELETE_RECORDS,
    BrokerId,
    LogStartCause,
    Offset,
    TopicPartition,
    settled_count,
)
from tailrace.replication.events import (
    NO_LEADER,
    AdvanceLogStart,
    AllowFollower,
    Appended,
    AppendFailed,
    AppendToLog,
    BecomeFollower,
    BecomeLeader,
    Effect,
    Event,
    FailPending,
    GiveUpLead,
    KeepRecords,
    MoveHighWatermark,
    Ordered,
    RefuseFollower,
    Report,
    StartOverAt,
    StepDown,
    Stopped,
    StoreIsr,
    Synced,
    TellDiverged,
    Tick,
    Truncated,
    TruncateLog,
)
from tailrace.replication.leader import ReplicaSettings
from tailrace.replication.partition import PartitionReplica
from tailrace.runtime import Blocking, Tasks
from tailrace.transport.rpc import Link, Links
from tailrace.v1 import replica_pb2 as pb

TICK_MS: Final = 100
# How long an order waits for the sync that `flush=ack` begins with; a busy log goes on syncing.
FLUSH_WAIT_MS: Final = 500


class Replicas:
    """All partitions that this broker hosts."""

    def __init__(
        self,
        settings: BrokerSettings,
        manager: LogManager,
        disks: DiskWatch,
        *,
        store: MetadataStore,
        links: Links,
        clock: Clock,
        blocking: Blocking,
        tasks: Tasks,
        rng: Random,
        identity: Callable[[], tuple[str, int | None]],
        say: Callable[[str], None],
        live: LiveSettings | None = None,
        incarnation: Callable[[], str] = str,
        process: str = "",
    ) -> None:
        self._live = live = live or LiveSettings(settings.log_defaults, say)
        self._settings = settings
        self._manager = manager
        self._store = store
        self._disks = disks
        disks.observe(self._disk_changed)
        self._links = links
        self._clock = clock
        self._blocking = blocking
        self._tasks = tasks
        self._rng = rng
        self._identity = identity
        self._incarnation = incarnation
        self._process = process
        self.follower_guard = FollowerGuard(store, clock, say)
        self._say = say
        self.counts = BrokerCounts()
        self._syncs = TimedBlocking(blocking, clock, self.counts.flushes)
        self._hosted: dict[TopicPartition, Hosted] = {}
        self._leader_links: dict[BrokerId, LeaderLink] = {}
        self._link_addresses: dict[BrokerId, str] = {}
        self._sessions: dict[BrokerId, FollowerSession] = {}
        # Of replicas that are not served now: what they last knew, newer than the files.
        self._high_watermarks: dict[TopicPartition, Offset] = {}
        self.broker_id = me = BrokerId(settings.broker_id)
        self._logs = ReplicaLogs(
            manager,
            me,
            blocking=blocking,
            clock=clock,
            say=say,
            cluster_id=lambda: identity()[0],
        )
        self._isr_store = IsrStore(
            store, me, identity, tell=self._handle, say=say, counts=self.counts
        )
        self._throttle = Throttle()
        live.observe(self._live_changed)
        self._obeying = asyncio.Lock()
        self._removed: list[str] = []
        self._records: dict[TopicPartition, ReplicaOrderRecord] = {}
        self._link_reads = LogReads(blocking, cold_reads_max=settings.link_cold_reads_max)
        self.waiting = Waiting()

    # What clients ask for.

    def get(self, partition: TopicPartition) -> Hosted | None:
        return self._hosted.get(partition)

    def find(self, partition: TopicPartition, topic_id: str = "") -> Hosted:
        """The hosted partition, or the error that its absence means to a client."""
        hosted = self._hosted.get(partition)
        if hosted is None:
            raise UnknownTopic(f"broker {self.broker_id} has no replica of {partition}")
        if topic_id and hosted.topic_id != topic_id:
            raise UnknownTopicId(
                f"{partition.topic} has the id {hosted.topic_id} here, not {topic_id}"
            )
        return hosted

    def orders(self) -> dict[TopicPartition, ReplicaOrderRecord]:
        """What this broker knows of its replicas; of those it leads, it knows it best."""
        known, self._records = self._records, {}
        for partition, hosted in self._hosted.items():
            if hosted.machine.leader_epoch < 0:
                # No order of it was obeyed yet.
                continue
            record = known.get(partition)
            if record is None or not is_current(record, hosted):
                record = order_record(hosted)
            self._records[partition] = record
        return self._records

    def hosted(self) -> list[Hosted]:
        """All of this moment; other threads may ask too."""
        return list(self._hosted.values())

    def append(
        self,
        hosted: Hosted,
        data: bytes | memoryview,
        *,
        leader_epoch: int,
        acks_all: bool,
        bodies: BodyVerdict | None = None,
    ) -> list[BatchResult]:
        """Append as the leader; who waits for the replicas asks `waiting` after that.

        `bodies`: what a look into them came to, where it was taken off the loop.
        """
        error = hosted.machine.can_append(acks_all=acks_all)
        if error is not None:
            raise error
        known = hosted.machine.leader_epoch
        if leader_epoch >= 0 and leader_epoch != known:
            kind = FencedEpoch if leader_epoch < known else UnknownEpoch
            raise kind(f"{hosted.partition}: epoch {leader_epoch} was meant, {known} is here")
        if hosted.disk.is_full:
            raise DiskFull(f"broker {self.broker_id}: {hosted.disk.path} is {hosted.disk.trouble}")
        before = hosted.log.log_end
        try:
            results = hosted.log.append_as_leader(
                data,
                leader_epoch=hosted.machine.leader_epoch,
                now_ms=self._clock.wall_ms(),
                bodies=bodies,
            )
        except (StorageError, LogClosed, OSError) as failure:
            raise self.disk_error(hosted, failure) from failure
        if hosted.log.log_end > before:
            self._appended(hosted)
        return results

    def delete_records(self, hosted: Hosted, offset: int) -> None:
        """Give up what is below an offset that is committed; followers are told."""
        epoch = max(int(hosted.machine.leader_epoch), 0)
        cause, before = LogStartCause(DELETE_RECORDS, epoch, offset), hosted.log.log_start
        hosted.log.advance_log_start(offset, cause, aside=self._removed)
        self.note_log_start(hosted, before)
        hosted.mark_followers()
        hosted.mark_fetchers()

    def note_log_start(self, hosted: Hosted, before: int) -> None:
        """Put on record that a log begins later than before, and why."""
        log, cause, machine = hosted.log, hosted.log.start_cause, hosted.machine
        if log.log_start <= before or cause is None:
            return
        evidence = LogStartMoved(
            kind=cause.kind,
            leader_epoch=cause.leader_epoch,
            offset=cause.offset,
            leader=machine.leader,
        )
        self.counts.log_starts_moved += 1
        self._note(hosted, DeletionKind.LOG_START, evidence, before, log.log_start)

    def _note(
        self, hosted: Hosted, kind: DeletionKind, evidence: CutEvidence, start: int, end: int
    ) -> None:
        self._manager.note(
            kind,
            hosted.partition,
            evidence,
            now_ms=self._clock.wall_ms(),
            topic_id=hosted.topic_id,
            from_offset=start,
            to_offset=end,
        )

    def disk_error(self, hosted: Hosted, error: TailraceError | OSError) -> TailraceError:
        """A call on a log met its disk: draw the conclusions, and say what a client is told."""
        self._disks.met(hosted.disk, error)
        told = error if isinstance(error, TailraceError) else StorageError(str(error))
        if not hosted.log.is_open:
            self._give_up(hosted, told)
        elif hosted.disk.is_full:
            return DiskFull(f"broker {self.broker_id}: {hosted.disk.path} is full: {error}")
        return told

    def _disk_changed(self, disk: Disk) -> None:
        """The controller hears of it; a disk that has failed takes all of its replicas with it."""
        self._logs.tell()
        if disk.failure:
            self._logs.folder_failed(disk.path)
            for hosted in [each for each in self._hosted.values() if each.disk is disk]:
                self._give_up(hosted, ReplicaOffline(f"{disk.path} {disk.trouble}"))

    # What the controller is told, and orders.

    @property
    def offline(self) -> Mapping[TopicPartition, TailraceError]:
        """Replicas that serve nothing, and why."""
        return self._logs.offline

    @property
    def out_of_service(self) -> dict[TopicPartition, TailraceError]:
        """Those, and the ones that follow nobody until a person has decided."""
        waiting = {
            each.partition: HighWatermarkConflict(f"{each.partition}: {each.conflict}")
            for each in self._hosted.values()
            if each.conflict
        }
        return {**waiting, **self.offline}

    def doubt(self, opened: Iterable[OpenReport]) -> None:
        """Tell how the logs were found at the start."""
        self._logs.doubt(opened)

    async def news(self, *, timeout_ms: int) -> None:
        """Wait for another replica to go out of service, or for so long."""
        await self._logs.news(timeout_ms=timeout_ms)

    async def obey(self, orders: list[ReplicaOrder]) -> list[tuple[TopicPartition, TailraceError]]:
        """Take the role that each order names; what could not be done comes back."""
        failures: list[tuple[TopicPartition, TailraceError]] = []
        async with self._obeying:
            await self._logs.make(orders)
            for order in orders:
                try:
                    hosted = await self._host(order)
                    self._learn_address(order)
                    self._order(hosted, order)
                    if order.partition in self._logs.offline:
                        raise self._logs.offline[order.partition]
                    if hosted.sync_to > hosted.log.recovery_point:
                        raise RequestTimedOut("what it had before flush=ack is still being synced")
                except TailraceError as error:
                    self._say(f"{order.partition}: order not obeyed: {error}")
                    failures.append((order.partition, error))
                except OSError as error:
                    failures.append((order.partition, StorageError(str(error))))
        return failures

    async def stop(
        self, orders: Iterable[StopOrder], *, controller_epoch: int = 0
    ) -> dict[TopicPartition, TailraceError]:
        """Serve replicas no longer, and delete what is said; what could not be done comes back.

        What is to be deleted without anything on record that says so is served on.
        """
        wanted = list(orders)
        evidence, failures = await gather(
            self._store,
            [each for each in wanted if each.delete],
            broker_id=self.broker_id,
            cluster_id=self._identity()[0],
            controller_epoch=controller_epoch,
            is_hosted=self._is_hosted,
        )
        async with self._obeying:
            stopped = [
                each for each in wanted if each.partition not in failures and self._stop(each)
            ]
            failures |= await self._set_aside([each for each in stopped if each.set_aside])
            due = {each: evidence[each] for each in stopped if each in evidence}
            deleted, kept = await self._logs.discard(due)
            failures |= kept
            self.counts.replicas_deleted += len(deleted)
            for partition in deleted:
                self._high_watermarks.pop(partition, None)
        is_more = True
        while is_more:
            # Large files take their time: other orders get their turn in between.
            async with self._obeying:
                is_more = await self._logs.remove_discarded()
        return failures

    def _is_hosted(self, order: StopOrder) -> bool:
        hosted = self._hosted.get(order.partition)
        return hosted is not None and hosted.topic_id == order.topic_id

    async def _set_aside(self, orders: Iterable[StopOrder]) -> dict[TopicPartition, TailraceError]:
        failures: dict[TopicPartition, TailraceError] = {}
        for order in orders:
            partition = order.partition
            try:
                if order.topic_id and self._manager.is_of(partition, order.topic_id):
                    await self._logs.set_aside(
                        partition,
                        "the store does not know its topic",
                        high_watermark=self._high_watermarks.get(partition, 0),
                    )
                    self._high_watermarks.pop(partition, None)
                    self.counts.replicas_set_aside += 1
            except TailraceError as error:
                failures[partition] = error
            except OSError as error:
                failures[partition] = StorageError(str(error))
        return failures

    async def expire_strays(self, now_ms: int | None, retention_ms: int) -> None:
        """Remove what was set aside and kept for long enough; without a time nothing is."""
        async with self._obeying:
            removed = await self._logs.expire_strays(now_ms, retention_ms)
        self.counts.strays_removed += removed

    @property
    def strays(self) -> StrayTotals:
        """How much is set aside, as of the last look."""
        return self._logs.strays

    def _stop(self, order: StopOrder) -> bool:
        hosted = self._hosted.get(order.partition)
        if order.revision and hosted is not None and hosted.machine.revision > order.revision:
            self._say(f"{order.partition}: not stopped, a later order wants it")
            return False
        if hosted is not None and order.topic_id in {"", hosted.topic_id}:
            self._end(hosted)
        return True

    def _end(self, hosted: Hosted) -> None:
        """Serve a replica no longer; what it knows to be committed stays known."""
        self._high_watermarks[hosted.partition] = Offset(hosted.machine.high_watermark)
        self._handle(hosted, Stopped())
        self._unfollow(hosted)
        del self._hosted[hosted.partition]

    async def stray(self, named: set[TopicPartition]) -> list[tuple[TopicPartition, str]]:
        """Partitions on disk that the controller did not name, and those that were set aside."""
        async with self._obeying:
            return await self._logs.stray(named)

    # What links bring.

    async def accept(self, link: Link) -> None:
        """Serve one follower's link until it ends."""
        hello = await hello_of(link, self._identity()[0], self.broker_id)
        if hello is None:
            self._say(f"link from {link.peer} refused: it is not a follower of this broker")
            link.close()
            return
        if await self.follower_guard.problem(hello, link.peer):
            link.close()
            return
        session = FollowerSession(
            link,
            hello,
            hosted=self._hosted.get,
            tell=self._handle,
            frame_bytes=self._settings.link_frame_bytes,
            throttle=self._throttle,
            reads=self._link_reads,
            damaged=self.damaged,
            clock=self._clock,
        )
        former = self._sessions.get(session.broker_id)
        self._sessions[session.broker_id] = session
        if former is not None:
            former.replaced()
        try:
            await session.run()
        finally:
            if self._sessions.get(session.broker_id) is session:
                del self._sessions[session.broker_id]
            link.close()

    def say_hello_again(self) -> None:
        """This broker has a new epoch: leaders must know it before they can count on us."""
        for link in self._leader_links.values():
            link.reconnect()

    # Time.

    async def run(self) -> None:
        """Let time pass for the machines and for those who wait."""
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            now_ms = self._clock.monotonic_ms()
            for hosted in list(self._hosted.values()):
                due_ms = hosted.machine.next_tick_ms
                if due_ms is not None and due_ms <= now_ms:
                    self._handle(hosted, Tick())
            self.waiting.expire(now_ms)
            limit_ms = self._settings.link_stall_timeout_ms
            cut_stalled(self._sessions.values(), now_ms, limit_ms, self._say)

    def store_high_watermarks(self) -> None:
        """Write down the high watermarks; they are hints, a restart may find older ones."""
        self._manager.store_high_watermarks(
            {each.partition: Offset(each.machine.high_watermark) for each in self.hosted()}
        )

    async def flush_all(self) -> None:
        """Sync every log, one after the other, so that a crash has little to scan."""
        for hosted in list(self._hosted.values()):
            if hosted.flushing is None and hosted.log.is_open:
                error = await flush(hosted.log, self._syncs)
                if error is not None:
                    self.disk_error(hosted, error)

    def take_removed(self) -> list[str]:
        """The files that followers gave up since this was asked last, to be removed."""
        removed, self._removed = self._removed, []
        return removed

    def damaged(self, hosted: Hosted, error: DamagedLog) -> bool:
        """Durable records turned out to be damaged: another leads, and the log is mended from it.

        False: nobody else holds what is committed, so the rest goes on being served.
        """
        if self._hosted.get(hosted.partition) is not hosted or not hosted.log.is_open:
            return True
        self.counts.damage_found += 1
        if not hosted.can_be_spared:
            self._say(f"{error}; nobody else holds what is committed: the rest is served on")
            return False
        hosted.log.abandon(f"it is damaged: {error}")
        self._manager.damaged[hosted.partition] = error
        self._give_up(hosted, error)
        return True

    def led(self) -> list[TopicPartition]:
        """The partitions that this broker leads, as far as it knows."""
        return [each.partition for each in self._hosted.values() if each.leads]

    def stop_leading(self) -> None:
        """The broker ends: clients of what it leads are sent away; leaders are followed on."""
        for hosted in [each for each in self._hosted.values() if each.leads]:
            self._handle(hosted, Stopped())

    def stop_serving(self) -> None:
        """The broker ends: nobody waits any longer."""
        for hosted in list(self._hosted.values()):
            self._handle(hosted, Stopped())
        for link in self._leader_links.values():
            link.reconnect()

    # The parts of the above.

    async def _host(self, order: ReplicaOrder) -> Hosted:
        """The partition with its log, made when it is not there yet."""
        if order.state.leader == self.broker_id and order.leader_process not in {"", self._process}:
            # What the disk has may be older, and other records must not have the same epoch.
            raise StaleBroker(
                f"{order.partition}: epoch {order.state.leader_epoch} was given to a former life "
                "of this broker: waiting for an epoch of its own"
            )
        count = settled_count(
            len(order.replicas), adding=len(order.adding), removing=len(order.removing)
        )
        topic = TopicSettings.parse(order.config, replicas=count, defaults=self._live.log_defaults)
        hosted = self._hosted.get(order.partition)
        is_served = order.partition not in self._logs.offline
        if hosted is not None and hosted.topic_id == order.topic_id and is_served:
            hosted.adding = order.adding
            if hosted.settings != topic:
                self._configure(hosted, topic)
            if hosted.flushing is not None and topic.syncs_first:
                # A follower says how far it is: let that be on disk before it is what counts.
                await asyncio.wait([hosted.flushing], timeout=FLUSH_WAIT_MS / 1000)
            return hosted
        if hosted is not None and hosted.is_newer_than(order):
            # It was under way while its topic was made anew: that must not go for it.
            raise UnknownTopicId(
                f"{order.partition}: {order.topic_id} is a former topic, {hosted.topic_id} is here"
            )
        if hosted is not None and is_served:
            self._end(hosted)
        former = Offset(0)
        if hosted is not None and hosted.topic_id != order.topic_id:
            # Of another log: the one of this topic knows its own.
            former = self._high_watermarks.pop(order.partition, Offset(0))
        log = await self._logs.find(order, topic, high_watermark=former)
        log.config = topic.log
        machine = PartitionReplica(
            order.partition,
            self.broker_id,
            settings=ReplicaSettings(lag_max_ms=self._settings.replica_lag_time_max_ms),
        )
        disk = self._disks.of(order.partition)
        hosted = Hosted(order.partition, order.topic_id, log, machine, topic, disk)
        hosted.adding = order.adding
        hosted.traffic = self.counts.traffic.of(order.partition.topic)
        self._hosted[order.partition] = hosted
        if topic.syncs_first:
            self._sync_what_is_there(hosted)
        return hosted

    def _configure(self, hosted: Hosted, topic: TopicSettings) -> None:
        syncs_first = topic.syncs_first and not hosted.settings.syncs_first
        hosted.settings = topic
        hosted.log.config = topic.log
        if syncs_first:
            self._sync_what_is_there(hosted)

    def _sync_what_is_there(self, hosted: Hosted) -> None:
        """`flush=ack` begins: until all that the log has is on disk, the order is not obeyed."""
        if hosted.log.recovery_point < hosted.log.log_end:
            hosted.sync_to = hosted.log.log_end
            self._sync(hosted)

    def _live_changed(self) -> None:
        """Settings of the whole broker changed: those of logs, the rate of reassignments."""
        rate = self._live.broker.replication_throttled_rate
        self._throttle.set_rate(None if rate == UNLIMITED else rate)
        for hosted in self._hosted.values():
            topic = hosted.settings.over(self._live.log_defaults)
            # When replicas report is for orders to change: all of them must know it.
            log = replace(topic.log, flush=hosted.settings.log.flush)
            self._configure(hosted, replace(topic, log=log))

    def _learn_address(self, order: ReplicaOrder) -> None:
        """Where the leader's link is; it may become known, or change, without a new epoch."""
        leader, address = order.state.leader, order.leader_link
        if not address:
            return
        self._link_addresses[leader] = address
        link = self._leader_links.get(leader)
        if link is not None:
            link.move_to(address)

    def _order(self, hosted: Hosted, order: ReplicaOrder) -> None:
        log = hosted.log
        epoch = order.state.leader_epoch
        if (
            hosted.machine.leader_epoch <= epoch < log.last_epoch
            and order.state.leader != NO_LEADER
        ):
            raise FencedEpoch(
                f"{order.partition}: the order is of epoch {epoch}, and the log "
                f"was written in {log.last_epoch}: the metadata store is older than the log. Put "
                "the right store back, or run `tailrace cluster recover`"
            )
        if hosted.settings.syncs_first and log.recovery_point < log.log_end:
            # A role begins with what is on disk, and hears of the rest when it is.
            self._sync(hosted)
        if order.state.revision > hosted.machine.revision:
            # If they still disagree in the new state, the machine says so again.
            hosted.conflict = ""
        self._handle(
            hosted,
            Ordered(
                state=order.state,
                replicas=order.replicas,
                min_insync=hosted.settings.min_insync,
                log_end=Offset(log.log_end),
                last_epoch=log.last_epoch,
                log_start=Offset(log.log_start),
                high_watermark=max(
                    self._high_watermarks.pop(order.partition, Offset(0)),
                    self._manager.high_watermark(order.partition),
                ),
                syncs_first=hosted.settings.syncs_first,
                synced_end=Offset(log.recovery_point),
            ),
        )

    def _handle(self, hosted: Hosted, event: Event, piece: memoryview | None = None) -> None:
        """Hand an event to the machine and do what it says, in order."""
        effects = hosted.machine.handle(event, now_ms=self._clock.monotonic_ms())
        try:
            for effect in effects:
                self._perform(hosted, effect, piece)
        except (StorageError, LogClosed, OSError) as error:
            self._give_up(hosted, self.disk_error(hosted, error))

    def _give_up(self, hosted: Hosted, error: TailraceError) -> None:
        """The log takes no more: serve nothing of it, so that another leads and is followed."""
        partition = hosted.partition
        if self._hosted.get(partition) is not hosted or partition in self._logs.offline:
            return
        self._say(f"{partition}: out of service: {error}")
        self._high_watermarks[partition] = Offset(hosted.machine.high_watermark)
        self._logs.gave_up(hosted.log, error)
        self._handle(hosted, Stopped())
        self._unfollow(hosted)

    def _perform(self, hosted: Hosted, effect: Effect, piece: memoryview | None) -> None:  # noqa: C901, PLR0912 - one door, one line each.
        match effect:
            case MoveHighWatermark():
                self._high_watermark_moved(hosted, effect.offset)
            case AppendToLog():
                self._append_pushed(hosted, piece)
            case Report():
                link = self._leader_links.get(effect.leader)
                if link is not None:
                    link.report(hosted, effect)
            case StoreIsr():
                self._tasks.spawn(
                    f"store the ISR of {hosted.partition}", self._isr_store.store(hosted, effect)
                )
            case AllowFollower():
                session = self._session(effect.broker_id, effect.broker_epoch)
                if session is not None:
                    session.allow(hosted, effect)
            case TellDiverged() | RefuseFollower():
                session = self._session(effect.broker_id, effect.broker_epoch)
                if session is not None:
                    session.refuse(hosted, effect)
            case BecomeLeader():
                self._become_leader(hosted, effect)
            case BecomeFollower():
                self._become_follower(hosted, effect)
            case StepDown():
                self._unfollow(hosted)
                self._drop_followers(hosted)
            case FailPending():
                self._fail_pending(hosted, effect)
            case TruncateLog():
                self._truncate(hosted, effect)
            case StartOverAt():
                self._start_over(hosted, effect)
            case AdvanceLogStart():
                # The leader tells again whenever we ask where we stand: no need to store it now.
                before, to = hosted.log.log_start, min(effect.offset, hosted.log.log_end)
                hosted.log.advance_log_start(to, effect.cause, durable=False)
                self.note_log_start(hosted, before)
            case KeepRecords() | GiveUpLead():
                self._disagree(hosted, effect)
            case _:
                assert_never(effect)

    def _disagree(self, hosted: Hosted, effect: KeepRecords | GiveUpLead) -> None:
        """One replica has what another one lacks, and nothing on record explains it."""
        if isinstance(effect, GiveUpLead):
            self.counts.conflicts += 1
            self._give_up(hosted, HighWatermarkConflict(f"{hosted.partition}: {effect.why}"))
            return
        self.counts.kept_records += 1
        hosted.conflict = effect.why if effect.conflicts else hosted.conflict
        self._say(f"{hosted.partition}: kept what the leader lacks: {effect.why}")

    # Leading.

    def _become_leader(self, hosted: Hosted, effect: BecomeLeader) -> None:
        self._unfollow(hosted)
        # Pushes of a former leadership must not go on: each follower is asked anew where it stands.
        self._drop_followers(hosted)
        hosted.log.assign_epoch(effect.epoch)
        self.counts.became_leader += 1
        self._say(
            f"{hosted.partition}: leader in epoch {effect.epoch} from {hosted.log.log_end} on, "
            f"ISR {list(hosted.machine.isr)}"
        )

    def _appended(self, hosted: Hosted) -> None:
        """The leader's log grew: tell the machine and the followers' links."""
        hosted.mark_followers()
        self._handle(
            hosted,
            Appended(log_end=Offset(hosted.log.log_end), last_epoch=hosted.log.last_epoch),
        )
        if hosted.settings.syncs_first:
            self._sync(hosted)

    def _high_watermark_moved(self, hosted: Hosted, offset: Offset) -> None:
        self.waiting.moved(hosted.partition, offset)
        hosted.mark_fetchers()
        for follower in hosted.followers:
            follower.mark_later(hosted.partition)

    def _session(self, broker_id: BrokerId, broker_epoch: int) -> FollowerSession | None:
        session = self._sessions.get(broker_id)
        return session if session is not None and session.broker_epoch == broker_epoch else None

    def _drop_followers(self, hosted: Hosted) -> None:
        for session in list(hosted.followers):
            session.drop(hosted)

    # Following.

    def _become_follower(self, hosted: Hosted, effect: BecomeFollower) -> None:
        self._drop_followers(hosted)
        hosted.log.forget_empty_epoch()
        self.counts.became_follower += 1
        self._unfollow(hosted, but=effect.leader)
        link = self._leader_links.get(effect.leader) or self._new_link(effect.leader)
        self._say(f"{hosted.partition}: following {effect.leader} in epoch {effect.epoch}")
        link.follow(hosted, self._link_addresses.get(effect.leader, ""))

    def _new_link(self, leader: BrokerId) -> LeaderLink:
        link = LeaderLink(
            leader,
            links=self._links,
            hello=self._hello,
            pushed=self._pushed,
            reached=self._handle,
            rng=self._rng,
        )
        self._leader_links[leader] = link
        self._tasks.spawn(f"follow {leader}", link.run())
        return link

    def _hello(self) -> pb.ReplicaHello | None:
        cluster_id, epoch = self._identity()
        if epoch is None:
            return None
        return pb.ReplicaHello(
            broker_id=self.broker_id,
            broker_epoch=epoch,
            version=PROTOCOL_VERSION,
            cluster_id=cluster_id,
            incarnation=self._incarnation(),
        )

    def _pushed(self, hosted: Hosted, part: pb.LeaderPartition, piece: memoryview) -> None:
        compacted = hosted.settings.log.cleanup_policy.compacts
        self._handle(hosted, event_of(part, hosted.log.epochs, compacted=compacted), piece)

    def _append_pushed(self, hosted: Hosted, piece: memoryview | None) -> None:
        if piece is None:
            raise InvariantViolation(f"{hosted.partition}: there is nothing to append")
        if hosted.disk.is_exhausted:
            # It falls behind and leaves the ISR; it catches up when there is room again.
            self._handle(hosted, AppendFailed())
            return
        now_ms, epoch = self._clock.wall_ms(), hosted.machine.leader_epoch
        try:
            hosted.log.append_as_follower(piece, now_ms=now_ms, leader_epoch=epoch)
        except (StorageError, CorruptBatch, NonContiguousAppend) as error:
            if isinstance(error, StorageError):
                self.disk_error(hosted, error)
            if not hosted.log.is_open:
                return
            self._say(f"{hosted.partition}: a push could not be appended: {error}")
            self._handle(hosted, AppendFailed())
            return
        self._handle(
            hosted,
            Appended(log_end=Offset(hosted.log.log_end), last_epoch=hosted.log.last_epoch),
        )
        if hosted.settings.syncs_first:
            self._sync(hosted)

    def _start_over(self, hosted: Hosted, effect: StartOverAt) -> None:
        log, machine, cause = hosted.log, hosted.machine, effect.cause
        before, is_covered = log.log_start, cause is not None and cause.offset >= effect.offset
        if cause is not None and is_covered:
            evidence: LogStartCause | NothingHeld = cause
        else:
            evidence = NothingHeld(leader=machine.leader, leader_epoch=machine.leader_epoch)
        self._say(f"{hosted.partition}: starting over at {effect.offset}: {evidence}")
        log.start_over_at(effect.offset, evidence)
        self.note_log_start(hosted, before)
        self._truncated(hosted)

    def _truncate(self, hosted: Hosted, effect: TruncateLog) -> None:
        log, machine = hosted.log, hosted.machine
        evidence = LeaderDiverged(
            leader=machine.leader,
            leader_epoch=machine.leader_epoch,
            offset=effect.offset,
            high_watermark=machine.high_watermark,
            unclean_epoch=machine.unclean_epoch if effect.below_high_watermark else 0,
            merged=effect.merged,
        )
        self.counts.logs_cut += 1
        self._say(
            f"{hosted.partition}: cutting the log from {log.log_end} to {effect.offset}: {evidence}"
        )
        before = log.log_end
        log.truncate_to(effect.offset, evidence, now_ms=self._clock.wall_ms())
        self._note(hosted, DeletionKind.LOG_END, evidence, log.log_end, before)
        self._truncated(hosted)

    def _truncated(self, hosted: Hosted) -> None:
        log = hosted.log
        hosted.commit.truncate(log.log_end)
        hosted.sync_to = min(hosted.sync_to, log.log_end)
        link = self._leader_links.get(hosted.machine.leader)
        if link is not None:
            link.forget_report(hosted)
        self._handle(
            hosted,
            Truncated(
                log_end=Offset(log.log_end),
                last_epoch=log.last_epoch,
                log_start=Offset(log.log_start),
            ),
        )

    def _unfollow(self, hosted: Hosted, *, but: BrokerId | None = None) -> None:
        for leader, link in list(self._leader_links.items()):
            if leader != but:
                link.unfollow(hosted)

    # Waiting and syncing.

    def _fail_pending(self, hosted: Hosted, effect: FailPending) -> None:
        error = error_for(effect.code, f"{hosted.partition}: the leader changed")
        self.waiting.fail(hosted.partition, error)
        if effect.fetches:
            hosted.mark_fetchers()

    def _sync(self, hosted: Hosted) -> None:
        """flush=ack: one sync at a time; what gathers meanwhile goes with the next one."""
        hosted.commit.request(hosted.log.log_end, None)
        if hosted.flushing is None and hosted.commit.begin() is not None:
            hosted.flushing = self._tasks.spawn(f"sync {hosted.partition}", self._sync_all(hosted))

    async def _sync_all(self, hosted: Hosted) -> None:
        log = hosted.log
        try:
            while True:
                work = log.begin_flush()
                if work is not None:
                    await self._syncs.run(work.run)
                    log.end_flush(work)
                hosted.commit.finish(work.up_to if work is not None else log.recovery_point)
                self._handle(hosted, Synced(log_end=Offset(log.recovery_point)))
                if hosted.commit.begin() is None:
                    return
        except (OSError, TailraceError) as error:
            failure = error if isinstance(error, TailraceError) else log.fail_flush(error)
            hosted.commit.fail(failure)
            self._give_up(hosted, self.disk_error(hosted, failure))
        finally:
            hosted.flushing = None
