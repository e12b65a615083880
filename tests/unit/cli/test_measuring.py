"""How fast records go in and out: sums that are right, and a load that arrives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from simulation.model_cluster import ModelCluster
from tailrace.cli import measuring
from tailrace.cli.commands import app
from tailrace.cli.measuring import Speed, sentence
from tailrace.client.background import background
from tailrace.transport.grpc_network import GrpcNetwork


def test_speed_of_an_interval_and_of_all() -> None:
    speed = Speed(begun_ms=1_000)
    speed.add(500, 50_000)
    assert speed.interval(1_999) is None
    assert speed.interval(2_000) == {
        "records": 500,
        "bytes": 50_000,
        "seconds": 1.0,
        "records_per_second": 500,
        "bytes_per_second": 50_000,
    }
    speed.add(100, 10_000)
    assert speed.interval(2_500) is None
    interval = speed.interval(4_000)
    assert interval is not None
    assert (interval["records"], interval["records_per_second"]) == (100, 50)
    assert speed.summary(4_000)["records_per_second"] == 200
    assert "latency_ms_p50" not in speed.summary(4_000)


def test_latencies_by_rank() -> None:
    speed = Speed(begun_ms=0, latencies_ms=[float(each) for each in range(1, 101)])
    found = speed.summary(10)
    assert [found[f"latency_ms_{name}"] for name in ("p50", "p95", "p99", "max")] == [
        51,
        96,
        100,
        100,
    ]
    assert sentence(found).endswith("acknowledged after p50 51, p95 96, p99 100, max 100 ms")


def test_nothing_in_no_time_is_no_division_by_zero() -> None:
    assert Speed(begun_ms=5).summary(5)["records_per_second"] == 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[ModelCluster]:
    async def start() -> ModelCluster:
        network = GrpcNetwork()
        found = ModelCluster(lambda _: network, address="127.0.0.1:0")
        await found.start()
        for topic in ("records", "columns", "paced", "empty", "narrow"):
            found.create(topic, 2)
        return found

    running = background().wait(start())
    yield running
    background().wait(running.stop())


def perf(cluster: ModelCluster, *words: str) -> list[dict[str, Any]]:
    given = ["perf", *words, "--json", "--bootstrap", ",".join(cluster.bootstrap)]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("columns", [False, True])
def test_what_is_written_is_read(cluster: ModelCluster, columns: bool) -> None:
    topic = "columns" if columns else "records"
    options = ["--columns"] if columns else ["--keys", "7"]
    *_, wrote = perf(cluster, "produce", topic, "--records", "2500", "--size", "40", *options)
    assert (wrote["type"], wrote["records"], wrote["bytes"]) == ("summary", 2_500, 100_000)
    assert columns or wrote["latency_ms_p50"] >= 0
    stored = [value for each in range(2) for value in cluster.get(topic, each).records()]
    assert len(stored) == 2_500
    assert {len(value) for value in stored} == {40}
    for arrow in ([], ["--arrow"]):
        *_, read = perf(cluster, "consume", topic, "--records", "2500", *arrow)
        assert read["records"] >= 2_500
        assert read["bytes"] >= 100_000


@pytest.mark.parametrize("columns", [False, True])
def test_what_was_not_acknowledged_is_not_counted(cluster: ModelCluster, columns: bool) -> None:
    for each in range(2):
        cluster.get("narrow", each).batch_bytes_max = 10
    given = ["perf", "produce", "narrow", "--records", "3", "--size", "40", "--json"]
    given += ["--bootstrap", ",".join(cluster.bootstrap), *(["--columns"] if columns else [])]
    done = CliRunner().invoke(app, given)
    *_, told = [json.loads(line) for line in done.stdout.splitlines()]
    assert (told["records"], told["bytes"]) == (0, 0)
    assert done.exit_code == 1
    assert "3 records not acknowledged: BATCH_TOO_LARGE" in done.stderr


def test_a_rate_is_kept(cluster: ModelCluster) -> None:
    *_, wrote = perf(cluster, "produce", "paced", "--records", "100", "--rate", "200")
    assert wrote["seconds"] >= 0.45


def test_an_empty_topic_ends(cluster: ModelCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "POLL_MS", 50)
    *_, read = perf(cluster, "consume", "empty", "--timeout", "0.3")
    assert read["records"] == 0


def test_a_topic_that_is_not_there_is_said(cluster: ModelCluster) -> None:
    given = ["perf", "produce", "nowhere", "--bootstrap", ",".join(cluster.bootstrap)]
    done = CliRunner().invoke(app, given)
    assert done.exit_code != 0
