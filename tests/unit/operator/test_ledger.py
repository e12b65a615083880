"""The figures of a probe, from what happened to each record."""

from __future__ import annotations

from tailrace_operator.ledger import Ledger


def ledger(count: int) -> Ledger:
    made = Ledger()
    for number in range(count):
        assert made.send(now_ms=number * 10) == number
    return made


def test_waits_count_from_the_strike_on_and_what_is_open_counts_up_to_now() -> None:
    made = ledger(3)
    made.acknowledged(0, partition=0, offset=0, now_ms=900)
    made.acknowledged(1, partition=0, offset=1, now_ms=1_050)
    figures = made.figures(since_ms=1_000, now_ms=1_100)
    # Record 2 was handed over at 20 and has no fate yet.
    assert (figures.sent, figures.acknowledged, figures.unavailable_ms) == (3, 2, 1_080)
    made.failed(2, "too late", now_ms=1_100)
    figures = made.figures(since_ms=1_060, now_ms=5_000)
    assert (figures.failed, figures.unavailable_ms, figures.problems) == (1, 1_080, ("too late",))
    assert made.open == 0


def test_what_is_read_late_or_again() -> None:
    made = ledger(3)
    for number in range(3):
        made.acknowledged(number, partition=0, offset=number, now_ms=100)
    made.read(0, now_ms=150)
    made.read(0, now_ms=160)
    made.read(1, now_ms=400)
    figures = made.figures(since_ms=0, now_ms=450)
    assert (figures.read, figures.repeated, figures.unread_ms) == (2, 1, 350)
    assert made.behind == 1


def test_a_record_that_is_read_before_its_acknowledgement_is_not_waited_for() -> None:
    made = ledger(1)
    made.read(0, now_ms=5)
    made.acknowledged(0, partition=0, offset=0, now_ms=9)
    assert made.behind == 0


def test_the_count_tells_lost_twice_and_misplaced() -> None:
    made = ledger(4)
    for number in range(4):
        made.acknowledged(number, partition=0, offset=number, now_ms=1)
    before = made.figures(since_ms=0, now_ms=2)
    assert (before.counted, before.lost) == (False, 0)
    made.found(0, partition=0, offset=0)
    made.found(0, partition=0, offset=7)
    made.found(1, partition=1, offset=1)
    made.counted()
    figures = made.figures(since_ms=0, now_ms=2)
    assert (figures.lost, figures.duplicated, figures.misplaced) == (2, 1, 2)


def test_problems_are_told_once_and_not_for_ever() -> None:
    made = ledger(0)
    for text in ["a", "a", *"bcdefgh"]:
        made.problem(text)
    assert made.figures(since_ms=0, now_ms=0).problems == ("a", "b", "c", "d", "e")
