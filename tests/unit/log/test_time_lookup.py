"""Look-ups by time: by column, within a budget of what is decoded."""

from __future__ import annotations

import time

import pyarrow as pa

from simulation.log_bench import LogBench, append, batch
from simulation.proofs import given_up
from tailrace.log import time_lookup
from tailrace.log.time_lookup import TIME_UNKNOWN, TimedOffset
from tailrace.record.build import batch_from_columns
from tailrace.record.codec import Compression

BOMB_RECORDS = 2_900_000
# What blocked the loop for 42 s before takes some 50 ms of processor time by column.
BOMB_CPU_S = 3.0


def bomb() -> bytes:
    values = pa.repeat(pa.scalar(b"", pa.binary()), BOMB_RECORDS)
    times = pa.concat_arrays(
        [pa.repeat(pa.scalar(1, pa.int64()), BOMB_RECORDS - 1), pa.array([9], pa.int64())]
    )
    return batch_from_columns(None, values, times, compression=Compression.ZSTD)


def test_A6_a_bomb_is_searched_by_column(bench: LogBench) -> None:  # noqa: N802
    log = bench.open()
    data = bomb()
    assert len(data) < 1 << 20
    append(log, data)
    began = time.thread_time()
    assert log.offset_for_time(5) == TimedOffset(BOMB_RECORDS - 1, 9)
    assert time.thread_time() - began < BOMB_CPU_S


def test_A6_beyond_the_budget_the_batch_itself_is_the_answer(  # noqa: N802
    bench: LogBench,
) -> None:
    log = bench.open()
    append(log, batch(b"a", b"b", timestamps=[10, 20]), batch(b"c", b"d", timestamps=[30, 40]))
    plan = time_lookup.plan(log, 35)
    assert time_lookup.find(plan) == TimedOffset(3, 40)
    assert time_lookup.find(plan, decoded_bytes_max=1) == TimedOffset(2, TIME_UNKNOWN)
    log.advance_log_start(3, given_up(3))
    plan = time_lookup.plan(log, 35)
    assert time_lookup.find(plan, decoded_bytes_max=1) == TimedOffset(3, TIME_UNKNOWN)
    # Nothing beyond what may be read is the answer.
    plan = time_lookup.plan(log, 35, up_to=3)
    assert time_lookup.find(plan, decoded_bytes_max=1) is None


def test_a_plan_is_of_one_moment(bench: LogBench) -> None:
    log = bench.open()
    append(log, batch(b"a", timestamp_ms=10))
    plan = time_lookup.plan(log, 20)
    append(log, batch(b"b", timestamp_ms=30))
    assert time_lookup.find(plan) is None
    assert log.offset_for_time(20) == TimedOffset(1, 30)
