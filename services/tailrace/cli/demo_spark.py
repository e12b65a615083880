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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

STILL_S: Final = 120.0
"""The job is given up when nothing of it has moved for so long: a busy machine may be slow."""
LOOK_S: Final = 0.1
SAY_S: Final = 2.0
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


class Stillness:
    """Notices when something has stood still for too long; time is the caller's."""

    def __init__(self, now_s: float, limit_s: float) -> None:
        self._moved_s = now_s
        self._limit_s = limit_s
        self._mark: object = None

    def is_over(self, now_s: float, mark: object) -> bool:
        """`mark`: how far it is; whether it has been the same for the limit."""
        if mark != self._mark:
            self._mark, self._moved_s = mark, now_s
        return now_s - self._moved_s >= self._limit_s


class Aggregation:
    """The job, from its start beside the others to its table."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stop_file = folder / "aggregate-may-stop"
        self._checkpoint = folder / "aggregate-checkpoint"
        # Files, not pipes: one that nobody reads from for a while would hold the job up.
        self._out = folder / "aggregate.out"
        self._err = folder / "aggregate.err"
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
            *("--checkpoint", str(self._checkpoint)),
            *("--follow", "200 milliseconds", "--until-file", str(self._stop_file)),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"),
            *("--conf", "spark.driver.host=127.0.0.1"),
            *("--conf", "spark.driver.bindAddress=127.0.0.1"),
        )
        await self._spawn(command)

    async def _spawn(self, command: tuple[str, ...]) -> None:
        def start() -> subprocess.Popen[bytes]:
            # Lines are to be seen when they are said.
            environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
            with self._out.open("wb") as out, self._err.open("wb") as err:
                return subprocess.Popen(  # noqa: S603 - the command line is ours.
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=environment,
                    start_new_session=True,
                )

        starting = asyncio.ensure_future(asyncio.to_thread(start))
        try:
            self._process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread goes on by itself: what it starts has to be known to be ended.
            self._process = await starting
            raise

    async def finish(self, say: Callable[[str], None] = lambda _: None) -> Outcome:
        """Let it read to the end and wait for its table; `say` is told how far it is."""
        process = self._process
        if process is None:
            return Outcome(missing=self.missing)
        self._stop_file.touch()
        try:
            is_done = await self._wait(process, say)
        finally:
            await self.close()
        out, err = (path.read_text("utf-8", "replace") for path in (self._out, self._err))
        if not is_done:
            return Outcome(
                failure=f"nothing of the job has moved for {STILL_S:.0f} s; "
                f"it last said: {_last_line(out) or _last_line(err) or 'nothing'}"
            )
        return outcome(process.returncode or 0, out, err)

    async def _wait(self, process: subprocess.Popen[bytes], say: Callable[[str], None]) -> bool:
        """Until the job has ended (True), or has stood still for too long."""
        loop = asyncio.get_running_loop()
        stillness = Stillness(loop.time(), STILL_S)
        said, said_s = "", loop.time()
        while process.poll() is None:
            now_s = loop.time()
            if stillness.is_over(now_s, self._mark()):
                return False
            if now_s - said_s >= SAY_S:
                now = _last_line(self._out.read_text("utf-8", "replace")) or "Spark is starting"
                if now != said:
                    say(now)
                said, said_s = now, now_s
            await asyncio.sleep(LOOK_S)
        return True

    def _mark(self) -> tuple[int, int, int]:
        """What changes as long as the job gets on: what it has said, and Spark's own notes."""
        notes = sum(len(files) for _, _, files in os.walk(self._checkpoint))
        return self._out.stat().st_size, self._err.stat().st_size, notes

    async def close(self) -> None:
        """End it with its JVM and its workers, whatever they do."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.to_thread(process.wait)


def outcome(code: int, out: str, err: str) -> Outcome:
    """What the job said, as far as people want to know."""
    if _NO_JAVA in err:
        # Before it stands the name of the job.
        return Outcome(missing=err[err.index(_NO_JAVA) :].partition("\n")[0])
    if code:
        lines = err.strip().splitlines() or ["it said nothing"]
        return Outcome(failure=f"exit code {code}: {lines[-1]}")
    table = tuple(line for line in out.splitlines() if line[:1] in {"+", "|"})
    rows = [[cell.strip() for cell in line.split("|")] for line in table if line[:1] == "|"]
    if not rows or COUNT not in rows[0]:
        return Outcome(failure="the job showed no table")
    at = rows[0].index(COUNT)
    return Outcome(sum(int(row[at]) for row in rows[1:]), table)


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2].strip()


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
