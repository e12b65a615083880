"""The loop behind the blocking clients. (Its use: in test_sync.)"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest
import uvloop

from tailrace.client import background as module
from tailrace.client.background import background
from tailrace.errors import RequestTimedOut
from tailrace.process import loop_factory


def test_there_is_one_and_it_has_a_thread_of_its_own() -> None:
    assert background() is background()

    async def name() -> str:
        return threading.current_thread().name

    assert background().wait(name()) == "tailrace"
    assert background().start(name()).result(5) == "tailrace"


def test_who_waits_too_long_is_told_and_the_work_is_stopped() -> None:
    stopped: Future[bool] = Future()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set_result(True)

    with pytest.raises(RequestTimedOut, match="not done within"):
        background().wait(work(), 0.05)
    assert stopped.result(5)


def test_errors_come_through_also_timeouts_of_the_work_itself() -> None:
    async def work() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        background().wait(work(), 5)


def test_it_cannot_wait_for_itself() -> None:
    async def outer() -> str:
        try:
            background().wait(asyncio.sleep(0))
        except RuntimeError as error:
            return str(error)
        return "waited"

    assert "must not wait" in background().wait(outer())


def test_after_a_fork_there_is_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = background()
    monkeypatch.setattr(module, "_shared", mine)
    monkeypatch.setattr(mine, "pid", -1)
    other = background()
    assert other is not mine
    other.loop.call_soon_threadsafe(other.loop.stop)
    other._thread.join()
    other.loop.close()


def test_it_is_the_fastest_loop_that_is_installed() -> None:
    factory = loop_factory()
    assert factory is not None
    assert type(background().loop) is uvloop.Loop
