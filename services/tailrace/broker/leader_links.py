"""The leader's side of the replica links: followers connect, report, and are pushed to.

One session per follower broker, for all partitions that it follows here. What is new gathers while
a frame is under way and goes out in the next one, so that frames grow under load; nothing polls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from tailrace.broker.hosted import Hosted
from tailrace.broker.log_reads import LogReads, first_to_push, is_cold, locate_to_push
from tailrace.broker.throttle import Throttle
from tailrace.clock import Clock
from tailrace.errors import (
    DamagedLog,
    Diverged,
    InvalidRequest,
    TailraceError,
    UnknownTopic,
    Unreachable,
)
from tailrace.log.log import PartitionLog
from tailrace.log.segment import Slice
from tailrace.model import BrokerId, LeaderEpoch, Offset, TopicPartition
from tailrace.replication.events import (
    AllowFollower,
    FollowerLost,
    FollowerReported,
    RefuseFollower,
    TellDiverged,
)
from tailrace.runtime import Tasks
from tailrace.transport.rpc import Link
from tailrace.transport.wire import error_code, from_partition, to_partition
from tailrace.v1 import replica_pb2 as pb

HELLO_TIMEOUT_MS: Final = 5_000
PROTOCOL_VERSION: Final = 1
HIGH_WATERMARK_DELAY_MS: Final = 10
"""A high watermark alone waits so long for data to go with: nobody waits for a follower to know
it, and under load a frame for each would cost as much as the frame that made it move."""


class _Push:
    """How far one partition was pushed to this follower."""

    __slots__ = (
        "began_at",
        "high_watermark",
        "is_damaged",
        "is_doubted",
        "is_warming",
        "log_start",
        "next_offset",
        "warm_to",
    )

    def __init__(self, next_offset: int) -> None:
        self.began_at = self.next_offset = next_offset
        # What the follower was last told; -1 makes the first push go out even without data.
        self.high_watermark = -1
        self.log_start = -1
        # What lies below this offset was brought from the disk, if it was not in memory.
        self.warm_to = 0
        self.is_warming = False
        # What comes next cannot be read, here: nothing is pushed until the follower asks anew.
        self.is_damaged = False
        # The follower does not take what comes next: it is verified, be it in memory.
        self.is_doubted = False

    def is_unsure(self, log: PartitionLog) -> bool:
        """Whether what comes next has to be read, and verified, before it is sent."""
        return self.next_offset < log.log_end and (
            self.is_doubted or is_cold(log, self.next_offset)
        )


class FollowerSession:
    """One follower broker on its link. It lives as long as the link does."""

    def __init__(
        self,
        link: Link,
        hello: pb.ReplicaHello,
        *,
        hosted: Callable[[TopicPartition], Hosted | None],
        tell: Callable[[Hosted, FollowerReported | FollowerLost], None],
        frame_bytes: int,
        throttle: Throttle,
        reads: LogReads,
        damaged: Callable[[Hosted, DamagedLog], object],
        clock: Clock,
    ) -> None:
        self._reads = reads
        self._damaged = damaged
        self._tasks = Tasks(lambda _, __: link.close())
        self._throttle = throttle
        self._clock = clock
        # Partitions that wait until the throttle has room for them.
        self._held: dict[TopicPartition, None] = {}
        self._link = link
        self._hosted = hosted
        self._tell = tell
        self._frame_bytes = frame_bytes
        self._pushes: dict[TopicPartition, _Push] = {}
        self._dirty: dict[TopicPartition, None] = {}
        # Those of which only the high watermark is new.
        self._late: dict[TopicPartition, None] = {}
        self._late_timer: asyncio.TimerHandle | None = None
        self._answers: list[pb.LeaderPartition] = []
        self._wake = asyncio.Event()
        # Counts pushes, and says whether one is waiting to be taken by the follower.
        self._pushed = 0
        self._is_pushing = False
        self._seen_push = -1
        self._seen_ms = 0
        self.broker_id = BrokerId(hello.broker_id)
        self.broker_epoch = hello.broker_epoch

    async def run(self) -> None:
        """Push until the link breaks or the follower says goodbye."""
        self._tasks.spawn(f"push to {self.broker_id}", self._push_all())
        try:
            while (frame := await self._link.recv()) is not None:
                header = pb.ReplicaFrame.FromString(frame.header)
                if header.HasField("goodbye"):
                    return
                for position in header.report.positions:
                    self._reported(position)
        except (Unreachable, InvalidRequest, DecodeError):
            return
        finally:
            await self._tasks.close()
            if self._late_timer is not None:
                self._late_timer.cancel()
            self._forget_all()

    def mark(self, partition: TopicPartition) -> None:
        if partition in self._pushes:
            self._dirty[partition] = None
            self._wake.set()

    def mark_later(self, partition: TopicPartition) -> None:
        if partition in self._pushes and partition not in self._dirty:
            self._late[partition] = None
            if self._late_timer is None:
                self._late_timer = asyncio.get_running_loop().call_later(
                    HIGH_WATERMARK_DELAY_MS / 1000, self._mark_late
                )

    def _mark_late(self) -> None:
        self._late_timer = None
        late, self._late = self._late, {}
        for partition in late:
            self.mark(partition)

    def allow(self, hosted: Hosted, effect: AllowFollower) -> None:
        """Push from this offset on, beginning now."""
        former = self._pushes.get(hosted.partition)
        push = _Push(effect.from_offset)
        if former is not None and former.began_at == effect.from_offset < former.next_offset:
            # It was pushed from here before and took nothing of it: perhaps that is bad.
            push.is_doubted = True
        self._pushes[hosted.partition] = push
        hosted.followers[self] = None
        self.mark(hosted.partition)

    def refuse(self, hosted: Hosted, effect: RefuseFollower | TellDiverged) -> None:
        """Answer with an error; push nothing until the follower reports again."""
        self._pushes.pop(hosted.partition, None)
        hosted.followers.pop(self, None)
        answer = pb.LeaderPartition(
            partition=to_partition(hosted.partition),
            topic_id=hosted.topic_id,
            leader_epoch=hosted.machine.leader_epoch,
            high_watermark=hosted.machine.high_watermark,
            log_start=hosted.log.log_start,
        )
        if isinstance(effect, TellDiverged):
            answer.error = error_code(Diverged.code)
            answer.base_offset = effect.base_offset
            answer.diverging_epoch = effect.leader_end.epoch
            answer.diverging_end = effect.leader_end.end_offset
        else:
            answer.error = error_code(effect.code)
            answer.leader_epoch = effect.leader_epoch
            # Where it may start over: at a batch, though the log may start within it.
            answer.log_start = effect.log_start
            _say_why(answer, hosted.log)
        self._answers.append(answer)
        self._wake.set()

    def replaced(self) -> None:
        """A newer link of the same follower took over: this one ends without a word."""
        for partition in self._pushes:
            hosted = self._hosted(partition)
            if hosted is not None:
                hosted.followers.pop(self, None)
        self._pushes.clear()
        self._link.close()

    def cut_if_stalled(self, now_ms: int, stall_max_ms: int) -> bool:
        """Close the link of a follower that takes nothing; it connects again when it can."""
        if not self._is_pushing or self._seen_push != self._pushed:
            self._seen_push, self._seen_ms = self._pushed, now_ms
            return False
        if now_ms - self._seen_ms < stall_max_ms:
            return False
        self._link.close()
        return True

    def drop(self, hosted: Hosted) -> None:
        """This broker leads the partition no longer."""
        self._pushes.pop(hosted.partition, None)
        hosted.followers.pop(self, None)

    def _reported(self, position: pb.FollowerPosition) -> None:
        partition = from_partition(position.partition)
        hosted = self._hosted(partition)
        if hosted is None or hosted.topic_id != position.topic_id:
            self._pushes.pop(partition, None)
            self._answer_unknown(partition, position)
            return
        if position.stop:
            self.drop(hosted)
            self._tell(
                hosted, FollowerLost(broker_id=self.broker_id, broker_epoch=self.broker_epoch)
            )
            return
        if hosted.trace is not None:
            hosted.trace.reported(self.broker_id, position.log_end)
        self._tell(
            hosted,
            FollowerReported(
                broker_id=self.broker_id,
                broker_epoch=self.broker_epoch,
                leader_epoch=LeaderEpoch(position.leader_epoch),
                log_end=Offset(position.log_end),
                last_epoch=LeaderEpoch(position.last_epoch),
                end_of_last_epoch=hosted.log.epoch_end(position.last_epoch),
                log_start=first_to_push(hosted.log, position.log_end),
                restart=position.restart,
                high_watermark=position.high_watermark,
            ),
        )

    def _answer_unknown(self, partition: TopicPartition, asked: pb.FollowerPosition) -> None:
        """The partition is not here, or not yet: the follower asks again a little later."""
        self._answers.append(
            pb.LeaderPartition(
                partition=to_partition(partition),
                topic_id=asked.topic_id,
                leader_epoch=asked.leader_epoch,
                error=error_code(UnknownTopic.code),
            )
        )
        self._wake.set()

    async def _push_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._dirty or self._answers:
                header, payload = self._next_frame()
                if header.push.partitions:
                    self._is_pushing = True
                    await self._link.send(header.SerializeToString(), payload)
                    self._is_pushing = False
                    self._pushed += 1

    def _next_frame(self) -> tuple[pb.ReplicaFrame, Sequence[Slice]]:
        """What is new, up to the size of a frame; what does not fit stays dirty."""
        push = pb.LeaderPush(partitions=self._answers)
        self._answers = []
        payload: list[Slice] = []
        room = self._frame_bytes
        for partition in list(self._dirty):
            if room <= 0:
                break
            del self._dirty[partition]
            part, piece = self._part(partition, room, first=not payload)
            if part is not None:
                push.partitions.append(part)
            if piece is not None:
                payload.append(piece)
                room -= piece.size
            elif partition in self._dirty:
                # It does not fit into what is left, and nor would most of the others. So the next
                # frame begins with it.
                self._dirty = {partition: None, **self._dirty}
                break
        return pb.ReplicaFrame(push=push), payload

    def _goes(self, hosted: Hosted, state: _Push, piece: Slice) -> None:
        """Note that a piece goes with the next frame."""
        state.next_offset = piece.next_offset
        hosted.traffic.replica_bytes_out += piece.size
        if hosted.trace is not None:
            hosted.trace.pushed(self.broker_id, piece.next_offset)
        if self._is_throttled(hosted):
            self._throttle.take(piece.size, self._clock.monotonic_ms())

    def _part(
        self, partition: TopicPartition, room: int, *, first: bool
    ) -> tuple[pb.LeaderPartition | None, Slice | None]:
        hosted, state = self._hosted(partition), self._pushes.get(partition)
        if hosted is None or state is None or state.is_damaged or not hosted.leads:
            return None, None
        log, base_offset = hosted.log, state.next_offset
        if state.is_warming or (base_offset >= state.warm_to and state.is_unsure(log)):
            self._warm(hosted, state)
            return None, None
        piece = None
        allowed = self._allowed(hosted, room) if base_offset < log.log_end else 0
        if allowed:
            piece = locate_to_push(log, base_offset, allowed, min_one=first or allowed < room)
            if piece is not None and piece.base_offset < base_offset:
                return self._stretched(hosted, base_offset, piece.base_offset), None
            if piece is None:
                # It does not fit into what is left of this frame.
                self._dirty[partition] = None
            elif piece.next_offset < log.log_end:
                self._dirty[partition] = None
        high_watermark = hosted.machine.high_watermark
        known = (state.high_watermark, state.log_start)
        is_new_start = state.log_start != log.log_start
        if piece is None and known == (high_watermark, log.log_start):
            return None, None
        state.high_watermark, state.log_start = high_watermark, log.log_start
        if piece is not None:
            self._goes(hosted, state, piece)
        part = pb.LeaderPartition(
            partition=to_partition(partition),
            topic_id=hosted.topic_id,
            leader_epoch=hosted.machine.leader_epoch,
            high_watermark=high_watermark,
            log_start=log.log_start,
            size=piece.size if piece is not None else 0,
            base_offset=base_offset,
        )
        if is_new_start:
            _say_why(part, log)
        return part, piece

    def _warm(self, hosted: Hosted, state: _Push) -> None:
        """Have the disk read off the loop what comes next; the rest of the link goes on meanwhile.

        After that the kernel can send it from memory.
        """
        if not state.is_warming:
            state.is_warming = True
            self._tasks.spawn(f"warm {hosted.partition}", self._read_ahead(hosted, state))

    async def _read_ahead(self, hosted: Hosted, state: _Push) -> None:
        log, offset = hosted.log, state.next_offset
        # Where this fails, sending fails too and says so.
        state.warm_to = offset + 1
        # By its end something else may be pushed, from another place: then this was for nothing.
        try:
            found = await self._reads.read(
                log, offset, bytes_max=self._frame_bytes, up_to=log.log_end, verified=True
            )
            if found is not None:
                state.warm_to = found.piece.next_offset
        except DamagedLog as error:
            # Nothing of it is pushed: the follower could only refuse it, again and again.
            state.is_damaged = True
            self._damaged(hosted, error)
        except (TailraceError, OSError):
            pass
        state.is_warming = False
        self.mark(hosted.partition)

    def _is_throttled(self, hosted: Hosted) -> bool:
        """Whether this follower is being added and nobody waits for what it is pushed."""
        return (
            self.broker_id in hosted.adding
            and self._throttle.rate is not None
            and not hosted.machine.waits_for(self.broker_id, now_ms=self._clock.monotonic_ms())
        )

    def _allowed(self, hosted: Hosted, room: int) -> int:
        """How many bytes of the room may be used; none: it is looked at again when some may."""
        if not self._is_throttled(hosted):
            return room
        allowed = self._throttle.room(self._clock.monotonic_ms())
        if allowed is None or allowed > 0:
            return room if allowed is None else min(room, allowed)
        if not self._held:
            wait_s = self._throttle.wait_ms() / 1000
            asyncio.get_running_loop().call_later(wait_s, self._release)
        self._held[hosted.partition] = None
        return 0

    def _release(self) -> None:
        held, self._held = self._held, {}
        for partition in held:
            self.mark(partition)

    def _stretched(self, hosted: Hosted, log_end: int, batch_start: int) -> pb.LeaderPartition:
        """Compaction merged batches across the follower's end: it must go back to where they begin.

        What it gives up is committed and comes again, so it is told as a divergence at that offset.
        """
        self._pushes.pop(hosted.partition, None)
        hosted.followers.pop(self, None)
        return pb.LeaderPartition(
            partition=to_partition(hosted.partition),
            topic_id=hosted.topic_id,
            leader_epoch=hosted.machine.leader_epoch,
            error=error_code(Diverged.code),
            high_watermark=hosted.machine.high_watermark,
            log_start=hosted.log.log_start,
            base_offset=log_end,
            diverging_epoch=hosted.log.epochs.epoch_at(log_end - 1),
            diverging_end=batch_start,
            merged=True,
        )

    def _forget_all(self) -> None:
        for partition in self._pushes:
            hosted = self._hosted(partition)
            if hosted is not None and hosted.followers.pop(self, self) is None:
                self._tell(
                    hosted, FollowerLost(broker_id=self.broker_id, broker_epoch=self.broker_epoch)
                )
        self._pushes.clear()


def cut_stalled(
    sessions: Iterable[FollowerSession],
    now_ms: int,
    stall_max_ms: int,
    say: Callable[[str], None],
) -> None:
    """Close the links of followers that take nothing."""
    for session in list(sessions):
        if session.cut_if_stalled(now_ms, stall_max_ms):
            say(
                f"follower {session.broker_id}: link closed, it took nothing for "
                f"link.stall.timeout.ms={stall_max_ms}"
            )


async def hello_of(link: Link, cluster_id: str, broker_id: int) -> pb.ReplicaHello | None:
    """What a follower says first; None when it is none of ours, or says nothing in time."""
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_MS / 1000):
            frame = await link.recv()
        header = pb.ReplicaFrame.FromString(frame.header) if frame is not None else None
    except (TimeoutError, DecodeError):
        return None
    if header is None or not header.HasField("hello"):
        return None
    hello = header.hello
    is_ours = hello.cluster_id == cluster_id and hello.leader_id == broker_id
    return hello if is_ours else None


def _say_why(part: pb.LeaderPartition, log: PartitionLog) -> None:
    """Why the log begins where it does: without that no follower gives anything up."""
    cause = log.start_cause
    if cause is not None:
        part.log_start_cause = cause.kind
        part.log_start_cause_epoch = cause.leader_epoch
        part.log_start_cause_offset = cause.offset
