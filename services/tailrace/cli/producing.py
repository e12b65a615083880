"""What `tailrace produce` does: lines in, records out, and a word on how it went.

Input is read as it comes, in pieces; memory stays bounded by the producer's buffer.
A record that fails ends the command with that error, after all that were handed over are done.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console

from tailrace.cli.asking import TIMEOUT_S
from tailrace.cli.connecting import (
    WAIT_TOPIC_S,
    Connection,
    connection,
    partitions_of,
    run,
)
from tailrace.cli.formatting import counted, size
from tailrace.cli.interruption import NOT_KNOWN, break_off
from tailrace.cli.output import print_json, warn
from tailrace.cli.patience import telling_why
from tailrace.client.delivery import BatchDelivery, BatchMetadata
from tailrace.client.producer import ProducerCore
from tailrace.client.settings import REQUEST_BYTES_MAX, ProducerSettings
from tailrace.clock import Clock
from tailrace.errors import ClientClosed, InvalidConfig, TailraceError
from tailrace.record.build import HeaderPair
from tailrace.runtime import Tasks

READ_BYTES: Final = 1 << 20
LINE_BYTES_MAX: Final = 64 << 20
PROGRESS_S: Final = 0.5
# Shorter runs are over before anybody looks.
PROGRESS_AFTER_S: Final = 1.0
# What is acknowledged so soon after Ctrl-C is not worth a word of its own.
QUIET_MS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What is to be written."""

    topic: str
    value: str | None = None
    key: str | None = None
    headers: tuple[HeaderPair, ...] = ()
    file: Path | None = None
    key_separator: str | None = None
    partition: int | None = None


class Tally:
    """What was handed over, and what became of it so far."""

    def __init__(self) -> None:
        self.sent = 0
        self.bytes = 0
        self.acknowledged = 0
        # For each partition the first and the last offset.
        self.offsets: dict[int, tuple[int, int]] = {}
        self.problem: TailraceError | None = None
        self._open: deque[BatchDelivery] = deque()

    def handed_over(self, delivery: BatchDelivery, *, records: int, size_bytes: int) -> None:
        self.sent += records
        self.bytes += size_bytes
        self._open.append(delivery)

    def update(self) -> None:
        """Look at what has been answered since."""
        while self._open and self._open[0].done():
            try:
                batches = self._open.popleft().result()
            except TailraceError as error:
                self.problem = self.problem or error
                continue
            for batch in batches:
                self._acknowledged(batch)

    def outcome(self) -> str:
        """How it went, for when it went wrong."""
        done = f"{counted(self.acknowledged, 'record')} acknowledged"
        lost = self.sent - self.acknowledged
        if lost and isinstance(self.problem, ClientClosed):
            return f"{done}, {lost:,} {NOT_KNOWN}"
        return f"{done}, {lost:,} not" if lost else done

    def _acknowledged(self, batch: BatchMetadata) -> None:
        self.acknowledged += batch.records
        if batch.base_offset < 0:
            # With acks=0 nobody says where it went.
            return
        last = batch.base_offset + batch.records - 1
        known = self.offsets.get(batch.partition, (batch.base_offset, last))
        self.offsets[batch.partition] = (min(known[0], batch.base_offset), max(known[1], last))


def parse_headers(given: Iterable[str]) -> tuple[HeaderPair, ...]:
    """NAME=VALUE of the command line."""
    pairs: list[HeaderPair] = []
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InvalidConfig(f"--header {each!r} is not NAME=VALUE")
        pairs.append((name, value.encode()))
    return tuple(pairs)


def settings(
    *,
    acks: str,
    compression: str,
    name: str | None,
    timeout_s: float,
    wait_topic_s: float = WAIT_TOPIC_S,
) -> ProducerSettings:
    """Idempotent wherever that can be."""
    timeout_ms = int(timeout_s * 1000)
    return ProducerSettings(
        acks=acks,
        compression_type=None if compression == "none" else compression,
        enable_idempotence=acks in {"all", "-1"},
        name=name,
        delivery_timeout_ms=timeout_ms,
        max_block_ms=max(min(timeout_ms, 60_000), int(wait_topic_s * 1000)),
        unknown_topic_wait_ms=int(wait_topic_s * 1000),
        request_timeout_ms=min(timeout_ms, 30_000),
        # How large a record may be is then up to its topic.
        max_request_size=REQUEST_BYTES_MAX,
        client_id="tailrace produce",
    )


