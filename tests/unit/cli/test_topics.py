from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from tailrace.cli import groups, operating, topics
from tailrace.cli.asking import Asking
from tailrace.cli.topics import Explanation
from tailrace.client.admin import AdminCore
from tailrace.client.describing import (
    BrokerDescription,
    ClusterDescription,
    Health,
    PartitionDescription,
    TopicDescription,
)
from tailrace.client.diagnosing import DeletionRecord
from tailrace.errors import InvalidConfig, TopicExists
from tailrace.meta.keys import LeaderChange, SettingsChange
from tailrace.model import BrokerId, LeaderEpoch, TopicPartition

T = TypeVar("T")


class Answered(Asking):
    """Asks nobody: the answer is known already."""

    answer: Any

    def ask(self, question: Callable[[AdminCore], Coroutine[Any, Any, T]]) -> T:
        if isinstance(self.answer, Exception):
            raise self.answer
        answer: T = self.answer
        return answer


def answered(answer: Any, *, as_json: bool = False) -> Answered:
    asking = Answered("a:1", 1.0, as_json)
    object.__setattr__(asking, "answer", answer)
    return asking


def partition(number: int, *, leader: int = 1, health: tuple[Health, ...] = ()) -> Any:
    return PartitionDescription(
        partition=number,
        leader=leader,
        leader_epoch=4,
        replicas=(1, 2, 3),
        isr=(1, 2),
        elr=(),
        health=health,
    )


SET = SettingsChange(
    decided_ms=1_794_830_400_123, set={"flush": "ack"}, unset=("retention.ms",), controller_id=7
)
ORDERS = TopicDescription(
    topic="orders",
    topic_id="0f",
    partitions=(
        partition(0),
        partition(1, leader=-1, health=(Health.OFFLINE, Health.UNDER_REPLICATED)),
    ),
    config={"retention.ms": "5"},
    min_insync_replicas=2,
)
CHANGE = LeaderChange(
    decided_ms=1_794_830_400_123,
    cause="broker 1: its process is gone",
    noticed_ms=1_794_830_400_100,
    old_leader=BrokerId(1),
    new_leader=BrokerId(-1),
    leader_epoch=LeaderEpoch(4),
    old_isr=(BrokerId(1),),
    new_isr=(),
    candidates=("1: in sync, not registered",),
    controller_id=7,
    controller_epoch=3,
    loss="records from 10 on",
)


def test_describe_as_json_is_what_programs_were_promised(
    capsys: pytest.CaptureFixture[str],
) -> None:
    topics.describe(answered([ORDERS], as_json=True), ["orders"], unhealthy=False)
    said = json.loads(capsys.readouterr().out)
    assert (said["topic"], said["topic_id"]) == ("orders", "0f")
    assert said["partitions"][1] == {
        "partition": 1,
        "leader": -1,
        "leader_epoch": 4,
        "replicas": [1, 2, 3],
        "isr": [1, 2],
        "elr": [],
        "health": ["offline", "under-replicated"],
        "adding": [],
        "removing": [],
        "loss": "",
        "conflict": "",
        "out_of_service": {},
    }


def test_describe_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    topics.describe(answered([ORDERS]), [], unhealthy=False)
    title, _, well, ill = capsys.readouterr().out.splitlines()
    assert title == "orders  id 0f, min.insync.replicas 2, retention.ms=5"
    assert well.split() == ["0", "1", "4", "1,", "2,", "3", "1,", "2", "-", "ok"]
    assert ill.split()[1] == "none"
    assert "offline, under-replicated" in ill


def test_describe_only_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    topics.describe(answered([ORDERS], as_json=True), [], unhealthy=True)
    said = json.loads(capsys.readouterr().out)
    assert [each["partition"] for each in said["partitions"]] == [1]
    well = TopicDescription(
        topic="well",
        topic_id="1",
        partitions=(partition(0),),
        config={},
        min_insync_replicas=2,
    )
    topics.describe(answered([well]), [], unhealthy=True)
    assert capsys.readouterr().out == "All partitions are well.\n"


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    topics.list_all(answered([ORDERS]))
    assert capsys.readouterr().out.splitlines()[1].split() == (
        ["orders", "2", "3", "1", "offline,", "1", "under-replicated"]
    )
    topics.list_all(answered([ORDERS], as_json=True))
    assert json.loads(capsys.readouterr().out)["health"]["offline"] == 1
    topics.list_all(answered([]))
    assert capsys.readouterr().out == "There are no topics.\n"


def _create(asking: Asking, *, if_not_exists: bool = False, validate_only: bool = False) -> None:
    topics.create(
        asking,
        "orders",
        partitions=2,
        replication_factor=0,
        config={},
        if_not_exists=if_not_exists,
        validate_only=validate_only,
    )


def test_create(capsys: pytest.CaptureFixture[str]) -> None:
    _create(answered(ORDERS))
    assert capsys.readouterr().out == "orders created: 2 partitions, 3 replicas each\n"
    _create(answered(ORDERS), validate_only=True)
    assert capsys.readouterr().out.startswith("orders can be created: ")
    _create(answered(ORDERS, as_json=True))
    assert json.loads(capsys.readouterr().out)["topic"] == "orders"


