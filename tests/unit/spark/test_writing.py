"""Every row once: attempts that die, run again in another order, or run at the same time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from simulation.model_cluster import Fate
from tailrace.errors import DeliveryTimedOut, UnknownTopic
from tailrace_spark.cluster import cluster_for
from tailrace_spark.options import WriteOptions
from tailrace_spark.writing import (
    DERIVED_ID_BIT,
    EPOCHS,
    RowsDiffer,
    Superseded,
    TaskIdentity,
    TaskWriter,
)
from unit.spark.conftest import Model

ROWS = [b"%d" % number for number in range(300)]


def _writer(model: Model, *, batch: int = 0, task: int = 0, **options: Any) -> TaskWriter:
    return TaskWriter(
        cluster_for(model.bootstrap, timeout_ms=10_000),
        TaskIdentity("query", batch, task),
        WriteOptions(bootstrap=model.bootstrap, topic="t", **options),
        timed=False,
    )


def _write(writer: TaskWriter, values: list[bytes], size: int = 7, stop_after: int = -1) -> None:
    """Write in small batches; keys make several partitions. Dies after so many batches."""
    try:
        for number, start in enumerate(range(0, len(values), size)):
            if number == stop_after:
                return
            some = values[start : start + size]
            keys = [b"k%d" % (int(value) % 5) for value in some]
            batch = {"key": pa.array(keys, pa.binary()), "value": pa.array(some, pa.binary())}
            writer.write(pa.RecordBatch.from_arrays(list(batch.values()), names=list(batch)))
        writer.finish()
    finally:
        writer.close()


def _shuffled(values: list[bytes], seed: int) -> list[bytes]:
    found = list(values)
    Random(seed).shuffle(found)
    return found


def _all(model: Model, partitions: int = 3) -> Counter[bytes]:
    return Counter(
        value for number in range(partitions) for value in model.log("t", number).records()
    )


def test_rows_are_written_with_their_keys(model: Model) -> None:
    model.create("t", 3)
    writer = _writer(model)
    _write(writer, ROWS)
    assert _all(model) == Counter(ROWS)
    assert writer.recoveries == 0


@pytest.mark.parametrize("seed", range(4))
def test_an_attempt_that_died_is_finished_by_the_next_in_another_order(
    model: Model, seed: int
) -> None:
    model.create("t", 3)
    for attempt in range(3):
        _write(
            _writer(model),
            _shuffled(ROWS, seed * 10 + attempt),
            size=5 + attempt,
            stop_after=10 * (attempt + 1),
        )
    last = _writer(model)
    _write(last, _shuffled(ROWS, 99), size=11)
    assert _all(model) == Counter(ROWS)
    assert last.recoveries > 0


def test_a_task_that_is_done_can_run_again(model: Model) -> None:
    model.create("t", 3)
    _write(_writer(model), ROWS)
    _write(_writer(model), _shuffled(ROWS, 1), size=13)
    assert _all(model) == Counter(ROWS)


def test_equal_rows_are_counted(model: Model) -> None:
    model.create("t", 3)
    values = ROWS[:10] * 6
    _write(_writer(model), values, stop_after=4)
    _write(_writer(model), _shuffled(values, 3), size=9)
    assert _all(model) == Counter(values)


def test_two_attempts_at_once(model: Model) -> None:
    """Speculation, or a second driver: neither knows of the other but through the log."""
    model.create("t", 3)
    failures: list[BaseException] = []

    def attempt(seed: int) -> None:
        try:
            _write(_writer(model), _shuffled(ROWS, seed), size=3 + seed)
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread.
            failures.append(error)

    threads = [threading.Thread(target=attempt, args=(seed,)) for seed in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failures == []
    assert _all(model) == Counter(ROWS)


@pytest.mark.parametrize("fate", [Fate.UNANSWERED, Fate.LOST, Fate.LATE])
def test_answers_that_get_lost(model: Model, fate: Fate) -> None:
    model.create("t", 3)
    fates = iter([Fate.SERVED, fate] * 5)
    model.cluster.fate = lambda: next(fates, Fate.SERVED)
    _write(_writer(model), ROWS, size=20)
    assert _all(model) == Counter(ROWS)


def test_tasks_and_batches_are_apart(model: Model) -> None:
    model.create("t", 3)
    for batch in range(2):
        for task in range(2):
            _write(_writer(model, batch=batch, task=task), ROWS[:20])
    assert _all(model) == Counter(ROWS[:20] * 4)


def test_an_older_batch_is_fenced(model: Model) -> None:
    model.create("t", 3)
    _write(_writer(model, batch=5), ROWS)
    with pytest.raises(Superseded, match="task 0 of batch 4 of query: another run of it"):
        _write(_writer(model, batch=4), ROWS)


def test_rows_that_differ_are_an_error(model: Model) -> None:
    model.create("t", 3)
    _write(_writer(model), ROWS[:50], stop_after=5)
    with pytest.raises(RowsDiffer, match=r"wrote .* rows that are not among its rows now"):
        _write(_writer(model), ROWS[100:])


def test_other_records_between_do_not_matter(model: Model) -> None:
    model.create("t", 1)
    _write(_writer(model), ROWS[:100], stop_after=8)
    model.fill("t", 0, *[100] * 500)
    _write(_writer(model), ROWS[:100])
    found = _all(model, 1)
    # Those of `fill` are numbered by offset; ours are small numbers.
    assert all(found[value] >= 1 for value in ROWS[:100])
    ours = [
        entry
        for entry in model.log("t").entries
        if entry.header.producer_id == TaskIdentity("query", 0, 0).producer_id
    ]
    assert sum(entry.header.record_count for entry in ours) == 100


def test_what_retention_took_cannot_be_compared(model: Model) -> None:
    model.create("t", 1)
    _write(_writer(model), ROWS[:50], size=10)

    def expire() -> None:
        log = model.log("t")
        first = log.entries.pop(0)
        log.log_start = first.header.base_offset + first.header.record_count

    model.do(expire)
    with pytest.raises(RowsDiffer, match="retention or compaction took some of it"):
        _write(_writer(model), ROWS[:100])


def test_errors_name_the_task_and_the_address(model: Model) -> None:
    with pytest.raises(UnknownTopic, match=f"topic: there is no topic 't'.*{model.bootstrap}"):
        _write(_writer(model), ROWS)
    model.create("t", 3)
    model.cluster.fate = lambda: Fate.REFUSED
    with pytest.raises(DeliveryTimedOut, match=f"task 0 of batch 0 of query.*{model.bootstrap}"):
        _write(_writer(model, delivery_timeout_ms=300), ROWS[:7])


def test_identities() -> None:
    def ids(batches: Iterable[int]) -> set[tuple[int, int]]:
        found = [TaskIdentity("q", each, 3) for each in batches]
        return {(each.producer_id, each.epoch) for each in found}

    assert len(ids(range(EPOCHS - 2, EPOCHS + 3))) == 5
    first, second = TaskIdentity("q", 0, 0), TaskIdentity("q", EPOCHS, 0)
    assert first.epoch == second.epoch == 0
    assert first.producer_id != second.producer_id
    assert DERIVED_ID_BIT <= first.producer_id < 2**63
    assert TaskIdentity("q", 0, 1).producer_id != first.producer_id
    assert TaskIdentity("q", 1, 0).producer_id == first.producer_id
