"""How each kind of workload is run: from a stage and a workload to rounds of figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any, Final, TypeAlias

from bench.peers import kafka, ours
from bench.peers.journal import complete_rounds, figures_of
from bench.peers.processes import (
    PATHS,
    ROOT,
    STOP_S_MAX,
    ClientFailed,
    client,
    clients,
    done,
)
from bench.peers.results import Figures, by_figure, longest_gap_s, unavailable_s
from bench.peers.sizes import Sizes, Volumes
from bench.peers.stage import Stage, drop_from_memory, say
from bench.peers.system import Breakable, Name, System, cpu_s_of, resident_mib_of, topic_of
from bench.peers.workloads import SPARK_OURS, SPARK_PEER, Contender, Kind, Workload

MANY_S_MAX: Final = 300.0
"""How long a thousand partitions may take, to be made or to move."""

MEMBERS: Final = 3
SPARK_S_MAX: Final = 900
"""How long Spark may read one size, all rounds."""

SPARK_NAMES: Final = {
    # As bench_spark.py calls them, and as the workloads do.
    ("Tailrace", "batch"): SPARK_OURS,
    ("Kafka", "batch"): SPARK_PEER,
    ("Tailrace", "AvailableNow"): f"{SPARK_OURS}, AvailableNow",
    ("Kafka", "AvailableNow"): f"{SPARK_PEER}, AvailableNow",
    ("Tailrace", "AvailableNow, its triggers"): f"{SPARK_OURS}, AvailableNow without its start",
    ("Kafka", "AvailableNow, its triggers"): f"{SPARK_PEER}, AvailableNow without its start",
}

Rounds: TypeAlias = dict[str, dict[str, list[float]]]


def produce(stage: Stage, workload: Workload) -> Rounds:
    volumes = Volumes(stage.sizes, workload.size, workload.clients)

    def one(contender: Contender) -> Figures:
        stage.warm(contender.system)
        with topic_of(stage.system(contender.system), stage.new_name()) as topic:
            records = volumes.records(contender.name)
            figures = stage.flow(workload, contender, topic, records, "produce")
        volumes.note(contender.name, figures["records_per_s"])
        return figures

    return stage.in_turns(workload, one, warm_ups=stage.sizes.warm_ups(workload.kind))


def consume(stage: Stage, workload: Workload) -> Rounds:
    volumes = Volumes(stage.sizes, workload.size, workload.clients)

    def one(contender: Contender) -> Figures:
        stage.warm(contender.system)
        topic, there = stage.filled(contender.system, workload.size)
        records = min(volumes.records(contender.name), there)
        figures = stage.flow(workload, contender, topic, records, "consume")
        volumes.note(contender.name, figures["records_per_s"])
        return figures

    return stage.in_turns(workload, one, warm_ups=stage.sizes.warm_ups(workload.kind))


def single(stage: Stage, workload: Workload) -> Rounds:
    return _waits(stage, workload, "single")


def round_trip(stage: Stage, workload: Workload) -> Rounds:
    return _waits(stage, workload, "round_trip")


def _waits(stage: Stage, workload: Workload, action: str) -> Rounds:
    def one(contender: Contender) -> Figures:
        with topic_of(stage.system(contender.system), stage.new_name()) as topic:
            job = stage.job(workload, contender, topic, records=stage.sizes.singles)
            return _percentiles(done(contender.script, action, job))

    return stage.in_turns(workload, one, warm_ups=stage.sizes.warm_ups(workload.kind))


def paced(stage: Stage, workload: Workload) -> Rounds:
    records = int(workload.rate * stage.sizes.seconds)

    def one(contender: Contender) -> Figures:
        with topic_of(stage.system(contender.system), stage.new_name()) as topic:
            job = stage.job(workload, contender, topic, records=records, rate=workload.rate)
            return _percentiles(done(contender.script, "paced", job))

    return stage.in_turns(workload, one, warm_ups=stage.sizes.warm_ups(workload.kind))


def backlog(stage: Stage, workload: Workload) -> Rounds:
    """Single records go on while a consumer reads a full topic that nothing has in memory."""

    def one(contender: Contender) -> Figures:
        system = stage.system(contender.system)
        full, records = stage.filled(contender.system, workload.size)
        with topic_of(system, stage.new_name()) as topic, ExitStack() as stack:
            reading = stage.job(workload, contender, full, records=records)
            writing = stage.job(workload, contender, topic, records=stage.sizes.singles, way="")
            script = contender.script
            reader = stack.enter_context(client(script, "consume", reading))
            writer = stack.enter_context(client(script, "single", writing))
            drop_from_memory(system.folder)
            reader.go()
            writer.go()
            waits, read = writer.report(), reader.report()
        speed = records * workload.size / 1e6 / (read["ended"] - read["began"])
        return {"mb_per_s": speed, **_percentiles(waits)}

    return stage.in_turns(workload, one)


def rebalance(stage: Stage, workload: Workload) -> Rounds:
    def one(contender: Contender) -> Figures:
        system = stage.system(contender.system)
        with topic_of(system, stage.new_name()) as topic:
            job = stage.job(workload, contender, topic)
            wanted = [(contender.script, "steady", job)]
            wanted += [(contender.script, "member", job)] * MEMBERS
            with clients(wanted) as (producer, *members, joining):
                _flow(producer, *members)
                time.sleep(stage.sizes.settle_s)
                began = time.monotonic()
                _flow(joining)
                time.sleep(stage.sizes.steady_s)
                ended = time.monotonic()
                everybody = (*members, joining, producer)
                for each in everybody:
                    each.say("stop")
                reports = [each.report() for each in everybody][:MEMBERS]
        return {"gap_s": longest_gap_s(_merged(reports), began, ended)}

    return stage.in_turns(workload, one)


def _flow(*started: Any) -> None:
    """Have them begin, and wait until records go through all of them."""
    for each in started:
        each.go()
    moment = time.monotonic()
    for each in started:
        each.say(f"flowing {moment}")
    for each in started:
        each.expect_ok()


def _merged(reports: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Whoever read a partition: it was read."""
    found: dict[str, list[float]] = {}
    for report in reports:
        for partition, moments in report["moments"].items():
            found.setdefault(partition, []).extend(moments)
    return found