def test_create_says_what_the_controller_warns_of(capsys: pytest.CaptureFixture[str]) -> None:
    made = replace(ORDERS, warnings=("2 of the 3 replicas that are the default",))
    topics.create(
        answered(made, as_json=True),
        "orders",
        partitions=0,
        replication_factor=0,
        config={},
        if_not_exists=False,
        validate_only=False,
    )
    shown = capsys.readouterr()
    assert shown.err == "tailrace: warning: 2 of the 3 replicas that are the default\n"
    assert json.loads(shown.out)["warnings"] == list(made.warnings)
    assert "warnings" not in ORDERS.as_dict()


def test_create_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    there = TopicExists("topic 'orders' exists already")
    with pytest.raises(TopicExists):
        _create(answered(there))
    _create(answered(there), if_not_exists=True)
    assert capsys.readouterr().err == "tailrace: topic 'orders' exists already\n"


def test_the_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    broker = BrokerDescription(broker_id=1, address="a:1", rack="", leaders=2, replicas=3)
    found = ClusterDescription(
        cluster_id="c",
        revision=1,
        controller_id=-1,
        controller="",
        brokers=(broker,),
        topics=1,
        partitions=2,
        health=dict.fromkeys(Health, 0),
    )
    topics.describe_cluster(answered(found))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "cluster     c",
        "controller  none is active",
        "topics      1 topic, 2 partitions: ok",
    ]
    assert lines[4].split() == ["1", "a:1", "-", "2", "3"]
    topics.describe_cluster(answered(found, as_json=True))
    assert json.loads(capsys.readouterr().out)["controller_id"] == -1


CUT = DeletionRecord(
    broker=2,
    at_ms=1_800_000_000_000,
    partition=TopicPartition("orders", 1),
    topic_id="7",
    kind="log-end",
    from_offset=10,
    to_offset=12,
    evidence="LeaderDiverged",
    why="leader 1 in epoch 4 has another log from 10 on; 10 is committed",
)


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    told = Explanation(ORDERS, [CHANGE], [SET], [CUT])
    topics.explain(answered(told), "orders", 1)
    said = capsys.readouterr().out
    assert said.startswith("orders-1 has no leader in epoch 4; in sync: 1, 2; offline")
    assert "2026-11-16T12:00:00.123Z  leader 1 → none  epoch 4" in said
    assert "decided     23 ms after it was noticed, by controller 7 in epoch 3" in said
    assert "loss        records from 10 on" in said
    assert "settings of the topic changed: flush=ack, retention.ms back to its default" in said
    assert "broker 2 cut records off from 10 to 11: leader 1 in epoch 4" in said
    topics.explain(answered(Explanation(ORDERS, [], [], [])), "orders", 0)
    assert capsys.readouterr().out.endswith("No change of its leader is recorded.\n")


def test_explain_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    told = Explanation(ORDERS, [CHANGE], [SET], [CUT])
    topics.explain(answered(told, as_json=True), "orders", 0)
    said = json.loads(capsys.readouterr().out)
    assert said["settings"][0]["set"] == {"flush": "ack"}
    assert said["changes"][0]["candidates"] == ["1: in sync, not registered"]
    assert said["leader"] == 1
    assert said["deletions"][0]["evidence"] == "LeaderDiverged"


def test_explain_tells_where_a_topic_went_that_is_no_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = replace(CUT, kind="replica", evidence="TopicDeleted", why="topic 7 was deleted")
    topics.explain(answered([gone]), "orders", 1)
    said = capsys.readouterr().out
    assert "There is no topic orders any more." in said
    assert "broker 2 deleted the replica from 10 to 11: topic 7 was deleted" in said
    topics.explain(answered([gone], as_json=True), "orders", 1)
    assert json.loads(capsys.readouterr().out)["deletions"][0]["evidence"] == "TopicDeleted"


def test_what_comes_from_afar_cannot_paint_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = TopicDescription(
        topic="a",
        topic_id="1",
        partitions=(),
        config={"x": "\x1b[31m[bold]"},
        min_insync_replicas=1,
    )
    topics.describe(answered([evil]), [], unhealthy=False)
    assert "x=\\x1b[31m[bold]" in capsys.readouterr().out


def test_assignments() -> None:
    assert topics.assignments(["a=1", " b = x=y"]) == {"a": "1", "b": "x=y"}
    for bad in ("a", "=1"):
        with pytest.raises(InvalidConfig, match="is not NAME=VALUE"):
            topics.assignments([bad])


def test_completion_never_complains() -> None:
    assert topics.topic_names("127.0.0.1:1", "a") == []
    assert topics.topic_names("no address", "a") == []
    assert operating.broker_ids("127.0.0.1:1", "1") == []
    assert groups.group_names("127.0.0.1:1", "g") == []
