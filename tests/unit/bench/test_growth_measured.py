"""Verdicts on growth: cliffs, memory, and what is not known."""

from __future__ import annotations

import pytest

from bench.figures import Spread
from bench.growth.measured import Growth, Measurement, verdicts
from bench.growth.series import BROKER_MIB_MAX, FULL, GB, MB, RUNS, Axis, Flow, Series

CLIENTS = next(each for each in FULL if each.axis is Axis.CLIENTS)
BACKLOG = next(each for each in FULL if each.axis is Axis.BACKLOG)


def growth(
    series: Series, speeds: dict[int, float], *, cpu: float = 5.0, mib: float = 100.0
) -> Growth:
    return Growth(
        measurements=[
            Measurement(
                series.axis,
                step,
                flow,
                1,
                "1 1 1",
                {"mb_per_s": speed, "cpu_s_per_gb": cpu},
                [mib / 2] * 3,
                [mib / 2, mib, mib / 2],
            )
            for step, speed in speeds.items()
            for flow in series.flows
        ]
    )


def holds(found: Growth, series: Series) -> dict[str, bool | None]:
    return {each.what: each.holds for each in verdicts(found, series)}


def test_the_largest_step_is_held_against_the_best_of_the_smaller_ones() -> None:
    flat = holds(growth(CLIENTS, {1: 50.0, 10: 100.0, 30: 80.0, 100: 50.0}), CLIENTS)
    assert all(flat.values())
    fallen = growth(CLIENTS, {1: 50.0, 10: 100.0, 30: 80.0, 100: 49.0})
    assert holds(fallen, CLIENTS)["no cliff: produce, throughput, MB/s"] is False
    told = verdicts(fallen, CLIENTS)[0].told
    assert told == "49 at 100 clients, 100 at best before: 0.49 times (at least 0.5)"


def test_cpu_for_a_gigabyte_may_not_explode_either() -> None:
    found = growth(CLIENTS, {1: 50.0, 10: 50.0, 30: 50.0})
    dear = growth(CLIENTS, {100: 50.0}, cpu=11.0)
    both = Growth(measurements=[*found.measurements, *dear.measurements])
    assert holds(both, CLIENTS)["no cliff: consume, CPU-s/GB in all"] is False
    assert holds(both, CLIENTS)["no cliff: consume, throughput, MB/s"] is True


def test_steps_that_are_too_short_are_no_yardstick() -> None:
    found = growth(BACKLOG, {MB: 10_000.0, 100 * MB: 100.0, GB: 100.0, 4 * GB: 90.0})
    assert holds(found, BACKLOG)["no cliff: cold read, throughput, MB/s"] is True


def test_memory_is_that_of_the_largest_broker_at_its_peak_and_may_grow_by_a_share_a_unit() -> None:
    most = CLIENTS.memory_mib_max(100)
    assert most > BROKER_MIB_MAX
    within = growth(CLIENTS, {100: 50.0}, mib=most)
    assert within.memory(CLIENTS, 100) == Spread(most, most, most)
    assert holds(within, CLIENTS)["memory bounded"] is True
    assert holds(growth(CLIENTS, {100: 50.0}, mib=most + 1), CLIENTS)["memory bounded"] is False
    assert BACKLOG.memory_mib_max(4 * GB) == BROKER_MIB_MAX


def test_what_was_not_measured_holds_neither_and_what_failed_does_not() -> None:
    assert set(holds(growth(CLIENTS, {1: 50.0, 10: 50.0}), CLIENTS).values()) == {None}
    found = growth(CLIENTS, {1: 50.0})
    failed = Measurement(CLIENTS.axis, 100, Flow.CONSUME, 1, "1 1 1", failed="it hung")
    both = Growth(measurements=[*found.measurements, failed])
    assert holds(both, CLIENTS)["no cliff: consume, throughput, MB/s"] is False
    assert both.failures(CLIENTS) == [failed]


def test_a_run_is_read_back_from_its_lines() -> None:
    found = growth(CLIENTS, {1: 1 / 3})
    text = Growth({"cores": "2"}, found.measurements, "quick").to_lines()
    assert len(text.splitlines()) == 1 + len(found.measurements)
    again = Growth.from_lines(text)
    assert (again.facts, again.steps) == ({"cores": "2"}, "quick")
    assert [each.axis for each in again.series] == [Axis.CLIENTS]
    assert again.measurements[0].figures["mb_per_s"] == pytest.approx(0.333333)
    assert Growth.from_lines(again.to_lines()) == again
    with_half_a_line = text + '{"axis": "clie'
    assert Growth.from_lines(with_half_a_line) == again


def test_steps_have_names() -> None:
    assert CLIENTS.label(1) == "1 client"
    assert FULL[0].label(1_000) == "1,000 partitions"
    assert [BACKLOG.label(each) for each in BACKLOG.steps] == ["1 MB", "100 MB", "1 GB", "4 GB"]


@pytest.mark.parametrize("name", RUNS)
def test_every_series_can_be_judged(name: str) -> None:
    for series in RUNS[name]:
        assert len([each for each in series.steps if each >= series.judged_from]) >= 2
        assert list(series.steps) == sorted(set(series.steps))
