"""Rows of a DataFrame on their way into partitions: named, placed, compared. No I/O.

Where a row goes depends on the row and the task alone, never on what came before it: a task that
runs again, with its rows in another order, sends each row to the same partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.client.partitioner import by_key
from tailrace.model import TopicPartition
from tailrace.record.view import Record
from tailrace_spark.layout import WrongRows

DIGEST_BYTES: Final = 16


class Piece(NamedTuple):
    """Rows that go to one partition, in order, with the columns that a producer takes."""

    partition: TopicPartition
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Placement:
    """Where rows of one task go."""

    # The topic of rows that do not name one.
    topic: str
    # How many partitions a topic has.
    partitions: Callable[[str], int]
    # What rows without a key and a partition of their own are spread by: one number for a task.
    turn: int

    def pieces(self, batch: pa.RecordBatch) -> Iterator[Piece]:
        """The rows of each partition, in the order in which they came."""
        for topic, rows in self._by_topic(batch):
            count = self.partitions(topic)
            places = self._places(topic, rows, count)
            sent = _sendable(rows)
            for place in sorted(pc.unique(places).to_pylist()):
                mask = pc.equal(places, pa.scalar(place, pa.int64()))
                yield Piece(TopicPartition(topic, place), sent.filter(mask))

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if not batch.num_rows:
            return
        if "topic" not in batch.schema.names:
            if not self.topic:
                raise WrongRows("topic: give the option topic, or a column topic")
            yield self.topic, batch
            return
        names: Any = batch.column("topic").cast(pa.utf8())
        if names.null_count:
            if not self.topic:
                raise WrongRows("topic: a row has none, and the option topic gives none either")
            names = names.fill_null(self.topic)
        distinct = pc.unique(names).to_pylist()
        for name in sorted(distinct):
            mask = pc.equal(names, pa.scalar(name, pa.utf8()))
            yield name, batch if len(distinct) == 1 else batch.filter(mask)

    def _places(self, topic: str, rows: pa.RecordBatch, count: int) -> Any:
        keys: Any = None
        if "key" in rows.schema.names:
            keys = _binary(rows.column("key"))
        places = _by_key(topic, keys, count, self.turn % count, rows.num_rows)
        if "partition" not in rows.schema.names:
            return places
        given: Any = rows.column("partition").cast(pa.int64())
        places = pc.if_else(pc.is_valid(given), given, places)
        low, high = pc.min(places).as_py(), pc.max(places).as_py()
        if low < 0 or high >= count:
            wrong = low if low < 0 else high
            raise WrongRows(f"partition: {topic} has partitions 0 to {count - 1}, not {wrong}")
        return places


class Ledger:
    """Rows that a log holds and this task has not met yet: what another attempt wrote of them."""

    def __init__(self, *, timed: bool) -> None:
        self._timed = timed
        self._others: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return self._others.total()

    def add(self, records: Sequence[Record]) -> None:
        for each in records:
            time_ms = each.timestamp_ms if self._timed else None
            self._others[_digest(each.key, each.value, each.headers, time_ms)] += 1

    def unwritten(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that the log does not hold; those that it does are struck off the ledger."""
        if not self._others:
            return rows
        mask = [not self._strike(digest) for digest in _digests(rows, timed=self._timed)]
        return rows.filter(pa.array(mask, pa.bool_()))

    def _strike(self, digest: bytes) -> bool:
        if not self._others[digest]:
            del self._others[digest]
            return False
        self._others[digest] -= 1
        if not self._others[digest]:
            del self._others[digest]
        return True


def _by_key(topic: str, keys: Any, count: int, keyless: int, rows: int) -> Any:
    if keys is None:
        return pa.repeat(pa.scalar(keyless, pa.int64()), rows)
    coded = keys.dictionary_encode(null_encoding="encode")
    places = [
        keyless if key is None else by_key(topic, key, count)
        for key in coded.dictionary.to_pylist()
    ]
    return pa.array(places, pa.int64()).take(coded.indices)


def _sendable(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of a record, times in whole milliseconds."""
    names: list[str] = []
    arrays: list[Any] = []
    for name in ("key", "value", "timestamp", "headers"):
        if name in rows.schema.names:
            column: Any = rows.column(name)
            if name == "timestamp":
                column = _in_ms(column)
            elif name == "headers":
                _check_headers(column)
            else:
                column = _binary(column)
            names.append(name)
            arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _in_ms(column: Any) -> Any:
    if column.null_count:
        raise WrongRows("timestamp: a row has none; leave the column out for the time of writing")
    in_ms = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    numbers = in_ms.cast(pa.int64())
    if len(numbers) and pc.min(numbers).as_py() < 0:
        raise WrongRows(f"timestamp: {pc.min(in_ms)} is before 1970, which no record can be")
    return numbers


def _check_headers(column: Any) -> None:
    pairs = column.flatten()
    if pairs.null_count or pairs.field("key").null_count:
        raise WrongRows("headers: one is null or has a null key; only its value may be null")


def _binary(column: Any) -> Any:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _digests(rows: pa.RecordBatch, *, timed: bool) -> Iterator[bytes]:
    names = rows.schema.names
    nothing = [None] * rows.num_rows
    keys = rows.column("key").to_pylist() if "key" in names else nothing
    headers = rows.column("headers").to_pylist() if "headers" in names else nothing
    times = rows.column("timestamp").to_pylist() if timed else nothing
    for key, value, pairs, time_ms in zip(
        keys, rows.column("value").to_pylist(), headers, times, strict=True
    ):
        made = tuple((each["key"], each["value"]) for each in pairs or ())
        yield _digest(key, value, made, time_ms)


def _digest(key: Any, value: Any, headers: Any, time_ms: Any) -> bytes:
    """Equal for equal records; every part with its length, so that no two run together."""
    made = blake2b(digest_size=DIGEST_BYTES)
    parts: list[bytes | None] = [key, value]
    for name, each in headers:
        parts += [name.encode(), each]
    for part in parts:
        made.update(b"-" if part is None else b"%d:" % len(part))
        made.update(part or b"")
    made.update(repr(time_ms).encode())
    return made.digest()
