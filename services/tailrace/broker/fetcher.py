"""The follower's side of the replica links: one link for each broker that leads something of ours.

A link carries all partitions that follow the same broker. Reports replace one another until they
are sent, so that a burst of pushes is acknowledged once. A link that broke is made again, with
growing pauses; every partition then reports anew. One that nothing needs is kept as long as it
stands, for the next leader may be there, and made again when something follows that broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from google.protobuf.message import DecodeError

from tailrace.broker.hosted import Hosted
from tailrace.epochs import EpochEnd, EpochHistory
from tailrace.errors import Diverged, InvalidRequest, RequestTimedOut, Unreachable
from tailrace.model import (
    LOG_START_KINDS,
    BrokerId,
    LeaderEpoch,
    LogStartCause,
    Offset,
    TopicPartition,
)
from tailrace.replication.events import (
    Event,
    LeaderReached,
    PushDiverged,
    Pushed,
    PushRefused,
    Report,
)
from tailrace.runtime import Tasks
from tailrace.transport.rpc import Frame, Link, Links
from tailrace.transport.wire import code_name, from_partition, to_partition
from tailrace.v1 import replica_pb2 as pb

CONNECT_TIMEOUT_MS: Final = 3_000
RECONNECT_MIN_MS: Final = 20
RECONNECT_MAX_MS: Final = 500


class LeaderLink:
    """The link to one broker that leads, or has led, something that is followed here."""

    def __init__(
        self,
        leader: BrokerId,
        *,
        links: Links,
        hello: Callable[[], pb.ReplicaHello | None],
        pushed: Callable[[Hosted, pb.LeaderPartition, memoryview], None],
        reached: Callable[[Hosted, LeaderReached], None],
        rng: Random,
    ) -> None:
        self._links = links
        self._hello = hello
        self._pushed = pushed
        self._reached = reached
        self._rng = rng
        self._link: Link | None = None
        self._followed: dict[TopicPartition, Hosted] = {}
        self._reports: dict[TopicPartition, pb.FollowerPosition] = {}
        self._wake = asyncio.Event()
        # There is a reason to connect now rather than after a pause.
        self._hurry = asyncio.Event()
        self.leader = leader
        self.address = ""

    @property
    def is_idle(self) -> bool:
        return not self._followed

    def follow(self, hosted: Hosted, address: str) -> None:
        """Follow a partition on this link; a new address makes it connect anew."""
        if address:
            self.move_to(address)
        self._followed[hosted.partition] = hosted
        self._hurry.set()
        if self._link is not None:
            self._reached(hosted, LeaderReached())

    def move_to(self, address: str) -> None:
        """The leader is reached there from now on."""
        if address != self.address:
            self.address = address
            self.reconnect()

    def unfollow(self, hosted: Hosted) -> None:
        if self._followed.pop(hosted.partition, None) is None or self._link is None:
            return
        self._reports[hosted.partition] = pb.FollowerPosition(
            partition=to_partition(hosted.partition), topic_id=hosted.topic_id, stop=True
        )
        self._wake.set()

    def report(self, hosted: Hosted, effect: Report) -> None:
        """Tell the leader how far we are, with the next frame."""
        if self._link is None:
            return
        waiting = self._reports.get(hosted.partition)
        restart = effect.restart or (waiting is not None and waiting.restart)
        self._reports[hosted.partition] = pb.FollowerPosition(
            partition=to_partition(hosted.partition),
            topic_id=hosted.topic_id,
            leader_epoch=effect.leader_epoch,
            log_end=effect.log_end,
            last_epoch=effect.last_epoch,
            restart=restart,
            high_watermark=effect.high_watermark,
        )
        self._wake.set()

    def forget_report(self, hosted: Hosted) -> None:
        self._reports.pop(hosted.partition, None)

    def reconnect(self) -> None:
        self._hurry.set()
        if self._link is not None:
            self._link.close()

    async def run(self) -> None:
        """Connect, follow, and connect again when the link broke."""
        pause_ms = RECONNECT_MIN_MS
        while True:
            self._hurry.clear()
            try:
                if await self._follow_once():
                    pause_ms = RECONNECT_MIN_MS
            except (Unreachable, RequestTimedOut):
                pass
            finally:
                self._drop_link()
            hurries = await self._rest(pause_ms)
            pause_ms = RECONNECT_MIN_MS if hurries else min(pause_ms * 2, RECONNECT_MAX_MS)

    async def _rest(self, pause_ms: int) -> bool:
        """Wait before the next attempt, as long as nothing is followed; whether news came.

        A partition may get its leader on a broker that has just come back: who slept through its
        return would hold up what is written there.
        """
        wait_s = pause_ms * self._rng.uniform(0.5, 1.0) / 1000
        try:
            async with asyncio.timeout(None if self.is_idle else wait_s):
                await self._hurry.wait()
        except TimeoutError:
            return False
        return True

    async def _follow_once(self) -> bool:
        """One life of the link; whether anything was heard of the leader."""
        if self._hello() is None or not self.address:
            return False
        link = await self._links.connect(self.address, timeout_ms=CONNECT_TIMEOUT_MS)
        self._link = link
        # Who we are is said as of now: we may have registered anew while the link was being made,
        # and a leader that knows us by an old epoch could never take us into an ISR.
        hello = self._hello()
        if hello is None:
            return False
        hello.leader_id = self.leader
        await link.send(pb.ReplicaFrame(hello=hello).SerializeToString())
        tasks = Tasks(lambda _, __: link.close())
        heard = False
        try:
            for hosted in list(self._followed.values()):
                self._reached(hosted, LeaderReached())
            tasks.spawn(f"report to {self.leader}", self._report_all(link))
            while (frame := await link.recv()) is not None:
                heard = True
                self._take(frame)
        except (Unreachable, InvalidRequest, DecodeError):
            pass
        finally:
            await tasks.close()
        return heard

    def _take(self, frame: Frame) -> None:
        header = pb.ReplicaFrame.FromString(frame.header)
        payload, at = memoryview(frame.payload), 0
        for part in header.push.partitions:
            piece = payload[at : at + part.size]
            at += part.size
            hosted = self._followed.get(from_partition(part.partition))
            # What was under way when a topic was made anew is of the former one of that name.
            if hosted is not None and part.topic_id in {"", hosted.topic_id}:
                hosted.traffic.replica_bytes_in += part.size
                self._pushed(hosted, part, piece)

    async def _report_all(self, link: Link) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._reports:
                report = pb.FollowerReport(positions=self._reports.values())
                self._reports = {}
                await link.send(pb.ReplicaFrame(report=report).SerializeToString())

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._reports.clear()
        self._wake.clear()


def event_of(part: pb.LeaderPartition, epochs: EpochHistory, *, compacted: bool = False) -> Event:
    """What the leader says of one partition, as the machine takes it.

    `compacted`: whether the topic is, as this broker knows.
    """
    epoch = LeaderEpoch(part.leader_epoch)
    if not part.error:
        return Pushed(
            leader_epoch=epoch,
            base_offset=Offset(part.base_offset),
            size=part.size,
            high_watermark=Offset(part.high_watermark),
            log_start=Offset(part.log_start),
            start_cause=_cause_of(part),
        )
    if code_name(part.error) == Diverged.code:
        return PushDiverged(
            leader_epoch=epoch,
            base_offset=Offset(part.base_offset),
            leader_end=EpochEnd(LeaderEpoch(part.diverging_epoch), Offset(part.diverging_end)),
            merged=part.merged,
            compacted=compacted,
            epochs=epochs.entries,
        )
    return PushRefused(
        leader_epoch=epoch,
        code=code_name(part.error),
        log_start=Offset(part.log_start),
        start_cause=_cause_of(part),
    )


def _cause_of(part: pb.LeaderPartition) -> LogStartCause | None:
    """One that this release does not know explains nothing."""
    if part.log_start_cause not in LOG_START_KINDS:
        return None
    epoch, offset = part.log_start_cause_epoch, part.log_start_cause_offset
    return LogStartCause(part.log_start_cause, epoch, offset) if epoch >= 0 else None
