"""Free memory that is held while something is timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.peers import memory
from bench.peers.memory import FREE_BYTES_MAX, FREE_BYTES_MIN, SLICE_BYTES, slices_due

GIB = 1 << 30


@pytest.mark.parametrize(
    ("features", "is_taken"), [("01100101", True), ("01100001", False), ("011", False)]
)
def test_the_features_of_a_balloon_tell_whether_its_host_takes_what_is_free(
    tmp_path: Path, features: str, is_taken: bool
) -> None:
    assert not memory.is_taken_back(tmp_path)
    (tmp_path / "virtio0").mkdir()
    (tmp_path / "virtio0" / "features").write_text(f"{features}\n", encoding="ascii")
    assert memory.is_taken_back(tmp_path) is is_taken


@pytest.mark.parametrize(
    ("free", "held", "due"),
    [
        (FREE_BYTES_MAX, 3, 0),
        (FREE_BYTES_MIN, 3, 0),
        (FREE_BYTES_MIN - 1, 3, -1),
        (FREE_BYTES_MIN - SLICE_BYTES - 1, 3, -2),
        (0, 3, -3),
        (FREE_BYTES_MAX + SLICE_BYTES, 3, 1),
        (FREE_BYTES_MAX + 100 * SLICE_BYTES, 3, 7),
    ],
)
def test_what_others_take_is_let_go_of_and_what_they_free_is_taken(
    free: int, held: int, due: int
) -> None:
    assert slices_due(free, held, held_max=10) == due


@given(st.integers(0, 64 * GIB), st.integers(0, 1_000), st.integers(0, 1_000))
def test_one_step_brings_free_memory_into_its_bounds(free: int, held: int, more: int) -> None:
    due = slices_due(free, held, held + more)
    assert -held <= due <= more
    left = free - due * SLICE_BYTES
    assert left >= FREE_BYTES_MIN or due == -held
    assert left < FREE_BYTES_MAX + SLICE_BYTES or due == more


def test_memory_is_held_by_a_process_that_ends_with_us(monkeypatch: pytest.MonkeyPatch) -> None:
    with memory.holding(slices_max=2) as process:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        resident = int(status.split("VmRSS:")[1].split()[0]) << 10
        # A machine that has less than that free has nothing to hold.
        assert resident >= 2 * SLICE_BYTES or memory.free_bytes() < FREE_BYTES_MAX + SLICE_BYTES
    assert process.returncode is not None


@pytest.mark.parametrize("dies", ["never", "at once", "later"])
def test_what_the_report_says_of_memory_is_true(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], dies: str
) -> None:
    program = "import sys; sys.exit(9)" if dies == "at once" else "print('ready'); input()"
    monkeypatch.setattr(memory, "is_taken_back", lambda: True)
    real = subprocess.Popen
    started = []

    def begin(given: object, **options: Any) -> Any:
        started.append(real([sys.executable, "-c", program], **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", begin)
    with memory.little_free(is_wanted=True) as said:
        assert bool(said) is (dies != "at once")
        if dies == "later":
            started[0].kill()
            started[0].wait()
    told = capsys.readouterr().err
    assert ("on without it" in told) is (dies == "at once")
    assert ("no longer held" in told) is (dies == "later")


def test_its_end_is_the_end_of_who_started_it() -> None:
    with memory.holding(slices_max=1) as process:
        assert process.stdin is not None
        process.stdin.close()
        # Nothing was written: what ends it is that nobody is there.
        assert process.wait(30) == 0
