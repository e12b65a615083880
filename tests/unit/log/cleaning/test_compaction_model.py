"""Compaction against a model: crashes everywhere, random sequences, a million records."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.compaction_model import (
    BUFFER_BYTES,
    CONFIG,
    RETENTION_MS,
    CompactionModel,
    begin,
    check_structure,
    closed,
    compact_once,
    headers_of,
    keyed,
    records_of,
)
from simulation.log_bench import NOW_MS, LogBench, Producer, append
from simulation.storage import SimFiles, SimulatedCrash
from tailrace.config import LogConfig
from tailrace.log.cleaning.compaction import end_compaction
from tailrace.log.files import OsFiles
from tailrace.log.log import PartitionLog
from tailrace.log.snapshots import remove_snapshots
from tailrace.log.swap import CLEANED_SUFFIX, SWAP_SUFFIX
from tailrace.record.build import batch_from_columns
from tailrace.record.codec import Compression
from tailrace.record.view import BatchView, Record

Pairs = list[tuple[str | None, str | None]]

# Crashes


def crash_scenario(seed: int) -> tuple[SimFiles, LogBench, PartitionLog]:
    files = SimFiles(seed)
    bench = LogBench(files, CONFIG)
    log = bench.open()
    for number in range(24):
        # Half of the segments stay full, so that there are several swaps, of one and of many.
        filler = "x" * 700 if number < 12 else ""
        append(log, keyed(("a", filler), (f"k{number % 16}", filler), ("gone", None)))
    closed(log)
    files.sync_folder("/")
    files.sync_folder("/data")
    bench.checkpoint(log)
    return files, bench, log


@pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "power loss"])
def test_a_crash_at_any_file_operation_leaves_each_range_as_before_or_after(
    power_loss: bool,
) -> None:
    _, _, log = crash_scenario(0)
    before = records_of(log)
    work = begin(log)
    assert work is not None
    work.run()
    bounds = [0, *(each.swap.end for each in work.outputs)]
    assert end_compaction(log, work) is not None
    after = records_of(log)
    possible = [
        [each for each in after if each.offset < bound]
        + [each for each in before if each.offset >= bound]
        for bound in bounds
    ]
    assert len(bounds) > 3
    seen, number, died = set(), 0, True
    while died:
        number += 1
        files, bench, log = crash_scenario(number)
        files.crash_at_operation(number)
        try:
            compact_once(log)
            died = False
        except SimulatedCrash:
            pass
        files.crash(power_loss=power_loss)
        log = bench.open()
        found = records_of(log)
        assert found in possible, files.trace()
        seen.add(possible.index(found))
        check_structure(log)
        assert bench.names(CLEANED_SUFFIX) + bench.names(SWAP_SUFFIX) == []
        compact_once(log)
        assert records_of(log) == after
    assert seen == set(range(len(bounds)))
    assert number > 50


# Against the model


KEYS = st.sampled_from(["a", "b", "c", "d", "e", None])
VALUES = st.sampled_from(["1", "22", "x" * 300, None])
BATCH = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5)


@dataclass
class Append:
    pairs: Pairs
    producer: int | None
    compression: Compression
    with_headers: bool


@dataclass
class Compact:
    buffer_bytes: int
    chunk_bytes: int
    later_ms: int
    # Died before the checkpoint was stored: the next pass starts from the old one, which may now
    # be in the middle of a batch.
    forgets: bool = False


APPEND = st.builds(
    Append,
    BATCH,
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([Compression.NONE, Compression.NONE, Compression.ZSTD]),
    st.booleans(),
)
COMPACT = st.builds(
    Compact,
    st.sampled_from([1, 500, 2000, BUFFER_BYTES]),
    st.sampled_from([1, 1000, 3000, 1 << 20]),
    st.sampled_from([0, RETENTION_MS // 2, RETENTION_MS]),
    st.booleans(),
)
STEP = st.one_of(APPEND, APPEND, APPEND, COMPACT, st.sampled_from(["roll", "epoch", "reopen"]))


@dataclass
class Run:
    """One sequence of steps on a log, with the model beside it."""

    bench: LogBench
    model: CompactionModel = field(default_factory=lambda: CompactionModel(RETENTION_MS))
    producers: dict[int, Producer] = field(default_factory=dict)
    epoch: int = 0
    cleaned_to: int = 0
    now_ms: int = 1000

    def __post_init__(self) -> None:
        self.log = self.bench.open()

    def take(self, step: Append | Compact | str) -> None:
        if isinstance(step, Append):
            self.append(step)
        elif isinstance(step, Compact):
            self.compact(step)
        elif step == "roll":
            self.log.roll()
        elif step == "epoch":
            self.epoch += 1
        else:
            self.reopen()

    def append(self, step: Append) -> None:
        producer = None
        if step.producer is not None:
            producer = self.producers.get(step.producer, Producer(step.producer))
            self.producers[step.producer] = producer.after(len(step.pairs))
        data = keyed(
            *step.pairs,
            producer=producer,
            compression=step.compression,
            headers=(("h", b"x"),) if step.with_headers else (),
        )
        base = self.log.log_end
        append(self.log, data, epoch=self.epoch)
        self.model.appended(
            each._replace(offset=base + each.offset) for each in BatchView(data).records()
        )

    def compact(self, step: Compact) -> None:
        self.log.flush()
        self.now_ms += step.later_ms
        work = begin(
            self.log,
            now_ms=self.now_ms,
            cleaned_to=self.cleaned_to,
            buffer_bytes=step.buffer_bytes,
            chunk_bytes=step.chunk_bytes,
        )
        if work is None:
            return
        work.run()
        report = end_compaction(self.log, work)
        assert report is not None
        self.model.compacted(
            dirty_from=self.cleaned_to, covered_to=report.cleaned_to, now_ms=self.now_ms
        )
        assert report.cleaned_to > self.cleaned_to
        if not step.forgets:
            self.cleaned_to = report.cleaned_to
        self.check()

    def reopen(self) -> None:
        """What the producers wrote last must be known from the batches alone."""
        remove_snapshots(self.log.storage, self.log.folder, lambda _: True)
        self.log.flush()
        self.bench.checkpoint(self.log)
        self.log = self.bench.open()
        states = {each.producer_id: each.batches[-1] for each in self.log.producers.entries()}
        assert {each: batch.last_sequence + 1 for each, batch in states.items()} == {
            each: producer.sequence for each, producer in self.producers.items()
        }
        self.check()

    def check(self) -> None:
        assert records_of(self.log) == self.model.expected()
        check_structure(self.log)


@settings(max_examples=250)
@given(st.lists(STEP, min_size=3, max_size=40))
def test_a_compacted_log_equals_the_model(steps: list[Append | Compact | str]) -> None:
    run = Run(LogBench(SimFiles(0), CONFIG))
    for step in steps:
        run.take(step)
    run.log.roll()
    run.compact(Compact(BUFFER_BYTES, 1 << 20, 0))
    run.reopen()


# A million


RECORDS = 1_000_000
DISTINCT = 100_000
PER_BATCH = 5000


def test_a_million_records_equal_the_model(tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, DISTINCT, RECORDS)
    names = pa.array([b"key-%06d" % number for number in range(DISTINCT)], pa.binary())
    keys = names.take(ids)
    values = pa.array(np.arange(RECORDS)).cast(pa.string()).cast(pa.binary())
    times = pa.array(np.arange(RECORDS) + NOW_MS)
    bench = LogBench(
        OsFiles(),
        LogConfig(segment_bytes=4 << 20),
        folder=str(tmp_path_factory.mktemp("million")),
    )
    log = bench.open()
    for start in range(0, RECORDS, PER_BATCH):
        columns = (each.slice(start, PER_BATCH) for each in (keys, values, times))
        append(log, batch_from_columns(*columns))
    closed(log)
    # Room for a part of the keys only: the passes after the first have a clean part.
    cleaned_to, passes = 0, 0
    while cleaned_to < RECORDS:
        report = compact_once(log, cleaned_to=cleaned_to, buffer_bytes=4 << 20)
        cleaned_to, passes = report.cleaned_to, passes + 1
    assert passes > 1
    expected = dict(zip(ids.tolist(), range(RECORDS), strict=True))
    log = bench.open()
    assert records_of(log) == [
        Record(at, NOW_MS + at, b"key-%06d" % ids[at], b"%d" % at, ())
        for at in sorted(expected.values())
    ]
    assert all(one.next_offset == two.base_offset for one, two in pairwise(headers_of(log)))
