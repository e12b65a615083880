"""A job of ours through the Spark operator, while a leader is killed: the totals are exact."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

from e2e.kube import Kube, until
from e2e.release import CHART, Release

HERE: Final = Path(__file__).parent
ORDERS: Final = 40_000
JOB_S: Final = 600.0
APPLICATIONS: Final = "sparkapplications.sparkoperator.k8s.io"
FORCE: Final = ("--force", "--grace-period=0")


def inside(release: Release, script: str, *words: str) -> Any:
    command = ("exec", "-i", release.pod("controller", 0), "--", "python3", "-", release.bootstrap)
    text = (HERE / script).read_text(encoding="utf-8")
    return json.loads(release.kube.kubectl(*command, *words, given=text, timeout_s=180))


@pytest.mark.needs("SPARK_IMAGE", "SPARK_NAMESPACE")
def test_aggregate_is_exact_though_a_leader_is_killed(release: Release) -> None:
    release.make_topic("spark-orders")
    release.make_topic("spark-totals", partitions=3)
    expected = inside(release, "orders.py", "spark-orders", str(ORDERS))
    spark = Kube(os.environ["SPARK_NAMESPACE"])
    name = f"{release.name}-totals"
    spark.kubectl("delete", APPLICATIONS, name, "--ignore-not-found")
    spark.kubectl("apply", "-f", "-", given=manifest(release))
    until("the job writes results", lambda: results(release)["records"] > 0, JOB_S)
    release.delete_pod(release.pod("broker", release.leader("spark-orders")), *FORCE)

    def ended() -> str:
        found = spark.get(APPLICATIONS, name).get("status") or {}
        state = str((found.get("applicationState") or {}).get("state", ""))
        return state if state in {"COMPLETED", "FAILED"} else ""

    state = until("the job has ended", ended, JOB_S)
    told = spark.kubectl("logs", f"{name}-driver", "--tail=40")
    assert state == "COMPLETED", told
    found = results(release)
    print(f"\ne2e spark: {ORDERS} orders, {found['records']} results; {told.splitlines()[-1]}")
    assert found["newest"] == expected
    release.whole()
    spark.kubectl("delete", APPLICATIONS, name)
    release.kube.kubectl("delete", "topics.tailrace.dev", "spark-orders", "spark-totals")


def results(release: Release) -> Any:
    return inside(release, "results.py", "spark-totals")


def manifest(release: Release) -> str:
    """As the chart makes it."""
    job = {
        "file": "aggregate.py",
        "restart": "Never",
        "arguments": [
            *("--topic", "spark-orders", "--output", "spark-totals"),
            *("--schema", "customer string, amount bigint", "--group-by", "customer"),
            *("--aggregate", "count(*) as orders", "--aggregate", "sum(amount) as total"),
            *("--window", "1 hour", "--watermark", "1 hour"),
            # Many small batches, so that the leader goes in the middle of them.
            *("--rows", "2000", "--checkpoint", "/data/totals-checkpoint"),
        ],
    }
    return release.kube.helm(
        *("template", release.name, str(CHART), "--show-only", "templates/spark.yaml"),
        f"--set=spark.image={os.environ['SPARK_IMAGE']},spark.storage.accessMode=ReadWriteOnce",
        f"--set-json=spark.jobs.totals={json.dumps(job)}",
    )
