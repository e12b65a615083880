"""When a scheduled drill is due: the five fields of cron, in UTC. Pure.

`minute hour day-of-month month day-of-week`: stars, numbers, ranges, steps and lists of these.
As with cron, when both days are given either will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tailrace_operator.spec import InvalidSpec

MINUTE_MS: Final = 60_000
DAY_MS: Final = 86_400_000
# A schedule that fits no day of so many years, such as the 30th of February, fits none.
DAYS_AHEAD_MAX: Final = 366 * 8
_FIELDS: Final = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of the month", 1, 31),
    ("month", 1, 12),
    ("day of the week", 0, 7),
)


@dataclass(frozen=True, slots=True)
class Schedule:
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int] | None
    months: frozenset[int]
    weekdays: frozenset[int] | None


def read_schedule(text: str) -> Schedule:
    """The schedule that a person wrote; InvalidSpec says what is wrong with it."""
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise InvalidSpec(f"{text!r} is no schedule: it has five fields, as '30 3 * * 1'")
    read = [
        _field(field, name, low, high)
        for field, (name, low, high) in zip(fields, _FIELDS, strict=True)
    ]
    return Schedule(
        minutes=read[0],
        hours=read[1],
        days=None if fields[2] == "*" else read[2],
        months=read[3],
        weekdays=None if fields[4] == "*" else frozenset(each % 7 for each in read[4]),
    )


def next_after(schedule: Schedule, after_ms: int) -> int | None:
    """The first moment after this one that fits, in ms since 1970; None: there is none."""
    first = (after_ms // MINUTE_MS + 1) * MINUTE_MS
    day = first // DAY_MS
    for number in range(day, day + DAYS_AHEAD_MAX):
        if not _fits_day(schedule, number):
            continue
        for hour in sorted(schedule.hours):
            for minute in sorted(schedule.minutes):
                at_ms = number * DAY_MS + (hour * 60 + minute) * MINUTE_MS
                if at_ms >= first:
                    return at_ms
    return None


def _fits_day(schedule: Schedule, day: int) -> bool:
    month, of_month = _month_and_day(day)
    if month not in schedule.months:
        return False
    # 1 January 1970 was a Thursday.
    of_week = (day + 4) % 7
    if schedule.days is not None and schedule.weekdays is not None:
        return of_month in schedule.days or of_week in schedule.weekdays
    return (schedule.days is None or of_month in schedule.days) and (
        schedule.weekdays is None or of_week in schedule.weekdays
    )


def _month_and_day(days: int) -> tuple[int, int]:
    """Of a number of days since 1970, by the civil calendar (Hinnant's `civil_from_days`)."""
    shifted = days + 719_468
    of_era = shifted % 146_097
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    from_march = (5 * of_year + 2) // 153
    day = of_year - (153 * from_march + 2) // 5 + 1
    return (from_march + 2) % 12 + 1, day


def _field(text: str, name: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        if span == "*":
            first, last = str(low), str(high)
        elif not dash:
            last = str(high) if slash else first
        if not (first.isdigit() and last.isdigit() and (not slash or step.isdigit())):
            raise InvalidSpec(f"{part!r} is no {name}: write a star, numbers, ranges or steps")
        begin, end, every = int(first), int(last), int(step) if slash else 1
        if not (low <= begin <= end <= high and every >= 1):
            raise InvalidSpec(f"{part!r} is no {name}: it goes from {low} to {high}")
        found.update(range(begin, end + 1, every))
    return frozenset(found)
