"""What an operator does to a running cluster: settings, partitions, records, leaders, replicas.

The half of the administration client that changes things; topics and offsets are in `admin`. What
asks a controller is asked again until the deadline, and means the same when it is done twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from tailrace.client.asking import Call
from tailrace.client.describing import TopicDescription, describe_topic
from tailrace.client.diagnosing import BrokerCondition, Diagnosing
from tailrace.client.metadata import ClusterPicture, topic_picture
from tailrace.client.moving import Move, Phase, Progress, ReplicaFacts, progress_of
from tailrace.errors import InvalidRequest, TailraceError, UnknownTopicId, Unreachable
from tailrace.model import TopicPartition
from tailrace.transport import methods
from tailrace.transport.addresses import join_address
from tailrace.transport.wire import error_of, from_partition, to_partition
from tailrace.v1 import broker_pb2, controller_pb2

HIGH_WATERMARK: Final = -1

_KINDS: Final = {
    "topics": controller_pb2.CONFIG_KIND_TOPIC,
    "brokers": controller_pb2.CONFIG_KIND_BROKER,
    "clients": controller_pb2.CONFIG_KIND_CLIENT,
}
CONFIG_KINDS: Final = tuple(_KINDS)
_PHASES: Final[dict[int, Phase]] = {
    controller_pb2.REASSIGNMENT_PHASE_WAITING: Phase.WAITING,
    controller_pb2.REASSIGNMENT_PHASE_COPYING: Phase.COPYING,
    controller_pb2.REASSIGNMENT_PHASE_CANCELLING: Phase.CANCELLING,
}


class FolderState(NamedTuple):
    """A data folder and its disk; `trouble` is empty when it is well, bytes are -1 if unknown."""

    path: str
    free_bytes: int
    total_bytes: int
    replicas: int
    trouble: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """A broker as the controller knows it; `address` is empty when it is not registered."""

    broker_id: int
    live: bool
    address: str
    rack: str
    epoch: int
    draining: bool
    cordoned: bool
    cordon_reason: str
    cordoned_ms: int
    leaders: int
    replicas: int
    in_sync: int
    preferred: int
    # Why it should lead nothing and gets no new replicas; empty: it may.
    unfit: str = ""
    # The disks of its data folders, as it told last.
    disks: tuple[FolderState, ...] = ()
    # What the broker itself told: how many replicas serve nothing, and why it does not believe the
    # metadata store.
    out_of_service: int = 0
    store_problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**plain, "disks": [each._asdict() for each in self.disks]}


class Elected(NamedTuple):
    """What became of a partition whose leader was to change."""

    partition: TopicPartition
    leader: int
    error: TailraceError | None


class Deleted(NamedTuple):
    """Where a partition begins now, or why nothing was deleted."""

    log_start: int
    error: TailraceError | None


class LeaderChoice(NamedTuple):
    """Who is to lead a partition that nobody can lead without loss, and what is known of that."""

    partition: TopicPartition
    leader: int = -1
    loss: str = ""


class Operations(Diagnosing):
    """Changes to a cluster; `AdminCore` is the whole client."""

    # Settings.

    async def alter_config(
        self,
        kind: str,
        name: str,
        changed: Mapping[str, str] | None = None,
        *,
        unset: Iterable[str] = (),
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[str, str]:
        """Change settings of one of `topics`, `brokers`, `clients`; gives all that are set then."""
        request = controller_pb2.AlterConfigRequest(
            kind=_kind(kind),
            name=name,
            set=changed or {},
            unset=list(unset),
            validate_only=validate_only,
        )
        call = await self._begin(timeout_ms)
        response = await self._ask_controller(methods.CONTROLLER_ALTER_CONFIG, request, call)
        return dict(sorted(response.config.items()))

    async def describe_configs(
        self, kind: str, name: str = "", *, timeout_ms: int | None = None
    ) -> dict[str, dict[str, str]]:
        """The settings that are stored, by name; without a name, of all that have some."""
        request = controller_pb2.DescribeConfigsRequest(kind=_kind(kind), name=name)
        call = await self._begin(timeout_ms)
        response = await self._ask_controller(methods.CONTROLLER_DESCRIBE_CONFIGS, request, call)
        return {each.name: dict(sorted(each.config.items())) for each in response.configs}

    # Topics.

    async def add_partitions(
        self,
        topic: str,
        partitions: int,
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> TopicDescription:
        """Give a topic so many partitions in all."""
        request = controller_pb2.AddPartitionsRequest(
            name=topic, partitions=partitions, validate_only=validate_only
        )
        call = await self._begin(timeout_ms)
        response = await self._ask_controller(methods.CONTROLLER_ADD_PARTITIONS, request, call)
        made = describe_topic(topic, topic_picture(response.topic))
        return replace(made, warnings=tuple(response.warnings))

    async def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, Deleted]:
        """Delete what is below these offsets (HIGH_WATERMARK: all that can be read)."""
        call = await self._begin(timeout_ms)
        picture = await self._picture(call)
        # The topics that are meant: one that is made anew while we try is another one.
        meant = {
            each: picture.topics[each.topic].topic_id
            for each in before
            if each.topic in picture.topics
        }
        left = dict(before)
        done: dict[TopicPartition, Deleted] = {}
        await self._until_deadline(
            call, "deleting records", lambda: self._delete_once(call, left, meant, done)
        )
        return {each: done[each] for each in before}

    async def _delete_once(
        self,
        call: Call,
        left: dict[TopicPartition, int],
        meant: Mapping[TopicPartition, str],
        done: dict[TopicPartition, Deleted],
    ) -> None:
        """Ask the leaders once; what is answered for good leaves `left`."""
        topics = self._metadata.picture.topics
        for partition in list(left):
            now = topics.get(partition.topic)
            if now is not None and partition in meant and now.topic_id != meant[partition]:
                del left[partition]
                error = UnknownTopicId(f"{partition.topic} was deleted and made anew meanwhile")
                done[partition] = Deleted(-1, error)
        by_leader: dict[int, list[TopicPartition]] = {}
        problem: TailraceError | None = None
        for partition in left:
            leader, _ = self._metadata.leader_of(partition)
            by_leader.setdefault(leader, []).append(partition)
        for leader, partitions in by_leader.items():
            address = self._metadata.picture.brokers.get(leader)
            if address is None:
                problem = Unreachable(f"{partitions[0]} has no leader: it is offline")
                continue
            request = broker_pb2.DeleteRecordsRequest(
                partitions=[
                    broker_pb2.RecordDeletion(
                        partition=to_partition(each),
                        before_offset=left[each],
                        topic_id=meant.get(each, ""),
                    )
                    for each in partitions
                ]
            )
            try:
                response = await self._call(address, methods.BROKER_DELETE_RECORDS, request, call)
            except TailraceError as error:
                problem = error
                continue
            for each in response.partitions:
                error_found = error_of(each.error, each.message)
                if error_found is not None and error_found.refresh_metadata:
                    problem = error_found
                    continue
                partition = from_partition(each.partition)
                left.pop(partition, None)
                done[partition] = Deleted(each.log_start, error_found)
        if problem is not None:
            raise problem

    # Brokers.

    async def describe_brokers(self, *, timeout_ms: int | None = None) -> list[BrokerState]:
        """The brokers that are registered, hold replicas or are cordoned."""
        call = await self._begin(timeout_ms)
        response = await self._ask_controller(
            methods.CONTROLLER_DESCRIBE_BROKERS, controller_pb2.DescribeBrokersRequest(), call
        )
        return [_broker_state(each) for each in response.brokers]

    async def cordon_broker(
        self,
        broker_id: int,
        *,
        cordon: bool = True,
        reason: str = "",
        timeout_ms: int | None = None,
    ) -> None:
        """Give a broker no new replicas and no leadership, or end that."""
        request = controller_pb2.CordonBrokerRequest(
            broker_id=broker_id, cordon=cordon, reason=reason
        )
        call = await self._begin(timeout_ms)
        await self._ask_controller(methods.CONTROLLER_CORDON_BROKER, request, call)

    async def describe_replicas(
        self,
        partitions: Iterable[TopicPartition] = (),
        *,
        brokers: Iterable[int] | None = None,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, dict[int, ReplicaFacts]]:
        """The replicas of partitions (all, when none is named) on the brokers that answer."""
        call = await self._begin(timeout_ms)
        picture = await self._picture(call)
        request = broker_pb2.DescribeReplicasRequest(
            partitions=[to_partition(each) for each in partitions]
        )
        found: dict[TopicPartition, dict[int, ReplicaFacts]] = {}
        for broker, address in picture.brokers.items():
            if brokers is not None and broker not in brokers:
                continue
            try:
                response = await self._call(
                    address, methods.BROKER_DESCRIBE_REPLICAS, request, call
                )
            except TailraceError:
                # It is away; the others are there.
                continue
            for folder in response.folders:
                for each in folder.replicas:
                    partition = from_partition(each.partition)
                    found.setdefault(partition, {})[broker] = _facts(broker, folder.path, each)
        return found

    # Leaders.

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] = (), *, timeout_ms: int | None = None
    ) -> list[Elected]:
        """Let the preferred replicas of partitions lead; of all, when none is named."""
        wishes = [LeaderChoice(each) for each in partitions]
        return await self._elect(wishes, unclean=False, timeout_ms=timeout_ms)

    async def elect_unclean(
        self, choices: Sequence[LeaderChoice], *, timeout_ms: int | None = None
    ) -> list[Elected]:
        """Let replicas lead that may lack acknowledged records, which are lost by that."""
        return await self._elect(choices, unclean=True, timeout_ms=timeout_ms)

    async def _elect(
        self, choices: Sequence[LeaderChoice], *, unclean: bool, timeout_ms: int | None
    ) -> list[Elected]:
        request = controller_pb2.ElectLeadersRequest(
            partitions=[
                controller_pb2.LeaderWish(
                    partition=to_partition(each.partition), leader=each.leader, loss=each.loss
                )
                for each in choices
            ],
            unclean=unclean,
        )
        call = await self._begin(timeout_ms)
        response = await self._ask_controller(methods.CONTROLLER_ELECT_LEADERS, request, call)
        return [
            Elected(from_partition(each.partition), each.leader, error_of(each.error, each.message))
            for each in response.partitions
        ]

    # Replicas.

    async def reassign(
        self,
        plan: Mapping[TopicPartition, Sequence[int]] | None = None,
        *,
        to_brokers: Iterable[int] = (),
        drain: int | None = None,
        topics: Iterable[str] = (),
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> list[Move]:
        """Move replicas: by a plan, by the rule over some brokers, or all away from one."""
        request = controller_pb2.ReassignRequest(
            plan=[
                controller_pb2.PartitionReplicas(partition=to_partition(each), replicas=replicas)
                for each, replicas in (plan or {}).items()
            ],
            to_brokers=list(to_brokers),
            drain=drain,
            topics=list(topics),
            validate_only=validate_only,
        )
        call = await self._begin(timeout_ms)
        response = await self._ask_controller(methods.CONTROLLER_REASSIGN, request, call)
        phase = Phase.PLANNED if validate_only else None
        return [_move(each, phase) for each in response.moves]

    async def cancel_reassignments(
        self, partitions: Iterable[TopicPartition] = (), *, timeout_ms: int | None = None
    ) -> list[TopicPartition]:
        """Give reassignments up, all when none is named; gives those that go back."""
        request = controller_pb2.CancelReassignmentsRequest(
            partitions=[to_partition(each) for each in partitions]
        )
        call = await self._begin(timeout_ms)
        method = methods.CONTROLLER_CANCEL_REASSIGNMENTS
        response = await self._ask_controller(method, request, call)
        return [from_partition(each) for each in response.partitions]

    async def list_reassignments(self, *, timeout_ms: int | None = None) -> list[Move]:
        """What is under way."""
        call = await self._begin(timeout_ms)
        response = await self._ask_controller(
            methods.CONTROLLER_LIST_REASSIGNMENTS, controller_pb2.ListReassignmentsRequest(), call
        )
        return [_move(each) for each in response.reassignments]

    async def reassignment_progress(
        self, moves: Sequence[Move] | None = None, *, timeout_ms: int | None = None
    ) -> Progress:
        """How far the reassignments are, in bytes; of these moves, or of all that are under way."""
        found = await self.list_reassignments(timeout_ms=timeout_ms) if moves is None else moves
        if not found:
            return Progress((), 0, 0)
        concerned = {broker for move in found for broker in (*move.adding, move.leader)}
        replicas = await self.describe_replicas(
            [move.name for move in found], brokers=concerned, timeout_ms=timeout_ms
        )
        return progress_of(tuple(found), replicas)


def _kind(kind: str) -> controller_pb2.ConfigKind.ValueType:
    found = _KINDS.get(kind)
    if found is None:
        raise InvalidRequest(f"settings belong to {', '.join(CONFIG_KINDS)}, not to {kind!r}")
    return found


def broker_states(picture: ClusterPicture) -> list[BrokerState]:
    """The brokers as the metadata have them, for when no controller answers.

    Which of them are cordoned, draining or have a bad disk is not known then.
    """
    partitions = [each for topic in picture.topics.values() for each in topic.partitions]
    known = {*picture.brokers, *(broker for each in partitions for broker in each.replicas)}
    return [
        BrokerState(
            broker_id=broker,
            live=broker in picture.brokers,
            address=picture.brokers.get(broker, ""),
            rack=picture.racks.get(broker, ""),
            epoch=0,
            draining=False,
            cordoned=False,
            cordon_reason="",
            cordoned_ms=0,
            leaders=sum(each.leader == broker for each in partitions),
            replicas=sum(broker in each.replicas for each in partitions),
            in_sync=sum(broker in each.isr for each in partitions),
            preferred=sum(each.replicas[:1] == (broker,) for each in partitions),
        )
        for broker in sorted(known)
    ]


def with_condition(state: BrokerState, told: BrokerCondition | TailraceError | None) -> BrokerState:
    """The broker with what it told of itself; what did not answer told nothing."""
    if not isinstance(told, BrokerCondition):
        return state
    return replace(
        state, out_of_service=told.out_of_service_count, store_problem=told.store_problem
    )


def _broker_state(about: controller_pb2.BrokerDescription) -> BrokerState:
    where = about.endpoint
    return BrokerState(
        broker_id=about.broker_id,
        live=about.live,
        address=join_address(where.host, where.port) if about.live else "",
        rack=where.rack,
        epoch=about.epoch,
        draining=about.draining,
        cordoned=about.cordoned,
        cordon_reason=about.cordon_reason,
        cordoned_ms=about.cordoned_ms,
        leaders=about.leaders,
        replicas=about.replicas,
        in_sync=about.in_sync,
        preferred=about.preferred,
        unfit=about.unfit,
        disks=tuple(
            FolderState(each.path, each.free_bytes, each.total_bytes, each.replicas, each.trouble)
            for each in about.folders
        ),
    )


def _facts(broker: int, folder: str, about: broker_pb2.ReplicaDescription) -> ReplicaFacts:
    return ReplicaFacts(
        broker=broker,
        folder=folder,
        size_bytes=about.size_bytes,
        log_start=about.log_start,
        log_end=about.log_end,
        high_watermark=about.high_watermark,
        leads=about.leads,
        leader_epoch=about.leader_epoch,
        last_epoch=about.last_epoch,
    )


def _move(move: controller_pb2.Reassignment, phase: Phase | None = None) -> Move:
    return Move(
        topic=move.partition.topic,
        partition=move.partition.partition,
        original=tuple(move.original),
        target=tuple(move.target),
        replicas=tuple(move.replicas),
        isr=tuple(move.isr),
        leader=move.leader,
        phase=phase or _PHASES.get(move.phase, Phase.WAITING),
        started_ms=move.started_ms,
    )
