"""A job of ours through the Spark operator, while a leader is killed: the totals are exact."""

from __future__ import annotations

import json
import os
from typing import Any, Final

import pytest

from e2e.kube import Kube, until
from e2e.release import CHART, Release

ORDERS: Final = 40_000
JOB_S: Final = 600.0
ACCEPTED_S: Final = 120.0
APPLICATIONS: Final = "sparkapplications.sparkoperator.k8s.io"
FORCE: Final = ("--force", "--grace-period=0")


@pytest.mark.needs("SPARK_IMAGE", "SPARK_NAMESPACE")
def test_aggregate_is_exact_though_a_leader_is_killed(release: Release) -> None:
    release.make_topic("spark-orders")
    release.make_topic("spark-totals", partitions=3)
    expected = release.inside("orders.py", "spark-orders", str(ORDERS))
    spark = Kube(os.environ["SPARK_NAMESPACE"])
    name = f"{release.name}-totals"
    clear(spark, release)
    # The Spark operator looks at it first, and may be slow to answer, or be restarting.
    until(
        "the job is accepted",
        lambda: spark.kubectl("apply", "-f", "-", given=manifest(release)),
        ACCEPTED_S,
    )
    driver = f"{name}-driver"
    until("the job writes", lambda: "batch 0:" in spark.kubectl("logs", driver), JOB_S)
    release.delete_pod(release.pod("broker", release.leader("spark-orders")), *FORCE)

    def ended() -> str:
        found = spark.get(APPLICATIONS, name).get("status") or {}
        state = str((found.get("applicationState") or {}).get("state", ""))
        return state if state in {"COMPLETED", "FAILED"} else ""

    state = until("the job has ended", ended, JOB_S)
    told = spark.kubectl("logs", driver, "--tail=40")
    assert state == "COMPLETED", told
    found = results(release)
    print(f"\ne2e spark: {ORDERS} orders, {found['records']} results; {told.splitlines()[-1]}")
    assert found["newest"] == expected
    release.whole()
    clear(spark, release)
    release.kube.kubectl("delete", "topics.tailrace.dev", "spark-orders", "spark-totals")


def clear(spark: Kube, release: Release) -> None:
    """The job goes, and the volume with its checkpoint, which outlives it."""
    spark.kubectl("delete", APPLICATIONS, f"{release.name}-totals", "--ignore-not-found")
    spark.kubectl("delete", "pvc", f"{release.name}-spark", "--ignore-not-found")


def results(release: Release) -> Any:
    return release.inside("results.py", "spark-totals")


def manifest(release: Release) -> str:
    """As the chart makes it."""
    job = {
        "file": "aggregate.py",
        "restart": "Never",
        "conf": {"spark.sql.shuffle.partitions": "2"},
        "arguments": [
            *("--topic", "spark-orders", "--output", "spark-totals"),
            *("--schema", "customer string, amount bigint", "--group-by", "customer"),
            *("--aggregate", "count(*) as orders", "--aggregate", "sum(amount) as total"),
            *("--window", "1 hour", "--watermark", "1 hour"),
            # Many small batches, so that the leader goes in the middle of them.
            *("--rows", "5000", "--checkpoint", "/data/totals-checkpoint"),
        ],
    }
    return release.kube.helm(
        *("template", release.name, str(CHART), "--show-only", "templates/spark.yaml"),
        f"--set=spark.image={os.environ['SPARK_IMAGE']},spark.storage.accessMode=ReadWriteOnce",
        f"--set-json=spark.jobs.totals={json.dumps(job)}",
    )
