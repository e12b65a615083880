"""What tests of damaged folders ask: what is found, and does opening do what was foretold?

`verify` is run on real folders (see `simulation.log_folders`); every `check_*` opens the folder for
real and compares.
"""

from __future__ import annotations

from pathlib import Path

from simulation import log_folders
from simulation.log_folders import PARTITION, RECORDS, TIME_MS, segment_paths
from tailrace.cli.sources import SourceFiles
from tailrace.errors import DamagedLog
from tailrace.log.audit.findings import Action, Finding, Kind, Severity
from tailrace.log.audit.verification import verify


def findings_of(path: Path, *, deep: bool = False) -> list[Finding]:
    before = _contents(path)
    verdicts = list(verify(SourceFiles(), str(path), now_ms=TIME_MS, deep=deep))
    assert _contents(path) == before, "a verification changed something"
    found = [finding for verdict in verdicts for finding in verdict.findings]
    return [each for each in found if each.kind is not Kind.NOT_CLOSED]


def only(path: Path, *, deep: bool = False) -> Finding:
    (found,) = findings_of(path, deep=deep)
    return found


def of_kind(path: Path, kind: Kind) -> Finding:
    (found,) = [each for each in findings_of(path) if each.kind is kind]
    return found


def check_mends(path: Path, *, log_end: int = RECORDS) -> None:
    """Open the folder for real: the log ends where it should and everything in it is right."""
    manager, report = log_folders.reopen(path)
    assert report.damaged == {}
    log = manager.logs[PARTITION]
    assert log.log_end == log_end
    records = log_folders.records_of(log)
    assert [record.offset for record in records] == list(range(log.log_start, log_end))
    assert all(record.timestamp_ms == TIME_MS + record.offset for record in records)
    for offset in range(log.log_start, log_end, 37):
        found = log.offset_for_time(TIME_MS + offset)
        assert found is not None
        assert found.offset == offset
    manager.close()


def check_sound(path: Path) -> None:
    assert findings_of(path) == []


def check_cut(path: Path, finding: Finding, *, log_end: int) -> None:
    """The cut that was foretold is the one that happens, and it leaves a sound log."""
    assert finding.severity is Severity.MENDS
    recovery = finding.recovery
    assert recovery.action is Action.CUT
    if recovery.first_lost >= 0:
        assert recovery.first_lost == log_end
    check_mends(path, log_end=log_end)
    assert segment_paths(path)[-1].stat().st_size == recovery.at_byte
    check_sound(path)


def check_refused(path: Path, finding: Finding) -> None:
    assert finding.severity is Severity.DAMAGE
    assert finding.recovery.action is Action.REFUSE
    manager, report = log_folders.reopen(path)
    refused = report.damaged[PARTITION]
    assert isinstance(refused, DamagedLog)
    assert refused.offset == finding.recovery.first_lost
    assert PARTITION not in manager.logs
    log_folders.abandon(manager)


def check_unnoticed(path: Path, kind: Kind) -> None:
    """Opening says nothing, and afterwards it is still there."""
    manager, report = log_folders.reopen(path)
    assert report.damaged == {}
    manager.close()
    found = of_kind(path, kind)
    assert found.severity is Severity.DAMAGE
    assert found.recovery.action is Action.NOTHING


def _contents(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(each.relative_to(path)): (each.stat().st_mtime_ns, each.read_bytes())
        for each in path.rglob("*")
        if each.is_file()
    }
