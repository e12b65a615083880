"""Virtual time for the stores: a loop that does not wait but moves its clock."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only when there is nothing else to do."""

    def __init__(self) -> None:
        super().__init__(_Jump(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class _Jump(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen: all tasks wait for each other")
        self._loop.now += max(timeout, 0)
        return super().select(0)


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Run a coroutine in virtual time."""

    def in_virtual_time(work: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(work)

    return in_virtual_time
