"""The systems that run, and rounds in which contenders take turns. The shell around `results`."""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from bench import machine
from bench.peers import environment, processes
from bench.peers.journal import Journal, Turn, complete_rounds
from bench.peers.kafka import running_kafka
from bench.peers.nats import running_nats
from bench.peers.ours import running_tailrace
from bench.peers.results import Figures, by_figure, flow_figures
from bench.peers.sizes import Sizes
from bench.peers.system import PARTITIONS, Name, Running, System, cpu_s_of, topic_of
from bench.peers.workloads import Contender, Workload

RUNNING: Final[dict[Name, Running]] = {
    Name.TAILRACE: running_tailrace,
    Name.KAFKA: running_kafka,
    Name.NATS: running_nats,
}
ATTEMPTS: Final = 2
"""How often a contender may try a round: a system that hangs once must not cost its figures."""

ON_JVM: Final = {Name.KAFKA}
JVM_WARM_SIZE: Final = 1_024
FILLERS: Final = {
    Name.TAILRACE: "ours",
    Name.KAFKA: "confluent",
    Name.NATS: "nats_py",
}


class Stage:
    """Systems are started when they are first asked for, and stay until `clear`."""

    def __init__(
        self,
        folder: Path,
        sizes: Sizes,
        journal: Journal | None = None,
        ends: float = math.inf,
    ) -> None:
        self.sizes = sizes
        self.failures: list[str] = []
        self._folder = folder
        self._journal = journal or Journal()
        # The moment (monotonic) after which no round begins but the first of a workload.
        self._ends = ends
        self._systems: dict[Name, tuple[System, ExitStack]] = {}
        self._filled: dict[tuple[Name, int], tuple[str, int]] = {}
        self._warmed: set[Name] = set()
        self._numbers = count()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def system(self, name: Name) -> System:
        if name not in self._systems:
            stack = ExitStack()
            self._systems[name] = stack.enter_context(self.fresh(name)), stack
        return self._systems[name][0]

    def clear(self) -> None:
        """End all systems: what comes next wants the machine for itself."""
        for name in list(self._systems):
            self.drop(name)

    def drop(self, name: Name) -> None:
        """End one, if it runs; who asks for it next gets another."""
        self._warmed.discard(name)
        self._filled = {key: each for key, each in self._filled.items() if key[0] is not name}
        _, stack = self._systems.pop(name, (None, ExitStack()))
        stack.close()

    @contextmanager
    def fresh(self, name: Name) -> Iterator[System]:
        """A system of its own, with nothing in it."""
        with self.new_folder(name) as folder, RUNNING[name](folder) as system:
            yield system

    @contextmanager
    def new_folder(self, name: Name) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(
            prefix=f"{name}-", dir=self._folder, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder) / "data"

    def new_name(self) -> str:
        return f"bench-{next(self._numbers)}"

    def warm(self, name: Name) -> None:
        """Before throughput is timed: what a JVM compiles is compiled. Once for each that runs."""
        if name not in ON_JVM or name in self._warmed:
            return
        size = JVM_WARM_SIZE
        with topic_of(self.system(name), self.new_name()) as topic:
            for action in ("produce", "consume"):
                records = self.sizes.jvm_warm_bytes // size
                self.fast(name, action, topic, records, size)
        self._warmed.add(name)

    def filled(self, name: Name, size: int) -> tuple[str, int]:
        """A topic full of records, made once; and how many there are."""
        key = (name, size)
        if key not in self._filled:
            system, topic = self.system(name), self.new_name()
            system.create_topic(topic)
            records = min(
                self.sizes.fill_bytes // size,
                self.sizes.fill_records_max.get(name, sys.maxsize),
            )
            self.fast(name, "fill", topic, records, size)
            self._filled[key] = topic, records
        return self._filled[key]

    def fast(self, name: Name, action: str, topic: str, records: int, size: int) -> None:
        """Fill or read a topic with the client of a system that is best at it: no figure of it."""
        script, tools = FILLERS[name], ""
        if name is Name.NATS and environment.NATS_TOOL.exists():
            script, tools = "nats_go", str(environment.NATS_TOOL)
        job = {
            "servers": self.system(name).servers,
            "topic": topic,
            "records": records,
            "size": size,
            "tools": tools,
            "way": "rows" if name is Name.TAILRACE else "",
            "partitions": PARTITIONS,
        }
        processes.done(script, action, job)

    def job(self, workload: Workload, contender: Contender, topic: str, **more: Any) -> Any:
        """What a client of a contender is told."""
        tools = {
            "java": "\n".join(environment.java()),
            "nats_go": str(environment.NATS_TOOL),
        }
        return {
            "servers": self.system(contender.system).servers,
            "topic": topic,
            "size": workload.size,
            "partitions": PARTITIONS,
            "tools": tools.get(contender.script, ""),
            "group": self.new_name(),
            **contender.options,
            **more,
        }

    def in_turns(
        self, workload: Workload, one: Callable[[Contender], Figures], *, warm_ups: int = 0
    ) -> dict[str, dict[str, list[float]]]:
        """Round by round, every contender once in each; some to warm up do not count.

        Who fails twice takes no further part, and keeps the figures that it has: the others go on.
        Rounds that the journal has are not done again.
        """
        part = {each.name: each for each in takes_part(workload)}
        rounds = complete_rounds(self.turns(workload), list(part))
        whole = min(map(len, rounds.values()), default=0)
        first = [] if whole >= self.sizes.rounds else range(1 - warm_ups, 1)
        for number in (*first, *range(whole + 1, self.sizes.rounds + 1)):
            if number > 1 and time.monotonic() > self._ends:
                print(f"{workload.name}: the time is over", file=sys.stderr, flush=True)
                break
            for contender in list(part.values()):
                figures = self._turn(workload, contender, number, one)
                if figures is None:
                    del part[contender.name]
                elif number >= 1:
                    rounds[contender.name].append(figures)
        return {name: by_figure(each) for name, each in rounds.items() if each}

    def _turn(
        self,
        workload: Workload,
        contender: Contender,
        number: int,
        one: Callable[[Contender], Figures],
    ) -> Figures | None:
        """After a failure once more, on a system that was started anew; None: failed again."""
        what = f"{workload.name}, {contender.name}, round {number}"
        for _ in range(ATTEMPTS):
            began = time.monotonic()
            try:
                figures = one(contender)
            except Exception as error:  # noqa: BLE001 - whatever it is, the other workloads go on.
                told = f"{type(error).__name__}: {error}"
                self.failed(f"{what}: {told}")
                self.note(workload, contender.name, number, time.monotonic() - began, failed=told)
                self._drop_broken(contender.system)
                continue
            say(what, figures)
            if number >= 1:
                self.note(workload, contender.name, number, time.monotonic() - began, figures)
            return figures
        return None

    def note(
        self,
        workload: Workload,
        contender: str,
        number: int,
        took_s: float,
        figures: Figures | None = None,
        *,
        failed: str = "",
    ) -> None:
        run, load = self._journal.run, machine.load()
        self._journal.note(
            Turn(run, workload.name, contender, number, took_s, load, dict(figures or {}), failed)
        )

    def turns(self, workload: Workload) -> list[Turn]:
        """All that this run did of a workload so far."""
        return self._journal.of(workload.name)

    def is_done(self, workload: Workload) -> bool:
        names = [each.name for each in takes_part(workload)]
        rounds = complete_rounds(self.turns(workload), names)
        return all(len(each) >= self.sizes.rounds for each in rounds.values())

    def failed(self, what: str) -> None:
        self.failures.append(what)
        print(f"failed: {what}", file=sys.stderr, flush=True)

    def _drop_broken(self, name: Name) -> None:
        try:
            self.drop(name)
        except Exception as error:  # noqa: BLE001 - it was broken before.
            self.failed(f"end of {name}: {type(error).__name__}: {error}")

    def flow(
        self,
        workload: Workload,
        contender: Contender,
        topic: str,
        records: int,
        action: str,
        *,
        meet: bool = False,
        within_s: float = processes.WORK_S_MAX,
    ) -> Figures:
        """Clients of a contender at work, from the word to their reports.

        `records`: for each process. `meet`: they connect first, and get the word when all have.
        """
        system = self.system(contender.system)
        jobs = [
            (contender.script, action, self.job(workload, contender, topic, records=records))
            for _ in range(workload.clients)
        ]
        with processes.clients(jobs) as started:
            if meet:
                for each in started:
                    each.go()
                for each in started:
                    each.expect_ok(within_s)
            before_s = cpu_s_of(system.pids)
            for each in started:
                each.go()
            reports = [each.report(within_s) for each in started]
            broker_cpu_s = cpu_s_of(system.pids) - before_s
        return flow_figures(
            records=sum(int(each["records"]) for each in reports),
            size=workload.size,
            seconds=_seconds(reports),
            broker_cpu_s=broker_cpu_s,
            client_cpu_s=sum(each["cpu_s"] for each in reports),
        )


def takes_part(workload: Workload) -> list[Contender]:
    """All but those whose tool cannot be had on this machine."""
    return [
        each
        for each in workload.contenders
        if each.script != "nats_go" or environment.NATS_TOOL.exists()
    ]


def drop_from_memory(folder: Path) -> None:
    """Have the kernel forget what it holds of files, so that they are read from the disk."""
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file():
                file = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(file)
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(file)


def say(what: str, figures: Figures) -> None:
    """A run that is broken off has said what it found so far."""
    told = ", ".join(f"{name} {value:,.4g}" for name, value in figures.items())
    print(f"{what}: {told}", file=sys.stderr, flush=True)


def _seconds(reports: Sequence[dict[str, Any]]) -> float:
    """What a tool tells of itself counts, else from the first beginning to the last end."""
    if len(reports) == 1 and "seconds" in reports[0]:
        return float(reports[0]["seconds"])
    began, ended = min(each["began"] for each in reports), max(each["ended"] for each in reports)
    return float(ended - began)
