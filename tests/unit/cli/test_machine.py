"""What a doctor says of a machine; the folders and files that it looks at are real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulation import log_folders
from tailrace.cli.diagnosis import Finding, Severity
from tailrace.cli.machine import FolderLook, MachineFacts, Room, examine_machine, look_at_machine
from tailrace.clock import ManualClock
from tailrace.dev.processes import Life
from tailrace.dev.state import lay_out, save
from tailrace.log.flushing import SYNC_FAILED_FILE

GIB = 1 << 30


def facts(**changed: Any) -> MachineFacts:
    return MachineFacts(**{"open_files_max": 65_536, **changed})


def the_one(found: MachineFacts, check: str, severity: Severity) -> Finding:
    (finding,) = examine_machine(found)
    assert (finding.check, finding.severity) == (check, severity)
    return finding


def test_a_machine_that_is_well() -> None:
    room = Room("/data", 50 * GIB, 100 * GIB)
    the_one(facts(rooms=[room], configs={}, dev_lives=None), "machine", Severity.OK)


@pytest.mark.parametrize(
    ("changed", "severity", "says"),
    [
        ({"open_files_max": 1_024}, Severity.WARNING, "1,024"),
        ({"open_files_max": 20_000}, Severity.HINT, "20,000"),
        ({"rooms": [Room("/data", 9, 100)]}, Severity.WARNING, "9 B left"),
        ({"rooms": [Room("/data", 1, 100)]}, Severity.CRITICAL, "1 B left"),
        ({"modules_missing": ["aetcd"]}, Severity.HINT, "aetcd"),
        ({"etcd_missing": "etcd was not found"}, Severity.HINT, "etcd was not found"),
    ],
)
def test_what_may_be_wrong_with_it(changed: dict[str, Any], severity: Severity, says: str) -> None:
    assert says in the_one(facts(**changed), "machine", severity).what


def test_processes_of_a_dev_cluster() -> None:
    def dev(*lives: Life) -> MachineFacts:
        return facts(
            dev_folder="/d", dev_lives={f"broker-{n}": each for n, each in enumerate(lives)}
        )

    the_one(dev(Life.RUNNING), "machine", Severity.OK)
    assert "does not run" in the_one(dev(Life.EXITED, Life.EXITED), "dev", Severity.HINT).what
    ended = the_one(dev(Life.RUNNING, Life.EXITED), "dev", Severity.WARNING)
    assert "/d/logs/broker-1.log" in ended.do
    assert "resume broker-0" in the_one(dev(Life.PAUSED), "dev", Severity.WARNING).do


def test_data_folders_that_cannot_be_used_are_damaged_or_lost_a_sync() -> None:
    broken = facts(data=[FolderLook("/d", broken="Permission denied")])
    assert "Permission denied" in the_one(broken, "data", Severity.CRITICAL).what
    damaged = facts(data=[FolderLook("/d", wrong=("meta.properties: the CRC does not match",))])
    assert "log verify /d" in the_one(damaged, "data", Severity.WARNING).do
    failed = facts(data=[FolderLook("/d", failed_syncs=("t-0",))])
    assert "t-0" in the_one(failed, "data", Severity.CRITICAL).what


def test_it_looks_at_folders_and_files_that_there_are(tmp_path: Path) -> None:
    log_folders.killed_folder(tmp_path / "data")
    (tmp_path / "broker.properties").write_text("broker.id=1\nlisteners=127.0.0.1:9092\n")
    (tmp_path / "nobody.properties").write_text("listeners=127.0.0.1:9092\n")
    (tmp_path / "bad.properties").write_text("broker.id=1\nlog.retention.hours=soon\n")
    (tmp_path / "slip.properties").write_text("brokr.id=1\n")
    save(tmp_path / "dev", lay_out(1, 1, 20_000, coordinators=0))
    found = look_at_machine(
        ManualClock(wall_ms=1),
        {"TAILRACE_ETCD": "/no/such/program"},
        dev_folder=tmp_path / "dev",
        data=[tmp_path / "data", tmp_path, tmp_path / "missing"],
        configs=sorted(tmp_path.glob("*.properties")),
    )
    assert found.open_files_max > 0
    assert "/no/such/program" in found.etcd_missing
    assert set((found.dev_lives or {}).values()) == {Life.EXITED}
    well, stranger, missing = found.data
    assert (well.broken, well.wrong, well.in_use) == ("", (), False)
    assert well.partitions > 0
    assert "no data folder" in stranger.broken
    assert missing.broken
    configs = {Path(path).stem: wrong for path, wrong in (found.configs or {}).items()}
    assert configs["broker"] == ""
    assert "for no service" in configs["nobody"]
    assert "log.retention.hours" in configs["bad"]
    assert "did you mean 'broker.id'" in configs["slip"]
    checks = {(each.check, each.severity) for each in examine_machine(found)}
    assert {("data", Severity.OK), ("config", Severity.OK)} <= checks


def test_a_failed_sync_and_a_broken_file_are_found(tmp_path: Path) -> None:
    log_folders.killed_folder(tmp_path)
    partition = next(each for each in tmp_path.iterdir() if each.is_dir())
    (partition / SYNC_FAILED_FILE).write_bytes(b"x")
    (tmp_path / "meta.properties").write_bytes(b"not ours")
    (look,) = look_at_machine(ManualClock(), {}, dev_folder=tmp_path / "none", data=[tmp_path]).data
    assert look.failed_syncs == (partition.name,)
    assert "meta.properties" in look.wrong[0]
