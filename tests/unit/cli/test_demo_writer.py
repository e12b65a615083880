"""The process that the demo kills."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tailrace.cli import demo_writer
from tailrace.cli.demo_writer import (
    APPENDS_PER_FLUSH,
    ORDERS,
    ORDERS_PER_APPEND,
    appended_ends,
    burst,
    demo_manager,
    order_batch,
    order_time_ms,
    order_value,
)
from tailrace.clock import SystemClock
from tailrace.model import TopicId
from tailrace.record.view import BatchView

NOW_MS = 1_767_225_600_000


def test_an_order_is_a_function_of_its_offset() -> None:
    records = list(BatchView(order_batch(40, 3)).records())
    assert [record.value for record in records] == [order_value(n) for n in (40, 41, 42)]
    assert [record.timestamp_ms for record in records] == [order_time_ms(n) for n in (40, 41, 42)]


def test_it_says_what_is_written_and_what_is_safe(tmp_path: Path) -> None:
    manager = demo_manager(tmp_path)
    manager.open(now_ms=NOW_MS)
    log = manager.create(ORDERS, TopicId("demo"))
    told: list[tuple[str, int]] = []
    burst(log, SystemClock(), lambda what, offset: told.append((what, offset)))
    ends = [ORDERS_PER_APPEND * (n + 1) for n in range(APPENDS_PER_FLUSH)]
    assert told == [*(("appended", end) for end in ends), ("flushed", ends[-1])]
    assert list(appended_ends(log, SystemClock(), 1)) == [ends[-1] + ORDERS_PER_APPEND]
    manager.close()


def test_it_ends_when_nobody_listens(tmp_path: Path) -> None:
    manager = demo_manager(tmp_path)
    manager.open(now_ms=NOW_MS)
    manager.create(ORDERS, TopicId("demo"))
    manager.close()
    child = subprocess.Popen(
        [sys.executable, "-m", demo_writer.__name__, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline().startswith(b"appended ")
    child.stdout.close()
    assert child.wait(30) == 1
    assert child.stderr.read() == b""
    child.stderr.close()
