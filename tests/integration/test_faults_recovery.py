"""F40: a process that is killed again and again while it recovers logs gets done all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulation.log_bench import NOW_MS, append, batch
from tailrace.config import FolderConfig, LogConfig
from tailrace.log.checkpoints import RECOVERY_POINTS, read_or_none
from tailrace.log.data_folder import Identity
from tailrace.log.files import OsFiles
from tailrace.log.manager import LogManager
from tailrace.model import BrokerId, TopicId, TopicPartition

PARTITION = TopicPartition("t", 0)
SEGMENT_BYTES = 1 << 20
SEGMENTS = 24
LIVES_MAX = 60
ATTEMPTS_MAX = 5

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def manager_of(folder: str) -> LogManager:
    return LogManager(
        OsFiles(),
        FolderConfig(log_dirs=(folder,)),
        identity=Identity("c", BrokerId(1), "i"),
        log_config=lambda _: LogConfig(segment_bytes=SEGMENT_BYTES),
    )


def fill(folder: str) -> int:
    """A log of many small batches, never synced, as a crash leaves it; returns where it ends."""
    manager = manager_of(folder)
    manager.open(now_ms=NOW_MS)
    log = manager.create(PARTITION, TopicId("t"))
    data = batch(b"x" * 100)
    while len(log.segments) <= SEGMENTS:
        append(log, *([data] * 50))
    end = log.log_end
    # Dies here, as far as the next process can tell.
    for each in manager.folders:
        each.release()
    return end


def recovery_point(folder: str) -> int:
    found = read_or_none(OsFiles(), f"{folder}/{RECOVERY_POINTS.file_name}", RECOVERY_POINTS)
    return dict(found or {}).get(PARTITION, 0)


def live(folder: str, for_s: float) -> tuple[bool, int]:
    """One life that is killed after so long, if it lasts that long; whether it got done."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, __file__, folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "opening\n"
        try:
            process.wait(for_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        text = process.stdout.read()
    return process.returncode == 0, int(text or -1)


def test_f40_kill_9_again_and_again_during_recovery_still_gets_done(tmp_path: Path) -> None:
    # Far too short for all of it, unless the machine was busy when that was measured.
    life_s, lives = max(_time_of_one_segment(tmp_path) * SEGMENTS / 8, 0.05), 1
    for attempt in range(ATTEMPTS_MAX):
        lives = _lives_of(tmp_path / str(attempt), life_s)
        if lives > 1:
            break
        life_s /= 2
    assert lives > 1, "it was to be killed at least once"


def _lives_of(folder: Path, life_s: float) -> int:
    """How many lives of this length a recovery takes."""
    end = fill(str(folder))
    points = [recovery_point(str(folder))]
    done, found, lives = False, -1, 0
    while not done:
        lives += 1
        assert lives <= LIVES_MAX, f"still not done with lives of {life_s:.2f} s: {points}"
        done, found = live(str(folder), life_s)
        points.append(recovery_point(str(folder)))
    assert found == end
    assert points == sorted(points), "what was recovered stays recovered"
    print(f"\nF40: done in {lives} lives of {life_s:.2f} s, recovery points {points}")
    return lives


def _time_of_one_segment(tmp_path: Path) -> float:
    """How long a log of one segment takes to recover here and now, about."""
    folder = f"{tmp_path}-small"
    manager = manager_of(folder)
    manager.open(now_ms=NOW_MS)
    log = manager.create(PARTITION, TopicId("t"))
    while len(log.segments) <= 2:
        append(log, *([batch(b"x" * 100)] * 50))
    for each in manager.folders:
        each.release()
    again, begun = manager_of(folder), time.monotonic()
    again.open(now_ms=NOW_MS)
    took_s = (time.monotonic() - begun) / 2
    again.close()
    return took_s


def main() -> None:
    print("opening", flush=True)
    manager = manager_of(sys.argv[1])
    manager.open(now_ms=NOW_MS)
    print(manager.logs[PARTITION].log_end, flush=True)
    # As if killed: the next life must not find a clean end.
    os._exit(0)


if __name__ == "__main__":
    main()
