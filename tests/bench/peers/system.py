"""What the bench asks of a system that it compares, whichever it is."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol, TypeAlias, runtime_checkable

from bench.usage import cpu_s, resident_bytes

NODES: Final = 3
PARTITIONS: Final = 3


class Name(enum.StrEnum):
    """The systems that are compared."""

    TAILRACE = "tailrace"
    KAFKA = "kafka"
    NATS = "nats"


class Fault(enum.StrEnum):
    """What is done to a system under load."""

    LEADER = "kill -9 of the leader"
    FOLLOWER = "kill -9 of a follower"
    CONTROLLER = "kill -9 of the controller"
    BOTH = "kill -9 of leader and controller"
    SIGTERM = "SIGTERM of the leader"


Harm: TypeAlias = Callable[[], None]


class System(Protocol):
    """Servers that run."""

    @property
    def servers(self) -> str:
        """`host:port` of all, with commas."""

    @property
    def broker_pids(self) -> Sequence[int]:
        """Those that hold data."""

    @property
    def pids(self) -> Sequence[int]:
        """All that serve."""

    @property
    def folder(self) -> Path:
        """Where the data are."""

    def create_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        """With so many partitions (if there is such a thing) and a replica on each node."""

    def delete_topic(self, name: str) -> None: ...

    def until_acknowledged(self) -> float:
        """Wait until a fresh system has acknowledged a record; gives that moment (monotonic)."""


@runtime_checkable
class Breakable(System, Protocol):
    """One that is broken on purpose."""

    def staged(self, fault: Fault, topic: str) -> AbstractContextManager[Harm]:
        """A new topic of one partition that suits the fault; calling what is given does the harm.

        At the end of the block all is healed and in sync again.
        """

    def some_node(self) -> int:
        """One that leads partitions and is no controller, as clients know it."""

    def kill_node(self, number: int) -> None:
        """It stays dead."""


Running: TypeAlias = Callable[[Path], AbstractContextManager[System]]
"""Starts a system with its data below a folder, and ends it after the block."""


def cpu_s_of(pids: Sequence[int]) -> float:
    return sum(map(cpu_s, pids))


def resident_mib_of(pids: Sequence[int]) -> list[float]:
    return [resident_bytes(each) / (1 << 20) for each in pids]


@contextmanager
def topic_of(system: System, name: str, partitions: int = PARTITIONS) -> Iterator[str]:
    """A topic for one round: what it wrote shall not burden the next."""
    system.create_topic(name, partitions)
    try:
        yield name
    finally:
        system.delete_topic(name)
