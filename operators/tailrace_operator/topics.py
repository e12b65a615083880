"""Topics from Topic resources: what to do next for each. Pure.

The operator keeps a list of the topics it made (a ConfigMap per cluster: topic → id and uid of the
resource). So it never deletes what it did not make, and needs no finalizer: when a resource is gone
while the operator was away, the list still knows, and a namespace that is deleted never waits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tailrace_operator.spec import TopicSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A topic that the operator made, for which resource."""

    topic_id: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Existing:
    """A topic as the cluster shows it."""

    topic_id: str
    partitions: int
    replicas: int
    config: Mapping[str, str]
    in_sync: int
    offline: int
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """Make the topic."""


@dataclass(frozen=True, slots=True)
class AddPartitions:
    total: int


@dataclass(frozen=True, slots=True)
class Configure:
    changed: Mapping[str, str]
    unset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    """It cannot be; the reason is for the person who asked."""

    why: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """All is as wanted."""


Action = Create | AddPartitions | Configure | Refuse | Nothing


def decide(spec: TopicSpec, now: Existing | None) -> Action:
    """What makes the topic more like the spec."""
    if now is None:
        return Create()
    if now.deleting:
        return Refuse("a topic of this name is being deleted; it is made when that is done")
    if spec.partitions < now.partitions:
        return Refuse(
            f"the topic has {now.partitions} partitions; there can be more, "
            f"but not fewer ({spec.partitions})"
        )
    if spec.replicas and spec.replicas != now.replicas:
        return Refuse(
            f"the topic has {now.replicas} replicas, not {spec.replicas}; that is changed with "
            f"`tailrace topics reassign`"
        )
    if spec.partitions > now.partitions:
        return AddPartitions(spec.partitions)
    changed = {name: value for name, value in spec.config.items() if now.config.get(name) != value}
    unset = tuple(name for name in sorted(now.config) if name not in spec.config)
    return Configure(changed, unset) if changed or unset else Nothing()


def to_delete(made: Mapping[str, Made], uids: frozenset[str]) -> dict[str, Made]:
    """Topics that were made for resources which are no more."""
    return {topic: each for topic, each in made.items() if each.uid not in uids}


def read_made(data: Mapping[str, str] | None) -> dict[str, Made]:
    """The list, from the data of its ConfigMap.

    People can edit it: of an entry that says nothing, nobody knows whether the topic is ours.
    """
    found = {}
    for topic, text in (data or {}).items():
        with suppress(ValueError, KeyError, TypeError):
            fields: dict[str, Any] = json.loads(text)
            found[topic] = Made(topic_id=str(fields["topic_id"]), uid=str(fields["uid"]))
    return found


def write_made(made: Mapping[str, Made]) -> dict[str, str]:
    return {
        topic: json.dumps({"topic_id": each.topic_id, "uid": each.uid})
        for topic, each in sorted(made.items())
    }
