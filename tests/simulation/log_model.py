"""What a partition log must answer: lists in memory, no files, no caches, no cleverness.

The model also knows what it cannot know. An operation that a crash interrupted may have happened
in part, and a power loss may take back what was not synced; `Outcomes` says how far, and `reopened`
takes over what the log then shows, once it is among the outcomes. It knows nothing of segments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from tailrace.errors import (
    OutOfOrderSequence,
    ProducerFenced,
    TailraceError,
    UnknownProducer,
)
from tailrace.log.producers import BATCHES_PER_PRODUCER
from tailrace.record.header import (
    PREFIX_BYTES,
    SEQUENCE_MODULUS,
    BatchHeader,
    append_time,
    prefix_for,
    split,
)
from tailrace.record.view import BatchView

NO_EPOCH: Final = -1
UNKNOWN_END: Final = (-1, -1)


class Mismatch(AssertionError):
    """The log and the model disagree."""


class Row(NamedTuple):
    """A record; in a request the offset counts from the beginning of its batch."""

    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None


class Request(NamedTuple):
    """A batch as a producer sends it."""

    data: bytes
    header: BatchHeader
    rows: tuple[Row, ...]


class Stored(NamedTuple):
    """A batch as the log must give it back; `request` is None once it was compacted."""

    base: int
    end: int
    epoch: int
    data: bytes
    rows: tuple[Row, ...]
    max_time_ms: int
    request: Request | None = None


class Produced(NamedTuple):
    """What is remembered of a batch of an idempotent producer."""

    base: int
    end: int
    max_time_ms: int
    request: Request

    @property
    def header(self) -> BatchHeader:
        return self.request.header

    @property
    def next_sequence(self) -> int:
        return (self.header.last_sequence + 1) % SEQUENCE_MODULUS


class Verdict(NamedTuple):
    """What a producer must be told: exactly this, or with `loose` anything that does no harm."""

    duplicate: Produced | None = None
    error: type[TailraceError] | None = None
    loose: bool = False


FRESH: Final = Verdict()


@dataclass(slots=True)
class Outcomes:
    """What an operation that did not come to its end may have done."""

    appended: Sequence[Stored] = ()
    cut_to: int | None = None
    restart_at: int | None = None
    start_to: int = 0
    created: bool = False
    deleted: bool = False
    compacted_ms: int | None = None


def stored(request: Request, *, base: int, epoch: int, stamp_ms: int | None = None) -> Stored:
    """The batch in its place; `stamp_ms` is the time of the append, where the log sets it."""
    data, max_time_ms = request.data, request.header.max_timestamp_ms
    rows = tuple(row._replace(offset=base + row.offset) for row in request.rows)
    if stamp_ms is not None:
        data, max_time_ms = append_time(data, stamp_ms), stamp_ms
        rows = tuple(row._replace(time_ms=stamp_ms) for row in rows)
    data = prefix_for(base, len(data), epoch) + data[PREFIX_BYTES:]
    end = base + request.header.last_offset_delta + 1
    return Stored(base, end, epoch, data, rows, max_time_ms, request)


@dataclass(slots=True)
class PartitionModel:
    """One partition. `batches` also has those below the log start: a power loss may undo that."""

    batches: list[Stored] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)
    produced: list[Produced] = field(default_factory=list)
    exists: bool = False
    log_start: int = 0
    log_end: int = 0
    durable_start: int = 0
    durable_end: int = 0
    # An epoch that began at the log end and has no batch yet.
    assigned: int = NO_EPOCH
    # Producer state of batches below this offset may have been lost with their snapshots.
    known_from: int = 0
    # Below this offset compaction has left the last batch of each producer for sure, no other.
    thinned_to: int = 0
    compacted_to: int = 0
    pending: Outcomes | None = None
    # Something failed that must not be tried again: what was not durable may be gone.
    sync_failed: bool = False

    @property
    def is_there(self) -> bool:
        return self.exists and not (self.pending is not None and self.pending.deleted)

    # Changes.

    def append(self, batch: Stored) -> None:
        if batch.base != self.log_end:
            raise Mismatch(f"the batch at {batch.base} does not continue {self.log_end}")
        self.batches.append(batch)
        self.bases.append(batch.base)
        self.log_end = batch.end
        self.assigned = NO_EPOCH
        if batch.request is not None and batch.request.header.producer_id >= 0:
            self.produced.append(Produced(batch.base, batch.end, batch.max_time_ms, batch.request))

    def flushed(self, up_to: int) -> None:
        self.durable_end = max(self.durable_end, up_to)

    def cut_end(self, offset: int) -> int:
        """Where the log ends when the batch that holds `offset` goes."""
        at = self.index_of(offset)
        return self.bases[at] if at >= 0 and self.batches[at].end > offset else offset

    def truncated(self, offset: int) -> None:
        self._cut(self.cut_end(offset))
        self.assigned = NO_EPOCH
        if self.log_end < self.log_start:
            # The batch that held the log start went too.
            self.log_start = self.durable_start = self.log_end
        self._replayed()

    def restarted(self, offset: int) -> None:
        self.batches.clear()
        self.bases.clear()
        self.produced.clear()
        self.log_start = self.log_end = offset
        self.durable_start = self.durable_end = offset
        self.known_from = self.thinned_to = offset
        self.compacted_to = min(self.compacted_to, offset)
        self.assigned = NO_EPOCH

    def started_at(self, offset: int, *, durable: bool) -> None:
        self.log_start = offset
        if durable:
            self.durable_start = offset

    def created(self) -> None:
        self.restarted(0)
        self.exists = True
        self.pending = None
        self.sync_failed = False

    def compacted(self, content: bytes, *, up_to: int, now_ms: int, thorough: bool) -> None:
        """Take over what a compaction left, once it is right.

        `thorough`: it knew what was dirty, so below `up_to` no key may be there twice.
        """
        self._take_compacted(content, now_ms)
        self.compacted_to = max(self.compacted_to, up_to)
        rows = [row for batch in self.readable() for row in batch.rows if row.key is not None]
        keys = [row.key for row in rows if self.log_start <= row.offset < up_to]
        if thorough and len(keys) != len(set(keys)):
            raise Mismatch(f"keys are there twice below {up_to}: {keys}")

    # Answers.

    def index_of(self, offset: int) -> int:
        """The place of the last batch that begins at or below the offset; -1 for none."""
        return bisect_right(self.bases, offset) - 1

    def content(self) -> bytes:
        """All batches from the one that holds the log start on."""
        return b"".join(batch.data for batch in self.readable())

    def readable(self) -> list[Stored]:
        return self.batches[self._first() :]

    def at_time(self, timestamp_ms: int, limit: int) -> tuple[int, int] | None:
        for batch in self.readable():
            if batch.max_time_ms < timestamp_ms:
                continue
            for row in batch.rows:
                if row.time_ms >= timestamp_ms and row.offset >= self.log_start:
                    return (row.offset, row.time_ms) if row.offset < limit else None
        return None

    def epochs(self) -> list[tuple[int, int]]:
        """Each epoch that the log holds, and where it began; the first perhaps below the start."""
        found: list[tuple[int, int]] = []
        for batch in self.readable():
            if not found or batch.epoch != found[-1][0]:
                found.append((batch.epoch, batch.base))
        if self.assigned != NO_EPOCH:
            found.append((self.assigned, self.log_end))
        return found

    def check_epoch_end(self, epoch: int, answer: tuple[int, int]) -> None:
        """Older epochs than the log holds may have been forgotten; of the rest all is known."""
        epochs = self.epochs()
        if self.log_start == self.log_end and self.assigned == NO_EPOCH:
            good = answer[1] <= self.log_end
        elif epoch > epochs[-1][0]:
            good = answer == UNKNOWN_END
        elif epoch < epochs[0][0]:
            good = answer[0] <= epoch and answer[1] <= max(epochs[0][1], self.log_start)
        else:
            at = bisect_right(epochs, epoch, key=lambda entry: entry[0]) - 1
            last = at == len(epochs) - 1
            good = answer == ((epoch, self.log_end) if last else (epochs[at][0], epochs[at + 1][1]))
        if not good:
            raise Mismatch(f"epoch {epoch} is said to end at {answer}; known are {epochs}")

    def history(self, producer_id: int) -> list[Produced]:
        """The last batches of a producer in its current epoch, newest first."""
        found: list[Produced] = []
        for batch in reversed(self.produced):
            header = batch.header
            if header.producer_id != producer_id:
                continue
            if found and header.producer_epoch != found[0].header.producer_epoch:
                break
            found.append(batch)
        return found

    def verdict(self, request: Request) -> Verdict:
        """What the producer of this batch must be told."""
        header = request.header
        if header.producer_id < 0:
            return FRESH
        history = self.history(header.producer_id)
        if not history:
            return FRESH if header.base_sequence == 0 else Verdict(error=UnknownProducer)
        newest = history[0]
        if newest.base < self.known_from:
            return Verdict(_same(history, header), loose=True)
        epoch = newest.header.producer_epoch
        if header.producer_epoch < epoch:
            return Verdict(error=ProducerFenced)
        if header.producer_epoch > epoch:
            return FRESH if header.base_sequence == 0 else Verdict(error=OutOfOrderSequence)
        if header.base_sequence == newest.next_sequence:
            return FRESH
        twin = _same(history[:BATCHES_PER_PRODUCER], header)
        if twin is None:
            return Verdict(error=OutOfOrderSequence)
        forgettable = self.known_from if twin is newest else max(self.known_from, self.thinned_to)
        return Verdict(twin, loose=twin.base < forgettable)

    # After a crash.

    def reopened(
        self,
        *,
        start: int,
        end: int,
        content: bytes,
        latest_epoch: int,
        power_lost: bool,
        clean: bool,
    ) -> None:
        """Check what the log shows after it was opened, and go on from there."""
        pending = self.pending or Outcomes()
        self.pending = None
        if start == end == pending.restart_at:
            # Not `restarted`: a snapshot may still tell of producers.
            self._cut(start)
            self.log_start = start
        else:
            self._check_start(start, pending, power_lost=power_lost)
            self._check_end(start, end, pending, power_lost=power_lost)
            self._take_over(start, end, content, pending)
        self.log_end = end
        if not clean:
            self.durable_start = start
        if power_lost or not clean:
            self._replayed()
            if latest_epoch != self.assigned:
                # It was not written to yet, and is known again from the next leader.
                self.assigned = NO_EPOCH
        self.sync_failed = False

    def _take_over(self, start: int, end: int, content: bytes, pending: Outcomes) -> None:
        for batch in pending.appended:
            if batch.base < end:
                self.append(batch)
        if end < self.log_end or start > self.log_end:
            self._cut(end)
        self.log_start = start
        if pending.compacted_ms is not None:
            self._take_compacted(content, pending.compacted_ms)
            self.thinned_to = end
        if self.content() != content:
            raise Mismatch(f"[{start}, {end}) is not what was appended")
        if start != end != self.batches[-1].end:
            raise Mismatch(f"the log ends at {end}, in the middle of a batch")

    def _check_start(self, start: int, pending: Outcomes, *, power_lost: bool) -> None:
        lowest = self.durable_start if power_lost else self.log_start
        highest = max(self.log_start, pending.start_to)
        if not lowest <= start <= highest:
            raise Mismatch(f"the log starts at {start}, not within [{lowest}, {highest}]")

    def _check_end(self, start: int, end: int, pending: Outcomes, *, power_lost: bool) -> None:
        lowest = self.log_end
        if power_lost or self.sync_failed:
            lowest = min(lowest, self.durable_end)
        if pending.cut_to is not None:
            lowest = min(lowest, self.cut_end(pending.cut_to))
        if pending.restart_at is not None:
            lowest = 0
        highest = pending.appended[-1].end if pending.appended else self.log_end
        highest = max(highest, start)
        if not lowest <= end <= highest:
            raise Mismatch(f"the log ends at {end}, not within [{lowest}, {highest}]")

    # Compaction.

    def _take_compacted(self, content: bytes, now_ms: int) -> None:
        old = self.readable()
        known = {batch.base: batch for batch in old}
        new = [
            _found_batch(content[position : position + header.length], header, known)
            for position, header in split(content)
        ]
        _check_compacted(old, new, log_start=self.log_start, now_ms=now_ms)
        epochs = self.epochs()
        if new:
            del self.batches[self._first() :]
            while self.batches and self.batches[-1].end > new[0].base:
                self.batches.pop()
            self.batches += new
            self.bases = [batch.base for batch in self.batches]
        after = self.epochs()
        if after[1:] != epochs[1:] or [each[0] for each in after] != [each[0] for each in epochs]:
            raise Mismatch(f"compaction changed the epochs {epochs} to {after}")

    # The parts of the above.

    def _first(self) -> int:
        at = self.index_of(self.log_start)
        if at < 0 or self.batches[at].end <= self.log_start:
            return at + 1
        return at

    def _cut(self, end: int) -> None:
        """Forget the batches that reach beyond the end."""
        while self.batches and self.batches[-1].end > end:
            self.batches.pop()
            self.bases.pop()
        while self.produced and self.produced[-1].end > end:
            self.produced.pop()
        self.log_end = end
        self.durable_end = min(self.durable_end, end)
        if end < max(self.compacted_to, self.thinned_to):
            # The batch that compaction left of a producer may be among those that went.
            self.known_from = max(self.known_from, end)
        self.compacted_to = min(self.compacted_to, end)

    def _replayed(self) -> None:
        """The producer states were made anew, from a snapshot or from the log alone."""
        self.known_from = max(self.known_from, self.log_start)
        self.thinned_to = max(self.thinned_to, self.compacted_to)


def _same(history: Sequence[Produced], header: BatchHeader) -> Produced | None:
    """The batch that this is a retry of."""
    for batch in history:
        known = batch.header
        if (known.producer_epoch, known.base_sequence, known.record_count) == (
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
        ):
            return batch
    return None


def _found_batch(data: bytes, header: BatchHeader, known: dict[int, Stored]) -> Stored:
    """The batch that the model has already, or what is read from the bytes."""
    before = known.get(header.base_offset)
    if before is not None and before.data == data:
        return before
    view = BatchView(data)
    view.verify()
    rows = tuple(Row(r.offset, r.timestamp_ms, r.key, r.value) for r in view.records())
    return Stored(
        header.base_offset,
        header.next_offset,
        header.leader_epoch,
        data,
        rows,
        header.max_timestamp_ms,
    )


def _check_compacted(
    old: Iterable[Stored], new: Sequence[Stored], *, log_start: int, now_ms: int
) -> None:
    """What is there was there; what is gone was superseded, or a tombstone whose time had come."""
    for before, after in pairwise(new):
        if before.end != after.base:
            raise Mismatch(f"compaction left a gap from {before.end} to {after.base}")
    left = {row.offset: row for batch in new for row in batch.rows if row.offset >= log_start}
    were = [(row, batch) for batch in old for row in batch.rows if row.offset >= log_start]
    newest = {row.key: row.offset for row, _ in were}
    for row, batch in were:
        found = left.pop(row.offset, None)
        if found is None and not _may_go(row, batch, newest, now_ms):
            raise Mismatch(f"compaction lost {row}")
        if found is not None and found != row:
            raise Mismatch(f"compaction made {found} of {row}")
    if left:
        raise Mismatch(f"compaction made up {left}")


def _may_go(row: Row, batch: Stored, newest: dict[bytes | None, int], now_ms: int) -> bool:
    if row.key is None:
        return False
    if newest[row.key] > row.offset:
        return True
    horizon_ms = BatchView(batch.data).header.delete_horizon_ms
    return row.value is None and 0 <= horizon_ms <= now_ms
