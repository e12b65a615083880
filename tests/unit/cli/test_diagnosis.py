"""What a doctor says of a cluster: each trouble by its facts, and nothing when all is well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace.cli import diagnosis
from tailrace.cli.diagnosis import (
    CHECKS,
    CLOCK_MAX_MS,
    ClusterFacts,
    Finding,
    Look,
    Severity,
    examine,
    worst,
)
from tailrace.client.describing import describe_topic
from tailrace.client.diagnosing import BrokerCondition, OutOfService, StrayReplica
from tailrace.client.metadata import ClusterPicture, PartitionPicture, TopicPicture
from tailrace.client.moving import Move, Phase, Progress
from tailrace.client.operations import BrokerState, FolderState
from tailrace.errors import (
    DamagedLog,
    HighWatermarkConflict,
    TailraceError,
    Unreachable,
    error_for,
)
from tailrace.model import TopicPartition
from unit.cli.test_strays import stray

NOW_MS = 1_000_000
HOUR_MS = 3_600_000
GIB = 1 << 30


def condition(broker: int, **changed: Any) -> BrokerCondition:
    well: dict[str, Any] = {
        "version": "0.1.0",
        "not_ready": "",
        "clock_ahead_ms": 0,
        "clock_doubt_ms": 1,
        "store_silence_ms": 100,
        "lease_age_ms": 100,
        "lease_ttl_ms": 5_000,
        "open_files": 50,
        "open_files_max": 65_536,
    }
    return BrokerCondition(broker_id=broker, **{**well, **changed})


def state(broker: int, **changed: Any) -> BrokerState:
    well: dict[str, Any] = {
        "live": True,
        "address": f"b{broker}:1",
        "rack": "",
        "epoch": 7,
        "draining": False,
        "cordoned": False,
        "cordon_reason": "",
        "cordoned_ms": 0,
        "leaders": 2,
        "replicas": 6,
        "in_sync": 6,
        "preferred": 2,
        "disks": (FolderState("/data", 50 * GIB, 100 * GIB, 6, ""),),
    }
    return BrokerState(broker_id=broker, **{**well, **changed})


def partition(leader: int, *, isr: tuple[int, ...] = (1, 2, 3), **changed: Any) -> PartitionPicture:
    replicas = changed.pop("replicas", tuple((leader + each - 1) % 3 + 1 for each in range(3)))
    return PartitionPicture(leader, 0, replicas, isr, **changed)


def cluster(*partitions: PartitionPicture, **changed: Any) -> ClusterFacts:
    """Three brokers, a coordinator and one topic; all is well unless something is changed."""
    picture = ClusterPicture(
        revision=1,
        brokers={1: "b1:1", 2: "b2:1", 3: "b3:1"},
        controller="c1:1",
        controller_id=1,
        topics={
            "t": TopicPicture("id", partitions or tuple(partition(n % 3 + 1) for n in range(6)))
        },
        coordinators={1: "k1:1"},
        group_shards=((1, 0),) * 4,
    )
    picture = replace(picture, **changed.pop("picture", {}))
    facts: dict[str, Any] = {
        "now_ms": NOW_MS,
        "picture": picture,
        "topics": tuple(describe_topic(name, topic) for name, topic in picture.topics.items()),
        "conditions": {each: condition(each) for each in picture.brokers},
        "brokers": [state(each) for each in picture.brokers],
    }
    return ClusterFacts(**{**facts, **changed})


def wrong(facts: ClusterFacts) -> list[Finding]:
    return [each for each in examine(facts) if each.severity > Severity.OK]


def the_one(facts: ClusterFacts, check: str, severity: Severity) -> Finding:
    """The only thing that is wrong; it says what to do."""
    (found,) = wrong(facts)
    assert (found.check, found.severity) == (check, severity)
    assert found.do
    return found


def test_of_a_cluster_that_is_well_each_check_says_so() -> None:
    found = examine(cluster())
    assert [each.check for each in found] == [check for check, _ in CHECKS]
    assert worst(found) is Severity.OK
    assert found[0].as_dict()["severity"] == "ok"
    assert worst([]) is Severity.OK


def test_addresses_that_do_not_answer() -> None:
    facts = cluster(silent={"old:1": "Connection refused"})
    assert "old:1" in the_one(facts, "bootstrap", Severity.WARNING).what


def test_no_controller_and_one_that_does_not_answer() -> None:
    facts = cluster(picture={"controller": "", "controller_id": -1}, brokers=None)
    assert "no controller" in the_one(facts, "controller", Severity.CRITICAL).what
    facts = cluster(brokers=None, problem="timed out")
    assert "timed out" in the_one(facts, "controller", Severity.CRITICAL).what


def test_etcd_that_says_it_is_not_well_and_etcd_that_nobody_hears() -> None:
    facts = cluster(etcd={"e1:1": "", "e2:1": "it says 'ALARM NOSPACE'"})
    assert "e2:1" in the_one(facts, "etcd", Severity.WARNING).what
    silent = {each: condition(each, store_silence_ms=20_000) for each in (1, 2, 3)}
    assert "20 s" in the_one(cluster(conditions=silent), "etcd", Severity.CRITICAL).what
    some = {**silent, 1: condition(1), 2: condition(2)}
    assert "broker 3" in the_one(cluster(conditions=some), "etcd", Severity.WARNING).what


def test_brokers_that_do_not_answer_are_not_ready_away_unfit_or_cordoned() -> None:
    told = {1: condition(1), 2: Unreachable("refused"), 3: condition(3)}
    assert "b2:1" in the_one(cluster(conditions=told), "brokers", Severity.CRITICAL).what
    told = {1: condition(1), 2: condition(2, not_ready="its logs"), 3: condition(3)}
    assert "its logs" in the_one(cluster(conditions=told), "brokers", Severity.WARNING).what
    for changed, severity, says in (
        ({"live": False}, Severity.WARNING, "is away, and has 6 replicas"),
        ({"unfit": "its disk is slow"}, Severity.WARNING, "its disk is slow"),
        ({"cordoned": True, "cordon_reason": "old"}, Severity.HINT, "cordoned (old)"),
    ):
        facts = cluster(brokers=[state(1), state(2), state(3, **changed)])
        assert says in the_one(facts, "brokers", severity).what
    # One that is away and has nothing is nobody's trouble.
    assert not wrong(cluster(brokers=[state(1), state(2), state(9, live=False, replicas=0)]))
    told = {1: condition(1), 2: condition(2, version="0.2.0")}
    assert "2 versions" in the_one(cluster(conditions=told), "brokers", Severity.HINT).what


@pytest.mark.parametrize(
    ("disk", "severity"),
    [
        (FolderState("/d", 9 * GIB, 100 * GIB, 1, ""), Severity.WARNING),
        (FolderState("/d", 2 * GIB, 100 * GIB, 1, ""), Severity.CRITICAL),
        (FolderState("/d", 50 * GIB, 100 * GIB, 1, "slow: 2,000 ms"), Severity.CRITICAL),
    ],
)
def test_disks(disk: FolderState, severity: Severity) -> None:
    facts = cluster(brokers=[state(1), state(2), state(3, disks=(disk,))])
    assert "/d of broker 3" in the_one(facts, "disks", severity).what


def test_a_disk_of_which_nothing_is_known_is_no_finding() -> None:
    unknown = FolderState("/d", -1, -1, 1, "")
    assert not wrong(cluster(brokers=[state(1), state(2), state(3, disks=(unknown,))]))


def test_open_files() -> None:
    full = {1: condition(1, open_files=900, open_files_max=1_024)}
    assert "900" in the_one(cluster(conditions=full), "files", Severity.CRITICAL).what
    few = {1: condition(1, open_files_max=1_024)}
    assert "1,024" in the_one(cluster(conditions=few), "files", Severity.WARNING).what


def clocks(*ahead_ms: int, doubt_ms: int = 1) -> ClusterFacts:
    """Brokers from 1 on whose clocks are so far ahead of ours."""
    told = {
        number: condition(number, clock_ahead_ms=each, clock_doubt_ms=doubt_ms)
        for number, each in enumerate(ahead_ms, 1)
    }
    return cluster(conditions=told)


def test_clocks_are_off_only_by_what_is_sure() -> None:
    assert not wrong(clocks(-400, 0, 400))
    assert not wrong(clocks(0, 0, 3_000, doubt_ms=2_000 + CLOCK_MAX_MS))
    found = the_one(clocks(0, 0, 3_000), "clocks", Severity.WARNING)
    assert found.what == (
        "the clock of broker 3 is 3.0 s ahead of those of broker 1, broker 2, this machine, "
        "which agree"
    )
    assert "timedatectl" in found.do
    the_one(clocks(0, 90_000), "clocks", Severity.CRITICAL)


def test_whose_clock_is_off_is_what_more_than_half_say() -> None:
    # The one that is behind is named, not one of those that it is behind of.
    behind = the_one(clocks(0, -HOUR_MS, 10), "clocks", Severity.CRITICAL)
    assert behind.what.startswith("the clock of broker 2 is 3,600.0 s behind those of broker 1, ")
    # They agree with each other, and not with us.
    for ahead_ms, which in ((5_000, "5.0 s behind"), (-5_000, "5.0 s ahead of")):
        found = the_one(clocks(ahead_ms, ahead_ms + 10), "clocks", Severity.WARNING)
        assert found.what.startswith(f"the clock of this machine is {which} those of broker 1, ")
        assert "run here" in found.do
    # Ours is off, and that of a broker: both are told.
    told = [each.what for each in wrong(clocks(HOUR_MS, HOUR_MS, HOUR_MS, 2 * HOUR_MS))]
    assert ["this machine" in told[1], "broker 4 is 3,600.0 s ahead" in told[0]] == [True, True]


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        # Two clocks, three that all differ, and two of three that may agree with either of two.
        (clocks(3_000), Severity.WARNING),
        (clocks(HOUR_MS, 2 * HOUR_MS), Severity.CRITICAL),
        (
            cluster(
                conditions={
                    1: condition(1, clock_ahead_ms=1_400, clock_doubt_ms=700),
                    2: condition(2, clock_ahead_ms=3_000),
                }
            ),
            Severity.WARNING,
        ),
    ],
)
def test_where_too_few_clocks_agree_nobody_is_blamed(
    facts: ClusterFacts, severity: Severity
) -> None:
    found = the_one(facts, "clocks", severity)
    assert "ahead of that of this machine" in found.what
    assert "too few agree to say which is right" in found.what
    assert "both machines" in found.do


def test_without_an_answer_there_is_no_clock_to_compare() -> None:
    assert not [each for each in wrong(cluster(conditions={})) if each.check == "clocks"]


def test_of_what_is_wrong_with_a_partition_the_worst_is_told() -> None:
    offline = partition(1, isr=(1,), replicas=(1, 2, 3))
    facts = cluster(replace(offline, leader=-1), partition(2), partition(3))
    assert "nobody leads 1 partition: t-0" in the_one(facts, "partitions", Severity.CRITICAL).what
    facts = cluster(partition(1, isr=(1,)), partition(2), partition(3))
    assert "min.insync.replicas" in the_one(facts, "partitions", Severity.CRITICAL).what
    facts = cluster(partition(1, isr=(1, 2)), partition(2), partition(3))
    assert "min ISR is at risk" in the_one(facts, "partitions", Severity.WARNING).what
    lost = partition(1, loss="offsets 3 to 4")
    facts = cluster(lost, partition(2), partition(3))
    assert "may have lost" in the_one(facts, "partitions", Severity.WARNING).what


def test_replicas_that_lag_without_a_risk_for_min_isr() -> None:
    config = {"min.insync.replicas": "1"}
    topic = TopicPicture("id", (partition(1, isr=(1, 2)), partition(2), partition(3)), config)
    facts = cluster(picture={"topics": {"t": topic}})
    assert "not every replica" in the_one(facts, "partitions", Severity.WARNING).what


def test_topics_that_do_not_survive_the_loss_of_a_broker() -> None:
    single = tuple(partition(n, isr=(n,), replicas=(n,)) for n in (1, 2, 3))
    facts = cluster(*single)
    assert "one replica: t" in the_one(facts, "topics", Severity.HINT).what
    topic = TopicPicture("id", tuple(partition(n) for n in (1, 2, 3)), {"min.insync.replicas": "3"})
    facts = cluster(picture={"topics": {"t": topic}})
    assert "every restart" in the_one(facts, "topics", Severity.HINT).what


def test_leaders_that_are_not_where_they_should_be() -> None:
    away = [partition(1, replicas=(n % 3 + 1, n % 3 + 1, 1)) for n in range(12)]
    found = the_one(cluster(*away), "leaders", Severity.WARNING)
    assert "broker 1 leads 12 of 12" in found.what
    assert "elect-leaders" in found.do
    preferred = [partition(1) for _ in range(12)]
    found = the_one(cluster(*preferred), "leaders", Severity.WARNING)
    assert "--brokers 1,2,3" in found.do
    turned = [partition(n % 3 + 1, replicas=((n + 1) % 3 + 1, n % 3 + 1)) for n in range(12)]
    turned = [replace(each, isr=each.replicas) for each in turned]
    found = the_one(cluster(*turned), "leaders", Severity.HINT)
    assert "12 partitions" in found.what
    assert not wrong(cluster(picture={"topics": {}}))


def _move(number: int = 0, *, target: tuple[int, ...] = (1, 2), started_ms: int = 0) -> Move:
    return Move(
        topic="t",
        partition=number,
        original=(1, 3),
        target=target,
        replicas=(1, 2, 3),
        isr=(1, 3),
        leader=1,
        phase=Phase.COPYING,
        started_ms=started_ms,
    )


def _moving(first: list[Move], first_left: int, second: list[Move], left: int) -> ClusterFacts:
    looks = (
        Look(0, Progress(tuple(first), 100, first_left)),
        Look(3_000, Progress(tuple(second), 100, left)),
    )
    return cluster(moves=looks)


def test_a_reassignment_is_stuck_when_nothing_is_copied_though_it_had_the_time() -> None:
    facts = _moving([_move()], 50, [_move()], 50)
    assert (
        "stuck: nothing was copied in 3 s" in the_one(facts, "reassignments", Severity.WARNING).what
    )
    for going in (
        _moving([_move()], 50, [_move()], 40),
        _moving([_move(), _move(1)], 50, [_move()], 50),
        _moving([_move(started_ms=NOW_MS - 5)], 50, [_move(started_ms=NOW_MS - 5)], 50),
    ):
        assert "on the move" in the_one(going, "reassignments", Severity.HINT).what
    assert not wrong(_moving([_move()], 50, [], 0))


def test_a_reassignment_to_a_broker_that_is_away() -> None:
    to_nobody = _move(target=(1, 9), started_ms=NOW_MS)
    first, _ = wrong(_moving([to_nobody], 50, [to_nobody], 50))
    assert "moves to broker 9, which is away" in first.what


def test_groups_without_a_coordinator() -> None:
    facts = cluster(picture={"coordinators": {}, "group_shards": ()})
    assert "no coordinator" in the_one(facts, "groups", Severity.HINT).what
    facts = cluster(picture={"group_shards": ((1, 0), (2, 0), (-1, 0))})
    assert "2 shards" in the_one(facts, "groups", Severity.CRITICAL).what
    facts = cluster(silent_coordinators={1: "refused"})
    assert "k1:1" in the_one(facts, "groups", Severity.CRITICAL).what


def test_many_names_are_not_all_told() -> None:
    assert diagnosis.named(range(5)) == "0, 1, 2, 3, 4"
    assert diagnosis.named(range(7)) == "0, 1, 2, 3, 4 and 2 more"


def test_replicas_that_are_set_aside_are_one_finding_with_what_to_do() -> None:
    kept = [stray(1, kept_until_ms=1_800_000_000_000), stray(1), stray(2)]
    told: dict[int, tuple[StrayReplica, ...] | TailraceError] = {
        1: tuple(kept[:2]),
        2: (kept[2],),
        3: Unreachable("no"),
    }
    found = the_one(replace(cluster(partition(1)), strays=told), "strays", Severity.WARNING)
    assert "3 replicas (6.0 KiB) set aside on broker 1, broker 2: of t-0" in found.what
    assert "the first goes at 2027-01-15T08:00:00.000Z" in found.what
    assert "tailrace brokers strays" in found.do


def of_check(facts: ClusterFacts, check: str) -> list[Finding]:
    return [each for each in examine(facts) if each.check == check]


def test_l1_a_store_that_is_not_believed_is_told_with_who_since_when_and_what_to_do() -> None:
    doubts = {"store_problem": "it is empty", "store_problem_since_ms": 1_794_830_400_123}
    conditions = {1: condition(1, **doubts), 2: condition(2, **doubts), 3: condition(3)}
    (found,) = of_check(replace(cluster(), conditions=conditions), "store")
    assert found.severity is Severity.CRITICAL
    assert "since 2026-11-16T12:00:00.123Z broker 1, broker 2 do not believe" in found.what
    assert "it is empty" in found.what
    assert "put the right store back" in found.do
    assert "tailrace cluster recover" in found.do
    (well,) = of_check(cluster(), "store")
    assert well.severity is Severity.OK


def test_l4_l5_replicas_out_of_service_are_told_apart_by_what_they_need() -> None:
    conflict = error_for(HighWatermarkConflict.code, "t-0: it knows 2,000")
    damaged = error_for(DamagedLog.code, "t-1: a batch is damaged")
    out = (
        OutOfService(TopicPartition("t", 0), conflict),
        OutOfService(TopicPartition("t", 1), damaged),
    )
    told = {2: condition(2, out_of_service=out, out_of_service_count=7)}
    waiting, failed = of_check(replace(cluster(), conditions=told), "replicas")
    assert waiting.severity is Severity.CRITICAL
    assert "t-0" in waiting.what
    assert "it knows 2,000" in waiting.what
    assert failed.severity is Severity.WARNING
    # Those that were only counted are counted here too.
    assert "6 replicas out of service: t-1" in failed.what
    assert "tailrace brokers describe 2" in failed.do


def test_l4_a_partition_that_waits_for_a_person_is_critical() -> None:
    (found, *_) = of_check(
        cluster(partition(-1, replicas=(1, 2, 3), conflict="2 knows more")), "partitions"
    )
    assert found.severity is Severity.CRITICAL
    assert "a person has to decide" in found.what
