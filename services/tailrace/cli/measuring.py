"""What `tailrace perf` does: a load of made-up records into a topic, or out of it, and how fast.

A line each second says how it goes, the last one how it went. Latency is from the call that hands
a single record over to its acknowledgement; of many a part is looked at, so that looking at them
is not what is measured. All records have the same random bytes, which do not compress.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import typer

from tailrace.cli.asking import Asking
from tailrace.cli.connecting import Connection, connection, partitions_of, run
from tailrace.cli.formatting import counted, size
from tailrace.cli.interruption import NOT_KNOWN, break_off
from tailrace.cli.output import print_json, warn
from tailrace.cli.patience import telling_why
from tailrace.client.consumer import ConsumerCore
from tailrace.client.consumer_settings import ConsumerSettings
from tailrace.client.delivery import BatchDelivery
from tailrace.client.producer import ProducerCore
from tailrace.client.settings import REQUEST_BYTES_MAX, ProducerSettings
from tailrace.clock import Clock
from tailrace.errors import ClientClosed
from tailrace.model import TopicPartition

REPORT_MS: Final = 1_000
POLL_MS: Final = 200
POLL_RECORDS: Final = 10_000
# Latencies that are kept, of all records: each so-and-so-many-th is looked at.
LATENCIES_MAX: Final = 100_000
# Rows of one call with --columns, and their bytes at most.
COLUMN_ROWS: Final = 10_000
COLUMN_BYTES: Final = 4 << 20
# With --rate: a pause shorter than this is not worth it.
PAUSE_MS_MIN: Final = 1
# A topic of which nothing comes any more has been read.
SILENCE_MS: Final = 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is to be written."""

    topic: str
    records: int
    size: int
    # Records a second; 0: as fast as it goes.
    rate: int = 0
    columns: bool = False
    keys: int = 0


@dataclass(slots=True)
class Speed:
    """Records and bytes over time, and latencies. Pure; times in ms of any clock."""

    begun_ms: int
    records: int = 0
    bytes: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    _told_ms: int = -1
    _told: tuple[int, int] = (0, 0)

    def add(self, records: int, size_bytes: int) -> None:
        self.records += records
        self.bytes += size_bytes

    def interval(self, now_ms: int) -> dict[str, Any] | None:
        """How it went since the last report, when it is time for another."""
        since_ms = self.begun_ms if self._told_ms < 0 else self._told_ms
        if now_ms - since_ms < REPORT_MS:
            return None
        records, size_bytes = self.records - self._told[0], self.bytes - self._told[1]
        self._told_ms, self._told = now_ms, (self.records, self.bytes)
        return _rates(records, size_bytes, now_ms - since_ms)

    def summary(self, now_ms: int) -> dict[str, Any]:
        """How all of it went."""
        found = _rates(self.records, self.bytes, now_ms - self.begun_ms)
        if self.latencies_ms:
            ordered = sorted(self.latencies_ms)
            for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)):
                at = min(int(part * len(ordered)), len(ordered) - 1)
                found[f"latency_ms_{name}"] = round(ordered[at], 2)
        return found


def _rates(records: int, size_bytes: int, took_ms: int) -> dict[str, Any]:
    seconds = max(took_ms, 1) / 1_000
    return {
        "records": records,
        "bytes": size_bytes,
        "seconds": round(took_ms / 1_000, 3),
        "records_per_second": round(records / seconds),
        "bytes_per_second": round(size_bytes / seconds),
    }


def sentence(rates: dict[str, Any]) -> str:
    """The same for people."""
    text = (
        f"{rates['records']:,} records in {rates['seconds']:.1f} s: "
        f"{rates['records_per_second']:,} records/s, {size(rates['bytes_per_second'])}/s"
    )
    if "latency_ms_p50" in rates:
        parts = (f"{name} {rates[f'latency_ms_{name}']:g}" for name in ("p50", "p95", "p99", "max"))
        text += f"; acknowledged after {', '.join(parts)} ms"
    return text


