"""What the peers need on this machine: Apache Kafka's jars, and its clients in an own environment.

Both are pinned (`pom.xml`, `requirements.txt`) and land in `build/peers`, made once. Maven and Java
17 or newer must be there; what is missing is said in one sentence.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BUILD = ROOT / "build" / "peers"
LIBS = BUILD / "kafka"
VENV = BUILD / "venv"
PYTHON = VENV / "bin" / "python"


class PeersMissing(Exception):
    """Something that the comparison needs is not on this machine."""


def prepare() -> None:
    """Make what is not there yet; PeersMissing says what cannot be made."""
    _prepare_kafka()
    _prepare_clients()


def _prepare_kafka() -> None:
    for tool in ("mvn", "java"):
        if shutil.which(tool) is None:
            raise PeersMissing(f"Kafka needs {tool}, which is not on PATH: install it")
    pom = HERE / "pom.xml"
    stamp = LIBS / ".pom"
    if stamp.exists() and stamp.read_bytes() == pom.read_bytes():
        return
    shutil.rmtree(LIBS, ignore_errors=True)
    _run(
        *("mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"),
        f"-DoutputDirectory={LIBS}",
    )
    stamp.write_bytes(pom.read_bytes())


def _prepare_clients() -> None:
    wanted = HERE / "requirements.txt"
    stamp = VENV / ".requirements"
    if stamp.exists() and stamp.read_bytes() == wanted.read_bytes():
        return
    shutil.rmtree(VENV, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(VENV))
    pip = (str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check")
    _run(*pip, "--no-deps", "-r", str(wanted))
    stamp.write_bytes(wanted.read_bytes())


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise PeersMissing(
            f"{' '.join(command)} failed:\n{(done.stdout + done.stderr).strip()[-2_000:]}"
        )


if __name__ == "__main__":
    try:
        prepare()
    except PeersMissing as missing:
        sys.exit(str(missing))
