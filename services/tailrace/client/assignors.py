"""Who reads which partitions: the rules by which the leading member of a group divides them. Pure.

An assignor gets the number of partitions of each topic and the members, and gives each member its
partitions. Those here give every partition of a subscribed topic to exactly one member that
subscribes to it; a cooperative one withholds, for one round, what its owner must give up first.

Own assignors are objects with `name`, `is_cooperative` and `assign`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
        mine: dict[str, dict[TopicPartition, None]] = {each.member_id: {} for each in self._members}
        topics = {each.member_id: each.topics for each in self._members}
        free: list[TopicPartition] = []
        for partition in self._all:
            owner = self.claims.get(partition, "")
            if owner in mine and partition.topic in topics[owner]:
                mine[owner][partition] = None
            else:
                free.append(partition)
        # Those that few can take come first.
        free.sort(key=lambda each: (len(self._takers[each.topic]), each))
        for partition in free:
            mine[self._poorest(partition, mine)][partition] = None
        while self._even_out(mine):
            pass
        return {member_id: sorted(taken) for member_id, taken in mine.items()}

    def _poorest(
        self, partition: TopicPartition, mine: Mapping[str, Mapping[TopicPartition, None]]
    ) -> str:
        return min(
            (each.member_id for each in self._takers[partition.topic]),
            key=lambda each: len(mine[each]),
        )

    def _even_out(self, mine: dict[str, dict[TopicPartition, None]]) -> bool:
        """Move one partition from a member with more to one with less; whether one could be."""
        for rich in sorted(mine, key=lambda each: -len(mine[each])):
            if len(mine[rich]) < 2:
                return False
            for topic in {each.topic: None for each in mine[rich]}:
                # What was not its own moves first: that costs nobody anything.
                candidates = sorted(
                    (each for each in mine[rich] if each.topic == topic),
                    key=lambda each: (self.claims.get(each) == rich, each),
                )
                poor = self._poorest(candidates[0], mine)
                if len(mine[poor]) + 1 < len(mine[rich]):
                    back = [each for each in candidates if self.claims.get(each) == poor]
                    moved = (back or candidates)[0]
                    del mine[rich][moved]
                    mine[poor][moved] = None
                    return True
        return False


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
