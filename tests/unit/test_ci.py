"""What `.ci/run` does on a machine that is new: packages for the lab, or a sentence."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

LAB_PACKAGES: Final = Path(__file__).resolve().parents[2] / ".ci" / "lab-packages"
LIMIT_S: Final = 30


class Machine:
    """A folder that is all of PATH: what is not put there is not installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        for name in ("bash", "sleep", "timeout"):
            found = shutil.which(name)
            assert found is not None
            (folder / name).symlink_to(found)

    def put(self, name: str, script: str = "exit 0") -> None:
        program = self.folder / name
        program.write_text(f"#!/usr/bin/env bash\n{script}\n", encoding="utf-8")
        program.chmod(0o755)

    def put_apt(self, script: str) -> None:
        """Words of its own are noted: the options before them are of no interest."""
        self.put("apt-get", f'echo "$4 ${{*:5}}" >> {self.calls}\n{script}')

    def run(self, limit_s: int = LIMIT_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.folder / "bash"), str(LAB_PACKAGES)],
            env={"PATH": str(self.folder), "APT_LIMIT_S": str(limit_s)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_what_is_missing_is_installed_after_the_lists_are_new(machine: Machine) -> None:
    machine.put("debootstrap")
    machine.put_apt("exit 0")
    done = machine.run()
    assert (done.returncode, done.stdout) == (0, "")
    assert machine.calls.read_text(encoding="utf-8").splitlines() == [
        "update ",
        "install --yes --no-install-recommends buildah",
    ]


def test_a_machine_that_has_all_of_it_is_left_alone(machine: Machine) -> None:
    machine.put("buildah")
    machine.put("debootstrap")
    machine.put_apt("exit 1")
    assert machine.run().returncode == 0
    assert not machine.calls.exists()


@pytest.mark.parametrize(
    ("apt", "limit_s", "sentence"),
    [
        ("", LIMIT_S, "there is no apt-get to install that with"),
        ("exit 100", LIMIT_S, "apt-get update ended with 100"),
        ("sleep 20", 1, "apt-get update was cut off after APT_LIMIT_S=1 s"),
    ],
)
def test_what_cannot_be_installed_is_told_in_a_sentence(
    machine: Machine, apt: str, limit_s: int, sentence: str
) -> None:
    if apt:
        machine.put_apt(apt)
    done = machine.run(limit_s)
    assert done.returncode == 1
    assert done.stdout == f"the lab needs buildah debootstrap, and {sentence}\n"
