"""What `tailrace consume` prints, and where it begins."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tailrace.cli.consuming import Wanted, consume, parse_offset, settle
from tailrace.client.records import ConsumerRecord
from tailrace.errors import InvalidRequest
from unit.client.conftest import simulate
from unit.client.test_consumer import fill, in_group, numbers, until_calm

__all__ = ["simulate"]


def wanted(**changes: Any) -> Wanted:
    return Wanted(topic="t", **changes)


def record(key: bytes | None, value: bytes | None, headers: Any = ()) -> ConsumerRecord:
    return ConsumerRecord("t", 2, 7, 1_000, key, value, headers)


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


def test_a_terminal_shows_time_place_key_value_and_headers() -> None:
    line = wanted(pretty=True).line(record(b"k", b"v", [("h", b"1")])).decode()
    for part in ("1970-01-01T00:00:01.000Z 2:7", "k", "v", "h=1"):
        assert part in line
    assert "\x1b[36mk\x1b[0m" in line
    plain = wanted(pretty=True, colour=False).line(record(b"k", None, [("h", b"1")])).decode()
    assert "\x1b" not in plain
    assert plain.split() == ["1970-01-01T00:00:01.000Z", "2:7", "k", "null", "h=1"]
    hostile = wanted(pretty=True).line(record(b"\x1b]0;x\x07", b"\x1b[2J", [("\x1b", None)]))
    assert b"\x1b[2J" not in hostile
    assert b"\x07" not in hostile


def test_contradictions_are_told_before_anybody_is_asked() -> None:
    for wrong in (
        wanted(offset="earliest", since="5m"),
        wanted(group="g", partition=1),
        wanted(group=""),
        wanted(offset="soon"),
    ):
        with pytest.raises(InvalidRequest):
            consume(wrong, bootstrap="127.0.0.1:1", timeout_s=1)


def test_a_member_that_ends_commits_where_it_has_read_nothing_too(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 3)
        for number in range(3):
            fill(world, number, numbers(0, 5))
        consumer = in_group(world)
        world.processes["b1"].pause()
        await consumer.subscribe(["t"])
        await until_calm(consumer, partitions=3)
        assert len(consumer.taker.positions()) < 3, "a leader has not said yet where it begins"
        asyncio.get_running_loop().call_later(0.5, world.processes["b1"].resume)
        await settle(consumer)
        await consumer.close()
        stored = world.cluster.coordinators.groups["g"].offsets
        assert sorted(each.partition for each in stored) == [0, 1, 2]

    simulate(main)
