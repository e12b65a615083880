"""A member of a consumer group, as a machine: what happened goes in, what to do comes out. Pure.

Theory of operation. A member joins (`JoinGroup`), learns its generation, gets its assignment
(`SyncGroup`), and is told by heartbeats when the group begins anew. Everything that changes what
the program reads is a *handover*: it waits until the program polls, where its callbacks run, and
only then the machine goes on. An eager member hands everything back before it joins again; a
cooperative one keeps what it has, and gives up only what the new assignment takes away, after
which it joins once more so that others can have it.

    OUT ── subscribed ──> JOINING ── joined ──> SYNCING ── synced ──> ADOPTING ── done ──> STABLE
     ^                       ^                                            |                  |
     |                       └──────────── REVOKING <── rebalance ────────┴──────────────────┘
     └── left, or the program stopped polling; FAILED is for good

Invariants: the machine owns what the program was told it owns (`owned`); a member that was thrown
out has no generation, so nothing can be committed in its name; an answer counts only for the
attempt that it answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tailrace.client.assignors import Assignor, Member
from tailrace.errors import (
    FencedInstance,
    IllegalGeneration,
    InvariantViolation,
    RebalanceInProgress,
    TailraceError,
    UnknownMember,
)
from tailrace.model import TopicPartition

NO_GENERATION: Final = -1


class State(Enum):
    """Where a member is."""

    OUT = "not a member"
    REVOKING = "the program must give partitions up"
    JOINING = "joining"
    SYNCING = "waiting for its assignment"
    ADOPTING = "the program must take its assignment"
    STABLE = "member"
    FAILED = "failed for good"


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Effect: join, or join again."""

    attempt: int
    member_id: str
    topics: frozenset[str]
    owned: frozenset[TopicPartition]
    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Effect: get the assignment; the leader of the group brings those of all."""

    attempt: int
    generation: int
    member_id: str
    assignments: Mapping[str, Sequence[TopicPartition]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Effect: tell the coordinator that we are gone."""

    member_id: str
    reason: str


Effect = Join | Sync | Leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """What the program must be told in its next poll: first what it loses, then what it gets."""

    revoked: frozenset[TopicPartition] = frozenset()
    added: frozenset[TopicPartition] = frozenset()
    lost: frozenset[TopicPartition] = frozenset()
    """Gone already: others may own it, and nothing can be committed for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The coordinator's answer to a join."""

    member_id: str
    generation: int
    protocol: str
    leader: str
    # Only the leader is told who the members are.
    members: tuple[Member, ...] = ()
    skip_assignment: bool = False


