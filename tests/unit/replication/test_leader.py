"""The leader's rules: given events, expect effects."""

from __future__ import annotations

import pytest

from simulation.replica_bench import LIVES, SETTINGS, A, B, Bench, C, kinds, only_store, stored
from tailrace.epochs import EpochEnd
from tailrace.errors import InvariantViolation
from tailrace.model import BrokerId, LeaderEpoch, Offset
from tailrace.replication.events import (
    AddedReplica,
    AllowFollower,
    Effect,
    FailPending,
    FollowerLost,
    IsrRefused,
    IsrStored,
    IsrUnknown,
    MoveHighWatermark,
    RefuseFollower,
    StoreIsr,
    Synced,
    TellDiverged,
)

LAG_MS = SETTINGS.lag_max_ms
RETRY_MS = SETTINGS.isr_retry_ms
BAR_MS = SETTINGS.isr_retry_max_ms


def moved(offset: int) -> MoveHighWatermark:
    return MoveHighWatermark(offset=Offset(offset))


def leading(**changes: object) -> Bench:
    """A leader in epoch 5 whose followers are both at its end."""
    bench = Bench().lead(**changes)
    bench.report(B, 10)
    bench.report(C, 10)
    return bench


def without_c(bench: Bench) -> Bench:
    """The controller took C out of the ISR, and time has passed since."""
    bench.handle(FollowerLost(broker_id=C, broker_epoch=LIVES[C]))
    bench.order(stored(isr=(A, B), revision=60))
    bench.wait(BAR_MS)
    return bench


def store(bench: Bench, effects: list[Effect], revision: int) -> list[Effect]:
    return bench.handle(IsrStored(attempt=only_store(effects).attempt, revision=revision))


def test_one_that_the_controller_took_out_joins_by_what_it_says_after_that() -> None:
    """Its disk may have lost what it reported before, in the same life and the same epoch."""
    bench = leading()
    (invitation,) = bench.order(stored(isr=(A, B), revision=60))
    assert isinstance(invitation, RefuseFollower)
    assert (invitation.broker_id, invitation.broker_epoch) == (C, LIVES[C])
    assert bench.wait(BAR_MS) == []
    # It was under way when C was taken out.
    assert bench.report(C, 10) == []
    assert kinds(bench.report(C, 7, restart=True)) == ["AllowFollower"]
    assert bench.wait(BAR_MS) == []
    assert only_store(bench.report(C, 10)).isr == (A, B, C)


# The high watermark.


def test_high_watermark_is_the_smallest_end_of_the_isr() -> None:
    bench = Bench().lead()
    assert bench.machine.high_watermark == 6
    assert moved(8) not in bench.report(B, 10)
    assert bench.report(C, 8)[-1] == moved(8)
    assert bench.report(C, 10) == [moved(10)]


def test_high_watermark_counts_the_leaders_own_end() -> None:
    bench = Bench(replicas=(A,), min_insync=1).lead(isr=(A,))
    assert bench.machine.high_watermark == 10
    assert bench.append() == [moved(11)]


def test_high_watermark_never_goes_back() -> None:
    bench = leading()
    assert bench.machine.high_watermark == 10
    bench.append()
    bench.report(B, 7, life=LIVES[B] + 1)
    assert bench.machine.high_watermark == 10


def test_a_new_leader_exposes_nothing_beyond_what_it_knew() -> None:
    bench = Bench()
    effects = bench.order(stored())
    assert kinds(effects) == ["BecomeLeader"]
    assert bench.machine.high_watermark == 6


def test_high_watermark_rests_below_min_insync() -> None:
    bench = leading()
    effects = bench.order(stored(isr=(A,), elr=(B, C), revision=60))
    assert kinds(effects) == ["RefuseFollower", "RefuseFollower", "FailPending"]
    assert effects[-1] == FailPending(code="NOT_ENOUGH_REPLICAS_AFTER_APPEND", fetches=False)
    assert bench.append() == []
    assert bench.machine.high_watermark == 10


