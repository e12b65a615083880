"""What a lost or outdated metadata store should hold, worked out from what the brokers know.

`plan_recovery` takes the facts of all brokers and the store as it is found, and returns every key
that the rebuilt store gets, with a report of what is certain and what was inferred. It keeps to
these rules:

- The newest copy of the metadata is the base. Orders that a broker obeyed later correct it.
- Who leads a partition now knows its ISR, since nobody can change it without the store. Where
  nobody leads, only those replicas of the last known ISR stay in it that have the longest log of
  the newest epoch: whatever was committed is in there, even when a later ISR is not known.
- Epochs are raised above every epoch that a log, an order or the store knows, and nobody leads
  yet, so that controllers elect and no epoch is used twice.
- What a broker knows goes before what the old store says; topics that only the store knows stay.

This module is pure. `tailrace.meta.rebuild` writes a plan, `tailrace.client.recovery_facts` asks
brokers for their facts. Enter at `plan_recovery`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from tailrace.errors import CorruptCheckpoint, TailraceError
from tailrace.meta.copies import MetadataCopy, ReplicaOrderRecord, StoredMetadata
from tailrace.meta.fields import number_of
from tailrace.meta.keys import (
    BROKERS,
    CLUSTER,
    CONTROLLER_EPOCH,
    INCARNATIONS,
    NEXT_PRODUCER_ID,
    NO_BROKER,
    PRODUCER_NAMES,
    BrokerRegistration,
    ClusterRecord,
    Kind,
    LeaderChange,
    PartitionHistory,
    PartitionState,
    Place,
    ProducerName,
    ShardOwner,
    TopicRecord,
    decode,
    decode_counter,
    deletion_key,
    encode,
    encode_counter,
    history_key,
    is_ours,
    place_of,
    state_key,
    tombstone_key,
    topic_key,
)
from tailrace.meta.lineage import Judgement, Standing, Witness, judge
from tailrace.meta.store import Entry, Snapshot
from tailrace.model import (
    FIRST_PRODUCER_ID,
    PRODUCER_EPOCH_MAX,
    BrokerId,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)

# What a copy that is a little old may lack: ids, epochs of names and epochs of shards are raised by
# more than anybody can have used since.
PRODUCER_ID_MARGIN: Final = 1_000_000
NAMED_EPOCH_MARGIN: Final = 100
SHARD_EPOCH_MARGIN: Final = 1_000
CONTROLLER_EPOCH_MARGIN: Final = 100
# A broker that is not heard may have led alone, in epochs that nobody else knows.
LEADER_EPOCH_MARGIN: Final = 1_000
# Stores that a rebuilt one names as its predecessors.
FORMER_MAX: Final = 32

CAUSE: Final = "the metadata store was rebuilt from the brokers"

# Keys of processes that live, and of this store alone: whoever lives writes its own anew.
_NOT_COPIED: Final = frozenset(
    {
        Kind.CONTROLLER,
        Kind.CONTROLLER_EPOCH,
        Kind.CLUSTER,
        Kind.TERM,
        Kind.BROKER,
        Kind.COORDINATOR,
        Kind.HISTORY,
        Kind.TOPIC,
        Kind.STATE,
        Kind.NEXT_PRODUCER_ID,
        Kind.PRODUCER_NAME,
        Kind.SHARD,
    }
)


class RecoveryRefused(TailraceError):
    """The store is not rebuilt: the reason, and what to do."""


class NothingToRecover(TailraceError):
    """The store is the right one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """One replica on a broker's disks. `led_epoch`: the epoch in which it leads now, or -1.

    `log_end`: -1 where the log cannot be read. `problem`: why it cannot vouch for what it had.
    """

    partition: TopicPartition
    topic_id: str
    led_epoch: int = -1
    log_start: int = 0
    log_end: int = -1
    high_watermark: int = 0
    last_epoch: int = -1
    problem: str = ""
    stray: bool = False

    @property
    def position(self) -> tuple[int, int]:
        """How far the log got: of two that are compared, the higher one has all that is committed.

        As for an election among logs: a record that was committed in an epoch is in every log of
        that epoch that is at least as long, and in every log that got on to a later epoch.
        """
        return self.last_epoch, self.log_end


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """What one broker knows. `stored`: its copy of the metadata, with its orders of this moment."""

    broker_id: BrokerId
    cluster_id: str
    incarnation: str
    stored: StoredMetadata
    replicas: tuple[ReplicaFacts, ...] = ()
    store_problem: str = ""
    producer_id_max: int = 0


