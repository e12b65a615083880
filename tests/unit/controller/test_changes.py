"""New states as transactions: guarded, recorded, and never too large for the store."""

from __future__ import annotations

from tailrace.controller.changes import (
    PARTITIONS_PER_TXN,
    StateChange,
    guards_of,
    operations_of,
    read_history,
    transactions,
)
from tailrace.controller.election import Outcome
from tailrace.controller.facts import Cause
from tailrace.meta.keys import PartitionHistory, encode, history_key
from tailrace.meta.store import CreatedAt, ModifiedAt, check_txn
from tailrace.model import TopicPartition
from unit.controller.images import KEY, MINE, NOW_MS, THREE, facts, history_in, image, live, state

T0 = TopicPartition("t", 0)


def change(partition: TopicPartition = T0, leader: int = 2) -> StateChange:
    return StateChange(
        partition,
        state(1, [1, 2]),
        Outcome(state=state(leader, [1, 2]).state, candidates=("2: taken",)),
        Cause("somebody said so", NOW_MS - 5),
    )


def test_a_change_is_guarded_by_its_state_and_by_its_leader() -> None:
    found = image(THREE, {0: state(1, [1, 2])})
    assert guards_of(change(), found) == [
        ModifiedAt(KEY, 90),
        CreatedAt("/brokers/ids/2", 12),
    ]
    # A leader that is spared is not registered, and must not be by then.
    without = image([live(1)], {0: state(1, [1, 2])})
    assert CreatedAt("/brokers/ids/2", 0) in guards_of(change(), without)


def test_a_cause_leaves_a_record_on_top_of_the_others() -> None:
    key = history_key(T0)
    (first,) = transactions([change()], image(THREE, {0: state(1, [1, 2])}), facts(), NOW_MS)
    history = history_in(first)
    assert history.changes[0].cause == "somebody said so"
    known = facts(histories={key: encode(history)})
    assert len(operations_of(change(), known, NOW_MS)) == 2
    (second,) = transactions([change()], image(THREE, {0: state(1, [1, 2])}), known, NOW_MS)
    assert len(history_in(second).changes) == 2
    assert len(operations_of(change()._replace(cause=None), known, NOW_MS)) == 1


def test_many_changes_are_cut_to_what_a_transaction_takes() -> None:
    states = {each: state(1, [1, 2]) for each in range(200)}
    changes = [change(TopicPartition("t", each)) for each in states]
    found = list(transactions(changes, image(THREE, states), facts(), NOW_MS))
    assert len(found) == -(-200 // PARTITIONS_PER_TXN)
    for each in found:
        check_txn(each.guards, each.operations)
        assert MINE in each.guards


def test_a_history_that_cannot_be_read_begins_anew() -> None:
    assert read_history("/k", b"{broken") == read_history("/k", None) == PartitionHistory()
