"""Orders and roles: given events, expect effects."""

from __future__ import annotations

import pytest

from simulation.replica_bench import LIVES, A, B, Bench, C, kinds, only_store, stored
from tailrace.errors import InvariantViolation, NotEnoughReplicas, NotLeader
from tailrace.model import BrokerId, LeaderEpoch, Offset
from tailrace.replication.events import (
    NO_LEADER,
    Appended,
    AppendFailed,
    BecomeFollower,
    BecomeLeader,
    FailPending,
    FollowerLost,
    IsrRefused,
    IsrStored,
    IsrUnknown,
    LeaderReached,
    RefuseFollower,
    StepDown,
    Stopped,
    Synced,
    Tick,
    Truncated,
)
from tailrace.replication.leader import ReplicaSettings
from tailrace.replication.partition import EARLY_REPORTS_MAX, PartitionReplica, Role

NOT_LEADER = FailPending(code="NOT_LEADER", fetches=True)
LAG_MS = ReplicaSettings().lag_max_ms


# Orders.


def test_before_the_first_order_it_is_nothing() -> None:
    machine = Bench().machine
    assert machine.role is Role.OFFLINE
    assert (machine.leader, machine.leader_epoch, machine.revision) == (NO_LEADER, -1, 0)
    assert (machine.isr, machine.elr, machine.maximal_isr, machine.replicas) == ((), (), (), ())
    assert (machine.high_watermark, machine.log_end) == (0, 0)
    assert (machine.followers, machine.next_tick_ms, machine.epoch_start) == ((), None, None)
    assert isinstance(machine.can_append(), NotLeader)


def test_an_order_makes_it_leader() -> None:
    bench = Bench()
    assert bench.order(stored()) == [BecomeLeader(epoch=LeaderEpoch(5))]
    machine = bench.machine
    assert machine.role is Role.LEADER
    assert (machine.leader, machine.leader_epoch, machine.revision) == (A, 5, 50)
    assert (machine.isr, machine.elr, machine.min_insync) == ((A, B, C), (), 2)
    assert (machine.epoch_start, machine.log_end, machine.replicas) == (10, 10, (A, B, C))
    assert machine.can_append() is None


def test_an_order_makes_a_leader_a_follower_and_ends_what_is_parked() -> None:
    bench = Bench().lead()
    effects = bench.order(stored(B, epoch=6, revision=60))
    assert effects[:2] == [NOT_LEADER, BecomeFollower(leader=B, epoch=LeaderEpoch(6))]
    assert bench.machine.role is Role.FOLLOWER
    error = bench.machine.can_append()
    assert isinstance(error, NotLeader)
    assert "broker 2 leads in epoch 6" in str(error)


def test_one_that_is_elected_again_goes_on_with_what_is_parked() -> None:
    bench = Bench().lead()
    bench.report(B, 10)
    assert bench.order(stored(epoch=6, revision=60)) == [BecomeLeader(epoch=LeaderEpoch(6))]
    # What it knew of its followers was of another epoch.
    assert [follower.log_end for follower in bench.machine.followers] == [-1, -1]


def test_the_known_high_watermark_goes_along_from_role_to_role() -> None:
    bench = Bench().lead()
    bench.report(B, 9)
    bench.report(C, 9)
    bench.high_watermark = 1
    bench.order(stored(B, epoch=6, revision=60))
    assert bench.machine.high_watermark == 9
    bench.order(stored(epoch=7, revision=70))
    assert bench.machine.high_watermark == 9


def test_the_high_watermark_is_within_the_log() -> None:
    assert Bench(high_watermark=99).lead().machine.high_watermark == 10
    assert Bench(high_watermark=0, log_start=4).lead().machine.high_watermark == 4


def test_f6_an_older_order_is_ignored() -> None:
    bench = Bench().lead()
    assert bench.order(stored(B, epoch=4, revision=99)) == []
    assert bench.order(stored(isr=(A,), revision=49)) == []
    assert bench.machine.role is Role.LEADER
    assert bench.machine.isr == (A, B, C)


