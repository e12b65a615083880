"""Whatever a crash, a power loss or a full disk leaves: verification says what opening will do.

The simulation of the log runs as in `test_log_model`; before every opening the simulated disk is
verified, and afterwards what was foretold is compared with what was opened.
"""

from __future__ import annotations

import pytest

from simulation.log_driver import LogSimulation
from simulation.log_operations import require
from tailrace.log.audit.findings import Finding, Severity
from tailrace.log.audit.partition_check import PartitionVerdict
from tailrace.log.audit.verification import NoLogFolder, verify

pytestmark = pytest.mark.simulation

SEEDS = 100
# Derived files are not synced, so a power loss may spoil them for ever after.
DERIVED = ("index-", "timeindex-", "snapshot-")


class ForetoldSimulation(LogSimulation):
    """Compares every opening with the verification before it."""

    openings = 0
    findings = 0

    def _try_to_open(self) -> bool:
        is_closed = self._was_closed_cleanly and not self._power_was_lost
        before = self.files.operations
        verdicts = self._verify()
        require(self.files.operations == before, "a verification changed the disk")
        opened = super()._try_to_open()
        if opened:
            self.openings += 1
            for verdict in verdicts:
                self._compare(verdict, is_closed=is_closed)
        return opened

    def _verify(self) -> list[PartitionVerdict]:
        found: list[PartitionVerdict] = []
        for path in self._folders.log_dirs:
            if not self.files.exists(path):
                continue
            try:
                verdicts = list(verify(self.files, path, now_ms=self.world.clock_ms, deep=True))
            except NoLogFolder:
                continue
            found += [each for each in verdicts if isinstance(each, PartitionVerdict)]
        return found

    def _compare(self, verdict: PartitionVerdict, *, is_closed: bool) -> None:
        self.findings += len(verdict.findings)
        damage = [each for each in verdict.findings if each.severity is Severity.DAMAGE]
        require(not damage, f"{verdict.name}: a crash damages nothing, but {damage}")
        if is_closed:
            require(not _serious(verdict), f"{verdict.name} was closed, but {verdict.findings}")
        logs = {str(name): log for name, log in self.manager.logs.items()}
        log = logs.get(verdict.name)
        if log is None:
            # Nobody could know of it yet, and it went.
            require(verdict.segments == 0, f"{verdict.name} is gone: {verdict}")
            return
        ends = f"offsets {log.log_start:,} to {log.log_end:,}"
        require(verdict.opening.endswith(ends), f"{verdict.opening!r}, but {ends}")


def _serious(verdict: PartitionVerdict) -> list[Finding]:
    return [
        each
        for each in verdict.findings
        if each.severity is not Severity.NOTE and not each.kind.startswith(DERIVED)
    ]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_foretold_happens(seed: int) -> None:
    simulation = ForetoldSimulation(seed)
    simulation.run()
    assert simulation.openings > 0 or simulation.is_hopeless
