"""The section on growth, its text and its plots, alone and beside what the peers' bench found."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.growth.measured import Growth, Measurement
from bench.growth.report import carried, head, plots, rows, section
from bench.growth.run import file_system
from bench.growth.series import FULL, Axis
from bench.peers import page
from bench.peers.results import Measured, Results


@pytest.fixture
def growth() -> Growth:
    found = []
    for series in FULL:
        for step in series.steps:
            for flow in series.flows:
                figures = {
                    "mb_per_s": 200.0,
                    "records_per_s": 195_000.0,
                    "broker_cpu_s_per_gb": 4.0 if "consume" not in flow else 1.0,
                    "client_cpu_s_per_gb": 2.0,
                    "cpu_s_per_gb": 6.0,
                }
                if flow == "cold read":
                    figures["from_disk"] = 0.98
                found.append(
                    Measurement(series.axis, step, flow, 1, "1 1 1", figures, [90.0], [100.0])
                )
    return Growth({"cores": "2"}, found)


def test_a_step_is_told_with_all_figures(growth: Growth) -> None:
    backlog = next(each for each in FULL if each.axis is Axis.BACKLOG)
    assert head(growth, backlog)[-2:] == ["read from the disk", "MiB of a broker at most"]
    assert "read from the disk" not in head(growth, FULL[0])
    assert rows(growth, FULL[0])[0] == [
        "1 partition",
        "produce",
        "200 [200-200]",
        "195 [195-195]",
        "4.00 [4.00-4.00]",
        "2.00 [2.00-2.00]",
        "6.00 [6.00-6.00]",
        "100 [100-100]",
    ]
    assert rows(growth, backlog)[-1][-2] == "98% [98%-98%]"


def test_what_a_core_carries_is_what_a_gigabyte_costs_the_brokers(growth: Growth) -> None:
    text = " ".join(carried(growth))
    assert "With 100 clients" in text
    assert "250 MB/s produced, or 1,000 MB/s consumed, or 200 MB/s of both at once" in text
    assert "100 MiB at 1 partition and 100 MiB at 1,000 partitions" in text
    assert carried(Growth()) == []


def test_the_section_has_verdicts_tables_pictures_and_facts(growth: Growth) -> None:
    text = section(growth, ["growth-clients", "growth-clients-cpu"])
    for expected in (
        "### From 1 to 1,000 partitions",
        "a stand-in for 100 GB",
        "| no cliff: produce, keyed, throughput, MB/s | holds |",
        "| memory bounded | holds |",
        "(growth-clients.png)",
        "(growth-clients-cpu.png)",
        "| cores | 2 |",
    ):
        assert expected in text
    assert "(growth-partitions.png)" not in text


def test_failures_are_in_the_section(growth: Growth) -> None:
    failed = Measurement(Axis.CLIENTS, 100, "consume", 2, "1 1 1", failed="it hung")
    more = Growth(growth.facts, [*growth.measurements, failed])
    assert "- failed: 100 clients, consume: it hung" in section(more, [])


def test_plots_have_the_shape_of_the_others(growth: Growth) -> None:
    drawn = {each["file"]: each for each in plots(growth)}
    assert set(drawn) == {
        f"growth-{axis}{kind}"
        for axis in ("partitions", "clients", "backlog")
        for kind in ("", "-cpu")
    }
    assert [panel["title"] for panel in drawn["growth-clients"]["panels"]] == [
        "produce, MB/s",
        "consume, MB/s",
        "memory that a broker held at most, MiB",
    ]
    bars = drawn["growth-clients-cpu"]["panels"][0]["bars"]
    assert [(each["label"], each["ours"]) for each in bars[:2]] == [
        ("1 client, brokers", True),
        ("clients", False),
    ]
    assert plots(Growth()) == []


def test_one_page_has_both(growth: Growth, tmp_path: Path) -> None:
    idle = {"tailrace": {"resident_mib": [60.0]}, "Kafka": {"resident_mib": [400.0]}}
    results = Results(
        {"cores": "2"}, {}, {"idle": Measured("2026-01-01", "1; 2", idle, ["a: hung"])}
    )
    (tmp_path / page.RESULTS).write_text(results.to_json(), encoding="utf-8")
    (tmp_path / page.GROWTH).write_text(growth.to_lines(), encoding="utf-8")
    page.write(tmp_path, is_drawn=False)
    text = (tmp_path / page.PAGE).read_text(encoding="utf-8")
    for expected in ("# Benchmarks", "## Beside its peers", "## Growth", "- failed: `a: hung`"):
        assert expected in text
    assert "## Beside its peers" not in page.markdown(Results(), growth, [])


def test_a_folder_in_memory_is_told_from_one_on_a_disk() -> None:
    mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n"
    assert file_system(Path("/dev/shm/some/folder"), mounts) == "tmpfs"
    assert file_system(Path("/var/tmp"), mounts) == "ext4"
