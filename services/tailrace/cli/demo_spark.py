"""The part of the demo that Spark plays: a job that aggregates the records while a leader dies.

The job is an ordinary one (`spark-jobs/jobs/aggregate.py`) in a process of its own: nothing here
imports Spark. Without Java or pyspark the demo goes on without it and says what is missing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

JOB_TIMEOUT_S: Final = 180.0
OUTPUT: Final = "order-totals"
SCHEMA: Final = "order long, shop string, amount long"
WINDOW: Final = "5 seconds"
TABLE_ROWS: Final = 1_000
COUNT: Final = "orders"

_NO_JAVA: Final = "Spark needs Java"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the job: its table, or why there is none."""

    # How many orders the results count, all rows together.
    records: int = 0
    table: tuple[str, ...] = ()
    missing: str = ""
    failure: str = ""


class Aggregation:
    """The job, from its start beside the others to its table."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stop_file = folder / "aggregate-may-stop"
        self._process: subprocess.Popen[bytes] | None = None
        self.missing = ""

    async def start(self, bootstrap: str, topic: str) -> None:
        """Start it; it reads the topic as soon as Spark is up."""
        job = find_job()
        if job is None or find_spec("pyspark") is None:
            self.missing = "pyspark is not installed: pip install 'tailrace[spark]'"
            return
        # Not by the loop: uvloop forks by itself, and what gRPC does then may crash the child.
        command = (
            *(sys.executable, str(job), "--bootstrap", bootstrap, "--master", "local[2]"),
            *("--topic", topic, "--output", OUTPUT, "--schema", SCHEMA, "--group-by", "shop"),
            *("--aggregate", f"count(*) as {COUNT}", "--aggregate", "sum(amount) as amount"),
            *("--window", WINDOW, "--watermark", "1 minute", "--show", str(TABLE_ROWS)),
            *("--checkpoint", str(self._folder / "aggregate-checkpoint")),
            *("--follow", "200 milliseconds", "--until-file", str(self._stop_file)),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"),
            *("--conf", "spark.driver.host=127.0.0.1"),
            *("--conf", "spark.driver.bindAddress=127.0.0.1"),
        )
        await self._spawn(command)

    async def _spawn(self, command: tuple[str, ...]) -> None:
        starting = asyncio.ensure_future(
            asyncio.to_thread(
                subprocess.Popen,
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        )
        try:
            self._process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread goes on by itself: what it starts has to be known to be ended.
            self._process = await starting
            raise

    async def finish(self) -> Outcome:
        """Let it read to the end and wait for its table."""
        process = self._process
        if process is None:
            return Outcome(missing=self.missing)
        self._stop_file.touch()
        try:
            out, err = await asyncio.to_thread(process.communicate, timeout=JOB_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return Outcome(failure=f"the job was not done within {JOB_TIMEOUT_S:.0f} s")
        finally:
            await self.close()
        return outcome(process.returncode or 0, out.decode(), err.decode())

    async def close(self) -> None:
        """End it with its JVM and its workers, whatever they do."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.to_thread(process.wait)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def outcome(code: int, out: str, err: str) -> Outcome:
    """What the job said, as far as people want to know."""
    if _NO_JAVA in err:
        return Outcome(missing=next(line for line in err.splitlines() if _NO_JAVA in line))
    if code:
        lines = err.strip().splitlines() or ["it said nothing"]
        return Outcome(failure=f"exit code {code}: {lines[-1]}")
    table = tuple(line for line in out.splitlines() if line[:1] in {"+", "|"})
    rows = [[cell.strip() for cell in line.split("|")] for line in table if line[:1] == "|"]
    if not rows or COUNT not in rows[0]:
        return Outcome(failure="the job showed no table")
    at = rows[0].index(COUNT)
    return Outcome(sum(int(row[at]) for row in rows[1:]), table)


def find_job() -> Path | None:
    """Where the job is: beside the package in a checkout, inside it where it is installed."""
    found = find_spec("tailrace_spark")
    if found is None or found.origin is None:
        return None
    package = Path(found.origin).parent
    for folder in (package.parent, package):
        if (job := folder / "jobs" / "aggregate.py").is_file():
            return job
    return None
