"""Which store is believed: every way in which one can be empty, older or another (F41, F42)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.meta.keys import (
    CLUSTER,
    STAMP,
    ClusterRecord,
    TermRecord,
    encode,
    encode_counter,
    term_key,
)
from tailrace.meta.lineage import Standing, Witness, judge
from tailrace.meta.store import Entry, Snapshot

RECORD = ClusterRecord(cluster_id="c", store_id="s")
KNOWN = Witness(cluster_id="c", store_id="s", revision=500, controller_epoch=3, token="three")
TERMS = {1: ("one", 10), 2: ("two", 200), 3: ("three", 300)}


def store(
    record: ClusterRecord | None = RECORD,
    *,
    revision: int = 500,
    terms: dict[int, tuple[str, int]] = TERMS,
) -> Snapshot:
    entries = [] if record is None else [Entry(CLUSTER, encode(record), 1, 1, 0)]
    for epoch, (token, at) in terms.items():
        value = encode(TermRecord(controller_id=1, token=token))
        entries.append(Entry(term_key(epoch), value, at, at, 0))
    return Snapshot(revision, tuple(entries))


def stamped(stamp: int, *, revision: int, terms: dict[int, tuple[int, int]]) -> Snapshot:
    """A store with a stamp, and for each of its terms the stamp and the revision it began with."""
    entries = [Entry(CLUSTER, encode(RECORD), 1, 1, 0)]
    entries.append(Entry(STAMP, encode_counter(stamp), 1, 9, 0))
    for epoch, (began, at) in terms.items():
        value = encode(TermRecord(controller_id=1, token=f"{epoch} at {began}", stamp=began))
        entries.append(Entry(term_key(epoch), value, at, at, 0))
    return Snapshot(revision, tuple(entries))


def test_a_revision_that_came_far_does_not_hide_that_a_store_went_back() -> None:
    """Leases that ended in it have raised its revision above what the witness saw."""
    known = judge(None, stamped(7, revision=100, terms={1: (1, 2)})).witness
    assert known is not None
    assert known.stamp == 7
    older = stamped(6, revision=120, terms={1: (1, 2)})
    found = judge(known, older)
    assert (found.standing, "its stamp is 6, and was 7" in found.problem) == (Standing.OLDER, True)
    assert judge(known, stamped(7, revision=120, terms={1: (1, 2)})).standing.is_believed


def test_a_term_that_began_below_a_known_stamp_is_of_another_branch() -> None:
    known = judge(None, stamped(7, revision=100, terms={1: (1, 2)})).witness
    branch = stamped(9, revision=130, terms={1: (1, 2), 2: (7, 121)})
    assert judge(known, branch).standing is Standing.OLDER
    assert "began at stamp 7" in judge(known, branch).problem
    right = stamped(9, revision=130, terms={1: (1, 2), 2: (8, 121)})
    assert judge(known, right).standing is Standing.CONTINUES


def test_a_store_that_goes_on_is_believed_and_remembered() -> None:
    found = judge(KNOWN, store(revision=700, terms={**TERMS, 4: ("four", 600)}))
    assert found.standing is Standing.CONTINUES
    assert found.witness == replace(KNOWN, revision=700, controller_epoch=4, token="four")


def test_without_a_witness_the_first_store_is_believed() -> None:
    assert judge(None, store()).witness == KNOWN
    assert judge(None, store(None, terms={})).standing is Standing.UNFOUNDED


@pytest.mark.parametrize(
    ("seen", "standing", "says"),
    [
        (store(None, revision=1, terms={}), Standing.EMPTY, "is empty"),
        (store(replace(RECORD, cluster_id="x")), Standing.OTHER, "belongs to cluster x"),
        (store(replace(RECORD, store_id="t")), Standing.OTHER, "does not succeed"),
        (
            store(replace(RECORD, store_id="t", generation=1, former=("u",))),
            Standing.OTHER,
            "does not succeed",
        ),
        (store(replace(RECORD, recovering="by me")), Standing.RECOVERING, "by me"),
        (store(revision=499), Standing.OLDER, "revision 499"),
        (store(terms={1: TERMS[1]}), Standing.OLDER, "newest term is 1"),
        # It went back below term 3, and others have led since.
        (
            store(revision=900, terms={**TERMS, 3: ("other", 250), 4: ("four", 700)}),
            Standing.OLDER,
            "term 3 is not the one",
        ),
        # It went back within term 3, and another term has begun since.
        (
            store(revision=900, terms={**TERMS, 4: ("four", 400)}),
            Standing.OLDER,
            "term 4 began at revision 400",
        ),
        (
            store(revision=900, terms={1: TERMS[1], 4: ("four", 800)}),
            Standing.OLDER,
            "does not know term 3",
        ),
    ],
)
def test_a_store_that_is_not_the_known_one_is_not_believed(
    seen: Snapshot, standing: Standing, says: str
) -> None:
    found = judge(KNOWN, seen)
    assert (found.standing, found.standing.is_believed) == (standing, False)
    assert says in found.problem
    assert found.witness is None


def test_a_rebuilt_store_names_the_one_that_it_succeeds() -> None:
    rebuilt = replace(RECORD, store_id="t", generation=2, former=("r", "s"))
    found = judge(KNOWN, store(rebuilt, revision=7, terms={}))
    assert found.standing is Standing.REPLACED
    assert found.witness is not None
    assert found.witness.generation == 2


def test_a_rebuilt_store_succeeds_one_of_another_cluster_too() -> None:
    """A controller that met the empty store first has founded a cluster of its own in it."""
    beside = Witness(cluster_id="beside", store_id="b", revision=3, controller_epoch=1, token="x")
    rebuilt = replace(RECORD, store_id="t", generation=2, former=("b", "s"))
    assert judge(beside, store(rebuilt, revision=7)).standing is Standing.REPLACED
    assert judge(beside, store(RECORD, revision=7)).standing is Standing.OTHER


def test_a_record_that_cannot_be_read_is_not_believed() -> None:
    broken = Snapshot(900, (Entry(CLUSTER, b"{", 1, 1, 0),))
    assert judge(None, broken).standing is Standing.UNREADABLE


def test_a_witness_of_an_older_version_takes_the_name_that_the_store_has_since() -> None:
    assert judge(Witness(cluster_id="c"), store()).witness == KNOWN


def test_a_witness_from_before_the_oldest_term_is_judged_by_its_numbers() -> None:
    later = {epoch: (f"t{epoch}", 1_000 + epoch) for epoch in range(70, 134)}
    assert judge(KNOWN, store(revision=2_000, terms=later)).standing is Standing.CONTINUES


@given(st.data())
def test_no_branch_of_an_older_store_is_ever_believed(data: st.DataObject) -> None:
    """A history of terms, a witness somewhere in it, and a branch from before the witness."""
    gaps = data.draw(st.lists(st.integers(1, 50), min_size=2, max_size=8))
    starts = [sum(gaps[: at + 1]) for at in range(len(gaps))]
    terms = {at + 1: (f"a{at}", start) for at, start in enumerate(starts)}
    seen_at = data.draw(st.integers(starts[0], starts[-1] + 40))
    epoch = max(each for each, (_, start) in terms.items() if start <= seen_at)
    known = replace(KNOWN, revision=seen_at, controller_epoch=epoch, token=terms[epoch][0])
    back = data.draw(st.integers(0, seen_at - 1))
    branch = {each: told for each, told in terms.items() if told[1] <= back}
    # After it went back the first thing that others do is to elect a controller, and they do so
    # before they have written more than was lost.
    revision = data.draw(st.integers(back + 1, seen_at))
    branch[max(branch, default=0) + 1] = ("b", revision)
    for number in range(data.draw(st.integers(0, 12))):
        revision += data.draw(st.integers(1, 60))
        branch[max(branch, default=0) + 1] = (f"b{number}", revision)
    revision += data.draw(st.integers(0, 60))
    assert not judge(known, store(revision=revision, terms=branch)).standing.is_believed