def test_high_watermark_rests_while_a_smaller_isr_is_on_its_way() -> None:
    bench = leading()
    bench.append()
    effects = bench.wait(LAG_MS + 1)
    assert only_store(effects).isr == (A,)
    assert bench.report(B, 11) == []
    assert bench.report(C, 11) == []
    assert bench.machine.high_watermark == 10


def test_high_watermark_rests_as_long_as_the_store_names_eligible_leaders() -> None:
    bench = Bench(min_insync=3).lead(isr=(A, B), elr=(C,))
    bench.report(B, 10)
    # The setting is lowered: the ISR is large enough now, and C still is eligible.
    bench.min_insync = 2
    effects = bench.order(stored(isr=(A, B), elr=(C,)))
    change = only_store(effects)
    assert (change.isr, change.elr, change.added) == ((A, B), (), ())
    assert bench.machine.high_watermark == 6
    assert store(bench, effects, 51) == [moved(10)]


def test_high_watermark_waits_for_the_maximal_isr() -> None:
    bench = without_c(leading())
    effects = bench.report(C, 10, restart=True)
    assert only_store(effects).isr == (A, B, C)
    assert bench.machine.maximal_isr == (A, B, C)
    bench.append()
    bench.handle(FollowerLost(broker_id=C, broker_epoch=LIVES[C]))
    assert bench.report(B, 11) == []
    # It cannot join any more: the state was written by another.
    refused = IsrRefused(attempt=only_store(effects).attempt, state=stored(isr=(A, B), revision=61))
    assert bench.handle(refused) == [moved(11)]


def test_high_watermark_waits_for_one_who_leaves_until_it_has_left() -> None:
    bench = leading()
    bench.append()
    bench.report(B, 11)
    effects = bench.wait(LAG_MS + 1)
    assert only_store(effects).isr == (A, B)
    assert bench.machine.high_watermark == 10
    assert store(bench, effects, 51) == [moved(11)]


def test_high_watermark_waits_for_a_follower_that_is_nearly_in_sync() -> None:
    bench = without_c(leading())
    bench.append()
    bench.report(B, 11)
    assert bench.machine.high_watermark == 11
    bench.report(C, 11, restart=True)
    bench.handle(IsrRefused(attempt=1, state=stored(isr=(A, B), revision=61)))
    bench.append()
    assert bench.report(B, 12) == []
    assert bench.report(C, 12)[0] == moved(12)


def test_high_watermark_waits_for_a_joiner_only_as_long_as_it_does_not_lag() -> None:
    bench = Bench(min_insync=1).lead(isr=(A,))
    assert only_store(bench.report(B, 10)).isr == (A, B)
    # C could join too, but one change is under way already, and the store takes its time.
    bench.report(C, 10)
    bench.append()
    assert bench.report(B, 11) == []
    assert bench.machine.next_tick_ms == bench.now_ms + LAG_MS + 1
    assert bench.wait(LAG_MS) == []
    assert bench.wait(1) == [moved(11)]
    assert bench.machine.next_tick_ms is None


def test_high_watermark_stops_waiting_when_the_nearly_in_sync_one_lags() -> None:
    bench = without_c(leading())
    change = only_store(bench.report(C, 10, restart=True))
    bench.handle(IsrRefused(attempt=change.attempt, state=stored(isr=(A, B), revision=60)))
    bench.wait(BAR_MS)
    bench.handle(IsrRefused(attempt=2, state=stored(isr=(A, B), revision=60)))
    bench.append()
    assert bench.report(B, 11) == [moved(11)]
    assert bench.wait(LAG_MS) == []


# Reports.


def test_the_first_report_lets_a_follower_be_pushed_to() -> None:
    bench = Bench().lead()
    allow = AllowFollower(broker_id=B, broker_epoch=LIVES[B], from_offset=Offset(7))
    assert bench.report(B, 7) == [allow]
    assert bench.report(B, 8) == []
    again = bench.report(B, 8, restart=True)
    assert again == [AllowFollower(broker_id=B, broker_epoch=LIVES[B], from_offset=Offset(8))]