class Membership:
    """The machine of one member."""

    def __init__(
        self, assignors: Sequence[Assignor], *, max_poll_interval_ms: int, is_static: bool
    ) -> None:
        self._assignors = {each.name: each for each in assignors}
        # Those who mix both kinds are on their way from one to the other, and eager meanwhile.
        self.is_cooperative = all(each.is_cooperative for each in assignors)
        self._max_poll_interval_ms = max_poll_interval_ms
        self._is_static = is_static
        self._attempt = 0
        self._polled_ms = 0
        self._topics: frozenset[str] = frozenset()
        self._target: frozenset[TopicPartition] = frozenset()
        # What an eager member had before it gave it up: a sticky assignor gives it back.
        self._had: frozenset[TopicPartition] = frozenset()
        self._had_generation = NO_GENERATION
        self._reason = ""
        self._is_due = False
        self.state = State.OUT
        self.member_id = ""
        self.generation = NO_GENERATION
        self.owned: frozenset[TopicPartition] = frozenset()
        self.handover: Handover | None = None
        self.error: TailraceError | None = None
        self.is_leader = False
        # What all members together subscribe to, as far as we lead.
        self.group_topics: frozenset[str] = frozenset()
        self.rebalances = 0

    # What is asked.

    @property
    def is_wanted(self) -> bool:
        """Whether the program subscribes to anything."""
        return bool(self._topics)

    @property
    def is_beating(self) -> bool:
        """Whether the coordinator waits for heartbeats."""
        return self.generation != NO_GENERATION and self.state in {
            *(State.REVOKING, State.ADOPTING, State.STABLE),
        }

    @property
    def poll_due_ms(self) -> int:
        """When the program must have polled."""
        return self._polled_ms + self._max_poll_interval_ms

    # What the program does.

    def subscribed(self, topics: Iterable[str], *, reason: str) -> list[Effect]:
        """The program reads these topics from now on, or there are more that it means."""
        wanted = frozenset(topics)
        if wanted == self._topics:
            return []
        self._topics = wanted
        if not wanted and self.state is State.OUT:
            return []
        return self._begin_anew(reason)

    def changed(self, reason: str) -> list[Effect]:
        """There are more partitions to divide: the leader has the group begin anew."""
        return self._begin_anew(reason) if self.is_leader else []

    def touch(self, now_ms: int) -> None:
        """The program is alive, and there is nothing else to do."""
        self._polled_ms = now_ms

    def polled(self, now_ms: int) -> list[Effect]:
        """The program is alive."""
        self._polled_ms = now_ms
        if self.state is State.OUT and self._topics:
            return self._prepare(self._reason or "the program polls again")
        return []

    def handed_over(self) -> list[Effect]:
        """The program was told of the handover, its callbacks have run."""
        done = self.handover
        if done is None:
            raise InvariantViolation("there was nothing to hand over")
        self.handover = None
        self.owned = (self.owned - done.revoked - done.lost) | done.added
        if self.state is State.REVOKING:
            return self._join()
        if self.state is State.ADOPTING:
            self.state = State.STABLE
            # What was given up can be given to others only in another round.
            if (done.revoked and self.is_cooperative) or self._is_due:
                return self._begin_anew(
                    "partitions were given up" if done.revoked else self._reason
                )
        return []

    def left(self, reason: str) -> list[Effect]:
        """The program has ended its membership; it was told already what that takes away."""
        effects: list[Effect] = []
        if self.member_id and not self._is_static and self.state is not State.FAILED:
            effects.append(Leave(member_id=self.member_id, reason=reason))
        self._topics = frozenset()
        self.owned = frozenset()
        self.handover = None
        self._go_out(keep_id=self._is_static)
        return effects

    # What time does.

    def passed(self, now_ms: int) -> list[Effect]:
        """A program that does not poll holds up the group: it leaves, until it polls again."""
        is_gone = self.state is State.REVOKING and self.generation == NO_GENERATION
        if is_gone or self.state in {State.OUT, State.FAILED} or now_ms < self.poll_due_ms:
            return []
        effects: list[Effect] = []
        if self.member_id and not self._is_static:
            effects.append(Leave(member_id=self.member_id, reason="the program does not poll"))
        self._reason = f"it did not poll for max_poll_interval_ms={self._max_poll_interval_ms}"
        self._lose(keep_id=self._is_static)
        return effects

    # What the coordinator says.

    def joined(self, attempt: int, answer: Joined, partitions: Mapping[str, int]) -> list[Effect]:
        """We are in a generation; the leader divides `partitions` (how many each topic has)."""
        if attempt != self._attempt or self.state is not State.JOINING:
            return []
        self.member_id = answer.member_id
        self.generation = answer.generation
        self.is_leader = answer.leader == answer.member_id
        self.state = State.SYNCING
        assignments: Mapping[str, Sequence[TopicPartition]] = {}
        if self.is_leader and not answer.skip_assignment:
            self.group_topics = frozenset().union(*(each.topics for each in answer.members))
            known = {
                topic: count for topic, count in partitions.items() if topic in self.group_topics
            }
            assignments = self._assignors[answer.protocol].assign(known, answer.members)
        return [
            Sync(
                attempt=attempt,
                generation=self.generation,
                member_id=self.member_id,
                assignments=assignments,
            )
        ]

    def synced(self, attempt: int, assignment: frozenset[TopicPartition]) -> list[Effect]:
        """The assignment of our generation."""
        if attempt != self._attempt or self.state is not State.SYNCING:
            return []
        self.rebalances += 1
        self._is_due = False
        self._target = assignment
        self._had, self._had_generation = assignment, self.generation
        revoked, added = self.owned - assignment, assignment - self.owned
        if not (revoked or added):
            self.state = State.STABLE
            return []
        self.state = State.ADOPTING
        self.handover = Handover(revoked=revoked, added=added)
        return []

    def refused(self, attempt: int, error: TailraceError, *, member_id: str = "") -> list[Effect]:
        """A join or sync was refused."""
        if attempt != self._attempt or self.state not in {State.JOINING, State.SYNCING}:
            return []
        if member_id and not isinstance(error, UnknownMember):
            self.member_id = member_id
        if isinstance(error, RebalanceInProgress):
            return self._prepare(str(error))
        return self._thrown_out(error)

    def beaten(self, generation: int, error: TailraceError | None) -> list[Effect]:
        """A heartbeat, or a commit, of a generation was answered."""
        if error is None or generation != self.generation or not self.is_beating:
            return []
        if isinstance(error, RebalanceInProgress):
            return self._begin_anew("the group rebalances")
        if isinstance(error, UnknownMember | IllegalGeneration | FencedInstance):
            return self._thrown_out(error)
        return []

    # Transitions.

    def _begin_anew(self, reason: str) -> list[Effect]:
        match self.state:
            case State.STABLE | State.OUT:
                return self._prepare(reason)
            case State.JOINING:
                # The coordinator must hear of it: the answer to the join before counts no longer.
                return self._join(reason)
            case State.SYNCING | State.ADOPTING:
                self._is_due, self._reason = True, reason
                if self.state is State.SYNCING:
                    return self._prepare(reason)
        return []

    def _prepare(self, reason: str) -> list[Effect]:
        """Give up what must be given up before joining."""
        self._reason = reason
        kept = (
            frozenset(each for each in self.owned if each.topic in self._topics)
            if self.is_cooperative
            else frozenset()
        )
        revoked = self.owned - kept
        if revoked:
            self.state = State.REVOKING
            self.handover = Handover(revoked=revoked)
            return []
        return self._join(reason)

    def _join(self, reason: str = "") -> list[Effect]:
        self._attempt += 1
        self._is_due = False
        if not self._topics:
            member_id = self.member_id
            self._go_out(keep_id=self._is_static)
            is_leaving = member_id and not self._is_static
            return [Leave(member_id=member_id, reason="unsubscribed")] if is_leaving else []
        self.state = State.JOINING
        owned = self.owned if self.is_cooperative else self._had
        return [
            Join(
                attempt=self._attempt,
                member_id=self.member_id,
                topics=self._topics,
                owned=frozenset(each for each in owned if each.topic in self._topics),
                generation=self._had_generation,
                reason=reason or self._reason,
            )
        ]

    def _thrown_out(self, error: TailraceError) -> list[Effect]:
        """The group goes on without us: what we had may be others'."""
        if not isinstance(error, UnknownMember | IllegalGeneration):
            self._fail(error)
            return []
        self._reason = str(error)
        self._lose(keep_id=isinstance(error, IllegalGeneration))
        # Nothing to hand over: the next poll need not be waited for.
        return self._join() if self.state is State.OUT else []

    def _fail(self, error: TailraceError) -> None:
        self.error = error
        self.state = State.FAILED
        self.generation = NO_GENERATION
        self._attempt += 1
        self.handover = Handover(lost=self.owned) if self.owned else None

    def _lose(self, *, keep_id: bool) -> None:
        self._go_out(keep_id=keep_id)
        self._had, self._had_generation = frozenset(), NO_GENERATION
        self.handover = None
        if self.owned:
            self.state = State.REVOKING
            self.handover = Handover(lost=self.owned)

    def _go_out(self, *, keep_id: bool) -> None:
        self.state = State.OUT
        self._attempt += 1
        self.generation = NO_GENERATION
        self.is_leader = False
        self._is_due = False
        if not keep_id:
            self.member_id = ""
