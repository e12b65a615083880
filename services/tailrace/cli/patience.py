"""What a command says while it waits: after a few seconds the reason, on stderr.

A command that says nothing for half a minute looks as if it hangs. One that waits for something
that it can name (nobody answers, too few replicas are in sync) says so, and goes on waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from tailrace.cli.output import warn
from tailrace.clock import Clock
from tailrace.runtime import Tasks

PATIENCE_MS: Final = 2_000
REPEAT_MS: Final = 15_000
LOOK_S: Final = 0.25


class Patience:
    """Decides when there is something to say; `now_ms` is any clock that only goes forward."""

    def __init__(self, now_ms: int) -> None:
        self._since_ms = now_ms
        self._mark: object = None
        self._said_ms: int | None = None

    def look(self, now_ms: int, trouble: str, mark: object = None) -> str | None:
        """A sentence, if it is time for one.

        `trouble`: why nothing happens, empty if all is well. `mark`: how far things are; as long
        as it changes they move.
        """
        if not trouble or mark != self._mark:
            self._since_ms, self._mark, self._said_ms = now_ms, mark, None
            return None
        if now_ms - self._since_ms < PATIENCE_MS:
            return None
        if self._said_ms is not None and now_ms - self._said_ms < REPEAT_MS:
            return None
        self._said_ms = now_ms
        return f"waiting: {trouble}"


@asynccontextmanager
async def telling_why(
    trouble: Callable[[], str],
    clock: Clock,
    *,
    mark: Callable[[], object] = lambda: None,
    before: Callable[[], None] = lambda: None,
) -> AsyncIterator[None]:
    """While the block runs, say what it waits for; `before` clears the line for it."""

    async def watch() -> None:
        patience = Patience(clock.monotonic_ms())
        while True:
            await asyncio.sleep(LOOK_S)
            said = patience.look(clock.monotonic_ms(), trouble(), mark())
            if said is not None:
                before()
                warn(said)

    tasks = Tasks(lambda _, __: None)
    tasks.spawn("say what is waited for", watch())
    try:
        yield
    finally:
        await tasks.close()
