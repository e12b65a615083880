"""What a rebuilt store holds: nothing committed is lost, however old copies are (F41, F42)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.meta.copies import (
    CopiedEntry,
    MetadataCopy,
    ReplicaOrderRecord,
    StoredMetadata,
)
from tailrace.meta.keys import (
    CLUSTER,
    CONTROLLER_EPOCH,
    INCARNATIONS,
    NEXT_PRODUCER_ID,
    NO_BROKER,
    BrokerRegistration,
    ClusterRecord,
    ConfigRecord,
    PartitionHistory,
    PartitionState,
    ProducerName,
    ShardOwner,
    TermRecord,
    TopicDeletion,
    TopicRecord,
    TopicTombstone,
    Value,
    broker_key,
    client_config_key,
    decode,
    decode_counter,
    deletion_key,
    encode,
    encode_counter,
    history_key,
    producer_name_key,
    shard_key,
    state_key,
    term_key,
    tombstone_key,
    topic_key,
)
from tailrace.meta.lineage import Standing, Witness
from tailrace.meta.recovery import (
    CAUSE,
    LEADER_EPOCH_MARGIN,
    NAMED_EPOCH_MARGIN,
    PRODUCER_ID_MARGIN,
    SHARD_EPOCH_MARGIN,
    AdoptionPlan,
    BrokerFacts,
    Certainty,
    NothingToRecover,
    PartitionReport,
    RecoveryPlan,
    RecoveryRefused,
    ReplicaFacts,
    adoption_entries,
    expected_brokers,
    plan_adoption,
    plan_recovery,
    stray_topics,
)
from tailrace.meta.store import Entry, Snapshot
from tailrace.model import BrokerId, LeaderEpoch, ProducerId, TopicId, TopicPartition

C, T = "cluster", TopicId("topic-id")
T0 = TopicPartition("t", 0)
EMPTY = Snapshot(1, ())
ALL = (BrokerId(1), BrokerId(2), BrokerId(3))
RECORD = ClusterRecord(cluster_id=C, store_id="first")
WITNESS = Witness(cluster_id=C, store_id="first", revision=100, controller_epoch=3, token="x")


def state(leader: int = 1, epoch: int = 4, isr: tuple[int, ...] = (1, 2, 3)) -> PartitionState:
    return PartitionState(
        controller_epoch=3,
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        isr=tuple(map(BrokerId, isr)),
    )


def topic(partitions: int = 1, topic_id: str = T) -> TopicRecord:
    return TopicRecord(
        topic_id=TopicId(topic_id), assignment=dict.fromkeys(range(partitions), ALL), config={}
    )


def copy(values: Mapping[str, Value | bytes], *, revision: int = 100) -> MetadataCopy:
    entries = {CLUSTER: RECORD, **values}
    return MetadataCopy(
        witness=replace(WITNESS, revision=revision),
        revision=revision,
        taken_ms=0,
        entries=tuple(
            CopiedEntry(key, value if isinstance(value, bytes) else encode(value), 1, revision)
            for key, value in entries.items()
        ),
    )


def order(
    state_: PartitionState, *, revision: int, partition: TopicPartition = T0, topic_id: str = T
) -> ReplicaOrderRecord:
    return ReplicaOrderRecord(
        partition=partition,
        topic_id=TopicId(topic_id),
        state=state_,
        revision=revision,
        replicas=ALL,
        config={},
    )


def replica(end: int, epoch: int, *, led: int = -1, **other: object) -> ReplicaFacts:
    made = ReplicaFacts(
        partition=T0, topic_id=T, log_end=end, last_epoch=epoch, led_epoch=led, high_watermark=0
    )
    return replace(made, **other)  # type: ignore[arg-type]


def broker(
    number: int,
    *replicas: ReplicaFacts,
    stored: MetadataCopy | None = None,
    orders: tuple[ReplicaOrderRecord, ...] = (),
    cluster_id: str = C,
    producer_id_max: int = 0,
) -> BrokerFacts:
    return BrokerFacts(
        broker_id=BrokerId(number),
        cluster_id=cluster_id,
        incarnation=f"i{number}",
        stored=StoredMetadata(copy=stored, orders={each.partition: each for each in orders}),
        replicas=replicas,
        producer_id_max=producer_id_max,
    )


def plan(
    *facts: BrokerFacts, seen: Snapshot = EMPTY, missing: tuple[int, ...] = ()
) -> RecoveryPlan:
    return plan_recovery(
        facts, seen, store_id="second", now_ms=7, accept_missing=frozenset(missing)
    )


def only(found: RecoveryPlan) -> PartitionReport:
    (report,) = found.partitions
    return report


def store(values: Mapping[str, Value | bytes], revision: int = 50) -> Snapshot:
    return Snapshot(
        revision,
        tuple(
            Entry(key, value if isinstance(value, bytes) else encode(value), 1, 2, 0)
            for key, value in values.items()
        ),
    )


KNOWN = copy({topic_key("t"): topic(), state_key(T0): state()})


def test_who_leads_knows_its_isr() -> None:
    """It has shrunk since the copy, and no copy says so."""
    now = order(state(isr=(1, 3)), revision=120)
    found = only(
        plan(
            broker(1, replica(9, 4, led=4), stored=KNOWN, orders=(now,)),
            broker(2, replica(9, 4), stored=KNOWN),
            broker(3, replica(5, 4), stored=KNOWN),
        )
    )
    assert (found.state.isr, found.certainty) == ((1, 3), Certainty.CERTAIN)
    assert (found.state.leader, found.state.leader_epoch) == (NO_BROKER, 4 + LEADER_EPOCH_MARGIN)


def test_where_nobody_leads_the_longest_log_of_the_isr_counts() -> None:
    found = only(
        plan(
            broker(1, replica(8, 4), stored=KNOWN),
            broker(2, replica(9, 4)),
            broker(3, replica(9, 4)),
        )
    )
    assert (found.state.isr, found.certainty) == ((2, 3), Certainty.CERTAIN)


def test_a_log_of_a_later_epoch_shows_a_state_that_nobody_knows() -> None:
    found = only(
        plan(
            broker(1, replica(8, 4), stored=KNOWN),
            broker(2, replica(8, 4)),
            broker(3, replica(6, 7)),
        )
    )
    assert (found.state.isr, found.certainty) == ((3,), Certainty.INFERRED)
    assert found.state.leader_epoch == 7 + LEADER_EPOCH_MARGIN


def test_who_leads_in_an_epoch_that_is_over_knows_nothing() -> None:
    late = order(state(2, 6, (2, 3)), revision=130)
    found = only(
        plan(
            broker(1, replica(20, 4, led=4), stored=KNOWN, orders=(order(state(), revision=90),)),
            broker(2, replica(9, 6)),
            broker(3, replica(9, 6), orders=(late,)),
        )
    )
    assert found.state.isr == (2, 3)


def test_who_leads_while_a_log_shows_a_later_epoch_knows_nothing_either() -> None:
    """Those who knew of the later epoch have started anew, and their copies are older."""
    zombie = broker(1, replica(20, 4, led=4), stored=KNOWN, orders=(order(state(), revision=90),))
    found = only(plan(zombie, broker(2, replica(9, 6)), broker(3, replica(9, 6))))
    assert found.state.isr == (2, 3)


def test_a_store_that_some_believe_is_not_rebuilt() -> None:
    older = replace(copy({}), witness=replace(WITNESS, revision=20), revision=20)
    seen = store({CLUSTER: RECORD, term_key(3): TermRecord(controller_id=1, token="x")})
    with pytest.raises(RecoveryRefused, match="broker 2 has this store for the right one"):
        plan(broker(1, stored=copy({})), broker(2, stored=older), seen=seen)


def test_a_topic_that_was_deleted_and_made_again_is_the_one_that_brokers_obey() -> None:
    again = order(state(isr=(1,)), revision=150, topic_id="again")
    found = plan(broker(1, stored=KNOWN, orders=(again,)), broker(2), broker(3))
    assert decode(TopicRecord, found.entries[topic_key("t")]).topic_id == "again"
    assert any("made again" in each for each in found.notes)


def test_who_answered_is_admitted_with_its_data_and_who_did_not_is_judged_anew() -> None:
    found = plan(*(broker(each, replica(9, 4), stored=KNOWN) for each in ALL))
    assert found.entries[f"{INCARNATIONS}2"] == b"i2"
    assert decode(TopicRecord, found.entries[topic_key("t")]).rebuilt


def test_nothing_is_certain_without_a_broker_that_has_a_replica() -> None:
    """The copies of the others may be older than the last change of the ISR: to broker 3 alone."""
    found = only(
        plan(broker(1, replica(9, 4), stored=KNOWN), broker(2, replica(9, 4)), missing=(3,))
    )
    assert (found.state.isr, found.certainty) == ((1, 2), Certainty.INFERRED)
    assert "without what broker 3 knows" in found.why
    live = order(state(isr=(1, 2)), revision=120)
    led = broker(1, replica(9, 4, led=4), stored=KNOWN, orders=(live,))
    found = only(plan(led, broker(2, replica(9, 4)), missing=(3,)))
    assert found.certainty is Certainty.CERTAIN


def test_an_adoption_needs_every_broker_that_ever_had_data() -> None:
    """Also one that is down, and so not registered: it may have the longest log."""
    seen = store({CLUSTER: RECORD, f"{INCARNATIONS}3": b"i3"})
    with pytest.raises(RecoveryRefused, match="broker 3 has not answered"):
        adoption(broker(1, stray(0, 9)), seen=seen)
    found = plan_adoption(
        [broker(1, stray(0, 9))], seen, name="young", accept_missing=frozenset({3})
    )
    assert found.record.assignment == {0: (1,)}


def test_it_waits_for_those_who_alone_may_hold_everything() -> None:
    last = copy({topic_key("t"): topic(), state_key(T0): state(3, 4, (3,))})
    facts = (broker(1, replica(9, 4), stored=last), broker(2, replica(9, 4)))
    with pytest.raises(RecoveryRefused, match=r"--missing 3"):
        plan(*facts)
    found = only(plan(*facts, missing=(3,)))
    assert (found.state.isr, found.certainty) == ((3,), Certainty.WAITS)
    damaged = replica(-1, -1, problem="it is damaged")
    found = only(plan(*facts, broker(3, damaged)))
    assert (found.state.isr, found.certainty) == ((3,), Certainty.WAITS)


def test_a_log_that_ends_below_what_is_committed_is_told_of() -> None:
    found = only(
        plan(
            broker(1, replica(9, 4), stored=KNOWN),
            broker(2, replica(9, 4)),
            broker(3, replica(-1, -1, problem="damaged", high_watermark=20)),
        )
    )
    assert found.certainty is Certainty.WAITS
    assert "20 is known to be committed" in found.why
    # Nobody is elected before a person has decided.
    assert (found.state.isr, found.state.conflict) == ((), found.why)


def test_a_topic_that_is_younger_than_the_copy() -> None:
    """It is known by the orders; one that no order names by its replicas."""
    younger = order(
        state(isr=(1, 2)), revision=200, partition=TopicPartition("new", 0), topic_id="n"
    )
    bare = replace(replica(3, 0), partition=TopicPartition("bare", 1), topic_id="b")
    found = plan(broker(1, stored=copy({}), orders=(younger,)), broker(2, bare), broker(3))
    new, only_on_disk = found.partitions[1], found.partitions[0]
    assert (str(new.partition), new.replicas) == ("new-0", ALL)
    assert new.certainty is Certainty.WAITS
    assert (str(only_on_disk.partition), only_on_disk.state.isr) == ("bare-1", (2,))
    assert any("bare-0: it will be made anew" in each for each in found.notes)
    assert decode(TopicRecord, found.entries[topic_key("bare")]).assignment == {0: (2,), 1: (2,)}


def test_partitions_that_were_added_after_the_copy() -> None:
    added = order(state(isr=(2,), leader=2), revision=150, partition=TopicPartition("t", 1))
    found = plan(broker(1, stored=KNOWN), broker(2, orders=(added,)), broker(3))
    assert decode(TopicRecord, found.entries[topic_key("t")]).assignment == {0: ALL, 1: ALL}


def test_replicas_that_moved_after_the_copy() -> None:
    moved = replace(order(state(isr=(2, 3), leader=2), revision=150), replicas=(ALL[1], ALL[2]))
    found = plan(broker(1, stored=KNOWN), broker(2, orders=(moved,)), broker(3))
    assert decode(TopicRecord, found.entries[topic_key("t")]).assignment == {0: (2, 3)}


def test_a_deleted_topic_stays_deleted() -> None:
    gone = copy({tombstone_key(T): TopicTombstone(name="t", deleted_ms=1, controller_epoch=1)})
    found = plan(
        broker(1, replica(9, 4), stored=gone),
        seen=store({CLUSTER: RECORD, topic_key("t"): topic(), state_key(T0): state()}),
    )
    assert found.partitions == ()
    assert tombstone_key(T) in found.entries


def test_what_only_an_older_store_knows_stays_if_it_is_a_topic() -> None:
    other = TopicPartition("other", 0)
    seen = store(
        {
            CLUSTER: RECORD,
            topic_key("other"): topic(topic_id="o"),
            state_key(other): state(),
            client_config_key("old"): ConfigRecord(settings={"request_rate": "1"}),
        }
    )
    found = plan(*(broker(each, stored=copy({})) for each in (1, 2, 3)), seen=seen)
    assert found.standing is Standing.OLDER
    assert [str(each.partition) for each in found.partitions] == ["other-0"]
    assert client_config_key("old") not in found.entries
    assert any("go: " in each for each in found.notes)


def test_of_two_topics_of_one_name_the_brokers_count() -> None:
    seen = store({CLUSTER: RECORD, topic_key("t"): topic(topic_id="another")})
    found = plan(*(broker(each, stored=KNOWN) for each in (1, 2, 3)), seen=seen)
    assert decode(TopicRecord, found.entries[topic_key("t")]).topic_id == T
    assert any("theirs is kept" in each for each in found.notes)


def test_the_epoch_is_above_that_of_the_store_too() -> None:
    """A controller may have gone on with the older store, and elected nobody, often."""
    seen = store(
        {
            CLUSTER: RECORD,
            topic_key("t"): topic(),
            state_key(T0): state(3, 30, (3,)),
            CONTROLLER_EPOCH: encode_counter(70),
        }
    )
    found = plan(
        broker(1, replica(9, 4, led=4), stored=KNOWN, orders=(order(state(), revision=90),)),
        broker(2, replica(9, 4)),
        broker(3, replica(9, 4)),
        seen=seen,
    )
    assert only(found).state.leader_epoch == 30 + LEADER_EPOCH_MARGIN
    assert only(found).state.isr == ALL
    assert decode_counter(found.entries[CONTROLLER_EPOCH]) > 70


def test_settings_names_ids_and_shards_come_along() -> None:
    known = copy(
        {
            client_config_key("c"): ConfigRecord(settings={"request_rate": "5"}),
            producer_name_key("p"): ProducerName(producer_id=ProducerId(12), epoch=3),
            producer_name_key("end"): ProducerName(producer_id=ProducerId(13), epoch=32_700),
            NEXT_PRODUCER_ID: encode_counter(1_001),
            shard_key(7): ShardOwner(owner=1, owner_epoch=9, epoch=5),
            broker_key(1): BrokerRegistration(
                broker_id=BrokerId(1),
                host="h",
                port=1,
                link_host="h",
                link_port=2,
                incarnation="i",
                control_host="h",
                control_port=3,
            ),
            "/somebody/elses": b"no JSON",
        }
    )
    facts = broker(1, stored=known, producer_id_max=5_000)
    found = plan(facts)
    entries = found.entries
    assert entries[client_config_key("c")] == encode(ConfigRecord(settings={"request_rate": "5"}))
    assert decode(ProducerName, entries[producer_name_key("p")]).epoch == 3 + NAMED_EPOCH_MARGIN
    assert producer_name_key("end") not in entries
    assert decode_counter(entries[NEXT_PRODUCER_ID]) == 5_001 + PRODUCER_ID_MARGIN
    shard = decode(ShardOwner, entries[shard_key(7)])
    assert (shard.owner, shard.epoch) == (NO_BROKER, 5 + SHARD_EPOCH_MARGIN)
    assert broker_key(1) not in entries
    assert "/somebody/elses" not in entries
    assert expected_brokers([facts]) == {1: "h:3"}


def test_the_change_is_on_record() -> None:
    found = plan(*(broker(each, replica(9, 4), stored=KNOWN) for each in (1, 2, 3)))
    history = decode(PartitionHistory, found.entries[history_key(T0)])
    assert history.changes[0].cause == CAUSE
    assert found.record.former == ("first",)
    assert (found.record.generation, found.record.store_id) == (1, "second")


def test_a_loss_that_is_on_record_stays_on_record() -> None:
    lost = replace(state(), loss="5 to 9", unclean_epoch=4)
    known = copy({topic_key("t"): topic(), state_key(T0): lost})
    live = order(state(isr=(1,)), revision=120)
    found = only(
        plan(
            broker(1, replica(9, 4, led=4), stored=known, orders=(live,)),
            broker(2, replica(9, 4)),
            broker(3, replica(9, 4)),
        )
    )
    assert (found.state.loss, found.state.unclean_epoch) == ("5 to 9", 4)


@pytest.mark.parametrize(
    ("facts", "seen", "why"),
    [
        ((), EMPTY, "no broker has answered"),
        ((broker(1), broker(2, cluster_id="other")), EMPTY, "not of one cluster"),
        ((broker(1), broker(1)), EMPTY, "answered at two addresses"),
        ((broker(1),), store({"/brokers/ids/1": b"{}"}), "names no cluster, but holds"),
        (
            (broker(1),),
            store({CLUSTER: ClusterRecord(cluster_id="x"), topic_key("a"): topic()}),
            "belongs to cluster x and holds 1 of its topics",
        ),
        ((broker(1),), store({CLUSTER: b"{"}), "cannot read"),
        (
            (broker(1, stored=copy({})),),
            store({CLUSTER: replace(RECORD, store_id="elsewhere", generation=5)}),
            "was rebuilt already, as generation 5",
        ),
        ((broker(1, stored=KNOWN),), EMPTY, "brokers 2, 3 have replicas"),
    ],
)
def test_what_is_refused(facts: tuple[BrokerFacts, ...], seen: Snapshot, why: str) -> None:
    with pytest.raises(RecoveryRefused, match=why):
        plan(*facts, seen=seen)


def test_a_store_that_is_right_needs_nothing() -> None:
    with pytest.raises(NothingToRecover):
        plan(broker(1), seen=store({CLUSTER: RECORD}))
    # It was rebuilt, and succeeds the one that the broker knows.
    successor = ClusterRecord(cluster_id=C, store_id="n", generation=1, former=("first",))
    with pytest.raises(NothingToRecover):
        plan(broker(1, stored=copy({})), seen=store({CLUSTER: successor}))


def test_one_that_was_founded_beside_is_succeeded() -> None:
    """A fresh controller has met the empty store before a person did."""
    beside = ClusterRecord(cluster_id="beside", store_id="b")
    found = plan(broker(1, stored=copy({})), seen=store({CLUSTER: beside}))
    assert found.record.cluster_id == C
    assert found.record.former == ("b", "first")


def test_a_rebuild_that_was_broken_off_is_done_again() -> None:
    half = ClusterRecord(
        cluster_id=C, store_id="half", generation=1, former=("first",), recovering="began"
    )
    found = plan(broker(1, stored=copy({})), seen=store({CLUSTER: half}))
    assert found.standing is Standing.RECOVERING
    assert (found.record.generation, found.record.former) == (2, ("half", "first"))


def test_without_any_copy_the_logs_speak() -> None:
    found = plan(*(broker(each, replica(each, 2)) for each in (1, 2, 3)))
    report = only(found)
    assert (report.state.isr, report.certainty) == ((3,), Certainty.INFERRED)
    assert any("no broker has a copy" in each for each in found.notes)


def test_a_stray_counts_where_there_is_no_other() -> None:
    stray = replica(9, 4, stray=True)
    found = plan(broker(1, stray), broker(2, replica(3, 4)))
    assert only(found).state.isr == (1,)


# ------------------------------------------------------------------------------------- adoption

RIGHT = store({CLUSTER: RECORD})


def stray(number: int, end: int, epoch: int = 4, **other: Any) -> ReplicaFacts:
    partition = TopicPartition("young", number)
    return replica(end, epoch, stray=True, partition=partition, topic_id="y", **other)


def adoption(*facts: BrokerFacts, seen: Snapshot = RIGHT, topic_id: str = "") -> AdoptionPlan:
    return plan_adoption(facts, seen, name="young", topic_id=topic_id)


def test_what_was_set_aside_is_found_and_taken_back() -> None:
    facts = (broker(1, stray(0, 9), stray(1, 3)), broker(2, stray(0, 8), stray(1, 3)))
    assert stray_topics(facts, RIGHT) == {"young": {"y"}}
    found = adoption(*facts)
    assert found.record.assignment == {0: (1, 2), 1: (2, 1)}
    assert [each.state.isr for each in found.partitions] == [(1,), (2, 1)]
    assert {each.state.leader_epoch for each in found.partitions} == {4 + LEADER_EPOCH_MARGIN}
    entries = adoption_entries(found, 1)
    assert set(entries[0]) == {
        state_key(TopicPartition("young", 0)),
        history_key(TopicPartition("young", 0)),
    }


def test_an_adoption_that_was_broken_off_goes_on() -> None:
    half = TopicRecord(topic_id=TopicId("y"), assignment={0: (ALL[0],)}, config={})
    seen = store({CLUSTER: RECORD, topic_key("young"): half})
    facts = broker(1, stray(0, 9), stray(1, 3))
    assert stray_topics([facts], seen) == {"young": {"y"}}
    found = adoption(facts, seen=seen)
    assert (found.present, [str(each.partition) for each in found.partitions]) == (1, ["young-1"])
    assert found.record.assignment == {0: (1,), 1: (1,)}
    assert found.topic_revision == 2
    whole = replace(half, assignment={0: (ALL[0],), 1: (ALL[0],)})
    assert stray_topics([facts], store({topic_key("young"): whole})) == {}


@pytest.mark.parametrize(
    ("facts", "seen", "topic_id", "why"),
    [
        ((broker(1),), RIGHT, "", "of these there are: none"),
        ((broker(1, stray(0, 9)),), RIGHT, "z", "with the ids \\['y'\\], not z"),
        (
            (broker(1, stray(0, 9)), broker(2, replace(stray(0, 9), topic_id="z"))),
            RIGHT,
            "",
            "say which",
        ),
        (
            (broker(1, stray(0, 9)),),
            store({CLUSTER: RECORD, topic_key("young"): topic(topic_id="other")}),
            "",
            "there is another topic",
        ),
        (
            (broker(1, stray(0, 9)),),
            store(
                {
                    CLUSTER: RECORD,
                    tombstone_key("y"): TopicTombstone(
                        name="young", deleted_ms=1, controller_epoch=1
                    ),
                }
            ),
            "",
            "was deleted, as the store has on record",
        ),
        (
            (broker(1, stray(0, 9)),),
            store({CLUSTER: RECORD, deletion_key("young"): TopicDeletion(topic_id=TopicId("y"))}),
            "",
            "is being deleted",
        ),
        (
            (broker(1, stray(0, 9)),),
            store({CLUSTER: RECORD, broker_key(2): b"{}"}),
            "",
            "broker 2 has not answered, and may have more",
        ),
        ((broker(1, stray(0, 9, problem="rotten")),), RIGHT, "", "not taken back"),
        (
            (broker(1, stray(0, 9)), broker(2, stray(0, -1, problem="rotten", high_watermark=20))),
            RIGHT,
            "",
            "20 is known to be committed",
        ),
    ],
)
def test_what_is_not_taken_back(
    facts: tuple[BrokerFacts, ...], seen: Snapshot, topic_id: str, why: str
) -> None:
    with pytest.raises(RecoveryRefused, match=why):
        adoption(*facts, seen=seen, topic_id=topic_id)


# ------------------------------------------------------------------- all that can have happened


@dataclass
class Node:
    log: list[int] = field(default_factory=list)
    # The epoch in which it believes to lead, and the last one in its log.
    leads: int = -1
    epoch: int = -1
    order: ReplicaOrderRecord | None = None
    copied: MetadataCopy | None = None


class World:
    """One partition on three brokers, with a store, as the real ones behave."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.nodes = {each: Node() for each in ALL}
        self.state = state(1, 0, (1, 2, 3))
        self.revision = 10
        self.committed: list[int] = []
        self.nodes[ALL[0]].leads = 0
        for each in ALL:
            self.obey(each)
            self.copy(each)

    def step(self) -> None:
        what = self.rng.choice(
            [
                self.append,
                self.append,
                self.catch_up,
                self.catch_up,
                self.shrink,
                self.expand,
                self.elect,
                self.note,
                self.take_copy,
            ]
        )
        what()
        self.commit()

    @property
    def leader(self) -> Node:
        return self.nodes[self.state.leader]

    def append(self) -> None:
        self.leader.log += [self.state.leader_epoch] * self.rng.randint(1, 3)
        self.leader.epoch = self.state.leader_epoch

    def catch_up(self) -> None:
        """A follower of the newest epoch cuts what its leader lacks, and takes some more."""
        each = self.rng.choice([other for other in ALL if other != self.state.leader])
        node, mine = self.nodes[each], self.nodes[each].log
        theirs = self.leader.log
        same = next(
            (at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b),
            min(len(mine), len(theirs)),
        )
        node.leads = -1
        del mine[same:]
        mine += theirs[same : same + self.rng.randint(0, 4)]
        node.epoch = mine[-1] if mine else -1

    def commit(self) -> None:
        """What every member of the ISR has, in the logs of this epoch, is committed."""
        ends = []
        for each in self.state.isr:
            mine, theirs = self.nodes[each].log, self.leader.log
            end = next(
                (at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b),
                min(len(mine), len(theirs)),
            )
            ends.append(end)
        if min(ends) > len(self.committed) and len(self.state.isr) >= 1:
            self.committed = self.leader.log[: min(ends)]

    def change(self, new: PartitionState) -> None:
        self.state = new
        self.revision += 1
        # The leader knows at once what it has written; others hear of it later, or never.
        self.obey(self.state.leader)

    def shrink(self) -> None:
        others = [each for each in self.state.isr if each != self.state.leader]
        if others:
            gone = self.rng.choice(others)
            self.change(replace(self.state, isr=tuple(e for e in self.state.isr if e != gone)))

    def expand(self) -> None:
        for each in ALL:
            log = self.nodes[each].log
            is_there = len(log) >= len(self.committed) and log == self.leader.log[: len(log)]
            if (
                each not in self.state.isr
                and is_there
                and (log[-1:] == [self.state.leader_epoch] or log == self.leader.log)
            ):
                self.change(replace(self.state, isr=(*self.state.isr, each)))
                return

    def elect(self) -> None:
        """Somebody else in sync leads; whoever led may not hear of it."""
        candidates = [each for each in self.state.isr if each != self.state.leader]
        if not candidates:
            return
        new = self.rng.choice(candidates)
        epoch = LeaderEpoch(self.state.leader_epoch + 1)
        if self.rng.random() < 0.7:
            self.leader.leads = -1
        # A leader assigns its epoch to its log before it does anything else.
        self.nodes[new].leads = self.nodes[new].epoch = epoch
        self.change(replace(self.state, leader=new, leader_epoch=epoch))

    def obey(self, each: BrokerId) -> None:
        self.nodes[each].order = order(self.state, revision=self.revision)

    def note(self) -> None:
        self.obey(self.rng.choice(ALL))

    def take_copy(self) -> None:
        self.copy(self.rng.choice(ALL))

    def copy(self, each: BrokerId) -> None:
        self.nodes[each].copied = copy(
            {topic_key("t"): topic(), state_key(T0): self.state}, revision=self.revision
        )

    def facts(self, restarted: frozenset[BrokerId]) -> list[BrokerFacts]:
        found = []
        for each, node in self.nodes.items():
            told = node.order if each not in restarted or self.rng.random() < 0.5 else None
            log = node.log
            mine = replica(
                len(log),
                node.epoch,
                led=-1 if each in restarted else node.leads,
            )
            found.append(
                broker(each, mine, stored=node.copied, orders=() if told is None else (told,))
            )
        return found


@settings(max_examples=400, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 60),
    restarted=st.sets(st.sampled_from(ALL)),
)
def test_whoever_is_in_sync_holds_all_that_was_committed(
    seed: int, steps: int, restarted: set[BrokerId]
) -> None:
    world = World(Random(seed))
    for _ in range(steps):
        world.step()
    found = only(plan(*world.facts(frozenset(restarted))))
    assert found.state.isr
    for each in found.state.isr:
        assert world.nodes[each].log[: len(world.committed)] == world.committed
    newest = max(max(node.log, default=-1) for node in world.nodes.values())
    assert found.state.leader_epoch > max(newest, world.state.leader_epoch)
