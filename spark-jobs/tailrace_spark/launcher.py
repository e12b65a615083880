"""`tailrace-spark-python`: what Spark starts instead of Python, for processes that start sooner.

Spark puts an archive of its own package first on the path of every Python process. Nothing in it is
compiled, so each process compiles all of Spark anew, most of a second long. Where the same package
lies beside it unpacked, as pip leaves it, this takes that one. It leaves out the jar that Spark has
on that path too, in which there is no Python, only a long list that each process reads twice. And
the process that plans a stream is forked from one that has all imported (`planners`).

It stands in for Python wherever Spark starts `-m pyspark...`; whatever else is asked of it, Python
itself does. Imports little, since each process waits for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final

NAME: Final = "tailrace-spark-python"

# What pip makes of Spark: the package, and below it archives of the same and of what it stands on.
_ARCHIVES: Final = {
    os.path.join(os.sep, "pyspark", "python", "lib", "pyspark.zip"): "pyspark",
    os.path.join(os.sep, "pyspark", "python", "lib", "py4j-"): "py4j",
}
# The same wherever Spark is: what pip makes of it, and what comes from its own site.
_OWN: Final = tuple(
    os.path.join(os.sep, "python", "lib", each) for each in ("pyspark.zip", "py4j-")
)
_JAR: Final = os.path.join(os.sep, "jars", "spark-core_")


def main() -> None:
    """Do as Python does with the same arguments."""
    arguments = sys.argv[1:]
    if len(arguments) < 2 or arguments[0] != "-m" or not arguments[1].startswith("pyspark."):
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - as we were told.
    # Python has the folder of this program in front; for a module it is the working folder.
    here = [] if sys.flags.safe_path else [_working_folder()]
    sys.path[:] = unpacked([*here, *sys.path[len(here) :]], is_folder=os.path.isdir)
    forget_archives(sys.path_importer_cache)
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
    """The path without Spark's jar, and archives of packages that are there further behind."""
    return [each for each in path if not (_JAR in each or _has_twin(each, path, is_folder))]


def forget_archives(finders: MutableMapping[str, Any]) -> None:
    """Forget the finders of modules in Spark's own archives; who imports from one gets it again.

    Spark has Python read their lists anew when a process starts, 80 ms of CPU, and they never
    change.
    """
    for each in list(finders):
        if _JAR in each or any(archive in each for archive in _OWN):
            del finders[each]


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        # It is gone. Python itself looks there too, in vain.
        return ""


def _has_twin(entry: str, path: Sequence[str], is_folder: Callable[[str], bool]) -> bool:
    for archive, package in _ARCHIVES.items():
        site, found, _ = entry.partition(archive)
        if found and entry.endswith(".zip"):
            return site in path and is_folder(os.path.join(site, package))
    return False
