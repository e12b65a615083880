from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from simulation import log_folders
from tailrace import __version__
from tailrace.cli import commands as cli
from tailrace.dev.state import DevError, DevUsage
from tailrace.errors import (
    FolderLocked,
    InvalidConfig,
    InvariantViolation,
    TopicExists,
    UnknownTopic,
    Unreachable,
)


def _run_raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "argv", ["tailrace"])
    cli.run()


def test_version_of_the_installed_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tailrace.cli.main", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"tailrace {__version__}\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (FolderLocked("data: another process has it open"), "data: another process has it open"),
        (FolderLocked(), "FolderLocked"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.log"), "a.log: No such file"),
        (OSError("disk on fire"), "disk on fire"),
    ],
)
def test_an_error_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    sentence: str,
) -> None:
    with pytest.raises(SystemExit) as stopped:
        _run_raising(monkeypatch, error)
    assert stopped.value.code == cli.EXIT_FAILED
    assert capsys.readouterr().err == f"tailrace: {sentence}\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidConfig("acks=5"), cli.EXIT_USAGE),
        (UnknownTopic("there is no topic 'x'"), cli.EXIT_USAGE),
        (DevUsage("there is no process 'x'"), cli.EXIT_USAGE),
        (DevError("no free ports"), cli.EXIT_FAILED),
        (Unreachable("nobody answers"), cli.EXIT_FAILED),
        (TopicExists("it is there"), cli.EXIT_FAILED),
    ],
)
def test_what_was_asked_for_wrongly_is_told_apart_from_what_failed(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    with pytest.raises(SystemExit) as stopped:
        _run_raising(monkeypatch, error)
    assert stopped.value.code == code


def test_ctrl_c_exits_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        _run_raising(monkeypatch, KeyboardInterrupt())
    assert stopped.value.code == cli.EXIT_INTERRUPTED
    assert capsys.readouterr().err == ""


def test_a_reader_that_went_away_is_no_complaint(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    with pytest.raises(SystemExit) as stopped:
        _run_raising(monkeypatch, BrokenPipeError(errno.EPIPE, "Broken pipe"))
    assert stopped.value.code == cli.EXIT_FAILED
    assert capfd.readouterr().err == ""


def _all(command: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", {})
    return [(path, command), *(x for name in below for x in _all(below[name], (*path, name)))]


def test_every_command_option_and_argument_has_a_word_of_help() -> None:
    for path, command in _all(cli.plain(get_command(cli.app))):
        assert command.help, path
        for each in command.params:
            assert getattr(each, "help", ""), (path, each.name)
            assert not (each.nargs == -1 and "…" in each.metavar), "typer adds it"


def test_flags_are_not_shown_as_if_they_took_a_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tailrace", "topics", "delete", "--help"])
    with pytest.raises(SystemExit) as left:
        cli.run()
    assert left.value.code == 0
    shown = capsys.readouterr().out
    (line,) = [each for each in shown.splitlines() if "--yes" in each]
    assert "bool" not in line
    assert "…" not in shown.splitlines()[1], "the usage names the argument once"


def test_our_own_bug_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvariantViolation):
        _run_raising(monkeypatch, InvariantViolation("two leaders"))


def test_the_base_install_has_the_tools_and_says_what_the_rest_needs(tmp_path: Path) -> None:
    """The client and the tools go without what `tailrace[server]` adds."""
    data = log_folders.closed_folder(tmp_path / "data")

    def without_server(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = (
            "import sys\n"
            "sys.modules.update(dict.fromkeys(sys.argv[1].split(',')))\n"
            "del sys.argv[1]\n"
            "from tailrace import Admin, Consumer, Producer\n"
            "from tailrace.cli.main import main\n"
            "main()"
        )
        blocked = ",".join(cli.SERVER_MODULES)
        command = [sys.executable, "-c", code, blocked, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    for arguments in (("log", "verify", str(data)), ("log", "dump", "--records", str(data))):
        done = without_server(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), arguments
    done = without_server("demo", "log")
    assert done.returncode == 2
    assert "pip install 'tailrace[server]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["dev", "up"], ["default: 3, or as before", "default: free ones"]),
        (["consume"], ["default: earliest", "default: the dev cluster", "Exit codes"]),
        (["groups", "reset"], ["default: all it has"]),
    ],
)
def test_help_tells_the_defaults(command: list[str], words: list[str]) -> None:
    """Square brackets are markup, and what stands in them is not shown."""
    done = CliRunner().invoke(cli.app, [*command, "--help"], env={"COLUMNS": "250"})
    assert [each for each in words if each not in done.output] == []
