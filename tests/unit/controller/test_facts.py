"""Facts, events and decisions are values: equal when their parts are, and never changed."""

from __future__ import annotations

import dataclasses

import pytest

from tailrace.controller.facts import Decision, Facts, FenceRequested, Term, Transaction
from tailrace.meta.store import CreatedAt, Delete
from tailrace.model import BrokerId


def test_values_are_equal_by_their_parts() -> None:
    term = Term(controller_id=1, epoch=2, revision=3)
    assert Facts(term=term) == Facts(term=Term(1, 2, 3))
    fence = FenceRequested(broker_id=BrokerId(1), epoch=4)
    assert fence != dataclasses.replace(fence, epoch=5)
    one = Transaction(what="w", guards=(CreatedAt("/a", 1),), operations=(Delete("/b"),))
    assert Decision(transactions=(one,)) == Decision(transactions=(dataclasses.replace(one),))


def test_values_are_never_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Decision().error = None  # type: ignore[misc]