def test_a_follower_that_was_lost_must_be_allowed_anew() -> None:
    bench = Bench().lead()
    bench.report(B, 7)
    bench.handle(FollowerLost(broker_id=B, broker_epoch=LIVES[B]))
    assert bench.machine.isr == (A, B, C)
    assert not bench.machine.followers[0].connected
    assert kinds(bench.report(B, 8)) == ["AllowFollower"]


def test_the_loss_of_a_former_link_means_nothing() -> None:
    bench = Bench().lead()
    bench.report(B, 7)
    assert bench.handle(FollowerLost(broker_id=B, broker_epoch=1)) == []
    assert bench.handle(FollowerLost(broker_id=BrokerId(9), broker_epoch=1)) == []
    assert bench.machine.followers[0].connected


def test_f9_a_report_of_another_life_resets_what_is_known() -> None:
    bench = leading()
    bench.append()
    bench.report(B, 11)
    bench.report(B, 4, life=LIVES[B] + 1)
    assert bench.machine.followers[0].log_end == 4
    # What the former life said late is refused, and changes nothing.
    late = bench.report(B, 11)
    assert [each.code for each in late if isinstance(each, RefuseFollower)] == ["STALE_BROKER"]
    assert bench.machine.followers[0].log_end == 4


def test_only_replicas_are_answered() -> None:
    bench = Bench().lead()
    for stranger in (A, BrokerId(9)):
        (answer,) = bench.report(stranger, 7)
        assert isinstance(answer, RefuseFollower)
        assert answer.code == "INVALID_REQUEST"


def test_a_follower_with_records_of_an_epoch_that_is_not_here_is_told_where_to_cut() -> None:
    bench = Bench().lead()
    expected = TellDiverged(
        broker_id=B,
        broker_epoch=LIVES[B],
        base_offset=Offset(9),
        leader_end=EpochEnd(LeaderEpoch(1), Offset(4)),
    )
    assert bench.report(B, 9, last_epoch=3) == [expected]
    assert bench.machine.followers[0].log_end == -1


def test_a_follower_that_is_longer_in_an_epoch_is_told_where_it_ended() -> None:
    bench = Bench().lead()
    (answer,) = bench.report(B, 12, last_epoch=4)
    assert isinstance(answer, TellDiverged)
    assert answer.leader_end == (4, 10)


def test_an_empty_follower_beyond_the_end_is_told_the_end() -> None:
    bench = Bench().lead()
    (answer,) = bench.report(B, 12, last_epoch=-1)
    assert isinstance(answer, TellDiverged)
    assert answer.leader_end == (5, 10)
    assert kinds(bench.report(B, 0, last_epoch=-1))[0] == "AllowFollower"


def test_a_follower_below_the_log_start_is_told_so() -> None:
    bench = Bench(log_start=3).lead()
    (answer,) = bench.report(B, 2, last_epoch=1)
    assert isinstance(answer, RefuseFollower)
    assert (answer.code, answer.log_start) == ("OFFSET_OUT_OF_RANGE", 3)


def test_nobody_can_have_records_of_the_future() -> None:
    bench = Bench().lead()
    (answer,) = bench.report(B, 9, last_epoch=8)
    assert isinstance(answer, RefuseFollower)
    assert answer.code == "INVALID_REQUEST"


# Joining.


def test_a_follower_joins_when_it_reached_high_watermark_and_epoch_start() -> None:
    bench = without_c(leading())
    effects = bench.report(C, 10, restart=True)
    assert only_store(effects) == StoreIsr(
        attempt=1,
        isr=(A, B, C),
        elr=(),
        expected_revision=60,
        added=(AddedReplica(C, LIVES[C]),),
    )
    store(bench, effects, 61)
    assert (bench.machine.isr, bench.machine.revision) == ((A, B, C), 61)


def test_nobody_joins_below_the_high_watermark() -> None:
    bench = leading()
    bench.append(2)
    bench.report(B, 12)
    bench.report(C, 12)
    without_c(bench)
    assert kinds(bench.report(C, 11, restart=True)) == ["AllowFollower"]


