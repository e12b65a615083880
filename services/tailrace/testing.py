"""A real cluster for a program's own tests, in seconds: brokers, controller, coordinator and etcd.

In a `conftest.py`:

    from tailrace.testing import cluster, topic

and a test that takes `cluster` gets one, started once for the session and gone after it, with
nothing left behind; one that takes `topic` gets the name of a fresh topic in it. Needs the
`testing` extra. Without pytest, `with running_cluster() as cluster:` does the same.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

from tailrace.client.sync import Admin
from tailrace.dev.cluster import DevCluster, Plan

T = TypeVar("T")

TOPIC_PARTITIONS: Final = 3
TOPIC_NAME_CHARACTERS: Final = 80


class Cluster:
    """A cluster that runs. Its processes can be hurt, to see how a program takes it."""

    def __init__(self, dev: DevCluster) -> None:
        self._dev = dev
        self._topics = 0

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of all brokers, as every client takes it."""
        return self._dev.state.bootstrap

    @property
    def processes(self) -> list[str]:
        """Their names: `broker-0`, `controller-100` and so on."""
        return [each.name for each in self._dev.state.members]

    @property
    def brokers(self) -> list[str]:
        return [each for each in self.processes if each.startswith("broker")]

    def create_topic(
        self,
        name: str = "",
        *,
        partitions: int = TOPIC_PARTITIONS,
        replication_factor: int = 0,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Make a topic (of a name that nobody has, when none is given); gives its name."""
        self._topics += 1
        chosen = name or f"topic-{self._topics}"
        with Admin(self.bootstrap_servers) as admin:
            admin.create_topic(
                chosen,
                partitions=partitions,
                replication_factor=replication_factor,
                config=config,
            )
        return chosen

    def kill(self, process: str) -> None:
        """SIGKILL: it is gone when this returns."""
        _run(lambda: self._dev.signal(process, signal.SIGKILL))

    def pause(self, process: str) -> None:
        """SIGSTOP: it hangs until `resume`."""
        _run(lambda: self._dev.signal(process, signal.SIGSTOP))

    def resume(self, process: str) -> None:
        _run(lambda: self._dev.signal(process, signal.SIGCONT))

    def start(self, process: str) -> None:
        """Start one that was killed; it takes part again a moment later."""
        _run(lambda: self._dev.start(process))


@contextmanager
def running_cluster(*, brokers: int = 3, controllers: int = 1) -> Iterator[Cluster]:
    """A cluster that lives as long as the block."""
    with tempfile.TemporaryDirectory(prefix="tailrace-") as folder:
        dev = DevCluster(Path(folder) / "cluster")
        _run(lambda: dev.up(Plan(brokers=brokers, controllers=controllers, etcd_fsync=False)))
        try:
            yield Cluster(dev)
        finally:
            _run(lambda: dev.down(wipe=True))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster for all tests of the session; `TAILRACE_TEST_BROKERS` says how many brokers."""
    with running_cluster(brokers=int(os.environ.get("TAILRACE_TEST_BROKERS", "3"))) as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of three partitions that is this test's alone."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:TOPIC_NAME_CHARACTERS]
    return cluster.create_topic(f"{readable}-{os.urandom(4).hex()}")


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it to its end in a loop of its own, whether or not this thread has one that runs."""
    done: list[T] = []
    failed: list[BaseException] = []

    def call() -> None:
        try:
            done.append(asyncio.run(work()))
        except BaseException as error:  # noqa: BLE001 - it is raised below, where it is awaited.
            failed.append(error)

    thread = threading.Thread(target=call, name="tailrace testing")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]
