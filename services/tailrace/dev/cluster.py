"""A cluster on one machine: its processes started, looked after, hurt and stopped.

The processes are the ordinary ones (`tailrace broker`, `controller`, `coordinator`, etcd), each in
a session of its own, so that they outlive the command that started them. What is known of them is
in the folder: `cluster.json`, a config file and a log for each, their data. Every command reads it
from there and takes the folder's lock while it changes something.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from tailrace.clock import Clock, SystemClock
from tailrace.dev.processes import Life, ProcessIdentity, identify, life_of, send
from tailrace.dev.state import (
    STATE_FILE,
    ClusterState,
    DevError,
    DevUsage,
    Member,
    Role,
    chosen_bases,
    lay_out,
    load,
    save,
)
from tailrace.meta.embedded import EtcdConfig, EtcdFailed, EtcdSlow, find_etcd, start_etcd

BROKERS: Final = 3
CONTROLLERS: Final = 2
COORDINATORS: Final = 1
READY_TIMEOUT_MS: Final = 60_000
# SIGTERM lets a broker hand over its leaderships (10 s at most) and close its logs.
STOP_TIMEOUT_MS: Final = 20_000
KILL_TIMEOUT_MS: Final = 5_000
POLL_MS: Final = 20
_LONGER: Final = "on a slow machine `tailrace dev up --timeout SECONDS` waits longer"
# How often ports that nobody asked for are chosen anew when another process takes one meanwhile.
PORT_TRIES: Final = 3

_LOCK_FILE: Final = "lock"
_LOGS: Final = "logs"
_DATA: Final = "data"
_LOG_TAIL_BYTES: Final = 4_096
_OWN_VARIABLES: Final = "TAILRACE_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `up` is to make; None: as before, or the default."""

    brokers: int | None = None
    controllers: int | None = None
    coordinators: int | None = None
    port_base: int | None = None
    # Settings of all brokers, controllers and coordinators that differ from the defaults.
    broker_settings: Mapping[str, str] = field(default_factory=dict)
    controller_settings: Mapping[str, str] = field(default_factory=dict)
    coordinator_settings: Mapping[str, str] = field(default_factory=dict)
    # False: etcd does not sync, and a power loss may cost the metadata; for tests.
    etcd_fsync: bool = True
    # How long etcd, and then all others, may take.
    ready_timeout_ms: int = READY_TIMEOUT_MS


class _Counts(NamedTuple):
    """How many of each."""

    brokers: int
    controllers: int
    coordinators: int

    def lay_out(self, port_base: int) -> ClusterState:
        return lay_out(self.brokers, self.controllers, port_base, coordinators=self.coordinators)


_COUNTED: Final = (Role.BROKER, Role.CONTROLLER, Role.COORDINATOR)


