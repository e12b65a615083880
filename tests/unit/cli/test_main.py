"""Signals at every moment of a command: while it is imported, while it runs, at its end."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

# Runs the command line with something that happens when a module is imported.
HARNESS = """
import os, signal, sys

# Who runs the tests behind a shell has it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == {at!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.{number})

sys.meta_path.insert(0, Hook())
sys.argv = ["tailrace", *{arguments!r}]
from tailrace.cli.main import main
{more}
main()
"""


def _run(at: str, number: str, *arguments: str, more: str = "") -> subprocess.CompletedProcess[str]:
    code = HARNESS.format(at=at, number=number, arguments=arguments, more=textwrap.dedent(more))
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_while_things_are_imported_it_leaves_without_a_word(number: str, code: int) -> None:
    done = _run("typer", number, "--help")
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_command_that_has_begun_ends_in_order(number: str, code: int) -> None:
    """The import is in the middle of the command; what it holds is given back."""
    done = _run(
        "pyarrow.parquet",
        number,
        "--version",
        more="""
        from tailrace.cli import commands

        def run():
            try:
                import pyarrow.parquet
            except KeyboardInterrupt:
                sys.exit(130)
            finally:
                print("given back")

        commands.run = run
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "given back\n", "")


@pytest.mark.parametrize("number", ["SIGHUP", "SIGINT"])
def test_a_signal_that_is_ignored_stays_so(number: str) -> None:
    """As `nohup` asks for, and a shell for what runs behind it."""
    ignored = f"signal.signal(signal.{number}, signal.SIG_IGN)"
    done = _run("tailrace.cli.commands", number, "--version", more=ignored)
    assert done.returncode == 0
    assert done.stdout.startswith("tailrace ")
