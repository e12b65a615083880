"""Keys and values as bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.serializers import deserializer_for, serializer_for
from tailrace.errors import InvalidConfig

JSON = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers(value: int) -> None:
    data = serializer_for("int")(value)
    assert data is not None
    assert len(data) == 8
    assert deserializer_for("int")(data) == value


@given(JSON)
def test_json(value: Any) -> None:
    data = serializer_for("json")(value)
    assert data is not None
    assert deserializer_for("json")(data) == value


@given(st.text())
def test_text(value: str) -> None:
    data = serializer_for("str")(value)
    assert data is not None
    assert deserializer_for("str")(data) == value


def test_bytes_are_left_alone() -> None:
    plain = serializer_for(None)
    data = b"x"
    assert plain(data) is data
    assert plain(bytearray(b"y")) == b"y"
    assert plain(memoryview(b"z")) == b"z"
    with pytest.raises(TypeError, match="str"):
        plain("text")
    assert deserializer_for("bytes")(b"x") == b"x"


@pytest.mark.parametrize("name", ["bytes", "str", "int", "json"])
def test_nothing_stays_nothing(name: str) -> None:
    assert serializer_for(name)(None) is None


def test_what_cannot_be() -> None:
    with pytest.raises(OverflowError):
        serializer_for("int")(2**63)
    with pytest.raises(ValueError, match="8 bytes"):
        deserializer_for("int")(b"abc")
    with pytest.raises(InvalidConfig, match="avro"):
        serializer_for("avro")
    own = serializer_for(lambda value: b"own")
    assert own(1) == b"own"
