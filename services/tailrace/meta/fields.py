"""JSON objects as they come out of the store: each field read with the type that it must have.

What is missing, or has another type, is CorruptCheckpoint, which says where and what. Pure.
"""

from __future__ import annotations

import json
from typing import Final, NoReturn, cast

from tailrace.errors import CorruptCheckpoint
from tailrace.model import BrokerId

_NUMBER_DIGITS_MAX: Final = 9
_SHOWN_CHARACTERS_MAX: Final = 60


def number_of(text: str) -> int | None:
    """Read a number as `str` writes it: each key has one place, and each place one key."""
    if not (text.isascii() and text.isdigit()) or (text[0] == "0" and text != "0"):
        return None
    return int(text) if len(text) <= _NUMBER_DIGITS_MAX else None


class Fields:
    """The fields of one JSON object, each read with the type that it must have."""

    __slots__ = ("_fields", "_where")

    def __init__(self, where: str, raw: object) -> None:
        if not isinstance(raw, dict):
            _corrupt(where, f"a JSON object was expected, not {_shown(raw)}")
        self._where = where
        self._fields = cast("dict[str, object]", raw)

    @property
    def where(self) -> str:
        """What the errors name."""
        return self._where

    def version(self, oldest: int) -> None:
        """Any version from this one on will do: a later one only adds fields."""
        if self.integer("version") < oldest:
            _corrupt(self._where, f"there is no format version {self._fields['version']}")

    def has(self, name: str) -> bool:
        """Whether it is there at all: what was written before it was invented lacks it."""
        return name in self._fields

    def integer(self, name: str) -> int:
        return integer_of(self._where, name, self._get(name))

    def broker(self, name: str) -> BrokerId:
        return BrokerId(self.integer(name))

    def text(self, name: str) -> str:
        return _text(self._where, name, self._get(name))

    def text_or(self, name: str, otherwise: str) -> str:
        """For what an older version did not write."""
        return self.text(name) if name in self._fields else otherwise

    def flag(self, name: str) -> bool:
        found = self._get(name)
        if not isinstance(found, bool):
            _corrupt(self._where, f"{name!r} is {_shown(found)}, not true or false")
        return found

    def brokers(self, name: str) -> tuple[BrokerId, ...]:
        return _brokers(self._where, name, self._get(name))

    def texts(self, name: str) -> tuple[str, ...]:
        found = self._list(name)
        return tuple(_text(self._where, name, each) for each in found)

    def objects(self, name: str) -> tuple[Fields, ...]:
        return tuple(Fields(f"{self._where}: {name}", each) for each in self._list(name))

    def fields(self, name: str) -> Fields:
        """An object within this one."""
        return Fields(f"{self._where}: {name}", self._object(name))

    def lists(self, name: str) -> tuple[list[object], ...]:
        found = self._list(name)
        for each in found:
            if not isinstance(each, list):
                _corrupt(self._where, f"{_shown(each)} in {name!r} is not a list")
        return tuple(cast("list[list[object]]", found))

    def settings(self, name: str) -> dict[str, str]:
        found = self._object(name)
        return {setting: _text(self._where, setting, text) for setting, text in found.items()}

    def assignment(self, name: str) -> dict[int, tuple[BrokerId, ...]]:
        assignment = {}
        for text, replicas in self._object(name).items():
            partition = number_of(text)
            if partition is None:
                _corrupt(self._where, f"{_shown(text)} in {name!r} is not a partition")
            assignment[partition] = _brokers(self._where, name, replicas)
        return dict(sorted(assignment.items()))

    def _get(self, name: str) -> object:
        try:
            return self._fields[name]
        except KeyError:
            _corrupt(self._where, f"{name!r} is missing")

    def _list(self, name: str) -> list[object]:
        found = self._get(name)
        if not isinstance(found, list):
            _corrupt(self._where, f"{name!r} is {_shown(found)}, not a list")
        return found

    def _object(self, name: str) -> dict[str, object]:
        found = self._get(name)
        if not isinstance(found, dict):
            _corrupt(self._where, f"{name!r} is {_shown(found)}, not an object")
        return found


def parse_json(data: bytes, where: str) -> object:
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"{where}: this is not JSON: {error}") from error
    return found


def integer_of(where: str, name: str, found: object) -> int:
    # For Python, true is an integer too; for us it is not.
    if type(found) is not int:
        _corrupt(where, f"{name!r} is {_shown(found)}, not an integer")
    return found


def _text(where: str, name: str, found: object) -> str:
    if not isinstance(found, str):
        _corrupt(where, f"{name!r} is {_shown(found)}, not text")
    return found


def _brokers(where: str, name: str, found: object) -> tuple[BrokerId, ...]:
    if not isinstance(found, list):
        _corrupt(where, f"{name!r} is {_shown(found)}, not a list of brokers")
    return tuple(BrokerId(integer_of(where, name, each)) for each in found)


def _shown(found: object) -> str:
    text = repr(found)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[:_SHOWN_CHARACTERS_MAX]}…"


def _corrupt(where: str, problem: str) -> NoReturn:
    raise CorruptCheckpoint(f"{where}: {problem}")
