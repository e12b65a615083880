"""Consumption side by side: Tailrace and the clients of Apache Kafka, in one run, in turn.

Three brokers of each on this machine, a topic of three partitions and three replicas, filled alike
(batches of a megabyte) and read whole by each client in a process of its own, one after the other,
round after round: what disturbs the machine disturbs all of them. The figures are medians; ratios
are to confluent-kafka tuned for throughput.

    make bench-peers
    PYTHONPATH=tests .venv/bin/python -m bench.peers.consume --rounds 5 --json
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench import usage
from bench.peers.client import CONSUMERS, PARTITIONS
from bench.peers.clients import PYTHON, install_clients
from bench.peers.kafka import running_kafka
from integration.cluster_harness import start, stop
from tailrace import Admin
from tailrace.dev.state import Role

CLIENT = Path(__file__).with_name("client.py")
REFERENCE = "confluent-kafka"
RUN_S_MAX = 300.0
BYTES_MAX = 600_000_000
GB = 1e9
GOALS = {"tailrace Arrow": 3.0, "tailrace rows": 1.0}


@dataclass(frozen=True)
class Side:
    """One of the two systems: where it is, and the processes that serve."""

    bootstrap: str
    pids: list[int]


@dataclass(frozen=True)
class Run:
    """One client that read the whole topic once."""

    client: str
    value_bytes: int
    records_per_s: float
    client_cpu_s_per_gb: float
    broker_cpu_s_per_gb: float


@dataclass(frozen=True)
class Line:
    """The medians of one client."""

    client: str
    value_bytes: int
    records_per_s: float
    lowest: float
    highest: float
    client_cpu_s_per_gb: float
    broker_cpu_s_per_gb: float
    of_reference: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="100,1024")
    parser.add_argument("--clients", default=",".join(CONSUMERS).replace(", ", "; "))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # `timeout` ends us by this: what was started is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("broken off"))
    clients = [each.replace("; ", ", ") for each in options.clients.split(",")]
    install_clients()
    lines: list[Line] = []
    with (
        tempfile.TemporaryDirectory(prefix="kafka-") as folder,
        running_kafka(Path(folder)) as kafka,
        running_tailrace() as tailrace,
    ):
        for size in map(int, options.sizes.split(",")):
            records = min(options.records, BYTES_MAX // size)
            topic = f"bench-{size}"
            with Admin(tailrace.bootstrap) as admin:
                admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
            sides = {"kafka": Side(kafka.servers, kafka.pids), "tailrace": tailrace}
            for name, side in sides.items():
                at_work("fill", name, side, topic, records, size)
            lines += compare(sides, clients, topic, records, size, options.rounds)
    if options.json:
        print(json.dumps([asdict(each) for each in lines]))
    else:
        show(lines)
    return 0


@contextmanager
def running_tailrace() -> Iterator[Side]:
    with tempfile.TemporaryDirectory(prefix="tailrace-") as folder:
        dev = start(Path(folder), controllers=1, coordinators=1)
        try:
            brokers = [
                each.identity.pid
                for each in dev.state.members
                if each.role is Role.BROKER and each.identity is not None
            ]
            yield Side(dev.state.bootstrap, brokers)
        finally:
            stop(dev)


def compare(
    sides: dict[str, Side], clients: list[str], topic: str, records: int, size: int, rounds: int
) -> list[Line]:
    runs: dict[str, list[Run]] = {name: [] for name in clients}
    # The first round warms everything up, and does not count.
    for number in range(rounds + 1):
        for name in clients:
            side = sides["tailrace" if name.startswith("tailrace") else "kafka"]
            run = at_work("consume", name, side, topic, records, size)
            if number:
                runs[name].append(run)
    reference = median(each.records_per_s for each in runs[REFERENCE])
    return [_line(each, reference) for each in runs.values()]


def _line(runs: list[Run], reference: float) -> Line:
    speeds = [each.records_per_s for each in runs]
    return Line(
        client=runs[0].client,
        value_bytes=runs[0].value_bytes,
        records_per_s=median(speeds),
        lowest=min(speeds),
        highest=max(speeds),
        client_cpu_s_per_gb=median(each.client_cpu_s_per_gb for each in runs),
        broker_cpu_s_per_gb=median(each.broker_cpu_s_per_gb for each in runs),
        of_reference=median(speeds) / reference,
    )


def at_work(action: str, name: str, side: Side, topic: str, records: int, size: int) -> Run:
    """Run one client to its end."""
    is_ours = name.startswith("tailrace")
    python = sys.executable if is_ours else str(PYTHON)
    # -P: a module of ours has the name of one of theirs.
    command = [
        python,
        "-P",
        str(CLIENT),
        action,
        name,
        side.bootstrap,
        topic,
        str(records),
        str(size),
    ]
    before = cpu_s(side.pids)
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=RUN_S_MAX)
    told = json.loads(done.stdout.splitlines()[-1])
    gigabytes = records * size / GB
    run = Run(
        client=name,
        value_bytes=size,
        records_per_s=records / told["seconds"],
        client_cpu_s_per_gb=told["cpu_s"] / gigabytes,
        broker_cpu_s_per_gb=(cpu_s(side.pids) - before) / gigabytes,
    )
    # A run that is broken off has said what it found so far.
    print(
        f"{action} {name}, {size} B: {run.records_per_s:,.0f} records/s, CPU-s/GB "
        f"{run.client_cpu_s_per_gb:.1f} + {run.broker_cpu_s_per_gb:.1f}",
        file=sys.stderr,
        flush=True,
    )
    return run


def cpu_s(pids: list[int]) -> float:
    """CPU seconds of processes so far."""
    return sum(map(usage.cpu_s, pids))


def show(lines: list[Line]) -> None:
    print(
        f"{'':26}{'value':>6}{'records/s':>12}{'lowest':>12}{'highest':>12}"
        f"{'CPU-s/GB client':>17}{'brokers':>9}{'of ' + REFERENCE:>20}"
    )
    for each in lines:
        goal = GOALS.get(each.client) if each.value_bytes == 100 else None
        verdict = "" if goal is None else f"  goal {goal}: {_word(each.of_reference >= goal)}"
        print(
            f"{each.client:26}{each.value_bytes:>6}{each.records_per_s:>12,.0f}"
            f"{each.lowest:>12,.0f}{each.highest:>12,.0f}{each.client_cpu_s_per_gb:>17.1f}"
            f"{each.broker_cpu_s_per_gb:>9.1f}{each.of_reference:>20.2f}{verdict}"
        )


def _word(is_met: bool) -> str:
    return "met" if is_met else "missed"


if __name__ == "__main__":
    sys.exit(main())