class _Teller:
    """Says how it goes: on stdout, as lines or JSON."""

    def __init__(self, speed: Speed, clock: Clock, *, as_json: bool) -> None:
        self._speed = speed
        self._clock = clock
        self._as_json = as_json

    def interval(self) -> None:
        rates = self._speed.interval(self._clock.monotonic_ms())
        if rates is not None:
            self._tell(rates, is_last=False)

    def end(self, at_ms: int | None = None) -> None:
        at_ms = self._clock.monotonic_ms() if at_ms is None else at_ms
        self._tell(self._speed.summary(at_ms), is_last=True)

    def _tell(self, rates: dict[str, Any], *, is_last: bool) -> None:
        if self._as_json:
            print_json({"type": "summary" if is_last else "interval", **rates})
        else:
            typer.echo(("in all: " if is_last else "") + sentence(rates))


def produce(load: Load, asking: Asking, *, acks: str, compression: str, linger_ms: int) -> None:
    settings = ProducerSettings(
        acks=acks,
        compression_type=None if compression == "none" else compression,
        enable_idempotence=acks in {"all", "-1"},
        linger_ms=linger_ms,
        max_request_size=REQUEST_BYTES_MAX,
        client_id="tailrace perf",
    )
    run(_produce(load, connection(asking.bootstrap, asking.timeout_s), settings, asking.as_json))


async def _produce(load: Load, to: Connection, settings: ProducerSettings, as_json: bool) -> None:
    producer = to.producer(settings)
    try:
        await partitions_of(producer, load.topic, to.timeout_ms)
        speed = Speed(to.clock.monotonic_ms())
        teller = _Teller(speed, to.clock, as_json=as_json)
        send = _send_columns if load.columns else _send_records
        async with telling_why(producer.trouble, to.clock, mark=lambda: speed.records):
            try:
                await send(load, producer, to, speed, teller)
                await producer.flush()
            except asyncio.CancelledError:
                try:
                    await break_off(producer)
                finally:
                    _leave_out(speed, producer.counts.failed.total(), load.size)
                    teller.end()
                    warn(f"interrupted: {_outcome(speed.records, producer.counts.failed)}")
                raise
        failed = producer.counts.failed
        _leave_out(speed, failed.total(), load.size)
        teller.end()
        if failed:
            codes = ", ".join(sorted(failed))
            warn(f"{counted(failed.total(), 'record')} not acknowledged: {codes}")
            raise typer.Exit(1)
    finally:
        await producer.close()


def _outcome(acknowledged: int, failed: Counter[str]) -> str:
    """What became of all that was handed over; what was given up with the producer is not known."""
    text = f"{counted(acknowledged, 'record')} acknowledged"
    if unknown := failed[ClientClosed.code]:
        text += f", {unknown:,} {NOT_KNOWN}"
    if refused := failed.total() - unknown:
        codes = ", ".join(sorted(each for each in failed if each != ClientClosed.code))
        text += f", {refused:,} not: {codes}"
    return text


def _leave_out(speed: Speed, records: int, size_bytes: int) -> None:
    """What was handed over and given up later is no part of what was written."""
    speed.add(-records, -records * size_bytes)


