"""The process that stays for the planners of streams: what it takes over, and when it ends.

The program here stands for Spark's, and this process for the JVM that starts it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tailrace_spark import planners

WAIT_S = 20.0
PLANNER = """
import json, os, sys
def main():
    told = [os.environ.get("WHO"), os.getcwd(), sys.argv[1:], "imported" in sys.modules]
    print(json.dumps([os.getpid(), *told]), flush=True)
    sys.stdin.read()
if __name__ == "__main__":
    main()
"""
START = """
import sys
from tailrace_spark import launcher, planners
planners.RUNNER, planners._WARM, planners.LOOK_S = "planner", ("imported",), 0.05
if not planners.was_handed_over():
    launcher.run("planner")
"""


class Planner:
    """A process that Spark would start to plan a stream."""

    def __init__(self, folder: Path, who: str) -> None:
        environment = {**os.environ, "SPARK_LOCAL_DIRS": str(folder), "WHO": who}
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), *sys.path])
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, who],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=environment,
            text=True,
        )
        assert self.process.stdout is not None
        self.told: list[Any] = json.loads(self.process.stdout.readline())

    @property
    def worker(self) -> int:
        """Who does the work."""
        return int(self.told[0])

    def end(self) -> int:
        """Let it end: its input does, and its output when nobody has it any more."""
        self.process.communicate(timeout=WAIT_S)
        return self.process.returncode


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a JVM."""
    (tmp_path / "planner.py").write_text(PLANNER)
    (tmp_path / "imported.py").write_text("")
    yield tmp_path
    # With its socket goes the process that stays.
    kept = [each for each in tmp_path.iterdir() if each.is_socket()]
    for each in kept:
        each.unlink()
    until(lambda: not listeners(tmp_path))


@pytest.fixture
def kept(folder: Path) -> Path:
    """The socket of a process that stays, which the first planner left behind."""
    first = Planner(folder, "first")
    assert first.worker == first.process.pid
    first.end()
    until(lambda: bool(sockets(folder)))
    return sockets(folder)[0]


def test_the_next_one_is_forked_from_what_the_first_left_behind(folder: Path, kept: Path) -> None:
    assert kept.stat().st_mode & 0o777 == 0o600
    for who in ("second", "third"):
        one = Planner(folder, who)
        assert one.worker != one.process.pid
        # It has everything imported, and all that makes up the process it works for.
        assert one.told[1:] == [who, str(folder), [who], True]
        one.end()
        until(partial(is_gone, one.worker))


def test_two_at_a_time(folder: Path, kept: Path) -> None:
    both = [Planner(folder, who) for who in ("one", "two")]
    assert len({each.worker for each in both} | {each.process.pid for each in both}) == 4
    for each in both:
        each.end()


def test_who_ends_the_process_that_spark_knows_ends_the_planner(folder: Path, kept: Path) -> None:
    one = Planner(folder, "one")
    one.process.terminate()
    until(partial(is_gone, one.worker))
    assert one.end() == 128 + signal.SIGTERM


def test_a_planner_that_dies_ends_the_process_that_spark_knows(folder: Path, kept: Path) -> None:
    one = Planner(folder, "one")
    os.kill(one.worker, signal.SIGKILL)
    one.process.wait(WAIT_S)
    one.end()


def test_without_an_answer_a_planner_starts_as_it_always_did(folder: Path, kept: Path) -> None:
    kept.unlink()
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(kept))
        deaf.listen()
        one = Planner(folder, "one")
        assert one.worker == one.process.pid
    one.end()
    until(lambda: not listeners(folder))


def test_one_that_died_is_replaced(folder: Path, kept: Path) -> None:
    """Its socket stayed: each planner of the session imported all, and left one that could not."""
    for each in listeners(folder):
        os.kill(each, signal.SIGKILL)
    until(lambda: not listeners(folder))
    one = Planner(folder, "one")
    assert one.worker == one.process.pid
    until(lambda: takes_connections(kept))
    one.end()
    two = Planner(folder, "two")
    assert two.worker != two.process.pid
    two.end()


def test_it_goes_with_its_folder(folder: Path, kept: Path) -> None:
    assert listeners(folder)
    kept.unlink()
    until(lambda: not listeners(folder))


def test_it_goes_with_the_jvm(folder: Path) -> None:
    jvm = (
        "import subprocess, sys\n"
        "one = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE)\n"
        "print(one.stdout.readline(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    paths = os.pathsep.join([str(folder), *sys.path])
    with subprocess.Popen(
        [sys.executable, "-c", jvm, START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "SPARK_LOCAL_DIRS": str(folder), "PYTHONPATH": paths},
        cwd=folder,
    ) as process:
        until(lambda: bool(sockets(folder)) and bool(listeners(folder)))
        process.kill()
    until(lambda: not listeners(folder))


def test_its_name_is_there_only_once_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planner that came between the name and the listening was refused, and removed the name."""
    path, link = tmp_path / "tailrace-planner-00000000", os.link

    def link_what_answers(made: str, name: str) -> None:
        assert takes_connections(Path(made))
        assert Path(made).stat().st_mode & 0o777 == 0o600
        link(made, name)

    monkeypatch.setattr(os, "link", link_what_answers)
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as another:
        assert planners._listen(one, str(path)) == path.stat().st_ino
        with pytest.raises(FileExistsError):
            planners._listen(another, str(path))
        assert takes_connections(path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_no_process_stays_where_a_socket_cannot_be() -> None:
    assert not planners.socket_path({})
    assert not planners.socket_path({"SPARK_LOCAL_DIRS": "/" + "x" * 100})
    path = planners.socket_path({"SPARK_LOCAL_DIRS": "/tmp/jvm,/tmp/more"})
    assert path.startswith("/tmp/jvm/tailrace-planner-")


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.01)


def sockets(folder: Path) -> list[Path]:
    """Those that have their last name."""
    return [each for each in folder.glob("tailrace-planner-????????") if each.is_socket()]


def takes_connections(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def listeners(folder: Path) -> list[int]:
    """Processes that have this folder as theirs."""
    found = []
    for each in Path("/proc").iterdir():
        with suppress(OSError):
            if each.name.isdigit() and (each / "cwd").readlink() == folder:
                found.append(int(each.name))
    return found
