"""Java is looked for before Spark starts, and progress is one line."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from tailrace_spark import session
from tailrace_spark.session import (
    JAVA_OPTIONS,
    JavaMissing,
    count,
    job_parser,
    job_session,
    progress_line,
    python_for,
    quiet,
    require_java,
    run_job,
    sentence,
)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """A job ends its process: it leaves neither Ctrl-C nor logging as they were."""
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for each, handler in handlers.items():
        signal.signal(each, handler)
    logging.disable(logging.NOTSET)


def _java(folder: Path, says: str) -> dict[str, str]:
    path = folder / "bin" / "java"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\n", encoding="utf-8")
    path.chmod(0o755)
    return {"JAVA_HOME": str(folder)}


def test_java_is_found(tmp_path: Path) -> None:
    found = _java(tmp_path, 'openjdk version "21.0.1" 2023-10-17')
    assert require_java(found) == str(tmp_path / "bin" / "java")


def test_on_this_machine_spark_starts_python_by_way_of_ours(tmp_path: Path) -> None:
    python, launcher = (str(tmp_path / each) for each in ("python", "tailrace-spark-python"))
    assert python_for("local[2]", python=python) == python
    Path(launcher).touch()
    assert python_for("local[2]", python=python) == launcher
    assert python_for("spark://there:7077", python=python) == python
    assert python_for("", python=python) == python


@pytest.mark.parametrize(
    ("says", "message"),
    [('java version "11.0.2"', "is version 11"), ("hello", "not a Java that tells its version")],
)
def test_a_java_that_will_not_do(tmp_path: Path, says: str, message: str) -> None:
    with pytest.raises(JavaMissing, match=f"Spark needs Java 17 or newer.*{message}"):
        require_java(_java(tmp_path, says))


def test_no_java_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(JavaMissing, match="there is no java on PATH"):
        require_java({"PATH": str(tmp_path)})
    with pytest.raises(JavaMissing, match="JAVA_HOME=/nowhere has none"):
        require_java({"JAVA_HOME": "/nowhere"})
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    options = job_parser("x").parse_args(["--bootstrap", "a:1"])
    with pytest.raises(SystemExit, match="install it, or set JAVA_HOME"):
        job_session("x", options)
    options = job_parser("x").parse_args(["--bootstrap", "a:1", "--conf", "nothing"])
    with pytest.raises(SystemExit, match="--conf nothing: give it as KEY=VALUE"):
        job_session("x", options)
    assert capsys.readouterr().out == ""


def _progress(**source: Any) -> dict[str, Any]:
    return {
        "batchId": 4,
        "numInputRows": 1_500,
        "durationMs": {"triggerExecution": 500},
        "sources": [source],
    }


def test_a_micro_batch_in_one_line() -> None:
    ends = [{"topics": {"t": {"offsets": {"0": number}}}} for number in (10, 35)]
    line = progress_line(_progress(endOffset=ends[0], latestOffset=ends[1]))
    assert line == "batch 4: 1,500 rows in 0.5 s, 3,000 rows/s, 25 behind"
    assert progress_line(_progress(endOffset=None)) == "batch 4: 1,500 rows in 0.5 s, 3,000 rows/s"


WRAPPED = """[STREAM_FAILED] Query terminated: [PYTHON_DATA_SOURCE_ERROR] Failed: Traceback:
  File "source.py", line 160, in initialOffset
    cluster.topics(options.selection),
tailrace.errors.Unreachable: 127.0.0.1:1: it refused the connection

The above exception was the direct cause of the following exception:

  File "cluster.py", line 180, in _ask
tailrace_spark.cluster.ClusterFailed: bootstrap.servers: no broker of 127.0.0.1:1 answered
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Current State: INITIALIZING
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (WRAPPED, "bootstrap.servers: no broker of 127.0.0.1:1 answered"),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/x.\nmore",
            "[PATH_NOT_FOUND] Path does not exist: file:/x.",
        ),
        (
            "An error occurred while calling o5.start.\n: java.lang.E: Both use x\n\tat y",
            "Both use x",
        ),
        ("An error occurred while calling o5.start.\n: java.lang.E\n\tat y", "java.lang.E"),
        ("", "OSError"),
    ],
)
def test_an_error_of_a_query_in_a_sentence(text: str, told: str) -> None:
    assert sentence(OSError(text)) == told


