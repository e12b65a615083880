"""One shard of groups: the groups whose name falls into it, their members and positions. Pure.

Every request is decided at once, and what it changes is applied at once by `apply`, which also
reads a shard from its log. The changes are given out to be appended; the caller answers nobody
before they are on all replicas, and drops the whole shard when they cannot be (somebody else owns
it then, and reads what was appended). So what this shard believes is never seen by anybody unless
it is in the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple, assert_never

from tailrace.coordinator.group import NEVER_MS, Answer, Caller, Group, GroupLimits, Step, Token
from tailrace.coordinator.offsets import Meant, Topics, checked, chosen, expired, missing, orphaned
from tailrace.coordinator.records import (
    CONSUMER,
    READER,
    Change,
    GroupFacts,
    GroupStored,
    Member,
    Phase,
    Position,
    PositionStored,
    ShardTaken,
)
from tailrace.errors import (
    GroupNotEmpty,
    GroupNotFound,
    InvalidGroup,
    InvalidRequest,
    InvalidSessionTimeout,
    LimitReached,
    TailraceError,
    UnknownMember,
)
from tailrace.model import TopicPartition

GROUP_NAME_LENGTH_MAX: Final = 255
PROTOCOLS_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLimits:
    """What a shard takes."""

    group: GroupLimits = field(default_factory=GroupLimits)
    groups_max: int = 20_000
    joins_max: int = 5_000
    session_min_ms: int = 1_000
    session_max_ms: int = 30 * 60 * 1_000
    rebalance_max_ms: int = 60 * 60 * 1_000
    metadata_bytes_max: int = 4_096
    retention_ms: int = 7 * 24 * 60 * 60 * 1_000


@dataclass(slots=True)
class Outcome:
    """Changes to append, answers to give after that, members to tell of a rebalance at once."""

    changes: list[Change] = field(default_factory=list)
    answers: list[tuple[Token, Answer]] = field(default_factory=list)
    announced: list[tuple[str, str]] = field(default_factory=list)


class Asked(NamedTuple):
    """A position that somebody wants to commit."""

    partition: TopicPartition
    position: Position


class _Entry:
    __slots__ = ("group", "positions")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.positions: dict[TopicPartition, Position] = {}


class Shard:
    """The groups of one shard."""

    def __init__(self, limits: ShardLimits) -> None:
        self._limits = limits
        self._entries: dict[str, _Entry] = {}
        self._timers: list[tuple[int, str]] = []
        self.epoch = -1

    def __len__(self) -> int:
        return len(self._entries)

    # What is stored.

    def apply(self, change: Change) -> None:
        """Take a change: the only way in, live and on load."""
        match change:
            case PositionStored():
                self._apply_position(change)
            case GroupStored(name, facts):
                if facts is not None:
                    self._entry(name).group.apply(facts)
                elif name in self._entries:
                    self._entries[name].group.apply(GroupFacts(members={}))
                    self._drop_if_nothing(name)
            case ShardTaken(_, epoch):
                self.epoch = max(self.epoch, epoch)
            case _:
                assert_never(change)

    def _apply_position(self, change: PositionStored) -> None:
        name, partition, position = change
        if position is not None:
            entry = self._entry(name)
            entry.positions[partition] = position
            if entry.group.facts.phase is Phase.EMPTY:
                entry.group.kind = position.kind
        elif name in self._entries:
            self._entries[name].positions.pop(partition, None)
            self._drop_if_nothing(name)

    def resume(self, now_ms: int) -> None:
        """All is read: time begins."""
        for name, entry in self._entries.items():
            entry.group.resume(now_ms)
            self._set_timer(name, entry.group)

    # Members.

    def join(
        self, name: str, asked: Member, token: Token, *, new_id: str, now_ms: int, wall_ms: int
    ) -> Outcome:
        check_name(name)
        self._check_join(asked)
        if name not in self._entries:
            self._check_room()
            if asked.member_id:
                # It knows a member id, so the group was there before, and was forgotten since.
                return _refused(token, _no_member(name, asked.member_id))
        entry = self._entry(name)
        if entry.group.waiting >= self._limits.joins_max:
            raise LimitReached(f"{entry.group.waiting} members of group {name!r} wait already")
        step = entry.group.join(asked, token, new_id=new_id, now_ms=now_ms, wall_ms=wall_ms)
        return self._taken(name, entry, step)

    def sync(
        self,
        name: str,
        caller: Caller,
        assignments: Mapping[str, bytes],
        token: Token,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> Outcome:
        entry = self._entries.get(name)
        if entry is None:
            return _refused(token, _no_member(name, caller.member_id))
        step = entry.group.sync(caller, assignments, token, now_ms=now_ms, wall_ms=wall_ms)
        return self._taken(name, entry, step)

    def heartbeat(self, name: str, caller: Caller, *, now_ms: int) -> int:
        """The group's generation; raises what the member has to know."""
        entry = self._entries.get(name)
        if entry is None:
            raise _no_member(name, caller.member_id)
        entry.group.heartbeat(caller, now_ms)
        return entry.group.facts.generation

    def leave(
        self, name: str, callers: Sequence[Caller], *, now_ms: int, wall_ms: int
    ) -> tuple[Outcome, list[TailraceError | None]]:
        """What came of it, and for each of the callers why it could not leave."""
        outcome, results = Outcome(), list[TailraceError | None]()
        for caller in callers:
            entry = self._entries.get(name)
            try:
                if entry is None:
                    raise _no_member(name, caller.member_id)
                step = entry.group.leave(caller, now_ms=now_ms, wall_ms=wall_ms)
            except TailraceError as error:
                results.append(error)
            else:
                results.append(None)
                self._take(outcome, name, entry, step)
        return outcome, results

    def forget(self, name: str, token: Token, *, now_ms: int, wall_ms: int) -> Outcome:
        """Somebody does not wait any longer."""
        entry = self._entries.get(name)
        if entry is None:
            return Outcome()
        return self._taken(name, entry, entry.group.forget(token, now_ms=now_ms, wall_ms=wall_ms))

    # Positions.

    def commit(
        self,
        name: str,
        caller: Caller,
        asked: Sequence[Asked],
        topics: Topics,
        *,
        kind: str,
        now_ms: int,
    ) -> tuple[Outcome, list[TailraceError | None]]:
        """What came of it, and for each position why it was refused; raises when all are."""
        check_name(name)
        if kind not in {CONSUMER, READER}:
            raise InvalidRequest(f"{kind!r} is neither {CONSUMER!r} nor {READER!r}")
        entry = self._entries.get(name)
        if entry is not None:
            entry.group.check_commit(caller, now_ms)
        elif caller.generation >= 0 or caller.member_id:
            raise _no_member(name, caller.member_id)
        else:
            self._check_room()
        outcome, results = Outcome(), list[TailraceError | None]()
        for each in asked:
            try:
                position = checked(
                    each.partition,
                    each.position,
                    topics,
                    metadata_bytes_max=self._limits.metadata_bytes_max,
                )
            except TailraceError as error:
                results.append(error)
            else:
                results.append(None)
                self._change(outcome, PositionStored(name, each.partition, position))
        return outcome, results

    def positions(
        self, name: str, wanted: Iterable[TopicPartition]
    ) -> list[tuple[TopicPartition, Position | None]]:
        entry = self._entries.get(name)
        return chosen({} if entry is None else entry.positions, wanted)

    def delete_positions(
        self, name: str, partitions: Iterable[TopicPartition]
    ) -> tuple[Outcome, list[TailraceError | None]]:
        entry = self._without_members(name)
        outcome, results = Outcome(), list[TailraceError | None]()
        for partition in partitions:
            if partition in entry.positions:
                self._change(outcome, PositionStored(name, partition, None))
            results.append(None)
        return outcome, results

    # Groups.

    def names(self) -> list[str]:
        return sorted(self._entries)

    def group(self, name: str) -> Group:
        """GroupNotFound when there is none."""
        entry = self._entries.get(name)
        if entry is None:
            raise GroupNotFound(f"there is no group {name!r}")
        return entry.group

    def delete(self, name: str) -> Outcome:
        """Forget a group without members, with its positions."""
        entry = self._without_members(name)
        outcome = Outcome()
        self._forget_all(outcome, name, entry)
        return outcome

    # Time.

    def next_due_ms(self) -> int:
        return self._timers[0][0] if self._timers else NEVER_MS

    def tick(self, *, now_ms: int, wall_ms: int) -> Outcome:
        """Time has passed: let the groups whose time is up see to it."""
        outcome = Outcome()
        while self._timers and self._timers[0][0] <= now_ms:
            due_ms, name = heappop(self._timers)
            entry = self._entries.get(name)
            if entry is None or entry.group.timer_ms != due_ms:
                continue
            entry.group.timer_ms = NEVER_MS
            if entry.group.next_due_ms() <= now_ms:
                step = entry.group.tick(now_ms=now_ms, wall_ms=wall_ms)
                self._take(outcome, name, entry, step)
            else:
                self._set_timer(name, entry.group)
        return outcome

    def missing(self, topics: Topics) -> list[Meant]:
        """Topics that positions are of and that are not known: they may be gone."""
        found = (missing(entry.positions, topics) for entry in self._entries.values())
        return list(dict.fromkeys(each for some in found for each in some))

    def expire(self, gone_topics: Collection[Meant], *, wall_ms: int | None) -> Outcome:
        """Forget positions that were kept for long enough, and those of topics that are gone.

        `wall_ms` is a time that is believed; without one nothing is old.
        """
        outcome = Outcome()
        for name, entry in list(self._entries.items()):
            gone: list[TopicPartition] = []
            if entry.group.is_empty and wall_ms is not None:
                gone = expired(
                    entry.positions,
                    empty_since_ms=entry.group.facts.phase_ms,
                    wall_ms=wall_ms,
                    retention_ms=self._limits.retention_ms,
                )
            if gone_topics:
                gone = list(dict.fromkeys([*gone, *orphaned(entry.positions, gone_topics)]))
            for partition in gone:
                self._change(outcome, PositionStored(name, partition, None))
            facts = entry.group.facts
            is_old = wall_ms is not None and wall_ms - facts.phase_ms > self._limits.retention_ms
            if entry.group.is_empty and not entry.positions and facts.generation and is_old:
                self._forget_all(outcome, name, entry)
        return outcome

    # Inside.

    def _entry(self, name: str) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = _Entry(Group(name, self._limits.group))
        return entry

    def _drop_if_nothing(self, name: str) -> None:
        entry = self._entries[name]
        facts = entry.group.facts
        if not entry.positions and facts.generation == 0 and entry.group.is_empty:
            del self._entries[name]

    def _without_members(self, name: str) -> _Entry:
        group = self.group(name)
        if not group.is_empty:
            raise GroupNotEmpty(
                f"group {name!r} has members ({len(group.facts.members)}): stop them first"
            )
        return self._entries[name]

    def _forget_all(self, outcome: Outcome, name: str, entry: _Entry) -> None:
        for partition in list(entry.positions):
            self._change(outcome, PositionStored(name, partition, None))
        if name in self._entries:
            self._change(outcome, GroupStored(name, None))

    def _change(self, outcome: Outcome, change: Change) -> None:
        self.apply(change)
        outcome.changes.append(change)

    def _taken(self, name: str, entry: _Entry, step: Step) -> Outcome:
        outcome = Outcome()
        self._take(outcome, name, entry, step)
        return outcome

    def _take(self, outcome: Outcome, name: str, entry: _Entry, step: Step) -> None:
        if step.facts is not None:
            entry.group.kind = CONSUMER
            # The group has applied it itself.
            outcome.changes.append(GroupStored(name, step.facts))
        outcome.answers += step.answers
        outcome.announced += [(name, member_id) for member_id in step.announced]
        if name in self._entries:
            self._drop_if_nothing(name)
        self._set_timer(name, entry.group)

    def _set_timer(self, name: str, group: Group) -> None:
        due_ms = group.next_due_ms()
        if due_ms < group.timer_ms:
            group.timer_ms = due_ms
            heappush(self._timers, (due_ms, name))

    def _check_room(self) -> None:
        if len(self._entries) >= self._limits.groups_max:
            raise LimitReached(
                f"this shard has {len(self._entries)} groups, as many as it may (groups.max)"
            )

    def _check_join(self, asked: Member) -> None:
        limits = self._limits
        if not limits.session_min_ms <= asked.session_timeout_ms <= limits.session_max_ms:
            raise InvalidSessionTimeout(
                f"session.timeout.ms={asked.session_timeout_ms} must be from "
                f"{limits.session_min_ms} to {limits.session_max_ms}"
            )
        if not 0 < asked.rebalance_timeout_ms <= limits.rebalance_max_ms:
            raise InvalidRequest(
                f"a rebalance timeout of {asked.rebalance_timeout_ms} ms must be from 1 to "
                f"{limits.rebalance_max_ms}"
            )
        names = [name for name, _ in asked.protocols]
        if not names or len(names) > PROTOCOLS_MAX or len(set(names)) != len(names):
            raise InvalidRequest(f"a member names 1 to {PROTOCOLS_MAX} assignors, each once")


def check_name(name: str) -> None:
    """InvalidGroup when no group can have this name."""
    if not name or len(name) > GROUP_NAME_LENGTH_MAX or not name.isprintable():
        raise InvalidGroup(
            f"{name[:60]!r}: a group's name has 1 to {GROUP_NAME_LENGTH_MAX} printable characters"
        )


def _refused(token: Token, error: TailraceError) -> Outcome:
    return Outcome(answers=[(token, error)])


def _no_member(name: str, member_id: str) -> TailraceError:
    return UnknownMember(f"group {name!r} has no member {member_id!r}: join as somebody new")
