"""What a header block may hold: the rules of RFC 9113, section 8. Pure.

A block that breaks them is malformed: its stream is broken, its connection is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from typing import Final

_NAME: Final = re.compile(r":?[!-9;-@\[-~]+\Z")
_BAD_VALUE: Final = re.compile(r"[\0\r\n]|\A[ \t]|[ \t]\Z")
_REQUEST: Final = frozenset({":method", ":scheme", ":path"})
_REQUEST_WITH_AUTHORITY: Final = _REQUEST | {":authority"}
_RESPONSE: Final = frozenset({":status"})
_OF_CONNECTION: Final = frozenset(
    {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"}
)


class BlockKind(Enum):
    """What a block is, by the fields that begin with a colon."""

    REQUEST = "a request"
    RESPONSE = "a response"
    TRAILERS = "trailers"
    MALFORMED = "malformed"


class Headers(dict[str, str]):
    """The fields of a block; of those that stand twice, the last one."""

    __slots__ = ("fault", "kind")

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        super().__init__()
        self.fault = ""
        pseudo = self._take(pairs)
        self.kind = BlockKind.MALFORMED
        if self.fault:
            return
        if not pseudo:
            self.kind = BlockKind.TRAILERS
        elif pseudo == _RESPONSE:
            self.kind = BlockKind.RESPONSE
        elif pseudo not in {_REQUEST, _REQUEST_WITH_AUTHORITY}:
            names = ", ".join(sorted(pseudo))
            self.fault = f"pseudo-header fields of neither a request nor a response: {names}"
        elif not self[":path"]:
            self.fault = "an empty :path"
        else:
            self.kind = BlockKind.REQUEST

    def _take(self, pairs: Iterable[tuple[str, str]]) -> frozenset[str]:
        """Take the fields, and say which pseudo-header fields there are."""
        pseudo: dict[str, None] = {}
        is_regular = False
        for name, value in pairs:
            fault = _fault(name, value)
            if name.startswith(":"):
                if is_regular:
                    fault = fault or f"{name} after a regular field"
                if name in pseudo:
                    fault = fault or f"{name} twice"
                pseudo[name] = None
            else:
                is_regular = True
                if name == "content-length" and self.get(name, value) != value:
                    fault = fault or "two lengths"
            self.fault = self.fault or fault
            self[name] = value
        return frozenset(pseudo)

    @property
    def length(self) -> int | None:
        """How many bytes of data are to come, where that is said."""
        value = self.get("content-length")
        return None if value is None else int(value)


def _fault(name: str, value: str) -> str:
    if not _NAME.match(name):
        return "a field name that HTTP/2 does not allow"
    if _BAD_VALUE.search(value):
        return f"a value of {name} that HTTP/2 does not allow"
    if name in _OF_CONNECTION:
        return f"{name}, which HTTP/2 does not know"
    if name == "te" and value != "trailers":  # codespell:ignore
        return "te other than trailers"  # codespell:ignore
    if name == "content-length" and not (value.isascii() and value.isdigit()):
        return "a length that is none"
    return ""