def test_nobody_joins_below_the_start_of_the_epoch() -> None:
    # The high watermark of a new leader may be too low: 6 here, and all of 10 may be committed.
    bench = Bench().lead(isr=(A, B))
    assert kinds(bench.report(C, 8)) == ["AllowFollower"]
    assert only_store(bench.report(C, 10)).added == (AddedReplica(C, LIVES[C]),)


def test_nobody_joins_who_is_not_pushed_to() -> None:
    bench = without_c(leading())
    assert bench.wait(LAG_MS) == []


def test_a_lagging_follower_does_not_join_although_it_is_at_the_high_watermark() -> None:
    # Otherwise it would join and leave in turns, as fast as the store can write.
    bench = Bench().lead(isr=(A, B))
    bench.append(5)
    bench.report(C, 10)
    assert only_store(bench.report(C, 15)).isr == (A, B, C)
    bench = Bench().lead(isr=(A, B))
    bench.append(5)
    assert kinds(bench.report(C, 12)) == ["AllowFollower"]


def test_one_change_is_under_way_at_a_time() -> None:
    bench = Bench(min_insync=1).lead(isr=(A,))
    first = bench.report(B, 10)
    assert only_store(first).isr == (A, B)
    assert kinds(bench.report(C, 10)) == ["AllowFollower"]
    assert only_store(store(bench, first, 51)).isr == (A, B, C)


def test_f10_a_follower_that_the_store_refused_is_left_alone_for_a_while() -> None:
    bench = without_c(leading())
    effects = bench.report(C, 10, restart=True)
    refused = IsrRefused(attempt=only_store(effects).attempt, state=stored(isr=(A, B), revision=60))
    assert bench.handle(refused) == []
    assert bench.machine.maximal_isr == (A, B)
    # Nothing waits for it meanwhile.
    bench.append()
    assert bench.report(B, 11) == [moved(11)]
    assert bench.report(C, 11) == []
    assert bench.machine.next_tick_ms == bench.now_ms + RETRY_MS
    bench.wait(RETRY_MS)
    assert bench.machine.next_tick_ms == bench.now_ms - RETRY_MS + BAR_MS
    assert only_store(bench.wait(BAR_MS)).isr == (A, B, C)


def test_a_refusal_of_a_former_life_does_not_bar_the_next() -> None:
    bench = without_c(leading())
    effects = bench.report(C, 10, restart=True)
    bench.report(C, 10, life=LIVES[C] + 1, restart=True)
    refused = IsrRefused(attempt=only_store(effects).attempt, state=stored(isr=(A, B), revision=60))
    bench.handle(refused)
    assert only_store(bench.wait(RETRY_MS)).added == (AddedReplica(C, LIVES[C] + 1),)


def test_whom_the_controller_took_out_nothing_waits_for() -> None:
    # The order comes before the link is known to be broken.
    bench = leading()
    assert kinds(bench.order(stored(isr=(A, B), revision=60))) == ["RefuseFollower"]
    bench.append()
    assert bench.report(B, 11) == [moved(11)]


def test_an_idle_follower_that_the_controller_took_out_joins_after_a_while() -> None:
    bench = leading()
    bench.order(stored(isr=(A, B), revision=60))
    bench.report(C, 10, restart=True)
    assert bench.machine.next_tick_ms == bench.now_ms + BAR_MS
    assert only_store(bench.wait(BAR_MS)).isr == (A, B, C)


# Leaving.


def test_a_follower_leaves_when_it_was_not_caught_up_for_too_long() -> None:
    bench = leading()
    bench.append()
    bench.report(B, 11)
    assert bench.machine.next_tick_ms == bench.now_ms + LAG_MS + 1
    assert bench.wait(LAG_MS) == []
    change = only_store(bench.wait(1))
    assert (change.isr, change.elr, change.added) == ((A, B), (), ())


def test_an_idle_follower_at_the_end_never_lags() -> None:
    bench = leading()
    assert bench.machine.next_tick_ms is None
    assert bench.wait(10 * LAG_MS) == []
    # It was caught up until the append, however long ago it reported.
    bench.append()
    assert bench.wait(LAG_MS) == []


