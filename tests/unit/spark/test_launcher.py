"""What Spark starts as Python: Spark's own package as pip left it, and Python for all else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tailrace_spark.launcher import forget_archives, unpacked

PROGRAM = "import sys; from tailrace_spark.launcher import main; sys.exit(main())"
LIB = "/venv/site/pyspark/python/lib"


def found(path: list[str], *folders: str) -> list[str]:
    return unpacked(path, is_folder=lambda each: each in folders)


def test_archives_of_what_pip_unpacked_are_left_out() -> None:
    path = ["/job", f"{LIB}/pyspark.zip", f"{LIB}/py4j-0.10.9-src.zip", "/user", "/venv/site"]
    both = ("/venv/site/pyspark", "/venv/site/py4j")
    assert found(path, *both) == ["/job", "/user", "/venv/site"]
    assert found(path, both[0]) == ["/job", f"{LIB}/py4j-0.10.9-src.zip", "/user", "/venv/site"]


def test_there_is_no_python_in_a_jar_of_spark() -> None:
    path = ["/opt/spark/jars/spark-core_2.13-4.2.0.jar", "/job/jars/mine.jar", "/venv/site"]
    assert found(path) == path[1:]


def test_only_finders_for_the_archives_of_spark_are_forgotten() -> None:
    others = ["/venv/site", "/job/lib.zip", "/job/lib.zip/deep", "/venv/site/pyspark/sql"]
    own = [
        f"{LIB}/pyspark.zip",
        f"{LIB}/pyspark.zip/pyspark/sql",
        "/opt/spark/python/lib/py4j-0.10.9-src.zip",
        "/opt/spark/jars/spark-core_2.13-4.2.0.jar",
    ]
    finders = dict.fromkeys([*own, *others])
    forget_archives(finders)
    assert list(finders) == others


def test_modules_in_an_archive_are_found_after_it_was_forgotten(tmp_path: Path) -> None:
    archive = tmp_path / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    with ZipFile(archive, "w") as made:
        made.writestr("first_in_archive.py", "")
        made.writestr("second_in_archive.py", "")
    code = (
        "import sys, first_in_archive\n"
        "from tailrace_spark.launcher import forget_archives\n"
        "forget_archives(sys.path_importer_cache)\n"
        "print(any('pyspark.zip' in each for each in sys.path_importer_cache))\n"
        "import second_in_archive\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(archive), *sys.path])}
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert told.stdout == "False\n"


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