def test_the_same_order_again_changes_nothing_but_settings() -> None:
    bench = Bench().lead()
    bench.report(B, 10)
    bench.min_insync = 1
    assert bench.order(stored()) == []
    assert bench.machine.min_insync == 1
    assert bench.machine.followers[0].log_end == 10


def test_a_higher_min_insync_is_told_to_those_who_wait() -> None:
    bench = Bench(min_insync=1).lead(isr=(A,))
    assert bench.machine.high_watermark == 10
    bench.min_insync = 2
    effects = bench.order(stored(isr=(A,)))
    assert effects == [FailPending(code="NOT_ENOUGH_REPLICAS_AFTER_APPEND", fetches=False)]
    assert isinstance(bench.machine.can_append(), NotEnoughReplicas)
    assert bench.machine.can_append(acks_all=False) is None


def test_min_insync_counts_no_more_than_there_are_replicas() -> None:
    bench = Bench(replicas=(A,), min_insync=2).lead(isr=(A,))
    assert bench.machine.can_append() is None


def test_the_controller_changes_the_isr_within_an_epoch() -> None:
    bench = Bench().lead()
    assert bench.order(stored(isr=(A, B), revision=60)) == []
    assert (bench.machine.isr, bench.machine.revision) == ((A, B), 60)
    follower = Bench().follow()
    assert follower.order(stored(B, isr=(B,), elr=(A, C), revision=60)) == []
    assert (follower.machine.isr, follower.machine.elr) == ((B,), (A, C))
    assert follower.machine.maximal_isr == (B,)


def test_an_echo_of_the_own_change_counts_as_its_answer() -> None:
    bench = Bench().lead()
    bench.report(B, 10)
    bench.append()
    bench.report(B, 11)
    change = only_store(bench.wait(LAG_MS + 1))
    bench.order(stored(isr=(A, B), revision=51))
    assert bench.machine.maximal_isr == (A, B)
    assert bench.handle(IsrStored(attempt=change.attempt, revision=51)) == []
    assert bench.machine.revision == 51


def test_without_a_leader_it_is_offline() -> None:
    bench = Bench().lead()
    effects = bench.order(stored(NO_LEADER, epoch=6, revision=60))
    assert effects == [NOT_LEADER, StepDown(known_epoch=LeaderEpoch(6))]
    assert bench.machine.role is Role.OFFLINE
    assert "nobody leads in epoch 6" in str(bench.machine.can_append())


def test_what_was_stored_is_still_known_after_leading() -> None:
    bench = Bench().lead(isr=(A, B))
    change = only_store([*bench.report(B, 10), *bench.report(C, 10)])
    bench.handle(IsrStored(attempt=change.attempt, revision=58))
    bench.handle(Stopped())
    assert (bench.machine.revision, bench.machine.isr) == (58, (A, B, C))
    assert bench.order(stored(isr=(A, B), revision=57)) == []


# Stepping down.


def test_f11_a_leader_that_reads_of_a_newer_epoch_acknowledges_nothing_more() -> None:
    bench = Bench().lead()
    bench.append()
    bench.report(B, 11)
    change = only_store(bench.wait(LAG_MS + 1))
    newer = stored(B, epoch=6, isr=(B, C), revision=60)
    effects = bench.handle(IsrRefused(attempt=change.attempt, state=newer))
    assert effects == [NOT_LEADER, StepDown(known_epoch=LeaderEpoch(6))]
    assert bench.machine.role is Role.OFFLINE
    assert bench.report(C, 11, leader_epoch=5)[0] == RefuseFollower(
        broker_id=C,
        broker_epoch=LIVES[C],
        leader_epoch=LeaderEpoch(-1),
        code="FENCED_EPOCH",
        log_start=Offset(0),
    )
    assert bench.wait(LAG_MS) == []
    # The order that goes with what it read is obeyed, one of before is not.
    assert bench.order(stored(revision=55)) == []
    assert kinds(bench.order(newer)) == ["BecomeFollower", "Report"]


