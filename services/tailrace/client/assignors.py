"""Who reads which partitions: the rules by which the leading member of a group divides them. Pure.

An assignor gets the number of partitions of each topic and the members, and gives each member its
partitions. Those here give every partition of a subscribed topic to exactly one member that
subscribes to it; a cooperative one withholds, for one round, what its owner must give up first.

Own assignors are objects with `name`, `is_cooperative` and `assign`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, Protocol
from zlib import crc32

from tailrace.errors import InvalidConfig
from tailrace.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member as its subscription tells."""

    member_id: str
    instance_id: str = ""
    topics: frozenset[str]
    # What it owned, and in which generation.
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1

    @property
    def order(self) -> tuple[bool, str]:
        """Static members keep their place when they come back under another id."""
        return not self.instance_id, self.instance_id or self.member_id


Assignment = dict[str, list[TopicPartition]]


class Assignor(Protocol):
    """A way to divide partitions."""

    @property
    def name(self) -> str: ...

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep what they have until a rebalance takes it away."""

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
        """Partitions of each member; `partitions` tells how many each topic has."""


class RangeAssignor:
    """Each topic by itself: consecutive partitions to each member, the first get one more."""

    name = "range"
    is_cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
        found: Assignment = {each.member_id: [] for each in members}
        for topic in sorted(partitions):
            takers = _takers(topic, members)
            if not takers:
                continue
            each, more = divmod(partitions[topic], len(takers))
            at = 0
            for number, taker in enumerate(takers):
                count = each + (number < more)
                found[taker.member_id] += [TopicPartition(topic, at + i) for i in range(count)]
                at += count
        return found


class RoundRobinAssignor:
    """All partitions in the order of their hashes, to one member after the other."""

    name = "roundrobin"
    is_cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
        found: Assignment = {each.member_id: [] for each in members}
        ordered = sorted(members, key=lambda each: each.order)
        at = 0
        for partition in sorted(_all(partitions), key=lambda each: (_hash(each), each)):
            for step in range(len(ordered)):
                taker = ordered[(at + step) % len(ordered)]
                if partition.topic in taker.topics:
                    found[taker.member_id].append(partition)
                    at = (at + step + 1) % len(ordered)
                    break
        return found


class StickyAssignor:
    """Balanced, and as much as possible stays where it was; members give up all in between."""

    name = "sticky"
    is_cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
        return _Sticky(partitions, members).balanced()


class CooperativeStickyAssignor:
    """As sticky; who keeps a partition reads on during the rebalance.

    A partition that moves is given to nobody in the round that takes it away: its owner gives it up
    and joins again, and the next round gives it to the new one. So nobody owns it twice.
    """

    name = "cooperative-sticky"
    is_cooperative = True

    def assign(self, partitions: Mapping[str, int], members: Sequence[Member]) -> Assignment:
        sticky = _Sticky(partitions, members)
        return {
            member_id: [each for each in mine if sticky.claims.get(each, member_id) == member_id]
            for member_id, mine in sticky.balanced().items()
        }


class _Sticky:
    """Keeps what members own, gives the rest to those with least, then evens out."""

    def __init__(self, partitions: Mapping[str, int], members: Sequence[Member]) -> None:
        self._members = sorted(members, key=lambda each: each.order)
        self._takers = {topic: _takers(topic, self._members) for topic in partitions}
        self._all = [each for each in _all(partitions) if self._takers[each.topic]]
        self.claims = self._claims()

    def _claims(self) -> dict[TopicPartition, str]:
        """Who owned a partition last, as far as two do not say so of the same generation."""
        best: dict[TopicPartition, tuple[int, str]] = {}
        for member in self._members:
            for partition in member.owned:
                generation, owner = best.get(partition, (-2, ""))
                if member.generation > generation:
                    best[partition] = (member.generation, member.member_id)
                elif member.generation == generation and owner != member.member_id:
                    best[partition] = (generation, "")
        return {partition: owner for partition, (_, owner) in best.items() if owner}

    def balanced(self) -> Assignment:
        held = {each.member_id: _Held(each.member_id) for each in self._members}
        topics = {each.member_id: each.topics for each in self._members}
        free: list[TopicPartition] = []
        for partition in self._all:
            owner = self.claims.get(partition, "")
            if owner in held and partition.topic in topics[owner]:
                held[owner].add(partition, owner)
            else:
                free.append(partition)
        # Those that few can take come first.
        free.sort(key=lambda each: (len(self._takers[each.topic]), each))
        for partition in free:
            poor = self._poorest(partition.topic, held)
            held[poor].add(partition, self.claims.get(partition, ""))
        while self._even_out(held):
            pass
        return {member_id: each.all() for member_id, each in held.items()}

    def _poorest(self, topic: str, held: Mapping[str, _Held]) -> str:
        return min(
            (each.member_id for each in self._takers[topic]), key=lambda each: held[each].count
        )

    def _even_out(self, held: Mapping[str, _Held]) -> bool:
        """Move one partition from a member with more to one with less; whether one could be."""
        for rich in sorted(held.values(), key=lambda each: -each.count):
            if rich.count < 2:
                return False
            for topic in rich.topics:
                poor = self._poorest(topic, held)
                if held[poor].count + 1 < rich.count:
                    held[poor].add(*rich.give(topic, poor))
                    return True
        return False


class _Held:
    """What one member has: by topic, then by who owned it before, the smallest numbers first.

    Thousands of partitions may have to move, and none of them is looked at but those that do.
    """

    def __init__(self, member_id: str) -> None:
        self._member_id = member_id
        self.topics: dict[str, dict[str, list[int]]] = {}
        self.count = 0

    def add(self, partition: TopicPartition, owner: str) -> None:
        owners = self.topics.setdefault(partition.topic, {})
        heappush(owners.setdefault(owner, []), partition.partition)
        self.count += 1

    def give(self, topic: str, taker: str) -> tuple[TopicPartition, str]:
        """One partition less, and whose it was: the taker's, or one that is not our own first."""
        owners = self.topics[topic]
        others = [each for each in owners if each != self._member_id]
        first = min(others, key=lambda each: owners[each][0], default=self._member_id)
        owner = taker if taker in owners else first
        number = heappop(owners[owner])
        if not owners[owner]:
            del owners[owner]
        if not owners:
            del self.topics[topic]
        self.count -= 1
        return TopicPartition(topic, number), owner

    def all(self) -> list[TopicPartition]:
        return sorted(
            TopicPartition(topic, number)
            for topic, owners in self.topics.items()
            for numbers in owners.values()
            for number in numbers
        )


