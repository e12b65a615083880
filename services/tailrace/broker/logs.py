"""The logs of the replicas: found on disk, made, mended; and which of them are out of service.

A log that has failed (a sync, a cut) or that is damaged is opened anew without what it cannot be
sure of. That may be records that this broker has vouched for. So as long as the cluster counts on
them, that is, while this broker leads the partition or is named in its ISR or ELR, it stays as it
is and every order for it is refused with the reason; the controller takes the broker out, and the
order that says so mends the log. With `flush=ack` a replica has vouched only for what is on its
disk, and only must not lead before it is mended.

After a sync that failed nothing need be lost: what the log had is written anew to other files and
verified there, with the next order that does not make this broker the leader
(`LogManager.resync`). Only when something cannot be read any more does the log count as damaged.
Until then, and while the disk refuses, the replica is away, and keeps its place as one that is.

Where nobody leads and nobody vouches for anything any more, what is left of a damaged log may be
the best there is. With `unclean.recovery=refuse` it stays as it is until a person decides: who lets
this broker lead accepts what its log has lost, who lets another lead has it mended from there.

The same goes for a log of which something was cut off when it was opened after a crash: mostly that
is an append that was never finished, but bytes that rotted look no different.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple, NoReturn

from tailrace.broker.hosted import ReplicaOrder, StopOrder, TopicSettings
from tailrace.clock import Clock
from tailrace.config import Flush
from tailrace.errors import (
    DamagedLog,
    HighWatermarkConflict,
    InvariantViolation,
    ReplicaOffline,
    StorageError,
    TailraceError,
    error_for,
)
from tailrace.log.cuts import forget_cut
from tailrace.log.data_folder import DataFolder
from tailrace.log.evidence import FilledAnew, RemovalEvidence, TopicDeleted
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.log.recovery import OpenReport
from tailrace.meta.keys import state_key
from tailrace.model import BrokerId, LeaderEpoch, TopicPartition
from tailrace.replication.events import NO_LEADER
from tailrace.runtime import Blocking

# Logs that are made at the same time: some of the threads are left for reads and syncs.
MAKERS_MAX: Final = 6


class StrayTotals(NamedTuple):
    """Replicas that are set aside, and the bytes of their segments."""

    replicas: int = 0
    size_bytes: int = 0


class ReplicaLogs:
    """Gives each replica its log."""

    def __init__(
        self,
        manager: LogManager,
        broker_id: BrokerId,
        *,
        blocking: Blocking,
        clock: Clock,
        say: Callable[[str], None],
        cluster_id: Callable[[], str],
    ) -> None:
        self._cluster_id = cluster_id
        self._manager = manager
        self._broker_id = broker_id
        self._blocking = blocking
        self._clock = clock
        self._say = say
        self._news = asyncio.Event()
        self.offline: dict[TopicPartition, TailraceError] = {}
        """Replicas that serve nothing until an order mends them, and why."""
        self._doubted: dict[TopicPartition, str] = {}
        # Logs that stopped since a sync failed, and of which nothing is known to be lost.
        self._unsynced: set[TopicPartition] = set()
        # Damaged logs that wait for a person, and the epoch in which nobody led: only an unclean
        # election makes this broker their leader after that.
        self._kept: dict[TopicPartition, LeaderEpoch] = {}
        self.strays = StrayTotals()
        """What is set aside, as of the last look."""
        # Folders of logs that are no more.
        self._discarded: list[str] = []

    def gave_up(self, log: PartitionLog, error: TailraceError) -> None:
        """A log takes no more calls."""
        is_gone = not log.is_open or isinstance(error, ReplicaOffline)
        loses = log.config.flush is not Flush.ACK and is_gone
        if loses and log.is_unsynced and not isinstance(error, ReplicaOffline | DamagedLog):
            # All of it may still be read: that is found out before anything is given up.
            self._unsynced.add(log.partition)
            loses = False
        self.offline[log.partition] = _as_damage(log.partition, error) if loses else error
        self._news.set()

    def folder_failed(self, path: str) -> None:
        """The disk of a data folder is gone: what could be written anew is damaged after all."""
        for partition in sorted(self._unsynced):
            folder = self._manager.folder_of(partition)
            if folder is not None and folder.path == path:
                self._unsynced.discard(partition)
                self.offline[partition] = _as_damage(partition, self.offline[partition])

    def tell(self) -> None:
        """Something that the controller should know of has changed."""
        self._news.set()

    async def news(self, *, timeout_ms: int) -> None:
        """Wait until another replica is out of service, but not longer than this."""
        self._news.clear()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._news.wait()
        except TimeoutError:
            pass

    def doubt(self, opened: Iterable[OpenReport]) -> None:
        """What was cut off at the start may have been vouched for."""
        for report in opened:
            if report.doubt:
                self._doubted[report.partition] = report.doubt

    async def make(self, orders: Iterable[ReplicaOrder]) -> None:
        """Make the logs that are not there, several at a time: each waits for the disk, thrice.

        What fails is tried again by `find`, and told.
        """
        new = {each.partition: each for each in orders if not self._manager.holds(each.partition)}
        turns = iter(new.values())
        async with asyncio.TaskGroup() as makers:
            for _ in range(min(len(new), MAKERS_MAX)):
                makers.create_task(self._make(turns))

    async def _make(self, turns: Iterator[ReplicaOrder]) -> None:
        for order in turns:
            try:
                await self._create(order)
            except InvariantViolation:
                raise
            except (TailraceError, OSError):
                continue

    async def _create(self, order: ReplicaOrder) -> PartitionLog:
        create = partial(
            self._manager.create,
            order.partition,
            order.topic_id,
            now_ms=self._clock.wall_ms(),
        )
        log = await self._blocking.run(create)
        opened = self._manager.taken_back.pop(order.partition, None)
        if opened is not None:
            self._say(
                f"{order.partition}: the replica of {order.topic_id} that was set aside is taken "
                f"back, with {log.log_start} to {log.log_end}"
            )
            self.doubt([opened])
        return log

    async def find(
        self, order: ReplicaOrder, topic: TopicSettings, *, high_watermark: int = 0
    ) -> PartitionLog:
        """The log for an order: found, mended or made; one of a former topic is set aside.

        `high_watermark`: what is known of a former topic's replica.
        """
        partition, manager = order.partition, self._manager
        folder = manager.folder_of(partition)
        if folder is not None and folder.failure:
            error = ReplicaOffline(f"{partition}: {folder.path} has failed: {folder.failure}")
            raise self.offline.setdefault(partition, error)
        if manager.holds(partition):
            topic_id = manager.topic_id(partition)
            if topic_id is None:
                return await self._find_unknown(order, topic)
            if topic_id == order.topic_id:
                return await self._mended(order, topic)
            why = f"{order.topic_id} is wanted, and this is {topic_id}"
            await self.set_aside(partition, why, high_watermark=high_watermark)
        await self._create(order)
        return await self._mended(order, topic)

    async def _mended(self, order: ReplicaOrder, topic: TopicSettings) -> PartitionLog:
        """The log that is there, once nobody counts on what it may have lost."""
        partition, manager, now_ms = order.partition, self._manager, self._clock.wall_ms()
        doubt = self._doubted.pop(partition, None)
        if doubt is not None and topic.syncs_first:
            await self._forget_doubt(partition)
        elif doubt is not None:
            self.offline[partition] = _as_damage(partition, StorageError(doubt))
        await self._mend(order, topic, now_ms)
        if partition not in manager.logs:
            # It was to be deleted, that failed, and now it is wanted again.
            again = partial(manager.reopen, partition, self._filling(order), now_ms=now_ms)
            await self._blocking.run(again)
        return manager.logs[partition]

    async def _find_unknown(self, order: ReplicaOrder, topic: TopicSettings) -> PartitionLog:
        """Which topic the log is of cannot be told: it is set aside, and filled anew.

        It may hold what the cluster counts on, so it waits as any damaged log does. Where a person
        lets this broker lead with it, it is of the topic that the order names.
        """
        partition, manager = order.partition, self._manager
        cause = manager.damaged.get(partition) or StorageError("its topic's id cannot be read")
        error = _as_damage(partition, cause)
        if self._is_counted_on(order, error):
            self.offline[partition] = error
            raise error
        if order.state.leader == NO_LEADER:
            self._wait_for_a_person(order, error)
        now_ms = self._clock.wall_ms()
        if order.state.leader == self._broker_id:
            await self._blocking.run(partial(manager.adopt, partition, order.topic_id))
            accepted = self._filling(order)
            work = partial(manager.repair, partition, accepted, now_ms=now_ms, anew=False)
            await self._blocking.run(work)
            self._say(f"{partition}: taken for {order.topic_id}, as a person lets it lead: {cause}")
        else:
            await self.set_aside(partition, f"its topic cannot be told: {cause}")
            await self._create(order)
        self.offline.pop(partition, None)
        self._kept.pop(partition, None)
        return await self._mended(order, topic)

    def _filling(self, order: ReplicaOrder) -> FilledAnew:
        """What the order proves: the cluster does not count on what this replica may have lost."""
        return FilledAnew(
            cluster_id=self._cluster_id(),
            topic_id=order.topic_id,
            leader=order.state.leader,
            leader_epoch=order.state.leader_epoch,
            record=state_key(order.partition),
            revision=order.state.revision,
        )

    def _wait_for_a_person(self, order: ReplicaOrder, error: TailraceError) -> NoReturn:
        self.offline[order.partition] = error
        self._kept[order.partition] = order.state.leader_epoch
        raise error

    async def set_aside(
        self, partition: TopicPartition, why: str, *, high_watermark: int = 0
    ) -> None:
        """Serve a log no longer, and keep all of it: nothing on record says that it may go."""
        self._unsynced.discard(partition)
        for known in (self.offline, self._doubted, self._kept):
            known.pop(partition, None)
        work = partial(
            self._manager.set_aside,
            partition,
            why=why,
            now_ms=self._clock.wall_ms(),
            high_watermark=high_watermark,
        )
        name = await self._blocking.run(work)
        self._say(f"{partition}: set aside as {name or 'nothing, its folder is gone'}: {why}")

    async def stray(self, named: set[TopicPartition]) -> list[tuple[TopicPartition, str]]:
        """Logs that are not named, and those that were set aside, each with its topic's id."""
        manager = self._manager
        found = sorted(each for each in list(manager.logs) if each not in named)

        def look() -> list[tuple[TopicPartition, str]]:
            return [
                *((each, manager.topic_id(each) or "") for each in found),
                *((each.partition, each.topic_id or "") for each in manager.strays()),
            ]

        # Each of them has files of its own that are read.
        return await self._blocking.run(look)

    async def discard(
        self, orders: Mapping[StopOrder, RemovalEvidence]
    ) -> tuple[set[TopicPartition], dict[TopicPartition, TailraceError]]:
        """Give logs up for good, all of a folder at once: each would wait for the disk, often.

        Returns those that went, and those that could not; what is left of the first on the disk is
        for `remove_discarded`.
        """
        failures: dict[TopicPartition, TailraceError] = {}
        by_folder: dict[DataFolder | None, dict[TopicPartition, RemovalEvidence]] = {}
        for order, evidence in orders.items():
            partition, topic_id = order.partition, order.topic_id
            try:
                if self._manager.is_of(partition, topic_id):
                    folder = self._manager.folder_of(partition)
                    by_folder.setdefault(folder, {})[partition] = evidence
                    self._say(f"{partition}: deleting this replica: {evidence}")
            except (TailraceError, OSError) as error:
                failures[partition] = _as_ours(error)
        failures |= await self._remove_strays(orders)
        for group in by_folder.values():
            self._unsynced -= group.keys()
            for partition in group:
                for known in (self.offline, self._doubted, self._kept):
                    known.pop(partition, None)
            try:
                await self._to_its_end(partial(self._discard, group))
            except (TailraceError, OSError) as error:
                failures |= dict.fromkeys(group, _as_ours(error))
        deleted = {each for group in by_folder.values() for each in group if each not in failures}
        return deleted, failures

    async def _remove_strays(
        self, orders: Mapping[StopOrder, RemovalEvidence]
    ) -> dict[TopicPartition, TailraceError]:
        """Remove strays of topics that were deleted; all others are kept until they expire.

        That a replica is assigned elsewhere proves nothing of a stray: the topic may have been
        taken back from others, and this one may hold more.
        """
        failures: dict[TopicPartition, TailraceError] = {}
        wanted = {
            (each.partition, each.topic_id): why
            for each, why in orders.items()
            if isinstance(why, TopicDeleted)
        }
        for stray in await self._blocking.run(self._manager.strays):
            evidence = wanted.get((stray.partition, stray.topic_id or ""))
            if evidence is None:
                continue
            try:
                now_ms = self._clock.wall_ms()
                work = partial(self._manager.remove_stray, stray, evidence, now_ms=now_ms)
                self._say(await self._blocking.run(work))
            except (TailraceError, OSError) as error:
                failures[stray.partition] = _as_ours(error)
        return failures

    async def expire_strays(self, now_ms: int | None, retention_ms: int) -> int:
        """Remove strays that were kept for long enough by a time that is believed; says how many.

        Without a time none is removed, and for none does the time begin that it is kept.
        """
        removed = 0
        found = await self._blocking.run(self._manager.strays)
        for stray in found:
            if now_ms is None:
                break
            try:
                await self._blocking.run(partial(self._manager.keep_stray_from, stray, now_ms))
                evidence = stray.expiry(
                    cluster_id=self._cluster_id(), now_ms=now_ms, retention_ms=retention_ms
                )
                if evidence is not None:
                    work = partial(self._manager.remove_stray, stray, evidence, now_ms=now_ms)
                    self._say(await self._blocking.run(work))
                    removed += 1
            except (TailraceError, OSError) as error:
                self._say(f"{stray.path}: not removed now: {error}")
        if found or self.strays.replicas:
            self.strays = await self._blocking.run(self._count_strays)
        return removed

    def _count_strays(self) -> StrayTotals:
        sizes = [self._manager.stray_bytes(each) for each in self._manager.strays()]
        return StrayTotals(len(sizes), sum(sizes))

    def _discard(self, partitions: Mapping[TopicPartition, RemovalEvidence]) -> None:
        self._discarded += self._manager.discard(partitions, now_ms=self._clock.wall_ms())

    async def _to_its_end(self, work: Callable[[], None]) -> None:
        """Wait for work also when nobody waits for us any more: no other order may begin before."""
        running = asyncio.ensure_future(self._blocking.run(work))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait([running])
            raise

    async def remove_discarded(self, *, at_most: int = MAKERS_MAX) -> bool:
        """Remove some of what discarded logs left on disk; whether there is more."""
        some, self._discarded = self._discarded[:at_most], self._discarded[at_most:]
        try:
            await self._to_its_end(partial(self._manager.remove, some))
        except OSError as error:
            self._say(f"what was deleted stays on disk until the next start: {error}")
        return bool(self._discarded)

    async def _mend(self, order: ReplicaOrder, topic: TopicSettings, now_ms: int) -> None:
        partition, manager = order.partition, self._manager
        error = self.offline.get(partition)
        if partition in manager.damaged:
            error = _as_damage(partition, manager.damaged[partition])
        if error is None:
            return
        if partition in self._unsynced and not self._is_led_here(order):
            if await self._resync(partition, now_ms):
                return
            error = self.offline[partition]
        if self._is_counted_on(order, error):
            self.offline[partition] = error
            raise error
        if self._needs_a_person(order, topic, error):
            self._wait_for_a_person(order, error)
        is_damaged = partition in manager.damaged
        evidence = self._filling(order)
        work = partial(manager.reopen, partition, evidence, now_ms=now_ms)
        if is_damaged:
            anew = order.state.leader != self._broker_id
            work = partial(manager.repair, partition, evidence, now_ms=now_ms, anew=anew)
        report = await self._blocking.run(work)
        await self._forget_doubt(partition)
        self.offline.pop(partition, None)
        self._kept.pop(partition, None)
        did = "; ".join(report.mended + report.cut)
        self._say(f"{partition}: opened anew, {did}: {evidence}")

    def _needs_a_person(
        self, order: ReplicaOrder, topic: TopicSettings, error: TailraceError
    ) -> bool:
        """Whether what is left of a log may be the best there is, and nobody may decide alone."""
        if order.state.leader != NO_LEADER:
            return False
        damage = self._manager.damaged.get(order.partition)
        if isinstance(error, HighWatermarkConflict) or getattr(damage, "is_headless", False):
            return True
        if not _is_nobodys(order):
            return False
        # Whatever the topic allows: a replica that is away may have what this one has lost.
        may_be_elsewhere = damage is not None and len(order.replicas) > 1
        return may_be_elsewhere or (topic.refuses_loss and isinstance(error, DamagedLog))

    async def _resync(self, partition: TopicPartition, now_ms: int) -> bool:
        """Write anew what a failed sync may have lost; False: something is lost indeed."""
        try:
            report = await self._blocking.run(
                partial(self._manager.resync, partition, now_ms=now_ms)
            )
        except DamagedLog as error:
            self._unsynced.discard(partition)
            self.offline[partition] = error
            self._say(f"{partition}: not all of it can be read after a sync failed: {error}")
            return False
        self._unsynced.discard(partition)
        self.offline.pop(partition, None)
        self._kept.pop(partition, None)
        self._say(f"{partition}: in service again, nothing was lost: {'; '.join(report.mended)}")
        return True

    async def _forget_doubt(self, partition: TopicPartition) -> None:
        """Nobody counts on what an opening cut off: a restart need not tell of it again."""
        log = self._manager.logs[partition]
        await self._blocking.run(lambda: forget_cut(log.storage.files, log.folder))

    def _is_led_here(self, order: ReplicaOrder) -> bool:
        """Whether this broker is to lead, and no person has decided that it is.

        From a state in which nobody vouched for anything, only a person could elect it.
        """
        state, kept = order.state, self._kept.get(order.partition)
        if state.leader != self._broker_id:
            return False
        return kept is None or state.leader_epoch <= kept or state.isr != (self._broker_id,)

    def _is_counted_on(self, order: ReplicaOrder, error: TailraceError) -> bool:
        state, broker = order.state, self._broker_id
        if state.leader == broker:
            return self._is_led_here(order)
        vouches = broker in state.isr or broker in state.elr
        return vouches and isinstance(error, DamagedLog | HighWatermarkConflict)


def _is_nobodys(order: ReplicaOrder) -> bool:
    """Whether nobody leads, and nobody is known to hold what was committed."""
    state = order.state
    return state.leader == NO_LEADER and not state.isr and not state.elr


def _as_ours(error: TailraceError | OSError) -> TailraceError:
    return error if isinstance(error, TailraceError) else StorageError(str(error))


def _as_damage(partition: TopicPartition, error: TailraceError) -> TailraceError:
    """What tells the controller that records which this broker has vouched for may be gone."""
    if isinstance(error, DamagedLog):
        return error
    return error_for(DamagedLog.code, f"{partition} cannot vouch for what it had: {error}")
