"""What the text of a setting can mean: numbers, flags, addresses; and how people are told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

from tailrace.config import check_endpoint
from tailrace.transport.addresses import split_address

INT63_MAX: Final = 2**63 - 1


class Kind(Protocol):
    """What a text can mean; `parse` raises ValueError or InvalidConfig."""

    def parse(self, text: str) -> object: ...

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within bounds."""

    low: int = 1
    high: int = INT63_MAX

    def parse(self, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not self.low <= int(text) <= self.high:
            raise ValueError(text)
        return int(text)

    def __str__(self) -> str:
        if self.high == INT63_MAX:
            return f"a whole number from {self.low} on"
        return f"a whole number from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Rate:
    """Something a second; -1 for as much as one likes."""

    def parse(self, text: str) -> int:
        return -1 if text == "-1" else Whole().parse(text)

    def __str__(self) -> str:
        return "a whole number from 1 on, or -1 for no limit"


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a whole."""

    def parse(self, text: str) -> float:
        if re.fullmatch(r"[0-9]*\.?[0-9]+(?:[eE]-?[0-9]{1,3})?", text, re.ASCII) is None:
            raise ValueError(text)
        share = float(text)
        if share > 1:
            raise ValueError(text)
        return share

    def __str__(self) -> str:
        return "a number from 0 to 1"


@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no."""

    def parse(self, text: str) -> bool:
        if text not in {"true", "false"}:
            raise ValueError(text)
        return text == "true"

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True)
class Text:
    """Whatever was written."""

    what: str = "any text"

    def parse(self, text: str) -> str:
        return text

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True, slots=True)
class Address:
    """`host:port`; empty where that means "the one listened on"."""

    optional: bool = False

    def parse(self, text: str) -> str:
        if text or not self.optional:
            split_address(text)
        return text

    def __str__(self) -> str:
        return "host:port"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Several of `host:port`."""

    def parse(self, text: str) -> tuple[str, ...]:
        addresses = tuple(part.strip() for part in text.split(",") if part.strip())
        if not addresses:
            raise ValueError(text)
        for each in addresses:
            split_address(each)
        return addresses

    def __str__(self) -> str:
        return "host:port of one or more servers, with commas between"


@dataclass(frozen=True, slots=True)
class Collector:
    """Where traces go, or nothing."""

    def parse(self, text: str) -> str:
        check_endpoint(text)
        return text

    def __str__(self) -> str:
        return "the URL of an OTLP/HTTP collector, such as http://127.0.0.1:4318"


@dataclass(frozen=True, slots=True)
class Own:
    """A setting that is one field of a dataclass."""

    name: str
    field: str
    kind: Kind
    about: str
    secret: bool = False
    required: bool = False
