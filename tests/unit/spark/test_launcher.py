"""What Spark starts as Python: Spark's own package as pip left it, and Python for all else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tailrace_spark.launcher import unpacked

PROGRAM = "import sys; from tailrace_spark.launcher import main; sys.exit(main())"
LIB = "/venv/site/pyspark/python/lib"


def found(path: list[str], *folders: str) -> list[str]:
    return unpacked(path, is_folder=lambda each: each in folders)


def test_archives_of_what_pip_unpacked_are_left_out() -> None:
    path = ["/job", f"{LIB}/pyspark.zip", f"{LIB}/py4j-0.10.9-src.zip", "/user", "/venv/site"]
    both = ("/venv/site/pyspark", "/venv/site/py4j")
    assert found(path, *both) == ["/job", "/user", "/venv/site"]
    assert found(path, both[0]) == ["/job", f"{LIB}/py4j-0.10.9-src.zip", "/user", "/venv/site"]


@pytest.mark.parametrize(
    "path",
    [
        # Another Spark than the one that pip has: it is the archive that fits the JVM.
        ["/opt/spark/python/lib/pyspark.zip", "/venv/site"],
        [f"{LIB}/pyspark.zip", "/other/site"],
        ["/venv/site/pyspark/python/lib/pyspark.zip.old", "/venv/site"],
        ["/venv/site", "/home/pyspark"],
    ],
)
def test_other_archives_stay(path: list[str]) -> None:
    assert found(path, "/venv/site/pyspark", "/venv/site/py4j") == path


def test_a_module_of_spark_is_run_as_the_program(tmp_path: Path) -> None:
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "said.py").write_text("import sys\nprint(__name__, sys.path[0], sys.argv)\n")
    told = launched(tmp_path, "-m", "pyspark.said", "one")
    assert told == f"__main__ {tmp_path} {[str(package / 'said.py'), 'one']}\n"


def test_anything_else_is_for_python(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("import sys\nprint(__name__, sys.path[0], sys.argv)\n")
    expected = f"__main__ {tmp_path} {[str(script), '-m']}\n"
    assert launched(Path("/"), str(script), "-m") == expected
    assert launched(Path("/"), "-c", "print(7)") == "7\n"
    assert launched(tmp_path, "-m", "job", "one") == expected.replace("'-m'", "'one'")


def launched(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
