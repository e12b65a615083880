"""How commands print: tables and sentences for people, a JSON object a line for programs.

On a terminal a table is as wide as that, but never so narrow that columns are cut or left out: then
the terminal folds its lines. Into a pipe or a file every line goes whole, for who reads it there
has no width.
"""

from __future__ import annotations

import json
import sys
from typing import IO, Any, Final

import typer
from rich.console import Console
from rich.table import Table

PIPE_WIDTH: Final = 1 << 16
"""Wider than any line: nothing is cut or folded."""

FOLD_WIDTH: Final = 20
"""Columns that may be folded get at least this much."""

# Sentences may be folded; all else would be hard to read, or to copy.
_FOLDED: Final = frozenset({"health"})


def stdout_console() -> Console:
    return console_for(sys.stdout)


def console_for(stream: IO[str]) -> Console:
    width = None if stream.isatty() else PIPE_WIDTH
    return _WholeTables(file=stream, highlight=False, markup=False, width=width)


class _WholeTables(Console):
    """Prints what it is given; for a table that needs more it is wider than the terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        width = self.width
        tables = [each for each in objects if isinstance(each, Table)]
        self.width = max([width, *(self._needs(each) for each in tables)])
        try:
            super().print(*objects, **options)
        finally:
            self.width = width

    def _needs(self, table: Table) -> int:
        unlimited = self.options.update(width=PIPE_WIDTH, max_width=PIPE_WIDTH)
        needs = self.measure(table, options=unlimited).maximum
        for column in table.columns:
            if not column.no_wrap:
                cells = [self.measure(each, options=unlimited).maximum for each in column.cells]
                needs -= max(max(cells, default=0) - FOLD_WIDTH, 0)
        return needs


def plain_table(*titles: str) -> Table:
    table = Table(box=None, header_style="bold cyan", pad_edge=False, padding=(0, 1))
    for title in titles:
        table.add_column(title, no_wrap=title not in _FOLDED)
    return table


def print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False))


def warn(text: str) -> None:
    """A sentence that is no answer: on stderr, where it is in nobody's way."""
    typer.echo(f"tailrace: {text}", err=True)
