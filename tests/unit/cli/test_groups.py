"""What `tailrace groups` prints, and what it makes of its arguments."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tailrace.cli import groups
from tailrace.cli.groups import Target, lag_time, parse_topics, target_of
from tailrace.client.group_admin import (
    GroupDescription,
    GroupListing,
    GroupMemberDescription,
    GroupPosition,
    PositionReset,
    ResetTo,
)
from tailrace.errors import GroupNotEmpty, InvalidConfig, InvalidRequest
from tailrace.model import TopicPartition
from unit.cli.test_topics import answered

T0 = TopicPartition("orders", 0)
POSITION = GroupPosition(
    topic="orders",
    partition=0,
    offset=1_200,
    log_start=0,
    log_end=2_000,
    lag=800,
    lag_ms=4_200,
    commit_ms=5,
    metadata="",
    member_id="m",
    client_id="app",
    host="10.0.0.7",
)
GROUP = GroupDescription(
    group="payments",
    state="Stable",
    kind="consumer",
    protocol="range",
    generation=3,
    coordinator_id=2,
    members=(
        GroupMemberDescription(
            member_id="m", instance_id="", client_id="app", host="10.0.0.7", partitions=(T0,)
        ),
    ),
    positions=(POSITION,),
)


def test_a_list_for_people_and_for_programs(capsys: Any) -> None:
    listing = GroupListing(
        group="payments", state="Stable", kind="consumer", members=2, coordinator_id=1
    )
    groups.list_all(answered([listing]), [])
    assert "payments" in capsys.readouterr().out
    groups.list_all(answered([listing], as_json=True), [])
    assert json.loads(capsys.readouterr().out)["members"] == 2


def test_a_description_has_lag_in_records_and_in_time(capsys: Any) -> None:
    groups.describe(answered([GROUP]), ["payments"], members=False)
    out = capsys.readouterr().out
    assert "800 records behind" in out
    assert "4.2 s" in out
    assert "10.0.0.7" in out
    groups.describe(answered([GROUP]), ["payments"], members=True)
    assert "orders-0" in capsys.readouterr().out
    groups.describe(answered([GROUP], as_json=True), [], members=False)
    assert json.loads(capsys.readouterr().out)["positions"][0]["lag_ms"] == 4_200


def test_a_group_that_has_committed_nothing_is_not_said_to_be_at_the_end(capsys: Any) -> None:
    without = replace(POSITION, offset=-1, lag=-1, lag_ms=None)
    gone = replace(without, offset=7, stale=True)
    for positions, words in (
        ((without,), "nothing committed yet"),
        ((gone,), "nothing committed but for topics that are gone"),
        ((), "nothing committed"),
        ((POSITION, without), "800 records behind, and 1 partition without a position"),
    ):
        groups.describe(answered([replace(GROUP, positions=positions)]), ["payments"], members=True)
        assert words in capsys.readouterr().out


@pytest.mark.parametrize("members", [False, True])
def test_what_a_group_does_not_have_gets_no_table(capsys: Any, members: bool) -> None:
    groups.describe(answered([replace(GROUP, members=(), positions=())]), [], members=members)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_reset_says_whether_it_was_done(capsys: Any) -> None:
    plan = [PositionReset(T0, 1_200, 0, 0), PositionReset(TopicPartition("orders", 1), -1, 7, 7)]
    groups.reset(answered(plan), "g", Target(ResetTo.EARLIEST), [], execute=False)
    out = capsys.readouterr().out
    assert "-1,200" in out
    assert "would move: add --execute" in out
    groups.reset(answered(plan), "g", Target(ResetTo.EARLIEST), ["orders:0"], execute=True)
    assert "2 positions of g moved" in capsys.readouterr().out
    groups.reset(answered(plan, as_json=True), "g", Target(ResetTo.EARLIEST), [], execute=True)
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == {
        "group": "g",
        "topic": "orders",
        "partition": 0,
        "old": 1_200,
        "new": 0,
        "asked": 0,
        "done": True,
    }


def test_a_reset_beyond_the_log_is_told(capsys: Any) -> None:
    plan = [
        PositionReset(T0, 5, 8, 900),
        PositionReset(TopicPartition("orders", 1), 8, 8, 900),
        PositionReset(TopicPartition("orders", 2), 4, 3, -2),
    ]
    for execute, words in (
        (False, "2 positions of g would move"),
        (True, "2 positions of g moved"),
    ):
        groups.reset(answered(plan), "g", Target(ResetTo.OFFSET, 900), [], execute=execute)
        said = capsys.readouterr()
        assert words in said.out
        assert said.err.splitlines() == [
            "tailrace: orders-0 ends at offset 8: 900 is not in its log",
            "tailrace: orders-1 ends at offset 8: 900 is not in its log",
            "tailrace: orders-2 begins at offset 3: -2 is not in its log",
        ]


def test_states_are_known_however_they_are_written(capsys: Any) -> None:
    groups.list_all(answered([]), ["stable"])
    assert capsys.readouterr().out == "No group is in that state.\n"
    groups.list_all(answered([]), [])
    assert capsys.readouterr().out == "There are no groups.\n"
    with pytest.raises(InvalidRequest, match="'Banana' is none of Stable, Empty"):
        groups.list_all(answered([]), ["Banana"])


def test_what_could_not_be_deleted_fails_after_the_rest(capsys: Any) -> None:
    results = {"busy": GroupNotEmpty("it has members"), "idle": None}
    with pytest.raises(GroupNotEmpty):
        groups.delete(answered(results), ["busy", "idle"], yes=True)
    assert capsys.readouterr().out == "idle deleted\n"
    with pytest.raises(GroupNotEmpty):
        groups.delete(answered(results, as_json=True), ["busy", "idle"], yes=True)
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first == {"group": "busy", "deleted": False, "error": "GROUP_NOT_EMPTY"}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"earliest": True}, Target(ResetTo.EARLIEST)),
        ({"latest": True}, Target(ResetTo.LATEST)),
        ({"offset": 0}, Target(ResetTo.OFFSET, 0)),
        ({"shift": -5}, Target(ResetTo.SHIFT, -5)),
        ({"time": "5m"}, Target(ResetTo.TIME, 700_000)),
    ],
)
def test_one_target_is_given(given: dict[str, Any], found: Target) -> None:
    nothing: dict[str, Any] = {
        "earliest": False,
        "latest": False,
        "offset": None,
        "shift": None,
        "time": None,
    }
    assert target_of(**{**nothing, **given}, now_ms=1_000_000) == found
    with pytest.raises(InvalidConfig, match="where to"):
        target_of(**nothing, now_ms=0)
    with pytest.raises(InvalidConfig, match="where to"):
        target_of(**{**nothing, "earliest": True, "latest": True}, now_ms=0)


def test_topics_and_some_of_their_partitions() -> None:
    assert parse_topics(["a", "b:0,3"]) == {"a": None, "b": [0, 3]}
    with pytest.raises(InvalidConfig, match="b:x"):
        parse_topics(["b:x"])


@pytest.mark.parametrize(
    ("lag_ms", "text"),
    [(None, "-"), (0, "0.0 s"), (12_000, "12 s"), (3_600_000, "60 min"), (10**8, "27 h")],
)
def test_lag_in_time_is_rounded_for_people(lag_ms: int | None, text: str) -> None:
    assert lag_time(lag_ms) == text
