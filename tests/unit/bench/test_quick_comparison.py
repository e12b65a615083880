"""What is stored of the quick run, and when a ratio is said to have moved."""

from __future__ import annotations

import pytest

from bench.figures import Better
from bench.quick.comparison import (
    NOISE_MARGIN,
    NOISE_MIN,
    NOISE_UNKNOWN,
    NOTHING,
    RUNS_MAX,
    Mark,
    Ratio,
    Stored,
    flow_ratios,
    from_json,
    judge,
    noise_of,
    to_json,
    wait_ratios,
    with_run,
)
from bench.quick.measured import Flow, Waits


def ratio(value: float, better: Better = Better.MORE) -> Ratio:
    return Ratio("send", "speed", better, value)


def stored(*runs: float) -> Stored:
    return Stored({"cores": "2"}, {"send: speed": runs})


def test_what_was_never_stored_is_new() -> None:
    (verdict,) = judge([ratio(1.0)], NOTHING)
    assert (verdict.mark, verdict.stored, verdict.gain) == (Mark.NEW, None, None)


@pytest.mark.parametrize(
    ("now", "better", "mark"),
    [
        (1.11, Better.MORE, Mark.SAME),
        (1.14, Better.MORE, Mark.ROSE),
        (0.89, Better.MORE, Mark.SAME),
        (0.86, Better.MORE, Mark.FELL),
        (1.2, Better.LESS, Mark.FELL),
        (0.8, Better.LESS, Mark.ROSE),
    ],
)
def test_only_what_moved_by_more_than_the_noise_is_marked(
    now: float, better: Better, mark: Mark
) -> None:
    (verdict,) = judge([ratio(now, better=better)], stored(0.9, 1.0, 1.1))
    assert verdict.stored == 1.0
    assert verdict.mark is mark


def test_ratios_are_those_of_medians_to_both_parts_of_the_ground() -> None:
    def flow(seconds: float, cpu_s: float) -> Flow:
        return Flow(1_000_000_000, seconds, cpu_s / 2, cpu_s / 2)

    found = flow_ratios(
        "send",
        [flow(4, 9), flow(1, 8), flow(99, 1)],
        [flow(2, 2)],
        [flow(1, 1), flow(1, 2), flow(9, 9)],
    )
    assert [(each.measure, each.better, each.value) for each in found] == [
        ("speed / gRPC", Better.MORE, 0.5),
        ("speed / disk", Better.MORE, 0.25),
        ("CPU / gRPC + disk", Better.LESS, 2.0),
    ]


def test_waits_are_compared_with_those_of_a_bare_call() -> None:
    found = wait_ratios("one", [Waits(1, 5), Waits(9, 9), Waits(1, 1)], [Waits(0.5, 1)])
    assert [(each.measure, each.value) for each in found] == [("p50 / gRPC", 2), ("p99 / gRPC", 5)]


def test_noise_is_how_far_runs_of_the_same_code_lay_apart() -> None:
    assert noise_of([0.8, 1.0, 1.1], Better.MORE) == pytest.approx(0.2 * NOISE_MARGIN)
    assert noise_of([1.0, 1.0, 1.0], Better.MORE) == NOISE_MIN
    assert noise_of([0.5, 1.0], Better.MORE) == NOISE_UNKNOWN


def test_a_run_is_added_and_the_oldest_are_forgotten() -> None:
    kept = Stored({}, {"other: speed": [3.0]})
    for number in range(RUNS_MAX + 2):
        kept = with_run(kept, [ratio(float(number))], {"cores": "4"}, f"{number}")
    assert kept.runs["send: speed"] == [float(each) for each in range(2, RUNS_MAX + 2)]
    assert kept.runs["other: speed"] == [3.0]
    assert kept.machine == {"cores": "4"}
    assert kept.loads == [f"{each}" for each in range(2, RUNS_MAX + 2)]


def test_what_is_stored_is_read_back() -> None:
    kept = with_run(stored(0.5), [ratio(0.25)], {"cores": "2"}, "0.1 0.2 0.3")
    assert from_json(to_json(kept)) == kept
    assert len(to_json(kept).splitlines()) == 7
