"""The image as the messages that brokers get: orders for partitions, the picture for clients.

A picture is built topic by topic, and what did not change is taken from the last one: images share
their unchanged parts, so that it is enough to ask whether a part is the same object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tailrace.controller.views import coming_and_going
from tailrace.meta.image import (
    ClusterImage,
    LiveBroker,
    StoredReassignment,
    StoredState,
    StoredTopic,
)
from tailrace.meta.keys import DEFAULT_CONFIG, NO_BROKER
from tailrace.model import BrokerId, TopicPartition
from tailrace.transport.addresses import join_address
from tailrace.transport.wire import PartitionOrder, endpoint_of, to_endpoint
from tailrace.v1 import common_pb2 as pb
from tailrace.v1 import control_pb2


def link_address(live: LiveBroker) -> str:
    return join_address(live.registration.link_host, live.registration.link_port)


def order_for(
    image: ClusterImage, partition: TopicPartition, stored: StoredState, leader_link: str
) -> PartitionOrder:
    """What every replica of a partition is told."""
    state, topic = stored.state, image.topics[partition.topic]
    record = topic.record
    replicas = record.assignment[partition.partition]
    move = image.reassignments.get(partition)
    adding, removing = ((), ()) if move is None else coming_and_going(move, replicas)
    return PartitionOrder(
        partition=partition,
        topic_id=record.topic_id,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=state.isr,
        elr=state.elr,
        replicas=replicas,
        adding=adding,
        removing=removing,
        revision=stored.revision,
        unclean_epoch=state.unclean_epoch,
        leader_process=state.leader_process,
        leader_link=leader_link,
        config=record.config,
        syncing_revision=topic.revision if record.syncing else 0,
    )


def settings_for(image: ClusterImage, broker: BrokerId) -> control_pb2.UpdateSettingsRequest:
    """The settings that a broker is told, without the header."""
    own = [image.broker_configs.get(name) for name in (DEFAULT_CONFIG, str(broker))]
    settings: dict[str, str] = {}
    for stored in own:
        if stored is not None:
            settings.update(stored.record.settings)
    return control_pb2.UpdateSettingsRequest(
        broker=settings,
        clients=[
            control_pb2.ClientSettings(client_id=name, settings=stored.record.settings)
            for name, stored in sorted(image.client_configs.items())
        ],
    )


class _Painted(NamedTuple):
    """One topic of a picture, what it was painted from, and its partitions with what they were."""

    topic: StoredTopic
    states: Mapping[int, StoredState]
    deleting: bool
    message: pb.TopicMetadata
    partitions: dict[int, tuple[StoredState | None, pb.PartitionMetadata]]


class Painter:
    """Paints the cluster as clients see it, again and again."""

    def __init__(self) -> None:
        self._painted: dict[str, _Painted] = {}

    def paint(
        self, image: ClusterImage, spared: Mapping[BrokerId, LiveBroker]
    ) -> pb.ClusterMetadata:
        """`spared`: brokers that are not registered now, but still lead."""
        brokers = {**spared, **image.brokers}
        picture = pb.ClusterMetadata(
            revision=image.revision,
            cluster_id=image.cluster_id,
            generation=image.generation,
            brokers=[
                to_endpoint(endpoint_of(brokers[each].registration)) for each in sorted(brokers)
            ],
            topics=[self._topic(image, name) for name in sorted(image.topics)],
            coordinators=[
                to_endpoint(endpoint_of(image.coordinators[each].registration))
                for each in sorted(image.coordinators)
            ],
            group_shards=_shards(image),
        )
        if image.controller is not None:
            picture.controller.CopyFrom(to_endpoint(endpoint_of(image.controller.record)))
        for name in [name for name in self._painted if name not in image.topics]:
            del self._painted[name]
        return picture

    def _topic(self, image: ClusterImage, name: str) -> pb.TopicMetadata:
        topic = image.topics[name]
        states = image.states.get(name, _NO_STATES)
        deleting = name in image.deletions
        last = self._painted.get(name)
        if (
            last is not None
            and last.topic is topic
            and last.states is states
            and last.deleting == deleting
        ):
            return last.message
        known = last.partitions if last is not None and last.topic == topic else {}
        partitions = {}
        for number, replicas in topic.record.assignment.items():
            stored = states.get(number)
            painted = known.get(number)
            if painted is None or painted[0] is not stored:
                move = image.reassignments.get(TopicPartition(name, number))
                painted = stored, _partition_message(number, replicas, stored, move)
            partitions[number] = painted
        message = _topic_message(
            name, topic, (partitions[number][1] for number in sorted(partitions)), deleting
        )
        self._painted[name] = _Painted(topic, states, deleting, message, partitions)
        return message


_NO_STATES: Mapping[int, StoredState] = {}


def _shards(image: ClusterImage) -> list[pb.GroupShard]:
    """Who owns each shard of groups; one whose owner is gone belongs to nobody."""
    if not image.shards:
        return []
    found = []
    for shard in range(max(image.shards) + 1):
        stored = image.shards.get(shard)
        owner, epoch = NO_BROKER, -1
        if stored is not None:
            live = image.coordinators.get(stored.record.owner)
            epoch = stored.record.epoch
            if live is not None and live.epoch == stored.record.owner_epoch:
                owner = BrokerId(stored.record.owner)
        found.append(pb.GroupShard(owner=owner, epoch=epoch))
    return found


def topic_message(
    name: str, topic: StoredTopic, states: Mapping[int, StoredState], *, deleting: bool
) -> pb.TopicMetadata:
    """One topic by itself."""
    assignment = topic.record.assignment
    partitions = (
        _partition_message(number, assignment[number], states.get(number))
        for number in sorted(assignment)
    )
    return _topic_message(name, topic, partitions, deleting)


def _topic_message(
    name: str, topic: StoredTopic, partitions: Iterable[pb.PartitionMetadata], deleting: bool
) -> pb.TopicMetadata:
    return pb.TopicMetadata(
        name=name,
        topic_id=topic.record.topic_id,
        partitions=partitions,
        config=dict(topic.record.config),
        deleting=deleting,
    )


def _partition_message(
    number: int,
    replicas: tuple[BrokerId, ...],
    stored: StoredState | None,
    move: StoredReassignment | None = None,
) -> pb.PartitionMetadata:
    if stored is None:
        # It was made just now and has no leader yet.
        return pb.PartitionMetadata(
            partition=number, leader=NO_BROKER, leader_epoch=-1, replicas=replicas
        )
    state = stored.state
    adding, removing = ((), ()) if move is None else coming_and_going(move, replicas)
    return pb.PartitionMetadata(
        partition=number,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        replicas=replicas,
        isr=state.isr,
        elr=state.elr,
        revision=stored.revision,
        adding=adding,
        removing=removing,
        loss=state.loss,
        conflict=state.conflict,
    )
