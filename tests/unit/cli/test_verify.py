"""How verdicts look, and what they come to."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from tailrace.cli.verify import JsonReport, Tally, TextReport
from tailrace.log.audit.findings import Action, Finding, Kind, Recovery, Severity
from tailrace.log.audit.partition_check import PartitionVerdict
from tailrace.log.audit.verification import FolderVerdict


def _finding(severity: Severity, position: int = -1) -> Finding:
    return Finding(
        kind=Kind.TORN_TAIL,
        severity=severity,
        path="data/orders-0/00000000000000000000.log",
        position=position,
        what="cut short",
        recovery=Recovery(action=Action.CUT, text="cuts it", at_byte=4096, first_lost=7),
    )


def _partition(*findings: Finding, left_out: int = 0) -> PartitionVerdict:
    return PartitionVerdict(
        name="orders-0",
        folder="data/orders-0",
        segments=3,
        size_bytes=4096,
        batches=10,
        records=1000,
        first_offset=0,
        end_offset=1000,
        recovery_point=500,
        opening="opens without a scan, offsets 0 to 1,000",
        findings=findings,
        left_out=left_out,
    )


def _folder(*, in_use: bool = False) -> FolderVerdict:
    return FolderVerdict(path="data", partitions=1, in_use=in_use, is_clean=True, findings=())


def _text(*verdicts: FolderVerdict | PartitionVerdict) -> str:
    out = io.StringIO()
    report, tally = TextReport(Console(file=out)), Tally()
    for verdict in verdicts:
        tally.take(verdict)
        report.show(verdict)
    report.finish(tally)
    return out.getvalue()


@pytest.mark.parametrize(
    ("severities", "exit_code", "result"),
    [
        ([], 0, "sound"),
        ([Severity.NOTE], 0, "sound"),
        ([Severity.NOTE, Severity.MENDS], 3, "mends"),
        ([Severity.MENDS, Severity.DAMAGE], 1, "damage"),
    ],
)
def test_exit_codes(severities: list[Severity], exit_code: int, result: str) -> None:
    tally = Tally()
    tally.take(_partition(*map(_finding, severities)))
    assert (tally.exit_code, tally.result) == (exit_code, result)


def test_a_sound_folder_reads_well() -> None:
    assert _text(_folder(), _partition()) == (
        "data  data folder, 1 partition, closed in order\n"
        "\n"
        "ok     orders-0  3 segments, 4.0 KiB, 1,000 records, offsets 0 to 1,000, flushed to 500\n"
        "       opens without a scan, offsets 0 to 1,000\n"
        "\n"
        "Sound. 1 partition, 1,000 records, 4.0 KiB read.\n"
    )


def test_a_finding_says_where_what_and_what_next() -> None:
    text = _text(_partition(_finding(Severity.DAMAGE, position=5000), left_out=3))
    assert "damage orders-0" in text
    assert "damage torn-tail  00000000000000000000.log at byte 5,000\n" in text
    assert "cut short\n" in text
    assert "opening: cuts it\n" in text
    assert "3 more findings of the same kinds" in text
    assert text.endswith("Damaged. 1 partition, 1,000 records, 4.0 KiB read. Found: 1 damaged.\n")


def test_a_folder_in_use_says_so() -> None:
    text = _text(_folder(in_use=True))
    assert "in use" in text
    assert "its tail may be in motion" in text


def test_json_has_findings_partitions_and_a_summary() -> None:
    out = io.StringIO()
    report, tally = JsonReport(out), Tally()
    for verdict in (_folder(), _partition(_finding(Severity.MENDS, position=5000))):
        tally.take(verdict)
        report.show(verdict)
    report.finish(tally)
    folder, finding, partition, summary = map(json.loads, out.getvalue().splitlines())
    assert folder == {
        "type": "folder",
        "path": "data",
        "partitions": 1,
        "in_use": False,
        "closed_in_order": True,
    }
    assert finding == {
        "type": "finding",
        "kind": "torn-tail",
        "severity": "mends",
        "path": "data/orders-0/00000000000000000000.log",
        "position": 5000,
        "what": "cut short",
        "recovery": {
            "action": "cut",
            "text": "cuts it",
            "at_byte": 4096,
            "first_lost": 7,
            "last_lost": -1,
        },
    }
    assert (partition["type"], partition["severity"]) == ("partition", "mends")
    assert summary == {
        "type": "summary",
        "result": "mends",
        "exit_code": 3,
        "partitions": 1,
        "records": 1000,
        "size_bytes": 4096,
        "findings": {"note": 0, "mends": 1, "damage": 0},
    }