def _fails(error: BaseException) -> Any:
    def main() -> int:
        raise error

    return main


@pytest.mark.parametrize(
    ("main", "code", "told"),
    [
        (lambda: 1, 1, ""),
        (_fails(OSError(WRAPPED)), 2, "no broker of 127.0.0.1:1 answered\n"),
        (_fails(SystemExit("no Java")), 2, ": no Java\n"),
        (_fails(KeyboardInterrupt()), 130, "interrupted; the same command goes on\n"),
        (_fails(KeyboardInterrupt(143)), 143, "interrupted; the same command goes on\n"),
    ],
)
def test_a_job_ends_with_a_code_and_a_sentence(
    main: Any, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_job(main)
    assert ended.value.code == code
    assert capsys.readouterr().err.endswith(told)


def test_spark_says_little_above_a_job_unless_somebody_wants_more() -> None:
    (option,) = quiet({"a": "b", JAVA_OPTIONS: "-Xss4m"})[JAVA_OPTIONS].split()[1:]
    name, _, where = option.partition("=")
    assert name == "-Dlog4j2.configurationFile"
    said = Path(where.removeprefix("file://")).read_text()
    # Neither warnings of Spark's nor tracebacks of Java's.
    assert "rootLogger.level = error" in said
    assert "%ex{none}" in said
    mine = {JAVA_OPTIONS: "-Dlog4j2.configurationFile=mine.xml"}
    assert quiet(mine) == mine


def test_help_tells_defaults_where_there_are_some() -> None:
    parser = job_parser("x")
    parser.add_argument("--rows", type=int, default=7, help="rows")
    shown = parser.format_help()
    assert "rows (default: 7)" in shown
    assert shown.count("default") == 1


def test_ctrl_c_waits_for_the_start_of_spark_and_is_an_ordinary_one_then() -> None:
    """In the middle of it, the JVM would stay for ever."""
    done: list[str] = []

    def start() -> None:
        with session._interrupts_later():
            # As Spark does: its handler calls the JVM.
            signal.signal(signal.SIGINT, lambda *_: done.append("spark's handler"))
            signal.raise_signal(signal.SIGINT)
            done.append("started")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert done == ["started"]
    for each, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with pytest.raises(KeyboardInterrupt) as told:
            signal.raise_signal(each)
        assert told.value.args == (code,)


class _Jvm:
    """Speaks until its input ends."""

    def __init__(self, said: list[str], *, hangs: bool = False) -> None:
        self.stdin = SimpleNamespace(close=lambda: said.append("input closed"))
        self._said = said
        self._hangs = hangs

    def wait(self, timeout: float) -> int:
        sys.stderr.write("Exception occurred during processing of request\n")
        if self._hangs:
            raise subprocess.TimeoutExpired("java", timeout)
        self._said.append("ended")
        return 0


@pytest.mark.parametrize("hangs", [False, True])
def test_nothing_follows_the_last_line_of_a_job(
    hangs: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    context = SimpleNamespace(setLogLevel=said.append)
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=_Jvm(said, hangs=hangs)))
    with pytest.raises(SystemExit):
        run_job(_fails(KeyboardInterrupt()), interrupted="interrupted; nothing was compared")
    assert said == ["OFF", "input closed", *([] if hangs else ["ended"])]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("interrupted; nothing was compared")
    # Pressed once more while that goes on, it changes nothing.
    signal.raise_signal(signal.SIGINT)


def test_a_number_of_things_is_one_at_least(capsys: pytest.CaptureFixture[str]) -> None:
    parser = job_parser("x")
    parser.add_argument("--range", type=count)
    assert parser.parse_args(["--bootstrap", "a:1", "--range", "7"]).range == 7
    for wrong, told in (("0", "0 is too few, it must be 1 or more"), ("x", "invalid count value")):
        with pytest.raises(SystemExit):
            parser.parse_args(["--bootstrap", "a:1", "--range", wrong])
        assert f"--range: {told}" in capsys.readouterr().err
