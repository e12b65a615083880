from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.metrics.families import OTHER
from tailrace.metrics.lag import POINTS_MAX, EndTimes, Lag, shown


def test_the_age_of_a_record_is_reckoned_between_two_looks() -> None:
    ends = EndTimes()
    ends.note(100, 0)
    ends.note(200, 10_000)
    assert ends.lag(150) == 50
    assert ends.lag_ms(150, 12_000) == 7_000
    assert ends.lag_ms(199, 12_000) == 2_100
    # All is read, or more than there is.
    assert (ends.lag(200), ends.lag_ms(200, 12_000)) == (0, 0)
    assert (ends.lag(900), ends.lag_ms(900, 12_000)) == (0, 0)


def test_what_is_older_than_the_first_look_is_at_least_that_old() -> None:
    ends = EndTimes()
    ends.note(100, 5_000)
    assert ends.lag_ms(7, 5_000) == 0
    assert ends.lag_ms(7, 65_000) == 60_000


def test_a_log_that_rests_keeps_the_time_of_its_last_record() -> None:
    ends = EndTimes()
    ends.note(10, 0)
    for now_ms in range(10_000, 1_000_000, 10_000):
        ends.note(20, now_ms)
    assert 990_000 - 10_000 <= ends.lag_ms(15, 990_000) <= 990_000


def test_a_log_that_was_cut_begins_anew() -> None:
    ends = EndTimes()
    ends.note(100, 0)
    ends.note(40, 10_000)
    assert (ends.end, ends.lag(30), ends.lag_ms(30, 11_000)) == (40, 10, 1_000)


def test_nothing_is_known_before_the_first_look() -> None:
    assert (EndTimes().lag(5), EndTimes().lag_ms(5, 9)) == (0, 0)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=300), st.integers(0, 5_000))
def test_ages_fall_with_the_position_and_points_stay_few(steps: list[int], position: int) -> None:
    ends, end = EndTimes(), 0
    for number, step in enumerate(steps):
        end += step
        ends.note(end, number * 10_000)
    now_ms = len(steps) * 10_000
    assert len(ends._ends) == len(ends._times_ms) <= POINTS_MAX
    assert ends.end == end
    age_ms = ends.lag_ms(position, now_ms)
    assert 0 <= age_ms <= now_ms
    assert ends.lag_ms(position + 1, now_ms) <= age_ms
    assert (age_ms > 0) == (position < end)


def test_the_furthest_behind_are_shown_and_the_others_as_one() -> None:
    lags = [Lag(f"g{number}", "consumer", "t", number, number * 10) for number in range(5)]
    lags.append(Lag("q", "reader", "t", 1, 5))
    found = shown(lags, pairs_max=2)
    assert [each.group for each in found] == ["g4", "g3", OTHER, OTHER]
    assert found[2] == Lag(OTHER, "consumer", OTHER, 3, 20)
    assert found[3] == Lag(OTHER, "reader", OTHER, 1, 5)
    assert shown(lags[:1], pairs_max=2) == lags[:1]
