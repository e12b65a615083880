"""A follower's rules: given events, expect effects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.replica_bench import SETTINGS, A, B, Bench, kinds, stored
from tailrace.epochs import EpochEnd
from tailrace.model import DELETE_RECORDS, RETENTION, LeaderEpoch, LogStartCause, Offset
from tailrace.replication.events import (
    AdvanceLogStart,
    Appended,
    AppendFailed,
    AppendToLog,
    BecomeFollower,
    Effect,
    KeepRecords,
    LeaderReached,
    MoveHighWatermark,
    PushDiverged,
    Pushed,
    PushRefused,
    Report,
    StartOverAt,
    Synced,
    Truncated,
    TruncateLog,
)

RETRY_MS = SETTINGS.report_retry_ms


def report(
    log_end: int,
    *,
    restart: bool = False,
    last_epoch: int = 4,
    epoch: int = 5,
    high_watermark: int = 6,
) -> Report:
    return Report(
        leader=B,
        leader_epoch=LeaderEpoch(epoch),
        log_end=Offset(log_end),
        last_epoch=LeaderEpoch(last_epoch),
        restart=restart,
        high_watermark=high_watermark,
    )


def following() -> Bench:
    """A follower of B at offset 10 that has agreed with its leader."""
    bench = Bench().follow()
    assert bench.push(10, size=0) == []
    return bench


def take(bench: Bench, count: int = 1, *, epoch: int = 5) -> list[Effect]:
    """The shell has appended what was pushed."""
    bench.log_end += count
    return bench.handle(Appended(log_end=Offset(bench.log_end), last_epoch=LeaderEpoch(epoch)))


def diverge(
    bench: Bench,
    epoch: int,
    end: int,
    *,
    base_offset: int = 10,
    leader_epoch: int = 5,
    merged: bool = False,
    compacted: bool = True,
) -> list[Effect]:
    return bench.handle(
        PushDiverged(
            leader_epoch=LeaderEpoch(leader_epoch),
            base_offset=Offset(base_offset),
            leader_end=EpochEnd(LeaderEpoch(epoch), Offset(end)),
            epochs=bench.epochs.entries,
            merged=merged,
            compacted=compacted,
        )
    )


def refuse(
    bench: Bench,
    code: str,
    *,
    epoch: int = 5,
    log_start: int = 0,
    cause: LogStartCause | None = None,
) -> list[Effect]:
    return bench.handle(
        PushRefused(
            leader_epoch=LeaderEpoch(epoch),
            code=code,
            log_start=Offset(log_start),
            start_cause=cause,
        )
    )


def truncated(bench: Bench, log_end: int, last_epoch: int = 1) -> list[Effect]:
    bench.log_end, bench.last_epoch = log_end, last_epoch
    return bench.handle(
        Truncated(log_end=Offset(log_end), last_epoch=LeaderEpoch(last_epoch), log_start=Offset(0))
    )


# Asking and being pushed to.


def test_a_new_follower_asks_where_to_go_on() -> None:
    bench = Bench()
    effects = bench.order(stored(B))
    assert effects == [
        BecomeFollower(leader=B, epoch=LeaderEpoch(5)),
        report(10, restart=True),
    ]


def test_it_asks_again_over_a_new_link() -> None:
    bench = following()
    assert bench.handle(LeaderReached()) == [report(10, restart=True)]


def test_what_continues_the_log_is_appended_and_acknowledged() -> None:
    bench = following()
    assert bench.push(10) == [AppendToLog()]
    assert take(bench) == [report(11, last_epoch=5)]
    assert bench.push(11) == [AppendToLog()]


def test_without_an_answer_it_asks_again_with_growing_pauses() -> None:
    bench = Bench().follow()
    wait_ms = RETRY_MS
    for _ in range(6):
        assert bench.machine.next_tick_ms == bench.now_ms + wait_ms
        assert bench.wait(wait_ms - 1) == []
        assert bench.wait(1) == [report(10, restart=True)]
        wait_ms = min(2 * wait_ms, SETTINGS.report_retry_max_ms)
    bench.push(10, size=0)
    assert bench.machine.next_tick_ms is None
    assert bench.wait(10_000) == []


def test_a_gap_makes_it_ask_once() -> None:
    bench = following()
    assert bench.push(12) == [report(10, restart=True)]
    # What was under way behind it does not fit either.
    assert bench.push(13) == []
    assert bench.push(10) == [AppendToLog()]


def test_what_it_has_already_is_dropped_and_only_a_silence_makes_it_ask() -> None:
    bench = following()
    bench.push(10)
    take(bench, 5)
    assert bench.push(10) == []
    assert bench.push(12) == []
    # The next push fits: all is well.
    assert bench.push(15) == [AppendToLog()]
    take(bench)
    assert bench.machine.next_tick_ms is None
    assert bench.push(12) == []
    assert bench.wait(RETRY_MS) == [report(16, restart=True, last_epoch=5)]


def test_an_old_word_about_the_high_watermark_alone_is_no_reason_to_ask() -> None:
    bench = following()
    bench.push(10)
    take(bench)
    assert bench.push(10, size=0) == []
    assert bench.machine.next_tick_ms is None


def test_pushes_of_another_epoch_are_dropped() -> None:
    bench = following()
    assert bench.push(10, epoch=4) == []
    assert bench.push(10, epoch=6) == []


def test_a_failed_append_is_asked_for_again_after_a_pause() -> None:
    bench = following()
    bench.push(10)
    assert bench.handle(AppendFailed()) == []
    assert bench.push(11) == []
    assert bench.wait(RETRY_MS) == [report(10, restart=True)]


def test_one_that_learned_a_newer_epoch_never_reports_to_the_old_leader() -> None:
    bench = following()
    effects = bench.order(stored(3, epoch=6, revision=60))
    assert kinds(effects) == ["BecomeFollower", "Report"]
    assert bench.push(10) == []
    late = take(bench)
    for effect in [*effects, *late]:
        if isinstance(effect, Report):
            assert (effect.leader, effect.leader_epoch) == (3, 6)


# Truncation.


def test_f2_it_cuts_where_the_epochs_part_and_asks_again() -> None:
    bench = Bench()
    bench.order(replace(stored(B), unclean_epoch=5))
    assert diverge(bench, 1, 3) == [TruncateLog(offset=Offset(3), below_high_watermark=True)]
    # Nothing else happens before it is done.
    assert bench.push(10) == []
    assert diverge(bench, 1, 2) == []
    assert refuse(bench, "UNKNOWN_TOPIC") == []
    assert bench.handle(LeaderReached()) == []
    assert truncated(bench, 3) == [
        MoveHighWatermark(offset=Offset(3)),
        report(3, restart=True, last_epoch=1, high_watermark=3),
    ]


def test_f2_it_goes_down_epoch_by_epoch_until_both_agree() -> None:
    bench = Bench(high_watermark=0).follow()
    # The leader has epoch 3 where this log has 1 and 4: nothing from 4 on can be equal.
    assert diverge(bench, 3, 8) == [TruncateLog(offset=Offset(4), below_high_watermark=False)]
    bench.epochs.truncate_end(4)
    assert truncated(bench, 4) == [report(4, restart=True, last_epoch=1, high_watermark=0)]
    assert diverge(bench, 1, 2, base_offset=4) == [
        TruncateLog(offset=Offset(2), below_high_watermark=False)
    ]


def test_f1_the_high_watermark_cuts_nothing() -> None:
    bench = Bench(high_watermark=2)
    effects = bench.order(stored(B))
    assert not [each for each in effects if isinstance(each, TruncateLog)]
    assert bench.push(10, size=0, high_watermark=4) == [MoveHighWatermark(offset=Offset(4))]
    assert bench.machine.log_end == 10


def test_an_answer_to_an_older_question_is_not_obeyed() -> None:
    bench = Bench().follow()
    assert diverge(bench, 1, 3, base_offset=9) == []
    assert diverge(bench, 1, 3, leader_epoch=4) == []
    bench.push(10, size=0)
    # They have agreed since, and that holds for the whole epoch, also over a new link.
    assert diverge(bench, 1, 3) == []
    bench.handle(LeaderReached())
    assert diverge(bench, 1, 3) == []


def test_batches_that_were_merged_across_the_end_are_fetched_again() -> None:
    """The leader compacted what it has agreed on: it tells so at any time, asked or not."""
    for asks in (False, True):
        bench = Bench().follow()
        bench.push(10, size=0)
        if asks:
            bench.handle(LeaderReached())
        assert diverge(bench, 3, 4, base_offset=9, merged=True) == []
        assert diverge(bench, 3, 4, leader_epoch=4, merged=True) == []
        (cut,) = diverge(bench, 3, 4, merged=True)
        assert isinstance(cut, TruncateLog)
        assert cut.offset <= 4
        assert diverge(bench, 3, 4, merged=True) == [], "once is enough"


def test_nothing_is_merged_in_a_topic_that_is_not_compacted() -> None:
    """A leader that says so has another log: what is known to be committed is kept (F44)."""
    bench = Bench().follow()
    bench.push(10, size=0)
    (kept,) = diverge(bench, 3, 4, merged=True, compacted=False)
    assert isinstance(kept, KeepRecords)
    assert kept.conflicts


def test_an_answer_that_settles_nothing_is_waited_out() -> None:
    bench = Bench().follow()
    assert diverge(bench, -1, -1) == []
    assert diverge(bench, 7, 12) == []
    assert bench.wait(RETRY_MS) == [report(10, restart=True)]


def test_an_empty_log_beyond_the_leaders_end_starts_there() -> None:
    # It has led without writing anything: that epoch says nothing about records.
    bench = Bench(last_epoch=-1, log_start=10, high_watermark=10)
    bench.epochs.truncate_end(0)
    bench.epochs.assign(4, 10)
    bench.follow()
    assert diverge(bench, 5, 7) == [TruncateLog(offset=Offset(7), below_high_watermark=True)]


def test_below_the_leaders_start_it_starts_over() -> None:
    bench, cause = Bench().follow(), LogStartCause(RETENTION, 5, 20)
    assert refuse(bench, "OFFSET_OUT_OF_RANGE", log_start=20, cause=cause) == [
        StartOverAt(offset=Offset(20), cause=cause)
    ]
    bench.log_end, bench.last_epoch = 20, -1
    effects = bench.handle(
        Truncated(log_end=Offset(20), last_epoch=LeaderEpoch(-1), log_start=Offset(20))
    )
    assert effects == [
        MoveHighWatermark(offset=Offset(20)),
        report(20, restart=True, last_epoch=-1, high_watermark=20),
    ]
    # The same answer again is old news.
    assert refuse(bench, "OFFSET_OUT_OF_RANGE", log_start=20) == []


# Refusals.


def test_a_refusal_is_waited_out() -> None:
    bench = Bench().follow()
    for code in ("NOT_LEADER", "UNKNOWN_TOPIC", "FENCED_EPOCH", "STALE_BROKER"):
        assert refuse(bench, code) == []
    assert refuse(bench, "UNKNOWN_EPOCH", epoch=4) == []
    assert bench.machine.next_tick_ms is not None


def test_a_leader_that_has_heard_of_its_epoch_now_is_asked_at_once() -> None:
    bench = Bench().follow()
    refuse(bench, "UNKNOWN_EPOCH", epoch=4)
    assert refuse(bench, "UNKNOWN_EPOCH", epoch=5) == [report(10, restart=True)]


# The high watermark and the log start.


def test_high_watermark_is_the_leaders_but_not_beyond_the_own_end() -> None:
    bench = following()
    assert bench.push(10, high_watermark=12) == [
        MoveHighWatermark(offset=Offset(10)),
        AppendToLog(),
    ]
    assert take(bench, 3) == [
        MoveHighWatermark(offset=Offset(12)),
        report(13, last_epoch=5, high_watermark=12),
    ]
    # One that comes late does not lower it.
    bench.push(13, size=0, high_watermark=11)
    assert bench.machine.high_watermark == 12


def test_high_watermark_stays_until_both_agree() -> None:
    bench = Bench().follow()
    assert bench.push(12, size=0, high_watermark=10) == []
    assert bench.machine.high_watermark == 6


def test_it_gives_up_what_the_leader_gave_up() -> None:
    bench = following()
    push = Pushed(
        leader_epoch=LeaderEpoch(5),
        base_offset=Offset(10),
        size=0,
        high_watermark=Offset(6),
        log_start=Offset(5),
        start_cause=LogStartCause(DELETE_RECORDS, 4, 5),
    )
    assert bench.handle(push) == [
        AdvanceLogStart(offset=Offset(5), cause=LogStartCause(DELETE_RECORDS, 4, 5))
    ]
    assert bench.handle(push) == []


def test_f43_l3_a_log_start_without_a_cause_is_not_followed() -> None:
    """Once it cost every replica its good copy of what one of them had lost."""
    bench = following()
    push = Pushed(
        leader_epoch=LeaderEpoch(5),
        base_offset=Offset(10),
        size=0,
        high_watermark=Offset(6),
        log_start=Offset(5),
    )
    (kept,) = bench.handle(push)
    assert isinstance(kept, KeepRecords)
    assert not kept.conflicts
    assert bench.handle(push) == []
    # A cause that reaches less far explains nothing; one that reaches as far does, also later.
    short = replace(push, start_cause=LogStartCause(RETENTION, 5, 4))
    assert bench.handle(short) == []
    cause = LogStartCause(RETENTION, 5, 5)
    assert bench.handle(replace(push, start_cause=cause)) == [
        AdvanceLogStart(offset=Offset(5), cause=cause)
    ]


def test_f43_l3_it_does_not_start_over_without_a_cause() -> None:
    bench = Bench().follow()
    (kept,) = refuse(bench, "OFFSET_OUT_OF_RANGE", log_start=20)
    assert isinstance(kept, KeepRecords)
    assert kept.conflicts
    assert "begins at 20 without a cause" in kept.why
    # Who holds nothing gives nothing up.
    bench = Bench(last_epoch=-1, log_end=0, high_watermark=0)
    bench.epochs.truncate_end(0)
    bench.follow()
    assert refuse(bench, "OFFSET_OUT_OF_RANGE", log_start=20) == [StartOverAt(offset=Offset(20))]


def test_f44_l4_it_never_cuts_below_a_known_high_watermark() -> None:
    bench = Bench().follow()
    (kept,) = diverge(bench, 1, 3)
    assert isinstance(kept, KeepRecords)
    assert kept.conflicts
    assert "6 is known to be committed" in kept.why
    assert bench.machine.high_watermark == 6
    # It goes on asking, and says it once.
    assert diverge(bench, 1, 3) == []
    # What was never committed goes as before.
    assert diverge(bench, 4, 8) == [TruncateLog(offset=Offset(8), below_high_watermark=False)]


@pytest.mark.parametrize(("unclean_epoch", "cuts"), [(0, False), (4, False), (5, True)])
def test_f44_l4_an_unclean_election_after_its_last_record_explains_a_cut(
    unclean_epoch: int, cuts: bool
) -> None:
    bench = Bench()
    bench.order(replace(stored(B), unclean_epoch=unclean_epoch))
    (effect,) = diverge(bench, 1, 3)
    assert isinstance(effect, TruncateLog) is cuts


# Topics with flush=ack.


def test_with_flush_ack_it_acknowledges_what_it_synced() -> None:
    bench = Bench(syncs_first=True).follow()
    bench.push(10, size=0)
    bench.push(10)
    assert take(bench, 2) == []
    assert bench.handle(Synced(log_end=Offset(11))) == [report(11, last_epoch=5)]
    assert bench.handle(Synced(log_end=Offset(11))) == []
    assert bench.handle(Synced(log_end=Offset(14))) == [report(12, last_epoch=5)]


def test_with_flush_ack_it_asks_only_when_all_is_synced() -> None:
    bench = Bench(syncs_first=True).follow()
    bench.push(10, size=0)
    bench.push(10)
    take(bench)
    assert bench.handle(LeaderReached()) == []
    assert bench.handle(Synced(log_end=Offset(11))) == [report(11, restart=True, last_epoch=5)]


def test_flush_ack_can_be_switched_on() -> None:
    bench = following()
    bench.syncs_first = True
    assert bench.order(stored(B)) == []
    bench.push(10)
    assert take(bench) == []
    assert bench.handle(Synced(log_end=Offset(11))) == [report(11, last_epoch=5)]


def test_syncs_mean_nothing_without_flush_ack() -> None:
    bench = following()
    assert bench.handle(Synced(log_end=Offset(10))) == []


def test_the_leader_is_another_broker() -> None:
    assert following().machine.leader != A