class Certainty(Enum):
    """How well a partition's state is known."""

    CERTAIN = "certain"
    INFERRED = "inferred"
    WAITS = "waits"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """What the rebuilt store says of a partition, and why."""

    partition: TopicPartition
    topic_id: str
    state: PartitionState
    replicas: tuple[BrokerId, ...]
    certainty: Certainty
    why: str
    log_end: int = -1
    high_watermark: int = -1
    # Its leader goes on leading, and has said so.
    is_led: bool = False

    def as_dict(self) -> dict[str, object]:
        """Return what a program gets to see."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "topic_id": self.topic_id,
            "replicas": list(self.replicas),
            "isr": list(self.state.isr),
            "leader_epoch": self.state.leader_epoch,
            "log_end": self.log_end,
            "high_watermark": self.high_watermark,
            "certainty": self.certainty.value,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """Every key of the rebuilt store, but the cluster's record; and what is told of it.

    `found`: the cluster's record as it stands in the store, and its revision (0: there is none).
    `seen`: the keys that the plan was made from, with their revisions.
    """

    record: ClusterRecord
    found: ClusterRecord | None
    found_revision: int
    entries: Mapping[str, bytes]
    standing: Standing
    problem: str
    base: Witness | None
    partitions: tuple[PartitionReport, ...]
    notes: tuple[str, ...] = ()
    missing: tuple[BrokerId, ...] = ()
    seen: Mapping[str, int] = field(default_factory=dict)

    @property
    def topics(self) -> int:
        return len({each.partition.topic for each in self.partitions})

    def count(self, certainty: Certainty) -> int:
        """How many partitions are known so well."""
        return sum(each.certainty is certainty for each in self.partitions)


def expected_brokers(facts: Iterable[BrokerFacts]) -> dict[BrokerId, str]:
    """Return the brokers that the metadata names, each with its control address if it is known."""
    found: dict[BrokerId, str] = {}
    copies = sorted((each for each in facts), key=_age)
    for each in copies:
        if each.stored.copy is None:
            continue
        for entry in each.stored.copy.entries:
            place = place_of(entry.key)
            if place is not None and place.kind is Kind.BROKER:
                found[BrokerId(place.number)] = _control_address(entry.key, entry.value)
    for each in copies:
        for order in each.stored.orders.values():
            for broker in order.replicas:
                found.setdefault(broker, "")
    return found


def plan_recovery(
    facts: Sequence[BrokerFacts],
    seen: Snapshot,
    *,
    store_id: str,
    now_ms: int,
    accept_missing: frozenset[int] = frozenset(),
) -> RecoveryPlan:
    """Work out the rebuilt store. RecoveryRefused, NothingToRecover.

    `seen`: all keys of the store as it is. `store_id`: a new id for the rebuilt store.
    `accept_missing`: brokers that will not answer, as a person has said.
    """
    if not facts:
        raise RecoveryRefused("no broker has answered: a store is rebuilt from what brokers know")
    cluster_id = _one_cluster(facts)
    found, revision = _cluster_record(seen)
    judgement = _judge_all(facts, seen)
    _check_lineage(facts, found, cluster_id, seen)
    newest = max(facts, key=_age)
    base = newest.stored.copy
    builder = _Builder(facts, base, seen)
    topics = builder.topics()
    missing = _missing(facts, topics, accept_missing)
    partitions = builder.partitions(topics)
    former = _former(facts, found)
    generation = 1 + max(
        0 if found is None else found.generation,
        *(0 if each.stored.copy is None else each.stored.copy.witness.generation for each in facts),
    )
    entries = {
        **builder.others(),
        **{topic_key(name): encode(replace(e.record, rebuilt=True)) for name, e in topics.items()},
        **_partition_entries(partitions, now_ms),
        CONTROLLER_EPOCH: encode_counter(builder.controller_epoch),
    }
    return RecoveryPlan(
        record=ClusterRecord(
            cluster_id=cluster_id, store_id=store_id, generation=generation, former=former
        ),
        found=found,
        found_revision=revision,
        entries=entries,
        standing=judgement.standing,
        problem=judgement.problem,
        base=None if base is None else base.witness,
        partitions=tuple(partitions),
        notes=tuple(builder.notes),
        missing=missing,
        seen=settled_keys(seen),
    )


def settled_keys(seen: Snapshot) -> dict[str, int]:
    """Return the keys of a store that do not come and go with processes, with their revisions."""
    return {
        each.key: each.mod_revision
        for each in seen.entries
        if not each.lease
        and is_ours(each.key)
        and not each.key.startswith((CLUSTER, CONTROLLER_EPOCH, NEXT_PRODUCER_ID))
    }


# ------------------------------------------------------------------------- may it be rebuilt


def _one_cluster(facts: Sequence[BrokerFacts]) -> str:
    by_id: dict[str, list[int]] = {}
    for each in facts:
        by_id.setdefault(each.cluster_id, []).append(each.broker_id)
    numbers = [each.broker_id for each in facts]
    twice = sorted({each for each in numbers if numbers.count(each) > 1})
    if twice:
        raise RecoveryRefused(f"brokers {twice} answered at two addresses: name each one once")
    if len(by_id) > 1 or "" in by_id:
        told = "; ".join(f"brokers {all_} of {each or 'none'}" for each, all_ in by_id.items())
        raise RecoveryRefused(f"the brokers are not of one cluster: {told}")
    return facts[0].cluster_id


def _cluster_record(seen: Snapshot) -> tuple[ClusterRecord | None, int]:
    for entry in seen.entries:
        if entry.key == CLUSTER:
            try:
                return decode(ClusterRecord, entry.value, key=CLUSTER), entry.mod_revision
            except CorruptCheckpoint as error:
                raise RecoveryRefused(
                    f"the store holds something that this version cannot read: {error}"
                ) from error
    return None, 0


def _judge_all(facts: Sequence[BrokerFacts], seen: Snapshot) -> Judgement:
    """Find what the first broker that does not believe the store says of it."""
    cluster = Snapshot(
        seen.revision,
        tuple(each for each in seen.entries if each.key.startswith(CLUSTER)),
    )
    judged = [judge(_witness(each), cluster) for each in facts]
    doubts = [each for each in judged if not each.standing.is_believed]
    believers = [
        int(each.broker_id)
        for each, found in zip(facts, judged, strict=True)
        if found.standing.is_believed and each.stored.copy is not None
    ]
    if doubts and believers:
        raise RecoveryRefused(
            f"{_named(believers)} this store for the right one, and others do not believe it "
            f"({doubts[0].problem}): put right which brokers are on the wrong side first "
            "(docs/store-recovery.md)"
        )
    if doubts:
        return doubts[0]
    if judged[0].standing is Standing.UNFOUNDED:
        return judged[0]
    raise NothingToRecover(
        "the metadata store is the one that the brokers know: there is nothing to rebuild"
    )


def _witness(each: BrokerFacts) -> Witness:
    copy = each.stored.copy
    return Witness(cluster_id=each.cluster_id) if copy is None else copy.witness


def _check_lineage(
    facts: Sequence[BrokerFacts], found: ClusterRecord | None, cluster_id: str, seen: Snapshot
) -> None:
    """Nothing is overwritten that is newer, or that is another cluster's."""
    if found is None:
        others = [each.key for each in seen.entries if place_of(each.key) is not None]
        if others:
            raise RecoveryRefused(
                f"the store names no cluster, but holds {len(others)} of its keys, "
                f"{others[0]} the first: empty it, or name the right etcd and namespace"
            )
        return
    if found.cluster_id != cluster_id:
        topics = sum(
            place is not None and place.kind is Kind.TOPIC
            for place in (place_of(each.key) for each in seen.entries)
        )
        if topics:
            raise RecoveryRefused(
                f"the store belongs to cluster {found.cluster_id} and holds {topics} of its "
                f"topics, and the brokers are of {cluster_id}: name the right etcd and namespace"
            )
        return
    _check_branches(facts)
    newest = max(_witness(each).generation for each in facts)
    if found.generation > newest and not found.recovering:
        raise RecoveryRefused(
            f"the store was rebuilt already, as generation {found.generation}, and no broker has "
            f"been with it yet (they know generation {newest}): start them with it, or put "
            "the store back that they know"
        )


