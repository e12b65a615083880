"""Keys and values as a program has them, turned into bytes, and back. Pure.

None stays None: a record without a key, or a tombstone. Avro is in `client.avro`, which needs a
library that not every client wants.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, TypeVar

from tailrace.errors import InvalidConfig

Serializer = Callable[[Any], bytes | None]
Deserializer = Callable[[bytes], Any]

F = TypeVar("F", bound=Callable[[Any], Any])

INTEGER_BYTES: Final = 8


def from_bytes_like(value: Any) -> bytes | None:
    """Bytes as they are: what is used when no serializer is given."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(
        f"keys and values are bytes, not {type(value).__name__}: encode it, or give a serializer"
    )


def from_str(value: str | None) -> bytes | None:
    """Text as UTF-8."""
    return None if value is None else value.encode()


def from_int(value: int | None) -> bytes | None:
    """A whole number in 8 bytes, big endian with sign, as Kafka's LongSerializer does."""
    return None if value is None else value.to_bytes(INTEGER_BYTES, "big", signed=True)


def from_json(value: Any) -> bytes | None:
    """Compact JSON in UTF-8; None is a tombstone, not `null`."""
    if value is None:
        return None
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def to_str(data: bytes) -> str:
    return data.decode()


def to_int(data: bytes) -> int:
    if len(data) != INTEGER_BYTES:
        raise ValueError(f"a number has {INTEGER_BYTES} bytes, not {len(data)}")
    return int.from_bytes(data, "big", signed=True)


def to_json(data: bytes) -> Any:
    return json.loads(data)


def serializer_for(choice: str | Serializer | None, option: str = "serializer") -> Serializer:
    """A function is taken as it is; "bytes" (the default), "str", "int", "json"."""
    return _named(option, choice, _SERIALIZERS)


def deserializer_for(
    choice: str | Deserializer | None, option: str = "deserializer"
) -> Deserializer:
    """The other way round, under the same names."""
    return _named(option, choice, _DESERIALIZERS)


_SERIALIZERS: Final[dict[str, Serializer]] = {
    "bytes": from_bytes_like,
    "str": from_str,
    "int": from_int,
    "json": from_json,
}
_DESERIALIZERS: Final[dict[str, Deserializer]] = {
    "bytes": bytes,
    "str": to_str,
    "int": to_int,
    "json": to_json,
}


def _named(option: str, choice: str | F | None, named: dict[str, F]) -> F:
    if choice is None:
        return named["bytes"]
    if not isinstance(choice, str):
        return choice
    if choice not in named:
        raise InvalidConfig(f"{option}={choice!r} must be one of {', '.join(named)}, or a function")
    return named[choice]
