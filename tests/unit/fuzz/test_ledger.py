"""The ledger of the live fuzzer notices what a reader saw that was not stored, or did not see."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from fuzz.ledger import Fate, Ledger, Sight, Stored, table

VALUES = (b"good 1", b"good 2")


def kept() -> Ledger:
    """Three batches: a mutant of two records, a good one of two, a mutant of one."""
    ledger = Ledger()
    for kind in ("bent", "good", "bent", "bent"):
        ledger.sent(kind)
    ledger.accepted("t", 0, Stored(0, 1, "bent"))
    ledger.accepted("t", 0, Stored(2, 3, "good"), VALUES)
    ledger.accepted("t", 0, Stored(4, 4, "bent"))
    ledger.refused("bent", "CORRUPT_BATCH")
    return ledger


def sight(ledger: Ledger, records: Iterable[tuple[int, bytes | None]]) -> Sight:
    found = Sight()
    for offset, value in records:
        found.saw(offset, value, ledger.of("t", 0).good)
    return found


WHOLE = [(0, b"x"), (1, None), (2, VALUES[0]), (3, VALUES[1]), (4, b"y")]


def test_all_that_was_stored_and_nothing_else_is_good() -> None:
    ledger = kept()
    assert ledger.check("t", 0, sight(ledger, WHOLE)) == []
    ledger.all_read()
    totals: dict[str, Fate] = {}
    ledger.add_to(totals)
    assert (totals["bent"].sent, totals["bent"].accepted, totals["bent"].read) == (3, 2, 2)
    assert totals["bent"].refused == {"CORRUPT_BATCH": 1}
    assert [line.split()[:5] for line in table(totals)[1:]] == [
        ["bent", "3", "2", "2", "3"],
        ["good", "1", "1", "1", "2"],
        ["all", "4", "3", "3", "5"],
    ]


@pytest.mark.parametrize(
    ("records", "says"),
    [
        (WHOLE[:-1], "4 records of 5 were read"),
        ([*WHOLE, (5, b"z")], "6 records of 5 were read"),
        ([*WHOLE[:2], *WHOLE[3:]], "the good record at 2 was not read"),
        ([*WHOLE[:3], (3, b"other"), WHOLE[4]], "instead of b'good 2'"),
        ([WHOLE[1], WHOLE[0], *WHOLE[2:]], "offset 0 after 1"),
        ([*WHOLE[:3], WHOLE[2], *WHOLE[3:]], "offset 2 after 2"),
    ],
)
def test_what_a_reader_loses_invents_or_sees_twice_is_found(
    records: list[tuple[int, bytes | None]], says: str
) -> None:
    ledger = kept()
    assert says in " ".join(ledger.check("t", 0, sight(ledger, records)))


def test_a_compacted_log_may_lack_all_but_good_records() -> None:
    ledger = kept()
    some = [WHOLE[2], WHOLE[3]]
    assert ledger.check("t", 0, sight(ledger, some), is_compacted=True) == []
    assert ledger.check("t", 0, sight(ledger, some[:1]), is_compacted=True)


def test_offsets_that_nobody_or_two_answers_told_of() -> None:
    ledger = kept()
    ledger.accepted("t", 0, Stored(4, 6, "bent"))
    assert "where 5 was due" in ledger.of("t", 0).gaps()[0]
    ledger = kept()
    ledger.accepted("t", 0, Stored(6, 6, "bent"))
    assert "where 5 was due" in ledger.of("t", 0).gaps()[0]
    ledger.unanswered("t", 0, "bent")
    assert ledger.of("t", 0).gaps() == []


def test_other_bytes_have_other_figures() -> None:
    ledger = kept()
    changed = [(0, b"w"), *WHOLE[1:]]
    assert sight(ledger, WHOLE).figures != sight(ledger, changed).figures
