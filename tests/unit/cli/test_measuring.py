"""How fast records go in and out: sums that are right, and a load that arrives."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from simulation.model_cluster import ModelCluster
from tailrace.cli import interruption, measuring
from tailrace.cli.commands import app
from tailrace.cli.connecting import connection
from tailrace.cli.measuring import Load, Speed, _outcome, _produce, sentence
from tailrace.client.background import background
from tailrace.client.settings import ProducerSettings
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
        for topic in ("records", "columns", "paced", "empty", "narrow", "slow"):
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


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not what():  # noqa: ASYNC110 - it is in another thread.
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("again", [False, True])
async def test_after_an_interrupt_what_is_under_way_is_waited_for_shortly(
    cluster: ModelCluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    again: bool,
) -> None:
    """It was seen through, for all of the two minutes that a record may take."""
    monkeypatch.setattr(interruption, "INTERRUPTED_MS", 30_000 if again else 300)
    to = connection(",".join(cluster.bootstrap), 20.0)
    load = Load(topic="slow", records=1_000_000, size=10, rate=1_000)
    began = sum(cluster.get("slow", each).end for each in range(2))
    producing = asyncio.ensure_future(_produce(load, to, ProducerSettings(), as_json=True))

    def written() -> int:
        return sum(cluster.get("slow", each).end for each in range(2)) - began

    await until(lambda: written() >= 100)
    # From now on nobody says that they are written.
    monkeypatch.setattr(cluster, "commit_lag_s", lambda: 3_600.0)
    await asyncio.sleep(0.5)
    interrupted_s = time.monotonic()
    producing.cancel()
    if again:
        await asyncio.sleep(0.1)
        producing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await producing
    assert time.monotonic() - interrupted_s < 10
    said = capsys.readouterr()
    told = [json.loads(line) for line in said.out.splitlines()]
    assert told[-1]["type"] == "summary"
    first, last = said.err.splitlines()
    assert "Ctrl-C once more leaves at once" in first
    found = re.search(r"interrupted: ([\d,]+) records acknowledged, ([\d,]+) not known", last)
    assert found, last
    acknowledged, unknown = (int(each.replace(",", "")) for each in found.groups())
    assert acknowledged == told[-1]["records"]
    # Of a hundred that were written; answers to the last ones may be among what is not known.
    assert acknowledged > 0
    assert unknown >= 100


def test_what_became_of_records_in_words() -> None:
    assert _outcome(1, Counter()) == "1 record acknowledged"
    failed = Counter({"CLIENT_CLOSED": 1_200, "BATCH_TOO_LARGE": 3})
    assert _outcome(5, failed) == (
        "5 records acknowledged, 1,200 not known: they may have been written or not, "
        "3 not: BATCH_TOO_LARGE"
    )


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
