"""What operators are shown and asked; the answers are known."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import typer

from tailrace.cli import operating
from tailrace.client.describing import PartitionDescription, TopicDescription
from tailrace.client.diagnosing import OutOfService
from tailrace.client.operations import (
    BrokerState,
    Elected,
    FolderState,
    LeaderChoice,
    with_condition,
)
from tailrace.errors import (
    DamagedLog,
    ElectionNotNeeded,
    InvalidConfig,
    InvalidRequest,
    LeaderNotAvailable,
    UnknownBroker,
    UnknownTopic,
    Unreachable,
    error_for,
)
from tailrace.model import TopicPartition
from unit.cli.answers import Answers
from unit.cli.test_diagnosis import condition
from unit.client.test_moving import facts

T0 = TopicPartition("t", 0)
BROKER = BrokerState(
    broker_id=2,
    live=True,
    address="h:1",
    rack="",
    epoch=7,
    draining=False,
    cordoned=True,
    cordon_reason="its disk is old",
    cordoned_ms=1_794_830_400_123,
    leaders=1,
    replicas=3,
    in_sync=2,
    preferred=1,
    unfit="/b is full",
    disks=(
        FolderState("/a", 10 << 30, 20 << 30, 2, ""),
        FolderState("/b", -1, -1, 1, "full: 5 bytes are free"),
    ),
)


def lines(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_settings_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"default": {"request_rate": "5"}, "copier": {}}
    operating.get_config(Answers([found], as_json=True), "clients", "")
    first, second = lines(capsys)
    assert first == {"kind": "clients", "name": "default", "config": {"request_rate": "5"}}
    assert second["config"] == {}
    operating.get_config(Answers([found]), "clients", "")
    assert "request_rate" in capsys.readouterr().out
    operating.get_config(Answers([{}]), "clients", "")
    assert capsys.readouterr().out == "Nothing differs from the defaults.\n"


def test_settings_are_set(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"validate_only": False, "yes": False}
    operating.set_config(Answers([{"a": "1"}]), "topics", "t", ["a=1"], [], **given)
    assert capsys.readouterr().out == "t has a=1\n"
    operating.set_config(Answers([{}]), "topics", "t", [], ["a"], **given)
    assert capsys.readouterr().out == "t has no settings of its own\n"
    operating.set_config(Answers([{}], as_json=True), "brokers", "default", [], ["a"], **given)
    assert lines(capsys) == [{"kind": "brokers", "name": "default", "config": {}}]
    with pytest.raises(InvalidRequest, match="nothing to change"):
        operating.set_config(Answers([]), "topics", "t", [], [], **given)


@pytest.mark.parametrize(
    ("setting", "who"),
    [
        ("fetch.cold.reads.max=4", "a broker starts"),
        ("leader.imbalance.check.interval.ms=4", "a controller starts"),
        ("metrics.listeners=h:1", "a broker or controller or coordinator starts"),
    ],
)
def test_what_is_read_at_the_start_is_told_apart_from_what_is_not_there(
    setting: str, who: str
) -> None:
    given = {"validate_only": False, "yes": True}
    with pytest.raises(InvalidConfig, match=who):
        operating.set_config(Answers([]), "brokers", "default", [setting], [], **given)
    # Whether there is such a setting at all, the controller says.
    operating.refuse_what_is_read_at_start(["nothing.such", "retention.ms", "log.retention.hours"])


def test_keeping_less_is_known() -> None:
    def less(stored: dict[str, str], *unset: str, **changed: str) -> list[str]:
        names = {each.replace("_", "."): value for each, value in changed.items()}
        return operating.keeping_less(stored, names, unset)

    assert less({}, retention_ms="1") == ["retention.ms=1"]
    assert less({"retention.ms": "5"}, retention_ms="4") == ["retention.ms=4"]
    assert less({}, log_retention_hours="1", segment_ms="1") == ["log.retention.hours=1"]
    assert less({"cleanup.policy": "delete"}, cleanup_policy="compact") == [
        "cleanup.policy=compact"
    ]
    assert less({"retention.ms": "5"}, "retention.ms") == ["retention.ms back to its default"]
    assert less({"retention.ms": "5"}, "retention.bytes", retention_ms="5") == []
    assert less({"retention.ms": "5"}, retention_ms="6") == []
    assert less({"retention.ms": "5"}, retention_ms="-1", retention_bytes="-1") == []
    assert less({"retention.ms": "-1"}, retention_ms="10") == ["retention.ms=10"]


@pytest.mark.parametrize("answer", [True, False])
def test_a_person_is_asked_before_fewer_records_are_kept(
    monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    asked: list[str] = []

    def confirm(text: str, *, abort: bool) -> None:
        asked.append(text)
        if abort and not answer:
            raise typer.Abort

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", confirm)
    stored: dict[str, dict[str, str]] = {"t": {"retention.ms": "9"}}
    answers = Answers([stored, {"retention.ms": "1"}])
    given = {"validate_only": False, "yes": False}
    with nullcontext() if answer else pytest.raises(typer.Abort):
        operating.set_config(answers, "topics", "t", ["retention.ms=1"], [], **given)
    assert asked == ["retention.ms=1: records may be deleted by it. Change t?"]
    assert len(answers.answers) == (0 if answer else 1)  # type: ignore[attr-defined]
    for more in ({"yes": True}, {"validate_only": True}):
        operating.set_config(
            Answers([{}]), "topics", "t", ["retention.ms=1"], [], **{**given, **more}
        )
    operating.set_config(Answers([{}]), "topics", "t", ["segment.ms=1"], [], **given)
    assert len(asked) == 1


def test_brokers_are_listed_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    operating.list_brokers(Answers([[BROKER]]))
    out = capsys.readouterr().out
    assert "2 of 3" in out
    assert "cordoned, disk full" in out
    operating.list_brokers(Answers([[BROKER]], as_json=True))
    assert lines(capsys)[0]["cordon_reason"] == "its disk is old"
    answer = (BROKER, None, {T0: facts(2, size_bytes=2_048, log_end=9)})
    operating.describe_broker(Answers([answer]), 2)
    out = capsys.readouterr().out
    assert "cordoned since 2026-11-16T" in out
    assert "2.0 KiB" in out
    assert "leads nothing while others can: /b is full" in out
    assert "10.0 GiB" in out
    assert "5 bytes are free" in out
    operating.describe_broker(Answers([answer], as_json=True), 2)
    (said,) = lines(capsys)
    assert said["disks"][1]["trouble"] == "full: 5 bytes are free"
    assert said["folders"]["/data"][0]["log_end"] == 9
    operating.cordon(Answers([[BROKER], None]), 2, cordon=False, reason="")
    assert capsys.readouterr().out == "broker 2 is not cordoned\n"
    with pytest.raises(UnknownBroker, match=r"no broker 9 \(there are 2\)"):
        operating.cordon(Answers([[BROKER]]), 9, cordon=False, reason="")


def test_elections_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    elected = [Elected(T0, 1, None), Elected(TopicPartition("t", 1), 2, ElectionNotNeeded("it is"))]
    operating.elect_preferred(Answers([elected]), ["t"], None)
    assert capsys.readouterr().out == "t-0 is led by broker 1\nit is\n"
    operating.elect_preferred(Answers([elected], as_json=True), [], None)
    assert [each["error"] for each in lines(capsys)] == [None, "ELECTION_NOT_NEEDED"]
    operating.elect_preferred(Answers([[]]), [], None)
    refused = [Elected(T0, -1, LeaderNotAvailable("t-0: broker 1 cannot lead"))]
    for as_json in (False, True):
        with pytest.raises(typer.Exit):
            operating.elect_preferred(Answers([refused], as_json=as_json), ["t"], None)
    assert "All preferred replicas lead" in capsys.readouterr().out


def test_an_unclean_election_shows_the_loss_and_needs_a_yes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    choices = [LeaderChoice(T0, 3, "offsets 7 to 9 are gone")]
    with pytest.raises(InvalidRequest, match="--yes"):
        operating.elect_unclean(Answers([choices]), ["t"], 0, yes=False)
    assert "t-0: broker 3 would lead. offsets 7 to 9 are gone" in capsys.readouterr().err
    operating.elect_unclean(Answers([choices, [Elected(T0, 3, None)]]), ["t"], 0, yes=True)
    assert capsys.readouterr().out == "t-0 is led by broker 3\n"
    with pytest.raises(LeaderNotAvailable):
        operating.elect_unclean(Answers([[]]), ["t"], 0, yes=True)


def test_what_could_not_be_deleted_fails_the_command() -> None:
    operating.delete_records(Answers([False]), "t", [], -1, yes=True)
    with pytest.raises(typer.Exit):
        operating.delete_records(Answers([True]), "t", [0], 5, yes=True)


def test_a_partition_that_is_not_there_is_told_at_once() -> None:
    topic = topic_described(partitions=3)
    operating._require_partitions(topic, [0, 2])
    with pytest.raises(UnknownTopic, match="orders has partitions 0 to 2, not 3, 77"):
        operating._require_partitions(topic, [0, 3, 77])


def topic_described(*, partitions: int) -> TopicDescription:
    return TopicDescription(
        topic="orders",
        topic_id="id",
        config={},
        min_insync_replicas=1,
        deleting=False,
        partitions=tuple(
            PartitionDescription(
                partition=number,
                leader=1,
                leader_epoch=0,
                replicas=(1,),
                isr=(1,),
                elr=(),
                health=(),
            )
            for number in range(partitions)
        ),
    )


def test_l5_a_broker_with_replicas_out_of_service_is_not_ok(
    capsys: pytest.CaptureFixture[str],
) -> None:
    well = replace(BROKER, cordoned=False, unfit="", disks=())
    out = (OutOfService(T0, error_for(DamagedLog.code, "a bit is flipped")),)
    told = condition(2, out_of_service=out, out_of_service_count=3)
    operating.list_brokers(Answers([[well, with_condition(well, told)]]))
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert first.split()[-1] == "ok"
    assert second.rstrip().endswith("3 replicas out of service")
    answer: Any = (with_condition(well, told), told, {})
    operating.describe_broker(Answers([answer]), 2)
    shown = capsys.readouterr().out
    assert "out of service: t-0: a bit is flipped" in shown
    assert "and 2 more replicas out of service" in shown
    operating.describe_broker(Answers([answer], as_json=True), 2)
    (said,) = lines(capsys)
    assert said["replicas_out_of_service"][0]["code"] == DamagedLog.code
    assert said["out_of_service"] == 3


def test_l1_a_broker_that_does_not_believe_the_store_is_not_ok(
    capsys: pytest.CaptureFixture[str],
) -> None:
    doubting = with_condition(BROKER, condition(2, store_problem="it is empty"))
    operating.list_brokers(Answers([[doubting]]))
    assert "store not believed" in capsys.readouterr().out
    assert with_condition(BROKER, Unreachable("it is gone")) == BROKER
