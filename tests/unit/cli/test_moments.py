from __future__ import annotations

import pytest

from tailrace.cli.moments import parse_moment
from tailrace.errors import InvalidRequest

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("250ms", NOW_MS - 250),
        ("30s", NOW_MS - 30_000),
        ("5m", NOW_MS - 300_000),
        ("2h", NOW_MS - 7_200_000),
        ("7d", NOW_MS - 604_800_000),
        ("2023-11-14T22:13:20", NOW_MS),
        ("2023-11-14T22:13:20Z", NOW_MS),
        ("2023-11-15T00:13:20+02:00", NOW_MS),
    ],
)
def test_times_ago_and_moments(text: str, expected_ms: int) -> None:
    assert parse_moment(text, option="--since", now_ms=NOW_MS) == expected_ms


@pytest.mark.parametrize("text", ["", "soon", "5", "5x", "-5m", "2023-13-01"])
def test_what_is_no_time_is_told(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--to-time .* is neither a time ago"):
        parse_moment(text, option="--to-time", now_ms=NOW_MS)
