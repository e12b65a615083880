"""Plans read, moves shown, progress told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.cli import moves
from tailrace.cli.moves import Options, Wanted
from tailrace.client.moving import Phase, Progress
from tailrace.errors import InvalidRequest
from tailrace.model import TopicPartition
from unit.cli.answers import Answers
from unit.client.test_moving import MOVE

PLANNED = Progress((replace(MOVE, phase=Phase.PLANNED),), 2_048, 2_048)
UNDER_WAY = Progress((MOVE,), 2_048, 512)
YES = Options(yes=True, wait=False)


def test_a_plan_is_read_as_kafkas_tools_write_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    parts = [{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}]
    path.write_text(json.dumps({"version": 1, "partitions": parts}))
    assert moves.read_plan(path) == {TopicPartition("t", 0): (1, 2)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"partitions": [{}]}',
        '{"partitions": [{"topic": "t", "partition": -1, "replicas": [1]}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": ["1"]}]}',
        '{"partitions": [{"topic": "a b", "partition": 0, "replicas": [1]}]}',
        "null",
        '{"partitions": []}',
        '{"partitions": [null]}',
        '{"partitions": [{"topic": "t", "partition": 4294967296, "replicas": [1]}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [4294967296]}]}',
    ],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match="is no plan"):
        moves.read_plan(path)


def test_a_plan_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"{\xbb}")
    with pytest.raises(InvalidRequest, match="is no plan"):
        moves.read_plan(path)


def test_a_plan_that_says_two_things_of_a_partition_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    parts = [{"topic": "t", "partition": 0, "replicas": [each]} for each in (1, 2)]
    path.write_text(json.dumps({"partitions": parts}))
    with pytest.raises(InvalidRequest, match="t-0 is there twice"):
        moves.read_plan(path)
    path.write_text(json.dumps({"partitions": [{"topic": "t", "partition": 0}]}))
    with pytest.raises(InvalidRequest, match="'replicas' is missing"):
        moves.read_plan(path)


def test_options_that_would_be_passed_over_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="--cancel does not go together with --dry-run"):
        moves.require_alone("--cancel", {"--plan": None, "--dry-run": True})
    moves.require_alone("--status", {"--plan": None, "--dry-run": False})
    named = Wanted(plan={TopicPartition("t", 0): (1,)}, topics=("t",))
    with pytest.raises(InvalidRequest, match="names its topics itself"):
        moves.reassign(Answers([]), named, YES)
    with pytest.raises(InvalidRequest, match="--throttle is 'fast'"):
        moves.reassign(Answers([]), Wanted(drain=1), Options(dry_run=True, throttle="fast"))


def test_a_broker_that_has_nothing_is_cordoned_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nothing = Progress((), 0, 0)
    asking = Answers([nothing, None])
    moves.reassign(asking, Wanted(drain=1), YES)
    assert asking.answers == []  # type: ignore[attr-defined]
    assert capsys.readouterr().out == "Nothing has to move.\n"
    moves.reassign(Answers([nothing]), Wanted(drain=1), Options(dry_run=True))


def test_brokers_and_rates_are_read() -> None:
    assert moves.read_brokers("1, 2,3") == (1, 2, 3)
    assert [moves.read_rate(each) for each in ("0", "5", "2k", "50M", "1G")] == [
        *(0, 5, 2_048, 52_428_800, 1_073_741_824),
    ]
    for wrong in ("1;2", "", "x", "4294967296"):
        with pytest.raises(InvalidRequest):
            moves.read_brokers(wrong)
    for wrong in ("fast", "-1", "5MB"):
        with pytest.raises(InvalidRequest):
            moves.read_rate(wrong)


def test_a_dry_run_shows_moves_bytes_and_the_lowest_isr(capsys: pytest.CaptureFixture[str]) -> None:
    moves.reassign(Answers([PLANNED]), Wanted(brokers=(1, 2)), Options(dry_run=True))
    out = capsys.readouterr().out
    assert "2 while copying, 3 after" in out
    assert "1 partition, 2 replicas to copy, 2.0 KiB" in out
    asking = Answers([PLANNED], as_json=True)
    moves.reassign(asking, Wanted(brokers=(1, 2)), Options(dry_run=True))
    move, totals = map(json.loads, capsys.readouterr().out.splitlines())
    assert (move["lowest_isr_while_copying"], move["phase"]) == (2, "planned")
    assert totals["total_bytes"] == 2_048


def test_what_moves_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    moves.reassign(Answers([PLANNED, None]), Wanted(drain=1), YES)
    assert "1 partition on the way" in capsys.readouterr().out
    moves.reassign(Answers([PLANNED, None], as_json=True), Wanted(drain=1), YES)
    assert json.loads(capsys.readouterr().out)["started"] == 1
    waits = replace(YES, wait=True)
    moves.reassign(Answers([PLANNED, None]), Wanted(drain=1), waits)
    assert "1 partition moved, 2.0 KiB copied" in capsys.readouterr().out
    moves.reassign(Answers([PLANNED, None], as_json=True), Wanted(drain=1), waits)
    done = json.loads(capsys.readouterr().out)
    assert (done["copied_bytes"], done["left_bytes"], done["moved"]) == (2_048, 0, 1)
    nothing = Progress((), 0, 0)
    moves.reassign(Answers([nothing]), Wanted(plan={}), YES)
    assert capsys.readouterr().out == "Nothing has to move.\n"
    with pytest.raises(InvalidRequest, match="say what to move"):
        moves.reassign(Answers([]), Wanted(), YES)


def test_what_is_under_way_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    moves.status(Answers([UNDER_WAY]), [], cancel=False, wait=False)
    assert "1.5 KiB of 2.0 KiB copied, 512 B left" in capsys.readouterr().out
    moves.status(Answers([UNDER_WAY], as_json=True), [], cancel=False, wait=False)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["left_bytes"] == 512
    moves.status(Answers([UNDER_WAY]), [], cancel=True, wait=False)
    assert "1 reassignment given up" in capsys.readouterr().out
    moves.status(Answers([Progress((), 0, 0)]), [], cancel=False, wait=False)
    assert "Nothing is being reassigned" in capsys.readouterr().out


def test_progress_foretells_the_end_when_it_can() -> None:
    assert moves.describe_progress(UNDER_WAY, 0) == "1 partition, 512 B left"
    assert moves.describe_progress(UNDER_WAY, 64) == "1 partition, 512 B left, about 8 s"
