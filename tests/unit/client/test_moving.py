"""How far replicas are on their way, and what a person is told before one leads with a loss."""

from __future__ import annotations

from typing import Any

from tailrace.client.moving import (
    Move,
    Phase,
    Progress,
    ReplicaFacts,
    best_candidate,
    bytes_of,
    loss_of,
    progress_of,
)
from tailrace.model import TopicPartition

T0 = TopicPartition("t", 0)
MOVE = Move(
    topic="t",
    partition=0,
    original=(1, 2),
    target=(2, 3, 4),
    replicas=(2, 3, 4, 1),
    isr=(1, 2),
    leader=1,
    phase=Phase.COPYING,
)


def facts(broker: int, **given: Any) -> ReplicaFacts:
    values = {
        "folder": "/data",
        "size_bytes": 0,
        "log_start": 0,
        "log_end": 0,
        "high_watermark": 0,
        "leads": False,
        "leader_epoch": 1,
        "last_epoch": 1,
        **given,
    }
    return ReplicaFacts(broker=broker, **values)


def test_what_a_new_replica_lacks_has_to_be_copied() -> None:
    leader = facts(1, size_bytes=1_000, log_end=50, high_watermark=50)
    assert bytes_of(MOVE, {T0: {1: leader}}) == (2_000, 2_000)
    half = facts(3, size_bytes=400, log_end=20)
    done = facts(4, size_bytes=900, log_end=50)
    assert bytes_of(MOVE, {T0: {1: leader, 3: half, 4: done}}) == (2_000, 600)
    progress = progress_of((MOVE,), {T0: {1: leader, 3: half, 4: done}})
    assert (progress.copied_bytes, progress.left_bytes) == (1_400, 600)
    assert progress.estimate_s(100) == 6
    assert progress.estimate_s(0) is None
    # Of a partition without a leader nothing can be said.
    assert progress_of((MOVE,), {}) == Progress((MOVE,), 0, 0)


def test_a_move_tells_the_lowest_isr_at_each_step() -> None:
    assert MOVE.adding == (3, 4)
    assert MOVE.lowest_isr == (2, 3)
    shown = MOVE.as_dict()
    assert (shown["from"], shown["to"], shown["phase"]) == ([1, 2], [2, 3, 4], "copying")
    assert (shown["lowest_isr_while_copying"], shown["lowest_isr_after"]) == (2, 3)


def test_who_lacks_the_least_is_the_latest_epoch_then_the_longest_log() -> None:
    assert best_candidate({}) is None
    found = {
        1: facts(1, last_epoch=3, log_end=90),
        2: facts(2, last_epoch=4, log_end=70),
        3: facts(3, last_epoch=4, log_end=70),
    }
    best = best_candidate(found)
    assert best is not None
    assert best.broker == 2


def test_the_loss_names_offsets_as_far_as_they_are_known() -> None:
    ahead = facts(1, log_end=95, high_watermark=90)
    words = loss_of(facts(2, log_start=10, log_end=70), {1: ahead})
    assert words == (
        "broker 2 has offsets 10 to 69; offsets 70 to 89 were committed, as broker 1 knows"
    )
    words = loss_of(facts(2, log_end=70), {})
    assert words.endswith("no replica that is there knows of more that was committed")
