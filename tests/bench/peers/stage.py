"""The systems that run, and rounds in which contenders take turns. The shell around `results`."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from bench.peers import environment, processes
from bench.peers.kafka import running_kafka
from bench.peers.nats import running_nats
from bench.peers.ours import running_tailrace
from bench.peers.results import Figures, by_figure, flow_figures
from bench.peers.sizes import Sizes
from bench.peers.system import PARTITIONS, Name, Running, System, cpu_s_of
from bench.peers.workloads import Contender, Workload

RUNNING: Final[dict[Name, Running]] = {
    Name.TAILRACE: running_tailrace,
    Name.KAFKA: running_kafka,
    Name.NATS: running_nats,
}
FILLERS: Final = {
    Name.TAILRACE: "ours",
    Name.KAFKA: "confluent",
    Name.NATS: "nats_py",
}


class Stage:
    """Systems are started when they are first asked for, and stay until `clear`."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self.sizes = sizes
        self.failures: list[str] = []
        self._folder = folder
        self._stack = ExitStack()
        self._systems: dict[Name, System] = {}
        self._filled: dict[tuple[Name, int], tuple[str, int]] = {}
        self._numbers = count()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def system(self, name: Name) -> System:
        if name not in self._systems:
            self._systems[name] = self._stack.enter_context(self.fresh(name))
        return self._systems[name]

    def clear(self) -> None:
        """End all systems: what comes next wants the machine for itself."""
        self._systems.clear()
        self._filled.clear()
        self._stack.close()

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
            filler, tools = FILLERS[name], ""
            if name is Name.NATS and environment.NATS_TOOL.exists():
                # Twice as fast as the other one.
                filler, tools = "nats_go", str(environment.NATS_TOOL)
            job = {"servers": system.servers, "topic": topic, "records": records, "size": size}
            processes.done(filler, "fill", {**job, "tools": tools, "partitions": PARTITIONS})
            self._filled[key] = topic, records
        return self._filled[key]

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
        self, workload: Workload, one: Callable[[Contender], Figures], *, warm_up: bool = False
    ) -> dict[str, dict[str, list[float]]]:
        """Round by round, every contender once in each; some to warm up do not count.

        Who fails takes no further part, and has no figures: the others go on.
        """
        rounds: dict[str, list[Figures]] = {each.name: [] for each in takes_part(workload)}
        for number in range(1 - self.sizes.warm_up * warm_up, self.sizes.rounds + 1):
            for contender in takes_part(workload):
                if contender.name not in rounds:
                    continue
                what = f"{workload.name}, {contender.name}, round {number}"
                try:
                    figures = one(contender)
                except processes.ClientFailed as error:
                    self.failures.append(f"{what}: {error}")
                    print(self.failures[-1], file=sys.stderr, flush=True)
                    del rounds[contender.name]
                    continue
                say(what, figures)
                if number >= 1:
                    rounds[contender.name].append(figures)
        return {name: by_figure(each) for name, each in rounds.items()}

    def flow(
        self, workload: Workload, contender: Contender, topic: str, records: int, action: str
    ) -> Figures:
        """Clients of a contender at work, from the word to their reports."""
        system = self.system(contender.system)
        jobs = [
            (contender.script, action, self.job(workload, contender, topic, records=records))
            for _ in range(workload.clients)
        ]
        with processes.clients(jobs) as started:
            before_s = cpu_s_of(system.pids)
            for each in started:
                each.go()
            reports = [each.report() for each in started]
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
