"""What is foretold comes from the rehearsal alone; the tests of the checks compare with reality."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation import log_folders
from simulation.log_folders import FLUSHED, PARTITION, RECORDS, TIME_MS
from tailrace.cli.sources import SourceFiles
from tailrace.errors import DamagedLog, StorageError
from tailrace.log.audit.findings import Action, Kind, Recovery, Severity, Symptom
from tailrace.log.audit.rehearsal import LogRehearsal, rehearsed_log
from tailrace.log.audit.remedies import as_finding, foretell

SEGMENT = "d/00000000000000000000.log"
DAMAGED = DamagedLog("orders-0", offset=40, recovery_point=100, detail="cut short")


def _symptom(kind: Kind, offset: int = 0, path: str = SEGMENT) -> Symptom:
    return Symptom(kind=kind, path=path, what="", position=0, offset=offset)


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_a_remedy(kind: Kind) -> None:
    refused = LogRehearsal(recovery_point=100, changes={}, error=DAMAGED)
    finding = foretell(_symptom(kind, offset=50), refused, known_end=100)
    assert finding.kind is kind
    assert finding.recovery.text


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_a_remedy_when_the_log_opens(kind: Kind, tmp_path: Path) -> None:
    data = log_folders.killed_folder(tmp_path / "data")
    with rehearsed_log(
        SourceFiles(),
        f"{data}/{PARTITION}",
        PARTITION,
        recovery_point=FLUSHED,
        log_start=0,
        clean=None,
        now_ms=TIME_MS,
    ) as rehearsal:
        finding = foretell(_symptom(kind), rehearsal, known_end=RECORDS)
    assert finding.recovery.text
    assert finding.recovery.action is not Action.CUT


def test_damage_is_refused_from_where_the_scan_met_it() -> None:
    refused = LogRehearsal(recovery_point=100, changes={}, error=DAMAGED)
    met = foretell(_symptom(Kind.CORRUPT_BATCH, offset=40), refused, known_end=100)
    assert (met.severity, met.recovery.action) == (Severity.DAMAGE, Action.REFUSE)
    assert (met.recovery.first_lost, met.recovery.last_lost) == (40, 99)
    before = foretell(_symptom(Kind.CORRUPT_BATCH, offset=10), refused, known_end=100)
    assert (before.severity, before.recovery.action) == (Severity.DAMAGE, Action.NOTHING)


def test_an_opening_that_fails_is_told_as_it_is() -> None:
    failed = LogRehearsal(recovery_point=0, changes={}, error=StorageError("disk on fire"))
    found = foretell(_symptom(Kind.TORN_TAIL), failed, known_end=100)
    assert (found.severity, found.recovery.action) == (Severity.DAMAGE, Action.REFUSE)
    assert "disk on fire" in found.recovery.text


@pytest.mark.parametrize(
    ("kind", "action", "severity"),
    [
        (Kind.STRAY_FILE, Action.NOTHING, Severity.NOTE),
        (Kind.CORRUPT_BATCH, Action.NOTHING, Severity.DAMAGE),
        (Kind.CORRUPT_BATCH, Action.CUT, Severity.MENDS),
        (Kind.CORRUPT_BATCH, Action.REFUSE, Severity.DAMAGE),
        (Kind.LEFTOVER, Action.REMOVE, Severity.MENDS),
    ],
)
def test_how_much_it_matters(kind: Kind, action: Action, severity: Severity) -> None:
    finding = as_finding(_symptom(kind), Recovery(action=action, text="so"))
    assert finding.severity is severity
