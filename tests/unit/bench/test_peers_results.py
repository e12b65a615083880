"""Figures of rounds, ratios between contenders, and what is kept of them."""

from __future__ import annotations

import pytest

from bench.figures import Better, Spread
from bench.peers.results import (
    FIGURES_OF,
    SHOWN,
    Measured,
    Results,
    by_figure,
    flow_figures,
    longest_gap_s,
    unavailable_s,
)
from bench.peers.workloads import Goal, Kind

GOAL = Goal("records_per_s", "tailrace", "peer", 2.0, Better.MORE)


def measured(ours: list[float], peer: list[float]) -> Measured:
    contenders = {"tailrace": {"records_per_s": ours}, "peer": {"records_per_s": peer}}
    return Measured("2026-01-01", "1 1 1; 2 2 2", contenders)


def test_cpu_is_told_for_a_gigabyte_and_for_a_million_records_brokers_and_clients_apart() -> None:
    figures = flow_figures(
        records=2_000_000, size=500, seconds=4.0, broker_cpu_s=6.0, client_cpu_s=2.0
    )
    assert figures == {
        "records_per_s": 500_000,
        "mb_per_s": 250,
        "broker_cpu_s_per_gb": 6.0,
        "client_cpu_s_per_gb": 2.0,
        "cpu_s_per_gb": 8.0,
        "broker_cpu_s_per_million": 3.0,
        "client_cpu_s_per_million": 1.0,
    }


def test_every_kind_of_workload_says_which_figures_it_shows() -> None:
    assert set(FIGURES_OF) == set(Kind)
    assert {each for figures in FIGURES_OF.values() for each in figures} <= set(SHOWN)


def test_a_wait_counts_from_the_fault_on() -> None:
    waits = [[1.0, 2.0], [4.5, 9.0], [6.0, 9.5], [20.0, 20.1]]
    assert unavailable_s(waits, since=5.0) == 4.0
    assert unavailable_s(waits, since=30.0) == 0.0


def test_a_gap_is_the_longest_silence_of_a_partition_between_two_moments() -> None:
    moments = {"0": [1.0, 2.0, 2.5, 6.0], "1": [4.0, 1.5]}
    assert longest_gap_s(moments, since=1.0, until=5.0) == 2.5
    assert longest_gap_s(moments, since=2.0, until=3.0) == 1.0


def test_a_ratio_is_that_of_rounds_which_ran_next_to_each_other() -> None:
    # The machine was ten times slower in the second round: for both.
    assert measured([200.0, 20.0, 210.0], [100.0, 10.0, 100.0]).ratio(GOAL) == Spread(2.0, 2.0, 2.1)
    assert measured([], [1.0]).ratio(GOAL) is None
    assert Measured("", "", {}).ratio(GOAL) is None


def test_rounds_are_turned_into_figures() -> None:
    rounds = [{"p50_ms": 1.0, "p99_ms": 2.0}, {"p50_ms": 3.0, "p99_ms": 4.0}]
    assert by_figure(rounds) == {"p50_ms": [1.0, 3.0], "p99_ms": [2.0, 4.0]}


def test_results_are_read_back_with_six_digits() -> None:
    results = Results(
        {"cores": "2"}, {"NATS": "1"}, {"produce 1 KiB": measured([1 / 3, 123_456_789.0], [1.0])}
    )
    again = Results.from_json(results.to_json())
    ours = again.workloads["produce 1 KiB"].contenders["tailrace"]["records_per_s"]
    assert ours == pytest.approx([0.333333, 123_457_000])
    assert (again.machine, again.versions) == (results.machine, results.versions)
    assert Results.from_json(again.to_json()) == again
