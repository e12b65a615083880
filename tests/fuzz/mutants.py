"""Batches that are good by their checksums and bent inside, and every reader to try them on.

A mutant starts from a good batch that a client could send; some of its numbers or bytes are
changed, and sizes and checksums are made to match again. `read_by_all` reads a batch in each way in
which a program can get at it: rows, Arrow batches, records of a view, the columns for Spark, and
what compaction asks of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from struct import error as StructError  # noqa: N812 - it is a class, named like a module.
from struct import pack_into
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fuzz.batches import attacks, resealed, reshaped, samples
from tailrace.client.fetch_plan import Fetched
from tailrace.client.records import rows_of, table_of
from tailrace.errors import CorruptBatch, InvariantViolation, TailraceError
from tailrace.log.cleaning.survivors import KeyMap, kept_rows, row_bytes, tombstones
from tailrace.model import TopicPartition
from tailrace.record.body import Array
from tailrace.record.build import BatchBuilder
from tailrace.record.codec import Compression
from tailrace.record.header import HEADER_BYTES, BatchHeader, assemble, read_header
from tailrace.record.view import BatchView
from tailrace_spark import columns as spark_columns
from tailrace_spark.layout import Layout
from tailrace_spark.offsets import ReadRange

PARTITION = TopicPartition("orders", 0)
SMALL = (0, 1, -1, 2, 7, 8, 63, 64, 127, 128, 255, 256)
LARGE = (2**15, 2**31 - 1, -(2**31), 2**32 - 1, 2**40, 2**62, 2**63 - 1, -(2**63))
LAYOUTS = (
    Layout(("key", "value", "topic", "partition", "offset", "timestamp", "headers"), frozenset()),
    Layout(("value", "offset"), frozenset()),
)


@cache
def seeds() -> tuple[bytes, ...]:
    """Batches that a client could send, and the hostile ones that are known."""
    found = [
        each
        for each in samples().values()
        if not (header := read_header(each)).is_compacted and not header.is_control
    ]
    for codec in Compression:
        for rows in (1, 2, 33, 200):
            for keys in (False, True):
                builder = BatchBuilder(codec)
                for row in range(rows):
                    key = b"k%d" % row if keys else None
                    builder.append(b"value %d" % row, key, 1_700_000_000_000 + row % 7)
                found.append(builder.build(producer_id=9, producer_epoch=0, base_sequence=0))
    found += [data for data, _ in attacks().values()]
    return tuple(found)


@cache
def anonymous_seeds() -> tuple[bytes, ...]:
    """The same without producer ids: no leader refuses them for their sequences."""
    found = []
    for data in seeds():
        try:
            header = read_header(data)
            nobody = header._replace(producer_id=-1, producer_epoch=-1, base_sequence=-1)
            found.append(assemble(nobody, data[HEADER_BYTES : header.length - header.padding]))
        except (ValueError, TailraceError, StructError):
            found.append(data)
    return tuple(found)


class Mutant(NamedTuple):
    """A batch whose checksums match, whatever else is true of it, and what was done to it."""

    kind: str
    data: bytes


def mutant(rng: random.Random) -> bytes:
    """One batch whose checksums match, whatever else is true of it."""
    return named_mutant(rng, seeds()).data


def named_mutant(rng: random.Random, pool: Sequence[bytes]) -> Mutant:
    """One mutant of a batch of the pool."""
    data = rng.choice(pool)
    roll = rng.random()
    if roll < 0.1:
        return Mutant("header lies", _with_header(data, rng))
    if roll < 0.25:
        is_anywhere = rng.random() < 0.3
        kind = "any bytes bent" if is_anywhere else "stored body bent"
        return Mutant(kind, resealed(_bent(data, rng, first=0 if is_anywhere else HEADER_BYTES)))
    kind = "body bent"
    if rng.random() < 0.05:
        kind, data = "cut, body bent", _cut(data, rng)
    return Mutant(kind, reshaped(_bent(_unpacked(data), rng, first=HEADER_BYTES)))


def _unpacked(data: bytes) -> bytes:
    """The batch with its body as it is before compression: what is bent is what readers see."""
    try:
        view = BatchView(data)
        body = view._body(1 << 20)
    except CorruptBatch:
        return data
    return data[:HEADER_BYTES] + body.to_pybytes()


def _cut(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(HEADER_BYTES, len(data))
    return data[:at] + (b"" if rng.random() < 0.5 else data[at + rng.randrange(64) :])


def _bent(data: bytes, rng: random.Random, *, first: int) -> bytes:
    """Overwrite a few aligned numbers: most of a batch is such numbers."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        size, code = rng.choice(((1, "b"), (2, "<h"), (4, "<i"), (4, "<i"), (8, "<q")))
        if len(out) - size <= first:
            return bytes(out)
        at = rng.randrange(first, len(out) - size + 1) // size * size
        top = 2 ** (8 * size - 1)
        number = rng.choice((*SMALL, *LARGE, len(out), len(out) - at, rng.randrange(-64, 64)))
        if rng.random() < 0.4:
            number += int.from_bytes(out[at : at + size], "little", signed=True)
        pack_into(code, out, at, (number + top) % (2 * top) - top)
    return bytes(out)