class DevCluster:
    """The cluster in one folder. Methods that change it raise DevError with a sentence."""

    def __init__(
        self,
        folder: Path,
        *,
        say: Callable[[str], None] = lambda _: None,
        clock: Clock | None = None,
        hosts: Mapping[str, str] | None = None,
        command_for: Callable[[str, list[str]], list[str]] = lambda _, command: command,
    ) -> None:
        """`hosts` and `command_for` put processes, by name, elsewhere than on this host's loopback.

        For tests that give each of them a network of its own.
        """
        self._hosts = hosts or {}
        self._command_for = command_for
        self._folder = folder.absolute()
        self._say = say
        self._clock = clock or SystemClock()

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def state(self) -> ClusterState:
        """What is known; DevError when no cluster was ever started here."""
        state = load(self._folder)
        if state is None:
            raise DevError(
                f"there is no cluster in {self._folder}: `tailrace dev up` starts one there"
            )
        return state

    def exists(self) -> bool:
        """Whether there is anything of a cluster in the folder."""
        return (self._folder / STATE_FILE).exists()

    def is_running(self) -> bool:
        """Whether any of its processes runs."""
        state = load(self._folder)
        return state is not None and any(
            self.life(each) is not Life.EXITED for each in state.members
        )

    def log_path(self, name: str) -> Path:
        if name == Role.ETCD:
            return self._folder / Role.ETCD / "etcd.log"
        return self._folder / _LOGS / f"{name}.log"

    def life(self, member: Member) -> Life:
        _reap()
        return Life.EXITED if member.identity is None else life_of(member.identity)

    def status(self) -> dict[str, Any]:
        """For `status --json`."""
        state = self.state
        return {
            "bootstrap": state.bootstrap,
            "processes": [self._status_of(each) for each in state.members],
        }

    def _status_of(self, member: Member) -> dict[str, Any]:
        life = self.life(member)
        alive = member.identity is not None and life is not Life.EXITED
        return {
            "name": member.name,
            "role": member.role.value,
            "id": member.number,
            "pid": member.identity.pid if alive and member.identity else None,
            "address": member.address,
            "metrics": member.metrics_address or None,
            "state": life.value,
        }

    # Starting.

    async def up(self, plan: Plan | None = None) -> list[str]:
        """Start what does not run, and wait until it is a cluster; gives the names started.

        What was started is stopped again when that fails.
        """
        plan = plan or Plan()
        with self.locked():
            binary = _etcd_binary()
            for tries_left in reversed(range(PORT_TRIES)):
                state = self._planned(plan)
                missing = [each for each in state.members if self.life(each) is Life.EXITED]
                if not missing:
                    return []
                self._require_free(missing)
                try:
                    await self._start_missing(state, missing, plan, binary)
                except DevError:
                    chosen = plan.port_base is None and len(missing) == len(state.members)
                    if not tries_left or not chosen or _are_free(missing):
                        raise
                    # Somebody took a port between our look and our listening: take others.
                else:
                    return [each.name for each in missing]
        raise AssertionError("the last try returns or raises")

    async def _start_missing(
        self, state: ClusterState, missing: Sequence[Member], plan: Plan, binary: Path
    ) -> None:
        runs = len(missing) < len(state.members)
        self._write_configs(state, plan, missing if runs else state.members)
        save(self._folder, state)
        made = self._not_there_yet(state)
        try:
            await self._start_all(
                missing, binary, fsync=plan.etcd_fsync, timeout_ms=plan.ready_timeout_ms
            )
            await self._until_ready(plan.ready_timeout_ms)
        except BaseException:
            await self._stop([each.name for each in missing], grace_ms=0)
            # An etcd that was ended while it made its first entries never gets well again.
            for path in made:
                shutil.rmtree(path, ignore_errors=True)
            raise

    def _not_there_yet(self, state: ClusterState) -> list[Path]:
        """The folders with data that the first start will make; none where there was an etcd."""
        if (self._folder / Role.ETCD / _DATA).exists():
            return []
        data = [
            self._folder / name / _DATA for name in state.of(Role.BROKER, lambda each: each.name)
        ]
        etcd = self._folder / Role.ETCD / _DATA
        return [etcd, *(path for path in data if not path.exists())]

    async def start(self, name: str) -> None:
        """Start one process that has ended; it is ready a moment later."""
        with self.locked():
            member = self.state.member(name)
            if self.life(member) is not Life.EXITED:
                if self.life(member) is Life.PAUSED:
                    raise DevError(f"{name} is paused: `tailrace dev resume {name}` lets it go on")
                raise DevError(f"{name} is running already; if it is stopping, try again soon")
            self._require_free([member])
            await self._start_all([member], _etcd_binary(), fsync=True, timeout_ms=READY_TIMEOUT_MS)

    def _planned(self, plan: Plan) -> ClusterState:
        """The cluster that is to be: the one that is there, grown or laid out anew."""
        old = load(self._folder)
        running = self.is_running()
        counts = _Counts(
            plan.brokers or (old.count(Role.BROKER) if old else BROKERS),
            plan.controllers or (old.count(Role.CONTROLLER) if old else CONTROLLERS),
            _or_else(plan.coordinators, old.count(Role.COORDINATOR) if old else COORDINATORS),
        )
        if old is not None and running:
            grown = counts.brokers > old.count(Role.BROKER)
            known = old.count(Role.BROKER) if grown else counts.brokers
            self._require_same(old, counts._replace(brokers=known), plan.port_base)
            return self._grown(old, counts.brokers) if grown else old
        if old is not None:
            self._require_no_data_left_out(old, counts.brokers)
        was_running = old is not None and any(each.identity is not None for each in old.members)
        # Of a first start that failed only the plan is left: there is no data to go on with.
        if was_running and (self._folder / Role.ETCD / _DATA).exists():
            self._say(
                "the last cluster in this folder ended without `down`: going on with its data"
            )
        if plan.port_base is not None:
            return self._placed(counts.lay_out(plan.port_base))
        bases = chosen_bases(self._folder)
        for base in [old.port_base, *bases] if old else bases:
            state = self._placed(counts.lay_out(base))
            if _are_free(state.members):
                return state
        raise DevError("no free ports were found: give some with --port-base")

    def _grown(self, old: ClusterState, brokers: int) -> ClusterState:
        """The cluster that runs, and brokers that it has not yet."""
        whole = lay_out(brokers, old.count(Role.CONTROLLER), old.port_base)
        known = {each.name for each in old.members}
        new = tuple(each for each in whole.members if each.name not in known)
        return self._placed(replace(old, members=(*old.members, *new)))

    def _placed(self, state: ClusterState) -> ClusterState:
        for each in state.members:
            if each.name in self._hosts:
                state = state.with_member(replace(each, host=self._hosts[each.name]))
        return state

    def _require_same(self, old: ClusterState, counts: _Counts, port_base: int | None) -> None:
        now = _Counts(*(old.count(role) for role in _COUNTED))
        if now != counts or port_base not in {None, old.port_base}:
            raise DevError(
                f"another cluster runs in {self._folder} (brokers: {now.brokers}, controllers: "
                f"{now.controllers}, coordinators: {now.coordinators}, ports from {old.port_base} "
                "on): end it with `tailrace dev down`, or use another --dir"
            )

    def _require_no_data_left_out(self, old: ClusterState, brokers: int) -> None:
        """A broker that is not started again takes its replicas with it, unseen."""
        known = old.count(Role.BROKER)
        left_out = [
            each
            for each in old.members
            if each.role is Role.BROKER
            and each.number > brokers
            and (self._folder / each.name / _DATA).exists()
        ]
        if left_out:
            raise DevError(
                f"the cluster in {self._folder} has {known} brokers, and "
                f"{', '.join(each.name for each in left_out)} would be left out with its records: "
                f"`tailrace dev up --brokers {known}` and `tailrace brokers drain` empty it; "
                "`tailrace dev down --wipe` forgets everything; another --dir is another cluster"
            )

    def _require_free(self, members: Sequence[Member]) -> None:
        for member in members:
            for port in member.ports:
                if not _is_free(member.host, port):
                    raise DevError(
                        f"port {port} is in use by another process, and {member.name} needs it: "
                        "end that process, or choose other ports with `up --port-base`"
                    )

    async def _start_all(
        self, members: Sequence[Member], binary: Path, *, fsync: bool, timeout_ms: int
    ) -> None:
        """Start all at once: brokers wait for controllers, and all of them for etcd."""
        for member in members:
            if member.role is not Role.ETCD:
                self._started(member, self._spawn(member))
        for member in members:
            if member.role is Role.ETCD:
                await self._start_etcd(member, binary, fsync=fsync, timeout_ms=timeout_ms)

    async def _start_etcd(
        self, member: Member, binary: Path, *, fsync: bool, timeout_ms: int
    ) -> None:
        config = EtcdConfig(
            folder=self._folder / Role.ETCD,
            binary=binary,
            host=member.host,
            client_port=member.port,
            peer_port=member.second_port,
            fsync=fsync,
            start_timeout_ms=timeout_ms,
        )
        try:
            running = await start_etcd(config)
        except EtcdSlow as error:
            raise DevError(f"{error}; {_LONGER}") from error
        except EtcdFailed as error:
            raise DevError(str(error)) from error
        _CHILDREN.append(running)
        self._started(member, running.pid)

    def _spawn(self, member: Member) -> int:
        command = [
            *(sys.executable, "-m", "tailrace.cli.main", member.role.value),
            *("--config", str(self._config_path(member))),
        ]
        log_path = self.log_path(member.name)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - the command line is ours.
                self._command_for(member.name, command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                # Ctrl-C in the terminal is for whoever started us, who then stops them in order.
                start_new_session=True,
            )
        _CHILDREN.append(process)
        return process.pid

    def _started(self, member: Member, pid: int) -> None:
        identity = identify(pid) or ProcessIdentity(pid, 0, "")
        save(self._folder, self.state.with_member(replace(member, identity=identity)))

    async def _until_ready(self, timeout_ms: int) -> None:
        """Wait until clients find all brokers, coordinators and a controller."""
        state = self.state
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        wanted = set(state.of(Role.BROKER, lambda each: each.number))
        coordinators = set(state.of(Role.COORDINATOR, lambda each: each.number))
        async with _Watcher(state.of(Role.BROKER, lambda each: each.address)) as watcher:
            while not watcher.sees(wanted, coordinators):
                self._require_alive(state)
                if self._clock.monotonic_ms() > deadline_ms:
                    raise DevError(
                        f"the cluster was not ready within {timeout_ms / 1000:g} s: "
                        f"{watcher.problem} (logs in {self._folder / _LOGS}); {_LONGER}"
                    )
                await asyncio.sleep(POLL_MS / 1000)

    def _require_alive(self, state: ClusterState) -> None:
        for member in state.members:
            if self.life(member) is Life.EXITED:
                raise DevError(
                    f"{member.name} ended at once: {self.last_words(member.name)} "
                    f"(see {self.log_path(member.name)})"
                )

    def last_words(self, name: str) -> str:
        """The last line of a process's log, in plain text."""
        try:
            tail = self.log_path(name).read_bytes()[-_LOG_TAIL_BYTES:]
        except OSError:
            return "it left no log"
        last = tail.decode(errors="replace").strip().rsplit("\n", 1)[-1]
        with suppress(ValueError, KeyError, TypeError):
            return str(json.loads(last)["text"])
        return last.removeprefix("tailrace: ")

    # Hurting and stopping.

    async def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one process; after SIGKILL it is gone when this returns."""
        member = self.state.member(name)
        if member.identity is None or not send(member.identity, number):
            raise DevError(f"{name} does not run; `tailrace dev start {name}` starts it")
        if number == signal.SIGKILL:
            await self._gone([member], KILL_TIMEOUT_MS)

    async def down(self, *, wipe: bool = False) -> list[str]:
        """Stop everything, brokers first and etcd last; gives the names that had to be killed."""
        if load(self._folder) is None and not wipe:
            return []
        with self.locked():
            killed: list[str] = []
            if (state := load(self._folder)) is not None:
                for role in (Role.BROKER, Role.COORDINATOR, Role.CONTROLLER, Role.ETCD):
                    names = [each.name for each in state.members if each.role is role]
                    killed += await self._stop(names, grace_ms=STOP_TIMEOUT_MS)
                cleared = tuple(replace(each, identity=None) for each in state.members)
                save(self._folder, replace(state, members=cleared))
            if wipe:
                self._remove_data()
        return killed

    async def _stop(self, names: Sequence[str], *, grace_ms: int) -> list[str]:
        """End these processes, all at once; gives the names that had to be killed."""
        state = self.state
        members = [state.member(name) for name in names]
        if grace_ms:
            for member in members:
                if member.identity is not None:
                    send(member.identity, signal.SIGTERM)
                    # One that was paused hears nothing but this.
                    send(member.identity, signal.SIGCONT)
        left = await self._gone(members, grace_ms)
        for member in left:
            if member.identity is not None:
                send(member.identity, signal.SIGKILL)
        stuck = await self._gone(left, KILL_TIMEOUT_MS)
        if stuck:
            names_left = ", ".join(each.name for each in stuck)
            raise DevError(f"{names_left} could not be stopped, not even by SIGKILL")
        return [each.name for each in left]

    async def _gone(self, members: Sequence[Member], timeout_ms: int) -> list[Member]:
        """Wait until these have ended; gives those that have not."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            left = [each for each in members if self.life(each) is not Life.EXITED]
            if not left or self._clock.monotonic_ms() >= deadline_ms:
                return left
            await asyncio.sleep(POLL_MS / 1000)

    def _remove_data(self) -> None:
        """Remove what was ever made here, and the folder if nothing else is in it."""
        made = [path for role in _COUNTED for path in self._folder.glob(f"{role}-[0-9]*")]
        for path in [*made, self._folder / Role.ETCD, self._folder / _LOGS]:
            shutil.rmtree(path, ignore_errors=True)
        for path in [self._folder / STATE_FILE, self._folder / _LOCK_FILE]:
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self._folder.rmdir()

    # The folder.

    def _config_path(self, member: Member) -> Path:
        return self._folder / member.name / f"{member.role}.properties"

    def _write_configs(self, state: ClusterState, plan: Plan, members: Sequence[Member]) -> None:
        etcd = state.of(Role.ETCD, lambda each: each.address)[0]
        for member in members:
            if member.role is Role.BROKER:
                settings = {
                    "broker.id": str(member.number),
                    "listeners": member.address,
                    "link.listeners": member.second_address,
                    "control.listeners": member.control_address,
                    "log.dirs": str(self._folder / member.name / _DATA),
                    "metrics.listeners": member.metrics_address,
                    "etcd.endpoints": etcd,
                    **self._settings_of_others(member),
                    **plan.broker_settings,
                }
            elif member.role is Role.CONTROLLER:
                settings = {
                    "controller.id": str(member.number),
                    "controller.listeners": member.address,
                    "metrics.listeners": member.metrics_address,
                    "etcd.endpoints": etcd,
                    **plan.controller_settings,
                }
            elif member.role is Role.COORDINATOR:
                settings = {
                    "coordinator.id": str(member.number),
                    "coordinator.listeners": member.address,
                    "metrics.listeners": member.metrics_address,
                    "etcd.endpoints": etcd,
                    **plan.coordinator_settings,
                }
            else:
                continue
            path = self._config_path(member)
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = ["# Made by `tailrace dev up`, which writes it anew each time."]
            lines += [f"{name}={value}" for name, value in settings.items()]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _settings_of_others(self, member: Member) -> dict[str, str]:
        """What brokers were told that were there before: one that joins them is told the same."""
        own = {"broker.id", "listeners", "link.listeners", "log.dirs", "etcd.endpoints"}
        own |= {"metrics.listeners", "control.listeners"}
        if self._config_path(member).exists():
            return {}
        for path in sorted(self._folder.glob(f"{Role.BROKER}-*/{Role.BROKER}.properties")):
            lines = path.read_text(encoding="utf-8").splitlines()
            pairs = [line.partition("=") for line in lines if not line.startswith("#")]
            return {name: value for name, equals, value in pairs if equals and name not in own}
        return {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder: one command at a time changes what is in it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except OSError as error:
            raise self._no_folder(error) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DevError(
                    f"another `tailrace dev` command is at work in {self._folder}: wait for it"
                ) from None
            yield
        finally:
            os.close(descriptor)

    def _no_folder(self, error: OSError) -> DevUsage:
        what = error.strerror or str(error)
        if isinstance(error, FileExistsError | NotADirectoryError):
            what = "a file is in the way"
        return DevUsage(f"no cluster can live in {self._folder}: {what}; give another --dir")


class _Watcher:
    """Follows the cluster as a client does. Imported late: what only stops needs no gRPC."""

    def __init__(self, bootstrap: Sequence[str]) -> None:
        from tailrace.client.metadata import MetadataWatcher  # noqa: PLC0415
        from tailrace.runtime import Tasks  # noqa: PLC0415
        from tailrace.transport.http2.network import Http2Network  # noqa: PLC0415

        self._watcher = MetadataWatcher(Http2Network(), bootstrap, Random())
        self._tasks = Tasks(lambda _, __: None)

    async def __aenter__(self) -> _Watcher:
        self._tasks.spawn("watch the metadata", self._watcher.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()

    @property
    def problem(self) -> str:
        picture = self._watcher.picture
        if picture.revision < 0:
            return self._watcher.problem
        return (
            f"brokers {sorted(picture.brokers)} are there, controller {picture.controller_id}, "
            f"coordinators {sorted(picture.coordinators)}"
        )

    def sees(self, brokers: set[int], coordinators: set[int]) -> bool:
        picture = self._watcher.picture
        return (
            brokers <= set(picture.brokers)
            and bool(picture.controller)
            and coordinators <= set(picture.coordinators)
        )


# Processes that this one started. They may outlive it; as long as it runs it has to take note of
# their end, or they stay behind as zombies.
_CHILDREN: Final[list[Any]] = []


def _reap() -> None:
    for child in _CHILDREN:
        if isinstance(child, subprocess.Popen):
            child.poll()
        else:
            _ = child.is_running


def _or_else(given: int | None, otherwise: int) -> int:
    return otherwise if given is None else given


def _etcd_binary() -> Path:
    try:
        return find_etcd()
    except EtcdFailed as error:
        raise DevError(str(error)) from error


def _environment() -> dict[str, str]:
    """Leave out our own variables: they go before the config files, and are meant for others."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)
    }


def _are_free(members: Sequence[Member]) -> bool:
    return all(_is_free(each.host, port) for each in members for port in each.ports)


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        # As the services' own listeners: connections that still linger are not in the way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            # Whether a port of another network is free shows when it is taken.
            return error.errno == errno.EADDRNOTAVAIL
    return True
