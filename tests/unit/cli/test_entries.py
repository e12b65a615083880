from __future__ import annotations

import base64
import json
import re
from dataclasses import fields
from pathlib import Path

from tailrace.cli import entries
from tailrace.cli.entries import Entry, RecordEntry, as_json

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "tools.md"
KINDS = [
    value
    for value in vars(entries).values()
    if isinstance(value, type) and issubclass(value, Entry) and value is not Entry
]


def test_every_kind_of_entry_has_its_own_type() -> None:
    assert len({kind.type for kind in KINDS}) == len(KINDS)


def test_every_field_is_in_the_document() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for kind in KINDS:
        row = re.search(rf"^\| `{kind.type}` \| (.*) \|$", text, re.MULTILINE)
        assert row is not None, kind.type
        named = set(re.findall(r"\w+", row[1]))
        assert {field.name for field in fields(kind)} <= named, kind.type


def test_bytes_say_how_they_are_written() -> None:
    entry = RecordEntry(
        offset=7,
        timestamp_ms=1,
        key=b"\xff\xfe",
        value=None,
        headers=(("trace", b"id"), ("empty", None)),
    )
    line = json.loads(json.dumps(as_json(entry)))
    assert line == {
        "type": "record",
        "offset": 7,
        "timestamp_ms": 1,
        "key": {"base64": base64.b64encode(b"\xff\xfe").decode()},
        "value": None,
        "headers": [["trace", {"utf8": "id"}], ["empty", None]],
    }
