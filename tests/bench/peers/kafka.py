"""Three nodes of Apache Kafka on this machine: `with running_kafka(folder) as kafka`.

The jars come by Maven into build/peers/kafka the first time. Each node is broker and controller,
with 1 GiB of heap; topics are made when they are first written to, with three partitions and three
replicas, of which two must have a record before it is acknowledged (with acks=all).
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
JARS = ROOT / "build" / "peers" / "kafka"
POM = Path(__file__).with_name("pom.xml")
NODES = 3
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
MAVEN_TIMEOUT_S = 900
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 20.0


class Kafka(NamedTuple):
    """Nodes that run: `host:port` of all, and their processes."""

    servers: str
    pids: list[int]


@contextmanager
def running_kafka(folder: Path) -> Iterator[Kafka]:
    """Start the nodes, and end them after the block."""
    fetch_jars()
    ports = _free_ports(2 * NODES)
    brokers, controllers = ports[:NODES], ports[NODES:]
    pids: list[int] = []
    with ExitStack() as stack:
        for number in range(NODES):
            node = folder / f"node-{number}"
            node.mkdir(parents=True)
            config = node / "server.properties"
            config.write_text(_config(number, node, brokers[number], controllers))
            _java("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config))
            process = _start(config, node / "out.log")
            stack.callback(_end, process)
            pids.append(process.pid)
        for port in brokers:
            _until_listening(port)
        yield Kafka(",".join(f"127.0.0.1:{port}" for port in brokers), pids)


def produce(servers: str, topic: str, records: int, size: int, batch_bytes: int) -> None:
    """So many records of so many bytes, by Kafka's own tool; the topic is made by the way."""
    props = [f"bootstrap.servers={servers}", "acks=all", f"batch.size={batch_bytes}", "linger.ms=5"]
    sizes = ["--num-records", str(records), "--record-size", str(size), "--throughput", "-1"]
    tool = "org.apache.kafka.tools.ProducerPerformance"
    _java(tool, "--topic", topic, *sizes, "--producer-props", *props)


def fetch_jars() -> None:
    if not JARS.exists():
        maven = shutil.which("mvn")
        assert maven is not None, "Maven (mvn) fetches Apache Kafka: install it"
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={JARS}"]
        subprocess.run([maven, "-q", "-f", str(POM), *goal], check=True, timeout=MAVEN_TIMEOUT_S)


def _config(number: int, folder: Path, port: int, controllers: list[int]) -> str:
    voters = ",".join(f"{each}@127.0.0.1:{at}" for each, at in enumerate(controllers))
    settings = {
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controllers[number]}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": folder / "data",
        "num.partitions": 3,
        "default.replication.factor": 3,
        "min.insync.replicas": 2,
        "offsets.topic.replication.factor": 3,
        "transaction.state.log.replication.factor": 3,
        "transaction.state.log.min.isr": 2,
        "group.initial.rebalance.delay.ms": 0,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _start(config: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            [*_command("-Xmx1g", "-Xms1g", "-XX:+UseG1GC"), "kafka.Kafka", str(config)],
            stdout=out,
            stderr=out,
        )


def _java(*arguments: str) -> None:
    subprocess.run([*_command(), *arguments], check=True, capture_output=True, timeout=120)


def _command(*options: str) -> list[str]:
    java = shutil.which("java")
    assert java is not None, "Apache Kafka needs Java 17 or newer: install it"
    return [java, *options, "-cp", f"{JARS}/*"]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(STOP_TIMEOUT_S)


def _until_listening(port: int) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"nothing listens at port {port} after {START_TIMEOUT_S} s")


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
