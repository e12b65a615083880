"""Log lines: for people, for programs, and not too many of one kind."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.clock import ManualClock
from tailrace.loglines import ALIKE_MAX, KINDS_MAX, WINDOW_MS, LogLines, Repetition

NOON_MS = 1_794_830_400_123


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _lines(*, as_json: bool) -> tuple[LogLines, io.StringIO]:
    out = io.StringIO()
    return LogLines("broker-1", out, ManualClock(wall_ms=NOON_MS), as_json=as_json), out


def test_lines_for_programs_are_json() -> None:
    say, out = _lines(as_json=True)
    say('a "quoted" line\nof two')
    assert json.loads(out.getvalue()) == {
        "time": "2026-11-16T12:00:00.123Z",
        "level": "info",
        "who": "broker-1",
        "text": 'a "quoted" line\nof two',
    }
    assert out.getvalue().count("\n") == 1


def test_lines_for_people_are_short() -> None:
    say, out = _lines(as_json=False)
    say("registered")
    say.write("warning", "odd")
    first, second = out.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.123 broker-1: registered", first)
    assert second.endswith(" broker-1: warning: odd")


def test_a_log_that_nobody_reads_is_no_reason_to_end() -> None:
    say, out = _lines(as_json=True)
    out.close()
    say("into the void")


@pytest.mark.usefixtures("restored_logging")
def test_what_libraries_log_comes_out_the_same_way() -> None:
    say, out = _lines(as_json=True)
    say.capture()
    logging.getLogger("some.library").warning("careful with %s", "this")
    logging.getLogger("some.library").info("never mind")
    try:
        int("deep inside")
    except ValueError:
        logging.getLogger("some.library").exception("it broke")
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["level"], first["text"]) == ("warning", "careful with this")
    assert "ValueError: invalid literal" in second["text"]


def test_lines_that_are_alike_but_for_numbers_are_counted_instead_of_written() -> None:
    repetition = Repetition()
    said = [
        line
        for number in range(ALIKE_MAX + 50)
        for line in repetition.admit(f"orders-{number} fell behind", number)
    ]
    assert said == [f"orders-{number} fell behind" for number in range(ALIKE_MAX)]
    assert repetition.admit("something else", WINDOW_MS - 1) == ["something else"]
    assert repetition.admit("something new", WINDOW_MS) == [
        f"50 more lines like this one were left out: orders-{ALIKE_MAX} fell behind",
        "something new",
    ]
    assert repetition.admit("orders-7 fell behind", WINDOW_MS) == ["orders-7 fell behind"]


def test_what_was_left_out_is_told_when_too_many_kinds_come_between() -> None:
    repetition = Repetition()
    for _ in range(ALIKE_MAX + 1):
        repetition.admit("again", 0)
    kinds = ["x" * number for number in range(1, KINDS_MAX + 1)]
    said = [line for kind in kinds[:59] for line in repetition.admit(kind, 1)]
    assert said == kinds[:59]
    told = [line for n in range(KINDS_MAX) for line in repetition.admit(f"{chr(300 + n)}", 1)]
    assert "1 more lines like this one were left out: again" in told


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3_000)), max_size=400))
def test_every_line_is_written_or_counted(lines: list[tuple[str, int]]) -> None:
    repetition, now_ms, told = Repetition(), 0, list[str]()
    for text, later_ms in lines:
        now_ms += later_ms
        told += repetition.admit(text, now_ms)
    told += repetition.expire(now_ms + WINDOW_MS)
    counted = sum(int(line.split()[0]) for line in told if "more lines" in line)
    assert counted + sum("more lines" not in line for line in told) == len(lines)


def test_a_service_in_trouble_does_not_fill_the_disk() -> None:
    clock, out = ManualClock(), io.StringIO()
    say = LogLines("broker-1", out, clock, as_json=True)
    for number in range(100_000):
        say(f"fetch {number} failed")
        clock.advance(1)
    assert len(out.getvalue().splitlines()) <= (ALIKE_MAX + 1) * (100_000 // WINDOW_MS + 1)
