"""Why data may go: each removal and each cut names what proves that it is right.

Nothing is deleted because something is missing or older. A value of this module says who ordered
it, in which cluster, under which epoch, for which topic id, and where that is on record. The
functions that delete or cut take such a value, so that they cannot be called without. The same
value is logged, counted and kept in the journal of deletions. `docs/deletions.md` has the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tailrace.model import TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """The store has it on record that the topic of this id was deleted, or is being deleted."""

    cluster_id: str
    controller_epoch: int
    topic_id: TopicId
    # The key that says so, and its revision.
    record: str
    revision: int

    def __str__(self) -> str:
        return (
            f"topic {self.topic_id} was deleted: {self.record} at revision {self.revision} of "
            f"cluster {self.cluster_id}, controller epoch {self.controller_epoch}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMoved:
    """The assignment of this topic id does not name this broker any more."""

    cluster_id: str
    controller_epoch: int
    topic_id: TopicId
    record: str
    revision: int
    replicas: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"replica moved to {list(self.replicas)}: {self.record} at revision {self.revision} of "
            f"cluster {self.cluster_id}, controller epoch {self.controller_epoch}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayExpired:
    """A replica that was set aside has been kept for as long as the settings say."""

    cluster_id: str
    topic_id: str
    set_aside_ms: int
    retention_ms: int

    def __str__(self) -> str:
        return (
            f"stray replica of topic {self.topic_id or 'unknown'} was kept for "
            f"{self.retention_ms} ms (stray.retention.ms) since {self.set_aside_ms}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverFinished:
    """The folder has no segment and no checkpoint knows it: its creation was interrupted."""

    folder: str

    def __str__(self) -> str:
        return f"{self.folder} was never finished: it has no segment, and no checkpoint knows it"


RemovalEvidence: TypeAlias = TopicDeleted | ReplicaMoved | StrayExpired | NeverFinished


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderDiverged:
    """The leader of this epoch does not have what stands above an offset, and it is not committed.

    `unclean_epoch`: the epoch of an unclean election on record that explains a cut below the known
    high watermark; 0: the cut is above it.
    """

    leader: int
    leader_epoch: int
    offset: int
    high_watermark: int
    unclean_epoch: int = 0

    def __str__(self) -> str:
        after = f", after an unclean election in epoch {self.unclean_epoch}"
        return (
            f"leader {self.leader} in epoch {self.leader_epoch} has another log from "
            f"{self.offset} on; {self.high_watermark} is committed"
            f"{after if self.unclean_epoch else ''}"
        )
