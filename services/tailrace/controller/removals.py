"""Replicas that go: those of topics that are deleted, and those that brokers should not have.

What is to go is a function of the image; here is only remembered what brokers were told in this
term. A broker that is away is told when it returns: it reports what it has and was not named.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.controller.facts import ReplicasStopped
from tailrace.controller.orders import Orders, Replica
from tailrace.meta.image import ClusterImage, LiveBroker
from tailrace.meta.keys import topic_key
from tailrace.model import BrokerId, TopicId, TopicPartition


class Removals:
    """What brokers have to delete, in one term."""

    def __init__(self, orders: Orders, say: Callable[[str], None]) -> None:
        self._orders = orders
        self._say = say
        self._deleting: dict[str, list[Replica]] = {}
        # Of each broker's last report: what is kept there, and was said to be.
        self._kept: dict[BrokerId, set[tuple[TopicPartition, TopicId]]] = {}

    def start(self, image: ClusterImage) -> None:
        """Have every broker that is there delete its replicas of topics that go."""
        for name in [each for each in self._deleting if each not in image.deletions]:
            del self._deleting[name]
        for name in sorted(image.deletions):
            if name in self._deleting:
                continue
            self._deleting[name] = []
            topic = image.topics.get(name)
            if topic is None:
                continue
            by_broker: dict[BrokerId, list[Replica]] = {}
            for number, brokers in sorted(topic.record.assignment.items()):
                replica = Replica(TopicPartition(name, number), topic.record.topic_id)
                self._deleting[name].append(replica)
                for broker in brokers:
                    by_broker.setdefault(broker, []).append(replica)
            for broker in sorted(by_broker):
                self._orders.delete_replicas(broker, by_broker[broker])

    def next_stopped(self, image: ClusterImage) -> ReplicasStopped | None:
        """A topic whose replicas are gone from all brokers that are there."""
        for name, replicas in self._deleting.items():
            if name in image.deletions and self._orders.has_deleted(replicas):
                return ReplicasStopped(name=name)
        return None

    def stray_found(self, image: ClusterImage, live: LiveBroker, stray: list[Replica]) -> None:
        """A broker has replicas that it was not told of.

        Those go that something on record says may go. One whose topic the store does not know is
        set aside: the store may be the older one of the two.
        """
        broker = live.registration.broker_id
        told, kept = [], set()
        for each in stray:
            found = as_gone(image, each, broker)
            if found is None:
                kept.add((each.partition, each.topic_id))
                if is_unknown(image, each):
                    # Void once a later order wants it.
                    found = each._replace(set_aside=True, revision=image.revision)
                if (each.partition, each.topic_id) not in self._kept.get(broker, ()):
                    self._say_kept(broker, each, is_set_aside=found is not None)
            if found is not None:
                told.append(found)
        self._kept[broker] = kept
        self._orders.delete_replicas(broker, told)

    def _say_kept(self, broker: BrokerId, replica: Replica, *, is_set_aside: bool) -> None:
        """Once, and not with each report: what is set aside is reported for as long as it lasts."""
        if is_set_aside:
            self._say(
                f"broker {broker} has a replica of {replica.partition} of topic "
                f"{replica.topic_id}, which the store does not know, and no record of its "
                "deletion: it is set aside (`tailrace brokers strays`)"
            )
        else:
            self._say(
                f"broker {broker} has a replica of {replica.partition} "
                "that it should not have; it is left alone"
            )


def as_gone(image: ClusterImage, replica: Replica, broker: BrokerId) -> Replica | None:
    """The replica, if it may go: its topic was deleted, or a reassignment took it away."""
    partition = replica.partition
    if not replica.topic_id or topic_key(partition.topic) in image.damaged:
        return None
    deletion = image.deletions.get(partition.topic)
    is_marked = deletion is not None and deletion.record.topic_id == replica.topic_id
    if is_marked or replica.topic_id in image.tombstones:
        return replica
    topic = image.topics.get(partition.topic)
    if topic is None or topic.record.topic_id != replica.topic_id:
        return None
    stored = image.state(partition)
    if stored is None or broker in image.replicas(partition):
        return None
    return replica._replace(revision=stored.revision)


def is_unknown(image: ClusterImage, replica: Replica) -> bool:
    """Whether the store knows nothing of the replica's topic: neither that it is, nor was."""
    if not replica.topic_id or topic_key(replica.partition.topic) in image.damaged:
        return False
    topic = image.topics.get(replica.partition.topic)
    return topic is None or topic.record.topic_id != replica.topic_id
