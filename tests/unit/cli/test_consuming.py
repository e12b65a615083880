from __future__ import annotations

import json
from typing import Any

import pytest

from tailrace.cli.consuming import Wanted, parse_offset
from tailrace.errors import InvalidRequest
from tailrace.record.view import Record


def wanted(**changes: Any) -> Wanted:
    given: dict[str, Any] = {
        "topic": "t",
        "partition": 2,
        "offset": "earliest",
        "max_records": None,
        "follow": False,
        "with_keys": False,
        "as_json": False,
    }
    return Wanted(**{**given, **changes})


def record(key: bytes | None, value: bytes | None, headers: Any = ()) -> Record:
    return Record(7, 1_000, key, value, headers)


def test_values_are_printed_as_they_are() -> None:
    assert wanted().line(record(b"k", b"\xff\x00v")) == b"\xff\x00v\n"
    assert wanted().line(record(None, None)) == b"\n"
    assert wanted(with_keys=True).line(record(b"k", b"v")) == b"k\tv\n"


def test_json_holds_everything_and_stays_json() -> None:
    line = wanted(as_json=True).line(record(b"\xff", "ü".encode(), [("h", b"1"), ("g", None)]))
    assert json.loads(line) == {
        "topic": "t",
        "partition": 2,
        "offset": 7,
        "timestamp_ms": 1_000,
        "key": {"base64": "/w=="},
        "value": "ü",
        "headers": [["h", "1"], ["g", None]],
    }
    assert json.loads(wanted(as_json=True).line(record(None, None)))["value"] is None


def test_offsets() -> None:
    assert parse_offset("earliest") == "earliest"
    assert parse_offset("latest") == "latest"
    assert parse_offset("17") == 17
    for bad in ("", "-1", "soon", "1.5"):
        with pytest.raises(InvalidRequest, match="neither a number nor"):
            parse_offset(bad)
