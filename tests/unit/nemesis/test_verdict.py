"""The judge of the nemesis finds what it is there to find."""

from __future__ import annotations

from nemesis.verdict import Acked, Seen, judge, judge_group

KEY, OTHER = b"k", b"o"
GOOD = [Seen(0, KEY, 0), Seen(1, OTHER, 0), Seen(2, KEY, 1)]
ACKED = {(KEY, 0): Acked(0, 0), (OTHER, 0): Acked(0, 1), (KEY, 1): Acked(0, 2)}
SENT = {KEY: 2, OTHER: 1}


def test_a_good_run_is_good() -> None:
    verdict = judge(ACKED, SENT, {0: GOOD}, {0: GOOD[:2]})
    assert verdict.is_good
    assert verdict.lines() == []


def test_what_was_acknowledged_and_is_gone_is_lost() -> None:
    verdict = judge(ACKED, SENT, {0: GOOD[:2]}, {})
    assert len(verdict.lost) == 1
    assert not verdict.is_good


def test_what_was_not_acknowledged_may_be_missing_or_there() -> None:
    acked = {(KEY, 0): Acked(0, 0)}
    assert judge(acked, {KEY: 9, OTHER: 9}, {0: GOOD}, {}).is_good
    assert judge(acked, {KEY: 9, OTHER: 9}, {0: GOOD[:1]}, {}).is_good


def test_another_offset_than_the_one_told() -> None:
    for told in (Acked(0, 1), Acked(1, 0)):
        assert judge({(KEY, 0): told}, SENT, {0: GOOD}, {}).moved
    assert judge({(KEY, 0): Acked(0, -1)}, SENT, {0: GOOD}, {}).is_good


def test_twice_disordered_unsent_gaps() -> None:
    assert judge({}, SENT, {0: [*GOOD, Seen(3, KEY, 1)]}, {}).twice
    assert judge({}, {KEY: 3}, {0: [Seen(0, KEY, 2), Seen(1, KEY, 1)]}, {}).disordered
    assert judge({}, {KEY: 1}, {0: [Seen(0, KEY, 1)]}, {}).unsent
    assert judge({}, SENT, {0: [GOOD[0], GOOD[2]]}, {}).gaps


def test_a_live_reader_saw_what_is_no_longer_there() -> None:
    assert judge({}, SENT, {0: GOOD}, {0: [Seen(0, KEY, 1)]}).live
    assert judge({}, SENT, {0: GOOD[:1]}, {0: GOOD}).live
    assert judge({}, SENT, {0: GOOD}, {0: GOOD[1:]}).live


def test_records_in_another_order_than_they_were_sent_in() -> None:
    swapped = [Seen(0, KEY, 1), Seen(1, OTHER, 0), Seen(2, KEY, 0)]
    verdict = judge({}, SENT, {0: swapped}, {})
    assert (len(verdict.disordered), verdict.twice, verdict.lost) == (1, [], [])


def test_a_group_that_got_through_everything_once_or_more_is_good() -> None:
    assert judge_group({0: 3}, {0: 3}, {0: 3}, {0: [0, 1, 1, 2]}) == []


def test_a_group_that_passed_records_over_went_back_or_stands_still() -> None:
    assert (
        "1 records were passed over, the first at 1"
        in judge_group({0: 3}, {0: 3}, {0: 3}, {0: [0, 2]})[0]
    )
    back = judge_group({0: 3}, {0: 2}, {0: 3}, {0: [0, 1, 2]})
    assert ["back at 2, told 3" in each for each in back] == [True, False]
    assert "stands at 2 of 3" in judge_group({0: 3}, {0: 2}, {0: 2}, {0: [0, 1]})[0]
    assert "beyond the end 3" in judge_group({0: 3}, {0: 4}, {}, {0: [0, 1, 2]})[0]
