"""A network of rooms: each process in a network namespace of its own, joined by one bridge.

It owns the namespaces, the veth pairs and the filters inside them, and touches no other network:
it is to run inside of private network and mount namespaces, with which everything of it ends. A
cut or a loss is a small BPF program at the door of one room (`tc`, qdisc clsact), for one direction
and one peer: so any two processes can be cut one way, whatever else is cut.

Invariant: `mend` of a fault takes away what its `impair` added, and nothing else. Enter at `Rooms`.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

HUB: Final = "10.77.0.1"
FIRST_HOST: Final = 10
NETNS_FOLDER: Final = "/run/netns"
ANY_ADDRESS: Final = "/proc/sys/net/ipv4/ip_nonlocal_bind"

# Where an Ethernet frame has what kind it is, and the two addresses of IPv4.
_ETHERTYPE_AT, _SOURCE_AT, _TARGET_AT = 12, 26, 30
_IPV4: Final = 0x0800
# Classic BPF: load a half word or a word, jump if equal or greater, return.
LOAD_HALF, LOAD_WORD, JUMP_EQUAL, JUMP_GREATER, RETURN = 0x28, 0x20, 0x15, 0x25, 0x06
# The kernel's ancillary data begin here; at 56 is a fresh random number.
RANDOM_AT: Final = 0xFFFFF000 + 56
# What the program returns: drop the packet, or ask the next program.
DROP, NEXT = 2, 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Impairment:
    """A filter that is in place: where, and under which number."""

    room: str
    direction: str
    number: int


def filter_code(host: str, *, is_incoming: bool, percent: int) -> list[tuple[int, int, int, int]]:
    """The program that drops so many of the packets from (or to) a host, and no others."""
    address = int(IPv4Address(host))
    kept_above = 0xFFFFFFFF * percent // 100
    chance = [(LOAD_WORD, 0, 0, RANDOM_AT), (JUMP_GREATER, 1, 0, kept_above)]
    middle = chance if percent < 100 else []
    skip = len(middle) + 1
    return [
        (LOAD_HALF, 0, 0, _ETHERTYPE_AT),
        (JUMP_EQUAL, 0, skip + 2, _IPV4),
        (LOAD_WORD, 0, 0, _SOURCE_AT if is_incoming else _TARGET_AT),
        (JUMP_EQUAL, 0, skip, address),
        *middle,
        (RETURN, 0, 0, DROP),
        (RETURN, 0, 0, NEXT),
    ]


def bytecode(code: Sequence[tuple[int, int, int, int]]) -> str:
    """As `tc` takes it."""
    return ",".join([str(len(code)), *(" ".join(map(str, each)) for each in code)])


class Rooms:
    """The rooms of these processes, each with its address in `hosts`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.hosts = {name: f"10.77.0.{FIRST_HOST + at}" for at, name in enumerate(names)}
        self._numbers = itertools.count(1)
        self._make_hub()
        for at, name in enumerate(names):
            self._make_room(f"v{at}", name)
        self.missing = self._problem(names[0])

    def command_for(self, name: str, command: Sequence[str]) -> list[str]:
        """The same command, run in the room of this process."""
        inside = ["ip", "netns", "exec", name] if name in self.hosts else []
        return [*inside, *command]

    def impair(self, name: str, peer: str, *, is_incoming: bool, percent: int) -> Impairment:
        """Drop so many of the packets that come to `name` from a peer (or go from it)."""
        direction = "ingress" if is_incoming else "egress"
        fault = Impairment(room=name, direction=direction, number=next(self._numbers))
        code = filter_code(self.hosts[peer], is_incoming=is_incoming, percent=percent)
        self._filter("add", fault, "bpf", "direct-action", "bytecode", bytecode(code))
        return fault

    def mend(self, fault: Impairment) -> None:
        self._filter("del", fault)

    def close(self) -> None:
        """Take down all rooms; their ends of the veth pairs go with them."""
        for name in self.hosts:
            _run("ip", "netns", "del", name)

    def _filter(self, action: str, fault: Impairment, *what: str) -> None:
        place = ["dev", "eth0", fault.direction, "protocol", "all", "pref", str(fault.number)]
        _run("ip", "netns", "exec", fault.room, "tc", "filter", action, *place, *what)

    def _problem(self, name: str) -> str:
        """Why nothing can be cut here; empty when it can."""
        try:
            for percent in (50, 100):
                self.mend(self.impair(name, name, is_incoming=True, percent=percent))
        except subprocess.CalledProcessError as error:
            return f"no filters by tc and BPF: {error.stderr.strip()}"
        return ""

    @staticmethod
    def _make_hub() -> None:
        # Names of rooms are files: in a folder that nobody else sees, and that ends with us.
        _run("mkdir", "-p", NETNS_FOLDER)
        _run("mount", "-t", "tmpfs", "nemesis", NETNS_FOLDER)
        for command in (
            "link set lo up",
            "link add hub type bridge",
            f"addr add {HUB}/24 dev hub",
            "link set hub up",
        ):
            _run("ip", *command.split())
        # Who looks from here whether a port in a room is free is not told that it never could be.
        Path(ANY_ADDRESS).write_text("1")

    def _make_room(self, veth: str, name: str) -> None:
        for command in (
            f"netns add {name}",
            f"link add {veth} type veth peer name eth0 netns {name}",
            f"link set {veth} master hub up",
            f"-n {name} addr add {self.hosts[name]}/24 dev eth0",
            f"-n {name} link set eth0 up",
            f"-n {name} link set lo up",
        ):
            _run("ip", *command.split())
        _run(*f"ip netns exec {name} tc qdisc add dev eth0 clsact".split())


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=True, text=True)
