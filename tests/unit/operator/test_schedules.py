"""Five fields of cron against Python's own calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_operator.schedules import next_after, read_schedule
from tailrace_operator.spec import InvalidSpec


def ms(text: str) -> int:
    return int(datetime.fromisoformat(f"{text}+00:00").timestamp() * 1000)


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("30 3 * * *", "2026-11-17T02:00", "2026-11-17T03:30"),
        ("30 3 * * *", "2026-11-17T03:30", "2026-11-18T03:30"),
        ("*/15 * * * *", "2026-11-17T02:16", "2026-11-17T02:30"),
        ("0 0 29 2 *", "2026-11-17T02:00", "2028-02-29T00:00"),
        ("5,35 8-10 * * 1-5", "2026-11-20T10:36", "2026-11-23T08:05"),
        ("0 12 * * 7", "2026-11-17T02:00", "2026-11-22T12:00"),
        # When both days are given, either will do.
        ("0 0 1 * 3", "2026-11-17T02:00", "2026-11-18T00:00"),
        ("10/20 * * * *", "2026-11-17T02:31", "2026-11-17T02:50"),
    ],
)
def test_the_next_turn(schedule: str, after: str, expected: str) -> None:
    assert next_after(read_schedule(schedule), ms(after)) == ms(expected)


def test_a_day_that_never_comes() -> None:
    assert next_after(read_schedule("0 0 30 2 *"), ms("2026-11-17T02:00")) is None


@pytest.mark.parametrize(
    "text", ["", "* * * *", "60 * * * *", "* 24 * * *", "5-1 * * * *", "x * * * *", "*/0 * * * *"]
)
def test_what_is_no_schedule_is_told_in_a_sentence(text: str) -> None:
    with pytest.raises(InvalidSpec, match="is no "):
        read_schedule(text)


@given(st.integers(0, 4_000_000_000), st.integers(0, 23), st.integers(1, 28), st.integers(0, 6))
def test_the_calendar_is_pythons(after_s: int, hour: int, day: int, weekday: int) -> None:
    daily = next_after(read_schedule(f"0 {hour} {day} * *"), after_s * 1000)
    weekly = next_after(read_schedule(f"0 {hour} * * {weekday}"), after_s * 1000)
    after = datetime.fromtimestamp(after_s, UTC)
    assert daily is not None
    assert weekly is not None
    by_day, by_week = (datetime.fromtimestamp(each / 1000, UTC) for each in (daily, weekly))
    assert (by_day.day, by_day.hour, by_day.minute) == (day, hour, 0)
    assert after < by_day <= after + timedelta(days=32)
    assert (by_week.isoweekday() % 7, by_week.hour) == (weekday, hour)
    assert after < by_week <= after + timedelta(days=8)
