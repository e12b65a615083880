"""What the demo makes of Spark's part; tests/integration/test_spark.py runs the job itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tailrace.cli.demo_spark import Aggregation, Outcome, Stillness, find_job, outcome

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


def test_a_job_that_gets_on_may_take_its_time() -> None:
    still = Stillness(0.0, 120.0)
    assert not any(still.is_over(now_s, mark=now_s) for now_s in range(0, 1_000, 100))
    assert not still.is_over(1_019, mark=900)
    assert still.is_over(1_020, mark=900)


async def _finished(
    folder: Path, script: str, *, first_says: str = "", lines: list[str] | None = None
) -> Outcome:
    """What becomes of a job that is this script, once it has said something."""
    aggregation = Aggregation(folder)
    await aggregation._spawn(("/bin/sh", "-c", script))
    async with asyncio.timeout(15):
        while first_says not in (folder / "aggregate.out").read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return await aggregation.finish((lines if lines is not None else []).append)


def test_how_far_it_is_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.cli.demo_spark.LOOK_S", 0.01)
    monkeypatch.setattr("tailrace.cli.demo_spark.SAY_S", 0.0)
    lines: list[str] = []
    # It ends when it was told so, and its line was seen.
    until = f"until [ -e {tmp_path}/seen ]; do sleep 0.01; done; exit 3"

    class Seen(list[str]):
        def append(self, line: str) -> None:
            lines.append(line)
            if line == "batch 0: 10 rows":
                (tmp_path / "seen").touch()

    job = _finished(tmp_path, f"echo 'batch 0: 10 rows'; {until}", lines=Seen())
    assert asyncio.run(job).failure == "exit code 3: it said nothing"
    assert lines[-1] == "batch 0: 10 rows"
    assert len(lines) == len(set(lines)), "the same is not said again and again"


@pytest.mark.parametrize(("says", "told"), [("", "nothing"), ("batch 1", "batch 1")])
def test_one_that_stands_still_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, told: str
) -> None:
    monkeypatch.setattr("tailrace.cli.demo_spark.STILL_S", 0.1)
    monkeypatch.setattr("tailrace.cli.demo_spark.LOOK_S", 0.01)
    job = _finished(tmp_path, f"printf '{says}'; exec sleep 600", first_says=says)
    assert asyncio.run(job).failure == (
        f"nothing of the job has moved for 0 s; it last said: {told}"
    )


def test_without_spark_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.cli.demo_spark.find_spec", lambda _: None)

    async def main() -> Outcome:
        aggregation = Aggregation(tmp_path)
        await aggregation.start("127.0.0.1:1", "orders")
        return await aggregation.finish()

    assert "pip install 'tailrace[spark]'" in asyncio.run(main()).missing
