"""Taking what has arrived: by rows and by batches, problems in their turn, positions by record."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from tailrace.client.fetch_plan import FetchPlan, Reading
from tailrace.client.resting import REST
from tailrace.client.taker import Taker
from tailrace.errors import OffsetOutOfRange, TailraceError, Truncated, UnreadableBatch
from tailrace.model import TopicPartition
from tailrace.record.build import BatchBuilder
from unit.client.bad_batches import junk_body

A, B = (TopicPartition("t", number) for number in range(2))


class Line:
    """A plan with two partitions, and a taker."""

    def __init__(self, **options: object) -> None:
        self.plan = FetchPlan(bytes_max=1 << 20, topic_timeout_ms=1, jitter=lambda: 1.0)
        self.taken: list[tuple[TopicPartition, int, int]] = []
        self.dealt: list[TailraceError] = []
        self.deals = False
        self.skipped: list[UnreadableBatch] = []
        self.taker = Taker(
            self.plan,
            key=None,
            value=options.get("value"),  # type: ignore[arg-type]
            rest=REST,
            on_taken=lambda *what: self.taken.append(what),
            on_problem=self._deal,
            on_skipped=self.skipped.append if options.get("skip") else None,
        )
        self.a, self.b = self.plan.add(A), self.plan.add(B)
        for reading in (self.a, self.b):
            self.plan.seek(reading, 0)
            reading.broker, reading.tag = 1, 1
        self.plan.opened(1)

    def _deal(self, reading: Reading, problem: TailraceError) -> bool:
        self.dealt.append(problem)
        if self.deals:
            self.plan.seek(reading, 50)
        return self.deals

    def arrive(self, reading: Reading, count: int, *, junk: bool = False) -> None:
        builder = BatchBuilder()
        for number in range(reading.arrived, reading.arrived + count):
            builder.append(b"%d" % number, timestamp_ms=1)
        data = builder.build(base_offset=reading.arrived, leader_epoch=4)
        self.plan.receive(1, reading, junk_body(data) if junk else data, now_ms=0)

    def rows(self, limit: int, *, alone: bool = False) -> list[tuple[int, int]] | None:
        found = self.taker.rows(limit, alone=alone)
        return None if found is None else [(each.partition, each.offset) for each in found]


def test_rows_come_in_the_order_of_arrival_and_positions_follow() -> None:
    line = Line()
    line.arrive(line.a, 3)
    line.arrive(line.b, 2)
    line.arrive(line.a, 1)
    assert line.taker.positions() == {A: (0, -1), B: (0, -1)}
    assert line.rows(2) == [(0, 0), (0, 1)]
    assert line.taker.positions()[A] == (2, 4)
    assert line.rows(10) == [(0, 2), (1, 0), (1, 1), (0, 3)]
    assert line.rows(10) is None
    assert line.taker.positions() == {A: (4, 4), B: (2, 4)}
    assert sum(records for _, records, _ in line.taken) == 6
    assert sum(size for _, _, size in line.taken) == line.plan.accounts[1].received
    assert line.plan.accounts[1].held == 0


@pytest.mark.parametrize(
    ("was_on", "value", "is_on"),
    [(True, None, False), (False, None, False), (True, bytes.decode, True)],
)
def test_the_garbage_collector_rests_while_rows_are_made_and_no_longer(
    monkeypatch: pytest.MonkeyPatch, was_on: bool, value: object, is_on: bool
) -> None:
    line, seen = Line(value=value), []
    monkeypatch.setattr(line.taker, "_on_taken", lambda *_: seen.append(gc.isenabled()))
    line.arrive(line.a, 2)
    line.arrive(line.b, 1)
    line.plan.stop(line.b, Truncated("cut"))
    if not was_on:
        gc.disable()
    try:
        assert line.rows(10) == [(0, 0), (0, 1), (1, 0)]
        assert gc.isenabled() is was_on
        with pytest.raises(Truncated):
            line.rows(10)
        assert gc.isenabled() is was_on
    finally:
        gc.enable()
    # Code of the program's own runs with the collector as the program has it.
    assert seen == [is_on, is_on]


def test_a_problem_has_its_turn_after_what_came_before() -> None:
    line = Line()
    line.arrive(line.a, 2)
    line.plan.stop(line.a, Truncated("cut"))
    line.arrive(line.b, 1)
    assert line.rows(10, alone=True) == [(0, 0), (0, 1)]
    assert line.rows(10, alone=True) is None, "another thread may not deal with it"
    with pytest.raises(Truncated):
        line.rows(10)
    assert line.rows(10) == [(1, 0)], "others go on"


def test_a_problem_that_is_dealt_with_is_not_raised() -> None:
    line = Line()
    line.deals = True
    line.plan.stop(line.a, OffsetOutOfRange(0, log_start=50, log_end=60))
    line.arrive(line.b, 1)
    assert line.rows(10) == [(1, 0)]
    assert (len(line.dealt), line.a.position) == (1, 50)


def test_a_paused_partition_in_the_middle_of_a_batch_goes_on_there() -> None:
    line = Line()
    line.arrive(line.a, 4)
    line.arrive(line.b, 1)
    assert line.rows(2) == [(0, 0), (0, 1)]
    line.plan.pause(line.a)
    assert not line.taker.is_simple
    assert line.rows(9) == [(1, 0)]
    line.plan.resume(line.a)
    assert line.rows(9) == [(0, 2), (0, 3)]


def test_after_a_seek_nothing_old_comes() -> None:
    line = Line()
    line.arrive(line.a, 4)
    line.rows(2)
    line.plan.seek(line.a, 9)
    line.arrive(line.b, 1)
    assert line.rows(9) == [(1, 0)]
    assert line.taker.positions()[A] == (9, -1)


def test_what_is_given_back_comes_first_and_counts_as_not_read() -> None:
    line = Line()
    line.arrive(line.a, 3)
    line.arrive(line.b, 2)
    records = line.taker.rows(5) or []
    line.taker.unread(records[1:])
    assert line.taker.positions() == {A: (1, 4), B: (0, 4)}
    first = line.taker.next_unread()
    assert (first and first.offset, line.rows(2)) == (1, [(0, 2), (1, 0)])
    line.taker.forget(B)
    assert (line.taker.next_unread(), line.rows(5)) == (None, None)


def test_batches() -> None:
    line = Line()
    line.arrive(line.a, 3)
    line.plan.stop(line.a, Truncated("cut"))
    table = line.taker.table(headers=False)
    assert table is not None
    assert table.num_rows == 3
    assert line.taker.positions()[A] == (3, 4)
    for _ in range(2):
        with pytest.raises(Truncated):
            line.taker.table(headers=False)


def test_mixing_rows_and_batches_loses_nothing() -> None:
    line = Line()
    line.arrive(line.a, 5)
    line.rows(2)
    table = line.taker.table(headers=False)
    assert table is not None
    assert table.column("offset").to_pylist() == [2, 3, 4]


def test_a_record_that_cannot_be_read_stays_in_the_way() -> None:
    def picky(data: bytes) -> bytes:
        if data == b"2":
            raise ValueError("no")
        return data

    line = Line(value=picky)
    line.arrive(line.a, 4)
    line.arrive(line.b, 2)
    line.arrive(line.a, 2)
    assert line.rows(9) == [(0, 0), (0, 1), (1, 0), (1, 1)], "others go on"
    for _ in range(2):
        with pytest.raises(TailraceError, match="seek to 3"):
            line.rows(9)
        assert line.taker.positions()[A] == (2, 4)
    assert line.plan.accounts[1].held == 0


@pytest.mark.parametrize("columns", [False, True])
def test_A5_a_batch_of_junk_is_set_apart_and_never_passed_over(columns: bool) -> None:  # noqa: N802
    def take(*, alone: bool = False) -> list[Any] | None:
        if not columns:
            return line.rows(9, alone=alone)
        table = line.taker.table(headers=False, alone=alone)
        return None if table is None else table.column("offset").to_pylist()

    line = Line()
    line.arrive(line.a, 1, junk=True)
    line.arrive(line.b, 1)
    line.arrive(line.a, 1)
    assert take(alone=True) is None, "another thread may not set it apart"
    assert line.a.position == 0
    assert take() == ([0] if columns else [(1, 0)]), "others go on"
    for _ in range(3):
        assert take(alone=True) is None
        # What comes while it has its turn comes after it.
        line.arrive(line.b, 1)
        with pytest.raises(UnreadableBatch) as caught:
            take()
        assert (caught.value.first_offset, line.a.position) == (0, 0)
        assert take() is not None, "others go on, and it has another turn"
    assert line.plan.accounts[1].held == 0


def test_F45_readers_that_skip_do_so_in_any_thread() -> None:  # noqa: N802
    line = Line(skip=True)
    line.arrive(line.a, 2, junk=True)
    line.arrive(line.a, 1)
    assert line.rows(9, alone=True) == [(0, 2)]
    assert [(each.first_offset, each.last_offset) for each in line.skipped] == [(0, 1)]
    assert line.a.position == 3


def test_a_batch_of_columns_that_nobody_got_comes_again() -> None:
    line = Line()
    line.arrive(line.a, 3)
    line.arrive(line.a, 2)
    line.rows(1)
    assert line.taker.table(headers=False) is not None
    line.taker.unread_table()
    line.taker.unread_table()
    assert line.taker.positions()[A] == (1, 4)
    table = line.taker.table(headers=False)
    assert table is not None
    assert table.column("offset").to_pylist() == [1, 2]
    assert line.taker.table(headers=False) is not None
    assert line.plan.accounts[1].held == 0
    line.plan.seek(line.a, 9)
    line.taker.unread_table()
    assert (line.taker.table(headers=False), line.a.position) == (None, 9)


@pytest.mark.parametrize("at", [b"1", b"4"])
def test_ctrl_c_in_the_middle_of_a_batch_loses_nothing(at: bytes) -> None:
    interrupted: list[bool] = []

    def interrupting(data: bytes) -> bytes:
        if data == at and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return data

    line = Line(value=interrupting)
    line.arrive(line.a, 3)
    line.arrive(line.a, 3)
    with pytest.raises(KeyboardInterrupt):
        line.rows(9)
    assert line.taker.positions()[A][0] == 0, "the program has got none of them"
    found: list[tuple[int, int]] = []
    while (more := line.rows(9)) is not None:
        found += more
    assert found == [(0, offset) for offset in range(6)]
    assert line.plan.accounts[1].held == 0
