"""What `tailrace consume` does: a topic, from somewhere to its end or for ever, as lines.

Lines go out as records come in; a reader that went away (`| head`) ends the command quietly. Ctrl-C
and SIGTERM leave the group in order.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tailrace.cli import formatting
from tailrace.cli.connecting import (
    WAIT_TOPIC_S,
    Connection,
    connection,
    partitions_of,
    run,
)
from tailrace.cli.moments import parse_moment
from tailrace.cli.output import warn
from tailrace.cli.patience import telling_why
from tailrace.client.admin import EARLIEST, LATEST, OffsetSpec
from tailrace.client.consumer import ConsumerCore
from tailrace.client.consumer_settings import ConsumerSettings
from tailrace.client.records import ConsumerRecord
from tailrace.client.unreadable import RAISE
from tailrace.clock import SystemClock
from tailrace.errors import InvalidRequest, Unreachable, no_partition
from tailrace.model import TopicPartition

POLL_MS: Final = 500
POLL_RECORDS: Final = 10_000
# How long a member that ends waits to know where it stands in partitions that gave it nothing.
SETTLE_MS: Final = 2_000

_POSITIONS: Final = (EARLIEST, LATEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to read and how to print it."""

    topic: str
    # None: all partitions.
    partition: int | None = None
    group: str | None = None
    # None: as the group has committed, else from the beginning.
    offset: str | None = None
    since: str | None = None
    max_records: int | None = None
    follow: bool = False
    # At a stored batch that cannot be decoded: raise or skip.
    on_corrupt: str = RAISE
    with_keys: bool = False
    as_json: bool = False
    wait_topic_s: float = WAIT_TOPIC_S
    # For people at a terminal: time, place, key, value and headers of each record.
    pretty: bool = False
    # Unless NO_COLOR is set.
    colour: bool = True

    def line(self, record: ConsumerRecord) -> bytes:
        if self.as_json:
            return json.dumps(_json(record), ensure_ascii=False).encode() + b"\n"
        if self.pretty:
            return (_pretty(record, _PAINTED if self.colour else _PLAIN) + "\n").encode()
        value = record.value or b""
        return (record.key or b"") + b"\t" + value + b"\n" if self.with_keys else value + b"\n"


def consume(wanted: Wanted, *, bootstrap: str | None, timeout_s: float) -> None:
    if sum(each is not None for each in (wanted.offset, wanted.since)) > 1:
        raise InvalidRequest("give one of --from-beginning, --offset and --since")
    if wanted.group is not None and not wanted.group:
        raise InvalidRequest("--group needs a name; leave it away to read without a group")
    if wanted.group is not None and wanted.partition is not None:
        raise InvalidRequest("a group divides the partitions itself: leave --partition away")
    start = _start(wanted, SystemClock().wall_ms())
    run(_consume(wanted, start, connection(bootstrap, timeout_s)))


def parse_offset(text: str) -> int | str:
    """`earliest`, `latest` or a number from 0 on."""
    if text in _POSITIONS:
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise InvalidRequest(f"--offset {text!r} is neither a number nor 'earliest' nor 'latest'")


@dataclass(frozen=True, slots=True)
class _Start:
    """Where to begin: an offset, a place, a time in ms, or (None) where the group stopped."""

    offset: int | str | None = None
    since_ms: int | None = None


def _start(wanted: Wanted, now_ms: int) -> _Start:
    if wanted.since is not None:
        return _Start(since_ms=parse_moment(wanted.since, option="--since", now_ms=now_ms))
    if wanted.offset is not None:
        return _Start(offset=parse_offset(wanted.offset))
    return _Start()


