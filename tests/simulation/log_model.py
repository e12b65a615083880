"""What a partition log must answer: lists in memory, no files, no caches, no cleverness.

The model also knows what it cannot know. An operation that a crash interrupted may have happened
in part, and a power loss may take back what was not synced; `Outcomes` says how far, and `reopened`
takes over what the log then shows, once it is among the outcomes. It knows nothing of segments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    read_header,
)

NO_EPOCH: Final = -1
UNKNOWN_END: Final = (-1, -1)


class Mismatch(AssertionError):
    """The log and the model disagree."""


class Request(NamedTuple):
    """A batch as a producer sends it, and the time of each of its records."""

    data: bytes
    header: BatchHeader
    times_ms: tuple[int, ...]


class Stored(NamedTuple):
    """A batch as the log must give it back."""

    base: int
    end: int
    epoch: int
    data: bytes
    times_ms: tuple[int, ...]
    max_time_ms: int
    request: Request

    @property
    def producer_id(self) -> int:
        return self.request.header.producer_id


def stored(request: Request, *, base: int, epoch: int, stamp_ms: int | None = None) -> Stored:
    """The batch in its place; `stamp_ms` is the time of the append, where the log sets it."""
    data, header = request.data, request.header
    times_ms, max_time_ms = request.times_ms, header.max_timestamp_ms
    if stamp_ms is not None:
        data = append_time(data, stamp_ms)
        times_ms, max_time_ms = (stamp_ms,) * len(times_ms), stamp_ms
    data = prefix_for(base, len(data), epoch) + data[PREFIX_BYTES:]
    end = base + header.last_offset_delta + 1
    return Stored(base, end, epoch, data, times_ms, max_time_ms, request)


class Verdict(NamedTuple):
    """What a producer must be told: exactly this, or with `loose` anything that does no harm."""

    duplicate: Stored | None = None
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


@dataclass(slots=True)
class PartitionModel:
    """One partition. `batches` also has those below the log start: a power loss may undo that."""

    batches: list[Stored] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)
    exists: bool = False
    log_start: int = 0
    log_end: int = 0
    durable_start: int = 0
    durable_end: int = 0
    # An epoch that began at the log end and has no batch yet.
    assigned: int = NO_EPOCH
    # Producer state of batches below this offset may have been lost with their snapshots.
    known_from: int = 0
    # Producers that expired; what the log knows of them depends on when it was opened.
    retired: set[int] = field(default_factory=set)
    pending: Outcomes | None = None
    sync_failed: bool = False

    # Changes.

    def append(self, batch: Stored) -> None:
        if batch.base != self.log_end:
            raise Mismatch(f"the batch at {batch.base} does not continue {self.log_end}")
        self.batches.append(batch)
        self.bases.append(batch.base)
        self.log_end = batch.end
        self.assigned = NO_EPOCH

    def flushed(self, up_to: int) -> None:
        self.durable_end = max(self.durable_end, up_to)

    def cut_end(self, offset: int) -> int:
        """Where the log ends when the batch that holds `offset` goes."""
        at = self.index_of(offset)
        return self.bases[at] if 0 <= at and self.batches[at].end > offset else offset

    def truncated(self, offset: int) -> None:
        self._cut(self.cut_end(offset))
        self.assigned = NO_EPOCH
        if self.log_end < self.log_start:
            # The batch that held the log start went too.
            self.log_start = self.durable_start = self.log_end
        self.known_from = self.log_start

    def restarted(self, offset: int) -> None:
        self.batches.clear()
        self.bases.clear()
        self.log_start = self.log_end = offset
        self.durable_start = self.durable_end = offset
        self.known_from = offset
        self.assigned = NO_EPOCH

    def started_at(self, offset: int, *, durable: bool) -> None:
        self.log_start = offset
        if durable:
            self.durable_start = offset

    def created(self) -> None:
        self.restarted(0)
        self.exists = True
        self.retired.clear()
        self.pending = None
        self.sync_failed = False

    # Answers.

    def index_of(self, offset: int) -> int:
        """The place of the last batch that begins at or below the offset; -1 for none."""
        return bisect_right(self.bases, offset) - 1

    def content(self) -> bytes:
        """All batches from the one that holds the log start on."""
        return b"".join(batch.data for batch in self.batches[self._first() :])

    def readable(self) -> list[Stored]:
        return self.batches[self._first() :]

    def at_time(self, timestamp_ms: int, limit: int) -> tuple[int, int] | None:
        for batch in self.readable():
            if batch.max_time_ms < timestamp_ms:
                continue
            for offset, time_ms in zip(range(batch.base, batch.end), batch.times_ms, strict=True):
                if time_ms >= timestamp_ms and offset >= self.log_start:
                    return (offset, time_ms) if offset < limit else None
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
            good = answer == (
                (epoch, self.log_end) if last else (epochs[at][0], epochs[at + 1][1])
            )
        if not good:
            raise Mismatch(f"epoch {epoch} is said to end at {answer}; known are {epochs}")

    def history(self, producer_id: int) -> list[Stored]:
        """The last batches of a producer in its current epoch, newest first."""
        found: list[Stored] = []
        for batch in reversed(self.batches):
            if batch.producer_id != producer_id:
                continue
            if found and _producer_epoch(batch) != _producer_epoch(found[0]):
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
        if history[0].base < self.known_from:
            return Verdict(_same(history, header), loose=True)
        epoch = _producer_epoch(history[0])
        if header.producer_epoch < epoch:
            return Verdict(error=ProducerFenced)
        if header.producer_epoch > epoch:
            return FRESH if header.base_sequence == 0 else Verdict(error=OutOfOrderSequence)
        if header.base_sequence == next_sequence(history[0]):
            return FRESH
        twin = _same(history[:BATCHES_PER_PRODUCER], header)
        if twin is not None:
            return Verdict(twin, loose=twin.base < self.known_from)
        return Verdict(error=OutOfOrderSequence)

    # After a crash.

    def reopened(
        self, *, start: int, end: int, content: bytes, power_lost: bool, clean: bool
    ) -> None:
        """Check what the log shows after it was opened, and go on from there."""
        pending = self.pending or Outcomes()
        self.pending = None
        if start == end == pending.restart_at:
            self.restarted(start)
        else:
            self._check_start(start, pending, power_lost=power_lost)
            self._check_end(start, end, pending, power_lost=power_lost)
            for batch in pending.appended:
                if batch.base < end:
                    self.append(batch)
            if end < self.log_end or start > self.log_end:
                self._cut(end)
            self.log_start = start
            if self.content() != content:
                raise Mismatch(f"[{start}, {end}) is not what was appended")
            if start != end != self.batches[-1].end:
                raise Mismatch(f"the log ends at {end}, in the middle of a batch")
        self.log_end = end
        if not clean:
            # What was assigned and then not written to is known again from the next leader.
            self.assigned = NO_EPOCH
            self.durable_start = start
        elif power_lost:
            self.assigned = NO_EPOCH
        if power_lost or not clean:
            self.known_from = max(self.known_from, start)
        self.sync_failed = False

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
        self.log_end = end
        self.durable_end = min(self.durable_end, end)


def next_sequence(batch: Stored) -> int:
    return (batch.request.header.last_sequence + 1) % SEQUENCE_MODULUS


def request_of(data: bytes, times_ms: tuple[int, ...]) -> Request:
    return Request(data, read_header(data), times_ms)


def _producer_epoch(batch: Stored) -> int:
    return batch.request.header.producer_epoch


def _same(history: Sequence[Stored], header: BatchHeader) -> Stored | None:
    """The batch that this is a retry of."""
    for batch in history:
        known = batch.request.header
        if (known.producer_epoch, known.base_sequence, known.record_count) == (
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
        ):
            return batch
    return None
