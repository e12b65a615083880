from __future__ import annotations

import asyncio

import pytest

from tailrace.cli import patience
from tailrace.cli.patience import PATIENCE_MS, REPEAT_MS, Patience, telling_why
from tailrace.clock import SystemClock


def test_a_reason_is_told_after_a_while_and_again_now_and_then() -> None:
    waits = Patience(0)
    assert waits.look(PATIENCE_MS - 1, "it rains") is None
    assert waits.look(PATIENCE_MS, "it rains") == "waiting: it rains"
    assert waits.look(PATIENCE_MS + REPEAT_MS - 1, "it pours") is None
    assert waits.look(PATIENCE_MS + REPEAT_MS, "it pours") == "waiting: it pours"


def test_nothing_is_told_while_things_move() -> None:
    waits = Patience(0)
    for step in range(10):
        assert waits.look(step * PATIENCE_MS, "it rains", mark=step) is None
    assert waits.look(10 * PATIENCE_MS, "it rains", mark=9) == "waiting: it rains"
    # All is well in between: it begins anew.
    assert waits.look(10 * PATIENCE_MS + 1, "", mark=9) is None
    assert waits.look(10 * PATIENCE_MS + 2, "it rains", mark=9) is None
    assert waits.look(11 * PATIENCE_MS + 2, "it rains", mark=9) == "waiting: it rains"


def test_it_goes_to_stderr_while_the_block_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_MS", 1)
    monkeypatch.setattr(patience, "LOOK_S", 0.01)

    async def main() -> None:
        cleared = asyncio.Event()
        async with telling_why(lambda: "it rains", SystemClock(), before=cleared.set):
            await cleared.wait()

    asyncio.run(main())
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "tailrace: waiting: it rains\n"