def _check_branches(facts: Sequence[BrokerFacts]) -> None:
    """All copies are of one history: of two branches nobody can say which one counts."""
    base = max(facts, key=_age)
    copy = base.stored.copy
    if copy is None:
        return
    seen = Snapshot(
        copy.revision,
        tuple(
            Entry(each.key, each.value, each.create_revision, each.mod_revision, 0)
            for each in copy.entries
            if each.key.startswith(CLUSTER)
        ),
    )
    if not judge(copy.witness, seen).standing.is_believed:
        # Made by a version that noted no terms: nothing can be told apart.
        return
    for each in facts:
        found = judge(_witness(each), seen)
        if not found.standing.is_believed:
            raise RecoveryRefused(
                f"brokers {base.broker_id} and {each.broker_id} know two different histories of "
                f"the store ({found.problem}): put the store back that most brokers know, or move "
                "the files metadata-copy and store-witness of the broker that is wrong away"
            )


def _missing(
    facts: Sequence[BrokerFacts], topics: Mapping[str, _Topic], accepted: frozenset[int]
) -> tuple[BrokerId, ...]:
    """Brokers that hold replicas and have not answered; RecoveryRefused unless all are accepted."""
    there = {each.broker_id for each in facts}
    named = {
        broker
        for topic in topics.values()
        for replicas in topic.record.assignment.values()
        for broker in replicas
    }
    missing = tuple(sorted(named - there))
    unknown = [each for each in missing if each not in accepted]
    if unknown:
        flags = " ".join(f"--missing {each}" for each in unknown)
        raise RecoveryRefused(
            f"{_named(unknown)} replicas of this cluster and did not answer: start what is down, "
            f"name its control port, or go on without what it knows: {flags}"
        )
    return missing


def _former(facts: Sequence[BrokerFacts], found: ClusterRecord | None) -> tuple[str, ...]:
    """Every store that some process may know, the newest first."""
    known: dict[str, None] = {}
    if found is not None:
        known |= dict.fromkeys((found.store_id, *found.former))
    for each in sorted(facts, key=_age, reverse=True):
        copy = each.stored.copy
        if copy is None:
            continue
        known[copy.witness.store_id] = None
        for entry in copy.entries:
            if entry.key == CLUSTER:
                record = decode(ClusterRecord, entry.value, key=CLUSTER)
                known |= dict.fromkeys((record.store_id, *record.former))
    return tuple(each for each in known if each)[:FORMER_MAX]


# ------------------------------------------------------------------------------ what it holds


class _Topic(NamedTuple):
    record: TopicRecord
    # What part of it was not in the copy.
    inferred: str = ""
    # Nothing of it is known to the brokers: it stays as the store has it.
    from_store: bool = False


class _Claim(NamedTuple):
    """What somebody says of a partition's state; of two the one that sorts higher is newer."""

    leader_epoch: int
    is_leaders_own: bool
    revision: int
    source: str
    state: PartitionState


