"""Preferred leaders by hand and by the clock; unclean ones by a person's word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tailrace.controller.facts import ElectionRequested, LeaderWish, ReplicaFailure
from tailrace.controller.leadership import imbalance
from tailrace.errors import ElectionNotNeeded, LeaderNotAvailable, UnknownTopic
from tailrace.meta.image import ClusterImage, StoredCordon, StoredTopic
from tailrace.meta.keys import Cordon, PartitionState, decode
from tailrace.meta.store import CreatedAt, ModifiedAt, Put
from tailrace.model import BrokerId, TopicPartition
from unit.controller.images import (
    KEY,
    STATE_REVISION,
    THREE,
    decided,
    history_in,
    image,
    live,
    only_state,
    state,
    states_in,
)

T0 = TopicPartition("t", 0)
B = BrokerId


def hand(*partitions: TopicPartition, **given: Any) -> ElectionRequested:
    return ElectionRequested(
        wishes=tuple(LeaderWish(partition=each) for each in partitions), **given
    )


def test_the_preferred_replica_leads_again_and_the_record_says_why() -> None:
    decision = decided(image(THREE, {0: state(2, [2, 1, 3])}), hand(T0))
    assert only_state(decision) == (1, 5, (2, 1, 3), ())
    assert decision.outcomes == {T0: None}
    (transaction,) = decision.transactions
    assert ModifiedAt(KEY, STATE_REVISION) in transaction.guards
    assert CreatedAt("/brokers/ids/1", 11) in transaction.guards
    (change,) = history_in(transaction).changes
    assert change.cause == "preferred leader, asked for"
    assert change.candidates == (
        "1: in sync, taken",
        "2: in sync, not taken",
        "3: in sync, not taken",
    )


def refused(found: ClusterImage, event: ElectionRequested, **given: Any) -> type | None:
    decision = decided(found, event, **given)
    assert decision.transactions == ()
    (error,) = decision.outcomes.values()
    return type(error)


def test_who_leads_already_or_cannot_is_refused_with_the_reason() -> None:
    assert refused(image(THREE, {0: state(1, [1, 2, 3])}), hand(T0)) is ElectionNotNeeded
    assert refused(image(THREE, {0: state(2, [2, 3])}), hand(T0)) is LeaderNotAvailable
    away = image(THREE[1:], {0: state(2, [2, 3])})
    assert refused(away, hand(T0)) is LeaderNotAvailable
    behind = image(THREE, {0: state(2, [2, 1, 3])})
    cordoned = replace(behind, cordons={B(1): StoredCordon(Cordon(reason="", since_ms=0), 1)})
    assert refused(cordoned, hand(T0)) is LeaderNotAvailable
    failed = {T0: {B(1): ReplicaFailure("disk", damaged=False)}}
    assert refused(behind, hand(T0), failed=failed) is LeaderNotAvailable
    assert refused(behind, hand(TopicPartition("t", 7))) is UnknownTopic
    going = image(THREE, {0: state(2, [2, 1, 3])}, deleting=True)
    assert refused(going, hand(T0)) is UnknownTopic


def test_without_names_all_that_can_change_are_meant_and_the_rest_is_not_spoken_of() -> None:
    found = image(
        THREE, {0: state(2, [2, 1]), 1: state(1, [1, 2]), 2: state(3, [3]), 3: state(-1, [])}
    )
    decision = decided(found, ElectionRequested())
    assert decision.outcomes == {T0: None}
    assert list(states_in(*decision.transactions)) == [KEY]


def balanced(missing: int, of: int) -> ClusterImage:
    """All partitions prefer broker 1, which does not lead some of them."""
    states = {each: state(2 if each < missing else 1, [1, 2, 3]) for each in range(of)}
    return image(THREE, states)


def test_the_clock_elects_only_for_brokers_that_lead_too_little() -> None:
    assert imbalance(balanced(1, 10)) == {1: 10.0}
    event = ElectionRequested(balance_percent=10)
    assert decided(balanced(1, 10), event).transactions == ()
    decision = decided(balanced(2, 10), event)
    assert len(decision.outcomes) == 2
    (change,) = history_in(decision.transactions[0]).changes
    assert change.cause == "preferred leader, automatic"


def unclean(leader: int = -1, loss: str = "") -> ElectionRequested:
    wish = LeaderWish(partition=T0, leader=B(leader), loss=loss)
    return ElectionRequested(wishes=(wish,), unclean=True)


def test_a_person_may_let_anybody_lead_who_is_there_and_the_loss_is_written_down() -> None:
    found = image([live(2), live(3)], {0: state(-1, [], last=2)})
    decision = decided(found, unclean(3, "it ends at offset 70, broker 1 was seen at 90"))
    assert only_state(decision) == (3, 5, (3,), ())
    (transaction,) = decision.transactions
    (change,) = history_in(transaction).changes
    assert change.loss.startswith(
        "a person let broker 3 lead: acknowledged records of leader epoch 4"
    )
    assert change.loss.endswith("it ends at offset 70, broker 1 was seen at 90")
    (put,) = [each for each in transaction.operations if each.key == KEY]
    assert isinstance(put, Put)
    assert decode(PartitionState, put.value).loss == change.loss
    # Unless told, it is who led last.
    assert only_state(decided(found, unclean())) == (2, 5, (2,), ())


def test_an_unclean_election_is_for_partitions_that_have_no_other_way() -> None:
    led = image(THREE, {0: state(1, [1])})
    assert refused(led, unclean(2)) is ElectionNotNeeded
    soon = image(THREE, {0: state(-1, [], elr=[2], last=1)})
    assert refused(soon, unclean(3)) is ElectionNotNeeded
    nobody = image(THREE[:1], {0: state(-1, [], last=2)})
    assert refused(nobody, unclean(2)) is LeaderNotAvailable
    assert refused(nobody, unclean(9)) is LeaderNotAvailable


def test_the_loss_stays_with_the_partition_through_later_elections() -> None:
    stored = state(2, [2, 1, 3])
    lost = stored._replace(state=replace(stored.state, loss="offsets 7 to 9"))
    decision = decided(image(THREE[:1] + THREE[2:], {0: lost}))
    (put, _) = decision.transactions[0].operations
    assert isinstance(put, Put)
    assert decode(PartitionState, put.value).loss == "offsets 7 to 9"


def test_partitions_that_prefer_nobody_do_not_count() -> None:
    assert imbalance(ClusterImage()) == {}
    record = image(THREE, {0: state(1, [1])}).topics["t"].record
    assert imbalance(ClusterImage(topics={"t": StoredTopic(record, 1)})) == {}
