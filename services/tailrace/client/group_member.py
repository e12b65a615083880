"""The membership in a group, carried out: joins, heartbeats and commits against the coordinator.

What is to be done is decided in `membership`; here it is done, in tasks of its own, so that
heartbeats go on while the program works. What concerns the program (a handover, a failure) is
announced by `on_attention` and taken care of in its next poll.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from random import Random
from typing import Final, NamedTuple

from tailrace.client.consumer_settings import ConsumerSettings
from tailrace.client.coordinator import WORTH_ANOTHER_TRY, A, CoordinatorClient, Q
from tailrace.client.membership import (
    NO_GENERATION,
    Effect,
    Join,
    Joined,
    Leave,
    Membership,
    State,
    Sync,
)
from tailrace.client.metadata import MetadataWatcher
from tailrace.client.subscription import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tailrace.clock import Clock
from tailrace.errors import (
    CommitFailed,
    IllegalGeneration,
    RebalanceInProgress,
    RequestTimedOut,
    TailraceError,
    UnknownMember,
    Unreachable,
)
from tailrace.model import NO_LEADER_EPOCH, TopicPartition
from tailrace.runtime import Tasks
from tailrace.transport import methods
from tailrace.transport.rpc import Method, Network, Stream
from tailrace.transport.wire import error_of, to_partition
from tailrace.v1 import group_pb2 as pb

# A join is answered when the rebalance ends; the coordinator gives up before we do.
JOIN_GRACE_MS: Final = 10_000
LEAVE_TIMEOUT_MS: Final = 3_000
TOPIC_WAIT_MS: Final = 5_000
UNANSWERED_BEATS_MAX: Final = 2

_Beats = Stream[pb.HeartbeatRequest, pb.HeartbeatResponse]


class OffsetAndMetadata(NamedTuple):
    """A position to commit: the next offset to read."""

    offset: int
    leader_epoch: int = int(NO_LEADER_EPOCH)
    metadata: str = ""
    topic_id: str = ""


class GroupMember:
    """One consumer's place in its group: `run` in a task; `leave` at the end."""

    def __init__(
        self,
        settings: ConsumerSettings,
        metadata: MetadataWatcher,
        *,
        network: Network,
        clock: Clock,
        rng: Random,
        on_attention: Callable[[], None],
        on_failure: Callable[[str, BaseException], None],
    ) -> None:
        self._settings = settings
        self._assignors = settings.assignors
        self._metadata = metadata
        self._clock = clock
        self._rng = rng
        self._on_attention = on_attention
        self.group = settings.group_id or ""
        self.coordinator = CoordinatorClient(
            self.group, metadata, network=network, clock=clock, rng=rng
        )
        self.machine = Membership(
            self._assignors,
            max_poll_interval_ms=settings.max_poll_interval_ms,
            is_static=bool(settings.group_instance_id),
        )
        self._tasks = Tasks(on_failure)
        self._effects: deque[Effect] = deque()
        self._due = asyncio.Event()
        self._beat_due = asyncio.Event()
        self._polled = asyncio.Event()
        self._moved = asyncio.Event()
        self._working: asyncio.Task[None] | None = None
        self._partitions: dict[str, int] = {}
        self._is_started = False
        self._is_waited_in = False
        self.problem: TailraceError | None = None
        """Why the coordinator could not be asked at the last attempt."""

    # What the consumer calls.

    def start(self) -> None:
        if not self._is_started:
            self._is_started = True
            self._tasks.spawn("group membership", self._run())
            self._tasks.spawn("group heartbeats", self._beat())
            self._tasks.spawn("group poll interval", self._keep_time())

    @property
    def is_calm(self) -> bool:
        """Whether nothing of the group waits for the program."""
        return self.machine.state is State.STABLE or not self._is_started

    def subscribe(self, topics: Iterable[str], reason: str) -> None:
        self._perform(self.machine.subscribed(topics, reason=reason))

    def partitions_changed(self, partitions: Mapping[str, int]) -> None:
        """How many partitions each topic has, of those that the group may read."""
        before, self._partitions = self._partitions, dict(partitions)
        changed = [
            topic
            for topic in sorted(self.machine.group_topics)
            if before.get(topic) != self._partitions.get(topic)
        ]
        if changed:
            self._perform(self.machine.changed(f"{', '.join(changed)} has other partitions"))

    def polled(self) -> None:
        self._polled.set()
        self._perform(self.machine.polled(self._clock.monotonic_ms()))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The program waits in its poll: it is alive for as long as that takes."""
        self._is_waited_in = True
        try:
            yield
        finally:
            self._is_waited_in = False
            self.machine.touch(self._clock.monotonic_ms())

    def handed_over(self) -> None:
        self._perform(self.machine.handed_over())

    async def leave(self, reason: str) -> None:
        """End the membership; a static member's place is kept for its session."""
        effects = self.machine.left(reason)
        self._effects.clear()
        if self._working is not None:
            self._working.cancel()
        for effect in effects:
            if isinstance(effect, Leave):
                await self._leave(effect)

    async def close(self, reason: str) -> None:
        if self._is_started:
            await self.leave(reason)
        await self._tasks.close()
        await self.coordinator.close()

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, timeout_ms: int
    ) -> None:
        """Store positions in the name of the member, or of nobody in particular.

        CommitFailed when the partitions may have been given to others meanwhile.
        """
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        settled_ms = self._clock.monotonic_ms() + min(timeout_ms, TOPIC_WAIT_MS)
        error: TailraceError | None = None
        while True:
            left_ms = max(deadline_ms - self._clock.monotonic_ms(), 1)
            tried = self.machine.state, self.machine.generation
            try:
                error = await self._commit_once(offsets, left_ms)
            except RequestTimedOut:
                # The last attempt may have no time left for an answer: what was said before counts.
                if error is None or isinstance(error, RebalanceInProgress | IllegalGeneration):
                    raise
                raise error from None
            if error is None:
                return
            is_moved_on = isinstance(error, RebalanceInProgress | IllegalGeneration)
            # A cooperative member keeps what it has until it gives it up, whatever the generation.
            if is_moved_on and self.machine.is_cooperative and await self._moves(tried, left_ms):
                continue
            if error.retriable and self._clock.monotonic_ms() < settled_ms:
                # A coordinator may hear of a topic later than we do.
                await self.coordinator.pause(error)
                continue
            if isinstance(error, UnknownMember | IllegalGeneration | RebalanceInProgress):
                raise CommitFailed(
                    f"group {self.group!r} has begun a new generation: poll, then commit what is "
                    f"still yours ({error})"
                ) from error
            raise error

    async def _commit_once(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int
    ) -> TailraceError | None:
        machine = self.machine
        if machine.error is not None:
            raise machine.error
        # Who assigns partitions by hand commits in the name of nobody in particular.
        is_member = self._is_started and machine.is_wanted
        generation = machine.generation if is_member else NO_GENERATION
        if is_member and generation == NO_GENERATION:
            raise CommitFailed(
                f"not a member of group {self.group!r} at the moment: "
                "the partitions may have been given to others"
            )
        request = pb.CommitOffsetsRequest(
            group=self.group,
            generation=generation,
            member_id=machine.member_id if is_member else "",
            instance_id=(self._settings.group_instance_id or "") if is_member else "",
            offsets=[
                pb.OffsetToCommit(
                    topic=partition.topic,
                    topic_id=each.topic_id,
                    partition=partition.partition,
                    offset=each.offset,
                    leader_epoch=each.leader_epoch,
                    metadata=each.metadata,
                )
                for partition, each in offsets.items()
            ],
            kind="consumer",
            keeps_partitions=is_member and machine.is_cooperative,
        )
        answer = await self.coordinator.commit(request, timeout_ms=timeout_ms)
        told = [(answer.error, answer.message)]
        told += [(each.error, each.message) for each in answer.partitions]
        error = next((found for each in told if (found := error_of(*each)) is not None), None)
        self._perform(machine.beaten(generation, error))
        return error

    async def _moves(self, tried: tuple[State, int], timeout_ms: int) -> bool:
        """Wait until we have heard of what the coordinator knows already; whether we are in it."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while (self.machine.state, self.machine.generation) == tried:
                    await self._moved.wait()
        except TimeoutError:
            return False
        return self.machine.generation != NO_GENERATION

    async def committed(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The stored positions; partitions without one are left out."""
        wanted = list(partitions)
        request = pb.FetchOffsetsRequest(
            group=self.group, partitions=[to_partition(each) for each in wanted]
        )
        answer = await self.coordinator.call(
            methods.GROUP_FETCH_OFFSETS, request, timeout_ms=timeout_ms
        )
        error = error_of(answer.error, answer.message)
        if error is not None:
            raise error
        return {
            TopicPartition(each.topic, each.partition): OffsetAndMetadata(
                each.offset, each.leader_epoch, each.metadata, each.topic_id
            )
            for each in answer.offsets
            if each.offset >= 0
        }

    # Joining.

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Join) and self._working is not None:
                # The answer that is waited for counts no longer.
                self._working.cancel()
            self._effects.append(effect)
        if effects:
            self._due.set()
        self._beat_due.set()
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
        if self.machine.handover is not None or self.machine.error is not None:
            self._on_attention()

    async def _run(self) -> None:
        while True:
            while self._effects:
                effect = self._effects.popleft()
                self._working = self._tasks.spawn("group step", self._step(effect))
                await asyncio.wait([self._working])
                self._working = None
            self._due.clear()
            await self._due.wait()

    async def _step(self, effect: Effect) -> None:
        match effect:
            case Join():
                await self._join(effect)
            case Sync():
                await self._sync(effect)
            case Leave():
                await self._leave(effect)

    async def _join(self, effect: Join) -> None:
        metadata = encode_subscription(effect.topics, effect.owned, effect.generation)
        request = pb.JoinGroupRequest(
            group=self.group,
            member_id=effect.member_id,
            # Asked again with the same, should the answer get lost: then it is known already.
            proposed_member_id="" if effect.member_id else self._new_id(),
            instance_id=self._settings.group_instance_id or "",
            client_id=self._settings.client_id,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.max_poll_interval_ms,
            protocols=[
                pb.GroupProtocol(name=each.name, metadata=metadata) for each in self._assignors
            ],
            reason=effect.reason,
        )
        answer = await self._ask(methods.GROUP_JOIN, request)
        error = error_of(answer.error, answer.message)
        if error is not None:
            self._perform(self.machine.refused(effect.attempt, error, member_id=answer.member_id))
            return
        try:
            joined = Joined(
                member_id=answer.member_id,
                generation=answer.generation,
                protocol=answer.protocol,
                leader=answer.leader_member_id,
                members=tuple(
                    decode_subscription(each.member_id, each.instance_id, each.metadata)
                    for each in answer.members
                ),
                skip_assignment=answer.skip_assignment,
            )
            effects = self.machine.joined(effect.attempt, joined, self._partitions)
        except TailraceError as problem:
            effects = self.machine.refused(effect.attempt, problem)
        self._perform(effects)

    async def _sync(self, effect: Sync) -> None:
        request = pb.SyncGroupRequest(
            group=self.group,
            generation=effect.generation,
            member_id=effect.member_id,
            instance_id=self._settings.group_instance_id or "",
            assignments=[
                pb.MemberAssignment(member_id=each, assignment=encode_assignment(partitions))
                for each, partitions in effect.assignments.items()
            ],
        )
        answer = await self._ask(methods.GROUP_SYNC, request)
        error = error_of(answer.error, answer.message)
        if error is not None:
            self._perform(self.machine.refused(effect.attempt, error))
            return
        try:
            effects = self.machine.synced(effect.attempt, decode_assignment(answer.assignment))
        except TailraceError as problem:
            effects = self.machine.refused(effect.attempt, problem)
        self._perform(effects)

    def _new_id(self) -> str:
        return f"{self._settings.client_id or 'member'}-{self._rng.getrandbits(64):016x}"

    async def _ask(self, method: Method[Q, A], request: Q) -> A:
        """Ask until there is an answer: whoever is a member has nothing better to do."""
        limit_ms = self._settings.max_poll_interval_ms + JOIN_GRACE_MS
        while True:
            try:
                answer = await self.coordinator.call(
                    method, request, timeout_ms=limit_ms, attempt_timeout_ms=limit_ms
                )
            except RequestTimedOut as error:
                self.problem = error
                continue
            self.problem = None
            return answer

    async def _leave(self, effect: Leave) -> None:
        request = pb.LeaveGroupRequest(
            group=self.group,
            members=[
                pb.LeavingMember(
                    member_id=effect.member_id,
                    instance_id=self._settings.group_instance_id or "",
                )
            ],
            reason=effect.reason,
        )
        # Without an answer the session ends by itself.
        with suppress(TailraceError):
            await self.coordinator.call(methods.GROUP_LEAVE, request, timeout_ms=LEAVE_TIMEOUT_MS)

    # Staying alive.

    async def _beat(self) -> None:
        while True:
            while not self.machine.is_beating:
                self._beat_due.clear()
                await self._beat_due.wait()
            try:
                await self._beat_at_coordinator()
            except WORTH_ANOTHER_TRY as error:
                self.problem = error
                await self.coordinator.pause(error)

    async def _beat_at_coordinator(self) -> None:
        """Heartbeats of one generation on one stream, until it breaks or the generation ends.

        A stream for each generation: no answer can be taken for one to another generation.
        """
        channel = self.coordinator.channel()
        stream: _Beats = channel.open(methods.GROUP_HEARTBEAT)
        generation = self.machine.generation
        tasks = Tasks(lambda _, __: stream.cancel())
        answered = asyncio.Event()
        try:
            tasks.spawn("send heartbeats", self._send_beats(stream, generation, answered))
            while (response := await stream.recv()) is not None:
                answered.set()
                error = error_of(response.error, response.message)
                if isinstance(error, WORTH_ANOTHER_TRY):
                    raise error
                self.problem = None
                self._perform(self.machine.beaten(generation, error))
                if not self._is_beating_in(generation):
                    return
        except Unreachable:
            # We may have broken it ourselves, at the end of the generation.
            if self._is_beating_in(generation):
                raise
        finally:
            stream.cancel()
            await tasks.close_and(channel.close)

    async def _send_beats(self, stream: _Beats, generation: int, answered: asyncio.Event) -> None:
        interval_s = self._settings.heartbeat_interval_ms / 1000
        unanswered = 0
        while unanswered < UNANSWERED_BEATS_MAX and self._is_beating_in(generation):
            answered.clear()
            await stream.send(
                pb.HeartbeatRequest(
                    group=self.group,
                    generation=generation,
                    member_id=self.machine.member_id,
                    instance_id=self._settings.group_instance_id or "",
                )
            )
            self._beat_due.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    while self._is_beating_in(generation):
                        await self._beat_due.wait()
                        self._beat_due.clear()
            unanswered = 0 if answered.is_set() else unanswered + 1
        if unanswered:
            # A coordinator that hangs says nothing and breaks nothing.
            self._metadata.refresh()
        stream.cancel()

    def _is_beating_in(self, generation: int) -> bool:
        return self.machine.is_beating and self.machine.generation == generation

    async def _keep_time(self) -> None:
        while True:
            now_ms = self._clock.monotonic_ms()
            if self._is_waited_in:
                self.machine.touch(now_ms)
            self._perform(self.machine.passed(now_ms))
            left_ms = self.machine.poll_due_ms - now_ms
            self._polled.clear()
            if left_ms > 0:
                await asyncio.sleep(left_ms / 1000)
            else:
                await self._polled.wait()
