"""After Ctrl-C: how long a producer has, what is said, and that a second one ends it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import cast

import pytest

from tailrace.cli import interruption
from tailrace.cli.interruption import break_off
from tailrace.client.producer import ProducerCore


class Closing:
    """Stands where the producer stands; takes so long to close."""

    def __init__(self, needs_s: float) -> None:
        self._needs_s = needs_s
        self.levels: list[int] = []

    async def close(self, *, timeout_ms: int) -> None:
        self.levels.append(logging.getLogger(ProducerCore.__module__).level)
        await asyncio.sleep(min(self._needs_s, timeout_ms / 1_000))


async def _broken_off(closing: Closing, *, quiet_ms: int = 0) -> None:
    await break_off(cast("ProducerCore", closing), quiet_ms=quiet_ms)


async def test_what_ends_at_once_ends_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    await _broken_off(Closing(0.01), quiet_ms=5_000)
    assert capsys.readouterr().err == ""


async def test_what_does_not_end_is_told_and_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(interruption, "INTERRUPTED_MS", 200)
    began_s = time.monotonic()
    await _broken_off(Closing(3_600))
    assert time.monotonic() - began_s < 5
    assert "Ctrl-C once more leaves at once" in capsys.readouterr().err


async def test_a_second_ctrl_c_ends_it() -> None:
    ending = asyncio.ensure_future(_broken_off(Closing(3_600)))
    await asyncio.sleep(0.05)
    began_s = time.monotonic()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert time.monotonic() - began_s < 3


async def test_batches_that_are_given_up_are_not_logged_one_by_one() -> None:
    log = logging.getLogger(ProducerCore.__module__)
    before = log.level
    closing = Closing(0)
    await _broken_off(closing)
    assert set(closing.levels) == {logging.ERROR}
    assert log.level == before
