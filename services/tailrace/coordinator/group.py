"""The members of one group: who belongs to which generation, and who has to do what next. Pure.

Theory of operation. A group is *empty* until somebody joins. A rebalance has two phases: *joining*,
in which all members (new ones too) say that they are there, until all have or time is up; then a
generation begins and, in the phase *syncing*, the leading member brings the assignment. After that
the group is *stable*, until somebody comes, leaves, is not heard of for longer than its session, or
wants something else than before.

What a coordinator must not forget is in `facts`: phase, generation, members, assignments. Each
change of it is given out to be stored, and `apply` is the only way to change it, here and when a
shard is read again. The rest is soft: who waits for an answer (`token`), and when whose time is up.
A coordinator that takes over begins with the stored facts and new sessions for all; who waited for
an answer asks again.

Invariants: a generation has one set of members and at most one assignment; its number never comes
again, so a request of another generation is known as such; and every phase that waits for members
ends at a deadline, whatever they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias

from tailrace.coordinator.records import CONSUMER, GroupFacts, Member, Phase, size_of
from tailrace.errors import (
    FencedInstance,
    GroupFull,
    GroupNotEmpty,
    IllegalGeneration,
    InconsistentProtocol,
    RebalanceInProgress,
    TailraceError,
    UnknownMember,
)

NEVER_MS: Final = 2**62
NO_GENERATION: Final = -1

Token: TypeAlias = object
"""Stands for somebody who waits for an answer."""


class Joined(NamedTuple):
    """The generation that begins; `members` are for the leader only."""

    member_id: str
    generation: int
    protocol: str
    leader: str
    members: tuple[Member, ...] = ()
    skip_assignment: bool = False


class Synced(NamedTuple):
    protocol: str
    assignment: bytes


Answer: TypeAlias = Joined | Synced | TailraceError


class Caller(NamedTuple):
    """Who asks, as which member of which generation."""

    member_id: str
    instance_id: str = ""
    generation: int = NO_GENERATION
    # A cooperative member: what it has stays its own until it was told otherwise.
    keeps_partitions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """What one group may have, and how long it waits for more members at its beginning."""

    members_max: int = 1_000
    # Metadata and assignments of all members together.
    bytes_max: int = 2 << 20
    initial_delay_ms: int = 100


@dataclass(slots=True)
class Step:
    """What came of an event: facts to store, answers to give, members to tell of a rebalance."""

    facts: GroupFacts | None = None
    answers: list[tuple[Token, Answer]] = field(default_factory=list)
    announced: list[str] = field(default_factory=list)


class _Join(NamedTuple):
    member: Member
    token: Token


class Group:
    """One group. Every event gives a Step; times are monotonic ms unless they are called wall."""

    __slots__ = (
        "_deadlines",
        "_joins",
        "_limits",
        "_phase_due_ms",
        "_settles_ms",
        "_syncs",
        "facts",
        "kind",
        "name",
        "timer_ms",
    )

    def __init__(self, name: str, limits: GroupLimits) -> None:
        self.name = name
        self.kind = CONSUMER
        self.facts = GroupFacts(members={})
        # When the shard will look at this group, as far as its timer knows.
        self.timer_ms = NEVER_MS
        self._limits = limits
        self._joins: dict[str, _Join] = {}
        self._syncs: dict[str, Token] = {}
        # When the session of each member ends; those who wait for an answer have none.
        self._deadlines: dict[str, int] = {}
        self._phase_due_ms = NEVER_MS
        self._settles_ms = 0

    # What is stored.

    def apply(self, facts: GroupFacts) -> None:
        """Take facts: the only change of them, live and on load."""
        self.facts = facts

    def resume(self, now_ms: int) -> None:
        """The shard has been read: all members get a new session, a rebalance a new deadline."""
        self._deadlines = {
            each.member_id: now_ms + each.session_timeout_ms for each in self.facts.members.values()
        }
        if self.facts.phase in {Phase.JOINING, Phase.SYNCING}:
            self._phase_due_ms = now_ms + self._rebalance_timeout_ms()

    # What can be asked.

    @property
    def is_empty(self) -> bool:
        return not self.facts.members and not self._joins

    @property
    def waiting(self) -> int:
        """How many wait for an answer."""
        return len(self._joins) + len(self._syncs)

    def next_due_ms(self) -> int:
        """When `tick` is worth a call: sessions and phases that end."""
        due_ms = min(self._deadlines.values(), default=NEVER_MS)
        if self.facts.phase is Phase.JOINING and self._joins and not self._missing():
            due_ms = min(due_ms, self._settles_ms)
        return min(due_ms, self._phase_due_ms)

    def check_commit(self, caller: Caller, now_ms: int) -> None:
        """Raise what keeps this caller from committing positions."""
        if caller.generation < 0 and not caller.member_id:
            if not self.is_empty:
                raise GroupNotEmpty(
                    f"group {self.name!r} has members ({len(self.facts.members)}): only they "
                    "commit positions, so stop them first"
                )
            return
        self._check_member(caller)
        self._hear(caller.member_id, now_ms)
        if self.facts.phase is Phase.SYNCING and not caller.keeps_partitions:
            raise RebalanceInProgress(
                f"group {self.name!r} is between two generations: its members have no assignment"
            )

    def heartbeat(self, caller: Caller, now_ms: int) -> None:
        """Note that a member lives; raise what it has to know."""
        self._check_member(caller)
        self._hear(caller.member_id, now_ms)
        if self.facts.phase is Phase.JOINING:
            raise RebalanceInProgress(f"group {self.name!r} is rebalancing: join again")

    # What members do.

    def join(self, asked: Member, token: Token, *, new_id: str, now_ms: int, wall_ms: int) -> Step:
        """Somebody joins. `asked.member_id` is empty for one that is new: it gets `new_id`."""
        step = Step()
        try:
            known = self._identify(asked, new_id)
            self._check_protocols(asked, known)
            self._check_room(asked, known)
        except TailraceError as error:
            step.answers.append((token, error))
            return step
        if known is None:
            self._join_new(step, replace(asked, member_id=new_id), token, now_ms, wall_ms)
        elif known not in {asked.member_id, new_id}:
            mine = replace(asked, member_id=new_id)
            self._replace_static(step, known, mine, token, now_ms, wall_ms)
        else:
            self._join_known(step, replace(asked, member_id=known), token, now_ms, wall_ms)
        self._maybe_complete(step, now_ms, wall_ms)
        return step

    def sync(
        self,
        caller: Caller,
        assignments: Mapping[str, bytes],
        token: Token,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> Step:
        """A member wants its assignment; the leader brings all of them."""
        step = Step()
        facts = self.facts
        try:
            self._check_member(caller)
            if sum(map(len, assignments.values())) > self._limits.bytes_max:
                raise GroupFull(
                    f"the assignment of group {self.name!r} has more than "
                    f"{self._limits.bytes_max} bytes (group.bytes.max)"
                )
        except TailraceError as error:
            step.answers.append((token, error))
            return step
        self._hear(caller.member_id, now_ms)
        if facts.phase is Phase.JOINING:
            step.answers.append((token, RebalanceInProgress("join again")))
        elif facts.phase is Phase.STABLE:
            step.answers.append((token, self._assignment_of(caller.member_id)))
        else:
            self._answer_sync(step, caller.member_id, RebalanceInProgress("asked again"), now_ms)
            self._syncs[caller.member_id] = token
            self._deadlines.pop(caller.member_id, None)
            if caller.member_id == facts.leader:
                self._assign(step, assignments, now_ms, wall_ms)
        return step

    def leave(self, caller: Caller, *, now_ms: int, wall_ms: int) -> Step:
        """A member goes; raises UnknownMember or FencedInstance when it is none."""
        member_id = self._leaving(caller)
        step = Step()
        self._remove(step, [member_id], "it left the group", now_ms, wall_ms)
        return step

    def forget(self, token: Token, *, now_ms: int, wall_ms: int) -> Step:
        """Somebody does not wait for the answer any longer: the connection broke."""
        step = Step()
        for member_id, join in list(self._joins.items()):
            if join.token is not token:
                continue
            del self._joins[member_id]
            known = self.facts.members.get(member_id)
            if known is not None:
                # What it said last counts: others were let in because they go together with that.
                mine = replace(join.member, assignment=known.assignment)
                members = {**self.facts.members, member_id: mine}
                self._become(step, replace(self.facts, members=members))
                self._start_session(member_id, now_ms)
            elif self.is_empty:
                self._become_empty(step, wall_ms)
            else:
                # One that never got its id cannot come back under it: nobody waits for it.
                self._maybe_complete(step, now_ms, wall_ms)
        for member_id, waiting in list(self._syncs.items()):
            if waiting is token:
                del self._syncs[member_id]
                self._start_session(member_id, now_ms)
        return step

    def tick(self, *, now_ms: int, wall_ms: int) -> Step:
        """Time has passed: sessions end, and phases do."""
        step = Step()
        late = [each for each, due_ms in self._deadlines.items() if due_ms <= now_ms]
        if late:
            self._remove(step, late, "its session ended", now_ms, wall_ms)
        if self.facts.phase is Phase.SYNCING and now_ms >= self._phase_due_ms:
            silent = [each for each in self.facts.members if each not in self._syncs]
            self._remove(step, silent, "it did not sync in time", now_ms, wall_ms)
        self._maybe_complete(step, now_ms, wall_ms)
        return step

    # Who is who.

    def _holder(self, instance_id: str) -> str | None:
        """The member that has this static name."""
        for join in self._joins.values():
            if join.member.instance_id == instance_id:
                return join.member.member_id
        for member in self.facts.members.values():
            if member.instance_id == instance_id:
                return member.member_id
        return None

    def _identify(self, asked: Member, new_id: str) -> str | None:
        """The id that a joining member has here so far, None when it is new."""
        holder = self._holder(asked.instance_id) if asked.instance_id else None
        if not asked.member_id:
            # One that comes with the same new id again did not get the answer to its first join.
            return holder or (new_id if new_id in self._everybody() else None)
        if asked.instance_id and holder is None:
            raise self._unknown(asked.member_id)
        if holder is not None and holder != asked.member_id:
            raise self._fenced(asked.instance_id)
        if asked.member_id not in self.facts.members and asked.member_id not in self._joins:
            raise self._unknown(asked.member_id)
        return asked.member_id

    def _check_member(self, caller: Caller) -> None:
        if caller.instance_id:
            holder = self._holder(caller.instance_id)
            if holder is not None and holder != caller.member_id:
                raise self._fenced(caller.instance_id)
        if caller.member_id not in self.facts.members:
            raise self._unknown(caller.member_id)
        if caller.generation != self.facts.generation:
            raise IllegalGeneration(
                f"group {self.name!r} is in generation {self.facts.generation}, "
                f"not in {caller.generation}: join again"
            )

    def _leaving(self, caller: Caller) -> str:
        holder = self._holder(caller.instance_id) if caller.instance_id else None
        if holder is not None and caller.member_id not in {"", holder}:
            raise self._fenced(caller.instance_id)
        member_id = holder or caller.member_id
        if member_id not in self.facts.members and member_id not in self._joins:
            raise self._unknown(member_id)
        return member_id

    def _unknown(self, member_id: str) -> UnknownMember:
        return UnknownMember(
            f"group {self.name!r} has no member {member_id!r}: its session ended, or it left"
        )

    def _fenced(self, instance_id: str) -> FencedInstance:
        return FencedInstance(
            f"another process is {instance_id!r} in group {self.name!r} now: stop one of the two"
        )

    def _check_protocols(self, asked: Member, known: str | None) -> None:
        common = {name for name, _ in asked.protocols}
        for member_id, member in self._everybody().items():
            if member_id != known:
                common &= {name for name, _ in member.protocols}
        if not common:
            raise InconsistentProtocol(
                f"no way to assign is known to all members of group {self.name!r}; this one knows "
                f"{', '.join(name for name, _ in asked.protocols) or 'none'}"
            )

    def _check_room(self, asked: Member, known: str | None) -> None:
        others = [each for member_id, each in self._everybody().items() if member_id != known]
        if known is None and len(others) >= self._limits.members_max:
            raise GroupFull(
                f"group {self.name!r} has {len(others)} members, all that group.max.size allows"
            )
        size = sum(map(size_of, others)) + size_of(asked)
        if size > self._limits.bytes_max:
            raise GroupFull(
                f"the members of group {self.name!r} would bring {size} bytes of metadata, "
                f"more than {self._limits.bytes_max} (group.bytes.max)"
            )

    def _everybody(self) -> dict[str, Member]:
        joining = {member_id: join.member for member_id, join in self._joins.items()}
        return {**self.facts.members, **joining}

    def _missing(self) -> list[str]:
        return [each for each in self.facts.members if each not in self._joins]

    def _hear(self, member_id: str, now_ms: int) -> None:
        if member_id in self._deadlines:
            self._start_session(member_id, now_ms)

    def _start_session(self, member_id: str, now_ms: int) -> None:
        """A member that waits for nothing here any more must be heard of in time."""
        member = self.facts.members.get(member_id)
        if member is not None and member_id not in self._joins:
            self._deadlines[member_id] = now_ms + member.session_timeout_ms

    def _rebalance_timeout_ms(self) -> int:
        return max((each.rebalance_timeout_ms for each in self._everybody().values()), default=0)

    # Joining.

    def _join_new(
        self, step: Step, member: Member, token: Token, now_ms: int, wall_ms: int
    ) -> None:
        was_empty = self.is_empty
        self._joins[member.member_id] = _Join(member, token)
        if self.facts.phase is Phase.JOINING and not self.facts.members:
            # The first members of a group come together: wait a little for the next one.
            delay_ms = self._limits.initial_delay_ms
            self._settles_ms = min(now_ms + delay_ms, self._phase_due_ms)
        self._rebalance(step, now_ms, wall_ms)
        if was_empty:
            self._settles_ms = now_ms + self._limits.initial_delay_ms

    def _join_known(
        self, step: Step, member: Member, token: Token, now_ms: int, wall_ms: int
    ) -> None:
        facts, known = self.facts, self.facts.members.get(member.member_id)
        is_same = known is not None and known.protocols == member.protocols
        is_leader = facts.phase is Phase.STABLE and facts.leader == member.member_id
        if facts.phase in {Phase.STABLE, Phase.SYNCING} and is_same and not is_leader:
            # It did not get our answer, or only asks: nothing is different for the others.
            self._hear(member.member_id, now_ms)
            step.answers.append((token, self._joined(member.member_id)))
            return
        former = self._joins.get(member.member_id)
        if former is not None:
            step.answers.append((former.token, RebalanceInProgress("it joined once more")))
        self._joins[member.member_id] = _Join(member, token)
        self._deadlines.pop(member.member_id, None)
        self._rebalance(step, now_ms, wall_ms)

    def _replace_static(
        self, step: Step, old_id: str, member: Member, token: Token, now_ms: int, wall_ms: int
    ) -> None:
        """A static member was started again: it takes the place of its former life."""
        facts = self.facts
        former = self._joins.pop(old_id, None)
        if former is not None:
            step.answers.append((former.token, self._fenced(member.instance_id)))
        self._answer_sync(step, old_id, self._fenced(member.instance_id), now_ms)
        self._deadlines.pop(old_id, None)
        known = facts.members.get(old_id)
        if known is not None:
            mine = replace(member, assignment=known.assignment)
            members = {
                each.member_id: each
                for each in (mine if each is known else each for each in facts.members.values())
            }
            leader = member.member_id if facts.leader == old_id else facts.leader
            self._become(step, replace(facts, members=members, leader=leader))
            if facts.phase is Phase.STABLE and known.protocols == member.protocols:
                self._deadlines[member.member_id] = now_ms + member.session_timeout_ms
                step.answers.append((token, self._joined(member.member_id)))
                return
        self._joins[member.member_id] = _Join(member, token)
        self._rebalance(step, now_ms, wall_ms)

    def _rebalance(self, step: Step, now_ms: int, wall_ms: int) -> None:
        """Begin the joining phase, unless it has begun."""
        if self.facts.phase is Phase.JOINING:
            return
        for member_id in list(self._syncs):
            self._answer_sync(step, member_id, RebalanceInProgress("join again"), now_ms)
        self._become(step, replace(self.facts, phase=Phase.JOINING, phase_ms=wall_ms))
        step.announced += [each for each in self.facts.members if each not in self._joins]
        self._settles_ms = now_ms
        self._phase_due_ms = now_ms + self._rebalance_timeout_ms()

    def _maybe_complete(self, step: Step, now_ms: int, wall_ms: int) -> None:
        """End the joining phase when all have joined, or time is up."""
        if self.facts.phase is not Phase.JOINING:
            return
        is_whole = bool(self._joins) and not self._missing() and now_ms >= self._settles_ms
        if is_whole or now_ms >= self._phase_due_ms:
            self._complete(step, now_ms, wall_ms)

    def _complete(self, step: Step, now_ms: int, wall_ms: int) -> None:
        # Static members keep their place until their session ends, joined or not.
        kept = {
            member_id: self._joins[member_id].member if member_id in self._joins else member
            for member_id, member in self.facts.members.items()
            if member_id in self._joins or member.instance_id
        }
        for member_id in self.facts.members:
            if member_id not in kept:
                self._deadlines.pop(member_id, None)
        members = {**kept, **{each: join.member for each, join in self._joins.items()}}
        if not members:
            self._become_empty(step, wall_ms)
            return
        if not self._joins:
            # Nobody is there to lead: wait for the static ones, or for the end of their sessions.
            self._become(step, replace(self.facts, members=members))
            self._phase_due_ms = now_ms + self._rebalance_timeout_ms()
            return
        facts = self.facts
        leader = facts.leader if facts.leader in self._joins else next(iter(self._joins))
        self._become(
            step,
            GroupFacts(
                phase=Phase.SYNCING,
                generation=facts.generation + 1,
                protocol=_choose(members.values()),
                leader=leader,
                members={each: replace(who, assignment=b"") for each, who in members.items()},
                phase_ms=wall_ms,
            ),
        )
        joins, self._joins = self._joins, {}
        self._phase_due_ms = now_ms + self._rebalance_timeout_ms()
        for member_id, join in joins.items():
            self._deadlines[member_id] = now_ms + join.member.session_timeout_ms
            step.answers.append((join.token, self._joined(member_id)))

    def _joined(self, member_id: str) -> Joined:
        facts = self.facts
        is_leader = member_id == facts.leader
        return Joined(
            member_id,
            facts.generation,
            facts.protocol,
            facts.leader,
            tuple(facts.members.values()) if is_leader else (),
            skip_assignment=is_leader and facts.phase is Phase.STABLE,
        )

    # Syncing.

    def _assign(
        self, step: Step, assignments: Mapping[str, bytes], now_ms: int, wall_ms: int
    ) -> None:
        members = {
            each: replace(member, assignment=assignments.get(each, b""))
            for each, member in self.facts.members.items()
        }
        self._become(
            step, replace(self.facts, phase=Phase.STABLE, members=members, phase_ms=wall_ms)
        )
        self._phase_due_ms = NEVER_MS
        for member_id in list(self._syncs):
            self._answer_sync(step, member_id, self._assignment_of(member_id), now_ms)

    def _assignment_of(self, member_id: str) -> Synced:
        return Synced(self.facts.protocol, self.facts.members[member_id].assignment)

    def _answer_sync(self, step: Step, member_id: str, answer: Answer, now_ms: int) -> None:
        token = self._syncs.pop(member_id, None)
        if token is not None:
            step.answers.append((token, answer))
            self._start_session(member_id, now_ms)

    # Going.

    def _remove(self, step: Step, gone: Iterable[str], why: str, now_ms: int, wall_ms: int) -> None:
        left = dict(self.facts.members)
        for member_id in gone:
            left.pop(member_id, None)
            error = UnknownMember(f"{member_id!r} is out of group {self.name!r}: {why}")
            self._answer_sync(step, member_id, error, now_ms)
            self._deadlines.pop(member_id, None)
            join = self._joins.pop(member_id, None)
            if join is not None:
                step.answers.append((join.token, error))
        if not left and not self._joins:
            self._become_empty(step, wall_ms)
            return
        if len(left) != len(self.facts.members):
            self._become(step, replace(self.facts, members=left))
            self._rebalance(step, now_ms, wall_ms)
        self._maybe_complete(step, now_ms, wall_ms)

    def _become_empty(self, step: Step, wall_ms: int) -> None:
        """Nobody is left. The next number of a generation keeps out who believes to be a member."""
        self._deadlines.clear()
        self._phase_due_ms = NEVER_MS
        if self.facts.phase is not Phase.EMPTY:
            generation = self.facts.generation + 1
            self._become(step, GroupFacts(generation=generation, members={}, phase_ms=wall_ms))

    def _become(self, step: Step, facts: GroupFacts) -> None:
        self.apply(facts)
        step.facts = facts


def _choose(members: Iterable[Member]) -> str:
    """The assignor that all know and most prefer; among equals, the first by name."""
    all_ = list(members)
    common = set.intersection(*({name for name, _ in each.protocols} for each in all_))
    votes: dict[str, int] = dict.fromkeys(sorted(common), 0)
    for each in all_:
        votes[next(name for name, _ in each.protocols if name in common)] += 1
    return max(votes, key=lambda name: votes[name])
