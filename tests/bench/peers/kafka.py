"""Three nodes of Apache Kafka on this machine: `with running_kafka(folder) as kafka`.

The jars come by Maven into build/peers/kafka the first time. Each node is broker and controller,
with 1 GiB of heap; topics that nobody made are made when they are first written to, with three
partitions and three replicas, of which two must have a record before it is acknowledged (acks=all).
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.peers.environment import fetch_jars, java
from bench.peers.processes import Server, client, done, free_ports, until_listening
from bench.peers.system import NODES, PARTITIONS, Fault, Harm

CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"
HEAP: Final = ("-Xmx1g", "-Xms1g", "-XX:+UseG1GC")
TOOL_S_MAX: Final = 120
LEADER: Final = re.compile(r"^LeaderId:\s+(\d+)", re.MULTILINE)
CLIENT: Final = "confluent"


class Kafka:
    """Nodes that run. Their numbers are those that clients see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = free_ports(2 * NODES)
        self._brokers, self._controllers = ports[:NODES], ports[NODES:]
        self._nodes = [self._node(number) for number in range(NODES)]

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._brokers)

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in self._nodes]

    @property
    def broker_pids(self) -> Sequence[int]:
        return self.pids

    def format(self) -> None:
        """All at once, as nodes elsewhere do it."""
        with ExitStack() as stack:
            formatting = []
            for number in range(NODES):
                path = self._config_path(number)
                arguments = ["format", "-t", CLUSTER_ID, "-c", str(path)]
                command = [*java(), "kafka.tools.StorageTool", *arguments]
                one = Server(command, path.with_name("format.log"))
                stack.callback(one.kill)
                one.start()
                formatting.append(one)
            for one in formatting:
                assert one.ended(TOOL_S_MAX) == 0, f"see format.log of the nodes in {self.folder}"

    def start(self) -> None:
        for each in self._nodes:
            each.start()

    def kill(self) -> None:
        for each in self._nodes:
            each.kill()

    def until_listening(self) -> None:
        for port in self._brokers:
            until_listening(port)

    def create_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        done(CLIENT, "create", self._job(name, partitions=partitions))

    def delete_topic(self, name: str) -> None:
        done(CLIENT, "delete", self._job(name))

    def until_acknowledged(self) -> float:
        return float(done(CLIENT, "first", self._job("first"))["moment"])

    @contextmanager
    def staged(self, fault: Fault, topic: str) -> Iterator[Harm]:
        """As every node may be controller, the topic's leader is chosen to suit the fault."""
        controller = self.controller()
        others = [each for each in range(NODES) if each != controller]
        leader = controller if fault is Fault.BOTH else others[0]
        victim = {Fault.FOLLOWER: others[1], Fault.CONTROLLER: controller}.get(fault, leader)
        replicas = [leader, *(each for each in range(NODES) if each != leader)]
        done(CLIENT, "create", self._job(topic, way=",".join(map(str, replicas))))
        done(CLIENT, "until_well", self._job(topic))

        def harm() -> None:
            node = self._nodes[victim]
            if fault is Fault.SIGTERM:
                node.terminate()
            else:
                node.kill()

        try:
            yield harm
        finally:
            self._nodes[victim].start()
            until_listening(self._brokers[victim])
            done(CLIENT, "until_well", self._job(topic))

    def some_node(self) -> int:
        return (self.controller() + 1) % NODES

    def kill_node(self, number: int) -> None:
        self._nodes[number].kill()

    def controller(self) -> int:
        """Which node is the active one; the tool is slow, so nobody asks in a hurry."""
        told = _tool(
            *("org.apache.kafka.tools.MetadataQuorumCommand", "--bootstrap-server", self.servers),
            *("describe", "--status"),
        )
        found = LEADER.search(told)
        assert found is not None, f"no leader of the quorum is told: {told}"
        return int(found[1])

    def _job(self, topic: str, **more: Any) -> dict[str, Any]:
        return {"servers": self.servers, "topic": topic, "partitions": PARTITIONS, **more}

    def _node(self, number: int) -> Server:
        path = self._config_path(number)
        path.parent.mkdir(parents=True)
        path.write_text(self._config(number), encoding="utf-8")
        command = [*java(*HEAP), "kafka.Kafka", str(path)]
        return Server(command, path.with_name("out.log"))

    def _config_path(self, number: int) -> Path:
        return self.folder / f"node-{number}" / "server.properties"

    def _config(self, number: int) -> str:
        voters = ",".join(f"{each}@127.0.0.1:{at}" for each, at in enumerate(self._controllers))
        port, controller = self._brokers[number], self._controllers[number]
        settings = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.folder / f"node-{number}" / "data",
            "num.partitions": PARTITIONS,
            "default.replication.factor": NODES,
            "min.insync.replicas": 2,
            "offsets.topic.replication.factor": NODES,
            "transaction.state.log.replication.factor": NODES,
            "transaction.state.log.min.isr": 2,
            "group.initial.rebalance.delay.ms": 0,
            # What a round wrote is gone soon after it, and does not burden the next ones.
            "log.segment.delete.delay.ms": 1_000,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())


@contextmanager
def running_kafka(folder: Path) -> Iterator[Kafka]:
    """Start the nodes, and end them after the block."""
    fetch_jars()
    with ExitStack() as stack:
        kafka = Kafka(folder)
        kafka.format()
        stack.callback(kafka.kill)
        kafka.start()
        kafka.until_listening()
        yield kafka


def first_acknowledgement(folder: Path) -> dict[str, float]:
    """Seconds from nothing to the first acknowledgement, and how much of it was formatting."""
    fetch_jars()
    kafka = Kafka(folder)
    began = time.monotonic()
    kafka.format()
    formatted = time.monotonic()
    job = {"servers": kafka.servers, "topic": "first"}
    with ExitStack() as stack:
        stack.callback(kafka.kill)
        # The client stands ready before there is anybody: its own start does not count.
        one = stack.enter_context(client(CLIENT, "first", job))
        started = time.monotonic()
        kafka.start()
        one.go()
        acknowledged = one.report()["moment"]
    format_s = formatted - began
    return {"start_s": acknowledged - started + format_s, "format_s": format_s}


def produce(servers: str, topic: str, records: int, size: int, batch_bytes: int) -> None:
    """So many records of so many bytes, by Kafka's own tool; the topic is made by the way."""
    props = [f"bootstrap.servers={servers}", "acks=all", f"batch.size={batch_bytes}", "linger.ms=5"]
    sizes = ["--num-records", str(records), "--record-size", str(size), "--throughput", "-1"]
    tool = "org.apache.kafka.tools.ProducerPerformance"
    _tool(tool, "--topic", topic, *sizes, "--producer-props", *props)


def _tool(*arguments: str) -> str:
    run = subprocess.run(
        [*java(), *arguments], check=True, capture_output=True, text=True, timeout=TOOL_S_MAX
    )
    return run.stdout
