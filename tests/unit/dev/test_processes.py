from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tailrace.dev.processes import Life, ProcessIdentity, identify, life_of, send


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    # A name with spaces and parentheses: /proc/<pid>/stat shows it as it is.
    sleeper = "import ctypes, time; ctypes.CDLL(None).prctl(15, b') Z 1 (', 0, 0, 0); "
    process = subprocess.Popen(
        [sys.executable, "-c", f"{sleeper} print(flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.stdout.close()
    process.kill()
    process.wait()


def _identity(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    found = identify(process.pid)
    assert found is not None
    return found


def _until(check: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not check():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_process_is_running_paused_and_gone(child: subprocess.Popen[bytes]) -> None:
    identity = _identity(child)
    assert life_of(identity) is Life.RUNNING
    assert send(identity, signal.SIGSTOP)
    _until(lambda: life_of(identity) is Life.PAUSED)
    assert send(identity, signal.SIGCONT)
    _until(lambda: life_of(identity) is Life.RUNNING)
    assert send(identity, signal.SIGKILL)
    # A zombie that nobody has asked after counts as gone.
    _until(lambda: life_of(identity) is Life.EXITED)
    assert identify(child.pid) is None
    child.wait()
    assert life_of(identity) is Life.EXITED
    assert not send(identity, signal.SIGKILL)


def test_another_process_with_the_same_id_is_left_alone(child: subprocess.Popen[bytes]) -> None:
    identity = _identity(child)
    strangers = [
        replace(identity, started_ticks=identity.started_ticks - 1),
        replace(identity, boot_id="another boot"),
    ]
    for stranger in strangers:
        assert life_of(stranger) is Life.EXITED
        assert not send(stranger, signal.SIGKILL)
    assert child.poll() is None


def test_an_id_that_nobody_has_is_no_process() -> None:
    free = 2**22 - 1
    with pytest.raises(ProcessLookupError):
        os.kill(free, 0)
    assert identify(free) is None
    assert not send(ProcessIdentity(free, 1, "b"), signal.SIGTERM)
