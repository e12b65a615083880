from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import pytest

from tailrace.log.audit.findings import (
    SAME_FINDINGS_PER_FILE_MAX,
    Action,
    Finding,
    Kind,
    Recovery,
    Severity,
    Symptom,
    Symptoms,
    worst,
)


def _finding(severity: Severity) -> Finding:
    recovery = Recovery(action=Action.NOTHING, text="nothing")
    return Finding(
        kind=Kind.STRAY_FILE, severity=severity, path="f", position=-1, what="", recovery=recovery
    )


def test_the_worst_counts() -> None:
    assert worst([]) is Severity.NOTE
    assert worst(map(_finding, [Severity.MENDS, Severity.NOTE])) is Severity.MENDS
    assert worst(map(_finding, [Severity.MENDS, Severity.DAMAGE])) is Severity.DAMAGE


def test_a_file_of_noise_does_not_fill_the_memory() -> None:
    symptoms = Symptoms()
    for _ in range(3 * SAME_FINDINGS_PER_FILE_MAX):
        symptoms.add(Symptom(kind=Kind.CORRUPT_BATCH, path="a", what=""))
    symptoms.add(Symptom(kind=Kind.CORRUPT_BATCH, path="b", what=""))
    symptoms.add(Symptom(kind=Kind.OFFSET_GAP, path="a", what=""))
    assert len(symptoms.found) == SAME_FINDINGS_PER_FILE_MAX + 2
    left_out = 2 * SAME_FINDINGS_PER_FILE_MAX
    assert symptoms.left_out == {("a", Kind.CORRUPT_BATCH): left_out}


@pytest.mark.parametrize("words", [Kind, Severity, Action])
def test_every_word_is_in_the_document(words: type[StrEnum]) -> None:
    path = Path(__file__).resolve().parents[4] / "docs" / "tools.md"
    text = path.read_text(encoding="utf-8")
    assert [word.value for word in words if f"`{word.value}`" not in text] == []