def test_a_follower_that_never_reported_lags() -> None:
    bench = Bench().lead()
    bench.report(B, 10)
    assert only_store(bench.wait(LAG_MS + 1)).isr == (A, B)


def test_a_follower_under_load_keeps_up_without_ever_being_at_the_end() -> None:
    bench = leading()
    for step in range(40):
        bench.append(10)
        bench.now_ms += LAG_MS // 10
        for follower in (B, C):
            # Three appends behind, always.
            assert not [
                each
                for each in bench.report(follower, max(bench.log_end - 30, 10))
                if isinstance(each, StoreIsr)
            ]
        assert bench.wait(0) == [], step


def test_a_follower_that_moves_but_falls_behind_leaves() -> None:
    bench = leading()
    bench.append(1_000)
    effects: list[Effect] = []
    for end in range(11, 40):
        bench.report(B, bench.log_end)
        bench.append(10)
        bench.report(C, end)
        effects = bench.wait(LAG_MS // 10)
        if effects:
            break
    assert only_store(effects).isr == (A, B)


def test_one_that_came_back_without_committed_records_leaves_at_once() -> None:
    bench = leading()
    change = only_store(bench.report(C, 7, life=LIVES[C] + 1))
    assert (change.isr, change.elr) == ((A, B), ())


def test_one_without_committed_records_is_never_eligible() -> None:
    bench = Bench(replicas=(A, B), min_insync=2).lead(isr=(A, B))
    bench.report(B, 10)
    change = only_store(bench.report(B, 7, life=LIVES[B] + 1))
    assert (change.isr, change.elr) == ((A,), ())


def test_an_eligible_leader_without_committed_records_is_struck_off() -> None:
    bench = Bench(high_watermark=10).lead(isr=(A,), elr=(B, C))
    change = only_store(bench.report(B, 7))
    assert (change.isr, change.elr) == ((A,), (C,))


def test_f12_who_leaves_an_isr_that_falls_below_min_insync_becomes_eligible() -> None:
    bench = Bench().lead(isr=(A, B))
    bench.report(B, 10)
    bench.append()
    effects = bench.wait(LAG_MS + 1)
    change = only_store(effects)
    assert (change.isr, change.elr) == ((A,), (B,))
    assert store(bench, effects, 51) == [
        FailPending(code="NOT_ENOUGH_REPLICAS_AFTER_APPEND", fetches=False)
    ]


def test_eligible_leaders_are_cleared_when_the_isr_is_large_enough() -> None:
    bench = Bench().lead(isr=(A,), elr=(B, C))
    change = only_store(bench.report(B, 10))
    assert (change.isr, change.elr) == ((A, B), ())


def test_eligible_leaders_stay_while_the_isr_is_too_small() -> None:
    bench = Bench(min_insync=3).lead(isr=(A,), elr=(B, C))
    change = only_store(bench.report(B, 10))
    assert (change.isr, change.elr) == ((A, B), (C,))


def test_one_that_is_no_replica_any_more_leaves() -> None:
    bench = leading()
    bench.replicas = (A, B)
    effects = bench.order(stored())
    assert only_store(effects).isr == (A, B)
    bench.append()
    assert bench.report(B, 11) == []
    assert store(bench, effects, 51) == [moved(11)]


# The store's answers.


def test_f11_a_state_that_another_wrote_replaces_the_change() -> None:
    bench = leading()
    bench.append()
    bench.report(B, 11)
    change = only_store(bench.wait(LAG_MS + 1))
    refused = IsrRefused(attempt=change.attempt, state=stored(isr=(A, C), revision=70))
    effects = bench.handle(refused)
    assert bench.machine.isr == (A, C)
    assert bench.machine.revision == 70
    # What is due in the new state is proposed at once.
    assert only_store(effects).expected_revision == 70


def test_f18_silence_of_the_store_changes_nothing_but_is_asked_about_again() -> None:
    bench = without_c(leading())
    change = only_store(bench.report(C, 10, restart=True))
    for attempt in range(1, 8):
        assert bench.handle(IsrUnknown(attempt=attempt)) == []
        assert bench.machine.maximal_isr == (A, B, C)
        wait_ms = min(RETRY_MS * 2 ** (attempt - 1), SETTINGS.isr_retry_max_ms)
        assert bench.machine.next_tick_ms == bench.now_ms + wait_ms
        assert bench.wait(wait_ms - 1) == []
        again = only_store(bench.wait(1))
        assert (again.isr, again.added) == (change.isr, change.added)
        assert again.attempt == attempt + 1
    # It had been done: the state says so.
    done = IsrRefused(attempt=8, state=stored(isr=(A, B, C), revision=61))
    assert bench.handle(done) == []
    assert bench.machine.isr == bench.machine.maximal_isr == (A, B, C)


def test_answers_to_an_earlier_change_mean_nothing() -> None:
    bench = leading()
    bench.append()
    change = only_store(bench.wait(LAG_MS + 1))
    bench.order(stored(isr=(A, B, C), revision=60))
    assert bench.handle(IsrStored(attempt=change.attempt, revision=55)) == []
    assert bench.handle(IsrUnknown(attempt=change.attempt)) == []
    late = IsrRefused(attempt=change.attempt, state=stored(revision=60))
    assert bench.handle(late) == []
    assert bench.machine.isr == (A, B, C)
    assert bench.machine.revision == 60


def test_answers_to_a_change_of_a_former_leadership_mean_nothing() -> None:
    bench = leading(isr=(A, B, C))
    bench.append()
    change = only_store(bench.wait(LAG_MS + 1))
    bench.lead(epoch=6, revision=60)
    bench.report(B, 11)
    own = only_store(bench.wait(LAG_MS + 1))
    assert own.attempt > change.attempt
    late = IsrRefused(attempt=change.attempt, state=stored(epoch=6, revision=60))
    assert bench.handle(late) == []
    assert bench.machine.maximal_isr == (A, B, C)


# Topics with flush=ack.


def test_with_flush_ack_the_leader_counts_what_it_synced() -> None:
    bench = Bench(syncs_first=True).lead()
    bench.report(B, 10)
    bench.report(C, 10)
    bench.append()
    bench.report(B, 11)
    assert bench.report(C, 11) == []
    assert bench.handle(Synced(log_end=Offset(11))) == [moved(11)]


def test_flush_ack_can_be_switched_on() -> None:
    bench = leading()
    bench.syncs_first = True
    bench.order(stored())
    bench.append()
    bench.report(B, 11)
    assert bench.report(C, 11) == []


# What cannot be.


def test_the_log_of_a_leader_does_not_shrink() -> None:
    bench = Bench().lead()
    with pytest.raises(InvariantViolation):
        bench.append(-1)


def test_a_leader_outside_its_isr_is_a_bug() -> None:
    with pytest.raises(InvariantViolation, match="the leader is in its ISR"):
        Bench().lead(isr=(B, C))


def test_progress_is_shown() -> None:
    bench = leading()
    first, second = bench.machine.followers
    assert (first.broker_id, first.broker_epoch, first.log_end) == (B, LIVES[B], 10)
    assert (second.broker_id, second.in_sync, second.connected) == (C, True, True)
    assert second.caught_up_ms == bench.now_ms


def test_what_a_leader_does_not_have_is_gone_once_every_replica_was_heard() -> None:
    """Until then its log may be an older copy than theirs."""
    bench = Bench().lead()
    assert not bench.machine.is_borne_out(now_ms=bench.now_ms)
    bench.report(B, 10)
    assert not bench.machine.is_borne_out(now_ms=bench.now_ms)
    bench.report(C, 10)
    assert bench.machine.is_borne_out(now_ms=bench.now_ms)


def test_a_replica_that_says_nothing_is_not_waited_for_for_ever() -> None:
    bench = Bench().lead()
    bench.report(B, 10)
    bench.wait(LAG_MS - 1)
    assert not bench.machine.is_borne_out(now_ms=bench.now_ms)
    bench.wait(1)
    assert bench.machine.is_borne_out(now_ms=bench.now_ms)
