"""What it means for a batch that a broker did not take it. Pure.

One question, asked for every refusal: is it in the log, may it be sent again, does it have to
change, or is it over? The producer does what the answer says.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, NamedTuple

from tailrace.errors import (
    BatchTooLarge,
    LogClosed,
    OutOfOrderSequence,
    ProducerFenced,
    RequestTimedOut,
    StorageError,
    TailraceError,
    UnknownProducer,
)
from tailrace.record.header import SEQUENCE_MODULUS


class Verdict(Enum):
    """What becomes of a batch that was refused."""

    FENCED = auto()
    """Somebody else writes under this name: the producer is over."""
    IN_DOUBT = auto()
    """It may be in the log: send the very same bytes again."""
    TAKEN = auto()
    """Its numbers were to be new and are not: the program has to look."""
    FORGOTTEN = auto()
    """The log knows nothing of the producer: a new epoch, and again."""
    IN_LOG = auto()
    """A resumed producer sent what the log has: skip it."""
    AGAIN = auto()
    """Not this time: wait a little, and send it again."""
    TOO_LARGE = auto()
    """Smaller ones may be taken."""
    FAILED = auto()
    """The same again would fail again."""


class Refused(NamedTuple):
    """A batch that a broker refused, and how the producer stands."""

    # Nothing before it in its partition is unresolved.
    is_first: bool
    is_appended: bool = False
    # How many records the log is ahead of the batch, as far as it said so.
    ahead: int = 0
    expect_new: bool = False
    resumed: bool = False


def verdict(error: TailraceError, refused: Refused) -> Verdict:
    """The first rule that fits decides."""
    if isinstance(error, ProducerFenced):
        return Verdict.FENCED
    if refused.is_appended or isinstance(error, _DOUBTFUL):
        return Verdict.IN_DOUBT
    if isinstance(error, _OTHER_NUMBERS):
        return _of_numbers(error, refused)
    if error.retriable:
        return Verdict.AGAIN
    return Verdict.TOO_LARGE if isinstance(error, BatchTooLarge) else Verdict.FAILED


def ahead_of(sequence: int, due_sequence: int) -> int:
    """How far a log that expects one sequence is ahead of another; 0 when it did not say."""
    if due_sequence < 0:
        return 0
    ahead = (due_sequence - sequence) % SEQUENCE_MODULUS
    return ahead if ahead <= SEQUENCE_MODULUS // 2 else 0


def _of_numbers(error: TailraceError, refused: Refused) -> Verdict:
    """The log expects other numbers than those that it got."""
    if not refused.is_first:
        # A batch that overtook an earlier one is in order again once that one is in the log.
        return Verdict.AGAIN
    if refused.expect_new:
        return Verdict.TAKEN
    if isinstance(error, UnknownProducer):
        return Verdict.FORGOTTEN
    return Verdict.IN_LOG if refused.resumed and refused.ahead else Verdict.FAILED


# After these nobody knows whether the batch was appended, and another leader may take over.
_DOUBTFUL: Final = (RequestTimedOut, StorageError, LogClosed)
_OTHER_NUMBERS: Final = (OutOfOrderSequence, UnknownProducer)
