"""Settings as people give them: flags before the environment before a file before the defaults.

Texts in, texts out, each with where it came from; what a text means is for `cli.known_settings` to
know. Invariant: a name that nobody knows is refused with the nearest one that is known. Only the
environment is forgiving, for other programs put names into it too (Kubernetes does).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.errors import InvalidConfig

VARIABLE_PREFIX: Final = "TAILRACE_"
FILE_BYTES_MAX: Final = 1 << 20
DEFAULT_ORIGIN: Final = "default"
HIDDEN: Final = "(hidden)"

_COMMENTS: Final = ("#", "!")
# How like a known name a variable must be to be taken for a slip of the pen.
_SLIP: Final = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A setting that exists: what people may call it, and what they are told of it."""

    name: str
    about: str
    allowed: str
    default: str
    other_names: tuple[str, ...] = ()
    secret: bool = False
    required: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.other_names)


class Given(NamedTuple):
    """One setting as it was given, under one of its names, and where."""

    name: str
    text: str
    origin: str


class Effective(NamedTuple):
    """What counts in the end: for each setting the names and texts of the strongest source.

    One source may give a setting under several names (`log.retention.hours` and `retention.ms`).
    """

    given: dict[str, list[Given]]
    known: tuple[Known, ...]

    def texts(self) -> dict[str, str]:
        """All that was given, by the names it was given under."""
        return {each.name: each.text for all_ in self.given.values() for each in all_}

    def lines(self) -> list[tuple[str, str, str]]:
        """Every setting: name, text, origin. Secrets are not shown."""
        lines: list[tuple[str, str, str]] = []
        for known in self.known:
            found = self.given.get(known.name)
            if not found:
                lines.append((known.name, known.default, DEFAULT_ORIGIN))
                continue
            for each in found:
                text = HIDDEN if known.secret else each.text
                lines.append((each.name, text, each.origin))
        return lines


def effective(known: Sequence[Known], *sources: Iterable[Given]) -> Effective:
    """Lay the sources over each other, the strongest first."""
    owner = {name: each.name for each in known for name in each.names}
    merged: dict[str, list[Given]] = {}
    for source in sources:
        found: dict[str, list[Given]] = {}
        for given in source:
            found.setdefault(owner[given.name], []).append(given)
        for name, all_ in found.items():
            merged.setdefault(name, all_)
    return Effective(merged, tuple(known))


def from_flags(flags: Mapping[str, str | int | None]) -> list[Given]:
    """Flags of their own: the name of the setting with dashes; None: not given."""
    return [
        Given(name, str(value), f"flag {flag_of(name)}")
        for name, value in flags.items()
        if value is not None
    ]


def from_assignments(assignments: Iterable[str], known: Sequence[Known]) -> list[Given]:
    """`--set name=value`, any number of them."""
    found: dict[str, Given] = {}
    for each in assignments:
        name, equals, text = each.partition("=")
        if not equals:
            raise InvalidConfig(f"--set {each}: it has to be name=value")
        name = name.strip()
        _require_known(name, known, f"--set {each}")
        found[name] = Given(name, text.strip(), f"flag --set {name}")
    return list(found.values())


def from_environment(
    environment: Mapping[str, str], known: Sequence[Known]
) -> tuple[list[Given], list[str]]:
    """TAILRACE_BROKER_ID and the like; second: what looks like a slip of the pen."""
    by_variable = {variable_of(name): name for each in known for name in each.names}
    found: list[Given] = []
    doubts: list[str] = []
    for variable in sorted(environment):
        if variable in by_variable:
            name = by_variable[variable]
            found.append(Given(name, environment[variable], f"environment {variable}"))
        elif variable.startswith(VARIABLE_PREFIX):
            near = difflib.get_close_matches(variable, by_variable, n=1, cutoff=_SLIP)
            if near:
                doubts.append(f"the variable {variable} is no setting; did you mean {near[0]}?")
    return found, doubts


def from_file(path: Path, known: Sequence[Known], elsewhere: Sequence[Known] = ()) -> list[Given]:
    """Lines of name=value. What only another service knows (`elsewhere`) is passed over."""
    mine = {name for each in known for name in each.names}
    others = {name for each in elsewhere for name in each.names} - mine
    found: dict[str, Given] = {}
    for number, line in enumerate(_read(path).splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith(_COMMENTS):
            continue
        where = f"{path}, line {number}"
        name, equals, text = stripped.partition("=")
        name = name.strip()
        if not equals:
            raise InvalidConfig(f"{where}: {_shortened(stripped)!r} is not name=value")
        if name in others:
            continue
        _require_known(name, known, where)
        if name in found:
            raise InvalidConfig(f"{where}: {name!r} is set a second time")
        found[name] = Given(name, text.strip(), f"file {where}")
    return list(found.values())


def flag_of(name: str) -> str:
    return "--" + name.replace(".", "-")


def variable_of(name: str) -> str:
    return VARIABLE_PREFIX + name.replace(".", "_").upper()


def _require_known(name: str, known: Sequence[Known], where: str) -> None:
    names = [each for setting in known for each in setting.names]
    if name in names:
        return
    near = difflib.get_close_matches(name, names, n=1)
    hint = (
        f"did you mean {near[0]!r}?"
        if near
        else "`tailrace broker --print-config` (or controller, coordinator) shows all."
    )
    raise InvalidConfig(f"{where}: there is no setting {name!r}; {hint}")


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfig(f"--config {path}: {error.strerror or error}") from error
    if len(data) > FILE_BYTES_MAX:
        raise InvalidConfig(f"--config {path}: larger than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"--config {path}: it is no UTF-8 text: {error}") from error


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"
