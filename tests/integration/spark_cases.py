"""What must hold whoever dies: cases of Spark's source and sink, each one run of its own.

A case does its work on topics of known numbers, somebody is killed in the middle of it, and what
came out must equal what is computed from the numbers: nothing lost, nothing there twice. Each says
in a few words what happened. The tests run them once; `tests/bench/spark_proof.py` many times.

A run proves something only when the death came while the work still needed the one who died. Each
case looks after the kill, and is `TooLate` when that was not so: such a run is no success.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from integration.spark_harness import (
    DONE,
    EXECUTOR,
    LONG_JAVA_OPTIONS,
    QUERY_TIMEOUT_S,
    Driver,
    Drivers,
    Processes,
    Topic,
    Work,
    expected,
    figures,
    until,
    workers,
)
from tailrace import Admin
from tailrace.dev.cluster import DevCluster
from tailrace.dev.processes import Life

BATCHES = 6
REMOTE = "local-cluster[2,1,512]"
WORKERS_KILLED = 3
PATIENCE_S = 120.0
BATCH_S_MAX = 5.0


class TooLate(Exception):
    """Nobody was hit: the work was over, or no longer needed the one who died."""


@dataclass
class World:
    """A cluster, a session, and topics full of numbers."""

    dev: DevCluster
    spark: SparkSession
    folder: Path
    # Records of reads, of writes, and of writes in cases that go beyond what was asked for.
    many: int
    some: int
    few: int
    rng: Random = field(default_factory=Random)
    # How long a read took that nobody disturbed: the others are disturbed within that.
    read_s: float = 2.0
    _topics: dict[int, Topic] = field(default_factory=dict)
    _expected: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    _runs: int = 0
    _remote: Driver | None = None
    _drivers: Drivers | None = None

    @property
    def drivers(self) -> Drivers:
        if self._drivers is None:
            self._drivers = Drivers(self.folder)
        return self._drivers

    def source(self, records: int) -> Topic:
        if records not in self._topics:
            self._topics[records] = Topic(self.dev)
            self._topics[records].fill(records)
        return self._topics[records]

    def check(self, found: tuple[Any, ...], records: int) -> None:
        if records not in self._expected:
            self._expected[records] = expected(self.spark, records)
        assert found == self._expected[records], f"{found}, not {self._expected[records]}"

    def check_target(self, target: Topic, records: int) -> None:
        """Every row once, and no offset for anything else; then the topic has done its duty."""
        self.check(figures(target.pairs(self.spark)), records)
        assert target.end() == records
        target.delete()

    def remote(self) -> Driver:
        """A driver whose executors are processes of their own; it stays."""
        if self._remote is None:
            log = self.folder / "remote.log"
            self._remote = Driver(log, master=REMOTE, java_options=LONG_JAVA_OPTIONS)
        return self._remote

    def close(self) -> None:
        if self._remote is not None:
            self._remote.kill()
        self.drivers.close()

    def room(self) -> Path:
        self._runs += 1
        folder = self.folder / f"run-{self._runs}"
        folder.mkdir()
        return folder

    def sum(self, records: int, room: Path) -> Work:
        source = self.source(records)
        return Work(
            bootstrap=source.bootstrap,
            source=source.name,
            checkpoint=str(room / "checkpoint"),
            rows_per_batch=records // BATCHES,
            result=str(room / "result.json"),
        )

    def copy(self, records: int, room: Path) -> tuple[Work, Topic]:
        source, target = self.source(records), Topic(self.dev)
        work = Work(
            bootstrap=source.bootstrap,
            source=source.name,
            checkpoint=str(room / "checkpoint"),
            rows_per_batch=records // BATCHES,
            target=target.name,
        )
        return work, target

    @contextmanager
    def dead(self, name: str) -> Iterator[None]:
        """A broker is killed; at the end it is back, and in sync with all others."""
        asyncio.run(self.dev.signal(name, signal.SIGKILL))
        try:
            yield
        finally:
            member = self.dev.state.member(name)
            while self.dev.life(member) is not Life.EXITED:
                time.sleep(0.02)
            asyncio.run(self.dev.start(name))
            self._until_in_sync()

    def _until_in_sync(self) -> None:
        end = time.monotonic() + PATIENCE_S
        with Admin(self.dev.state.bootstrap) as admin:
            while time.monotonic() < end:
                partitions = [p for each in admin.describe_topics() for p in each.partitions]
                if all(len(each.isr) == len(each.replicas) for each in partitions):
                    return
                time.sleep(0.1)
        raise AssertionError(f"replicas are not in sync after {PATIENCE_S} s")


Case = Callable[[World], str]


def batch(world: World) -> str:
    source = world.source(world.many)
    began = time.perf_counter()
    found = figures(source.read(world.spark))
    world.read_s = time.perf_counter() - began
    world.check(found, world.many)
    return f"{world.many:,} rows"


def available_now(world: World) -> str:
    work = world.sum(world.many, world.room())
    work.finish(world.spark)
    world.check(work.summed(), world.many)
    return f"{world.many:,} rows in {work.batches()} batches"


def batch_leader_killed(world: World) -> str:
    """The leader of a partition that is being read dies at some moment of the read."""
    source, found = world.source(world.many), []
    tracker = world.spark.sparkContext.statusTracker()

    def read() -> None:
        found.append(figures(source.read(world.spark)))

    def is_read() -> bool:
        """Whether the first tasks still read: those of the first two partitions."""
        stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
        return any(each and each.numTasks > 1 and not each.numCompletedTasks for each in stages)

    reading = threading.Thread(target=read)
    reading.start()
    while reading.is_alive() and not tracker.getActiveStageIds():
        time.sleep(0.01)
    leader = source.leader(world.rng.randrange(2))
    time.sleep(world.rng.uniform(0, world.read_s / 2))
    with world.dead(leader):
        is_hit = is_read()
        reading.join(QUERY_TIMEOUT_S)
        (figure,) = found
        world.check(figure, world.many)
    _was_hit(is_hit, "the leader's partition had been read")
    return f"{leader} killed, {world.many:,} rows"


def available_now_leader_killed(world: World) -> str:
    work = world.sum(world.many, world.room())
    query = work.start(world.spark)
    at = world.rng.randint(2, BATCHES - 1)
    while work.batches() < at and query.isActive:
        time.sleep(0.01)
    time.sleep(world.rng.uniform(0, 0.5))
    leader = world.source(world.many).leader(world.rng.randrange(3))
    with world.dead(leader):
        # Each batch reads from all partitions.
        is_hit = query.isActive and work.batches() < BATCHES
        assert query.awaitTermination(QUERY_TIMEOUT_S)
        world.check(work.summed(), world.many)
    _was_hit(is_hit, "the last batch had begun")
    return f"{leader} killed in batch {at - 1}, {world.many:,} rows"


def available_now_driver_killed(world: World) -> str:
    work = world.sum(world.many, world.room())
    killed = _killed_in_the_middle(world, work)
    work.finish(world.spark)
    world.check(work.summed(), world.many)
    return f"driver killed in batch {killed}, {world.many:,} rows"


def sink_driver_killed(world: World) -> str:
    work, target = world.copy(world.some, world.room())
    killed = _killed_in_the_middle(world, work)
    before = target.end()
    work.finish(world.spark)
    world.check_target(target, world.some)
    _was_hit(before < world.some, "all rows had been written")
    return f"driver killed in batch {killed} after {before:,} rows of {world.some:,}"


def sink_leader_killed(world: World) -> str:
    work, target = world.copy(world.few, world.room())
    query = work.start(world.spark)
    at = world.rng.randint(1, world.few * 2 // 3)
    while target.end() < at and query.isActive:
        time.sleep(0.01)
    leader = target.leader(world.rng.randrange(3))
    with world.dead(leader):
        before, is_hit = target.end(), query.isActive and work.batches() < BATCHES
        assert query.awaitTermination(QUERY_TIMEOUT_S)
        world.check_target(target, world.few)
    _was_hit(is_hit, "the last batch had begun")
    return f"{leader} killed after {before:,} rows of {world.few:,}"


def sink_worker_killed(world: World) -> str:
    """Python workers die in the middle of their tasks, which Spark then runs again."""
    work, target = world.copy(world.few, world.room())
    query = work.start(world.spark)
    _until_written(target, 1, lambda: query.isActive)
    killed, before = 0, 0
    while query.isActive and killed < WORKERS_KILLED:
        for pid in world.rng.sample(found := workers(), min(len(found), 1)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
                before = target.end()
        time.sleep(world.rng.uniform(0.3, 1.2))
    assert query.awaitTermination(QUERY_TIMEOUT_S)
    world.check_target(target, world.few)
    _was_hit(killed > 0 and before < world.few, "no worker was killed before all was written")
    return f"{killed} workers killed, the last after {before:,} rows of {world.few:,}"


def sink_executor_killed(world: World) -> str:
    """Executors in processes of their own, one of which dies with its workers."""
    work, target = world.copy(world.some, world.room())
    running = world.remote()
    running.begin(work)
    at = world.rng.randint(1, world.some // 2)
    _until_written(target, at, lambda: running.code is None)
    pid = _kill_one(world, running.family(), EXECUTOR, lambda: running.code is None)
    before = target.end()
    assert running.end() == DONE, running.last_words()
    world.check_target(target, world.some)
    _was_hit(before < world.some, "all rows had been written")
    return f"executor {pid} killed after {before:,} rows of {world.some:,}"


def sink_two_drivers(world: World) -> str:
    """Two drivers on one checkpoint at the same time; Spark ends one of them, or both."""
    work, target = world.copy(world.some, world.room())
    with world.drivers.at_work(work) as other:
        at = world.rng.randint(1, world.some // 2)
        _until_written(target, at, lambda: other.code is None)
        before, here = target.end(), DONE
        second = work.start(world.spark)
        try:
            assert second.awaitTermination(QUERY_TIMEOUT_S)
        except PySparkException as error:
            here = _brief(str(error))
        there = _brief(other.end())
    if DONE not in {here, there}:
        work.finish(world.spark)
    world.check_target(target, world.some)
    # The second one that has nothing to say and nothing to do came when all was over.
    rows = sum(each["numInputRows"] for each in second.recentProgress)
    _was_hit(here != DONE or rows > 0, "the first driver had written all rows")
    return f"second from {before:,} rows on: {here}; first: {there}; {world.some:,} rows"


def sink_driver_comes_back(world: World) -> str:
    """A driver is frozen in a batch, a second one does the rest, and the first goes on."""
    work, target = world.copy(world.few, world.room())
    at = world.rng.randint(1, world.few // 2)
    with world.drivers.at_work(work) as running:
        _until_written(target, at, lambda: running.code is None)
        time.sleep(world.rng.uniform(0, 0.3))
        running.signal(signal.SIGSTOP)
        before = target.end()
        work.finish(world.spark)
        running.signal(signal.SIGCONT)
        said = _brief(running.end())
    world.check_target(target, world.few)
    _was_hit(before < world.few, "all rows had been written")
    return f"frozen after {before:,} rows of {world.few:,}, then: {said}"


CASES: dict[str, Case] = {
    "read, batch": batch,
    "read, AvailableNow": available_now,
    "read, batch, leader killed": batch_leader_killed,
    "read, AvailableNow, leader killed": available_now_leader_killed,
    "read, AvailableNow, driver killed": available_now_driver_killed,
    "write, driver killed": sink_driver_killed,
    "write, leader killed": sink_leader_killed,
    "write, Python workers killed": sink_worker_killed,
    "write, executor killed": sink_executor_killed,
    "write, two drivers at once": sink_two_drivers,
    "write, a driver comes back": sink_driver_comes_back,
}


def _was_hit(is_hit: bool, otherwise: str) -> None:
    """After the check, which holds for a run that came too late as well."""
    if not is_hit:
        raise TooLate(otherwise)


def _killed_in_the_middle(world: World, work: Work) -> int:
    """Run the work in a driver and kill that in the middle of some batch; which it was."""
    at = world.rng.randint(1, BATCHES - 3)
    with world.drivers.at_work(work) as running:

        def begun(batch: int) -> float:
            until(
                f"batch {batch}", lambda: work.batches() > batch, alive=lambda: running.code is None
            )
            return time.monotonic()

        # Batches are alike: this one takes about as long as the one before.
        before = begun(at - 1)
        time.sleep(world.rng.uniform(0, min(begun(at) - before, BATCH_S_MAX)))
    world.drivers.prepare()
    done = Path(work.checkpoint) / "commits" / str(BATCHES - 1)
    _was_hit(not done.exists(), "the driver had done its work")
    return work.batches() - 1


def _until_written(target: Topic, rows: int, alive: Callable[[], bool]) -> None:
    until(f"{rows} rows", lambda: target.end() >= rows, alive=alive)


def _kill_one(world: World, found: Processes, mark: str, alive: Callable[[], bool]) -> int:
    """SIGKILL to one of those with such a command line; which it was."""
    time.sleep(world.rng.uniform(0, 0.3))
    pids: list[int] = []

    def look() -> bool:
        pids[:] = found(mark)
        return bool(pids)

    until("somebody to kill", look, alive=alive)
    pid = world.rng.choice(pids)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return pid


def _brief(said: str) -> str:
    """What Spark said, in a few words."""
    for known in ("Superseded", "ConcurrentModification", "CONCURRENT", "concurrent", "RowsDiffer"):
        if known in said:
            return known
    return said[:60]


def run_case(case: Case, world: World) -> str:
    """One run; what Spark raises is told as the failure it is."""
    try:
        return case(world)
    except PySparkException as error:
        raise AssertionError(f"Spark: {error}") from error
