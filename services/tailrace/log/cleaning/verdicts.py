"""What becomes of the rows of a chunk: which of them stay, and how they are handed on.

A `Verdict` says for each row of a chunk whether it stays; a `Stretch` gathers neighbouring batches
whose rows can be filtered and merged together, and hands what stays to the rewriter. Nothing here
reads a file or decides about a row.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from tailrace.errors import InvariantViolation
from tailrace.log.cleaning.chunks import Chunk, ReadBatch
from tailrace.log.cleaning.rewriting import (
    Rewriter,
    may_merge,
    rebuilt,
    whole,
    without_deltas,
)
from tailrace.log.cleaning.survivors import NO_HORIZON_MS, Mask, Offsets
from tailrace.record.header import BatchHeader


class Verdict:
    """Which rows of a chunk stay; batch `n` has the rows from `bounds[n]` to `bounds[n + 1]`."""

    __slots__ = ("_marked", "bounds", "horizons", "kept", "kept_counts", "offsets")

    def __init__(
        self, offsets: Offsets, kept: Mask, horizons: Offsets | None, bounds: list[int]
    ) -> None:
        self.offsets = offsets
        self.kept = kept
        self.horizons = horizons
        self.kept_counts = _counts(kept, bounds)
        self.bounds = bounds
        marked = None if horizons is None else horizons != NO_HORIZON_MS
        self._marked = None if marked is None else _counts(marked, bounds)

    def needs_horizon(self, number: int, header: BatchHeader) -> bool:
        """Whether the batch has tombstones that stay and that nothing says the end of."""
        return (
            self._marked is not None
            and self._marked[number] > 0
            and header.delete_horizon_ms == NO_HORIZON_MS
        )

    def rebuilt(self, number: int, batch: ReadBatch) -> bytes:
        """The batch without the rows that go."""
        assert batch.columns is not None, "only what is decoded is rebuilt"
        rows = slice(self.bounds[number], self.bounds[number + 1])
        kept = self.kept[rows]
        horizons = self.horizons[rows] if self.horizons is not None else None
        return rebuilt(
            batch.header,
            batch.columns.filter(pa.array(kept)),
            self.offsets[rows][kept],
            delete_horizon_ms=NO_HORIZON_MS if horizons is None else int(horizons.max(initial=-1)),
        )


class Stretch:
    """Batches in a row whose rows can be filtered and merged together."""

    __slots__ = ("_chunk", "_last", "_like", "_numbers", "_rewriter", "_verdict")

    def __init__(self, rewriter: Rewriter, chunk: Chunk, verdict: Verdict) -> None:
        self._rewriter = rewriter
        self._chunk = chunk
        self._verdict = verdict
        self._numbers: list[int] = []
        self._like: BatchHeader | None = None
        self._last: BatchHeader | None = None

    def add(self, number: int, *, gone: bool) -> None:
        header = self._chunk[number].header
        if self._last is not None and self._last.leader_epoch != header.leader_epoch:
            self.end()
        if not gone:
            if self._like is not None and not may_merge(self._like, header):
                self.end()
            self._like = self._like or header
            self._numbers.append(number)
        if self._last is None:
            self._rewriter.enter(header)
        self._last = header

    def end(self) -> None:
        """Hand the rows that stay to the rewriter."""
        if self._like is not None:
            self._emit(self._like)
        self._numbers = []
        self._like = self._last = None

    def _emit(self, like: BatchHeader) -> None:
        verdict, numbers = self._verdict, self._numbers
        bounds, kept = verdict.bounds, verdict.kept
        batches = [self._chunk[number].columns for number in numbers]
        table = without_deltas(
            (each for each in batches if each is not None), headers=like.has_headers
        )
        # Batches in between that are gone have no row that stays, but the table lacks their rows.
        mask = np.concatenate([kept[bounds[n] : bounds[n + 1]] for n in numbers])
        rows = whole(table if mask.all() else table.filter(pa.array(mask)))
        span = slice(bounds[numbers[0]], bounds[numbers[-1] + 1])
        offsets = verdict.offsets[span][kept[span]]
        if len(offsets) != rows.num_rows:
            raise InvariantViolation(f"{rows.num_rows} rows stay at {len(offsets)} offsets")
        if verdict.horizons is None:
            self._rewriter.merge(like, rows, offsets)
        else:
            horizons = verdict.horizons[span][kept[span]]
            self._rewriter.merge_timed(like, rows, offsets, horizons)


def _counts(mask: Mask, bounds: list[int]) -> list[int]:
    """How many rows of each batch are marked."""
    return [int(np.count_nonzero(mask[start:end])) for start, end in pairwise(bounds)]
