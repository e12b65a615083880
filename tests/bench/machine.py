"""What kind of machine figures were measured on: never which one."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

GIB = 1 << 30
PACKAGES = ("grpcio", "pyarrow", "uvloop", "google-crc32c")


def facts() -> dict[str, str]:
    """Cores, memory, kernel and versions; no names of hosts or users, no paths."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    found = {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def kind(known: dict[str, str]) -> tuple[str, ...]:
    """What must be the same where figures are compared."""
    return tuple(known.get(each, "") for each in ("processor", "cores"))


def load() -> str:
    """How busy the machine is, beside what we do ourselves."""
    return " ".join(f"{each:.1f}" for each in os.getloadavg())


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == "model name"), "?")
