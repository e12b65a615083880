"""Where replicas go: replica j of partition i on broker (i + j) mod n. Pure.

n counts the live brokers in ascending order of their ids. With racks the list is interleaved first,
one broker of each rack in turn, so that neighbours in the list (the replicas of a partition) are in
different racks as far as the racks allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from tailrace.errors import InvalidAssignment, InvalidTopic
from tailrace.model import BrokerId, TopicPartition

Assignment: TypeAlias = Mapping[TopicPartition, tuple[BrokerId, ...]]


def placement_order(brokers: Mapping[BrokerId, str]) -> list[BrokerId]:
    """The brokers (id → rack) in the order in which replicas are dealt out."""
    by_rack: dict[str, list[BrokerId]] = {}
    for broker in sorted(brokers):
        by_rack.setdefault(brokers[broker], []).append(broker)
    if len(by_rack) < 2:
        return sorted(brokers)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for round_ in rounds for broker in round_ if broker is not None]


def place(
    order: Sequence[BrokerId],
    *,
    partitions: int,
    replication_factor: int,
    first: int = 0,
    then: Sequence[Sequence[BrokerId]] = (),
) -> dict[int, tuple[BrokerId, ...]]:
    """Assign `partitions` of them from `first` on; adding partitions continues the count.

    `then`: brokers that are used, by the same rule, only as far as those before are too few.
    """
    orders = [order, *then]
    count = sum(map(len, orders))
    if replication_factor > count:
        raise InvalidTopic(
            f"a replication factor of {replication_factor} needs as many brokers, "
            f"and {count} {'is' if count == 1 else 'are'} live"
        )
    return {
        partition: _replicas(orders, partition, replication_factor)
        for partition in range(first, first + partitions)
    }


def _replicas(
    orders: Sequence[Sequence[BrokerId]], partition: int, replication_factor: int
) -> tuple[BrokerId, ...]:
    chosen: list[BrokerId] = []
    for order in orders:
        wanted = min(replication_factor - len(chosen), len(order))
        chosen += [order[(partition + j) % len(order)] for j in range(wanted)]
    return tuple(chosen)


class Plan(NamedTuple):
    """Partitions that change: their new replicas. Those that are right already are not in it."""

    targets: dict[TopicPartition, tuple[BrokerId, ...]]

    def copies(self, assignment: Assignment) -> int:
        """How many replicas have to be copied."""
        return sum(
            len({*target}.difference(assignment[partition]))
            for partition, target in self.targets.items()
        )


def plan_by_rule(assignment: Assignment, brokers: Mapping[BrokerId, str]) -> Plan:
    """Every partition where the rule would put it, were its topic made now on these brokers.

    The rule leaves no choice, so the fewest moves are those that it cannot do without: a partition
    that is right is left alone, and of one that is not, the replicas that stay are not copied.
    """
    order = placement_order(brokers)
    targets = {}
    for partition, replicas in assignment.items():
        if len(replicas) > len(order):
            raise InvalidAssignment(
                f"{partition} has {len(replicas)} replicas, and {len(order)} brokers cannot hold "
                "them: name more brokers"
            )
        count, number = len(order), partition.partition
        target = tuple(order[(number + j) % count] for j in range(len(replicas)))
        if target != replicas:
            targets[partition] = target
    return Plan(targets)


def plan_to_empty(assignment: Assignment, broker: BrokerId, others: Mapping[BrokerId, str]) -> Plan:
    """Every replica of one broker to another one, and nothing else: the fewest moves there are.

    Each goes to the broker that has the fewest by then, in a rack of its own where there is one; it
    takes the same place in the order of its partition, so that leadership spreads as replicas do.
    """
    held = dict.fromkeys(sorted(others), 0)
    for replicas in assignment.values():
        for each in replicas:
            if each in held:
                held[each] += 1
    targets = {}
    for partition in sorted(assignment):
        replicas = assignment[partition]
        if broker not in replicas:
            continue
        free = [each for each in held if each not in replicas]
        if not free:
            raise InvalidAssignment(
                f"{partition} has replicas on {list(replicas)}, and there is no other broker that "
                f"could take that of broker {broker}"
            )
        racks = {others.get(each, "") for each in replicas if each != broker}
        chosen = min(free, key=lambda each: (others[each] in racks, held[each], each))
        held[chosen] += 1
        targets[partition] = tuple(chosen if each == broker else each for each in replicas)
    return Plan(targets)
