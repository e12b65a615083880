"""Shards at work: owned, loaded, asked, lost.

What a shard decides is applied in memory at once and handed to its journal; answers wait until the
log has all that was decided before them. When the log refuses (somebody else owns the shard) all
that was not answered is answered with NotCoordinator and the shard is dropped, so nobody ever saw
what is not in the log. Answers that only read wait for a record of their own to be taken by the
log: a coordinator that was deposed without knowing tells nobody anything old.

A new owner writes first, which shuts the old one out, then reads up to what it wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from tailrace.clock import Clock, TrustedTime
from tailrace.coordinator.appender import Appender
from tailrace.coordinator.group import NEVER_MS, Answer, Caller, Group, Joined, Synced
from tailrace.coordinator.journal import Journal
from tailrace.coordinator.loading import Loader
from tailrace.coordinator.offsets import Meant, TopicFacts
from tailrace.coordinator.records import Member, Position, encode
from tailrace.coordinator.settings import CoordinatorSettings
from tailrace.coordinator.shard import Asked, Outcome, Shard
from tailrace.coordinator.traces import RebalanceTraces
from tailrace.errors import (
    CoordinatorLoading,
    NotCoordinator,
    Overloaded,
    RequestTimedOut,
    TailraceError,
)
from tailrace.meta.keys import ShardOwner
from tailrace.metrics.values import CoordinatorCounts
from tailrace.model import GROUP_SHARDS, TopicPartition, shard_of
from tailrace.runtime import Tasks

# A shard that cannot be read is tried again after this long.
LOAD_RETRY_MS: Final = 500
# An owner that has written nothing for so long says that it is there: brokers forget producers
# that are silent for a day, and with it whom to refuse.
SAY_AGAIN_MS: Final = 6 * 60 * 60 * 1_000
# How often what only housekeeping needs is looked at, at the least.
TICK_MAX_MS: Final = 1_000

Announce = Callable[[str, str, TailraceError | None], None]
"""Tell a member (group, id) of a rebalance (None), or that the shard is not here any more."""


class OffsetsTopic(Protocol):
    """The topic that shards are kept in; it is made when somebody first needs it."""

    @property
    def is_there(self) -> bool: ...

    def want(self) -> None:
        """Somebody needs it."""

    async def until_there(self) -> None: ...


class Listed(NamedTuple):
    """The groups of this coordinator, and whether some shards are still being read."""

    groups: list[Group]
    loading: int


class OwnedShard:
    """One shard in the hands of this coordinator, in one epoch."""

    def __init__(self, number: int, owner: ShardOwner, journal: Journal, shard: Shard) -> None:
        self.number = number
        self.owner = owner
        self.journal = journal
        self.shard = shard
        self.loaded = asyncio.Event()
        self.lost: TailraceError | None = None
        self.waiting: dict[asyncio.Future[Answer], None] = {}
        self.loading: asyncio.Task[None] | None = None
        self.wrote_ms = 0


class Runtime:
    """All shards of one coordinator. `own` says which they are, the rest is asked of them."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        *,
        loader: Loader,
        clock: Clock,
        tasks: Tasks,
        topics: Callable[[], Mapping[str, TopicFacts] | None],
        is_gone: Callable[[Meant], Awaitable[bool]],
        topic: OffsetsTopic,
        shards: Callable[[], int],
        new_id: Callable[[str], str],
        announce: Announce,
        say: Callable[[str], None],
        traces: RebalanceTraces | None = None,
    ) -> None:
        self._traces = traces
        self._settings = settings
        self.loader = loader
        self._clock = clock
        self._tasks = tasks
        self._topics = topics
        self._is_gone = is_gone
        self._topic = topic
        self._shards = shards
        self._new_id = new_id
        self._announce = announce
        self._say = say
        self._owned: dict[int, OwnedShard] = {}
        self._loads = asyncio.Semaphore(settings.loads_max)
        self._tick_due = asyncio.Event()
        self._sleeps_until_ms = NEVER_MS
        self._expire_ms = 0
        self._time = TrustedTime(settle_ms=settings.offsets_retention_clock_settle_ms)
        self.appender: Appender | None = None
        self.counts = CoordinatorCounts()

    def shard_of(self, group: str) -> int:
        return shard_of(group, self._shards() or GROUP_SHARDS)

    @property
    def owned(self) -> Mapping[int, OwnedShard]:
        return self._owned

    # Owning.

    def own(self, wanted: Mapping[int, ShardOwner]) -> None:
        """These are ours, in these epochs, and no others."""
        for number, owned in list(self._owned.items()):
            if wanted.get(number) != owned.owner:
                self.lose(owned, NotCoordinator(f"shard {number} has another owner now"))
        for number, owner in sorted(wanted.items()):
            if number not in self._owned:
                self._take_over(number, owner)

    def lose(self, owned: OwnedShard, error: TailraceError) -> None:
        """Drop a shard; whoever waits is told."""
        if self._owned.get(owned.number) is not owned:
            return
        del self._owned[owned.number]
        self.counts.shards_lost += 1
        owned.lost = error
        if owned.loading is not None:
            owned.loading.cancel()
        if self.appender is not None:
            self.appender.forget(owned.journal)
        owned.journal.close(error)
        for waiting in list(owned.waiting):
            _answer(waiting, error)
        owned.loaded.set()
        for group in (owned.shard.group(name) for name in owned.shard.names()):
            if self._traces is not None:
                self._traces.lost(group.name, str(error))
            for member_id in group.facts.members:
                self._announce(group.name, member_id, error)

    def refused(self, journal: Journal) -> OwnedShard | None:
        """Whose journal it is that the log refuses, if it is still ours."""
        owned = self._owned.get(journal.partition.partition)
        return owned if owned is not None and owned.journal is journal else None

    def _take_over(self, number: int, owner: ShardOwner) -> None:
        appender = self.appender
        assert appender is not None
        journal = Journal(number, owner.owner, owner.epoch, on_ready=appender.submit)
        owned = OwnedShard(number, owner, journal, Shard(self._settings.limits))
        self._owned[number] = owned
        self.counts.shards_taken += 1
        owned.loading = self._tasks.spawn(f"load shard {number}", self._load(owned))

    async def _load(self, owned: OwnedShard) -> None:
        await self._topic.until_there()
        while True:
            try:
                async with self._loads:
                    await self._load_once(owned)
            except TailraceError as error:
                if owned.lost is not None:
                    return
                self._say(f"shard {owned.number} cannot be read: {error}; trying again")
                await asyncio.sleep(LOAD_RETRY_MS / 1_000)
            else:
                return

    async def _load_once(self, owned: OwnedShard) -> None:
        began_ms = self._clock.monotonic_ms()
        written: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        owned.journal.prove(_tell(written), now_ms=self._clock.wall_ms())
        last_offset = await written
        shard = Shard(self._settings.limits)
        records = await self.loader.load(
            owned.journal.partition, up_to=last_offset, take=shard.apply
        )
        now_ms = self._clock.monotonic_ms()
        shard.resume(now_ms)
        owned.shard = shard
        owned.wrote_ms = now_ms
        owned.loaded.set()
        self._due(shard)
        if len(shard):
            self._say(
                f"shard {owned.number} in epoch {owned.owner.epoch}: {len(shard)} groups from "
                f"{records} records in {now_ms - began_ms} ms"
            )

    async def _ready(self, group: str) -> OwnedShard:
        """The shard of a group, waited for a little while it is being read."""
        number = self.shard_of(group)
        owned = self._owned.get(number)
        if owned is not None and not owned.loaded.is_set():
            self._topic.want()
            try:
                async with asyncio.timeout(self._settings.loading_wait_ms / 1_000):
                    await owned.loaded.wait()
            except TimeoutError:
                raise CoordinatorLoading(f"shard {number} is still being read") from None
        return self._owned_now(group)

    def _owned_now(self, group: str) -> OwnedShard:
        """The shard of a group, if it can be asked at once."""
        number = self.shard_of(group)
        owned = self._owned.get(number)
        if owned is None:
            raise NotCoordinator(
                f"group {group!r} belongs to shard {number}, which this coordinator does not own"
            )
        if not owned.loaded.is_set():
            self._topic.want()
            raise CoordinatorLoading(f"shard {number} is still being read")
        if owned.lost is not None:
            raise owned.lost
        if owned.journal.parked >= self._settings.parked_max:
            raise Overloaded(f"{owned.journal.parked} answers of shard {number} wait for its log")
        return owned

    # Members.

    async def join(self, group: str, asked: Member, proposed: str = "") -> Joined:
        """Wait until the generation begins. To cancel this means that the caller is gone.

        `proposed`: the id that a new member wants.
        """
        owned = await self._ready(group)
        token = self._token(owned)
        new_id = proposed or self._new_id(asked.instance_id or asked.client_id)
        now_ms, wall_ms = self._now()
        outcome = owned.shard.join(
            group, asked, token, new_id=new_id, now_ms=now_ms, wall_ms=wall_ms
        )
        self._perform(owned, outcome)
        if self._traces is not None:
            self._traces.joined(group, client_id=asked.client_id, host=asked.host)
        found = await self._until_answered(owned, group, token)
        assert isinstance(found, Joined)
        return found

    async def sync(self, group: str, caller: Caller, assignments: Mapping[str, bytes]) -> Synced:
        owned = await self._ready(group)
        token = self._token(owned)
        now_ms, wall_ms = self._now()
        outcome = owned.shard.sync(
            group, caller, assignments, token, now_ms=now_ms, wall_ms=wall_ms
        )
        self._perform(owned, outcome)
        found = await self._until_answered(owned, group, token)
        assert isinstance(found, Synced)
        return found

    async def heartbeat(self, group: str, caller: Caller) -> int:
        """The generation of the group; raises what the member has to know."""
        owned = await self._ready(group)
        return owned.shard.heartbeat(group, caller, now_ms=self._clock.monotonic_ms())

    async def leave(self, group: str, callers: Sequence[Caller]) -> list[TailraceError | None]:
        owned = await self._ready(group)
        now_ms, wall_ms = self._now()
        outcome, results = owned.shard.leave(group, callers, now_ms=now_ms, wall_ms=wall_ms)
        await self._perform_and_wait(owned, outcome)
        return results

    # Positions.

    async def commit(
        self, group: str, caller: Caller, asked: Sequence[Asked], *, kind: str
    ) -> list[TailraceError | None]:
        owned = await self._ready(group)
        topics = self._topics()
        if topics is None:
            raise CoordinatorLoading("this coordinator has not heard of any broker yet")
        outcome, results = owned.shard.commit(
            group, caller, asked, topics, kind=kind, now_ms=self._clock.monotonic_ms()
        )
        await self._perform_and_wait(owned, outcome)
        return results

    def commit_soon(
        self,
        group: str,
        caller: Caller,
        asked: Sequence[Asked],
        then: Callable[[TailraceError | None, list[TailraceError | None]], None],
        *,
        kind: str,
    ) -> None:
        """As `commit`, without waiting: `then` is told when the log has it, or has not.

        Raises at once when nothing is stored; a shard that is still read is not waited for.
        """
        owned = self._owned_now(group)
        topics = self._topics()
        if topics is None:
            raise CoordinatorLoading("this coordinator has not heard of any broker yet")
        outcome, results = owned.shard.commit(
            group, caller, asked, topics, kind=kind, now_ms=self._clock.monotonic_ms()
        )
        self._write(owned, outcome, lambda error, _: then(error, results))

    async def positions(
        self, group: str, wanted: Sequence[TopicPartition]
    ) -> list[tuple[TopicPartition, Position | None]]:
        owned = await self._ready(group)
        found = owned.shard.positions(group, wanted)
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        owned.journal.prove(_tell(done), now_ms=self._clock.wall_ms())
        await self._in_time(done)
        return found

    async def delete_positions(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> list[TailraceError | None]:
        owned = await self._ready(group)
        outcome, results = owned.shard.delete_positions(group, partitions)
        await self._perform_and_wait(owned, outcome)
        return results

    # Groups.

    async def delete(self, group: str) -> None:
        owned = await self._ready(group)
        await self._perform_and_wait(owned, owned.shard.delete(group))

    async def describe(self, group: str) -> Group:
        """The group as it is now; GroupNotFound."""
        return (await self._ready(group)).shard.group(group)

    def list(self) -> Listed:
        ready = [each for each in self._owned.values() if each.loaded.is_set()]
        groups = [each.shard.group(name) for each in ready for name in each.shard.names()]
        return Listed(
            sorted(groups, key=lambda group: group.name),
            len(self._owned) - len(ready) if self._topic.is_there else 0,
        )

    # Time.

    async def keep_time(self) -> None:
        """Let sessions and phases end, positions expire; for ever."""
        self._expire_ms = (
            self._clock.monotonic_ms() + self._settings.offsets_retention_check_interval_ms
        )
        while True:
            now_ms, wall_ms = self._now()
            due_ms = now_ms + TICK_MAX_MS
            for owned in list(self._owned.values()):
                if not owned.loaded.is_set():
                    continue
                if owned.shard.next_due_ms() <= now_ms:
                    self._perform(owned, owned.shard.tick(now_ms=now_ms, wall_ms=wall_ms))
                due_ms = min(due_ms, owned.shard.next_due_ms())
            self._keep_house(now_ms, wall_ms)
            self._sleeps_until_ms = due_ms
            self._tick_due.clear()
            try:
                async with asyncio.timeout(max(due_ms - now_ms, 1) / 1_000):
                    await self._tick_due.wait()
            except TimeoutError:
                continue

    def _keep_house(self, now_ms: int, wall_ms: int) -> None:
        expires = now_ms >= self._expire_ms
        if expires:
            self._expire_ms = now_ms + self._settings.offsets_retention_check_interval_ms
            believed_ms = self._time.now_ms(wall_ms=wall_ms, monotonic_ms=now_ms)
            self._tasks.spawn("expire positions", self._expire(believed_ms))
        for owned in list(self._owned.values()):
            if not owned.loaded.is_set():
                continue
            if now_ms - owned.wrote_ms >= SAY_AGAIN_MS:
                owned.wrote_ms = now_ms
                owned.journal.prove(lambda _, __: None, now_ms=wall_ms)

    async def _expire(self, wall_ms: int | None) -> None:
        """Forget what is too old, and positions of topics that the store says are gone.

        By a time that is believed: a clock that jumped ahead makes nothing old.
        """
        topics = self._topics()
        loaded = [each for each in self._owned.values() if each.loaded.is_set()]
        suspected: dict[Meant, None] = {}
        for owned in loaded if topics is not None else ():
            suspected |= dict.fromkeys(owned.shard.missing(topics or {}))
        gone = [each for each in suspected if await self._is_gone(each)]
        for owned in loaded:
            if self._owned.get(owned.number) is owned:
                self._perform(owned, owned.shard.expire(gone, wall_ms=wall_ms))

    # Inside.

    def _now(self) -> tuple[int, int]:
        return self._clock.monotonic_ms(), self._clock.wall_ms()

    def _token(self, owned: OwnedShard) -> asyncio.Future[Answer]:
        token: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        owned.waiting[token] = None
        token.add_done_callback(lambda _: owned.waiting.pop(token, None))
        return token

    def _perform(self, owned: OwnedShard, outcome: Outcome) -> None:
        """Have it appended; answer after that, announce at once."""
        # All who wait for a generation to begin are answered together.
        self.counts.generations += any(isinstance(each, Joined) for _, each in outcome.answers)
        if self._traces is not None:
            self._traces.seen(outcome.changes)

        def then(error: TailraceError | None, _: int) -> None:
            for token, answer in outcome.answers:
                _answer(token, error or answer)

        self._write(owned, outcome, then)
        for group, member_id in outcome.announced:
            self._announce(group, member_id, None)

    async def _perform_and_wait(self, owned: OwnedShard, outcome: Outcome) -> None:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        tell = _tell(done)
        if self._traces is not None:
            self._traces.seen(outcome.changes)

        def then(error: TailraceError | None, last_offset: int) -> None:
            for token, answer in outcome.answers:
                _answer(token, error or answer)
            tell(error, last_offset)

        self._write(owned, outcome, then)
        for group, member_id in outcome.announced:
            self._announce(group, member_id, None)
        await self._in_time(done)

    def _write(
        self,
        owned: OwnedShard,
        outcome: Outcome,
        then: Callable[[TailraceError | None, int], None],
    ) -> None:
        if outcome.changes:
            owned.wrote_ms = self._clock.monotonic_ms()
        records = [encode(change) for change in outcome.changes]
        owned.journal.write(records, then, now_ms=self._clock.wall_ms())
        self._due(owned.shard)

    def _due(self, shard: Shard) -> None:
        if shard.next_due_ms() < self._sleeps_until_ms:
            self._tick_due.set()

    async def _until_answered(
        self, owned: OwnedShard, group: str, token: asyncio.Future[Answer]
    ) -> Joined | Synced:
        """Wait for the answer; who is cancelled waits no longer, and the group is told."""
        try:
            answer = await asyncio.shield(token)
        except asyncio.CancelledError:
            if not token.done():
                token.cancel()
            if owned.lost is None:
                now_ms, wall_ms = self._now()
                outcome = owned.shard.forget(group, token, now_ms=now_ms, wall_ms=wall_ms)
                self._perform(owned, outcome)
            raise
        if isinstance(answer, TailraceError):
            raise answer
        return answer

    async def _in_time(self, done: asyncio.Future[int]) -> None:
        try:
            async with asyncio.timeout(self._settings.request_timeout_ms / 1_000):
                await done
        except TimeoutError:
            raise RequestTimedOut(
                f"not on all replicas within {self._settings.request_timeout_ms} ms; "
                "it may be there later"
            ) from None


def _answer(token: object, answer: Answer) -> None:
    assert isinstance(token, asyncio.Future)
    if not token.done():
        token.set_result(answer)


def _tell(done: asyncio.Future[int]) -> Callable[[TailraceError | None, int], None]:
    def then(error: TailraceError | None, last_offset: int) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(last_offset)
        else:
            done.set_exception(error)
            # It is no loss when nobody hears of it.
            done.exception()

    return then
