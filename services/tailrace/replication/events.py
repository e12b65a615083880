"""What happens to one partition replica (events), and what is to be done about it (effects).

Values only. An event is something that has happened, told by the shell together with the time; an
effect is a command to the shell. The effects of one event are performed in the order of the list,
and before the next event of the same replica is handed over.

Leader and ISR are only ever changed by a transaction in the store; `revision` is the revision of
the store in which the partition's state was last written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from tailrace.epochs import EpochEnd, EpochEntry
from tailrace.model import BrokerId, LeaderEpoch, LogStartCause, Offset

NO_LEADER: Final = BrokerId(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    """The partition's state as it stands in the store, with the revision that wrote it."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...] = ()
    revision: int
    # The last epoch that began with an election that may have lost records; 0: none is known.
    unclean_epoch: int = 0


class AddedReplica(NamedTuple):
    """A follower that joins the ISR, and the registration that must still stand for it to join."""

    broker_id: BrokerId
    broker_epoch: int


# ------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """The controller says what this replica is to be.

    The order is obeyed when its (leader epoch, revision) is above the last one's; when equal, only
    `replicas`, `min_insync` and `syncs_first` are taken from it; when lower it is ignored.

    `log_end`, `last_epoch` (the epoch of the last batch, -1 when there is none) and `log_start` are
    those of the log right now; with `syncs_first` the shell has flushed it before. The
    `high_watermark` is the checkpointed one and matters to the first order only.
    """

    state: StoredState
    replicas: tuple[BrokerId, ...]
    min_insync: int
    log_end: Offset
    last_epoch: LeaderEpoch
    log_start: Offset
    high_watermark: Offset
    # The topic says `flush=ack`: what is not synced counts neither here nor at the followers.
    syncs_first: bool = False
    # Up to where the log is on disk, for a topic that says `flush=ack` from now on; None: all.
    synced_end: Offset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The log has grown: by a produce at the leader, by a push at a follower."""

    log_end: Offset
    last_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """Everything below `log_end` is on disk; only told where the topic says `flush=ack`."""

    log_end: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated:
    """`TruncateLog` or `StartOverAt` was done."""

    log_end: Offset
    last_epoch: LeaderEpoch
    log_start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerReported:
    """A follower says how far it is: the place to push from, and the acknowledgement, in one.

    `broker_epoch` is that of the hello of the link on which the report came. `end_of_last_epoch`
    is this log's answer to `epoch_end(last_epoch)`, and `log_start` is this log's.
    """

    broker_id: BrokerId
    broker_epoch: int
    leader_epoch: LeaderEpoch
    log_end: Offset
    last_epoch: LeaderEpoch
    end_of_last_epoch: EpochEnd
    log_start: Offset
    # The follower asks to be pushed to from here, whatever is under way to it.
    restart: bool = False
    # What it knows to be committed; 0: it does not say.
    high_watermark: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerLost:
    """The link that the follower was last pushed to over is gone, or it said `stop`.

    Not to be told of a link that a newer one of the same follower has replaced already.
    """

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrStored:
    """`StoreIsr` was done; the state now has this revision."""

    attempt: int
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrRefused:
    """A guard of `StoreIsr` did not hold. `state` was read after that; None: it is gone."""

    attempt: int
    state: StoredState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrUnknown:
    """The store did not answer to `StoreIsr`: it may have been done, or may yet be."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderReached:
    """The link to the leader stands (again) and the hello was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The leader pushed `size` bytes that continue `base_offset`; 0 bytes only tell the rest."""

    leader_epoch: LeaderEpoch
    base_offset: Offset
    size: int
    high_watermark: Offset
    log_start: Offset
    # Why the leader's log begins where it does; None: it does not say, or not again.
    start_cause: LogStartCause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushDiverged:
    """The leader answered DIVERGED to the report of `base_offset`.

    `leader_end` is the leader's latest epoch that is not above the reported one, and its end;
    `epochs` are the entries of this replica's own history. With `merged` it is no answer:
    compaction has merged batches of the leader's across `base_offset`, so that it can be pushed to
    only from where the merged one begins. `compacted`: this topic is compacted, as this broker
    knows; without that nothing can have been merged, and what is committed is kept.
    """

    leader_epoch: LeaderEpoch
    base_offset: Offset
    leader_end: EpochEnd
    epochs: tuple[EpochEntry, ...]
    merged: bool = False
    compacted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRefused:
    """The leader answered with an error other than DIVERGED."""

    leader_epoch: LeaderEpoch
    code: str
    log_start: Offset
    start_cause: LogStartCause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendFailed:
    """`AppendToLog` was not done (bad bytes, disk full): the same bytes are needed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed. Needed at `PartitionReplica.next_tick_ms`, harmless at any other time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The replica is not to be served any more."""


Event: TypeAlias = (
    Ordered
    | Appended
    | Synced
    | Truncated
    | FollowerReported
    | FollowerLost
    | IsrStored
    | IsrRefused
    | IsrUnknown
    | LeaderReached
    | Pushed
    | PushDiverged
    | PushRefused
    | AppendFailed
    | Tick
    | Stopped
)


# ------------------------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True, kw_only=True)
class BecomeLeader:
    """Lead in this epoch: assign it to the log before anything is appended or answered.

    Nobody may be pushed to before `AllowFollower` says so anew, also when this broker led before:
    a follower takes a push in a new epoch as a sign that the leader agrees with its log.
    """

    epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class BecomeFollower:
    """Follow this leader; a link to a former one is told nothing more of this partition.

    First the log forgets an epoch that begins at its end: a leadership of ours in which nothing was
    written. The next leader may push records of an older epoch.
    """

    leader: BrokerId
    epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDown:
    """Neither lead nor follow until the controller orders it."""

    known_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class FailPending:
    """End the parked produces at once with this code, and the parked fetches too when said so."""

    code: str
    fetches: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveHighWatermark:
    """Everything below `offset` is committed: tell those who wait, and the followers.

    It falls only on a follower, when its log is cut below it.
    """

    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreIsr:
    """Write this ISR and ELR in one transaction, and tell the outcome with the same `attempt`.

    Guards: the state was last written at `expected_revision`; this broker's registration stands;
    so does, for each of `added`, the registration with that epoch.
    """

    attempt: int
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    expected_revision: int
    added: tuple[AddedReplica, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowFollower:
    """Push to this follower from `from_offset` on; at once, be there data or not."""

    broker_id: BrokerId
    broker_epoch: int
    from_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TellDiverged:
    """Answer DIVERGED with the end of an epoch; push nothing until the follower reports again.

    `base_offset` is the log end that the follower reported: the answer is to that question.
    """

    broker_id: BrokerId
    broker_epoch: int
    base_offset: Offset
    leader_end: EpochEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseFollower:
    """Answer with this code, in this replica's leader epoch; push nothing until it reports again.

    `broker_epoch` names the link, also when it is the link of a former life of that broker.
    """

    broker_id: BrokerId
    broker_epoch: int
    leader_epoch: LeaderEpoch
    code: str
    log_start: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendToLog:
    """Append the bytes of the push, which continue the log; then tell `Appended`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """Cut the log at `offset`, then tell `Truncated`; forget reports that were not sent yet.

    `below_high_watermark`: committed records go. Only an unclean election makes that happen.
    """

    offset: Offset
    below_high_watermark: bool
    # The leader has the same records, merged into a batch that begins there.
    merged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOverAt:
    """The leader's log starts above this one's end: begin anew there, then tell `Truncated`.

    `cause`: why it may; None only where this log holds nothing.
    """

    offset: Offset
    cause: LogStartCause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceLogStart:
    """The leader gave up everything below `offset`, for this cause; do the same."""

    offset: Offset
    cause: LogStartCause


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRecords:
    """The leader's log lacks what this one has, and nothing explains it: say so, and keep it all.

    `conflicts`: committed records are at stake, so the replica waits until a person has decided.
    """

    why: str
    conflicts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpLead:
    """A follower knows committed records that this leader does not have: be out of service."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Tell the leader how far this log goes. A later report replaces one that was not sent yet.

    (A `restart` that was not sent yet stays one.) Without a link nothing is sent nor kept:
    `LeaderReached` makes a new one.
    """

    leader: BrokerId
    leader_epoch: LeaderEpoch
    log_end: Offset
    last_epoch: LeaderEpoch
    restart: bool
    high_watermark: int = 0


Effect: TypeAlias = (
    BecomeLeader
    | BecomeFollower
    | StepDown
    | FailPending
    | MoveHighWatermark
    | StoreIsr
    | AllowFollower
    | TellDiverged
    | RefuseFollower
    | AppendToLog
    | TruncateLog
    | StartOverAt
    | AdvanceLogStart
    | KeepRecords
    | GiveUpLead
    | Report
)
