"""`tailrace-spark-python`: what Spark starts instead of Python, for processes that start sooner.

Spark puts an archive of its own package first on the path of every Python process. Nothing in it is
compiled, so each process compiles all of Spark anew, most of a second long. Where the same package
lies beside it unpacked, as pip leaves it, this takes that one. And the process that plans a stream
is forked from one that has all imported (`planners`).

It stands in for Python wherever Spark starts `-m pyspark...`; whatever else is asked of it, Python
itself does. Imports little, since each process waits for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

NAME: Final = "tailrace-spark-python"

# What pip makes of Spark: the package, and below it archives of the same and of what it stands on.
_ARCHIVES: Final = {
    os.path.join(os.sep, "pyspark", "python", "lib", "pyspark.zip"): "pyspark",
    os.path.join(os.sep, "pyspark", "python", "lib", "py4j-"): "py4j",
}


def main() -> None:
    """Do as Python does with the same arguments."""
    arguments = sys.argv[1:]
    if len(arguments) < 2 or arguments[0] != "-m" or not arguments[1].startswith("pyspark."):
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - as we were told.
    # Python has the folder of this program in front; for a module it is the working folder.
    sys.path[:] = unpacked([os.getcwd(), *sys.path[1:]], is_folder=os.path.isdir)
    module, sys.argv[1:] = arguments[1], arguments[2:]
    from tailrace_spark import planners  # noqa: PLC0415 - it is not for every module.

    if module == planners.RUNNER and planners.was_handed_over():
        return
    run(module)


def run(module: str) -> None:
    """Run a module as the program of this process."""
    import runpy  # noqa: PLC0415 - a process that only hands over does without.

    runpy.run_module(module, run_name="__main__", alter_sys=True)


def unpacked(path: Sequence[str], *, is_folder: Callable[[str], bool]) -> list[str]:
    """The path without archives of packages that stand further behind on it as they are."""
    return [each for each in path if not _has_twin(each, path, is_folder)]


def _has_twin(entry: str, path: Sequence[str], is_folder: Callable[[str], bool]) -> bool:
    for archive, package in _ARCHIVES.items():
        site, found, _ = entry.partition(archive)
        if found and entry.endswith(".zip"):
            return site in path and is_folder(os.path.join(site, package))
    return False