def _with_header(data: bytes, rng: random.Random) -> bytes:
    """A header that lies about a body that is good."""
    try:
        header = read_header(data)
    except CorruptBatch:
        return data
    stored = data[HEADER_BYTES : header.length - header.padding]
    names = ("attributes", "first_timestamp_ms", "max_timestamp_ms", "record_count", "body_bytes")
    name = rng.choice(names)
    changed = getattr(header, name) + rng.choice((1, -1, 8, -8, 64, 128, 2**20, 2**62))
    lie: BatchHeader = header._replace(**{name: changed})
    if name == "record_count":
        lie = lie._replace(last_offset_delta=changed - 1)
    try:
        return assemble(lie, stored)
    except (ValueError, TailraceError, StructError):
        # No header can say so.
        return data


def read_by_all(data: bytes) -> int:
    """Read a stored batch with every reader; gives its rows. Raises what a reader raises."""
    header = read_header(data)
    rows, problem = rows_of(_fetched(data), PARTITION, header.base_offset)
    if problem is not None:
        raise problem
    count = len(rows)
    middle = header.base_offset + count // 2
    rows_of(_fetched(data), PARTITION, middle)
    for headers in (False, True):
        table = table_of(_fetched(data), PARTITION, header.base_offset, headers=headers)
        _compare("batches()", count, table)
        if table is not None:
            table.validate(full=True)
            table.to_pylist()
        table_of(_fetched(data), PARTITION, middle, headers=headers)
    records = list(BatchView(data).records())
    if len(records) != count or [tuple(each)[2:] for each in rows] != [tuple(e) for e in records]:
        raise InvariantViolation("rows and records of a view are not the same")
    _spark(data, header, count)
    _compact(data, header)
    return count


def _fetched(data: bytes) -> Fetched:
    return Fetched(read_header(data), data)


def _spark(data: bytes, header: BatchHeader, count: int) -> None:
    topic, number = PARTITION
    whole = ReadRange(
        topic=topic,
        topic_id="id",
        partition=number,
        start=header.base_offset,
        end=header.next_offset,
    )
    for layout in LAYOUTS:
        found = spark_columns.rows_of([spark_columns.Part(whole, BatchView(data))], layout)
        _compare("Spark", count, found)
        if found is not None:
            found.validate(full=True)
            found.to_pylist()


def _compact(data: bytes, header: BatchHeader) -> None:
    """What compaction asks of the columns of a batch."""
    columns = BatchView(data).record_batch()
    if not columns.num_rows:
        return
    keys: Array = columns.column("key")
    offsets = np.arange(header.base_offset, header.base_offset + columns.num_rows)
    key_map = KeyMap(limit_bytes=1 << 20)
    key_map.offer(keys, offsets)
    column, last = pa.chunked_array([keys]), key_map.last_offsets()
    kept_rows(column, offsets, last, dirty_from=0, covered_to=header.next_offset)
    tombstones(column, pa.chunked_array([columns.column("value")]))
    if row_bytes(columns).min() < 0:
        raise InvariantViolation("compaction finds rows of less than nothing")


def _compare(who: str, count: int, found: pa.RecordBatch | None) -> None:
    rows: Sequence[object] | int = 0 if found is None else found.num_rows
    if rows != count:
        raise InvariantViolation(f"{who} finds {rows} rows instead of {count}")
