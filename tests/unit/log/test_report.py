"""What the report of opened folders means for the cluster."""

from __future__ import annotations

import pytest

from tailrace.log.report import ManagerReport


@pytest.mark.parametrize(
    ("clean", "same_boot", "lost"),
    [(True, True, False), (True, False, False), (False, True, False), (False, False, True)],
)
def test_a_tail_may_be_lost_when_the_machine_went_down_under_us(
    clean: bool, same_boot: bool, lost: bool
) -> None:
    assert ManagerReport(clean=clean, same_boot=same_boot).tail_may_be_lost is lost
