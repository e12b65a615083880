"""What a person is shown of a plan; what the command does is in the integration tests."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tailrace.cli import recovery
from tailrace.client.recovery_facts import GatheredFacts
from tailrace.meta.copies import StoredMetadata
from tailrace.meta.keys import ClusterRecord, PartitionState
from tailrace.meta.lineage import Standing, Witness
from tailrace.meta.recovery import BrokerFacts, Certainty, PartitionReport, RecoveryPlan
from tailrace.meta.settings import EtcdSettings
from tailrace.model import BrokerId, LeaderEpoch, TopicPartition

STATE = PartitionState(
    controller_epoch=0,
    leader=BrokerId(-1),
    leader_epoch=LeaderEpoch(5),
    isr=(BrokerId(1),),
)


def report(number: int, certainty: Certainty = Certainty.CERTAIN) -> PartitionReport:
    return PartitionReport(
        partition=TopicPartition("t", number),
        topic_id="i",
        state=STATE,
        replicas=(BrokerId(1), BrokerId(2)),
        certainty=certainty,
        why=f"because of {number}",
        log_end=7,
        high_watermark=6,
    )


PLAN = RecoveryPlan(
    record=ClusterRecord(cluster_id="c", store_id="n", generation=3, former=("o",)),
    found=None,
    found_revision=0,
    entries={},
    standing=Standing.EMPTY,
    problem="the store is empty",
    base=Witness(cluster_id="c", store_id="o", generation=2, revision=90),
    partitions=(*(report(each) for each in range(30)), report(30, Certainty.WAITS)),
    notes=("a note with \x1b[31mcolour",),
    missing=(BrokerId(2),),
)
FACTS = GatheredFacts(
    [BrokerFacts(broker_id=BrokerId(1), cluster_id="c", incarnation="i", stored=StoredMetadata())]
)
OPTIONS = recovery.RecoverOptions(control="a:1", etcd=EtcdSettings())


def test_what_a_person_has_to_look_at_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    recovery._show(PLAN, FACTS, OPTIONS)
    out = capsys.readouterr().out
    assert "the store is empty" in out
    assert "1 topic, 31 partitions: 30 certain, 0 inferred, 1 that wait" in out
    assert "without brokers [2]" in out
    assert "\x1b" not in out
    lines = out.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("partition"))
    assert lines[first + 1].startswith("t-30 ")
    assert "11 partitions more are certain" in lines[-1]
    recovery._show(PLAN, FACTS, replace(OPTIONS, show_all=True))
    assert capsys.readouterr().out.count("because of") == 31


def test_programs_get_every_partition(capsys: pytest.CaptureFixture[str]) -> None:
    recovery._show(PLAN, FACTS, replace(OPTIONS, as_json=True))
    about, *partitions = map(json.loads, capsys.readouterr().out.splitlines())
    assert about["needed"] is True
    assert (about["certain"], about["inferred"], about["waits"]) == (30, 0, 1)
    assert len(partitions) == 31
    assert partitions[-1]["certainty"] == "waits"
    assert partitions[0]["isr"] == [1]
