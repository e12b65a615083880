"""Logs of a folder that are given up together, and what the folder keeps of them: nothing."""

from __future__ import annotations

import contextlib

import pytest

from simulation.log_bench import values
from simulation.proofs import deleted
from simulation.storage import SimFiles, SimulatedCrash
from tailrace.model import Offset, TopicId, TopicPartition
from unit.log.test_manager import BILLS, ORDERS, ROOT, expected, filled, opened
from unit.log.test_manager_threads import Counting


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("operation", range(1, 40))
def test_several_that_are_given_up_at_once_are_gone_or_whole(
    disk: SimFiles, operation: int, power_loss: bool
) -> None:
    manager = filled(disk)
    for each in (ORDERS, BILLS):
        manager.logs[each].flush()
    manager.checkpoint()
    disk.crash_at_operation(operation)
    with contextlib.suppress(SimulatedCrash):
        manager.remove(manager.discard({each: deleted(manager, each) for each in [ORDERS, BILLS]}))
    disk.crash(power_loss=power_loss)
    again, report = opened(disk)
    assert report.damaged == {}
    for each in (ORDERS, BILLS):
        if each in again.logs:
            assert values(again.logs[each]) == expected(each)
            again.delete(each, deleted(again, each))
        new = again.create(each, TopicId("another"))
        assert (new.log_start, new.log_end, again.topic_id(each)) == (0, 0, "another")


def test_what_could_not_be_given_up_can_be_again(disk: SimFiles) -> None:
    manager = filled(disk)
    disk.fail_next_folder_sync()
    with pytest.raises(OSError, match="Input/output error"):
        manager.discard({each: deleted(manager, each) for each in [ORDERS, BILLS]})
    assert manager.holds(ORDERS)
    left = manager.discard({each: deleted(manager, each) for each in [ORDERS, BILLS]})
    assert left == [f"{ROOT}/{each}-delete" for each in (ORDERS, BILLS)]
    assert not manager.holds(ORDERS)
    # Not removed now, it goes at the next start.
    disk.crash(power_loss=True)
    again, report = opened(disk)
    assert (again.logs, len(report.notes)) == ({}, 2)
    assert not any(name.endswith("-delete") for name in disk.list(ROOT))


def test_a_hundred_logs_that_are_given_up_wait_for_the_disk_as_often_as_one() -> None:
    """The folder, and two syncs for each of its six files: not for each log.

    The brokers of a topic of a thousand partitions were busy for ten seconds after its deletion.
    """
    files = Counting()
    manager, _ = opened(files)
    named = [TopicPartition("t", number) for number in range(100)]
    for each in named:
        manager.create(each, TopicId("id"))
    manager.store_high_watermarks(dict.fromkeys(named, Offset(0)))
    manager.checkpoint()
    before = files.syncs
    manager.remove(manager.discard({each: deleted(manager, each) for each in named}))
    assert files.syncs - before == 13
    assert not [name for name in files.list(ROOT) if name.startswith("t-")]
