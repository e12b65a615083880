"""A disk is full, slow or gone by rule, and well again later than it was not."""

from __future__ import annotations

import errno

import pytest

from tailrace.broker.disks import SLOW_PROBES, Disk, DiskLimits, is_fatal, is_folder_gone
from tailrace.errors import StorageError, is_no_room

LIMITS = DiskLimits(min_free_bytes=1_000, slow_ms=100, recovery_ms=5_000)


def disk() -> Disk:
    return Disk("/data", LIMITS)


def test_a_disk_is_full_below_the_limit_and_well_a_quarter_above() -> None:
    found = disk()
    for free, full, exhausted in (
        (1_000, False, False),
        (999, True, False),
        (1_249, True, False),
        (1_250, False, False),
        (499, True, True),
        (624, True, True),
        (625, True, False),
        (2_000, False, False),
    ):
        found.measured(free, 10_000)
        assert (found.is_full, found.is_exhausted) == (full, exhausted), free
    assert found.trouble == ""
    found.measured(1, 10_000)
    assert "1 bytes are free, log.dir.min.free.bytes=1000" in found.trouble


def test_enospc_counts_before_the_next_measurement() -> None:
    found = disk()
    found.ran_out()
    assert found.is_full
    assert found.is_exhausted
    assert found.is_unfit


def test_a_disk_is_slow_after_a_few_slow_probes_in_a_row() -> None:
    found = disk()
    for took_ms in (100, 100, 99) * 3:
        found.probed(took_ms, 0)
    assert found.trouble == ""
    for _ in range(SLOW_PROBES):
        found.probed(150, 0)
    assert found.is_slow
    assert "disk.slow.ms=100" in found.trouble


def test_one_probe_that_hangs_is_enough() -> None:
    found = disk()
    found.is_probing(299)
    assert found.trouble == ""
    found.is_probing(300)
    assert found.is_slow
    other = disk()
    other.probed(300, 0)
    assert other.is_slow


def test_a_slow_disk_is_well_when_it_was_quick_for_long() -> None:
    """One that is slow now and then stays slow: leaderships do not go back and forth."""
    found, now_ms = disk(), 0
    found.probed(300, now_ms)
    for _ in range(20):
        for _ in range(4):
            now_ms += 1_000
            found.probed(5, now_ms)
        assert found.is_slow
        found.probed(100, now_ms)
    for _ in range(6):
        now_ms += 1_000
        found.probed(5, now_ms)
    assert not found.is_slow


def test_a_failure_is_for_good() -> None:
    found = disk()
    assert found.failed("gone")
    assert not found.failed("gone again")
    assert found.trouble == "failed: gone"


@pytest.mark.parametrize(
    ("number", "fatal", "no_room"),
    [
        (errno.EIO, True, False),
        (errno.EROFS, True, False),
        (errno.ENOSPC, False, True),
        (errno.EDQUOT, False, True),
        (errno.ENOENT, False, False),
        (errno.EMFILE, False, False),
    ],
)
def test_what_an_error_says_of_the_disk(number: int, fatal: bool, no_room: bool) -> None:
    error = StorageError("append failed")
    error.__cause__ = StorageError("inner")
    error.__cause__.__cause__ = OSError(number, "why")
    assert (is_fatal(error), is_no_room(error)) == (fatal, no_room)
    assert not is_fatal(StorageError("of its own"))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT, errno.EACCES, errno.ENOTDIR])
def test_a_folder_that_cannot_be_reached_is_gone(number: int) -> None:
    assert is_folder_gone(OSError(number, "why"))
    assert not is_folder_gone(OSError(errno.EMFILE, "why"))
