"""What is wrong with this machine: limits, disks, a dev cluster, data folders, config files.

What is looked at is gathered in `MachineFacts`; what it means is decided by `examine_machine`,
which reads nothing.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.cli.diagnosis import DISK_FULL, DISK_LOW, FILES_FEW, Finding, Severity, named
from tailrace.cli.formatting import counted, size
from tailrace.cli.known_settings import (
    broker_known,
    broker_settings,
    controller_known,
    controller_settings,
    coordinator_known,
    coordinator_settings,
)
from tailrace.cli.settings import Effective, Known, effective, from_file
from tailrace.cli.sources import SourceFiles, is_in_use
from tailrace.clock import Clock
from tailrace.dev.processes import Life, life_of
from tailrace.dev.state import ClusterState, DevError, load
from tailrace.errors import TailraceError
from tailrace.log.audit.findings import Severity as LogSeverity
from tailrace.log.audit.verification import is_data_folder, partition_names, verify
from tailrace.log.flushing import SYNC_FAILED_FILE
from tailrace.meta.embedded import EtcdFailed, find_etcd
from tailrace.process import OPEN_FILES_WANTED

# The modules that the services need and the clients do not.
SERVER_MODULES: Final = ("aetcd", "prometheus_client")


class Room(NamedTuple):
    """A folder and the disk that it is on."""

    folder: str
    free_bytes: int
    total_bytes: int


class FolderLook(NamedTuple):
    """A data folder: what is wrong with it, the worst first; and whether it can be used at all."""

    path: str
    broken: str = ""
    wrong: tuple[str, ...] = ()
    failed_syncs: tuple[str, ...] = ()
    in_use: bool = False
    partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """This machine as it was found."""

    open_files_max: int
    rooms: Sequence[Room] = ()
    # The processes of the dev cluster that have not ended as they were told to: name and state.
    dev_folder: str = ""
    dev_lives: Mapping[str, Life] | None = None
    etcd_missing: str = ""
    modules_missing: Sequence[str] = ()
    data: Sequence[FolderLook] = ()
    # By path: why it cannot be used, empty when it can.
    configs: Mapping[str, str] | None = None


def examine_machine(facts: MachineFacts) -> list[Finding]:
    """Everything that was found on this machine."""
    found = [
        *_limits(facts),
        *_rooms(facts),
        *_dev(facts),
        *_programs(facts),
        *(finding for look in facts.data for finding in _folder(look)),
        *_configs(facts),
    ]
    return found or [Finding("machine", Severity.OK, "this machine is fit to run services")]


def _limits(facts: MachineFacts) -> Iterator[Finding]:
    if facts.open_files_max >= OPEN_FILES_WANTED:
        return
    yield Finding(
        "machine",
        Severity.WARNING if facts.open_files_max < FILES_FEW else Severity.HINT,
        f"a process here may have {facts.open_files_max:,} files and connections open",
        f"services ask for {OPEN_FILES_WANTED:,}: raise the hard limit (ulimit -Hn, LimitNOFILE)",
    )


def _rooms(facts: MachineFacts) -> Iterator[Finding]:
    for room in facts.rooms:
        share = room.free_bytes / room.total_bytes if room.total_bytes else 1.0
        if share < DISK_LOW:
            yield Finding(
                "machine",
                Severity.CRITICAL if share < DISK_FULL else Severity.WARNING,
                f"the disk of {room.folder} has {size(room.free_bytes)} left of "
                f"{size(room.total_bytes)} ({share:.0%})",
                "make room, or put the folder elsewhere: a broker on a full disk takes no records",
            )


def _dev(facts: MachineFacts) -> Iterator[Finding]:
    if facts.dev_lives is None:
        return
    ended = [name for name, life in facts.dev_lives.items() if life is Life.EXITED]
    if len(ended) == len(facts.dev_lives):
        yield Finding(
            "dev",
            Severity.HINT,
            f"the dev cluster in {facts.dev_folder} does not run",
            "`tailrace dev up` starts it again, with its data",
        )
        return
    for name, life in facts.dev_lives.items():
        if life is Life.EXITED:
            yield Finding(
                "dev",
                Severity.WARNING,
                f"{name} of the dev cluster in {facts.dev_folder} has ended",
                f"{facts.dev_folder}/logs/{name}.log says why; `tailrace dev start {name}`",
            )
        elif life is Life.PAUSED:
            yield Finding(
                "dev",
                Severity.WARNING,
                f"{name} of the dev cluster in {facts.dev_folder} is paused",
                f"`tailrace dev resume {name}`",
            )


def _programs(facts: MachineFacts) -> Iterator[Finding]:
    if facts.modules_missing:
        yield Finding(
            "machine",
            Severity.HINT,
            f"services cannot run here, for {named(facts.modules_missing)} is missing; clients can",
            "pip install 'tailrace[server]'",
        )
    elif facts.etcd_missing:
        yield Finding(
            "machine",
            Severity.HINT,
            f"`tailrace dev up` cannot run here: {facts.etcd_missing}",
        )


def _folder(look: FolderLook) -> Iterator[Finding]:
    if look.broken:
        yield Finding(
            "data",
            Severity.CRITICAL,
            f"{look.path} cannot be used: {look.broken}",
            "name a folder of log.dirs, and look as the user that the broker runs as",
        )
        return
    for wrong in look.wrong:
        yield Finding(
            "data",
            Severity.WARNING,
            f"{look.path}: {wrong}",
            f"`tailrace log verify {look.path}` reads everything and says what a start would do",
        )
    if look.failed_syncs:
        yield Finding(
            "data",
            Severity.CRITICAL,
            f"the disk of {look.path} failed to sync {named(look.failed_syncs)}",
            "replace the disk; the replica is filled from its leader when the broker starts",
        )
    if not look.wrong and not look.failed_syncs:
        state = "in use" if look.in_use else "not in use"
        yield Finding(
            "data",
            Severity.OK,
            f"{look.path} has {counted(look.partitions, 'partition')}, its own files can be read, "
            f"and it is {state}",
        )


def _configs(facts: MachineFacts) -> Iterator[Finding]:
    for path, wrong in (facts.configs or {}).items():
        if wrong:
            yield Finding(
                "config",
                Severity.CRITICAL,
                wrong,
                f"`tailrace broker --config {path} --print-config` shows what counts",
            )
        else:
            yield Finding("config", Severity.OK, f"{path} can be used")


def look_at_machine(
    clock: Clock,
    environment: Mapping[str, str],
    *,
    dev_folder: Path,
    data: Sequence[Path] = (),
    configs: Sequence[Path] = (),
) -> MachineFacts:
    """Gather everything; what cannot be read is a fact, not an error."""
    lives = _lives(dev_folder)
    folders = [*data, *([dev_folder] if lives is not None else [])] or [Path.cwd()]
    return MachineFacts(
        open_files_max=_hard_limit(),
        rooms=[room for folder in folders for room in _room(folder)],
        dev_folder=str(dev_folder),
        dev_lives=lives,
        etcd_missing=_without_etcd(environment),
        modules_missing=[each for each in SERVER_MODULES if find_spec(each) is None],
        data=[_look(str(folder), clock.wall_ms()) for folder in data],
        configs={str(path): _config_trouble(path) for path in configs},
    )


def dev_state(folder: Path) -> ClusterState | None:
    """What runs or ran in a folder; None when that cannot be said."""
    try:
        return load(folder)
    except DevError:
        return None


def _lives(folder: Path) -> Mapping[str, Life] | None:
    state = dev_state(folder)
    if state is None:
        return None
    return {
        each.name: Life.EXITED if each.identity is None else life_of(each.identity)
        for each in state.members
    }


def _hard_limit() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else hard


def _room(folder: Path) -> list[Room]:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return []
    return [Room(str(folder), usage.free, usage.total)]


def _without_etcd(environment: Mapping[str, str]) -> str:
    try:
        find_etcd(environment)
    except EtcdFailed as error:
        return str(error)
    return ""


def _look(path: str, now_ms: int) -> FolderLook:
    """The files of a data folder itself; no segment is read, however large it is."""
    files = SourceFiles()
    try:
        in_use = is_in_use(path)
        if not is_data_folder(files, path):
            return FolderLook(path, broken="it is no data folder of a broker")
        found = next(verify(files, path, now_ms=now_ms, in_use=in_use))
        names = partition_names(files, path)
        failed = [name for name in names if files.exists(f"{path}/{name}/{SYNC_FAILED_FILE}")]
    except OSError as error:
        return FolderLook(path, broken=error.strerror or str(error))
    if not os.access(path, os.W_OK):
        return FolderLook(path, broken="it cannot be written to")
    wrong = tuple(
        f"{Path(each.path).name}: {each.what}"
        for each in found.findings
        if each.severity is LogSeverity.DAMAGE
    )
    return FolderLook(path, "", wrong, tuple(failed), in_use, len(names))


_Reader = Callable[[Effective], object]


def _config_trouble(path: Path) -> str:
    """Why a file cannot be used by the services that it is for; by their ids it tells which."""
    services: tuple[tuple[str, tuple[Known, ...], _Reader], ...] = (
        ("broker.id", broker_known(), broker_settings),
        ("controller.id", controller_known(), controller_settings),
        ("coordinator.id", coordinator_known(), coordinator_settings),
    )
    everything = [each for _, known, _ in services for each in known]
    try:
        names = {each.name for each in from_file(path, everything)}
        for own_id, known, read in services:
            if own_id in names:
                read(effective(known, from_file(path, known, everything)))
    except TailraceError as error:
        return str(error)
    if not names & {own_id for own_id, _, _ in services}:
        return f"{path} is for no service: it has no broker.id, controller.id or coordinator.id"
    return ""
