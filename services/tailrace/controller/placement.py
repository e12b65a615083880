"""Where replicas go: replica j of partition i on broker (i + j) mod n. Pure.

n counts the live brokers in ascending order of their ids. With racks the list is interleaved first,
one broker of each rack in turn, so that neighbours in the list (the replicas of a partition) are in
different racks as far as the racks allow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from tailrace.errors import InvalidTopic
from tailrace.model import BrokerId


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
    order: Sequence[BrokerId], *, partitions: int, replication_factor: int, first: int = 0
) -> dict[int, tuple[BrokerId, ...]]:
    """Assign `partitions` of them from `first` on; adding partitions continues the count."""
    count = len(order)
    if replication_factor > count:
        raise InvalidTopic(
            f"a replication factor of {replication_factor} needs as many brokers, "
            f"and {count} {'is' if count == 1 else 'are'} live"
        )
    return {
        partition: tuple(order[(partition + j) % count] for j in range(replication_factor))
        for partition in range(first, first + partitions)
    }
