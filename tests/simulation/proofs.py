"""Evidence that stands: for tests and drivers that delete and cut, and are not about evidence."""

from __future__ import annotations

from typing import Final

from tailrace.log.evidence import FilledAnew, LeaderDiverged, TopicDeleted
from tailrace.log.manager import LogManager
from tailrace.model import DELETE_RECORDS, LogStartCause, TopicId, TopicPartition

LATEST_EPOCH: Final = 2**31 - 1

# Nothing was committed, and the leader of a later epoch has nothing of this log.
DIVERGED: Final = LeaderDiverged(leader=9, leader_epoch=LATEST_EPOCH, offset=0, high_watermark=0)


def given_up(offset: int) -> LogStartCause:
    """Somebody asked for the records below an offset to be deleted."""
    return LogStartCause(DELETE_RECORDS, 0, offset)


def deleted(manager: LogManager, partition: TopicPartition) -> TopicDeleted:
    """The store has it on record that the topic of this log was deleted."""
    topic_id = manager.topic_id(partition) or TopicId("")
    return TopicDeleted(
        cluster_id=_cluster_of(manager),
        controller_epoch=1,
        topic_id=topic_id,
        record=f"/admin/deleted_topics/{topic_id}",
        revision=1,
    )


def refilled(manager: LogManager, partition: TopicPartition) -> FilledAnew:
    """A controller says that nobody counts on what this log may have lost."""
    return FilledAnew(
        cluster_id=_cluster_of(manager),
        topic_id=manager.topic_id(partition) or TopicId(""),
        leader=9,
        leader_epoch=LATEST_EPOCH,
        record=f"/brokers/topics/{partition.topic}",
        revision=1,
    )


def _cluster_of(manager: LogManager) -> str:
    return next(each.meta.cluster_id for each in manager.folders if each.meta is not None)
