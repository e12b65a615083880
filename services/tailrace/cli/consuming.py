"""What `tailrace consume` does: one partition, from an offset to its end or for ever, as lines.

Lines go out as batches come in; a reader that went away (`| head`) ends the command quietly.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from tailrace.cli.connecting import Connection, connection, run
from tailrace.client.admin import LATEST
from tailrace.client.reader import PartitionReader
from tailrace.errors import InvalidRequest, Unreachable
from tailrace.record.view import Record

_POSITIONS: Final = ("earliest", "latest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to read and how to print it."""

    topic: str
    partition: int
    offset: str
    max_records: int | None
    follow: bool
    with_keys: bool
    as_json: bool

    def line(self, record: Record) -> bytes:
        if self.as_json:
            return json.dumps(_json(self, record), ensure_ascii=False).encode() + b"\n"
        value = record.value or b""
        return (record.key or b"") + b"\t" + value + b"\n" if self.with_keys else value + b"\n"


def consume(wanted: Wanted, *, bootstrap: str | None, timeout_s: float) -> None:
    offset = parse_offset(wanted.offset)
    run(_consume(wanted, offset, connection(bootstrap, timeout_s)))


def parse_offset(text: str) -> int | str:
    """`earliest`, `latest` or a number from 0 on."""
    if text in _POSITIONS:
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise InvalidRequest(f"--offset {text!r} is neither a number nor 'earliest' nor 'latest'")


async def _consume(wanted: Wanted, offset: int | str, to: Connection) -> None:
    # Where the end is, is asked once: who wants more than what is there now follows.
    end = None if wanted.follow else await _end(wanted, to)
    left = wanted.max_records
    async with to.reader(wanted.topic, wanted.partition, offset) as reader:
        while left != 0 and not _is_done(reader, offset, end):
            first = reader.position
            fetched = await reader.next(timeout_ms=to.timeout_ms)
            if fetched is None:
                _complain_if_silent(reader, wanted, end, to)
                continue
            if fetched.header.is_control:
                continue
            lines: list[bytes] = []
            for record in _records(fetched.view.records(), first, end):
                if left == 0:
                    break
                lines.append(wanted.line(record))
                left = left if left is None else left - 1
            sys.stdout.buffer.write(b"".join(lines))
            sys.stdout.buffer.flush()


async def _end(wanted: Wanted, to: Connection) -> int:
    async with to.admin() as admin:
        found = await admin.list_offsets(wanted.topic, LATEST, partitions=[wanted.partition])
    return found[wanted.partition].offset


def _is_done(reader: PartitionReader, offset: int | str, end: int | None) -> bool:
    if end is None:
        return False
    position = reader.position
    if position < 0:
        # Not looked up yet; nothing lies between the end and the latest.
        return offset == LATEST or end == 0
    return position >= end and (reader.high_watermark >= 0 or position == end)


def _complain_if_silent(
    reader: PartitionReader, wanted: Wanted, end: int | None, to: Connection
) -> None:
    if end is not None or reader.trouble:
        why = reader.trouble or "its leader sends nothing"
        if end is not None:
            raise Unreachable(
                f"{wanted.topic}-{wanted.partition}: nothing came within {to.timeout_ms} ms: {why}"
            )


def _records(records: Iterator[Record], first: int, end: int | None) -> Iterator[Record]:
    for record in records:
        if record.offset >= first and (end is None or record.offset < end):
            yield record


def _json(wanted: Wanted, record: Record) -> dict[str, Any]:
    return {
        "topic": wanted.topic,
        "partition": wanted.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers or ()],
    }


def _text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}
