"""Committed positions: which may be stored, and which are kept no longer. Pure.

A position belongs to the topic of the id that it was committed for: when the topic is deleted and
made anew, the position means nothing for the new one, and is dropped. Positions of a group that has
members are kept; those of one without are kept for the retention time after its last member left or
the position was committed, whichever is later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from tailrace.coordinator.records import Position
from tailrace.errors import (
    InvalidRequest,
    OffsetMetadataTooLarge,
    UnknownTopic,
    UnknownTopicId,
)
from tailrace.model import TopicPartition


class TopicFacts(NamedTuple):
    """What is known of a topic."""

    topic_id: str
    partitions: int


Topics = Mapping[str, TopicFacts]


class Meant(NamedTuple):
    """The topic that a position was committed for; its id is never given to another one."""

    topic: str
    topic_id: str


def checked(
    partition: TopicPartition, asked: Position, topics: Topics, *, metadata_bytes_max: int
) -> Position:
    """The position to store, with the topic's id; raises why it cannot be stored."""
    if asked.offset < 0:
        raise InvalidRequest(f"{partition}: offset {asked.offset} is below 0")
    if asked.metadata and len(asked.metadata.encode()) > metadata_bytes_max:
        raise OffsetMetadataTooLarge(
            f"{partition}: metadata of {len(asked.metadata.encode())} bytes, the limit is "
            f"{metadata_bytes_max} (offset.metadata.max.bytes)"
        )
    topic = topics.get(partition.topic)
    if topic is None or not 0 <= partition.partition < topic.partitions:
        raise UnknownTopic(f"there is no partition {partition}")
    if asked.topic_id and asked.topic_id != topic.topic_id:
        raise UnknownTopicId(
            f"{partition.topic} was deleted and made anew: its id is {topic.topic_id} now, "
            f"not {asked.topic_id}"
        )
    if asked.topic_id:
        return asked
    offset, leader_epoch, _, metadata, commit_ms, kind = asked
    return Position(offset, leader_epoch, topic.topic_id, metadata, commit_ms, kind)


def expired(
    positions: Mapping[TopicPartition, Position],
    *,
    empty_since_ms: int,
    wall_ms: int,
    retention_ms: int,
) -> list[TopicPartition]:
    """The positions of a group without members that have been kept for long enough."""
    return [
        partition
        for partition, position in positions.items()
        if wall_ms - max(position.commit_ms, empty_since_ms) > retention_ms
    ]


def missing(positions: Mapping[TopicPartition, Position], topics: Topics) -> list[Meant]:
    """Topics that positions were committed for and that are not among those that are known.

    What is known may be old: whoever owned the shard before may have known newer topics. So these
    are only suspected to be gone; the store knows.
    """
    meant = dict.fromkeys(Meant(each.topic, positions[each].topic_id) for each in positions)
    return [
        each
        for each in meant
        if (topic := topics.get(each.topic)) is None or topic.topic_id != each.topic_id
    ]


def orphaned(
    positions: Mapping[TopicPartition, Position], gone: Collection[Meant]
) -> list[TopicPartition]:
    """The positions whose topic is gone, or is another one now."""
    return [each for each in positions if Meant(each.topic, positions[each].topic_id) in gone]


def chosen(
    positions: Mapping[TopicPartition, Position], wanted: Iterable[TopicPartition]
) -> list[tuple[TopicPartition, Position | None]]:
    """These positions, all that there are when none is named."""
    named = list(wanted)
    if named:
        return [(partition, positions.get(partition)) for partition in named]
    return [(partition, positions[partition]) for partition in sorted(positions)]
