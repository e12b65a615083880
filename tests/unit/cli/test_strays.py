"""Replicas that are set aside, as a person and a program read them."""

from __future__ import annotations

import json

import pytest

from tailrace.cli import strays
from tailrace.client.diagnosing import StrayReplica
from tailrace.errors import UnknownBroker, Unreachable
from tailrace.model import TopicPartition
from unit.cli.answers import Answers


def stray(broker: int = 1, *, since_ms: int = 1, kept_until_ms: int = -1) -> StrayReplica:
    return StrayReplica(
        broker=broker,
        folder="/data",
        name="t-0.id-stray",
        partition=TopicPartition("t", 0),
        topic_id="id",
        size_bytes=2_048,
        log_start=3,
        log_end=12,
        high_watermark=11,
        last_epoch=4,
        since_ms=since_ms,
        kept_until_ms=kept_until_ms,
        why="the store does not know its topic",
    )


def test_each_is_a_line_with_what_an_adoption_needs(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {1: (stray(kept_until_ms=1_800_000_000_000),), 2: ()}
    strays.list_strays(Answers([answer]), None)
    said = capsys.readouterr().out
    for each in ("t-0", "id", "2.0 KiB", "12", "11", "/data/t-0.id-stray", "does not know"):
        assert each in said
    assert "2027-01-15T08:00:00.000Z" in said
    strays.list_strays(Answers([answer], as_json=True), None)
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["topic"], line["partition"], line["topic_id"]) == ("t", 0, "id")
    assert (line["log_start"], line["log_end"], line["high_watermark"]) == (3, 12, 11)
    assert line["last_epoch"] == 4


def test_when_one_goes_is_said_in_words_where_no_time_is_known() -> None:
    assert strays.kept_until(stray()) == strays.NOT_BEGUN
    assert strays.kept_until(stray(since_ms=-1)) == strays.FOR_A_PERSON


def test_a_broker_that_does_not_answer_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    strays.list_strays(Answers([{1: Unreachable("no"), 2: ()}]), None)
    said = capsys.readouterr()
    assert said.out == "No replica is set aside.\n"
    assert "broker 1 does not answer" in said.err
    with pytest.raises(UnknownBroker, match="no broker 7"):
        strays.list_strays(Answers([{}]), 7)