async def _send_records(
    load: Load, producer: ProducerCore, to: Connection, speed: Speed, teller: _Teller
) -> None:
    value, pace = to.rng.randbytes(load.size), _Pace(load.rate, to.clock)
    every = max(load.records // LATENCIES_MAX, 1)
    loop = asyncio.get_running_loop()

    def looked_at(sent_s: float) -> Callable[[Any, Any], None]:
        def acknowledged(_: Any, error: BaseException | None) -> None:
            if error is None:
                speed.latencies_ms.append((loop.time() - sent_s) * 1_000)

        return acknowledged

    for number in range(load.records):
        callback = None if number % every else looked_at(loop.time())
        key = b"%d" % (number % load.keys) if load.keys else None
        delivery = await producer.send(load.topic, value, key, callback=callback)
        speed.add(1, load.size)
        if not number % every:
            teller.interval()
            if delivery.done():
                # What went wrong with one goes wrong with all.
                delivery.result()
        await pace.keep(number + 1)


async def _send_columns(
    load: Load, producer: ProducerCore, to: Connection, speed: Speed, teller: _Teller
) -> None:
    rows = max(min(COLUMN_ROWS, COLUMN_BYTES // max(load.size, 1)), 1)
    value, pace = to.rng.randbytes(load.size), _Pace(load.rate, to.clock)
    last: BatchDelivery | None = None
    for first in range(0, load.records, rows):
        count = min(rows, load.records - first)
        columns: dict[str, Any] = {"value": pa.array([value] * count, pa.binary())}
        if load.keys:
            numbers = range(first, first + count)
            columns["key"] = [b"%d" % (number % load.keys) for number in numbers]
        delivery = await producer.send_batch(load.topic, columns)
        speed.add(count, count * load.size)
        teller.interval()
        if last is None or last.done():
            if last is not None:
                # What went wrong with one goes wrong with all.
                last.result()
            last = delivery
        await pace.keep(first + count)


class _Pace:
    """Keeps to a number of records a second."""

    def __init__(self, rate: int, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._begun_ms = clock.monotonic_ms()

    async def keep(self, sent: int) -> None:
        if not self._rate:
            return
        due_ms = self._begun_ms + sent * 1_000 / self._rate
        if (early_ms := due_ms - self._clock.monotonic_ms()) >= PAUSE_MS_MIN:
            await asyncio.sleep(early_ms / 1_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is to be read, and how."""

    topic: str
    # 0: all that is there.
    records: int = 0
    group: str | None = None
    arrow: bool = False


def consume(reading: Reading, asking: Asking) -> None:
    run(_consume(reading, connection(asking.bootstrap, asking.timeout_s), asking.as_json))


async def _consume(reading: Reading, to: Connection, as_json: bool) -> None:
    settings = ConsumerSettings(
        group_id=reading.group,
        auto_offset_reset="earliest",
        max_poll_records=POLL_RECORDS,
        default_api_timeout_ms=to.timeout_ms,
        client_id="tailrace perf",
    )
    consumer = to.consumer(settings)
    try:
        count = await partitions_of(consumer, reading.topic)
        if reading.group:
            await consumer.subscribe([reading.topic])
        else:
            await consumer.assign([TopicPartition(reading.topic, each) for each in range(count)])
        speed = Speed(to.clock.monotonic_ms())
        teller = _Teller(speed, to.clock, as_json=as_json)
        # The silence at the end is no part of the reading.
        teller.end(await _read(reading, consumer, to, speed, teller))
    finally:
        await consumer.close()


async def _read(
    reading: Reading, consumer: ConsumerCore, to: Connection, speed: Speed, teller: _Teller
) -> int:
    """Read until there is enough or nothing more; when the last records came."""
    take = _take_columns if reading.arrow else _take_records
    last_ms = to.clock.monotonic_ms()
    while not reading.records or speed.records < reading.records:
        asked_ms = to.clock.monotonic_ms()
        records, size_bytes = await take(consumer)
        if records:
            if not speed.records:
                # How long it took to join a group, or to connect, is another question.
                speed.begun_ms = asked_ms
            speed.add(records, size_bytes)
            last_ms = to.clock.monotonic_ms()
            teller.interval()
        elif asked_ms - last_ms >= (SILENCE_MS if speed.records else to.timeout_ms):
            break
    return last_ms


async def _take_records(consumer: ConsumerCore) -> tuple[int, int]:
    found = await consumer.poll(timeout_ms=POLL_MS, max_records=POLL_RECORDS)
    return len(found), sum(len(each.value or b"") + len(each.key or b"") for each in found)


async def _take_columns(consumer: ConsumerCore) -> tuple[int, int]:
    batch = await consumer.next_batch(timeout_ms=POLL_MS)
    if batch is None:
        return 0, 0
    return batch.num_rows, sum(batch.column(each).nbytes for each in ("key", "value"))
