"""Folders that are opened after the machine went down, or without room on the disk."""

from __future__ import annotations

import pytest

from simulation.storage import SimFiles
from tailrace.errors import is_no_room
from unit.log.test_manager import filled, opened


@pytest.fixture
def disk() -> SimFiles:
    return SimFiles(1)


def test_a_lost_tail_is_told_until_it_is_known(disk: SimFiles) -> None:
    """A process that dies, or stops in order, before anybody heard of it, took nothing back."""
    filled(disk)
    disk.crash(power_loss=True)
    manager, report = opened(disk)
    assert report.tail_may_be_lost
    disk.crash(power_loss=False)
    manager, report = opened(disk)
    assert report.tail_may_be_lost
    manager.close()
    manager, report = opened(disk)
    assert report.tail_may_be_lost
    manager.confirm_boot()
    assert manager.is_boot_confirmed
    disk.crash(power_loss=False)
    manager, report = opened(disk)
    assert not report.tail_may_be_lost
    manager.close()
    assert opened(disk)[1].clean


def test_a_full_disk_is_no_damage_and_no_failure(disk: SimFiles) -> None:
    filled(disk)
    disk.crash(power_loss=True)
    disk.disk_bytes_max = disk.used_bytes
    with pytest.raises(OSError, match="No space left") as caught:
        opened(disk)
    assert is_no_room(caught.value)
    disk.disk_bytes_max = None
    report = opened(disk)[1]
    assert (report.failed, report.damaged) == ({}, {})
    assert report.tail_may_be_lost
