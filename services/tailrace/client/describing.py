"""Topics and the cluster as an operator reads them: values made of a picture. Pure.

Health of a partition: offline (nobody leads it), under-replicated (not every replica is in sync),
under-min-isr (too few are in sync for acks=all), needs-decision (a person has to say who leads),
replica-out-of-service (a replica is damaged, or kept back until a person has decided),
leader-not-preferred (not the first replica leads). A partition may be several of these at once;
nothing said means that all is well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tailrace.client.metadata import ClusterPicture, PartitionPicture, TopicPicture
from tailrace.config import min_insync_of
from tailrace.model import settled_count

if TYPE_CHECKING:
    from tailrace.client.diagnosing import BrokerCondition


class Health(StrEnum):
    """What is wrong with a partition."""

    OFFLINE = "offline"
    UNDER_REPLICATED = "under-replicated"
    UNDER_MIN_ISR = "under-min-isr"
    NEEDS_DECISION = "needs-decision"
    REPLICA_OUT = "replica-out-of-service"
    LEADER_NOT_PREFERRED = "leader-not-preferred"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """One partition; `leader` is -1 when it has none, `health` empty when all is well."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    health: tuple[Health, ...]
    # Those of the replicas that a reassignment adds, and those that go when it is done.
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    # What an election may have lost, in words; empty: nothing.
    loss: str = ""
    # Why a person has to decide who leads; empty: nobody has to.
    conflict: str = ""
    # By broker: why its replica serves nothing. Known only where brokers were asked.
    out_of_service: Mapping[int, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "partition": self.partition,
            "leader": self.leader,
            "leader_epoch": self.leader_epoch,
            "replicas": list(self.replicas),
            "isr": list(self.isr),
            "elr": list(self.elr),
            "health": [each.value for each in self.health],
            "adding": list(self.adding),
            "removing": list(self.removing),
            "loss": self.loss,
            "conflict": self.conflict,
            "out_of_service": {str(each): why for each, why in self.out_of_service.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """One topic; `config` holds what differs from the defaults."""

    topic: str
    topic_id: str
    partitions: tuple[PartitionDescription, ...]
    config: dict[str, str]
    min_insync_replicas: int
    deleting: bool = False
    # What the controller said when the topic was made or got partitions, for people.
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "config": self.config,
            "min_insync_replicas": self.min_insync_replicas,
            "deleting": self.deleting,
            "partitions": [each.as_dict() for each in self.partitions],
            **({"warnings": list(self.warnings)} if self.warnings else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDescription:
    """One live broker and how much it leads and holds."""

    broker_id: int
    address: str
    rack: str
    leaders: int
    replicas: int

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "broker_id": self.broker_id,
            "address": self.address,
            "rack": self.rack,
            "leaders": self.leaders,
            "replicas": self.replicas,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The cluster; `controller_id` is -1 and `controller` empty while there is none."""

    cluster_id: str
    revision: int
    controller_id: int
    controller: str
    brokers: tuple[BrokerDescription, ...]
    topics: int
    partitions: int
    health: dict[Health, int]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "cluster_id": self.cluster_id,
            "revision": self.revision,
            "controller_id": self.controller_id,
            "controller": self.controller,
            "brokers": [each.as_dict() for each in self.brokers],
            "topics": self.topics,
            "partitions": self.partitions,
            "health": {each.value: number for each, number in self.health.items()},
        }


def describe_topic(name: str, topic: TopicPicture) -> TopicDescription:
    min_insync = min_insync_replicas(topic)
    return TopicDescription(
        topic=name,
        topic_id=topic.topic_id,
        partitions=tuple(
            PartitionDescription(
                partition=number,
                leader=each.leader,
                leader_epoch=each.leader_epoch,
                replicas=each.replicas,
                isr=each.isr,
                elr=each.elr,
                health=health_of(each, min_insync),
                adding=each.adding,
                removing=each.removing,
                loss=each.loss,
                conflict=each.conflict,
            )
            for number, each in enumerate(topic.partitions)
        ),
        config=dict(sorted(topic.config.items())),
        min_insync_replicas=min_insync,
        deleting=topic.deleting,
    )


def with_conditions(
    topic: TopicDescription, conditions: Iterable[BrokerCondition]
) -> TopicDescription:
    """The topic with the replicas that brokers told are out of service."""
    out: dict[int, dict[int, str]] = {}
    for condition in conditions:
        for each in condition.out_of_service:
            if each.partition.topic == topic.topic:
                found = out.setdefault(each.partition.partition, {})
                found[condition.broker_id] = str(each.error)
    if not out:
        return topic
    return replace(
        topic,
        partitions=tuple(
            _with_out_of_service(each, out[each.partition]) if each.partition in out else each
            for each in topic.partitions
        ),
    )


def _with_out_of_service(
    partition: PartitionDescription, out: Mapping[int, str]
) -> PartitionDescription:
    kinds = {*partition.health, Health.REPLICA_OUT}
    health = tuple(each for each in Health if each in kinds)
    return replace(partition, out_of_service=dict(sorted(out.items())), health=health)


def describe_cluster(picture: ClusterPicture) -> ClusterDescription:
    topics = [describe_topic(name, picture.topics[name]) for name in sorted(picture.topics)]
    partitions = [each for topic in topics for each in topic.partitions]
    return ClusterDescription(
        cluster_id=picture.cluster_id,
        revision=picture.revision,
        controller_id=picture.controller_id,
        controller=picture.controller,
        brokers=tuple(
            BrokerDescription(
                broker_id=broker,
                address=picture.brokers[broker],
                rack=picture.racks.get(broker, ""),
                leaders=sum(each.leader == broker for each in partitions),
                replicas=sum(broker in each.replicas for each in partitions),
            )
            for broker in sorted(picture.brokers)
        ),
        topics=len(topics),
        partitions=len(partitions),
        health={kind: sum(kind in each.health for each in partitions) for kind in Health},
    )


def health_of(partition: PartitionPicture, min_insync: int) -> tuple[Health, ...]:
    """What is wrong with a partition, worst first."""
    live = () if partition.leader < 0 else partition.isr
    # Who is only coming is missed by nobody yet, and who leads is open until the end of a move.
    settled = [each for each in partition.replicas if each not in partition.adding]
    is_moving = bool(partition.adding or partition.removing)
    wrong = {
        Health.OFFLINE: partition.leader < 0,
        Health.UNDER_REPLICATED: not {*settled} <= {*live},
        Health.UNDER_MIN_ISR: len(live) < min(min_insync, len(partition.replicas)),
        Health.NEEDS_DECISION: bool(partition.conflict),
        Health.LEADER_NOT_PREFERRED: partition.leader >= 0
        and not is_moving
        and partition.leader != partition.replicas[0],
    }
    return tuple(kind for kind, is_so in wrong.items() if is_so)


def min_insync_replicas(topic: TopicPicture) -> int:
    """What acks=all needs: as set, else 2 where there are 3 replicas or more, else 1."""
    replicas = max(
        (
            settled_count(len(each.replicas), adding=len(each.adding), removing=len(each.removing))
            for each in topic.partitions
        ),
        default=0,
    )
    return min_insync_of(topic.config, replicas=replicas)
