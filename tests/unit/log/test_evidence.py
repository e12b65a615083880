"""What proves that data may go says so in one line: who, where on record, for which topic."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from tailrace.log.evidence import (
    LeaderDiverged,
    NeverFinished,
    ReplicaMoved,
    StrayExpired,
    TopicDeleted,
)
from tailrace.model import TopicId

DELETED = TopicDeleted(
    cluster_id="c1", controller_epoch=7, topic_id=TopicId("id-t"), record="/the/key", revision=41
)


def test_a_deletion_names_all_that_one_needs_to_check_it() -> None:
    for each in ("c1", "epoch 7", "id-t", "/the/key", "revision 41"):
        assert each in str(DELETED)
    moved = ReplicaMoved(
        cluster_id="c1",
        controller_epoch=7,
        topic_id=TopicId("id-t"),
        record="/the/key",
        revision=41,
        replicas=(2, 3),
    )
    for each in ("c1", "epoch 7", "[2, 3]", "/the/key", "revision 41"):
        assert each in str(moved)


def test_what_needs_no_order_names_why() -> None:
    expired = StrayExpired(
        cluster_id="c1", topic_id="", set_aside_ms=5, kept_from_ms=6, now_ms=15, retention_ms=9
    )
    assert "topic unknown was kept for 9 ms (stray.retention.ms) from 6 on" in str(expired)
    assert "/data/t-0" in str(NeverFinished(folder="/data/t-0"))


def test_a_cut_names_an_unclean_election_only_where_there_was_one() -> None:
    cut = LeaderDiverged(leader=2, leader_epoch=5, offset=80, high_watermark=80)
    assert str(cut).startswith("leader 2 in epoch 5 has another log from 80 on")
    assert "unclean" not in str(cut)
    below = LeaderDiverged(leader=2, leader_epoch=5, offset=8, high_watermark=80, unclean_epoch=4)
    assert "after an unclean election in epoch 4" in str(below)


def test_evidence_cannot_be_changed_after_it_was_found() -> None:
    with pytest.raises(FrozenInstanceError):
        DELETED.topic_id = TopicId("another")  # type: ignore[misc]
