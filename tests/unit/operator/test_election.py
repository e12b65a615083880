"""Who acts: by whether the lease changes, never by comparing clocks."""

from __future__ import annotations

from typing import Any

from tailrace_operator.election import ACT_WITHIN_MS, DURATION_S, Election, Stand, Take

LONG_MS = DURATION_S * 1000


def held(holder: str, renewed: str = "t1", transitions: int = 3) -> dict[str, Any]:
    return {
        "holderIdentity": holder,
        "renewTime": renewed,
        "leaseTransitions": transitions,
        "leaseDurationSeconds": DURATION_S,
    }


def test_a_lease_that_nobody_has_is_taken() -> None:
    election = Election("me")
    assert election.look({}, 0) == Take(1)
    assert not election.is_mine(0)
    election.taken(0)
    assert election.is_mine(ACT_WITHIN_MS - 1)
    assert not election.is_mine(ACT_WITHIN_MS)
    assert election.spec(Take(1), "now")["holderIdentity"] == "me"


def test_one_that_is_renewed_is_left_and_one_that_is_not_is_taken() -> None:
    election = Election("me")
    assert election.look(held("you"), 0) == Stand("you")
    # However old its time looks: what counts is that it changed while we watched.
    assert election.look(held("you", "t2"), LONG_MS) == Stand("you")
    assert election.look(held("you", "t2"), 2 * LONG_MS - 1) == Stand("you")
    assert election.look(held("you", "t2"), 2 * LONG_MS) == Take(4)


def test_the_holder_renews_and_stops_acting_before_others_take_over() -> None:
    election = Election("me")
    assert election.look(held("me"), 0) == Take(3)
    election.taken(0)
    assert ACT_WITHIN_MS < LONG_MS
    assert election.look(held("you"), 100) == Stand("you")
    assert not election.is_mine(101)


def test_a_lease_that_is_given_up_is_free_at_once() -> None:
    election = Election("me")
    assert election.look(held("you"), 0) == Stand("you")
    assert election.look(held("", "t1", 3), 1) == Take(4)
    election.taken(1)
    election.lost()
    assert not election.is_mine(2)