async def _consume(wanted: Wanted, start: _Start, to: Connection) -> None:
    settings = ConsumerSettings(
        group_id=wanted.group,
        auto_offset_reset=LATEST if start.offset == LATEST else EARLIEST,
        max_poll_records=POLL_RECORDS,
        default_api_timeout_ms=max(to.timeout_ms, int(wanted.wait_topic_s * 1000)),
        unknown_topic_wait_ms=int(wanted.wait_topic_s * 1000),
        client_id="tailrace consume",
        on_corrupt=wanted.on_corrupt,
    )
    consumer = to.consumer(settings)
    try:
        async with telling_why(lambda: _trouble(consumer), to.clock):
            partitions = await _partitions(wanted, consumer)
            # Where the end is, is asked once: who wants more than what is there now follows.
            ends = None if wanted.follow else await _offsets(consumer, partitions, LATEST)
            beginning = _Beginning(start, await _begin_at(consumer, partitions, start))
            if wanted.group is not None:
                await consumer.subscribe([wanted.topic], beginning.of(consumer))
            else:
                await consumer.assign(partitions)
                await beginning.of(consumer).on_assigned(partitions)
            try:
                await _print_all(wanted, consumer, ends, to.timeout_ms)
            finally:
                _tell_skipped(consumer)
            if wanted.group is not None:
                await settle(consumer)
    finally:
        await consumer.close()


def _tell_skipped(consumer: ConsumerCore) -> None:
    """A line at the end, since one that went by above may have been missed."""
    if count := consumer.counts["skipped_batches"]:
        warn(f"{count} batches could not be read and were skipped; each was named above")


def _trouble(consumer: ConsumerCore) -> str:
    """Why nothing comes; of several partitions one is enough."""
    by_partition = consumer.trouble()
    first = next((f"{each}: {why}" for each, why in sorted(by_partition.items())), "")
    return consumer.cluster_trouble() or first


async def _partitions(wanted: Wanted, consumer: ConsumerCore) -> list[TopicPartition]:
    count = await partitions_of(consumer, wanted.topic)
    if wanted.partition is None:
        return [TopicPartition(wanted.topic, number) for number in range(count)]
    if wanted.partition >= count:
        raise no_partition(wanted.topic, count, wanted.partition)
    return [TopicPartition(wanted.topic, wanted.partition)]


async def _offsets(
    consumer: ConsumerCore, partitions: list[TopicPartition], spec: OffsetSpec
) -> dict[TopicPartition, int]:
    found = await consumer.offsets_for(dict.fromkeys(partitions, spec))
    return {partition: each.offset for partition, each in found.items()}


async def _begin_at(
    consumer: ConsumerCore, partitions: list[TopicPartition], start: _Start
) -> dict[TopicPartition, int]:
    """Offsets to seek to, of the partitions that need one."""
    if isinstance(start.offset, int):
        return await _within(consumer, partitions, start.offset)
    if start.since_ms is None:
        return {}
    found = await _offsets(consumer, partitions, start.since_ms)
    if any(offset < 0 for offset in found.values()):
        # Nothing is that late: only what comes from now on.
        ends = await _offsets(consumer, partitions, LATEST)
        found = {each: offset if offset >= 0 else ends[each] for each, offset in found.items()}
    return found


async def _within(
    consumer: ConsumerCore, partitions: list[TopicPartition], offset: int
) -> dict[TopicPartition, int]:
    """The offset in each partition, or the nearest that it has; which one that is, is said."""
    starts = await _offsets(consumer, partitions, EARLIEST)
    ends = await _offsets(consumer, partitions, LATEST)
    found = {each: max(starts[each], min(offset, ends[each])) for each in partitions}
    for each, place in found.items():
        if place < offset:
            warn(f"{each} ends at offset {place}: there is no offset {offset} yet")
        elif place > offset:
            warn(f"{each} begins at offset {place}: offset {offset} is no longer there")
    return found


class _Beginning:
    """Seeks to where the command begins, when partitions are assigned."""

    def __init__(self, start: _Start, offsets: Mapping[TopicPartition, int]) -> None:
        self._start = start
        self._offsets = offsets
        self._consumer: ConsumerCore | None = None
        self._seen: set[TopicPartition] = set()

    def of(self, consumer: ConsumerCore) -> _Beginning:
        self._consumer = consumer
        return self

    async def on_assigned(self, partitions: list[TopicPartition]) -> None:
        consumer = self._consumer
        assert consumer is not None
        for partition in partitions:
            if partition in self._seen:
                continue
            self._seen.add(partition)
            if partition in self._offsets:
                await consumer.seek(partition, self._offsets[partition])
            elif self._start.offset == EARLIEST:
                await consumer.seek_to_beginning([partition])
            elif self._start.offset == LATEST:
                await consumer.seek_to_end([partition])

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        """What was printed is committed by itself."""

    async def on_lost(self, partitions: list[TopicPartition]) -> None:
        """Others print it from now on."""


