"""Given an image of brokers and partitions, expect these states, in these transactions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.controller.changes import BYTES_PER_TXN, PARTITIONS_PER_TXN, read_history
from tailrace.controller.facts import (
    Cause,
    Decision,
    ReplicaFailure,
)
from tailrace.controller.partitions import PARTITIONS_PER_DECISION
from tailrace.controller.views import is_admitted
from tailrace.meta.image import (
    StoredState,
    StoredTopic,
)
from tailrace.meta.keys import (
    HISTORY_CHANGES_MAX,
    PartitionHistory,
    broker_key,
    encode,
    history_key,
    state_key,
)
from tailrace.meta.store import (
    TXN_OPERATIONS_MAX,
    CreatedAt,
    ModifiedAt,
    Put,
)
from tailrace.model import BrokerId, TopicPartition
from unit.controller.images import (
    KEY,
    MINE,
    NOW_MS,
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

# ------------------------------------------------------------------------------ brokers that fail


def test_nothing_is_done_while_all_is_well() -> None:
    assert decided(image(THREE, {0: state(1, [1, 2, 3])})) == Decision()


def test_a_leader_that_is_gone_is_replaced_in_one_guarded_transaction() -> None:
    picture = image([live(2), live(3)], {0: state(1, [1, 2, 3])})
    cause = Cause("broker 1: its lease ended", 999_000)
    (transaction,) = decided(picture, causes={BrokerId(1): cause}).transactions
    assert states_in(transaction) == {KEY: (2, 5, (2, 3), ())}
    assert set(transaction.guards) == {
        MINE,
        ModifiedAt(KEY, STATE_REVISION),
        CreatedAt(broker_key(2), 12),
    }
    (change,) = history_in(transaction).changes
    assert change.cause == "broker 1: its lease ended"
    assert (change.noticed_ms, change.decided_ms) == (999_000, NOW_MS)
    assert (change.old_leader, change.new_leader, change.leader_epoch) == (1, 2, 5)
    assert (change.old_isr, change.new_isr) == ((1, 2, 3), (2, 3))
    assert (change.controller_id, change.controller_epoch) == (9, 7)
    assert len(change.candidates) == 3


def test_a_follower_that_is_gone_leaves_the_isr_without_a_record_of_it() -> None:
    (transaction,) = decided(image([live(1), live(2)], {0: state(1, [1, 2, 3])})).transactions
    assert states_in(transaction) == {KEY: (1, 4, (1, 2), ())}
    assert len(transaction.operations) == 1
    # Should the leader have another life by now, this state must not count as given to it.
    assert CreatedAt(broker_key(1), 11) in transaction.guards


def test_below_min_insync_those_who_left_are_eligible() -> None:
    decision = decided(image([live(1)], {0: state(1, [1, 2, 3])}))
    assert only_state(decision) == (1, 4, (1,), (2, 3))


def test_nobody_eligible_means_offline_with_the_reason() -> None:
    (transaction,) = decided(image([live(3)], {0: state(1, [1, 2])})).transactions
    assert states_in(transaction) == {KEY: (-1, 5, (), (1, 2))}
    assert transaction.guards == (MINE, ModifiedAt(KEY, STATE_REVISION))
    (change,) = history_in(transaction).changes
    assert change.cause == "broker 1 has changed"
    assert change.candidates[-1] == "waiting for one that holds everything committed"


def test_leaders_are_replaced_before_isrs_are_mended_before_new_partitions() -> None:
    picture = image(
        [live(2), live(3)], {0: state(2, [1, 2, 3]), 1: state(1, [1, 2, 3])}, partitions=3
    )
    (transaction,) = decided(picture).transactions
    states = [each.key for each in transaction.operations if each.key.endswith("/state")]
    assert states == [state_key(TopicPartition("t", each)) for each in (1, 0, 2)]


def test_at_most_64_partitions_and_a_megabyte_go_into_one_transaction() -> None:
    states = {each: state(1, [1, 2, 3]) for each in range(150)}
    transactions = decided(image([live(2), live(3)], states)).transactions
    assert [len(states_in(each)) for each in transactions] == [64, 64, 22]
    long = Cause("x" * 40_000, NOW_MS)
    transactions = decided(
        image([live(2), live(3)], states), causes={BrokerId(1): long}
    ).transactions
    assert sum(len(states_in(each)) for each in transactions) == 150
    for each in transactions:
        size = sum(len(put.value) for put in each.operations if isinstance(put, Put))
        assert size <= BYTES_PER_TXN


def test_a_decision_takes_the_first_of_many_leaders_before_followers() -> None:
    count = 3 * PARTITIONS_PER_DECISION
    states = {each: state(1 if each % 3 == 0 else 2, [1, 2, 3]) for each in range(count)}
    transactions = decided(image([live(2), live(3)], states)).transactions
    found = states_in(*transactions)
    assert len(found) == PARTITIONS_PER_DECISION
    assert all(epoch == 5 for _, epoch, _, _ in found.values())


@given(
    brokers=st.integers(2, 7),
    factor=st.integers(2, 5),
    partitions=st.integers(1, PARTITIONS_PER_DECISION),
    victim=st.integers(0, 6),
)
def test_what_a_dead_broker_led_is_spread_over_its_neighbours(
    brokers: int, factor: int, partitions: int, victim: int
) -> None:
    """Replica j of partition i is on broker i + j: the next one would get all of it."""
    factor, victim = min(factor, brokers), victim % brokers
    assignment = {
        number: tuple(BrokerId((number + each) % brokers) for each in range(factor))
        for number in range(partitions)
    }
    states = {number: state(isr[0], isr) for number, isr in assignment.items()}
    alive = [live(each) for each in range(brokers) if each != victim]
    picture = image(alive, states)
    record = replace(picture.topics["t"].record, assignment=assignment)
    picture = replace(picture, topics={"t": StoredTopic(record, 80)})
    new = states_in(*decided(picture).transactions)
    led = Counter(number % brokers for number in range(partitions))
    for number in range(partitions):
        found = new.get(state_key(TopicPartition("t", number)))
        if number % brokers == victim:
            assert found is not None
            leader, epoch, isr, _ = found
            assert epoch == 5
            assert leader in isr
            assert leader in assignment[number][1:]
            led[leader] += 1
        else:
            # Who is there keeps what it leads.
            assert found is None or found[0] == number % brokers
    took = [led[(victim + each) % brokers] for each in range(1, factor)]
    assert max(took) - min(took) <= 1


def test_many_leaders_do_not_make_too_many_guards() -> None:
    brokers = [live(each, epoch=each) for each in range(2, 80)]
    states = {each: state(1, [1, each + 2]) for each in range(70)}
    picture = image(brokers, states)
    record = picture.topics["t"].record
    assignment = {each: (BrokerId(1), BrokerId(each + 2)) for each in range(70)}
    topics = {"t": StoredTopic(replace(record, assignment=assignment), 80)}
    known = {BrokerId(each): f"disk{each}" for each in range(80)}
    decision = decided(replace(picture, topics=topics), incarnations=known)
    assert len(states_in(*decision.transactions)) == 70
    assert PARTITIONS_PER_TXN * 2 <= TXN_OPERATIONS_MAX


def test_the_history_keeps_the_last_changes_newest_first() -> None:
    states = {0: state(1, [1, 2, 3])}
    histories: dict[str, bytes] = {}
    history = PartitionHistory()
    for number in range(HISTORY_CHANGES_MAX + 5):
        (transaction,) = decided(
            image([live(2), live(3)], states),
            histories=histories,
            causes={BrokerId(1): Cause(f"cause {number}", number)},
        ).transactions
        history = history_in(transaction)
        histories = {history_key(TopicPartition("t", 0)): encode(history)}
    assert len(history.changes) == HISTORY_CHANGES_MAX
    assert [each.noticed_ms for each in history.changes[:2]] == [24, 23]


def test_a_history_that_cannot_be_read_does_not_stop_an_election() -> None:
    key = history_key(TopicPartition("t", 0))
    picture = image([live(2), live(3)], {0: state(1, [1, 2, 3])})
    (transaction,) = decided(picture, histories={key: b"{"}).transactions
    assert len(history_in(transaction).changes) == 1
    assert read_history(key, None) == read_history(key, b"{") == PartitionHistory()


def test_an_offline_partition_comes_back_with_its_broker() -> None:
    picture = image([live(1, epoch=95)], {0: state(-1, [1], last=1)}, replicas=[1])
    cause = Cause("broker 1 registered (epoch 95)", 5)
    (transaction,) = decided(picture, causes={BrokerId(1): cause}).transactions
    assert states_in(transaction) == {KEY: (1, 5, (1,), ())}
    assert history_in(transaction).changes[0].cause == "broker 1 registered (epoch 95)"


# -------------------------------------------------------------------------- brokers that come back


def test_who_registers_anew_without_having_been_missed_keeps_what_it_has() -> None:
    picture = image([live(1, epoch=95), live(2, epoch=96), live(3)], {0: state(1, [1, 2, 3])})
    assert decided(picture) == Decision()


def test_who_may_have_lost_its_tail_leaves_every_isr_before_it_is_admitted() -> None:
    risky = live(2, epoch=95, tail_may_be_lost=True)
    states = {0: state(1, [1, 2, 3]), 1: state(2, [2, 3]), 2: state(-1, [], [2, 3], last=2)}
    decision = decided(image([live(1), risky], states))
    assert states_in(*decision.transactions) == {
        state_key(TopicPartition("t", 0)): (1, 4, (1,), (3,)),
        state_key(TopicPartition("t", 1)): (-1, 5, (), (3,)),
        state_key(TopicPartition("t", 2)): (-1, 4, (), (3,)),
    }
    assert decision.admissions == ()
    clean = {0: state(1, [1], [3]), 1: state(-1, [], [3], last=2)}
    assert decided(image([live(1), risky], clean)).admissions == (risky,)


def test_flush_ack_keeps_the_place_of_one_whose_machine_went_down_but_not_its_epoch() -> None:
    risky = live(1, epoch=95, tail_may_be_lost=True)
    config = {"flush": "ack"}
    (transaction,) = decided(
        image([risky, live(2), live(3)], {0: state(1, [1, 2, 3])}, config=config)
    ).transactions
    # Its followers may have records of epoch 4 that it has lost.
    assert states_in(transaction) == {KEY: (1, 5, (1, 2, 3), ())}
    assert CreatedAt(broker_key(1), 95) in transaction.guards
    # Once is enough: then it may be admitted.
    newer = StoredState(state(1, [1, 2, 3]).state, 97)
    done = image([risky, live(2), live(3)], {0: newer}, config=config)
    assert decided(done) == Decision(admissions=(risky,))


def test_another_disk_has_nothing_whatever_the_topic_says() -> None:
    fresh = live(2, epoch=95, incarnation="another disk")
    for config in ({}, {"flush": "ack"}):
        picture = image([live(1), fresh, live(3)], {0: state(1, [1, 2, 3])}, config=config)
        assert only_state(decided(picture)) == (1, 4, (1, 3), ())
    without = image([live(1), fresh, live(3)], {0: state(1, [1, 3])})
    assert decided(without).admissions == (fresh,)


def test_a_new_broker_is_admitted_before_it_gets_orders() -> None:
    new = live(4)
    assert not is_admitted(new, {})
    assert decided(image([new]), incarnations={}).admissions == (new,)
    assert is_admitted(new, {BrokerId(4): "disk4"})
    assert not is_admitted(live(4, tail_may_be_lost=True), {BrokerId(4): "disk4"})


def test_last_leader_recovery_says_what_may_be_lost() -> None:
    picture = image([live(1)], {0: state(-1, [], last=1)}, replicas=[1])
    (transaction,) = decided(picture).transactions
    assert states_in(transaction) == {KEY: (1, 5, (1,), ())}
    assert "broker 1" in history_in(transaction).changes[0].loss


# -------------------------------------------------------------------- brokers that are about to go


@pytest.mark.parametrize("way", ["registration", "request"])
def test_a_draining_broker_is_relieved(way: str) -> None:
    first = live(1, draining=way == "registration")
    draining = {BrokerId(1): 11} if way == "request" else {}
    picture = image([first, live(2), live(3)], {0: state(1, [1, 2, 3]), 1: state(1, [1])})
    decision = decided(picture, draining=draining)
    assert states_in(*decision.transactions) == {KEY: (2, 5, (1, 2, 3), ())}


def test_a_request_of_a_former_life_to_be_relieved_counts_no_more() -> None:
    picture = image(THREE, {0: state(1, [1, 2, 3])})
    assert decided(picture, draining={BrokerId(1): 10}) == Decision()


def test_f27_a_broker_with_a_slow_or_full_disk_leads_only_what_nobody_else_can() -> None:
    states = {0: state(1, [1, 2, 3]), 1: state(1, [1]), 2: state(2, [1, 2, 3])}
    unfit = {BrokerId(1): "/a is slow"}
    decision = decided(image(THREE, states), unfit=unfit)
    # Of those that are well it goes to the one that leads nothing yet.
    assert states_in(*decision.transactions) == {KEY: (3, 5, (1, 2, 3), ())}
    candidates = history_in(decision.transactions[0]).changes[0].candidates
    assert candidates[0] == "1: in sync, its disk is slow or full"
    # When all are in trouble, nothing moves.
    everyone = {BrokerId(each): "full" for each in (1, 2, 3)}
    assert decided(image(THREE, states), unfit=everyone) == Decision()


def test_f16_the_spared_keep_what_they_have_and_their_absence_is_guarded() -> None:
    states = {0: state(1, [1, 2, 3]), 1: state(3, [1, 2, 3])}
    assert decided(image([live(3)], states), spared=[1, 2]) == Decision()
    # Broker 3 is gone, 2 is spared, and nobody who is registered is left.
    (transaction,) = decided(image([live(4)], {0: state(2, [2, 3])}), spared=[2]).transactions
    assert states_in(transaction) == {KEY: (2, 4, (2,), (3,))}
    assert CreatedAt(broker_key(2), 0) in transaction.guards
    # Whoever is registered is not spared any more.
    assert decided(image(THREE, {0: state(1, [1, 2, 3])}), spared=[1]) == Decision()


# ---------------------------------------------------------------------------- replicas that fail


def test_a_replica_that_failed_is_as_good_as_away() -> None:
    picture = image(THREE, {0: state(1, [1, 2, 3]), 1: state(1, [1, 2, 3])})
    failed = {TopicPartition("t", 0): {BrokerId(1): ReplicaFailure("disk full", damaged=False)}}
    decision = decided(picture, failed=failed)
    assert states_in(*decision.transactions) == {KEY: (2, 5, (2, 3), ())}
    cause = history_in(decision.transactions[0]).changes[0].cause
    assert cause == "broker 1 cannot serve its replica: disk full"
    # What it had is still there.
    alone = image(THREE, {0: state(1, [1])})
    assert only_state(decided(alone, failed=failed)) == (-1, 5, (), (1,))


def test_a_damaged_replica_vouches_for_nothing() -> None:
    failed = {TopicPartition("t", 0): {BrokerId(1): ReplicaFailure("rot", damaged=True)}}
    decision = decided(image(THREE, {0: state(1, [1])}), failed=failed)
    assert only_state(decision) == (-1, 5, (), ())


# --------------------------------------------------------------------------------- new partitions


def test_partitions_without_a_state_get_their_first_one() -> None:
    (transaction,) = decided(image(THREE, {0: state(1, [1, 2, 3])}, partitions=3)).transactions
    assert states_in(transaction) == {
        state_key(TopicPartition("t", 1)): (1, 0, (1, 2, 3), ()),
        state_key(TopicPartition("t", 2)): (1, 0, (1, 2, 3), ()),
    }
    assert ModifiedAt(state_key(TopicPartition("t", 1)), 0) in transaction.guards
    # It must still be the same topic.
    assert ModifiedAt("/brokers/topics/t", 80) in transaction.guards
    assert history_in(transaction, 1).changes[0].cause == "the topic was made"


def test_a_state_that_cannot_be_read_is_not_made_anew() -> None:
    assert decided(image(THREE, partitions=1, damaged=[KEY])) == Decision()


def test_a_topic_that_is_being_deleted_gets_no_leaders_and_no_states() -> None:
    picture = image([live(2), live(3)], {0: state(1, [1, 2, 3])}, partitions=2, deleting=True)
    assert decided(picture) == Decision()
