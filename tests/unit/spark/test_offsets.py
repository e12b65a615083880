"""Plans hold exactly what lies between two positions, once; offsets survive their JSON."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_spark.offsets import (
    NO_EPOCH,
    Loss,
    Offsets,
    Plan,
    Position,
    ReadRange,
    TopicOffsets,
    WrongCheckpoint,
    advance,
    differences,
    plan,
    split,
)

NAMES = st.sampled_from(["orders", "a", "z-9"])
POSITIONS = st.builds(Position, st.integers(0, 1_000), st.integers(-1, 5))
TOPICS = st.dictionaries(
    NAMES,
    st.builds(
        TopicOffsets,
        st.sampled_from(["id1", "id2"]),
        st.dictionaries(st.integers(0, 12), POSITIONS, max_size=6),
    ),
)
OFFSETS = st.builds(Offsets, TOPICS, TOPICS, st.booleans())


def _offsets(**positions: dict[int, int]) -> Offsets:
    return Offsets(
        {
            name: TopicOffsets(f"id-{name}", {n: Position(at) for n, at in each.items()})
            for name, each in positions.items()
        }
    )


def _grown(start: Offsets, growth: list[int]) -> Offsets:
    numbers = iter(growth * 100)
    return Offsets(
        {
            name: TopicOffsets(
                each.topic_id,
                {n: Position(p.offset + next(numbers), p.epoch) for n, p in each.positions.items()},
            )
            for name, each in start.topics.items()
        }
    )


def _rows(found: Plan) -> Counter[tuple[str, int, int]]:
    return Counter(
        (each.topic, each.partition, offset)
        for each in found.ranges
        for offset in range(each.start, each.end)
    )


GROWTH = st.lists(st.integers(0, 40), min_size=1, max_size=8)
STARTS = TOPICS.map(Offsets)


@given(OFFSETS)
def test_offsets_survive_their_json(offsets: Offsets) -> None:
    stored = json.loads(json.dumps(offsets.to_json()))
    assert Offsets.from_json(stored) == offsets
    assert pickle.loads(pickle.dumps(offsets)) == offsets


@given(STARTS, GROWTH, st.integers(0, 30))
def test_a_plan_holds_every_row_between_once(start: Offsets, growth: list[int], many: int) -> None:
    end = _grown(start, growth)
    found = plan(start, end, min_partitions=many)
    expected = Counter(
        (name, number, offset)
        for name, number, position in end.each()
        for offset in range(start.topics[name].positions[number].offset, position.offset)
    )
    assert _rows(found) == expected
    assert found.losses == ()
    assert all(each.size > 0 for each in found.ranges)
    if sum(expected.values()) >= many * 2:
        assert len(found.ranges) >= many * 0.5


@given(STARTS, GROWTH, st.integers(1, 200))
def test_a_limit_is_kept_and_everything_is_reached(
    start: Offsets, growth: list[int], rows_max: int
) -> None:
    latest = _grown(start, growth)
    total = sum(_rows(plan(start, latest)).values())
    seen: Counter[tuple[str, int, int]] = Counter()
    at = start
    for _ in range(total // rows_max + 2):
        end = advance(at, latest, rows_max=rows_max)
        rows = _rows(plan(at, end))
        assert sum(rows.values()) <= rows_max
        seen += rows
        at = end
    assert seen == _rows(plan(start, latest))
    assert advance(at, latest, rows_max=rows_max) is at


@pytest.mark.parametrize("rows_max", [1, 2, 5])
def test_few_rows_a_trigger_pass_no_partition_over(rows_max: int) -> None:
    """Every partition gets a row with each trigger, and there are more of them than rows."""
    at = _offsets(t=dict.fromkeys(range(6), 0))
    for ends in range(1, 61):
        at = advance(at, _offsets(t=dict.fromkeys(range(6), ends)), rows_max=rows_max)
    read = [position.offset for _, _, position in at.each()]
    assert sum(read) == 60 * rows_max
    assert max(read) - min(read) <= 1


def test_small_partitions_get_their_share_of_a_limit() -> None:
    end = advance(_offsets(t={0: 0, 1: 0, 2: 0}), _offsets(t={0: 1_000, 1: 10, 2: 0}), rows_max=101)
    assert [at.offset for _, _, at in end.each()] == [100, 1, 0]


def test_nothing_new_gives_the_very_same_offsets() -> None:
    start = replace(_offsets(t={0: 5}), began=_offsets(t={0: 0}).topics)
    latest = Offsets({"t": TopicOffsets("id-t", {0: Position(5, epoch=7)})})
    assert advance(start, latest, rows_max=None) is start


def test_a_position_never_goes_back() -> None:
    """A new leader may not know yet how much is replicated."""
    end = advance(_offsets(t={0: 9, 1: 1}), _offsets(t={0: 7, 1: 2}), rows_max=None)
    assert [at.offset for _, _, at in end.each()] == [9, 2]


def test_the_first_batch_knows_where_it_began() -> None:
    first = replace(_offsets(t={0: 3}), is_initial=True)
    end = Offsets.from_json(advance(first, _offsets(t={0: 8}), rows_max=None).to_json())
    # After a restart "latest" is somewhere else, beyond the end of that batch.
    late = replace(_offsets(t={0: 30}), is_initial=True)
    assert [(each.start, each.end) for each in plan(late, end).ranges] == [(3, 8)]
    after = advance(end, _offsets(t={0: 9}), rows_max=None)
    assert after.began == {}
    assert [(each.start, each.end) for each in plan(end, after).ranges] == [(8, 9)]


def test_an_end_before_the_start_is_an_error_not_an_empty_batch() -> None:
    with pytest.raises(
        WrongCheckpoint, match=r"t-0: the batch ends at offset 4, before its start at 5"
    ):
        plan(_offsets(t={0: 5}), _offsets(t={0: 4}))


def test_new_topics_and_partitions_are_read_from_their_start() -> None:
    found = plan(_offsets(t={0: 5}), _offsets(t={0: 5, 1: 2}, u={0: 3}))
    assert [str(each) for each in found.ranges] == ["t-1 [0, 2)", "u-0 [0, 3)"]


def test_a_topic_made_anew_is_a_loss_and_is_read_from_its_start() -> None:
    start, end = _offsets(t={0: 5}), Offsets({"t": TopicOffsets("other", {0: Position(3)})})
    found = plan(start, end)
    assert [str(each) for each in found.ranges] == ["t-0 [0, 3)"]
    assert found.ranges[0].topic_id == "other"
    (loss,) = map(str, found.losses)
    assert loss == (
        "t: an unknown number of records are lost: the topic was deleted and made anew: its id is "
        "other now, not id-t"
    )
    assert found.losses == tuple(differences(start, end))


def test_a_deleted_topic_is_a_loss() -> None:
    start = _offsets(t={0: 5}, u={0: 1})
    for losses in (plan(start, _offsets(u={0: 1})).losses, differences(start, _offsets(u={0: 1}))):
        (why,) = [each.why for each in losses]
        assert why == "the topic was deleted, or the query's options no longer choose it"
    assert str(Loss(topic="t", partition=2, count=3, why="x")) == "t-2: 3 records are lost: x"


def test_a_partition_that_nobody_leads_now_stays_where_it_is() -> None:
    end = advance(_offsets(t={0: 5, 1: 7}), _offsets(t={0: 6}), rows_max=None)
    assert [at.offset for _, _, at in end.each()] == [6, 7]


def test_only_the_first_piece_of_a_range_follows_what_was_read() -> None:
    whole = ReadRange(topic="t", topic_id="i", partition=0, start=0, end=9, last_epoch=4)
    pieces = split([whole], 3)
    assert [(each.start, each.end, each.last_epoch) for each in pieces] == [
        (0, 3, 4),
        (3, 6, NO_EPOCH),
        (6, 9, NO_EPOCH),
    ]


@pytest.mark.parametrize(
    "stored",
    [
        {"version": 2, "topics": {}},
        {"t": {"0": 1}},
        {"version": 1, "topics": {"t": {"offsets": {"0": 1}}}},
        {"version": 1, "topics": {"t": 3}},
    ],
)
def test_what_is_not_ours_is_refused(stored: dict[str, object]) -> None:
    """By the name of the option: it may be the checkpoint of a query on Kafka."""
    with pytest.raises(WrongCheckpoint, match=r"checkpointLocation: it has .*offsets"):
        Offsets.from_json(stored)
