"""What the demo makes of Spark's part; tests/integration/test_spark.py runs the job itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tailrace.cli.demo_spark import Aggregation, Outcome, find_job, outcome

OUT = """batch 0: 10 rows in 1.0 s
+------------+-----+------+
|window_start|shop |orders|
+------------+-----+------+
|2024-01-01  |north|4     |
|2024-01-01  |east |3     |
+------------+-----+------+

"""


def test_the_table_is_found_and_added_up() -> None:
    found = outcome(0, OUT, "some warning")
    assert found.records == 7
    assert len(found.table) == 6
    assert (found.missing, found.failure) == ("", "")


@pytest.mark.parametrize(
    ("code", "out", "err", "expected"),
    [
        (1, "", "x\nSpark needs Java 17: …", Outcome(missing="Spark needs Java 17: …")),
        (2, "", "a\nb\n", Outcome(failure="exit code 2: b")),
        (1, "", "", Outcome(failure="exit code 1: it said nothing")),
        (0, "no results yet", "", Outcome(failure="the job showed no table")),
    ],
)
def test_what_went_wrong(code: int, out: str, err: str, expected: Outcome) -> None:
    assert outcome(code, out, err) == expected


def test_the_job_is_where_it_is_looked_for() -> None:
    job = find_job()
    assert job is not None
    assert job.name == "aggregate.py"


def test_without_java_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")

    async def main() -> Outcome:
        aggregation = Aggregation(tmp_path)
        await aggregation.start("127.0.0.1:1", "orders")
        try:
            return await aggregation.finish()
        finally:
            await aggregation.close()

    found = asyncio.run(main())
    assert found.missing.startswith("Spark needs Java 17 or newer: install it, or set JAVA_HOME")


def test_without_spark_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.cli.demo_spark.find_spec", lambda _: None)

    async def main() -> Outcome:
        aggregation = Aggregation(tmp_path)
        await aggregation.start("127.0.0.1:1", "orders")
        return await aggregation.finish()

    assert "pip install 'tailrace[spark]'" in asyncio.run(main()).missing
