"""What the machine lends to a nemesis: networks of their own, small disks, false clocks.

All of it needs root and some parts of the kernel; `Machine.missing` says plainly what is not there.
Everything is made inside of private network and mount namespaces, which end with this process.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nemesis.plan import NETWORK, SHIMMED, WEIGHTS, Kind

INSIDE = "NEMESIS_INSIDE"
HUB, ETCD_HOST = "10.77.0.1", "10.77.0.2"
DISK_BYTES = 768 << 20
FILLER = "filler"
_CONTROL = struct.Struct("=qqqq")


def enter_private_namespaces() -> str:
    """Start this program anew in namespaces of its own; returns why not when that cannot be."""
    command = ["unshare", "--net", "--mount", "--propagation", "private"]
    problem = ""
    if os.environ.get(INSIDE):
        pass
    elif os.geteuid() != 0:
        problem = "not root"
    elif not shutil.which("unshare") or not _works(*command, "true"):
        problem = "no network and mount namespaces can be made (unshare)"
    else:
        os.environ[INSIDE] = "1"
        os.execvp(command[0], [*command, sys.executable, *sys.argv])
    return problem


class Machine:
    """The rooms, disks and clocks of the processes with these names."""

    def __init__(self, folder: Path, names: Sequence[str], private: str) -> None:
        self.missing: dict[str, str] = {}
        self.hosts: dict[str, str] = {}
        self._folder = folder
        self._tag = f"nemesis{os.getpid()}"
        self._rooms: list[str] = []
        self._shim: Path | None = None
        self._is_private = not private
        self._has_filter = shutil.which("iptables") is not None
        if private:
            self.missing["network cuts, loss, flaps, full disks"] = private
        else:
            self._make_rooms(names)
            if not self._has_filter:
                self.missing["network cuts, loss, flaps"] = "no iptables (Debian: iptables)"
            self.missing["packet delay by netem"] = _netem_problem()
        self._make_shim()

    @property
    def kinds(self) -> list[Kind]:
        """The faults that can be done here."""
        kinds = list(WEIGHTS)
        if not self.hosts or not self._has_filter:
            kinds = [each for each in kinds if each not in NETWORK]
        if not self._is_private:
            kinds.remove(Kind.DISK_FULL)
        return kinds if self._shim else [each for each in kinds if each not in SHIMMED]

    def command_for(self, name: str, command: list[str]) -> list[str]:
        prefix: list[str] = []
        if name in self._rooms:
            prefix += ["ip", "netns", "exec", self._room(name)]
        if self._shim is not None:
            control = self._control(name)
            if not control.exists():
                control.write_bytes(bytes(_CONTROL.size))
            prefix += ["env", f"LD_PRELOAD={self._shim}", f"NEMESIS_CONTROL={control}"]
        return [*prefix, *command]

    def close(self) -> None:
        for name in self._rooms:
            _run("ip", "netns", "del", self._room(name))

    # Disks.

    def make_disk(self, folder: Path) -> None:
        """Give a broker's folder a small disk of its own."""
        if self._is_private:
            folder.mkdir(parents=True, exist_ok=True)
            _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "nemesis", str(folder))

    @staticmethod
    def fill_disk(folder: Path) -> int:
        """Leave no byte free; returns how many were."""
        free = shutil.disk_usage(folder).free
        with (folder / FILLER).open("wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, free)
            except OSError:
                _write_until_full(file.fileno())
        return free

    @staticmethod
    def empty_disk(folder: Path) -> None:
        (folder / FILLER).unlink(missing_ok=True)

    # Clocks and slowness.

    def disturb(
        self,
        name: str,
        *,
        clock_ms: int = 0,
        sync_ms: int = 0,
        write_ms: int = 0,
        syncs_fail: bool = False,
    ) -> None:
        """Without anything: as it should be."""
        if self._shim is not None:
            with self._control(name).open("r+b") as file:
                file.write(_CONTROL.pack(clock_ms, sync_ms, write_ms, syncs_fail))

    # Networks.

    def cut(self, name: str, host: str, *, is_both_ways: bool, percent: int = 100) -> None:
        """`name` hears nothing more (or not all) of a host, and tells it nothing if both ways."""
        self._rule("-I", name, host, is_both_ways=is_both_ways, percent=percent)

    def mend(self, name: str, host: str, *, is_both_ways: bool, percent: int = 100) -> None:
        self._rule("-D", name, host, is_both_ways=is_both_ways, percent=percent)

    def mend_all(self) -> None:
        for name in self._rooms if self._has_filter else ():
            self._in_room(name, "iptables", "-F")

    # The parts of the above.

    def _rule(self, action: str, name: str, host: str, *, is_both_ways: bool, percent: int) -> None:
        chance = ["-m", "statistic", "--mode", "random", "--probability", str(percent / 100)]
        drop = [*(chance if percent < 100 else []), "-j", "DROP"]
        self._in_room(name, "iptables", "-w", action, "INPUT", "-s", host, *drop)
        if is_both_ways:
            self._in_room(name, "iptables", "-w", action, "OUTPUT", "-d", host, *drop)

    def _in_room(self, name: str, *command: str) -> None:
        _run("ip", "netns", "exec", self._room(name), *command)

    def _room(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _control(self, name: str) -> Path:
        return self._folder / f"{name}.control"

    def _make_rooms(self, names: Sequence[str]) -> None:
        for command in (
            "link set lo up",
            "link add hub type bridge",
            f"addr add {HUB}/24 dev hub",
            f"addr add {ETCD_HOST}/24 dev hub",
            "link set hub up",
        ):
            _run("ip", *command.split())
        for number, name in enumerate(names):
            room, host = self._room(name), f"10.77.0.{10 + number}"
            for command in (
                f"netns add {room}",
                f"link add v{number} type veth peer name eth0 netns {room}",
                f"link set v{number} master hub up",
                f"-n {room} addr add {host}/24 dev eth0",
                f"-n {room} link set eth0 up",
                f"-n {room} link set lo up",
            ):
                _run("ip", *command.split())
            self._rooms.append(name)
            self.hosts[name] = host
        self.hosts["etcd"] = ETCD_HOST

    def _make_shim(self) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        source = Path(__file__).with_name("shim.c")
        target = self._folder / "shim.so"
        if compiler is None:
            self.missing["slow disks, clock steps"] = "no C compiler to make the shim"
        elif not _works(
            compiler, "-shared", "-fPIC", "-O2", "-o", str(target), str(source), "-ldl"
        ):
            self.missing["slow disks, clock steps"] = "the shim does not compile"
        else:
            self._shim = target


def _netem_problem() -> str:
    if _works("tc", "qdisc", "add", "dev", "hub", "root", "netem", "delay", "1ms"):
        _run("tc", "qdisc", "del", "dev", "hub", "root")
        return "not used: cuts, loss and flaps delay packets by retransmission"
    return "the kernel has no netem; loss and flaps delay packets by retransmission"


def _write_until_full(descriptor: int) -> None:
    piece = bytes(1 << 20)
    while piece:
        try:
            os.write(descriptor, piece)
        except OSError:
            piece = piece[: len(piece) // 2]


def _works(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=True, text=True)