def test_a_leader_steps_down_whatever_attempt_told_it() -> None:
    bench = Bench().lead()
    effects = bench.handle(IsrRefused(attempt=99, state=stored(epoch=6, revision=60)))
    assert effects == [NOT_LEADER, StepDown(known_epoch=LeaderEpoch(6))]
    assert "was not ordered here yet" in str(bench.machine.can_append())


def test_a_leader_steps_down_when_it_is_replaced_within_the_epoch() -> None:
    bench = Bench().lead()
    effects = bench.handle(IsrRefused(attempt=1, state=stored(NO_LEADER, revision=60)))
    assert kinds(effects) == ["FailPending", "StepDown"]


def test_a_leader_steps_down_when_the_partition_is_gone() -> None:
    bench = Bench().lead()
    effects = bench.handle(IsrRefused(attempt=1, state=None))
    assert kinds(effects) == ["FailPending", "StepDown"]
    assert (bench.machine.leader, bench.machine.isr) == (NO_LEADER, ())
    assert kinds(bench.order(stored(epoch=6, revision=60))) == ["BecomeLeader"]


def test_stopped_it_does_nothing_until_it_is_ordered_again() -> None:
    bench = Bench().lead()
    assert bench.handle(Stopped()) == [NOT_LEADER]
    assert bench.machine.role is Role.STOPPED
    assert bench.handle(Tick()) == []
    assert bench.handle(Stopped()) == []
    assert kinds(bench.order(stored())) == ["BecomeLeader"]


# Reports to one that does not lead.


def refusal(bench: Bench, *, leader_epoch: int, broker: BrokerId = C) -> tuple[str, int]:
    (answer,) = bench.report(broker, 10, leader_epoch=leader_epoch)
    assert isinstance(answer, RefuseFollower)
    return answer.code, answer.leader_epoch


def test_f5_a_report_of_another_epoch_is_refused() -> None:
    bench = Bench().lead()
    assert refusal(bench, leader_epoch=4) == ("FENCED_EPOCH", 5)
    assert refusal(bench, leader_epoch=6) == ("UNKNOWN_EPOCH", 5)


def test_a_follower_refuses_reports() -> None:
    assert refusal(Bench().follow(), leader_epoch=5) == ("NOT_LEADER", 5)


def test_one_that_reported_too_early_is_invited_when_the_order_has_come() -> None:
    bench = Bench().follow()
    assert refusal(bench, leader_epoch=7) == ("UNKNOWN_EPOCH", 5)
    assert refusal(bench, leader_epoch=8, broker=B) == ("UNKNOWN_EPOCH", 5)
    effects = bench.order(stored(epoch=7, revision=70))
    invited = [each for each in effects if isinstance(each, RefuseFollower)]
    assert [(each.broker_id, each.code, each.leader_epoch) for each in invited] == [
        (C, "UNKNOWN_EPOCH", 7)
    ]
    # Whoever named a later epoch still waits for that one.
    later = bench.order(stored(epoch=8, revision=80))
    assert [each.broker_id for each in later if isinstance(each, RefuseFollower)] == [B]


def test_nobody_is_invited_by_one_that_does_not_lead() -> None:
    bench = Bench().follow()
    refusal(bench, leader_epoch=7)
    bench.order(stored(B, epoch=6, revision=60))
    assert kinds(bench.order(stored(epoch=7, revision=70))) == ["BecomeLeader"]


def test_early_reports_are_bounded() -> None:
    bench = Bench().follow()
    for number in range(EARLY_REPORTS_MAX + 5):
        refusal(bench, leader_epoch=7, broker=BrokerId(100 + number))
    invited = bench.order(stored(epoch=7, revision=70))
    assert kinds(invited).count("RefuseFollower") == EARLY_REPORTS_MAX


# Events that come too late, or to the wrong one.