def produce(
    given: Input, *, bootstrap: str | None, settings: ProducerSettings, as_json: bool
) -> None:
    if given.value is not None and given.file is not None:
        raise InvalidConfig("give --value or --file, not both")
    if given.file is not None:
        _require_readable(given.file)
    tally = run(_produce(given, connection(bootstrap, TIMEOUT_S), settings, as_json=as_json))
    if tally.problem is not None:
        warn(tally.outcome())
        raise tally.problem


async def _produce(
    given: Input, to: Connection, settings: ProducerSettings, *, as_json: bool
) -> Tally:
    tally = Tally()
    producer = to.producer(settings)
    begun_ms = to.clock.monotonic_ms()
    progress = _Progress(tally, to.clock, begun_ms)
    # Whether anybody is there shows soon, however long a record may take.
    found_ms = max(min(to.timeout_ms, settings.max_block_ms), settings.unknown_topic_wait_ms)
    telling = telling_why(
        producer.trouble, to.clock, mark=lambda: tally.acknowledged, before=progress.end
    )
    try:
        async with telling:
            # Before anything is read: nobody should type lines for a topic that is not there.
            await partitions_of(producer, given.topic, found_ms)
            try:
                await _send_all(producer, given, tally, progress)
            except TailraceError as error:
                # What was handed over before is seen through, and counted.
                tally.problem = tally.problem or error
            await _flush(producer, tally, progress)
    except asyncio.CancelledError:
        progress.end()
        try:
            await break_off(producer, quiet_ms=QUIET_MS)
        finally:
            tally.update()
            warn(f"interrupted: {tally.outcome()}")
        raise
    finally:
        await _close(producer, tally, progress)
    _report(given, tally, to.clock.monotonic_ms() - begun_ms, as_json=as_json)
    return tally


async def _send_all(
    producer: ProducerCore, given: Input, tally: Tally, progress: _Progress
) -> None:
    """Hand over what is given, until it ends or something fails."""
    if given.value is not None:
        await _send(producer, given, [given.value.encode()], tally)
        return
    async for lines in _lines(given.file):
        await _send(producer, given, lines, tally)
        tally.update()
        if tally.problem is not None:
            return
        progress.show()


async def _close(producer: ProducerCore, tally: Tally, progress: _Progress) -> None:
    await producer.close()
    progress.end()
    tally.update()


async def _send(producer: ProducerCore, given: Input, lines: list[bytes], tally: Tally) -> None:
    """Hand over the lines that have come, as columns: no record is made of any single one."""
    columns: dict[str, Any] = {"value": lines}
    if given.key_separator:
        columns, problem = _split(lines, given.key_separator.encode(), tally.sent)
        lines = columns["value"]
        tally.problem = tally.problem or problem
    elif given.key is not None:
        columns["key"] = [given.key.encode()] * len(lines)
    if not lines:
        return
    if given.headers:
        entries = [{"key": name, "value": value} for name, value in given.headers]
        columns["headers"] = [entries] * len(lines)
    delivery = await producer.send_batch(given.topic, columns, partition=given.partition)
    tally.handed_over(delivery, records=len(lines), size_bytes=sum(map(len, lines)))


def _split(
    lines: list[bytes], separator: bytes, before: int
) -> tuple[dict[str, list[bytes]], InvalidConfig | None]:
    """Keys and values of the lines up to the first that has none, and what is wrong with that."""
    keys: list[bytes] = []
    values: list[bytes] = []
    for number, line in enumerate(lines, start=before + 1):
        key, found, value = line.partition(separator)
        if not found:
            problem = InvalidConfig(
                f"line {number} has no {separator.decode()!r} between key and value; "
                "nothing from there on was sent"
            )
            return {"key": keys, "value": values}, problem
        keys.append(key)
        values.append(value)
    return {"key": keys, "value": values}, None


