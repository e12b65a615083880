"""Rounds as they came, a line of JSON each: a run that was cut off is continued from them.

Lines are only ever appended. Every run has a name (when it began), and continuing one means to
take its name and the rounds that it has. What a killed run wrote last may be half a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from bench.peers.results import Figures, by_figure, rounded

FILE: Final = "rounds.jsonl"


@dataclass(frozen=True, slots=True)
class Turn:
    """What one contender did in one round of a workload."""

    run: str
    workload: str
    contender: str
    round: int
    took_s: float
    load: str
    figures: Mapping[str, float] = field(default_factory=dict)
    # Why there are no figures.
    failed: str = ""

    def to_json(self) -> str:
        return json.dumps(rounded(asdict(self)))


def read_turns(text: str) -> list[Turn]:
    """All that can be read of a journal."""
    found = []
    for line in text.splitlines():
        try:
            found.append(Turn(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def latest_run(turns: Sequence[Turn]) -> str:
    return turns[-1].run if turns else ""


def complete_rounds(turns: Iterable[Turn], contenders: Sequence[str]) -> dict[str, list[Figures]]:
    """The first rounds in which every contender has figures; what came later counts.

    Contenders of a round ran next to each other, which is what their ratio rests on: a round that
    was cut in the middle is done again by all.
    """
    found = {(each.contender, each.round): each.figures for each in turns if not each.failed}
    whole = 0
    while contenders and all((name, whole + 1) in found for name in contenders):
        whole += 1
    return {name: [found[name, number] for number in range(1, whole + 1)] for name in contenders}


def figures_of(turns: Iterable[Turn]) -> dict[str, dict[str, list[float]]]:
    """Of each contender its rounds, those of a run that was cut too."""
    found: dict[str, dict[int, Figures]] = {}
    for each in turns:
        if not each.failed:
            found.setdefault(each.contender, {})[each.round] = each.figures
    return {
        name: by_figure([figures for _, figures in sorted(rounds.items())])
        for name, rounds in found.items()
    }


class Journal:
    """The file. Nothing is kept without one, as in other benches that use a stage."""

    def __init__(self, path: Path | None = None, run: str = "", *, is_resumed: bool = False):
        self._path = path
        known = _read(path) if path is not None and is_resumed else []
        self.run = latest_run(known) or run
        self._turns = [each for each in known if each.run == self.run]

    def of(self, workload: str) -> list[Turn]:
        return [each for each in self._turns if each.workload == workload]

    def note(self, turn: Turn) -> None:
        """On the disk before anything else happens."""
        self._turns.append(turn)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(turn.to_json() + "\n")


def _read(path: Path) -> list[Turn]:
    return read_turns(path.read_text(encoding="utf-8")) if path.exists() else []
