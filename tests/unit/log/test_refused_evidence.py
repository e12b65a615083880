"""Evidence that does not stand: missing, old, of another cluster, of another topic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.log_bench import NOW_MS, values
from simulation.proofs import DIVERGED, LATEST_EPOCH, deleted, given_up, refilled
from simulation.storage import SimFiles
from tailrace.errors import InvalidRequest, InvariantViolation, StorageError
from tailrace.log.deletions import DeletionKind
from tailrace.log.evidence import (
    LeaderDiverged,
    NothingHeld,
    RemovalEvidence,
    ReplicaMoved,
    StrayExpired,
    TopicDeleted,
    cut_problem,
    removal_problem,
)
from tailrace.log.manager import LogManager
from tailrace.model import TopicId
from unit.log.test_manager import BILLS, ORDERS, ROOT, expected, filled, opened

TOPIC = TopicId("id-orders")
GONE = TopicDeleted(
    cluster_id="cluster", controller_epoch=1, topic_id=TOPIC, record="/deleted", revision=1
)
MOVED = ReplicaMoved(
    cluster_id="cluster",
    controller_epoch=1,
    topic_id=TOPIC,
    record="/topics/orders",
    revision=1,
    replicas=(2, 3),
)
EXPIRED = StrayExpired(
    cluster_id="cluster",
    topic_id=TOPIC,
    set_aside_ms=0,
    kept_from_ms=100,
    now_ms=200,
    retention_ms=100,
)


def untouched(manager: LogManager, disk: SimFiles) -> None:
    assert values(manager.logs[ORDERS]) == expected(ORDERS)
    assert disk.exists(f"{ROOT}/{ORDERS}")
    assert manager.deletions() == []


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        (replace(GONE, cluster_id="another"), "of cluster another"),
        (replace(MOVED, cluster_id="another"), "of cluster another"),
        (replace(GONE, topic_id=TopicId("former")), "of former"),
        (replace(MOVED, topic_id=TopicId("former")), "of former"),
        (replace(EXPIRED, now_ms=199), "kept for 100 ms"),
    ],
    ids=["deleted elsewhere", "moved elsewhere", "former topic", "former topic moved", "too early"],
)
def test_a_replica_stays_without_evidence_of_its_own(
    disk: SimFiles, evidence: RemovalEvidence, why: str
) -> None:
    manager = filled(disk)
    with pytest.raises(InvalidRequest, match=why):
        manager.delete(ORDERS, evidence, now_ms=NOW_MS)
    untouched(manager, disk)


def test_of_several_none_goes_when_one_has_no_evidence(disk: SimFiles) -> None:
    manager = filled(disk)
    wrong = {ORDERS: GONE, BILLS: GONE}
    with pytest.raises(InvalidRequest, match=f"{BILLS} is not deleted"):
        manager.discard(wrong, now_ms=NOW_MS)
    untouched(manager, disk)


def test_one_whose_topic_cannot_be_told_has_no_evidence(disk: SimFiles) -> None:
    manager = filled(disk)
    disk.remove(f"{ROOT}/{ORDERS}/partition.metadata")
    manager.folders[0].topic_ids.clear()
    with pytest.raises(InvalidRequest, match="of topic unknown"):
        manager.delete(ORDERS, GONE, now_ms=NOW_MS)
    untouched(manager, disk)


def test_what_goes_is_on_record_before_it_goes(disk: SimFiles) -> None:
    manager = filled(disk)
    manager.discard({ORDERS: deleted(manager, ORDERS)}, now_ms=NOW_MS)
    disk.crash(power_loss=True)
    again, _ = opened(disk)
    (line,) = [each for each in again.deletions() if each.kind is DeletionKind.REPLICA]
    assert (line.partition, line.topic_id, line.at_ms) == (ORDERS, TOPIC, NOW_MS)
    assert (line.from_offset, line.to_offset, line.evidence) == (0, 12, "TopicDeleted")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"cluster_id": "another"}, "of cluster another"),
        ({"topic_id": TopicId("former")}, "of former"),
        ({"leader_epoch": -2}, "the metadata store is older"),
    ],
)
def test_a_log_that_failed_is_not_opened_anew_without_evidence(
    disk: SimFiles, changed: dict[str, object], why: str
) -> None:
    """An order from an older store, of another cluster or for a former topic gives nothing up."""
    manager = filled(disk)
    disk.fail_next_sync(".log")
    with pytest.raises(StorageError):
        manager.logs[ORDERS].flush()
    evidence = replace(refilled(manager, ORDERS), **changed)  # type: ignore[arg-type]
    for again in (manager.reopen, manager.repair):
        with pytest.raises(InvalidRequest, match=why):
            again(ORDERS, evidence, now_ms=NOW_MS)
    assert manager.logs[ORDERS].log_end == 12
    assert manager.deletions() == []
    manager.reopen(ORDERS, refilled(manager, ORDERS), now_ms=NOW_MS)
    assert manager.logs[ORDERS].log_end == 0
    (line,) = manager.deletions([ORDERS])
    assert (line.kind, line.from_offset, line.to_offset) == (DeletionKind.REPAIR, 0, 12)
    assert line.evidence == "FilledAnew"


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        (replace(DIVERGED, high_watermark=9), "9 is committed"),
        (replace(DIVERGED, leader_epoch=-2), "an older one"),
        (replace(DIVERGED, offset=8), "of a cut at 8"),
    ],
)
def test_no_log_is_cut_without_evidence(disk: SimFiles, evidence: LeaderDiverged, why: str) -> None:
    manager = filled(disk)
    log = manager.logs[ORDERS]
    for cut in (
        lambda: log.truncate_to(5, evidence, now_ms=NOW_MS),
        lambda: log.start_over_at(5, evidence),
    ):
        with pytest.raises(InvariantViolation, match=why):
            cut()
    untouched(manager, disk)
    assert log.truncate_to(9, replace(DIVERGED, high_watermark=9), now_ms=NOW_MS)
    unclean = replace(DIVERGED, high_watermark=9, unclean_epoch=LATEST_EPOCH)
    assert log.truncate_to(5, unclean, now_ms=NOW_MS)


def test_a_log_start_moves_only_as_far_as_its_cause(disk: SimFiles) -> None:
    manager = filled(disk)
    log = manager.logs[ORDERS]
    with pytest.raises(InvariantViolation, match="below 4"):
        log.advance_log_start(5, given_up(4))
    with pytest.raises(InvariantViolation, match="below 19"):
        log.start_over_at(20, given_up(19))
    with pytest.raises(InvariantViolation, match="it holds records"):
        log.start_over_at(20, NothingHeld(leader=1, leader_epoch=LATEST_EPOCH))
    untouched(manager, disk)


def test_what_stands_has_no_problem() -> None:
    for evidence in (GONE, MOVED, EXPIRED):
        assert removal_problem(evidence, cluster_id="cluster", topic_id=TOPIC) == ""
    assert removal_problem(replace(EXPIRED, retention_ms=-1), cluster_id="cluster", topic_id=TOPIC)
    assert cut_problem(DIVERGED, 5, last_epoch=3) == ""
    merged = replace(DIVERGED, high_watermark=9, merged=True)
    assert cut_problem(merged, 5, last_epoch=3) == ""
    assert "same records" in str(merged)