class _Builder:
    """Puts the keys together. `notes` gathers what a person should know."""

    def __init__(
        self, facts: Sequence[BrokerFacts], copy: MetadataCopy | None, seen: Snapshot
    ) -> None:
        self.facts, self.copy = facts, copy
        self._heard = {each.broker_id for each in facts}
        self.notes: list[str] = []
        self._base = {} if copy is None else {each.key: each.value for each in copy.entries}
        self._revisions = {} if copy is None else {e.key: e.mod_revision for e in copy.entries}
        self._store = {each.key: each.value for each in seen.entries}
        if copy is None:
            self.notes.append(
                "no broker has a copy of the metadata: settings, quotas and names are lost, and "
                "topics are known by their replicas alone"
            )

    @property
    def controller_epoch(self) -> int:
        """An epoch above all that a controller can have had."""
        known = [_epoch_in(self._base), _epoch_in(self._store)]
        known += [
            0 if each.stored.copy is None else _witness(each).controller_epoch
            for each in self.facts
        ]
        return max(known) + CONTROLLER_EPOCH_MARGIN

    # Topics.

    def topics(self) -> dict[str, _Topic]:
        """Every topic of the rebuilt store, by its name."""
        found: dict[str, _Topic] = {}
        for name, record in _topics_in(self._base):
            found[name] = _Topic(record)
        gone = self._tombstones() | {each.record.topic_id for each in found.values()}
        for name, topic_id in self._unknown_ids(gone):
            self._add_topic(found, name, topic_id)
        found = {name: self._with_orders(name, topic) for name, topic in found.items()}
        self._add_from_store(found)
        return found

    def _tombstones(self) -> set[str]:
        places = (place_of(key) for key in self._base)
        return {each.name for each in places if each is not None and each.kind is Kind.TOMBSTONE}

    def _unknown_ids(self, known: set[str]) -> list[tuple[str, TopicId]]:
        """Topics that brokers have orders for or replicas of, and that the copy does not know."""
        unknown: dict[tuple[str, TopicId], None] = {}
        for each in self.facts:
            for order in each.stored.orders.values():
                unknown[order.partition.topic, order.topic_id] = None
            for replica in each.replicas:
                unknown[replica.partition.topic, TopicId(replica.topic_id)] = None
        return [each for each in unknown if each[1] and each[1] not in known]

    def _add_topic(self, found: dict[str, _Topic], name: str, topic_id: TopicId) -> None:
        copied = -1 if self.copy is None else self.copy.revision
        newer = [each for each in self._orders(name, topic_id).values() if each.revision > copied]
        if name in found and newer:
            former = found.pop(name).record.topic_id
            self.notes.append(
                f"topic {name} was deleted and made again after the copy: {former} gives way to "
                f"{topic_id}, which brokers obey"
            )
        if name in found:
            self.notes.append(
                f"brokers hold replicas of a topic {name} with id {topic_id}, and {name} is "
                f"{found[name].record.topic_id} now: they will be set aside"
            )
            return
        orders = self._orders(name, topic_id)
        holders = self._holders(name, topic_id)
        assignment: dict[int, tuple[BrokerId, ...]] = {
            number: tuple(sorted(brokers)) for number, brokers in holders.items()
        }
        assignment |= {number: each.replicas for number, each in orders.items()}
        config = max(orders.values(), key=_order_age).config if orders else {}
        known = "the orders of brokers" if orders else "the replicas on disk"
        inferred = f"the copy does not know the topic; taken from {known}"
        for number in range(max(assignment)):
            if number not in assignment:
                assignment[number] = assignment[min(each for each in assignment if each > number)]
                self.notes.append(f"no broker knows {name}-{number}: it will be made anew, empty")
        record = TopicRecord(topic_id=topic_id, assignment=assignment, config=config)
        found[name] = _Topic(record, inferred)

    def _with_orders(self, name: str, topic: _Topic) -> _Topic:
        """Take what orders that came after the copy say of the replicas."""
        record = topic.record
        assignment = dict(record.assignment)
        copied = -1 if self.copy is None else self.copy.revision
        for number, order in sorted(self._orders(name, record.topic_id).items()):
            is_next = number == len(assignment)
            if is_next or (order.revision > copied and number in assignment and order.replicas):
                assignment[number] = order.replicas
        if assignment == record.assignment:
            return topic
        return topic._replace(record=replace(record, assignment=assignment))

    def _add_from_store(self, found: dict[str, _Topic]) -> None:
        gone = self._tombstones()
        for name, record in _topics_in(self._store):
            if name in found:
                if found[name].record.topic_id != record.topic_id:
                    self.notes.append(
                        f"the store has a topic {name} with id {record.topic_id}, and brokers "
                        f"know {name} as {found[name].record.topic_id}: theirs is kept"
                    )
                continue
            if record.topic_id in gone:
                continue
            found[name] = _Topic(record, "only the store knows it", from_store=True)
            self.notes.append(f"only the store knows topic {name}: it stays as it is there")

    def _orders(self, name: str, topic_id: str) -> dict[int, ReplicaOrderRecord]:
        """The newest order for each partition of a topic."""
        found: dict[int, ReplicaOrderRecord] = {}
        for each in self.facts:
            for partition, order in each.stored.orders.items():
                if partition.topic != name or order.topic_id != topic_id:
                    continue
                known = found.get(partition.partition)
                if known is None or _order_age(order) > _order_age(known):
                    found[partition.partition] = order
        return found

    def _holders(self, name: str, topic_id: str) -> dict[int, set[BrokerId]]:
        found: dict[int, set[BrokerId]] = {}
        for each in self.facts:
            for replica in each.replicas:
                if replica.partition.topic == name and replica.topic_id == topic_id:
                    found.setdefault(replica.partition.partition, set()).add(each.broker_id)
        return found

    # Partitions.

    def partitions(self, topics: Mapping[str, _Topic]) -> list[PartitionReport]:
        """Return the state of every partition that anybody knows."""
        claims = self._claims()
        replicas = self._replicas()
        reports = []
        for name in sorted(topics):
            topic = topics[name]
            topic_id = topic.record.topic_id
            for number, assigned in sorted(topic.record.assignment.items()):
                partition = TopicPartition(name, number)
                key = (partition, topic_id)
                report = _judge_partition(
                    partition,
                    topic,
                    assigned,
                    _newest(claims.get(key, ())),
                    replicas.get(key, {}),
                    stored=self._stored_state(partition, topic_id),
                )
                if report is not None:
                    reports.append(self._without_silent(report))
        return reports

    def _without_silent(self, report: PartitionReport) -> PartitionReport:
        """Nothing is certain where a replica's broker did not answer, unless somebody leads."""
        silent = [each for each in report.replicas if each not in self._heard]
        if not silent or report.is_led or report.certainty is Certainty.WAITS:
            return report
        numbers = ", ".join(map(str, silent))
        why = f"{report.why}; without what broker {numbers} knows, which may hold more"
        return replace(report, certainty=Certainty.INFERRED, why=why)

    def _claims(self) -> dict[tuple[TopicPartition, str], list[_Claim]]:
        found: dict[tuple[TopicPartition, str], list[_Claim]] = {}
        for name, record in _topics_in(self._base):
            for number in record.assignment:
                partition = TopicPartition(name, number)
                value = self._base.get(state_key(partition))
                if value is not None:
                    state = decode(PartitionState, value, key=state_key(partition))
                    revision = self._revisions[state_key(partition)]
                    claim = _Claim(state.leader_epoch, False, revision, "the copy", state)
                    found.setdefault((partition, record.topic_id), []).append(claim)
        for each in self.facts:
            for partition, order in each.stored.orders.items():
                claim = _Claim(
                    order.state.leader_epoch,
                    order.state.leader == each.broker_id,
                    order.revision,
                    f"broker {each.broker_id}",
                    order.state,
                )
                found.setdefault((partition, order.topic_id), []).append(claim)
        return found

    def _replicas(self) -> dict[tuple[TopicPartition, str], dict[BrokerId, ReplicaFacts]]:
        """The best replica that each broker has: strays are taken back where there is no other."""
        found: dict[tuple[TopicPartition, str], dict[BrokerId, ReplicaFacts]] = {}
        for each in self.facts:
            for replica in sorted(each.replicas, key=lambda it: (not it.stray, it.position)):
                key = (replica.partition, replica.topic_id)
                found.setdefault(key, {})[each.broker_id] = replica
        return found

    def _stored_state(self, partition: TopicPartition, topic_id: str) -> PartitionState | None:
        """What the store itself says, where it means the same topic."""
        topic, state = (
            self._store.get(topic_key(partition.topic)),
            self._store.get(state_key(partition)),
        )
        if topic is None or state is None:
            return None
        try:
            record = decode(TopicRecord, topic)
            return decode(PartitionState, state) if record.topic_id == topic_id else None
        except CorruptCheckpoint:
            return None

    # The rest.

    def others(self) -> dict[str, bytes]:
        """Settings, cordons, reassignments, deletions, producers, shards of groups."""
        found: dict[str, bytes] = {}
        for key, value in self._base.items():
            place = place_of(key)
            if is_ours(key) and (place is None or place.kind not in _NOT_COPIED):
                found[key] = value
        dropped = [
            key
            for key in self._store
            if (place := place_of(key)) is not None
            and place.kind not in _NOT_COPIED
            and key not in self._base
        ]
        if dropped:
            self.notes.append(
                f"{len(dropped)} keys of the store are older than the copy, or were written beside "
                f"it, and go: {', '.join(dropped[:5])}{', …' if len(dropped) > 5 else ''}"
            )
        found |= self.numbers()
        # Without it a broker that is not in the copy would count as one that lost its data.
        for each in self.facts:
            found.setdefault(f"{INCARNATIONS}{each.broker_id}", each.incarnation.encode())
        return found

    def numbers(self) -> dict[str, bytes]:
        """Ids and epochs above all that can have been used."""
        return {**self._producers(), **self._shards()}

    def _producers(self) -> dict[str, bytes]:
        names = {
            **_of_kind(self._store, Kind.PRODUCER_NAME),
            **_of_kind(self._base, Kind.PRODUCER_NAME),
        }
        found: dict[str, bytes] = {}
        highest = FIRST_PRODUCER_ID
        for key, value in names.items():
            known = decode(ProducerName, value, key=key)
            highest = max(highest, known.producer_id + 1)
            epoch = known.epoch + NAMED_EPOCH_MARGIN
            if epoch > PRODUCER_EPOCH_MAX:
                self.notes.append(
                    f"producer {key.removeprefix(PRODUCER_NAMES)} gets a new id: its epochs end"
                )
                continue
            found[key] = encode(replace(known, epoch=epoch))
        for entries in (self._store, self._base):
            if NEXT_PRODUCER_ID in entries:
                counter = decode_counter(entries[NEXT_PRODUCER_ID], key=NEXT_PRODUCER_ID)
                highest = max(highest, counter)
        highest = max(highest, *(each.producer_id_max + 1 for each in self.facts))
        found[NEXT_PRODUCER_ID] = encode_counter(highest + PRODUCER_ID_MARGIN)
        return found

    def _shards(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        stored = _of_kind(self._store, Kind.SHARD)
        for key, value in {**stored, **_of_kind(self._base, Kind.SHARD)}.items():
            epochs = [
                decode(ShardOwner, each, key=key).epoch
                for each in (value, stored.get(key))
                if each is not None
            ]
            owner = ShardOwner(
                owner=NO_BROKER, owner_epoch=0, epoch=max(epochs) + SHARD_EPOCH_MARGIN
            )
            found[key] = encode(owner)
        return found


def _judge_partition(
    partition: TopicPartition,
    topic: _Topic,
    assigned: tuple[BrokerId, ...],
    claim: _Claim | None,
    replicas: Mapping[BrokerId, ReplicaFacts],
    *,
    stored: PartitionState | None,
) -> PartitionReport | None:
    """Decide who is in sync with a partition; None: nobody knows it, so it is made anew."""
    if claim is None and not replicas:
        if stored is None:
            return None
        why = "only the store knows it"
        verdict = (Certainty.INFERRED, why)
        return _report(partition, topic, assigned, stored, verdict, replicas)
    last = claim.state if claim is not None else None
    epochs: list[int] = [each.leader_epoch for each in (last, stored) if each is not None]
    epochs += [max(each.last_epoch, each.led_epoch) for each in replicas.values()]
    epoch = LeaderEpoch(LEADER_EPOCH_MARGIN + max(epochs))
    found = _in_sync(assigned, claim, replicas)
    state = PartitionState(
        controller_epoch=0,
        leader=NO_BROKER,
        leader_epoch=epoch,
        isr=found.isr,
        elr=found.elr,
        last_leader=found.last_leader,
        loss="" if last is None else last.loss,
        unclean_epoch=0 if last is None else last.unclean_epoch,
        conflict="" if last is None else last.conflict,
    )
    certainty, why = found.certainty, found.why
    if topic.inferred and certainty is Certainty.CERTAIN:
        certainty, why = Certainty.INFERRED, f"{why}; {topic.inferred}"
    return _report(partition, topic, assigned, state, (certainty, why), replicas)


class _InSync(NamedTuple):
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    last_leader: BrokerId
    certainty: Certainty
    why: str


def _in_sync(
    assigned: tuple[BrokerId, ...],
    claim: _Claim | None,
    replicas: Mapping[BrokerId, ReplicaFacts],
) -> _InSync:
    sound = {
        broker: each
        for broker, each in replicas.items()
        if broker in assigned and not each.problem and each.log_end >= 0
    }
    if claim is None:
        return _by_logs(assigned, sound)
    state = claim.state
    last_leader = state.leader if state.leader != NO_BROKER else state.last_leader
    leader = replicas.get(state.leader)
    newest = max((each.last_epoch for each in sound.values()), default=-1)
    leads = leader is not None and leader.led_epoch == state.leader_epoch and not leader.problem
    if leader is not None and leads and newest <= state.leader_epoch:
        why = f"broker {state.leader} leads it in epoch {state.leader_epoch}, and knows its ISR"
        isr = tuple(each for each in state.isr if not _lacks(replicas.get(each), leader))
        return _InSync(isr, (), last_leader, Certainty.CERTAIN, why)
    vouching = [each for each in (*state.isr, *state.elr) if each in sound]
    if not vouching:
        waiting = list(state.isr or state.elr)
        why = f"nobody who is known to hold everything has answered with it: {waiting}"
        return _InSync(state.isr, state.elr, last_leader, Certainty.WAITS, why)
    best = max(each.position for each in sound.values())
    isr = tuple(each for each in vouching if sound[each].position == best)
    if isr:
        left = [each for each in state.isr if each not in isr]
        why = f"the ISR of epoch {state.leader_epoch}, by {claim.source}, with the longest log"
        why += f"; {left} come back when they have caught up" if left else ""
        is_known = best[0] <= state.leader_epoch
        return _InSync(
            isr, (), last_leader, Certainty.CERTAIN if is_known else Certainty.INFERRED, why
        )
    isr = tuple(each for each in assigned if each in sound and sound[each].position == best)
    why = (
        f"brokers {list(isr)} have records up to {best[1]} of epoch {best[0]}, more than the last "
        f"known ISR {list(state.isr)}: a later state is not known"
    )
    return _InSync(isr, (), last_leader, Certainty.INFERRED, why)


def _lacks(member: ReplicaFacts | None, leader: ReplicaFacts) -> bool:
    """Whether a member that has answered cannot hold what its leader knows to be committed."""
    return member is not None and (
        bool(member.problem) or not member.log_end >= leader.high_watermark
    )


def _by_logs(assigned: tuple[BrokerId, ...], sound: Mapping[BrokerId, ReplicaFacts]) -> _InSync:
    """Only the logs say anything: the longest of the newest epoch."""
    if not sound:
        why = "no sound replica has answered: a person has to decide who leads"
        return _InSync((), (), NO_BROKER, Certainty.WAITS, why)
    best = max(each.position for each in sound.values())
    isr = tuple(each for each in assigned if each in sound and sound[each].position == best)
    why = f"by the logs alone: up to {best[1]} of epoch {best[0]}"
    return _InSync(isr, (), isr[0], Certainty.INFERRED, why)


def _report(
    partition: TopicPartition,
    topic: _Topic,
    assigned: tuple[BrokerId, ...],
    state: PartitionState,
    verdict: tuple[Certainty, str],
    replicas: Mapping[BrokerId, ReplicaFacts],
) -> PartitionReport:
    certainty, why = verdict
    leader = replicas.get(state.last_leader)
    known = max((each.high_watermark for each in replicas.values()), default=-1)
    ends = [replicas[each].log_end for each in state.isr if each in replicas]
    longest = max(ends, default=-1)
    if 0 <= longest < known:
        why += f"; {known} is known to be committed, and its longest log ends at {longest}"
        certainty = Certainty.WAITS
        # Nobody is elected: a person decides, who sees why.
        state = replace(state, isr=(), elr=(), conflict=why)
    return PartitionReport(
        partition=partition,
        topic_id=topic.record.topic_id,
        state=state,
        replicas=assigned,
        certainty=certainty,
        why=why,
        log_end=longest,
        high_watermark=known,
        is_led=certainty is Certainty.CERTAIN and leader is not None and leader.led_epoch >= 0,
    )


def _partition_entries(reports: Iterable[PartitionReport], now_ms: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for each in reports:
        state = each.state
        found[state_key(each.partition)] = encode(state)
        change = LeaderChange(
            decided_ms=now_ms,
            cause=CAUSE,
            noticed_ms=now_ms,
            old_leader=state.last_leader,
            new_leader=NO_BROKER,
            leader_epoch=state.leader_epoch,
            old_isr=state.isr,
            new_isr=state.isr,
            candidates=(f"{each.certainty.value}: {each.why}",),
            controller_id=-1,
            controller_epoch=0,
            loss=state.loss,
        )
        found[history_key(each.partition)] = encode(PartitionHistory((change,)))
    return found


# ------------------------------------------------------------------------------------- small


def _age(facts: BrokerFacts) -> tuple[int, int]:
    copy = facts.stored.copy
    return (-1, -1) if copy is None else (copy.witness.generation, copy.revision)


def _order_age(order: ReplicaOrderRecord) -> tuple[int, int]:
    return order.state.leader_epoch, order.revision


def _newest(claims: Sequence[_Claim]) -> _Claim | None:
    """The newest claim, with what only the store's own records say of losses."""
    if not claims:
        return None
    newest = max(claims, key=lambda it: (it.leader_epoch, it.is_leaders_own, it.revision))
    told = [each.state for each in claims if each.state.loss]
    state = replace(
        newest.state,
        loss=newest.state.loss or (told[0].loss if told else ""),
        unclean_epoch=max(each.state.unclean_epoch for each in claims),
    )
    return newest._replace(state=state)


def _topics_in(entries: Mapping[str, bytes]) -> Iterable[tuple[str, TopicRecord]]:
    for key, value in _of_kind(entries, Kind.TOPIC).items():
        place = place_of(key)
        if place is not None:
            yield place.name, decode(TopicRecord, value, key=key)


def _of_kind(entries: Mapping[str, bytes], kind: Kind) -> dict[str, bytes]:
    def fits(place: Place | None) -> bool:
        return place is not None and place.kind is kind

    return {key: value for key, value in entries.items() if fits(place_of(key))}


def _epoch_in(entries: Mapping[str, bytes]) -> int:
    value = entries.get(CONTROLLER_EPOCH)
    return 0 if value is None else decode_counter(value, key=CONTROLLER_EPOCH)


def _control_address(key: str, value: bytes) -> str:
    found = decode(BrokerRegistration, value, key=key)
    return f"{found.control_host}:{found.control_port}" if found.control_port else ""


# ----------------------------------------------------------------------------------- adoption


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionPlan:
    """A topic that is taken back from replicas that were set aside, with what is known of it.

    `present`: so many of its partitions are in the store already, since an adoption was broken
    off, and the topic's record has the revision `topic_revision`; 0: it is not there.
    """

    name: str
    record: TopicRecord
    partitions: tuple[PartitionReport, ...]
    cluster: ClusterRecord
    cluster_revision: int
    # Producers and shards of groups with numbers above all that the logs can have: the store that
    # forgot the topic has forgotten those, too.
    numbers: Mapping[str, bytes] = field(default_factory=dict)
    present: int = 0
    topic_revision: int = 0
    notes: tuple[str, ...] = ()


def stray_topics(facts: Iterable[BrokerFacts], seen: Snapshot) -> dict[str, set[str]]:
    """Return the topics, by name, of which there are only replicas that were set aside."""
    known = {
        (record.topic_id, number)
        for _, record in _topics_in(_values(seen))
        for number in record.assignment
    }
    found: dict[str, set[str]] = {}
    for each in facts:
        for replica in each.replicas:
            is_known = (replica.topic_id, replica.partition.partition) in known
            if replica.stray and replica.topic_id and not is_known:
                found.setdefault(replica.partition.topic, set()).add(replica.topic_id)
    return found


def plan_adoption(
    facts: Sequence[BrokerFacts],
    seen: Snapshot,
    *,
    name: str,
    topic_id: str = "",
    accept_missing: frozenset[int] = frozenset(),
) -> AdoptionPlan:
    """Work out how a topic that the store does not know is taken back; RecoveryRefused.

    The store is the right one and stays as it is; the topic is added to it.
    """
    entries = _values(seen)
    chosen = TopicId(_stray_id(facts, seen, name, topic_id))
    present = _present(entries, name, chosen)
    _check_registered(facts, entries, accept_missing)
    holders: dict[int, dict[BrokerId, ReplicaFacts]] = {}
    for each in facts:
        for replica in each.replicas:
            is_meant = (replica.partition.topic, replica.topic_id) == (name, chosen)
            if is_meant and replica.stray and replica.partition.partition >= len(present):
                holders.setdefault(replica.partition.partition, {})[each.broker_id] = replica
    notes = ["its settings are not known: it gets the defaults"]
    assignment = dict(present)
    for number in range(len(present), max(holders) + 1):
        nearest = holders.get(number) or holders[min(each for each in holders if each > number)]
        if number not in holders:
            notes.append(f"nobody has a replica of {name}-{number}: it will be made anew, empty")
        brokers = sorted(nearest)
        # Leaders are spread as by the rule of placement.
        shift = number % len(brokers)
        assignment[number] = tuple(brokers[shift:] + brokers[:shift])
    topic = _Topic(
        TopicRecord(topic_id=chosen, assignment=assignment, config={}, rebuilt=True),
        "it was set aside",
    )
    reports = []
    for number, found in sorted(holders.items()):
        partition = TopicPartition(name, number)
        report = _judge_partition(partition, topic, assignment[number], None, found, stored=None)
        if report is None or report.certainty is Certainty.WAITS:
            why = "no replica can be read" if report is None else report.why
            raise RecoveryRefused(f"{partition} is not taken back: {why}")
        reports.append(report)
    cluster, revision = _cluster_record(seen)
    if cluster is None:
        raise RecoveryRefused("the store names no cluster: it has to be rebuilt first")
    revisions = {each.key: each.mod_revision for each in seen.entries}
    return AdoptionPlan(
        name=name,
        record=topic.record,
        partitions=tuple(reports),
        cluster=cluster,
        cluster_revision=revision,
        numbers=_Builder(facts, None, seen).numbers(),
        present=len(present),
        topic_revision=revisions.get(topic_key(name), 0),
        notes=tuple(notes),
    )


def adoption_entries(plan: AdoptionPlan, now_ms: int) -> dict[int, dict[str, bytes]]:
    """Return what each partition adds to the store: its state and the record of why."""
    return {
        each.partition.partition: _partition_entries([each], now_ms) for each in plan.partitions
    }


def _values(seen: Snapshot) -> dict[str, bytes]:
    return {each.key: each.value for each in seen.entries}


def _stray_id(facts: Sequence[BrokerFacts], seen: Snapshot, name: str, topic_id: str) -> str:
    found = stray_topics(facts, seen)
    ids = sorted(found.get(name, ()))
    if not ids:
        others = ", ".join(sorted(found)) or "none"
        raise RecoveryRefused(
            f"no replica of a topic {name!r} that the store does not know was set aside; of these "
            f"there are: {others}"
        )
    if topic_id and topic_id not in ids:
        raise RecoveryRefused(f"topic {name!r} was set aside with the ids {ids}, not {topic_id}")
    if not topic_id and len(ids) > 1:
        raise RecoveryRefused(
            f"topics of the name {name!r} were set aside with the ids {ids}: say which, {name}=ID"
        )
    return topic_id or ids[0]


def _present(
    entries: Mapping[str, bytes], name: str, topic_id: str
) -> dict[int, tuple[BrokerId, ...]]:
    """Return the partitions that the store has already; RecoveryRefused when it cannot be."""
    if deletion_key(name) in entries:
        raise RecoveryRefused(f"a topic {name!r} is being deleted: try again in a moment")
    if tombstone_key(topic_id) in entries:
        raise RecoveryRefused(f"topic {topic_id} was deleted, as the store has on record")
    value = entries.get(topic_key(name))
    if value is None:
        return {}
    record = decode(TopicRecord, value, key=topic_key(name))
    if record.topic_id != topic_id:
        raise RecoveryRefused(
            f"there is another topic {name!r}, with the id {record.topic_id}: it would have to be "
            "deleted first"
        )
    return dict(record.assignment)


def _check_registered(
    facts: Sequence[BrokerFacts], entries: Mapping[str, bytes], accepted: frozenset[int]
) -> None:
    """Whoever has had data of this cluster and has not answered may have the longest log."""
    there = {int(each.broker_id) for each in facts}
    known = {int(each) for each in expected_brokers(facts)}
    for key in entries:
        for prefix in (BROKERS, INCARNATIONS):
            number = number_of(key.removeprefix(prefix)) if key.startswith(prefix) else None
            if number is not None:
                known.add(number)
    silent = sorted(known - there - accepted)
    if silent:
        flags = " ".join(f"--missing {each}" for each in silent)
        raise RecoveryRefused(
            f"{_named(silent)} not answered, and may have more of it: start what is down, name its "
            f"control port, or go on without: {flags}"
        )


def _named(brokers: Sequence[int]) -> str:
    """Return the subject of a sentence: "broker 3 has", "brokers 2, 3 have"."""
    numbers = ", ".join(map(str, brokers))
    return f"broker {numbers} has" if len(brokers) == 1 else f"brokers {numbers} have"