def failover(stage: Stage, workload: Workload) -> Rounds:
    fault = workload.fault
    assert fault is not None

    def one(contender: Contender) -> Figures:
        system, topic = stage.system(contender.system), stage.new_name()
        assert isinstance(system, Breakable)
        with system.staged(fault, topic) as harm:
            job = stage.job(workload, contender, topic, partitions=1)
            with client(contender.script, "steady", job) as producer:
                _flow(producer)
                time.sleep(stage.sizes.steady_s)
                began = time.monotonic()
                harm()
                producer.say(f"flowing {time.monotonic()}")
                producer.expect_ok()
                time.sleep(stage.sizes.steady_s)
                producer.say("stop")
                report = producer.report()
        if report["failed"]:
            raise ClientFailed(f"{report['failed']} records failed")
        return {"unavailable_s": unavailable_s(report["waits"], began)}

    return stage.in_turns(workload, one)


def start(stage: Stage, workload: Workload) -> Rounds:
    stage.clear()
    starting = {
        Name.KAFKA: kafka.first_acknowledgement,
        Name.TAILRACE: ours.first_acknowledgement,
    }

    def one(contender: Contender) -> Figures:
        with stage.new_folder(contender.system) as folder:
            return starting[contender.system](folder)

    return stage.in_turns(workload, one)


def idle(stage: Stage, workload: Workload) -> Rounds:
    stage.clear()

    def one(contender: Contender) -> Figures:
        with stage.fresh(contender.system) as system:
            system.until_acknowledged()
            time.sleep(stage.sizes.settle_s)
            before_s = cpu_s_of(system.pids)
            time.sleep(stage.sizes.idle_s)
            used_s = cpu_s_of(system.pids) - before_s
            return {"cpu_percent": used_s / stage.sizes.idle_s * 100, **_resident(system)}

    return stage.in_turns(workload, one)


