"""How the data folders of a broker were found when they were opened. A value."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.errors import TailraceError
from tailrace.log.recovery import OpenReport
from tailrace.model import TopicPartition


@dataclass(slots=True)
class ManagerReport:
    """How the folders were found."""

    clean: bool = True
    same_boot: bool = True
    opened: list[OpenReport] = field(default_factory=list)
    damaged: dict[TopicPartition, TailraceError] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    # By path: folders that could not be opened, and why.
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def tail_may_be_lost(self) -> bool:
        """The machine went down under us: what was not synced may be gone."""
        return not self.clean and not self.same_boot
