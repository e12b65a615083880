"""Processes of clients and servers: each in a session of its own, none outlives the bench.

A client is started, is ready, gets the word, and reports (see clients/job.py). Whatever ends the
bench, Ctrl-C and SIGTERM included, ends the whole group of processes that a client started.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from bench.peers.environment import PYTHON

CLIENTS: Final = "bench.peers.clients"
ROOT: Final = Path(__file__).resolve().parents[3]
PATHS: Final = (str(ROOT / "services"), str(ROOT / "tests"))
READY_S_MAX: Final = 60.0
WORK_S_MAX: Final = 300.0
STOP_S_MAX: Final = 20.0
LISTEN_S_MAX: Final = 90.0
POLL_S: Final = 0.05
# Which environment a client lives in: the peers', but for our own.
OURS: Final = {"ours", "crowd"}


class ClientFailed(Exception):
    """A client ended without a report; its last words are on standard error."""


class Client:
    """One client process: `go`, then `report`."""

    def __init__(self, module: str, action: str, job: Mapping[str, Any]) -> None:
        self.name = f"{module} {action}"
        python = sys.executable if module in OURS else str(PYTHON)
        self._process = subprocess.Popen(
            [python, "-m", f"{CLIENTS}.{module}", action, json.dumps(job)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def until_ready(self) -> None:
        self._expect("ready", READY_S_MAX)

    def go(self) -> None:
        self.say("go")

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def expect_ok(self, within_s: float = WORK_S_MAX) -> None:
        self._expect("ok", within_s)

    def report(self, within_s: float = WORK_S_MAX) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._line(within_s))
        self._process.wait(STOP_S_MAX)
        return found

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_S_MAX)

    def _expect(self, word: str, within_s: float) -> None:
        line = self._line(within_s)
        if line != word:
            raise ClientFailed(f"{self.name} said {line!r} instead of {word!r}")

    def _line(self, within_s: float) -> str:
        """Lines come whole: a client flushes after each."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(within_s):
                raise ClientFailed(f"{self.name} said nothing for {within_s} s")
        line = self._process.stdout.readline().strip()
        if not line:
            raise ClientFailed(f"{self.name} ended without a report")
        return line


@contextmanager
def client(module: str, action: str, job: Mapping[str, Any]) -> Iterator[Client]:
    """One that is ready for the word."""
    with clients([(module, action, job)]) as (one,):
        yield one


@contextmanager
def clients(wanted: Sequence[tuple[str, str, Mapping[str, Any]]]) -> Iterator[list[Client]]:
    """Several at once, all of them ready."""
    with ExitStack() as stack:
        started = []
        for module, action, job in wanted:
            one = Client(module, action, job)
            stack.callback(one.end)
            started.append(one)
        for one in started:
            one.until_ready()
        yield started


def done(module: str, action: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """One client, from its start to its report."""
    with client(module, action, job) as one:
        one.go()
        return one.report()


class Server:
    """A process that serves; it can be killed, asked to stop, and started again."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = list(command)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill(self) -> None:
        """It is gone when this returns."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S_MAX)

    def ended(self, within_s: float) -> int:
        """Wait until it ends by itself; gives its exit code."""
        assert self._process is not None
        return self._process.wait(within_s)

    def terminate(self) -> None:
        """Ask it to stop in order, and wait until it has."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(LISTEN_S_MAX)


def until_listening(port: int) -> None:
    end = time.monotonic() + LISTEN_S_MAX
    while time.monotonic() < end:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(POLL_S)
    raise AssertionError(f"nothing listens at port {port} after {LISTEN_S_MAX} s")


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