_NAMED: Final[dict[str, Assignor]] = {
    each.name: each
    for each in (
        RangeAssignor(),
        RoundRobinAssignor(),
        StickyAssignor(),
        CooperativeStickyAssignor(),
    )
}


def assignors_for(
    choice: str | Assignor | Sequence[str | Assignor],
) -> tuple[Assignor, ...]:
    """Assignors by name or as they are, the preferred first; InvalidConfig for unknown names."""
    chosen = [choice] if isinstance(choice, str) or not isinstance(choice, Sequence) else choice
    found: list[Assignor] = []
    for each in chosen:
        if isinstance(each, str):
            if each not in _NAMED:
                raise InvalidConfig(
                    f"partition_assignment_strategy={each!r} must be one of "
                    f"{', '.join(_NAMED)}, or an assignor"
                )
            found.append(_NAMED[each])
        else:
            found.append(each)
    if not found:
        raise InvalidConfig("partition_assignment_strategy names no assignor")
    return tuple(found)


def _takers(topic: str, members: Iterable[Member]) -> list[Member]:
    return sorted((each for each in members if topic in each.topics), key=lambda each: each.order)


def _all(partitions: Mapping[str, int]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number)
        for topic in sorted(partitions)
        for number in range(partitions[topic])
    ]


def _hash(partition: TopicPartition) -> int:
    return crc32(str(partition).encode())
