"""kill -9 of a process that appends: the page cache keeps every append that returned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import IO

import pytest

from simulation.log_bench import NOW_MS, contents
from tailrace.config import FolderConfig, LogConfig
from tailrace.log.data_folder import Identity
from tailrace.log.files import OsFiles
from tailrace.log.manager import LogManager
from tailrace.model import BrokerId, TopicPartition

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
KILLS = 50
LIFE_SECONDS_MAX = 0.2
BATCH_RECORDS_MAX = 20
"""As in appender.py: what may be in the log beyond the last append that was reported."""
PARTITION = TopicPartition("kill", 0)


class Life:
    """What one child told before it died."""

    def __init__(self) -> None:
        self.opened: tuple[int, int] | None = None
        self.appended = 0
        self.flushed = 0

    def hear(self, line: str) -> None:
        what, *words = line.split()
        if what == "opened":
            self.opened = (int(words[0]), int(words[1]))
        elif what == "appended":
            self.appended = int(words[0])
        elif what == "flushed":
            self.flushed = int(words[0])
        else:
            raise AssertionError(line)


@contextmanager
def appender(folder: Path) -> Iterator[tuple[IO[str], IO[str]]]:
    """The process that forks children: write a line to start one, read what it tells."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("appender.py")), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((f"{ROOT}/services", f"{ROOT}/tests"))},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdin, process.stdout
    finally:
        process.stdin.close()
        process.kill()
        process.stdout.close()
        process.wait()


def live_and_die(orders: IO[str], told: IO[str], seconds: float) -> Life:
    """One child, killed so long after it started."""
    orders.write("go\n")
    orders.flush()
    started, pid = told.readline().split()
    assert started == "started"
    time.sleep(seconds)
    os.kill(int(pid), signal.SIGKILL)
    life = Life()
    for line in told:
        if line.startswith("ended"):
            assert line.split()[1] == str(int(signal.SIGKILL)), line
            return life
        life.hear(line)
    raise AssertionError("the process that forks children is gone")


def test_nothing_is_lost_by_fifty_kills(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    random = Random(3)
    appended = flushed = opened = flushes = 0
    with appender(folder) as (orders, told):
        for _ in range(KILLS):
            life = live_and_die(orders, told, random.uniform(0, LIFE_SECONDS_MAX))
            if life.opened is not None:
                log_start, log_end = life.opened
                assert log_start == 0
                assert log_end >= flushed, "a flush that was acknowledged is lost"
                assert log_end >= appended, "an append that returned is lost"
                assert log_end <= appended + BATCH_RECORDS_MAX, "more than was ever appended"
                # What the last child could not report any more is there and stays.
                appended = log_end
                opened += 1
            appended = max(appended, life.appended)
            flushed = max(flushed, life.flushed)
            flushes += life.flushed > 0
    assert opened > KILLS // 4, "enough children lived long enough to append"
    assert flushes > KILLS // 8
    check_everything(folder, appended)
    print(f"{appended} records appended by {opened} children, {flushed} of them flushed")


def check_everything(folder: Path, appended: int) -> None:
    """Every record is there once, in order, and says its own offset."""
    manager = LogManager(
        OsFiles(),
        FolderConfig(log_dirs=(str(folder),)),
        identity=Identity("cluster", BrokerId(1), "one"),
        log_config=lambda _: LogConfig(),
    )
    report = manager.open(now_ms=NOW_MS)
    assert (report.clean, report.same_boot, report.damaged) == (False, True, {})
    log = manager.logs[PARTITION]
    assert appended <= log.log_end <= appended + BATCH_RECORDS_MAX
    assert contents(log) == [(at, b"%d" % at) for at in range(log.log_end)]
    (producer,) = log.producers.entries()
    assert producer.batches[-1].last_sequence == log.log_end - 1
    assert len(log.segments) > 2, "segments were rolled on the way"
    manager.close()
