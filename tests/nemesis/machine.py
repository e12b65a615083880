"""What the machine lends to a nemesis: networks of their own, small disks, false clocks.

All of it needs root and some parts of the kernel; `Machine.missing` says plainly what is not there.
Everything is made inside of private network, mount and process namespaces. They end with this
process, however it ends: no process, mount, namespace or veth pair of a run is ever left behind.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nemesis.network import Impairment, Rooms
from nemesis.plan import NETWORK, SHIMMED, WEIGHTS, Kind
from tailrace.meta.embedded import ETCD_VARIABLE, find_etcd

INSIDE = "NEMESIS_INSIDE"
FOLDER_PREFIX = "tailrace-nemesis-"
LOCK = "nemesis.lock"
ETCD = "etcd"
DISK_BYTES = 1 << 30
FILLER = "filler"
_CONTROL = struct.Struct("=qqqq")


def enter_private_namespaces() -> str:
    """Start this program anew in namespaces of its own; returns why not when that cannot be."""
    own = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = ["unshare", *own, "--propagation", "private"]
    problem = ""
    if os.environ.get(INSIDE):
        # The first process of a namespace hears of no signal that it has no handler for.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    elif os.geteuid() != 0:
        problem = "not root"
    elif not shutil.which("ip") or not shutil.which("tc"):
        problem = "no ip and tc (Debian: iproute2)"
    elif not shutil.which("unshare") or not _works(*command, "true"):
        problem = "no private namespaces can be made (unshare)"
    else:
        os.environ[INSIDE] = "1"
        os.execvp(command[0], [*command, sys.executable, *sys.argv])
    return problem


@contextmanager
def run_folder(kept: str) -> Iterator[Path]:
    """A folder for one run, gone after it; folders of runs that died are removed first."""
    if kept:
        Path(kept).mkdir(parents=True, exist_ok=True)
        yield Path(kept)
        return
    for stale in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        if _is_left_behind(stale):
            shutil.rmtree(stale, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(
            # A report of ten minutes must not be lost to a disk that is busy yet.
            prefix=FOLDER_PREFIX,
            ignore_cleanup_errors=True,
        ) as temporary,
        (Path(temporary) / LOCK).open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(temporary)


def _is_left_behind(folder: Path) -> bool:
    """Whether the run that made the folder is dead: it holds a lock as long as it lives."""
    try:
        with (folder / LOCK).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class Machine:
    """The rooms, disks and clocks of the services and clients with these names, and of etcd."""

    def __init__(
        self, folder: Path, services: Sequence[str], clients: Sequence[str], private: str
    ) -> None:
        self.missing: dict[str, str] = {}
        self.hosts: dict[str, str] = {}
        self._folder = folder
        self._shimmed = frozenset(services)
        self._rooms: Rooms | None = None
        self._shim: Path | None = None
        if private:
            self.missing["network cuts, loss, flaps, full disks"] = private
        else:
            self._rooms = Rooms([*services, ETCD, *clients])
            self.hosts = dict(self._rooms.hosts)
            self._put_etcd_in_its_room()
            if self._rooms.missing:
                self.missing["network cuts, loss, flaps"] = self._rooms.missing
        self._make_shim()

    @property
    def kinds(self) -> list[Kind]:
        """The faults that can be done here."""
        kinds = list(WEIGHTS)
        if self._rooms is None or self._rooms.missing:
            kinds = [each for each in kinds if each not in NETWORK]
        if self._rooms is None:
            kinds.remove(Kind.DISK_FULL)
        return kinds if self._shim else [each for each in kinds if each not in SHIMMED]

    def command_for(self, name: str, command: list[str]) -> list[str]:
        inside = self._rooms.command_for(name, []) if self._rooms else []
        if self._shim is not None and name in self._shimmed:
            control = self._control(name)
            if not control.exists():
                control.write_bytes(bytes(_CONTROL.size))
            inside += ["env", f"LD_PRELOAD={self._shim}", f"NEMESIS_CONTROL={control}"]
        return [*inside, *command]

    def close(self) -> None:
        if self._rooms is not None:
            self._rooms.close()

    # Disks.

    def make_disk(self, folder: Path) -> None:
        """Give a broker's folder a small disk of its own."""
        if self._rooms is not None:
            folder.mkdir(parents=True, exist_ok=True)
            options = f"size={DISK_BYTES}"
            _run("mount", "-t", "tmpfs", "-o", options, "nemesis", str(folder))

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

    def cut(
        self, name: str, peer: str, *, is_both_ways: bool, percent: int = 100
    ) -> list[Impairment]:
        """`name` hears nothing more (or not all) of a peer, and tells it nothing if both ways."""
        assert self._rooms is not None
        made = [self._rooms.impair(name, peer, is_incoming=True, percent=percent)]
        if is_both_ways:
            made.append(self._rooms.impair(name, peer, is_incoming=False, percent=percent))
        return made

    def mend(self, impairments: Sequence[Impairment]) -> None:
        assert self._rooms is not None
        for each in impairments:
            self._rooms.mend(each)

    # The parts of the above.

    def _control(self, name: str) -> Path:
        return self._folder / f"{name}.control"

    def _put_etcd_in_its_room(self) -> None:
        """A script that runs etcd there is what the cluster takes for etcd."""
        assert self._rooms is not None
        script = self._folder / "etcd-in-its-room"
        command = shlex.join(self._rooms.command_for(ETCD, [str(find_etcd())]))
        script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        script.chmod(0o755)
        os.environ[ETCD_VARIABLE] = str(script)

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
