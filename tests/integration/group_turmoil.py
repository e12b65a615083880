"""A group of real processes whose members are killed, stopped, ended and added at random.

Records flow all the while, and every member commits what it has processed. `Turmoil` plays that for
some seconds; `Account` reads the diaries of all members afterwards and says what was processed how
often, and by whom it was committed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from tailrace.aio import Producer

WORKER = Path(__file__).with_name("group_worker.py")
MEMBERS_MIN, MEMBERS_MAX = 2, 7
NS_IN_MS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much of everything."""

    bootstrap: str
    topic: str
    folder: Path
    seconds: float
    records_per_s: int
    members: int = 5
    partitions: int = 30
    session_ms: int = 6_000
    strategy: str = "cooperative-sticky"
    # Seconds between two disturbances, on average.
    pace_s: float = 2.0
    seed: int = 1


class Turmoil:
    """Members that come and go, and a producer."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = Random(plan.seed)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.stopped: dict[str, float] = {}
        # When each member was stopped, and when it went on.
        self.pauses: dict[str, list[tuple[int, int]]] = {}
        self.started = 0
        self.done: Counter[str] = Counter()
        self.sent = 0

    async def play(self) -> None:
        try:
            for _ in range(self.plan.members):
                self.add()
            await self.until_read(1)
            producing = asyncio.ensure_future(self.produce())
            while not producing.done():
                await asyncio.sleep(self.rng.expovariate(1 / self.plan.pace_s))
                await self.disturb()
            await producing
            for name in list(self.stopped):
                self.go_on(name)
            await self.until_read(self.sent)
            await self.end()
        finally:
            for process in self.running.values():
                process.kill()
                process.wait()

    async def produce(self) -> None:
        """Records to all partitions in turn; each says when it was sent."""
        plan = self.plan
        async with Producer(plan.bootstrap) as producer:
            began = time.monotonic()
            while (passed := time.monotonic() - began) < plan.seconds:
                due = int(passed * plan.records_per_s)
                while self.sent < due:
                    await producer.send(
                        plan.topic, b"%d" % time.time_ns(), partition=self.sent % plan.partitions
                    )
                    self.sent += 1
                await asyncio.sleep(0.005)

    async def disturb(self) -> None:
        self.wake_those_that_slept_enough()
        names = [each for each in self.running if each not in self.stopped]
        if len(self.running) < MEMBERS_MIN + 1:
            self.add()
            return
        action = self.rng.choice(["kill", "stop", "end", "add", "add"])
        if action == "add" or len(names) <= MEMBERS_MIN:
            if len(self.running) < MEMBERS_MAX:
                self.add()
            return
        name = self.rng.choice(names)
        self.done[action] += 1
        if action == "stop":
            self.running[name].send_signal(signal.SIGSTOP)
            self.pauses.setdefault(name, []).append((time.time_ns(), 2**62))
            longest_s = 1.7 * self.plan.session_ms / 1000
            self.stopped[name] = time.monotonic() + self.rng.uniform(0.2, longest_s)
            return
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL if action == "kill" else signal.SIGTERM)
        # The producer goes on meanwhile.
        await asyncio.to_thread(process.wait)

    def wake_those_that_slept_enough(self) -> None:
        for name, until in list(self.stopped.items()):
            if time.monotonic() >= until:
                self.go_on(name)

    def go_on(self, name: str) -> None:
        del self.stopped[name]
        self.running[name].send_signal(signal.SIGCONT)
        self.pauses[name][-1] = (self.pauses[name][-1][0], time.time_ns())

    def add(self) -> None:
        plan = self.plan
        self.started += 1
        self.done["add"] += 1
        name = f"member-{self.started}"
        command = [
            *(sys.executable, str(WORKER), plan.bootstrap, plan.topic, "turmoil"),
            *(str(plan.folder / name), plan.strategy, str(plan.session_ms)),
        ]
        with (plan.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
            )

    async def until_read(self, count: int) -> None:
        """Until so many records (or, for 1, partitions) are there; says what members said last."""
        end = time.monotonic() + 120
        while True:
            account = Account.of(self.plan.folder)
            if len(account.times) >= count or (count == 1 and account.assigned):
                return
            dead = [name for name, each in self.running.items() if each.poll() is not None]
            assert not dead, (self.plan.folder / f"{dead[0]}.log").read_text()[-4_000:]
            assert time.monotonic() < end, f"{len(account.times)} of {count} records were read"
            await asyncio.sleep(0.2)

    async def end(self) -> None:
        """All leave in order."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for name, process in self.running.items():
            assert process.wait(60) in {0, -signal.SIGTERM}, (
                self.plan.folder / f"{name}.log"
            ).read_text()[-4_000:]
        self.running = {}


class Gap(NamedTuple):
    """How long a record waited for a member that had its partition all the while."""

    ms: float
    member: str
    partition: int
    offset: int
    until_ns: int


