"""The report from known results: its tables, verdicts and what is to be drawn."""

from __future__ import annotations

import pytest

from bench.figures import Spread
from bench.peers.report import (
    AHEAD_MAX,
    GOALS_PLOT,
    figures_table,
    goal_lines,
    markdown,
    plots,
    summary,
    tally,
)
from bench.peers.results import Measured, Results
from bench.peers.sizes import Sizes
from bench.peers.workloads import CONFLUENT, JAVA, OURS_BLOCKING, WORKLOADS

PRODUCE = next(each for each in WORKLOADS if each.name == "produce 100 B")
IDLE = next(each for each in WORKLOADS if each.name == "idle")


@pytest.fixture
def results() -> Results:
    produce = {
        OURS_BLOCKING: {"records_per_s": [100_000.0, 300_000.0, 200_000.0]},
        "tailrace, columns": {"records_per_s": [2_000_000.0, 2_000_000.0, 2_000_000.0]},
        CONFLUENT: {"records_per_s": [400_000.0, 400_000.0, 400_000.0]},
        JAVA: {"records_per_s": [400_000.0, 500_000.0, 400_000.0]},
    }
    idle = {
        "tailrace": {"resident_mib": [60.0], "cpu_percent": [2.0]},
        "Kafka": {"resident_mib": [400.0], "cpu_percent": [17.0]},
    }
    measured = {
        PRODUCE.name: Measured("2026-01-01", "1.0 1.0 1.0; 2.0 1.0 1.0", produce),
        IDLE.name: Measured("2026-01-02", "0.1 0.1 0.1; 0.1 0.1 0.1", idle),
    }
    return Results({"cores": "2"}, {"Apache Kafka": "4"}, measured)


def test_goals_are_judged_by_the_median_of_ratios(results: Results) -> None:
    idle, send, columns, go = goal_lines(results, [IDLE, PRODUCE])
    assert (send.ratio, send.verdict) == (Spread(0.5, 0.25, 0.75), "missed")
    assert (columns.ratio, columns.verdict) == (Spread(5.0, 4.0, 5.0), "met")
    assert (go.ratio, go.verdict) == (None, "not measured")
    assert (idle.ratio, idle.verdict) == (Spread(0.15, 0.15, 0.15), "met")


def test_goals_that_were_not_measured_are_told_too(results: Results) -> None:
    lines = goal_lines(results)
    assert len(lines) == sum(len(each.goals) for each in WORKLOADS)
    told = tally(lines)
    assert told == f"{len(lines)} goals: 2 met, 1 missed, {len(lines) - 3} not measured."
    assert told in markdown(results, [])


def test_the_summary_has_one_line_a_goal(results: Results) -> None:
    head, _, send, *_ = summary(results, [IDLE, PRODUCE])
    assert head[0] == "workload"
    assert send == [
        "produce 100 B",
        "thousand records/s",
        OURS_BLOCKING,
        "200",
        "confluent-kafka",
        "400",
        "0.50 [0.25-0.75]",
        "≥ 1",
        "missed",
    ]


def test_a_table_shows_only_who_took_part_and_what_was_measured(results: Results) -> None:
    rows = figures_table(PRODUCE, results.workloads[PRODUCE.name])
    assert rows[0] == ["", "thousand records/s"]
    assert [row[0] for row in rows[1:]] == [OURS_BLOCKING, "tailrace, columns", CONFLUENT, JAVA]
    assert rows[1][1] == "200 [100-300]"


def test_the_report_has_goals_machine_figures_and_pictures(results: Results) -> None:
    text = markdown(results, [each["file"] for each in plots(results)])
    for expected in (
        "| produce 100 B | thousand records/s | tailrace, blocking | 200 |",
        "| cores | 2 |",
        "| Apache Kafka | 4 |",
        "#### produce 100 B",
        "2026-01-01; 3 rounds; load of the machine before and after: 1.0 1.0 1.0; 2.0 1.0 1.0.",
        "| tailrace | 60 [60-60] | 2.0 [2.0-2.0] |",
        "![Resident memory of a broker, MiB](memory.png)",
        "(goals.png)",
    ):
        assert expected in text
    assert "(latency.png)" not in text


def test_words_of_a_failure_are_no_markdown() -> None:
    told = "produce 100 B, x, round 1: Error: see [that](nowhere.md)\nand `this`"
    measured = Measured("2026-01-01", "1; 2", {}, (told,))
    text = markdown(Results({}, {}, {PRODUCE.name: measured}), [])
    expected = "produce 100 B, x, round 1: Error: see [that] (nowhere.md) and 'this'"
    assert f"\n- failed: `{expected}`\n" in text


def test_the_page_says_how_peers_were_warmed_up_and_what_is_compared_with_what() -> None:
    text = " ".join(markdown(Results(), []).split())
    assert f"{Sizes().jvm_warm_bytes // 10**6} MB go in and out of every Kafka cluster" in text
    assert "Goals compare like with like" in text


def test_plots_are_bars_with_their_range(results: Results) -> None:
    drawn = {each["file"]: each for each in plots(results)}
    assert set(drawn) == {"produce", "memory", GOALS_PLOT}
    (panel,) = drawn["produce"]["panels"]
    expected = {"label": OURS_BLOCKING, "value": 2e5, "low": 1e5, "high": 3e5, "ours": True}
    assert panel["bars"][0] == expected
    assert [bar["ours"] for bar in panel["bars"]] == [True, True, False, False]


def test_the_plot_of_goals_points_to_the_right_whichever_way_is_better(results: Results) -> None:
    drawn = next(each for each in plots(results) if each["file"] == GOALS_PLOT)
    idle, send, _ = drawn["panels"][0]["bars"]
    assert idle["value"] == pytest.approx(0.35 / 0.15)
    assert (send["low"], send["value"], send["high"], send["ours"]) == (0.25, 0.5, 0.75, False)


def test_who_waits_for_nothing_at_all_does_not_flatten_the_other_bars() -> None:
    idle = {"tailrace": {"resident_mib": [0.0]}, "Kafka": {"resident_mib": [400.0]}}
    measured = {IDLE.name: Measured("2026-01-02", "0.1 0.1 0.1", idle)}
    none = Results(workloads=measured)
    drawn = next(each for each in plots(none) if each["file"] == GOALS_PLOT)
    assert drawn["panels"][0]["bars"][0]["value"] == AHEAD_MAX


def test_nothing_measured_is_a_report_too() -> None:
    assert plots(Results()) == []
    assert "### Goals" in markdown(Results(), [])
