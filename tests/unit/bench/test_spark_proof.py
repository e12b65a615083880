"""What a proof takes over from one that was cut off: runs of the same code and as many records."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from bench.spark_proof import EQUAL, FAILED, LATE, Proof, Run, commit

SIZES = (10, 10, 5)


def _line(outcome: str, *, sizes: tuple[int, ...] = SIZES, of: str = "") -> str:
    run = Run(
        case="read, batch",
        number=1,
        outcome=outcome,
        took_s=2.0,
        said="",
        sizes=sizes,
        seed=1,
        commit=of or commit(),
    )
    return json.dumps(asdict(run)) + "\n"


def test_a_proof_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(_line(EQUAL) + _line(LATE) + _line(FAILED))
    proof = Proof(path, SIZES, 1)
    assert not proof.is_done("read, batch", 1)
    proof.recall()
    # One that failed counts as a run, and never as a good one; one that came too late as none.
    assert proof.is_done("read, batch", 2)
    assert not proof.is_done("read, batch", 3)
    assert [proof.count("read, batch", each) for each in (EQUAL, LATE, FAILED)] == [1, 1, 1]
    assert "1 of 2" in proof.table(["read, batch"], 2)


def test_runs_of_other_code_or_of_fewer_records_prove_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(_line(EQUAL, sizes=(1, 1, 1)) + _line(EQUAL, of="0000000"))
    proof = Proof(path, SIZES, 1)
    proof.recall()
    assert not proof.is_done("read, batch", 1)


def test_deaths_that_come_too_late_again_and_again_end_a_case(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(_line(LATE) * 3)
    proof = Proof(path, SIZES, 1)
    proof.recall()
    assert proof.is_done("read, batch", 1)
    assert not proof.count("read, batch", EQUAL)