def test_what_is_meant_for_a_leader_means_nothing_to_others() -> None:
    bench = Bench().follow()
    for event in (
        FollowerLost(broker_id=C, broker_epoch=LIVES[C]),
        IsrStored(attempt=1, revision=99),
        IsrUnknown(attempt=1),
        IsrRefused(attempt=1, state=None),
    ):
        assert bench.handle(event) == []
    assert bench.machine.role is Role.FOLLOWER


def test_what_is_meant_for_a_follower_means_nothing_to_others() -> None:
    bench = Bench().lead()
    assert bench.push(10) == []
    assert bench.handle(LeaderReached()) == []
    assert bench.handle(AppendFailed()) == []


def test_without_a_role_only_the_end_of_the_log_is_noted() -> None:
    bench = Bench()
    at = Offset(12)
    assert bench.handle(Appended(log_end=at, last_epoch=LeaderEpoch(4))) == []
    assert bench.handle(Synced(log_end=at)) == []
    assert bench.machine.log_end == 12
    cut = Truncated(log_end=Offset(3), last_epoch=LeaderEpoch(1), log_start=Offset(0))
    assert bench.handle(cut) == []
    assert bench.machine.log_end == 3


def test_the_log_of_a_leader_is_never_cut() -> None:
    bench = Bench().lead()
    with pytest.raises(InvariantViolation, match="the log of the leader was cut"):
        bench.handle(Truncated(log_end=Offset(3), last_epoch=LeaderEpoch(1), log_start=Offset(0)))


# The checks themselves.


def test_check_invariants_sees_a_role_without_its_state() -> None:
    bench = Bench().lead()
    bench.machine._role = Role.FOLLOWER
    with pytest.raises(InvariantViolation, match="without the state for it"):
        bench.machine.check_invariants()


def test_check_invariants_sees_a_leader_that_is_not_the_leader() -> None:
    bench = Bench().lead()
    bench.machine._state = stored(B)
    with pytest.raises(InvariantViolation, match="without being the leader"):
        bench.machine.check_invariants()


def test_check_invariants_sees_two_ends_of_one_log() -> None:
    bench = Bench().follow()
    bench.machine._log_end = 3
    with pytest.raises(InvariantViolation, match="the log ends at 3"):
        bench.machine.check_invariants()


def test_check_invariants_sees_a_high_watermark_beyond_the_log() -> None:
    bench = Bench().follow()
    following = bench.machine._following
    assert following is not None
    following.high_watermark = 11
    with pytest.raises(InvariantViolation, match="above the log end"):
        bench.machine.check_invariants()


def test_settings_have_defaults() -> None:
    machine = PartitionReplica(Bench().machine.partition, A)
    assert machine.broker_id == A


# A change of the ISR that is under way when the leader stops.


def test_a_change_under_way_counts_for_one_that_stops_and_leads_on() -> None:
    """Nobody knows whether the store lets C in: until then nothing is committed without it."""
    bench = Bench()
    bench.order(stored(isr=(A, B)))
    asked = only_store(bench.report(C, 10))
    assert asked.isr == (A, B, C)
    bench.handle(Stopped())
    # The answer comes while nobody leads here, or never.
    bench.handle(IsrStored(attempt=asked.attempt, revision=51))
    bench.order(stored(isr=(A, B)))
    assert bench.machine.maximal_isr == (A, B, C)
    bench.append()
    bench.report(B, 11)
    assert bench.machine.high_watermark == 6
    again = only_store(bench.handle(Tick()))
    assert (again.isr, again.expected_revision) == (asked.isr, asked.expected_revision)
    assert again.attempt > asked.attempt
    # It is told that somebody, that is itself, had changed the state already.
    bench.handle(IsrRefused(attempt=again.attempt, state=stored(isr=(A, B, C), revision=51)))
    assert bench.machine.isr == (A, B, C)


def test_a_change_under_way_is_void_when_the_state_is_a_newer_one() -> None:
    bench = Bench()
    bench.order(stored(isr=(A, B)))
    assert only_store(bench.report(C, 10)).isr == (A, B, C)
    bench.handle(Stopped())
    bench.order(stored(isr=(A, B), revision=60))
    assert bench.machine.maximal_isr == (A, B)
