"""Positions: refused with a reason, kept for as long as they mean something."""

from __future__ import annotations

import pytest

from tailrace.coordinator.offsets import (
    Meant,
    TopicFacts,
    checked,
    chosen,
    expired,
    missing,
    orphaned,
)
from tailrace.coordinator.records import Position
from tailrace.errors import (
    InvalidRequest,
    OffsetMetadataTooLarge,
    TailraceError,
    UnknownTopic,
    UnknownTopicId,
)
from tailrace.model import TopicPartition

T0 = TopicPartition("t", 0)
TOPICS = {"t": TopicFacts("id-t", 2)}


def position(
    offset: int = 5, *, topic_id: str = "", metadata: str = "", at_ms: int = 0
) -> Position:
    return Position(offset, 1, topic_id, metadata, at_ms)


def test_a_position_gets_the_id_of_its_topic() -> None:
    stored = checked(T0, position(), TOPICS, metadata_bytes_max=10)
    assert stored.topic_id == "id-t"
    named = position(topic_id="id-t")
    assert checked(T0, named, TOPICS, metadata_bytes_max=10) is named


@pytest.mark.parametrize(
    ("partition", "asked", "error"),
    [
        (T0, position(-1), InvalidRequest),
        (T0, position(metadata="ü" * 6), OffsetMetadataTooLarge),
        (TopicPartition("t", 2), position(), UnknownTopic),
        (TopicPartition("u", 0), position(), UnknownTopic),
        (T0, position(topic_id="id-of-the-old-t"), UnknownTopicId),
    ],
)
def test_what_cannot_be_stored_says_why(
    partition: TopicPartition, asked: Position, error: type[TailraceError]
) -> None:
    with pytest.raises(error):
        checked(partition, asked, TOPICS, metadata_bytes_max=10)


@pytest.mark.parametrize(
    ("commit_ms", "empty_ms", "gone"),
    [(0, 0, True), (60, 0, False), (0, 60, False), (40, 40, True)],
)
def test_a_position_is_kept_after_its_commit_and_after_the_last_member(
    commit_ms: int, empty_ms: int, gone: bool
) -> None:
    found = expired(
        {T0: position(at_ms=commit_ms)}, empty_since_ms=empty_ms, wall_ms=141, retention_ms=100
    )
    assert found == ([T0] if gone else [])


def test_positions_of_topics_that_are_gone_or_made_anew_are_orphans() -> None:
    gone, anew = TopicPartition("u", 0), TopicPartition("t", 1)
    positions = {
        T0: position(topic_id="id-t"),
        anew: position(topic_id="old"),
        gone: position(topic_id="id-u"),
    }
    suspected = missing(positions, TOPICS)
    assert suspected == [Meant("t", "old"), Meant("u", "id-u")]
    # Only what the store says is gone is forgotten: what is known may be old.
    assert orphaned(positions, suspected) == [anew, gone]
    assert orphaned(positions, suspected[1:]) == [gone]
    assert orphaned(positions, []) == []


def test_all_positions_or_those_that_are_named() -> None:
    other = TopicPartition("a", 0)
    positions = {T0: position(1), other: position(2)}
    assert chosen(positions, []) == [(other, position(2)), (T0, position(1))]
    assert chosen(positions, [TopicPartition("x", 1), T0]) == [
        (TopicPartition("x", 1), None),
        (T0, position(1)),
    ]