async def _print_all(
    wanted: Wanted,
    consumer: ConsumerCore,
    ends: Mapping[TopicPartition, int] | None,
    timeout_ms: int,
) -> None:
    left = wanted.max_records
    silent_ms = 0
    while left != 0 and not _is_done(consumer, ends):
        limit = POLL_RECORDS if left is None else min(left, POLL_RECORDS)
        records = await consumer.poll(timeout_ms=POLL_MS, max_records=limit)
        silent_ms = 0 if records else silent_ms + POLL_MS
        if ends is not None and silent_ms >= timeout_ms:
            _complain(wanted, consumer, ends, timeout_ms)
        left = left if left is None else left - len(records)
        lines = [
            wanted.line(record)
            for record in records
            if ends is None or record.offset < ends[TopicPartition(record.topic, record.partition)]
        ]
        sys.stdout.buffer.write(b"".join(lines))
        sys.stdout.buffer.flush()


async def settle(consumer: ConsumerCore) -> None:
    """Before the end: know the positions of all partitions, those of which nothing came too.

    What has none is not committed, so the group's lag would not count it, and whoever comes next
    would begin there as its own settings say.
    """
    await asyncio.gather(
        *(consumer.position(each, timeout_ms=SETTLE_MS) for each in consumer.assignment()),
        return_exceptions=True,
    )


def _is_done(consumer: ConsumerCore, ends: Mapping[TopicPartition, int] | None) -> bool:
    """Whether all that was there at the start, and is ours, was read."""
    mine = consumer.assignment()
    if ends is None or not mine:
        return False
    positions = consumer.taker.positions()
    return all(each in positions and positions[each][0] >= ends.get(each, 0) for each in mine)


def _complain(
    wanted: Wanted, consumer: ConsumerCore, ends: Mapping[TopicPartition, int], timeout_ms: int
) -> None:
    """Nothing came for so long, although there is something."""
    if not consumer.assignment():
        what = f"group {wanted.group} gave this member nothing"
        raise Unreachable(
            f"{wanted.topic}: {what} within {timeout_ms} ms; {consumer.group_trouble}"
        )
    positions = consumer.taker.positions()
    trouble = consumer.trouble()
    for partition in sorted(consumer.assignment()):
        if positions.get(partition, (-1, -1))[0] < ends.get(partition, 0):
            why = trouble.get(partition, "its leader sends nothing")
            raise Unreachable(f"{partition}: nothing came within {timeout_ms} ms: {why}")


class _Paint(NamedTuple):
    """How the parts of a line begin and end on a terminal."""

    dim: str = ""
    key: str = ""
    header: str = ""
    end: str = ""


_PLAIN: Final = _Paint()
_PAINTED: Final = _Paint(dim="\x1b[2m", key="\x1b[36m", header="\x1b[33m", end="\x1b[0m")


def _pretty(record: ConsumerRecord, paint: _Paint) -> str:
    """One record for people; nothing in it can do anything to the terminal."""
    time = formatting.iso_time(record.timestamp_ms)
    parts = [f"{paint.dim}{time} {record.partition}:{record.offset}{paint.end}"]
    if record.key is not None:
        parts.append(f"{paint.key}{formatting.data(record.key, full=True)}{paint.end}")
    value = formatting.data(record.value, full=True)
    parts.append(value if record.value is not None else f"{paint.dim}{value}{paint.end}")
    for name, content in record.headers:
        shown = f"{formatting.data(name.encode(), full=True)}={formatting.data(content, full=True)}"
        parts.append(f"{paint.header}{shown}{paint.end}")
    return "  ".join(parts)


def _json(record: ConsumerRecord) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
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