def loaded(stage: Stage, workload: Workload) -> Rounds:
    """What brokers hold after some hundred megabytes in and out."""

    def one(contender: Contender) -> Figures:
        name, records = contender.system, stage.sizes.load_bytes // workload.size
        system = stage.system(name)
        with topic_of(system, stage.new_name()) as topic:
            for action in ("fill", "consume"):
                stage.fast(name, action, topic, records, workload.size)
        return _resident(system)

    return stage.in_turns(workload, one)


def partitions(stage: Stage, workload: Workload) -> Rounds:
    stage.clear()

    def one(contender: Contender) -> Figures:
        with stage.fresh(contender.system) as system:
            job = {"servers": system.servers, "topic": "many", "partitions": stage.sizes.partitions}
            with client(contender.script, "write_each", job) as writer:
                writer.go()
                written = writer.report(MANY_S_MAX)
            assert isinstance(system, Breakable)
            node = system.some_node()
            with client(contender.script, "until_moved", {**job, "node": node}) as watcher:
                began = time.monotonic()
                system.kill_node(node)
                watcher.go()
                moved = watcher.report(MANY_S_MAX)
        return {
            "created_s": written["made"] - written["began"],
            "all_written_s": written["moment"] - written["began"],
            "leaders_moved_s": moved["moment"] - began,
        }

    return stage.in_turns(workload, one)


def spark(stage: Stage, workload: Workload) -> Rounds:
    """Rounds of the bench of Spark, where both sides take turns in one session."""
    stage.clear()
    names = [each.name for each in workload.contenders]
    known = complete_rounds(stage.turns(workload), names)
    if min(map(len, known.values())) >= stage.sizes.rounds:
        return {name: by_figure(each) for name, each in known.items()}
    warm_ups = stage.sizes.warm_ups(workload.kind)
    numbers = dict.fromkeys(names, -warm_ups)
    began = time.monotonic()
    for line in _spark_lines(workload.size, stage.sizes, stage.sizes.rounds + warm_ups):
        told = json.loads(line)
        if told["figure"] == "read" and (name := SPARK_NAMES.get((told["side"], told["kind"]))):
            figures = {"records_per_s": float(told["rows_per_s"])}
            numbers[name] += 1
            took_s, began = time.monotonic() - began, time.monotonic()
            say(f"{workload.name}, {name}, round {numbers[name]}", figures)
            if numbers[name] >= 1:
                stage.note(workload, name, numbers[name], took_s, figures)
    return figures_of(stage.turns(workload))


def _spark_lines(size: int, sizes: Sizes, rounds: int) -> Iterator[str]:
    """What the bench of Spark says, line by line; it ends with us, and in time."""
    paths = (*PATHS, str(ROOT / "spark-jobs"))
    with subprocess.Popen(
        [
            *("timeout", "-k", "30", str(SPARK_S_MAX)),
            *(sys.executable, str(ROOT / "tests" / "bench" / "bench_spark.py")),
            *("--parts", "read", "--sizes", str(size), "--rounds", str(rounds)),
            *("--bytes", str(sizes.spark_bytes)),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield from process.stdout
        except BaseException:
            process.terminate()
            raise
        if process.wait(STOP_S_MAX):
            raise ClientFailed(f"the bench of Spark ended with code {process.returncode}")


def _resident(system: System) -> Figures:
    return {"resident_mib": median(resident_mib_of(system.broker_pids))}


def _percentiles(report: dict[str, Any]) -> Figures:
    return {name: report[name] for name in ("p50_ms", "p99_ms", "p999_ms")}


RUNS: Final[dict[Kind, Callable[[Stage, Workload], Rounds]]] = {
    Kind.PRODUCE: produce,
    Kind.CONSUME: consume,
    Kind.SINGLE: single,
    Kind.ROUND_TRIP: round_trip,
    Kind.PACED: paced,
    Kind.BACKLOG: backlog,
    Kind.REBALANCE: rebalance,
    Kind.LOADED: loaded,
    Kind.FAILOVER: failover,
    Kind.START: start,
    Kind.IDLE: idle,
    Kind.PARTITIONS: partitions,
    Kind.SPARK: spark,
}
