"""What every job needs around its DataFrame: a session, a few options, progress on screen."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from io import StringIO, TextIOWrapper
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tailrace_spark import register
from tailrace_spark.launcher import NAME as LAUNCHER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

JAVA_MIN: Final = 17
JAVA_TIMEOUT_S: Final = 20
POLL_S: Final = 1
# How long the last line of a job waits for its JVM: to be silent, and to end.
SILENCE_TIMEOUT_S: Final = 2
JVM_END_TIMEOUT_S: Final = 10
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
LOG_CONFIG: Final = Path(__file__).with_name("log4j2.properties")

_VERSION: Final = re.compile(r'version "(\d+)')


# Spark wraps an error of ours into its own, with tracebacks and plans around it.
_OURS: Final = re.compile(r"^\s*(?:[\w.]+: )?tailrace(?:_spark)?(?:\.\w+)+: (.+)$", re.MULTILINE)

# What py4j makes of an exception that Spark does not know how to translate.
_JAVAS: Final = re.compile(r"\AAn error occurred while calling .*\n: ([\w.$]+)(?:: (.*))?")

# They tell of an error in a query as a line of JSON with all of Java's traceback in it.
_SPARK_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")

FAILED: Final = 2
"""The exit code of a job that could not do what it should; 1 is that of an audit that differs."""
INTERRUPTED: Final = 130
GOES_ON: Final = "interrupted; the same command goes on"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class JavaMissing(Exception):
    """Spark needs Java, and there is none that it can use; the message says what to do."""


def require_java(environment: Mapping[str, str] | None = None) -> str:
    """Where Java is. JavaMissing when it is not there or too old: Spark says so late, and badly."""
    given = os.environ if environment is None else environment
    home = given.get("JAVA_HOME", "")
    found = (
        str(Path(home) / "bin" / "java") if home else shutil.which("java", path=given.get("PATH"))
    )
    advice = f"Spark needs Java {JAVA_MIN} or newer: install it, or set JAVA_HOME"
    if not found or not os.access(found, os.X_OK):
        where = f"JAVA_HOME={home} has none" if home else "there is no java on PATH"
        raise JavaMissing(f"{advice} ({where})")
    told = subprocess.run(  # noqa: S603 - the user's own Java.
        [found, "-version"], capture_output=True, text=True, check=False, timeout=JAVA_TIMEOUT_S
    )
    version = _VERSION.search(told.stderr + told.stdout)
    if version is None or int(version[1]) < JAVA_MIN:
        what = f"version {version[1]}" if version else "not a Java that tells its version"
        raise JavaMissing(f"{advice} ({found} is {what})")
    return found


def session(
    name: str, *, master: str = "", config: Mapping[str, str] | None = None
) -> SparkSession:
    """A session that knows `format("tailrace")`. On a cluster, spark-submit says the rest."""
    require_java()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - Spark is heavy.

    # Workers must find the packages that this process has found.
    os.environ.setdefault("PYSPARK_PYTHON", python_for(master))
    builder = SparkSession.builder.appName(name)
    if master:
        builder = builder.master(master)
    for key, value in {**_DEFAULTS, **(config or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def python_for(master: str, *, python: str = sys.executable) -> str:
    """What Spark shall start as Python."""
    # On other machines Tailrace may have come in another way than by pip, without its programs.
    launcher = Path(python).with_name(LAUNCHER)
    return str(launcher) if master.startswith("local") and launcher.exists() else python


_DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    # A topic may be called 2024; it is a name all the same.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def job_parser(what: str) -> argparse.ArgumentParser:
    """The options that all jobs have."""
    parser = argparse.ArgumentParser(description=what, formatter_class=_Help)
    parser.add_argument("--bootstrap", required=True, help="brokers, as host:port,host:port")
    parser.add_argument(
        "--master", default="", help="where Spark runs, unless spark-submit says so"
    )
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark"
    )
    parser.add_argument(
        "--traceback", action="store_true", help="show errors whole, not only in a sentence"
    )
    return parser


def count(text: str) -> int:
    """The type of an option that is a number of something: one at least."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too few, it must be 1 or more")
    return number


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Tells defaults where there is one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_plain = action.required or action.default in (None, "", False) or action.default == []
        return action.help if is_plain else super()._get_help_string(action)


def run_job(main: Callable[[], int], *, interrupted: str = GOES_ON) -> NoReturn:
    """End the process with a job's exit code; an error is told in a sentence, the last line."""
    if isinstance(sys.stdout, TextIOWrapper):
        # Progress is of use while there is some, in a pipe and in the log of a pod too.
        sys.stdout.reconfigure(line_buffering=True)
    try:
        code, why = main(), ""
    except KeyboardInterrupt as signalled:
        _ignore_signals()
        code = signalled.args[0] if signalled.args else INTERRUPTED
        why = interrupted
    except SystemExit as ended:
        if not isinstance(ended.code, str):
            raise
        code, why = FAILED, ended.code
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told.
        if "--traceback" in sys.argv:
            traceback.print_exc()
        code, why = FAILED, sentence(error)
    if why:
        _end_spark()
        sys.stderr.write(f"{Path(sys.argv[0]).name}: {why}\n")
    sys.exit(code)


