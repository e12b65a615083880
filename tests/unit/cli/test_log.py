"""The commands `tailrace log dump` and `tailrace log verify` from the outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from simulation import log_folders
from simulation.log_folders import PARTITION, batches_of, flip, segment_paths
from tailrace.cli.commands import app

MAIN = [sys.executable, "-m", "tailrace.cli.main"]


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    return log_folders.closed_folder(tmp_path / "data")


def _run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["log", *map(str, arguments)])


def test_dump_of_sound_files_exits_with_0(closed: Path) -> None:
    done = _run("dump", closed, closed / str(PARTITION), segment_paths(closed)[0])
    assert done.exit_code == 0
    kinds = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("file ")]
    assert kinds == ["kind=data", "kind=partition", "kind=segment"]


def test_dump_of_damage_exits_with_1(closed: Path) -> None:
    segment = segment_paths(closed)[0]
    flip(segment, batches_of(segment)[1][0] + 200)
    done = _run("dump", segment)
    assert done.exit_code == 1
    assert "\ndamage path=" in done.stdout


def test_wrong_paths_give_one_sentence_each_and_2(closed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("hello")
    done = _run("dump", tmp_path / "nope", other, tmp_path, closed)
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        f"tailrace: {tmp_path}/nope: there is no such file or folder",
        f"tailrace: {other} is no file of a Tailrace log",
        f"tailrace: {tmp_path} is neither a data folder nor the folder of a partition",
    ]
    # What could be read was shown all the same.
    assert "partition=orders-0" in done.stdout


def test_dump_as_json(closed: Path) -> None:
    done = _run("dump", "--json", "--records", "--limit", "2", segment_paths(closed)[0])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["type"] for line in lines] == ["file", "record", "record"]
    assert lines[1]["key"] == {"utf8": "k0"}


def test_dump_from_an_offset(closed: Path) -> None:
    done = _run("dump", "--records", "--from-offset", "321", "--limit", "1", closed / "orders-0")
    assert done.stdout.splitlines()[-1].startswith("record offset=321 ")


@pytest.mark.parametrize("arguments", [["dump"], ["dump", "--limit", "0", "x"], ["verify"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    assert _run(*arguments).exit_code == 2


def test_verify_of_a_sound_folder(closed: Path) -> None:
    done = _run("verify", closed)
    assert done.exit_code == 0
    assert "\nSound. 1 partition" in done.stdout
    assert _run("verify", "--deep", f"{closed / 'orders-0'}/").exit_code == 0


def test_verify_of_a_folder_that_mends_itself(tmp_path: Path) -> None:
    data = log_folders.killed_folder(tmp_path / "data")
    last = segment_paths(data)[-1]
    log_folders.resize(last, last.stat().st_size - 10)
    done = _run("verify", data)
    assert done.exit_code == 3
    assert "torn-tail" in done.stdout
    summary = json.loads(_run("verify", "--json", data).stdout.splitlines()[-1])
    assert (summary["result"], summary["exit_code"]) == ("mends", 3)


def test_verify_of_damage(closed: Path) -> None:
    segment = segment_paths(closed)[0]
    flip(segment, batches_of(segment)[1][0] + 200)
    done = _run("verify", closed)
    assert done.exit_code == 1
    assert "corrupt-batch" in done.stdout


def test_verify_of_something_else(tmp_path: Path) -> None:
    done = _run("verify", tmp_path / "nope")
    assert done.exit_code == 2
    assert done.stderr == f"tailrace: {tmp_path}/nope: there is no such file or folder\n"
    done = _run("verify", tmp_path)
    assert done.exit_code == 2
    assert "neither a data folder nor the folder of a partition" in done.stderr
    path = tmp_path / "file"
    path.write_text("")
    done = _run("verify", path)
    assert done.exit_code == 2
    assert done.stderr == f"tailrace: {path}: Not a directory\n"


def test_verify_of_a_folder_in_use(closed: Path) -> None:
    manager, _ = log_folders.reopen(closed)
    done = _run("verify", closed)
    assert done.exit_code == 0
    assert "in use" in done.stdout
    # The broker goes on as if nothing had been.
    log_folders.fill(manager.logs[PARTITION], 2, epoch=9)
    manager.close()
    assert _run("verify", closed).exit_code == 0


def test_the_folder_one_stands_in(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(closed / str(PARTITION))
    done = _run("verify", ".")
    assert done.exit_code == 0
    assert "ok     orders-0" in done.stdout
    assert "flushed to 600" in done.stdout
    assert _run("dump", ".").exit_code == 0
    monkeypatch.chdir(closed)
    assert "flushed to 600" in _run("verify", "orders-0").stdout


def test_help_says_what_the_exit_codes_mean() -> None:
    assert "dump" in _run("--help").stdout
    for command in ("dump", "verify"):
        assert "Exit codes: 0 " in _run(command, "--help").stdout


def test_a_reader_that_goes_away_is_no_traceback(closed: Path) -> None:
    command = " ".join([*MAIN, "log", "dump", "--records", str(closed / str(PARTITION))])
    done = subprocess.run(
        ["/bin/sh", "-c", f"{command} | head -1"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("file kind=segment")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "completed"), [("tailrace lo", ["log"]), ("tailrace log ve", ["verify"])]
)
def test_shells_can_complete_commands(words: str, completed: list[str]) -> None:
    done = CliRunner().invoke(
        app,
        prog_name="tailrace",
        env={
            "_TAILRACE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        },
    )
    assert done.stdout.split() == completed
