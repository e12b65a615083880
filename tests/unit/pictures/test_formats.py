"""Values as Grafana writes them: what `getValueFormat` of @grafana/data 13.2 gave."""

from __future__ import annotations

import math

import pytest

from pictures.formats import formatted, tick_text, ticks


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("short", 0, "0"),
        ("short", 999, "999"),
        ("short", 1_234, "1.23 K"),
        ("short", 15_500, "15.5 K"),
        ("short", 2.5e6, "2.50 Mil"),
        ("short", 0.25, "0.250"),
        ("cps", 0.5, "0.500 c/s"),
        ("count:rec/s", 250_000, "250K rec/s"),
        ("reqps", 1_500, "1.50K req/s"),
        ("Bps", 1_536, "1.54 kB/s"),
        ("Bps", 3e9, "3 GB/s"),
        ("bytes", 1_536, "1.50 KiB"),
        ("bytes", 2.5e6, "2.38 MiB"),
        ("s", 0, "0 s"),
        ("s", 0.0005, "500 µs"),
        ("s", 0.0123, "12.3 ms"),
        ("s", 75, "1.25 mins"),
        ("s", 4_000, "1.11 hours"),
        ("s", 100_000, "1.16 days"),
        ("percentunit", 0.005, "0.500%"),
        ("percentunit", 1, "100%"),
        ("none", 3, "3"),
    ],
)
def test_a_value_is_written_as_grafana_writes_it(unit: str, value: float, text: str) -> None:
    assert formatted(unit, value) == text


@pytest.mark.parametrize(
    ("unit", "value", "decimals", "text"),
    [
        ("short", 2.5e6, 0, "3 Mil"),
        ("short", 0.25, 1, "0.3"),
        ("s", 75, 1, "1.3 mins"),
        ("Bps", 500, 2, "500.00 B/s"),
        ("percentunit", 0.005, 0, "1%"),
    ],
)
def test_decimals_can_be_told_and_halves_go_up(
    unit: str, value: float, decimals: int, text: str
) -> None:
    assert formatted(unit, value, decimals) == text


def test_what_is_no_number_is_told() -> None:
    assert (formatted("s", math.nan), formatted("s", math.inf)) == ("NaN", "Inf")


def test_ticks_are_round_and_reach_the_highest() -> None:
    assert ticks("short", 7, count=5) == [0, 2, 4, 6, 8]
    assert [tick_text("bytes", each) for each in ticks("bytes", 150e6, count=5)] == [
        *("0 B", "50 MiB", "100 MiB", "150 MiB")
    ]
    assert [tick_text("s", each) for each in ticks("s", 75, count=5)] == [
        *("0 s", "20 s", "40 s", "1 mins", "1.33 mins")
    ]


def test_a_panel_of_zeros_has_an_axis() -> None:
    assert ticks("cps", 0.0, count=5)[-1] == 1.0