def _end_spark() -> None:
    """Wait for the end of Spark's JVM: what it says must not follow our last line."""
    from pyspark import SparkContext  # noqa: PLC0415 - Spark is heavy.

    context: Any = SparkContext._active_spark_context
    gateway: Any = SparkContext._gateway
    # Nor what py4j and Spark's own threads here say when the JVM goes.
    logging.disable(logging.CRITICAL)
    with redirect_stderr(StringIO()):
        if context is not None:
            # On a connection of its own, as every thread has: ours may be in the middle of a call.
            silencing = Thread(target=_silence, args=(context,), daemon=True)
            silencing.start()
            silencing.join(SILENCE_TIMEOUT_S)
        started = getattr(gateway, "proc", None)
        if started is not None:
            # The JVM ends with its input, and stops all of Spark before.
            started.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                started.wait(JVM_END_TIMEOUT_S)


def _silence(context: Any) -> None:
    # It may be gone already.
    with suppress(Exception):
        context.setLogLevel("OFF")


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Let Ctrl-C wait, and make it an ordinary one.

    One in the middle of the start of Spark leaves its JVM behind, for ever. And Spark's own handler
    calls the JVM, within a call of the JVM more often than not: that ends in tracebacks.
    """
    if current_thread() is not main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        for each in _SIGNALS:
            signal.signal(each, _interrupt)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _interrupt(number: int, _: object) -> None:
    # Py4j tells of an interrupted call with its traceback.
    logging.disable(logging.CRITICAL)
    # As shells tell of it: 130 for Ctrl-C, 143 for SIGTERM.
    raise KeyboardInterrupt(128 + number)


def _ignore_signals() -> None:
    """Whoever presses it twice gets the same last line, a little later."""
    if current_thread() is main_thread():
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)


def sentence(error: Exception) -> str:
    """What an error of a query says in the end; of ours without what Spark puts around it."""
    text = str(error).strip()
    if ours := _OURS.findall(text):
        return str(ours[-1])
    if java := _JAVAS.search(text):
        return java[2] or java[1]
    first = text.splitlines()[0].strip() if text else ""
    return first or type(error).__name__


def job_session(name: str, options: argparse.Namespace) -> SparkSession:
    """The session of a job; exits with a sentence when there is no Java."""
    config = {}
    for each in options.conf:
        key, is_given, value = each.partition("=")
        if not is_given:
            sys.exit(f"--conf {each}: give it as KEY=VALUE")
        config[key] = value
    try:
        with _interrupts_later():
            spark = session(name, master=options.master, config=quiet(config))
    except JavaMissing as error:
        sys.exit(str(error))
    spark.sparkContext.setLogLevel("ERROR")
    for each in _SPARK_LOGGERS:
        logging.getLogger(each).setLevel(logging.CRITICAL)
    return spark


def quiet(config: Mapping[str, str]) -> dict[str, str]:
    """The settings of a job, with few and short lines of Spark's own above those of the job.

    They are for a JVM that the job starts; one that spark-submit has started says what it was told
    to. Somebody who configures log4j gets what he asked for.
    """
    given = config.get(JAVA_OPTIONS, "")
    if "log4j" in given:
        return dict(config)
    wanted = f"{given} -Dlog4j2.configurationFile={LOG_CONFIG.as_uri()}".strip()
    return {**config, JAVA_OPTIONS: wanted}


def follow(query: StreamingQuery, say: Callable[[str], None]) -> int:
    """Tell of each micro-batch until the query ends; how many rows it read. Raises its error."""
    last, rows = -1, 0
    while True:
        ended = query.awaitTermination(POLL_S)
        for progress in query.recentProgress:
            batch = int(progress["batchId"])
            if batch > last and progress["numInputRows"]:
                rows += int(progress["numInputRows"])
                say(progress_line(progress))
            last = max(last, batch)
        if ended:
            return rows


def progress_line(progress: Any) -> str:
    """One micro-batch in one line."""
    took_ms = int(progress["durationMs"].get("triggerExecution", 0))
    rows = int(progress["numInputRows"])
    behind = sum(_behind(source) for source in progress["sources"])
    rate = f", {rows * 1000 // took_ms:,} rows/s" if took_ms else ""
    late = f", {behind:,} behind" if behind else ""
    return f"batch {progress['batchId']}: {rows:,} rows in {took_ms / 1000:.1f} s{rate}{late}"


def _behind(source: Any) -> int:
    """How many offsets lie between what was read and what is there."""
    try:
        end, latest = (_offsets(source[name]) for name in ("endOffset", "latestOffset"))
    except (KeyError, TypeError, ValueError):
        return 0
    return sum(max(number - end.get(key, number), 0) for key, number in latest.items())


def _offsets(told: Any) -> dict[tuple[str, str], int]:
    found = json.loads(told) if isinstance(told, str) else told
    return {
        (topic, partition): int(offset)
        for topic, each in found["topics"].items()
        for partition, offset in each["offsets"].items()
    }
