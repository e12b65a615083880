"""Look-ups by time are off the loop, bounded at a time, in a request and in the line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from simulation.log_bench import LogBench, append, batch
from simulation.storage import SimFiles
from tailrace.broker.time_lookups import (
    LOOKUPS_MAX,
    PER_REQUEST_MAX,
    WAITING_MAX,
    TimeLookups,
)
from tailrace.config import LogConfig
from tailrace.errors import InvalidRequest, Overloaded, StorageError
from tailrace.log.time_lookup import TimedOffset


@pytest.fixture
def bench() -> LogBench:
    return LogBench(SimFiles(1), LogConfig())


class HeldBlocking:
    """Runs work when it is let go; counts how much is under way."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.under_way = self.most = 0
        self.before: Callable[[], None] = lambda: None

    def run(self, work: Callable[[], Any]) -> Awaitable[Any]:
        async def held() -> Any:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                await self.gate.wait()
                self.before()
                return work()
            finally:
                self.under_way -= 1

        return held()


def test_A6_a_few_at_a_time_and_no_endless_line(bench: LogBench) -> None:  # noqa: N802
    log = bench.open()
    append(log, batch(b"a", timestamp_ms=10))

    async def play() -> None:
        blocking = HeldBlocking()
        lookups = TimeLookups(blocking)
        asked = [asyncio.ensure_future(lookups.find(log, 5, up_to=1)) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0.05)
        assert blocking.most == LOOKUPS_MAX
        with pytest.raises(Overloaded, match="wait already"):
            await lookups.find(log, 5, up_to=1)
        blocking.gate.set()
        assert set(await asyncio.gather(*asked)) == {TimedOffset(0, 10)}
        assert blocking.most == LOOKUPS_MAX

    asyncio.run(play())


def test_A6_a_request_has_so_many_look_ups(bench: LogBench) -> None:  # noqa: N802
    lookups = TimeLookups(HeldBlocking())
    lookups.check(PER_REQUEST_MAX)
    with pytest.raises(InvalidRequest, match="are allowed"):
        lookups.check(PER_REQUEST_MAX + 1)


def test_a_log_that_changes_is_searched_again(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"a", timestamp_ms=10), batch(b"b", timestamp_ms=20))

    async def play() -> None:
        blocking = HeldBlocking()
        blocking.gate.set()
        tries: list[int] = []

        def lose_the_first() -> None:
            tries.append(1)
            if len(tries) == 1:
                raise OSError("the file is gone")

        blocking.before = lose_the_first
        lookups = TimeLookups(blocking)
        assert await lookups.find(log, 5, up_to=2) == TimedOffset(0, 10)
        assert len(tries) == 2

        def lose_all() -> None:
            raise OSError("the file is gone")

        blocking.before = lose_all
        with pytest.raises(StorageError, match="the file is gone"):
            await lookups.find(log, 5, up_to=2)

    asyncio.run(play())
