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
    # The first time after that which was believed, and the one at which it is over.
    kept_from_ms: int
    now_ms: int
    retention_ms: int

    def __str__(self) -> str:
        return (
            f"stray replica of topic {self.topic_id or 'unknown'} was kept for "
            f"{self.retention_ms} ms (stray.retention.ms) from {self.kept_from_ms} on"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverFinished:
    """The folder has no segment and no checkpoint knows it: its creation was interrupted."""

    folder: str

    def __str__(self) -> str:
        return f"{self.folder} was never finished: it has no segment, and no checkpoint knows it"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """Nothing on record says that a replica may go, and it is not wanted: it is kept elsewhere."""

    name: str
    why: str

    def __str__(self) -> str:
        return f"{self.why}: kept as {self.name or 'nothing, its folder is gone'}"


RemovalEvidence: TypeAlias = TopicDeleted | ReplicaMoved | StrayExpired | NeverFinished


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderDiverged:
    """The leader of this epoch does not have what stands above an offset, and it is not committed.

    `unclean_epoch`: the epoch of an unclean election on record that explains a cut below the known
    high watermark; 0: the cut is above it. `merged`: the leader has the same records, compacted
    into a batch that begins there.
    """

    leader: int
    leader_epoch: int
    offset: int
    high_watermark: int
    unclean_epoch: int = 0
    merged: bool = False

    def __str__(self) -> str:
        if self.merged:
            return (
                f"leader {self.leader} in epoch {self.leader_epoch} has the same records, merged "
                f"into a batch that begins at {self.offset}"
            )
        after = f", after an unclean election in epoch {self.unclean_epoch}"
        return (
            f"leader {self.leader} in epoch {self.leader_epoch} has another log from "
            f"{self.offset} on; {self.high_watermark} is committed"
            f"{after if self.unclean_epoch else ''}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStartMoved:
    """The leader gave up what is below an offset, and its cause is stored with the log start.

    `kind`: RETENTION, or DELETE_RECORDS, which a client asked the leader for.
    """

    kind: str
    leader_epoch: int
    offset: int
    leader: int = -1

    def __str__(self) -> str:
        who = "this leader" if self.leader < 0 else f"leader {self.leader}"
        return (
            f"{who} in epoch {self.leader_epoch} gave up what is below {self.offset}: {self.kind}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingHeld:
    """The log holds no record: that it begins elsewhere gives nothing up."""

    leader: int
    leader_epoch: int

    def __str__(self) -> str:
        return f"it holds no record; leader {self.leader} in epoch {self.leader_epoch} begins there"


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverDurable:
    """An opening found no whole batch there, and nothing above the recovery point was synced."""

    recovery_point: int
    problem: str

    def __str__(self) -> str:
        return f"above the recovery point {self.recovery_point} nothing was synced: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledAnew:
    """A controller's order says that nobody counts on this replica, and who fills it.

    `leader`: who has the records, or this broker where a person lets it lead with what is left.
    """

    cluster_id: str
    topic_id: TopicId
    leader: int
    leader_epoch: int
    record: str
    revision: int

    def __str__(self) -> str:
        return (
            f"topic {self.topic_id}: led by {self.leader} in epoch {self.leader_epoch}, and this "
            f"replica is not counted on: {self.record} at revision {self.revision} of cluster "
            f"{self.cluster_id}"
        )


CutEvidence: TypeAlias = LeaderDiverged | LogStartMoved | NothingHeld | NeverDurable | FilledAnew
Evidence: TypeAlias = RemovalEvidence | CutEvidence | SetAside


def cut_problem(evidence: LeaderDiverged, offset: int, *, last_epoch: int) -> str:
    """Why this is no proof that a log may be cut at an offset; empty: it is."""
    if offset < evidence.offset:
        return f"that is of a cut at {evidence.offset}"
    if evidence.leader_epoch < last_epoch:
        return f"the log was written in epoch {last_epoch}, and that leader is of an older one"
    if offset < evidence.high_watermark and not (evidence.unclean_epoch or evidence.merged):
        return f"{evidence.high_watermark} is committed, and no unclean election explains it"
    return ""


def filling_problem(
    evidence: FilledAnew, *, cluster_id: str, topic_id: str | None, last_epoch: int
) -> str:
    """Why this is no proof that a damaged log may lose what it cannot vouch for; empty: it is."""
    if evidence.leader_epoch < last_epoch:
        return f"the log knows epoch {last_epoch}: the metadata store is older than the log"
    if evidence.cluster_id != cluster_id:
        return f"this is cluster {cluster_id}, and that is of cluster {evidence.cluster_id}"
    if topic_id is not None and evidence.topic_id != topic_id:
        return f"it is of topic {topic_id}, and that is of {evidence.topic_id}"
    return ""


def removal_problem(evidence: RemovalEvidence, *, cluster_id: str, topic_id: str | None) -> str:
    """Why this is no proof that a replica of this topic in this cluster may go; empty: it is.

    `topic_id`: which topic the replica is of, None where that cannot be told.
    """
    if isinstance(evidence, NeverFinished):
        return ""
    if isinstance(evidence, StrayExpired) and (
        evidence.retention_ms < 0 or evidence.now_ms - evidence.kept_from_ms < evidence.retention_ms
    ):
        return f"it is kept for {evidence.retention_ms} ms from {evidence.kept_from_ms} on"
    if evidence.cluster_id != cluster_id:
        return f"this is cluster {cluster_id}, and that is of cluster {evidence.cluster_id}"
    if evidence.topic_id != (topic_id or ""):
        return f"it is of topic {topic_id or 'unknown'}, and that is of {evidence.topic_id}"
    return ""