async def _flush(producer: ProducerCore, tally: Tally, progress: _Progress) -> None:
    """Wait until all is acknowledged, and show meanwhile how it goes."""
    tasks = Tasks(lambda _, __: None)
    flushing = tasks.spawn("flush", producer.flush())
    try:
        while not flushing.done():
            await asyncio.wait([flushing], timeout=PROGRESS_S)
            tally.update()
            progress.show()
        flushing.result()
    finally:
        await tasks.close()


async def _lines(file: Path | None) -> AsyncIterator[list[bytes]]:
    """Lines as they come, without their ends; the last one may have none."""
    descriptor = sys.stdin.fileno() if file is None else os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    rest = b""
    try:
        while piece := await _read(descriptor):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                raise InvalidConfig(f"a line is longer than {LINE_BYTES_MAX} bytes")
            yield [line.removesuffix(b"\r") for line in lines]
        if rest:
            yield [rest]
    finally:
        if file is not None:
            os.close(descriptor)


def _require_readable(file: Path) -> None:
    """Said before a cluster is looked for: the same again would fail again."""
    try:
        if file.is_dir():
            raise InvalidConfig(f"--file {file} is a folder: name a file")
        # A pipe with a name would wait here for whoever writes into it.
        if file.is_file():
            file.open("rb").close()
        else:
            file.stat()
    except OSError as error:
        raise InvalidConfig(f"--file {file}: {error.strerror}") from None


async def _read(descriptor: int) -> bytes:
    """What is there, or will be; empty at the end.

    Only what can make one wait is waited for: a thread that waits for a terminal would keep the
    process from ending.
    """
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(descriptor):
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(descriptor)
    return os.read(descriptor, READ_BYTES)


class _Progress:
    """A line on the terminal that is written over and over."""

    def __init__(self, tally: Tally, clock: Clock, begun_ms: int) -> None:
        self._tally = tally
        self._clock = clock
        self._begun_ms = begun_ms
        self._shown_ms = begun_ms
        self._console = Console(stderr=True, highlight=False)
        self._is_shown = False

    def show(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if (
            not self._console.is_terminal
            or now_ms - self._begun_ms < PROGRESS_AFTER_S * 1000
            or now_ms - self._shown_ms < PROGRESS_S * 1000
        ):
            return
        self._shown_ms = now_ms
        self._is_shown = True
        waiting = self._tally.sent - self._tally.acknowledged
        rate = _rate(self._tally, now_ms - self._begun_ms)
        done = counted(self._tally.acknowledged, "record")
        line = f"{done} acknowledged, {rate}, {waiting:,} on the way"
        self._console.print(line, end="\x1b[K\r", soft_wrap=True)

    def end(self) -> None:
        if self._is_shown:
            self._console.print(end="\x1b[K")


def _report(given: Input, tally: Tally, took_ms: int, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": given.topic,
                "sent": tally.sent,
                "acknowledged": tally.acknowledged,
                "bytes": tally.bytes,
                "ms": took_ms,
                "partitions": {
                    str(each): {"first": first, "last": last}
                    for each, (first, last) in sorted(tally.offsets.items())
                },
            }
        )
        return
    if given.value is not None and tally.acknowledged:
        for partition, (offset, _) in tally.offsets.items():
            typer.echo(f"{given.topic}-{partition} offset {offset}")
        return
    if tally.problem is None:
        typer.echo(
            f"{counted(tally.acknowledged, 'record')} in {took_ms / 1000:.2f} s: "
            f"{_rate(tally, took_ms)}",
            err=True,
        )


def _rate(tally: Tally, took_ms: int) -> str:
    seconds = max(took_ms, 1) / 1000
    return f"{tally.acknowledged / seconds:,.0f} records/s, {size(int(tally.bytes / seconds))}/s"
