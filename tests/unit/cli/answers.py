"""Questions whose answers are known: for tests of what commands print."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tailrace.cli.asking import Asking
from tailrace.client.admin import AdminCore

T = TypeVar("T")


class Answers(Asking):
    """Gives one answer after the other, whatever is asked; an exception is raised."""

    __slots__ = ("answers",)

    def __init__(self, answers: Sequence[Any], *, as_json: bool = False) -> None:
        super().__init__("a:1", 1.0, as_json)
        object.__setattr__(self, "answers", list(answers))

    def ask(self, question: Callable[[AdminCore], Coroutine[Any, Any, T]]) -> T:
        answer: Any = self.answers.pop(0)  # type: ignore[attr-defined]
        if isinstance(answer, Exception):
            raise answer
        found: T = answer
        return found
