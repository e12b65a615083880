from __future__ import annotations

import pytest

from tailrace.client.refusals import Refused, Verdict, ahead_of, verdict
from tailrace.errors import (
    BatchTooLarge,
    InvalidRequest,
    NotLeader,
    OutOfOrderSequence,
    ProducerFenced,
    RequestTimedOut,
    StorageError,
    TailraceError,
    UnknownProducer,
)
from tailrace.record.header import SEQUENCE_MODULUS

FIRST = Refused(is_first=True)
BEHIND = Refused(is_first=False)


@pytest.mark.parametrize(
    ("error", "refused", "expected"),
    [
        (ProducerFenced(), FIRST, Verdict.FENCED),
        (RequestTimedOut(), FIRST, Verdict.IN_DOUBT),
        (StorageError(), FIRST, Verdict.IN_DOUBT),
        (NotLeader(), FIRST._replace(is_appended=True), Verdict.IN_DOUBT),
        (NotLeader(), FIRST, Verdict.AGAIN),
        (BatchTooLarge(), FIRST, Verdict.TOO_LARGE),
        (InvalidRequest(), FIRST, Verdict.FAILED),
        # Numbers: behind another one they come right; else it depends on who asks.
        (OutOfOrderSequence(), BEHIND, Verdict.AGAIN),
        (UnknownProducer(), BEHIND, Verdict.AGAIN),
        (OutOfOrderSequence(), BEHIND._replace(expect_new=True), Verdict.AGAIN),
        (OutOfOrderSequence(), FIRST, Verdict.FAILED),
        (OutOfOrderSequence(), FIRST._replace(ahead=3), Verdict.FAILED),
        (OutOfOrderSequence(), FIRST._replace(ahead=3, resumed=True), Verdict.IN_LOG),
        (OutOfOrderSequence(), FIRST._replace(resumed=True), Verdict.FAILED),
        (UnknownProducer(), FIRST, Verdict.FORGOTTEN),
        (UnknownProducer(), FIRST._replace(expect_new=True), Verdict.TAKEN),
        (OutOfOrderSequence(), FIRST._replace(expect_new=True), Verdict.TAKEN),
    ],
)
def test_verdicts(error: TailraceError, refused: Refused, expected: Verdict) -> None:
    assert verdict(error, refused) is expected


def test_how_far_a_log_is_ahead() -> None:
    assert ahead_of(5, 8) == 3
    assert ahead_of(5, -1) == 0, "it did not say"
    assert ahead_of(5, 5) == 0
    assert ahead_of(8, 5) == 0, "it is behind"
    assert ahead_of(SEQUENCE_MODULUS - 1, 2) == 3, "numbers begin again"
