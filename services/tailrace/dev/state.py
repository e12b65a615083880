"""What a cluster on one machine consists of, and the file that remembers it.

Names, ports and process identities; nothing runs here. The file is replaced as a whole, so that a
crash leaves the old one or the new one.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from tailrace.dev.processes import ProcessIdentity
from tailrace.errors import TailraceError

HOST: Final = "127.0.0.1"
STATE_FILE: Final = "cluster.json"
VERSION: Final = 1

BROKERS_MAX: Final = 50
CONTROLLERS_MAX: Final = 10
COORDINATORS_MAX: Final = 10

# Each kind of port has a row of its own, counted from the base.
_BROKER_ROW: Final = 0
_BROKER_METRICS_ROW: Final = 50
_LINK_ROW: Final = 100
_CONTROL_ROW: Final = 150
_CONTROLLER_ROW: Final = 200
_CONTROLLER_METRICS_ROW: Final = 210
_ETCD_ROW: Final = 300
_COORDINATOR_ROW: Final = 350
_COORDINATOR_METRICS_ROW: Final = 360
_ROWS: Final = 400
PORT_BASE_MAX: Final = 65_535 - _ROWS
# Below the ports that the kernel gives to outgoing connections: a broker that is down for a while
# must find its port free when it comes back.
_CHOSEN_BASES: Final = range(20_000, 32_000, _ROWS)


class DevError(TailraceError):
    """A cluster on this machine cannot do what was asked: a sentence, and what to do."""


class DevUsage(DevError):
    """What was asked for cannot be, however the cluster is."""


class Role(StrEnum):
    BROKER = "broker"
    CONTROLLER = "controller"
    COORDINATOR = "coordinator"
    ETCD = "etcd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One process of the cluster; `identity` is None before its first start."""

    name: str
    role: Role
    number: int
    port: int
    # A broker's port for other brokers, etcd's for other etcds.
    second_port: int = 0
    # A broker's port for controllers.
    control_port: int = 0
    # Where it serves its metrics; 0: nowhere.
    metrics_port: int = 0
    host: str = HOST
    identity: ProcessIdentity | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def second_address(self) -> str:
        return f"{self.host}:{self.second_port}"

    @property
    def ports(self) -> list[int]:
        ports = (self.port, self.second_port, self.control_port, self.metrics_port)
        return [port for port in ports if port]

    @property
    def control_address(self) -> str:
        return f"{self.host}:{self.control_port}"

    @property
    def metrics_address(self) -> str:
        return f"{self.host}:{self.metrics_port}" if self.metrics_port else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """All processes, as they are shown: brokers, controllers, coordinators, etcd."""

    members: tuple[Member, ...]
    port_base: int

    @property
    def bootstrap(self) -> str:
        return ",".join(self.of(Role.BROKER, lambda each: each.address))

    def of(self, role: Role, what: Callable[[Member], Any]) -> list[Any]:
        return [what(each) for each in self.members if each.role is role]

    def count(self, role: Role) -> int:
        return sum(each.role is role for each in self.members)

    def member(self, name: str) -> Member:
        for each in self.members:
            if each.name == name:
                return each
        known = ", ".join(each.name for each in self.members)
        raise DevUsage(f"there is no process {name!r} in this cluster; there are: {known}")

    def with_member(self, changed: Member) -> ClusterState:
        members = tuple(changed if each.name == changed.name else each for each in self.members)
        return replace(self, members=members)


def lay_out(
    brokers: int, controllers: int, port_base: int, *, coordinators: int = 0
) -> ClusterState:
    """A new cluster with its ports."""
    if not 1 <= brokers <= BROKERS_MAX:
        raise DevUsage(f"a cluster has 1 to {BROKERS_MAX} brokers, not {brokers}")
    if not 1 <= controllers <= CONTROLLERS_MAX:
        raise DevUsage(f"a cluster has 1 to {CONTROLLERS_MAX} controllers, not {controllers}")
    if not 0 <= coordinators <= COORDINATORS_MAX:
        raise DevUsage(f"a cluster has 0 to {COORDINATORS_MAX} coordinators, not {coordinators}")
    if not 1 <= port_base <= PORT_BASE_MAX:
        raise DevUsage(f"ports are counted from 1 to {PORT_BASE_MAX}, not from {port_base}")
    return ClusterState(
        members=(
            *(
                Member(
                    name=f"{Role.BROKER}-{number}",
                    role=Role.BROKER,
                    number=number,
                    port=port_base + _BROKER_ROW + number - 1,
                    second_port=port_base + _LINK_ROW + number - 1,
                    control_port=port_base + _CONTROL_ROW + number - 1,
                    metrics_port=port_base + _BROKER_METRICS_ROW + number - 1,
                )
                for number in range(1, brokers + 1)
            ),
            *(
                Member(
                    name=f"{Role.CONTROLLER}-{number}",
                    role=Role.CONTROLLER,
                    number=number,
                    port=port_base + _CONTROLLER_ROW + number - 1,
                    metrics_port=port_base + _CONTROLLER_METRICS_ROW + number - 1,
                )
                for number in range(1, controllers + 1)
            ),
            *(
                Member(
                    name=f"{Role.COORDINATOR}-{number}",
                    role=Role.COORDINATOR,
                    number=number,
                    port=port_base + _COORDINATOR_ROW + number - 1,
                    metrics_port=port_base + _COORDINATOR_METRICS_ROW + number - 1,
                )
                for number in range(1, coordinators + 1)
            ),
            Member(
                name="etcd",
                role=Role.ETCD,
                number=1,
                port=port_base + _ETCD_ROW,
                second_port=port_base + _ETCD_ROW + 1,
            ),
        ),
        port_base=port_base,
    )


def chosen_bases(folder: Path) -> Iterator[int]:
    """Bases of ports to try, the same for the same folder each time."""
    first = zlib.crc32(os.fsencode(folder)) % len(_CHOSEN_BASES)
    for step in range(len(_CHOSEN_BASES)):
        yield _CHOSEN_BASES[(first + step) % len(_CHOSEN_BASES)]


def load(folder: Path) -> ClusterState | None:
    """The state of the cluster in a folder, None when there never was one."""
    path = folder / STATE_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise DevUsage(f"{folder} is no folder: a file is in the way") from None
    try:
        return _from_json(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise DevError(
            f"{path} cannot be read ({error!r}): stop what still runs by hand, then remove the file"
        ) from error


def save(folder: Path, state: ClusterState) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / STATE_FILE
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(_to_json(state), indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)


def _to_json(state: ClusterState) -> dict[str, Any]:
    return {
        "version": VERSION,
        "port_base": state.port_base,
        "members": [asdict(each) for each in state.members],
    }


def _from_json(value: dict[str, Any]) -> ClusterState:
    if value["version"] != VERSION:
        raise ValueError(f"version {value['version']}")
    return ClusterState(
        members=tuple(_member(each) for each in value["members"]), port_base=value["port_base"]
    )


def _member(value: dict[str, Any]) -> Member:
    identity = value["identity"]
    return Member(
        **{
            **value,
            "role": Role(value["role"]),
            "identity": None if identity is None else ProcessIdentity(**identity),
        }
    )
