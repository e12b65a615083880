"""Which brokers new replicas go to, the better ones first, and what is to be told about it. Pure.

First come brokers that are well. Where they are too few, brokers whose disk is full or slow come
next, and last members of the cluster that are away or shutting down: a topic that is made while one
of three brokers is restarted has three replicas all the same, of which two are in sync for now, and
`min.insync.replicas` is what it would have been. A member is who holds replicas of something: one
that was emptied and taken away is none. Whoever is cordoned gets nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from tailrace.controller.facts import Facts
from tailrace.controller.placement import place, placement_order
from tailrace.controller.views import is_draining
from tailrace.errors import InvalidTopic
from tailrace.meta.image import ClusterImage
from tailrace.model import BrokerId

Placement: TypeAlias = dict[int, tuple[BrokerId, ...]]


class Candidates(NamedTuple):
    """Brokers and their racks: those that are well, those that are not, those that are away."""

    fit: Mapping[BrokerId, str]
    unfit: Mapping[BrokerId, str]
    away: Mapping[BrokerId, str]

    @property
    def brokers_count(self) -> int:
        return len(self.fit) + len(self.unfit) + len(self.away)

    @property
    def is_empty(self) -> bool:
        """Whether nobody is there who could lead."""
        return not self.fit and not self.unfit


class Placed(NamedTuple):
    """New partitions with their replicas, and what whoever asked should know."""

    assignment: Placement
    warnings: tuple[str, ...] = ()


def candidates(image: ClusterImage, facts: Facts) -> Candidates:
    fit: dict[BrokerId, str] = {}
    unfit: dict[BrokerId, str] = {}
    away: dict[BrokerId, str] = {}
    for broker in sorted(image.brokers):
        live = image.brokers[broker]
        if broker in image.cordons:
            continue
        tier = away if is_draining(live, facts) else unfit if broker in facts.unfit else fit
        tier[broker] = live.registration.rack
    for _, replicas in image.partitions():
        for broker in replicas:
            if broker not in image.brokers and broker not in image.cordons:
                away[broker] = ""
    return Candidates(fit, unfit, away)


def placed(
    image: ClusterImage, facts: Facts, *, partitions: int, replication_factor: int, first: int = 0
) -> Placed:
    """Partitions from `first` on, each with so many replicas; InvalidTopic: there are too few."""
    found = candidates(image, facts)
    if replication_factor > found.brokers_count:
        raise InvalidTopic(_too_few(found, replication_factor, image))
    best, *others = [placement_order(tier) for tier in found]
    assignment = place(
        best,
        partitions=partitions,
        replication_factor=replication_factor,
        first=first,
        then=others,
    )
    used = {each for replicas in assignment.values() for each in replicas}
    warnings = [
        f"broker {each} has new replicas although its disk is not well, since there are too few "
        f"others: {facts.unfit[each]}"
        for each in found.unfit
        if each in used
    ]
    gone = [each for each in found.away if each in used]
    if gone:
        warnings.append(
            f"{_brokers(gone)} away or shutting down: their replicas are out of sync until they "
            "are back"
        )
    return Placed(assignment, tuple(warnings))


def _too_few(found: Candidates, replication_factor: int, image: ClusterImage) -> str:
    live = len(found.fit) + len(found.unfit)
    words = (
        f"a replication factor of {replication_factor} needs as many brokers, "
        f"and {live} {'is' if live == 1 else 'are'} live"
    )
    if found.away:
        words += f" and {len(found.away)} away or shutting down"
    cordoned = sorted(image.cordons)
    return f"{words}; {_brokers(cordoned)} cordoned" if cordoned else words


def _brokers(which: list[BrokerId]) -> str:
    names = ", ".join(map(str, which))
    return f"broker {names} is" if len(which) == 1 else f"brokers {names} are"
