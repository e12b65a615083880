"""Which leader epoch wrote which offsets: the history that tells two replicas where they part.

Pure: it knows neither files nor the log; the log hands it offsets, `log.checkpoints` stores its
entries. Invariant: epochs and start offsets both rise strictly from entry to entry, so that every
epoch in the history has at least room for one record before the next one begins.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from tailrace.errors import InvariantViolation
from tailrace.model import NO_LEADER_EPOCH, LeaderEpoch, Offset

NO_OFFSET: Final = Offset(-1)


class EpochEntry(NamedTuple):
    """`epoch` wrote the records from `start_offset` up to the start of the next entry."""

    epoch: LeaderEpoch
    start_offset: Offset


class EpochEnd(NamedTuple):
    """Where an epoch ended: the first offset that is not its own; both -1 when not known."""

    epoch: LeaderEpoch
    end_offset: Offset


UNKNOWN_END: Final = EpochEnd(NO_LEADER_EPOCH, NO_OFFSET)


class Agreement(NamedTuple):
    """How far a follower's log may agree with its leader's.

    When `settled`, everything below `offset` is equal in both. Otherwise nothing from `offset` on
    can be equal: truncate there, ask the leader again for the epoch that is then the latest.
    An `offset` below the log start means that nothing in the log is the leader's.
    """

    offset: Offset
    settled: bool


class EpochHistory:
    """The leader epochs of one log, oldest first."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """Take over entries as they were stored; InvariantViolation when they do not rise."""
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start_offset in entries:
            _require_sane(epoch, start_offset)
            if self._epochs and (epoch <= self._epochs[-1] or start_offset <= self._starts[-1]):
                raise InvariantViolation(
                    f"epoch {epoch} from offset {start_offset} cannot follow "
                    f"epoch {self._epochs[-1]} from offset {self._starts[-1]}"
                )
            self._epochs.append(epoch)
            self._starts.append(start_offset)

    @property
    def latest(self) -> LeaderEpoch:
        """The newest epoch, NO_LEADER_EPOCH when the history is empty."""
        return LeaderEpoch(self._epochs[-1]) if self._epochs else NO_LEADER_EPOCH

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(
            EpochEntry(LeaderEpoch(epoch), Offset(start))
            for epoch, start in zip(self._epochs, self._starts, strict=True)
        )

    def __len__(self) -> int:
        return len(self._epochs)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EpochHistory):
            return NotImplemented
        return self._epochs == other._epochs and self._starts == other._starts

    __hash__ = None  # type: ignore[assignment]  # It changes, so it must not be a key.

    def __repr__(self) -> str:
        inside = ", ".join(f"{e} from {s}" for e, s in zip(self._epochs, self._starts, strict=True))
        return f"EpochHistory({inside})"

    def copy(self) -> EpochHistory:
        twin = EpochHistory()
        twin._epochs = self._epochs.copy()
        twin._starts = self._starts.copy()
        return twin

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` writes from `start_offset` on; say whether the history changed.

        Called for every batch, so the usual case (the latest epoch goes on) comes first. Entries
        that would start at or after the new one held no records that still exist: they go, as in
        Kafka's LeaderEpochFileCache.
        """
        epochs, starts = self._epochs, self._starts
        if epochs:
            if epoch == epochs[-1] and start_offset >= starts[-1]:
                return False
            if epoch < epochs[-1]:
                raise InvariantViolation(
                    f"epoch {epoch} was assigned at offset {start_offset} "
                    f"after epoch {epochs[-1]} had begun at {starts[-1]}"
                )
        _require_sane(epoch, start_offset)
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start_offset):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start_offset)
        return True

    def end_of(self, epoch: int, log_end: int) -> EpochEnd:
        """Return the largest epoch that is not above `epoch`, and where it ended.

        - the latest epoch ends at `log_end`, another one where the next begins;
        - an epoch older than the whole history is answered with itself and the first start: it
          ended there or before;
        - an epoch newer than the latest (and any epoch when the history is empty) has not been
          heard of: UNKNOWN_END.
        """
        epochs = self._epochs
        if not epochs or epoch > epochs[-1] or epoch < 0:
            return UNKNOWN_END
        after = bisect_right(epochs, epoch)
        if after == len(epochs):
            return EpochEnd(LeaderEpoch(epoch), Offset(log_end))
        found = epochs[after - 1] if after > 0 else epoch
        return EpochEnd(LeaderEpoch(found), Offset(self._starts[after]))

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """Return the epoch that wrote `offset`; NO_LEADER_EPOCH below the first entry.

        The history does not know the log end: an offset above it is answered with the latest.
        """
        after = bisect_right(self._starts, offset)
        return LeaderEpoch(self._epochs[after - 1]) if after > 0 else NO_LEADER_EPOCH

    def truncate_end(self, offset: int) -> bool:
        """Forget the epochs that began at or after the new log end; say whether any did."""
        keep = bisect_left(self._starts, offset)
        changed = keep < len(self._starts)
        del self._epochs[keep:], self._starts[keep:]
        return changed

    def truncate_start(self, offset: int) -> bool:
        """Forget the epochs below the new log start; say whether anything changed.

        The epoch that covers `offset` stays and begins there now. That is so for the latest epoch
        even when the log is empty: a leader must be able to answer for its own epoch.
        """
        covering = bisect_right(self._starts, offset) - 1
        if covering < 0 or (covering == 0 and self._starts[0] == offset):
            return False
        del self._epochs[:covering], self._starts[:covering]
        self._starts[0] = offset
        return True

    def keep_newest(self, count: int) -> None:
        """Forget the oldest epochs when there are more than `count`."""
        gone = max(len(self._epochs) - count, 0)
        del self._epochs[:gone], self._starts[:gone]


def agreed_end(
    mine: EpochHistory, *, log_end: int, leader_epoch: int, leader_end: int
) -> Agreement | None:
    """Say where a follower truncates, given the leader's `end_of` the follower's latest epoch.

    None: the leader has never heard of that epoch, so it is older than this follower's data. A
    leader of the past gives no reason to throw anything away.

    Two logs that both hold records of one epoch hold the same records in it, up to where the
    shorter one ends it, because one leader wrote it. So an epoch known to both settles the
    matter; when the leader names an epoch that this log lacks, all of this log's later epochs
    are foreign to the leader and the question is asked again one epoch further down.
    """
    if leader_end < 0 or leader_epoch < 0:
        return None
    if len(mine) == 0:
        return Agreement(Offset(min(leader_end, log_end)), settled=True)
    own = mine.end_of(leader_epoch, log_end)
    if own == UNKNOWN_END:
        # An epoch above the one that was asked for answers an older question: ask again.
        return Agreement(Offset(log_end), settled=False)
    if own.epoch == leader_epoch:
        return Agreement(Offset(min(own.end_offset, leader_end, log_end)), settled=True)
    return Agreement(Offset(min(own.end_offset, log_end)), settled=False)


def _require_sane(epoch: int, start_offset: int) -> None:
    if epoch < 0 or start_offset < 0:
        raise InvariantViolation(
            f"epoch {epoch} from offset {start_offset}: neither may be negative"
        )
