"""Replicas that move: what may be asked, each step, and every order in which things may happen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.controller.facts import (
    Decision,
    MovesCancelled,
    MovesRequested,
    Transaction,
)
from tailrace.errors import (
    InvalidAssignment,
    InvalidRequest,
    NoReassignment,
    ReassignmentInProgress,
    UnknownBroker,
    UnknownTopic,
)
from tailrace.meta.image import ClusterImage, StoredCordon, StoredReassignment, StoredTopic
from tailrace.meta.keys import (
    Cordon,
    PartitionState,
    Reassignment,
    TopicRecord,
    decode,
    reassignment_key,
    state_key,
    topic_key,
)
from tailrace.meta.store import CreatedAt, Delete, ModifiedAt, Put
from tailrace.model import BrokerId, TopicId, TopicPartition
from unit.controller.images import decided, history_in, image, live, state

T0 = TopicPartition("t", 0)
FIVE = tuple(live(each) for each in range(1, 6))


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, brokers))


def moving(
    target: Sequence[int],
    *,
    isr: Sequence[int],
    leader: int = 1,
    original: Sequence[int] = (1, 2, 3),
    now: Sequence[int] | None = None,
    cancelled: bool = False,
    brokers: Sequence[Any] = FIVE,
    partitions: int = 1,
    config: dict[str, str] | None = None,
    topic_id: str = "id-t",
) -> ClusterImage:
    """A topic whose partitions are all on their way; `now`: the replicas that they have."""
    found = image(
        brokers,
        {each: state(leader, isr) for each in range(partitions)},
        replicas=original if now is None else now,
        config=config,
    )
    move = Reassignment(
        topic_id=TopicId(topic_id),
        original=ids(*original),
        target=ids(*target),
        started_ms=5,
        cancelled=cancelled,
    )
    return replace(
        found,
        reassignments={
            TopicPartition("t", each): StoredReassignment(move, 95) for each in range(partitions)
        },
    )


def applied(found: ClusterImage, decision: Decision) -> ClusterImage:
    """The image after all that was decided."""
    assert decision.error is None, decision.error
    revision = found.revision + 1
    for transaction in decision.transactions:
        found = found.learn(transaction.operations, revision=revision)
        revision += 1
    found.check_invariants()
    return found


def steps(found: ClusterImage, **given: Any) -> tuple[Transaction, ...]:
    return decided(found, **given).transactions


def after(found: ClusterImage, **facts: Any) -> tuple[Any, ...]:
    """One step: replicas, leader, epoch, ISR, and whether the reassignment is over."""
    new = applied(found, decided(found, **facts))
    stored = new.state(T0)
    assert stored is not None
    now = stored.state
    return new.replicas(T0), now.leader, now.leader_epoch, now.isr, T0 not in new.reassignments


# -------------------------------------------------------------------------------- what is asked for


def plan(**targets: Sequence[int]) -> MovesRequested:
    """`t0=[1, 2]`: partition 0 of topic t."""
    return MovesRequested(
        plan={TopicPartition(n[0], int(n[1:])): ids(*brokers) for n, brokers in targets.items()}
    )


def test_a_plan_becomes_keys_and_what_is_right_already_does_not() -> None:
    found = image(FIVE, {0: state(1, [1, 2, 3]), 1: state(1, [1, 2, 3])})
    decision = decided(found, plan(t0=[4, 5, 1], t1=[1, 2, 3]))
    (transaction,) = decision.transactions
    (put,) = transaction.operations
    assert put.key == reassignment_key(T0) == "/admin/reassign_partitions/t/0"
    assert isinstance(put, Put)
    move = decode(Reassignment, put.value)
    assert (move.original, move.target, move.topic_id) == ((1, 2, 3), (4, 5, 1), "id-t")
    assert ModifiedAt(put.key, 0) in transaction.guards
    assert ModifiedAt(topic_key("t"), 80) in transaction.guards
    assert decision.moves == {T0: move}
    # Asked again, nothing is missing.
    assert decided(applied(found, decision), plan(t0=[4, 5, 1])).transactions == ()


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (plan(t0=[]), InvalidAssignment),
        (plan(t0=[1, 1]), InvalidAssignment),
        (plan(t0=[1, 9]), UnknownBroker),
        (plan(t0=[1, 5]), InvalidAssignment),
        (plan(t7=[1]), UnknownTopic),
        (plan(u0=[1]), UnknownTopic),
        (MovesRequested(), InvalidRequest),
        (MovesRequested(to_brokers=ids(1), drain=BrokerId(2)), InvalidRequest),
        (MovesRequested(to_brokers=ids(1, 2, 9)), UnknownBroker),
        (MovesRequested(to_brokers=ids(1, 2)), InvalidAssignment),
        (MovesRequested(to_brokers=ids(3, 4, 5)), InvalidAssignment),
        (MovesRequested(drain=BrokerId(9)), UnknownBroker),
        (MovesRequested(drain=BrokerId(1), topics=("u",)), UnknownTopic),
    ],
    ids=str,
)
def test_plans_that_cannot_be_are_refused(event: MovesRequested, error: type) -> None:
    cordons = {BrokerId(5): StoredCordon(Cordon(reason="", since_ms=0), 1)}
    found = replace(image(FIVE, {0: state(1, [1, 2, 3])}), cordons=cordons)
    decision = decided(found, event)
    assert decision.transactions == ()
    assert isinstance(decision.error, error)


def test_one_whose_disk_is_not_well_takes_no_replicas() -> None:
    found, unfit = image(FIVE, {0: state(1, [1, 2, 3])}), {BrokerId(4): "/data is full"}
    refused = decided(found, plan(t0=[1, 2, 4]), unfit=unfit).error
    assert isinstance(refused, InvalidAssignment)
    assert "/data is full" in str(refused)
    # It keeps what it has, and what can go elsewhere does.
    assert decided(found, plan(t0=[2, 1, 3]), unfit={BrokerId(2): "slow"}).error is None
    moves = decided(found, MovesRequested(drain=BrokerId(1)), unfit=unfit).moves
    assert [each.target for each in moves.values()] == [(5, 2, 3)]


def test_fewer_replicas_than_must_be_in_sync_are_refused() -> None:
    found = image(FIVE, {0: state(1, [1, 2, 3])}, config={"min.insync.replicas": "3"})
    assert isinstance(decided(found, plan(t0=[1, 2])).error, InvalidAssignment)


def test_a_partition_has_one_way_at_a_time() -> None:
    found = moving([4, 5, 1], isr=[1, 2, 3])
    assert decided(found, plan(t0=[4, 5, 1])).transactions == ()
    assert isinstance(decided(found, plan(t0=[5, 4, 1])).error, ReassignmentInProgress)


def test_by_the_rule_and_to_empty_a_broker() -> None:
    found = image(FIVE, {each: state(1, [1, 2, 3]) for each in range(3)})
    decision = decided(found, MovesRequested(to_brokers=ids(1, 2, 3, 4, 5)))
    assert {each.partition: move.target for each, move in decision.moves.items()} == {
        1: (2, 3, 4),
        2: (3, 4, 5),
    }
    decision = decided(found, MovesRequested(drain=BrokerId(2)))
    assert [move.target for move in decision.moves.values()] == [(1, 4, 3), (1, 5, 3), (1, 4, 3)]
    decision = decided(found, MovesRequested(drain=BrokerId(2), topics=("t",)))
    assert len(decision.moves) == 3


def test_many_are_asked_for_in_many_transactions() -> None:
    found = image(FIVE, {each: state(1, [1, 2, 3]) for each in range(500)})
    decision = decided(found, MovesRequested(drain=BrokerId(1)))
    assert len(decision.transactions) == 9
    assert len(applied(found, decision).reassignments) == 500


# --------------------------------------------------------------------------------------- the steps


def test_first_both_sets_then_the_new_one() -> None:
    found = moving([4, 5, 1], isr=[1, 2, 3])
    assert after(found) == ((4, 5, 1, 2, 3), 1, 4, (1, 2, 3), False)
    (transaction,) = steps(found)
    keys = {each.key for each in transaction.operations}
    assert {state_key(T0), topic_key("t")} <= keys
    (change,) = history_in(transaction).changes
    assert change.cause == "reassignment from [1, 2, 3] to [4, 5, 1] began"
    assert ModifiedAt("/admin/delete_topics/t", 0) in transaction.guards
    assert ModifiedAt(reassignment_key(T0), 95) in transaction.guards

    both = [4, 5, 1, 2, 3]
    assert steps(moving([4, 5, 1], isr=[1, 2, 3, 4], now=both)) == ()
    found = moving([4, 5, 1], isr=[1, 2, 3, 4, 5], now=both)
    # The first of the new set leads, in the same step.
    assert after(found) == ((4, 5, 1), 4, 5, (4, 5, 1), True)
    (transaction,) = steps(found)
    assert Delete(reassignment_key(T0)) in transaction.operations
    (change,) = history_in(transaction).changes
    assert change.cause == "reassignment from [1, 2, 3] to [4, 5, 1] done"


def test_a_leader_that_leaves_is_replaced_in_the_same_step() -> None:
    found = moving([4, 5], isr=[1, 2, 3, 4, 5], now=[4, 5, 1, 2, 3])
    assert after(found) == ((4, 5), 4, 5, (4, 5), True)
    (transaction,) = steps(found)
    assert CreatedAt("/brokers/ids/4", 14) in transaction.guards
    (change,) = history_in(transaction).changes
    assert (change.old_leader, change.new_leader) == (1, 4)


def test_who_should_not_lead_is_not_elected_while_another_can() -> None:
    found = moving([4, 5], isr=[1, 4, 5], now=[4, 5, 1, 2, 3])
    assert after(found, draining={BrokerId(4): 14})[:2] == ((4, 5), 5)
    stays = moving([4, 1], isr=[1, 2, 4], now=[4, 1, 2, 3])
    assert after(stays, draining={BrokerId(4): 14})[:3] == ((4, 1), 1, 4)


def test_replicas_that_only_go_or_change_places_need_no_copy() -> None:
    assert after(moving([3, 1], isr=[1, 2, 3])) == ((3, 1), 3, 5, (3, 1), True)
    assert after(moving([1, 3, 2], isr=[1, 2, 3])) == ((1, 3, 2), 1, 4, (1, 3, 2), True)


@pytest.mark.parametrize("target", [[1, 2], [1]])
def test_replicas_that_only_go_are_waited_for_without_a_write(target: list[int]) -> None:
    """Each write of the state would refuse the very change of the ISR that is waited for."""
    assert steps(moving(target, isr=[3], leader=3)) == ()
    assert after(moving(target, isr=[1, 2, 3], leader=3))[0] == tuple(target)


def test_without_a_leader_nothing_moves() -> None:
    assert steps(moving([4], isr=[], leader=-1, brokers=FIVE[3:])) == ()


def test_topics_that_go_or_were_made_anew_forget_their_moves() -> None:
    found = moving([4, 5, 1], isr=[1, 2, 3], topic_id="former")
    (transaction,) = steps(found)
    assert transaction.operations == (Delete(reassignment_key(T0)),)
    assert T0 not in applied(found, decided(found)).reassignments
    gone = replace(moving([4], isr=[1]), topics={}, states={})
    assert applied(gone, decided(gone)).reassignments == {}


def test_a_broker_copies_so_many_at_a_time() -> None:
    found = moving([4, 2, 3], isr=[1, 2, 3], partitions=30)
    new = applied(found, decided(found, moves_per_broker_max=7))
    begun = [each for each, replicas in new.partitions() if 4 in replicas]
    assert len(begun) == 7
    assert steps(new, moves_per_broker_max=7) == ()


def test_many_steps_are_taken_in_turns_of_one_transaction_for_a_topic() -> None:
    found = moving([2, 3, 1], isr=[1, 2, 3], partitions=100)
    for _ in range(4):
        assert len(steps(found)) == 1
        found = applied(found, decided(found))
    assert found.reassignments == {}


def test_defaults_count_the_smaller_set_while_replicas_come() -> None:
    # One replica on its way to three: a default of two in sync would stop producers.
    found = moving([1, 4, 5], original=[1], now=[1, 4, 5], isr=[1])
    assert steps(found) == ()


# ------------------------------------------------------------------------------------- given up


def test_what_has_not_begun_is_just_forgotten() -> None:
    found = moving([4, 5, 1], isr=[1, 2, 3])
    new = applied(found, decided(found, MovesCancelled()))
    assert new.reassignments[T0].record.cancelled
    assert decided(new, MovesCancelled(partitions=(T0,))).transactions == ()
    assert after(new) == ((1, 2, 3), 1, 4, (1, 2, 3), True)


def test_what_has_begun_goes_back() -> None:
    both = [4, 5, 1, 2, 3]
    found = moving([4, 5, 1], isr=[1, 2, 3, 4], now=both, cancelled=True)
    assert after(found) == ((1, 2, 3), 1, 4, (1, 2, 3), True)
    # The new ones lead, and of the old ones too few are in sync: wait for them.
    found = moving([4, 5, 1], isr=[4, 5, 1], leader=4, now=both, cancelled=True)
    assert steps(found) == ()
    found = moving([4, 5, 1], isr=[4, 5, 1, 2], leader=4, now=both, cancelled=True)
    assert after(found) == ((1, 2, 3), 1, 5, (1, 2), True)
    error = decided(found, plan(t0=[4, 5, 1])).error
    assert isinstance(error, ReassignmentInProgress)


def test_only_what_is_under_way_can_be_given_up() -> None:
    found = image(FIVE, {0: state(1, [1, 2, 3])})
    assert isinstance(decided(found, MovesCancelled(partitions=(T0,))).error, NoReassignment)
    assert decided(found, MovesCancelled()).transactions == ()


# ------------------------------------------------------------------------- whatever order it takes


@given(data=st.data())
def test_whatever_happens_on_the_way_the_partition_arrives_and_nobody_uncommitted_leads(
    data: st.DataObject,
) -> None:
    """Followers catch up or fall out, brokers go and come, it may be given up; then all heal."""
    target = data.draw(st.permutations([1, 2, 3, 4, 5]))[: data.draw(st.integers(1, 5))]
    found = image(FIVE, {0: state(1, [1, 2, 3])})
    found = applied(found, decided(found, plan(t0=target)))
    is_cancelled = False
    for _ in range(data.draw(st.integers(0, 12))):
        action = data.draw(st.sampled_from(["catch up", "fall out", "go", "come", "cancel", "no"]))
        if action == "cancel" and found.reassignments:
            found = applied(found, decided(found, MovesCancelled()))
            is_cancelled = True
        elif action == "go" and len(found.brokers) > 3:
            gone = data.draw(st.sampled_from(sorted(found.brokers)))
            found = replace(found, brokers={b: x for b, x in found.brokers.items() if b != gone})
        elif action == "come":
            found = replace(found, brokers={each.registration.broker_id: each for each in FIVE})
        elif action in {"catch up", "fall out"}:
            found = isr_changed(found, data, grows=action == "catch up")
        found = settled(found)
        check(found)
    found = settled(replace(found, brokers={each.registration.broker_id: each for each in FIVE}))
    for _ in range(10):
        found = settled(isr_changed(found, None, grows=True))
    assert found.reassignments == {}
    ends = {(1, 2, 3), tuple(target)} if is_cancelled else {tuple(target)}
    assert found.replicas(T0) in ends


def settled(found: ClusterImage) -> ClusterImage:
    """Decide until nothing is left to decide."""
    for _ in range(10):
        decision = decided(found)
        if not decision.transactions:
            return found
        found = applied(found, decision)
    raise AssertionError("it never comes to rest")


def isr_changed(found: ClusterImage, data: st.DataObject | None, *, grows: bool) -> ClusterImage:
    """As the leader changes it: by one live replica at a time, never itself."""
    stored = found.state(T0)
    assert stored is not None
    now: PartitionState = stored.state
    if now.leader not in found.brokers:
        return found
    if grows:
        able = [b for b in found.replicas(T0) if b in found.brokers and b not in now.isr]
    else:
        able = [b for b in now.isr if b != now.leader]
    if not able or (not grows and len(now.isr) <= 2):
        return found
    chosen = able[0] if data is None else data.draw(st.sampled_from(able))
    isr = (*now.isr, chosen) if grows else tuple(b for b in now.isr if b != chosen)
    elr = () if len(isr) >= 2 else now.elr
    new = stored._replace(state=replace(now, isr=isr, elr=elr), revision=found.revision + 1)
    return replace(found, revision=found.revision + 2, states={"t": {0: new}})


def check(found: ClusterImage) -> None:
    stored = found.state(T0)
    assert stored is not None
    replicas = found.replicas(T0)
    assert {*stored.state.isr, *stored.state.elr} <= {*replicas}
    move = found.reassignments.get(T0)
    if move is not None:
        assert replicas in {move.record.original, move.record.all_replicas}


def test_a_topic_keeps_what_else_it_has() -> None:
    found = moving([4, 5, 1], isr=[1, 2, 3], config={"retention.ms": "5"})
    record = found.topics["t"].record
    both = TopicRecord(
        topic_id=record.topic_id,
        assignment={0: record.assignment[0], 1: ids(2)},
        config=record.config,
    )
    found = replace(
        found,
        topics={"t": StoredTopic(both, 80)},
        states={"t": {**found.states["t"], 1: state(2, [2])}},
    )
    new = applied(found, decided(found)).topics["t"].record
    assert new == replace(both, assignment={0: ids(4, 5, 1, 2, 3), 1: ids(2)})
