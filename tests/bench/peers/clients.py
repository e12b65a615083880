"""The clients of Apache Kafka in an environment of their own: pinned, in build/peers, made once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

WANTED = Path(__file__).with_name("requirements.txt")
VENV = WANTED.resolve().parents[3] / "build" / "peers" / "venv"
PYTHON = VENV / "bin" / "python"
PIP_TIMEOUT_S = 900


def install_clients() -> None:
    """Make the environment, unless it is there as `requirements.txt` wants it."""
    stamp = VENV / ".requirements"
    if stamp.exists() and stamp.read_bytes() == WANTED.read_bytes():
        return
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True, timeout=PIP_TIMEOUT_S)
    pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "-r", str(WANTED)], check=True, timeout=PIP_TIMEOUT_S)
    stamp.write_bytes(WANTED.read_bytes())
