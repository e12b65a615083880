"""The journal of deletions: it is there after a restart, bounded, and never in the way."""

from __future__ import annotations

import errno

import pytest

from simulation.storage import SimFiles
from tailrace.log.deletions import (
    FILE_BYTES_MAX,
    FILE_NAME,
    LINE_BYTES_MAX,
    LINES_MAX,
    Deletion,
    DeletionJournal,
    DeletionKind,
)
from tailrace.log.evidence import LogStartMoved, ReplicaMoved, TopicDeleted
from tailrace.model import RETENTION, TopicId, TopicPartition

ORDERS = TopicPartition("orders", 0)
BILLS = TopicPartition("bills", 1)
PATH = f"/data/{FILE_NAME}"
EVIDENCE = TopicDeleted(
    cluster_id="c", controller_epoch=3, topic_id=TopicId("id"), record="/deleted/id", revision=9
)


def journal(disk: SimFiles) -> DeletionJournal:
    disk.make_folder("/data")
    disk.sync_folder("/")
    opened = DeletionJournal(disk, "/data")
    opened.open()
    return opened


def line(at_ms: int, partition: TopicPartition = ORDERS) -> Deletion:
    return Deletion.of(DeletionKind.REPLICA, partition, EVIDENCE, now_ms=at_ms, topic_id="id")


def start(at_ms: int) -> Deletion:
    cause = LogStartMoved(kind=RETENTION, leader_epoch=1, offset=at_ms)
    return Deletion.of(DeletionKind.LOG_START, BILLS, cause, now_ms=at_ms, to_offset=at_ms)


def test_what_was_stored_survives_a_power_loss_with_its_evidence(disk: SimFiles) -> None:
    first = journal(disk)
    first.note(line(5))
    first.store()
    first.note(line(6))
    disk.crash(power_loss=True)
    (found,) = journal(disk).entries()
    assert found == line(5)
    assert found.evidence == "TopicDeleted"
    assert found.details["controller_epoch"] == 3
    assert "/deleted/id at revision 9 of cluster c" in found.why


def test_only_what_is_new_is_written(disk: SimFiles) -> None:
    first = journal(disk)
    first.store()
    assert not disk.exists(PATH)
    first.note(line(1))
    first.store()
    before = disk.read(PATH)
    disk.remove(PATH)
    first.store()
    assert not disk.exists(PATH)
    first.note(line(2))
    first.store()
    assert disk.read(PATH).startswith(before)


def test_it_is_bounded_and_retention_pushes_out_nothing_else(disk: SimFiles) -> None:
    first = journal(disk)
    first.note(line(1))
    for at_ms in range(2, 2 * LINES_MAX):
        first.note(start(at_ms))
    first.store()
    for found in (first.entries(), journal(disk).entries()):
        assert len(found) == LINES_MAX + 1
        assert found[0] == line(1)
        assert found[-1] == start(2 * LINES_MAX - 1)
    for at_ms in range(LINES_MAX + 5):
        first.note(line(at_ms))
    assert len(first.entries()) == 2 * LINES_MAX


def test_those_of_one_partition(disk: SimFiles) -> None:
    first = journal(disk)
    first.note(start(3), line(1), line(2, BILLS))
    assert [each.at_ms for each in first.entries([BILLS])] == [2, 3]
    assert [each.at_ms for each in first.entries()] == [1, 2, 3]


@pytest.mark.parametrize("at", [0, 20, -2])
def test_a_line_that_rotted_is_left_out_and_counted(disk: SimFiles, at: int) -> None:
    first = journal(disk)
    first.note(line(1), line(2))
    first.store()
    size = len(disk.read(PATH).splitlines()[0])
    disk.flip_bits(PATH, at if at >= 0 else size + at)
    again = journal(disk)
    assert again.unreadable == 1
    assert [each.at_ms for each in again.entries()] == [2]


def test_a_file_beyond_its_limit_is_not_read(disk: SimFiles) -> None:
    journal(disk)
    file = disk.open(PATH, create=True)
    file.truncate(FILE_BYTES_MAX + 1)
    again = journal(disk)
    assert (again.unreadable, again.entries()) == (1, [])


def test_an_assignment_of_very_many_replicas_is_left_out_of_the_line(disk: SimFiles) -> None:
    moved = ReplicaMoved(
        cluster_id="c",
        controller_epoch=1,
        topic_id=TopicId("id"),
        record="/t",
        revision=1,
        replicas=tuple(range(5_000)),
    )
    first = journal(disk)
    first.note(Deletion.of(DeletionKind.REPLICA, ORDERS, moved, now_ms=1))
    first.store()
    assert len(disk.read(PATH)) <= LINE_BYTES_MAX
    (found,) = journal(disk).entries()
    assert (found.evidence, found.details) == ("ReplicaMoved", {})


class _Full(SimFiles):
    """A disk without room, or one that fails otherwise."""

    code = 0

    def rename(self, source: str, target: str) -> None:
        if self.code:
            raise OSError(self.code, "no")
        super().rename(source, target)


def test_a_full_disk_keeps_no_deletion_from_making_room() -> None:
    disk = _Full(seed=1)
    first = journal(disk)
    first.note(line(1))
    disk.code = errno.ENOSPC
    first.store()
    disk.code = errno.EIO
    with pytest.raises(OSError, match="no"):
        first.store()
    disk.code = 0
    first.store()
    assert journal(disk).entries() == [line(1)]
