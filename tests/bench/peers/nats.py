"""Three nodes of NATS with JetStream on this machine: `with running_nats(folder) as nats`.

The server comes with the packages in build/peers/venv. A stream in files with three replicas is
what a topic is elsewhere; no node syncs a record before it is acknowledged, as none elsewhere does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.peers.environment import NATS_SERVER
from bench.peers.processes import Server, done, free_ports, until_listening
from bench.peers.system import NODES, PARTITIONS

CLIENT: Final = "nats_py"


class Nats:
    """Nodes that run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = free_ports(2 * NODES)
        self._ports, self._routes = ports[:NODES], ports[NODES:]
        self._nodes = [self._node(number) for number in range(NODES)]

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in self._nodes]

    @property
    def broker_pids(self) -> Sequence[int]:
        return self.pids

    def start(self) -> None:
        for each in self._nodes:
            each.start()

    def kill(self) -> None:
        for each in self._nodes:
            each.kill()

    def until_listening(self) -> None:
        for port in self._ports:
            until_listening(port)

    def create_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        """A stream has no partitions: how many are wanted makes no difference."""
        done(CLIENT, "create", {"servers": self.servers, "topic": name, "partitions": partitions})

    def delete_topic(self, name: str) -> None:
        done(CLIENT, "delete", {"servers": self.servers, "topic": name})

    def until_acknowledged(self) -> float:
        return float(done(CLIENT, "first", {"servers": self.servers, "topic": "first"})["moment"])

    def _node(self, number: int) -> Server:
        folder = self.folder / f"node-{number}"
        folder.mkdir(parents=True)
        config = folder / "server.conf"
        config.write_text(self._config(number, folder), encoding="utf-8")
        return Server([str(NATS_SERVER), "-c", str(config)], folder / "out.log")

    def _config(self, number: int, folder: Path) -> str:
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._routes)
        return (
            f'server_name: "node-{number}"\n'
            f'listen: "127.0.0.1:{self._ports[number]}"\n'
            f'jetstream {{ store_dir: "{folder / "data"}" }}\n'
            f'cluster {{ name: "bench", listen: "127.0.0.1:{self._routes[number]}", '
            f"routes: [{routes}] }}\n"
        )


@contextmanager
def running_nats(folder: Path) -> Iterator[Nats]:
    """Start the nodes, and end them after the block."""
    with ExitStack() as stack:
        nats = Nats(folder)
        stack.callback(nats.kill)
        nats.start()
        nats.until_listening()
        nats.until_acknowledged()
        yield nats