class Account:
    """What all diaries say together."""

    def __init__(self) -> None:
        # How often each (partition, offset) was processed, and how often by one who committed it.
        self.times: Counter[tuple[int, int]] = Counter()
        self.committed: Counter[tuple[int, int]] = Counter()
        self.refused = 0
        self.assigned = 0
        # How long a record waited for a member that had its partition all the while, and was not
        # stopped itself: since it was sent, or since the record before was processed.
        self.gaps: list[Gap] = []
        # The same for the member as a whole: how long it processed nothing although it had
        # partitions with records. Those above may have waited behind what others had left to do.
        self.stalls_ms: list[float] = []
        # From the moment it was sent to the moment it was processed for the first time.
        self.latencies_ms: dict[tuple[int, int], float] = {}

    @classmethod
    def of(cls, folder: Path, pauses: Mapping[str, list[tuple[int, int]]] | None = None) -> Account:
        account = cls()
        for path in sorted(folder.glob("member-*")):
            if path.suffix != ".log":
                pauses_of = (pauses or {}).get(path.name, [])
                account.read(path.name, path.read_text().splitlines(), pauses_of)
        return account

    @property
    def again(self) -> int:
        """Processings that were not the first of their record."""
        return sum(self.times.values()) - len(self.times)

    @property
    def uncommitted(self) -> int:
        """Processings that their member did not get committed: the bound of those above."""
        return sum(self.times.values()) - sum(self.committed.values())

    def read(self, member: str, lines: list[str], pauses: list[tuple[int, int]]) -> None:
        waiting: dict[int, list[int]] = {}
        # What the member processed of each partition since it last got it.
        seen: dict[int, list[tuple[int, int, int]]] = {}
        for line in lines:
            kind, *rest = line.split()
            if kind == "P" and len(rest) == 4:
                partition, offset, sent_ns, now_ns = map(int, rest)
                self.times[partition, offset] += 1
                waiting.setdefault(partition, []).append(offset)
                seen.setdefault(partition, []).append((offset, sent_ns, now_ns))
                latency_ms = (now_ns - sent_ns) / NS_IN_MS
                before = self.latencies_ms.get((partition, offset), latency_ms)
                self.latencies_ms[partition, offset] = min(before, latency_ms)
            elif kind == "C" and len(rest) == 2:
                partition, position = map(int, rest)
                for offset in waiting.pop(partition, ()):
                    self.committed[partition, offset] += offset < position
            elif kind == "F":
                self.refused += 1
                waiting.clear()
            elif kind == "A":
                self.assigned += 1
            elif kind == "R" and len(rest) == 1:
                partition = int(rest[0])
                self.note_gaps(member, partition, seen.pop(partition, []), pauses)
        for partition, mine in seen.items():
            self.note_gaps(member, partition, mine, pauses)
        self.note_stalls(lines, pauses)

    def note_stalls(self, lines: list[str], pauses: list[tuple[int, int]]) -> None:
        """From one poll that gave records to the next, while it had partitions."""
        earlier = 0
        oldest: dict[int, int] = {}
        for line in [*lines, "A 0"]:
            kind, *rest = line.split()
            if kind == "P" and len(rest) == 4:
                sent_ns, now_ns = int(rest[2]), int(rest[3])
                oldest[now_ns] = min(oldest.get(now_ns, sent_ns), sent_ns)
            elif kind == "A" and rest == ["0"]:
                for later, sent in sorted(oldest.items()):
                    was_stopped = any(earlier < end and begin < later for begin, end in pauses)
                    if earlier and not was_stopped:
                        self.stalls_ms.append((later - max(earlier, sent)) / NS_IN_MS)
                    earlier = later
                earlier, oldest = 0, {}

    def note_gaps(
        self,
        member: str,
        partition: int,
        seen: list[tuple[int, int, int]],
        pauses: list[tuple[int, int]],
    ) -> None:
        self.gaps += [
            Gap((later - max(earlier, sent)) / NS_IN_MS, member, partition, next_, later)
            for (offset, _, earlier), (next_, sent, later) in pairwise(seen)
            if next_ == offset + 1
            and not any(earlier < end and begin < later for begin, end in pauses)
        ]

    def summary(self) -> str:
        gaps_ms = [each.ms for each in self.gaps]
        return (
            f"{len(self.times)} records, {self.again} processed again (bound: {self.uncommitted} "
            f"processed and not committed), {self.refused} commits refused; how long records of a "
            f"partition waited for a member that kept it: {_spread(gaps_ms)} "
            f"({max(self.gaps)}), and how long such a member processed nothing at all: "
            f"{_spread(self.stalls_ms)}; of any, from sent to processed: "
            f"{_spread(list(self.latencies_ms.values()))}"
        )


def _spread(times_ms: list[float]) -> str:
    ordered = sorted(times_ms)
    return (
        f"median {median(ordered):.0f}, p99 {ordered[len(ordered) * 99 // 100]:.0f}, "
        f"max {ordered[-1]:.0f} ms"
    )
