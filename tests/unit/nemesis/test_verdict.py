"""The judge of the nemesis finds what it is there to find."""

from __future__ import annotations

from nemesis.verdict import Acked, Seen, judge

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
