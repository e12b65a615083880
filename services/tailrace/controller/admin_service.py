"""The half of ControllerService that administrators ask: settings, partitions, leaders, replicas.

Messages in, messages out. Deadlines and errors are the business of `service`, which answers through
`answer`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from tailrace.controller.administration import existing_topic, known_brokers
from tailrace.controller.facts import (
    ConfigKind,
    ConfigRequested,
    CordonRequested,
    ElectionRequested,
    LeaderWish,
    MovesCancelled,
    MovesRequested,
    PartitionsRequested,
)
from tailrace.controller.messages import topic_message
from tailrace.controller.producers import ProducerIds
from tailrace.controller.reconciler import Reconciler
from tailrace.controller.settings import ControllerSettings
from tailrace.errors import InvalidRequest, TailraceError
from tailrace.meta.image import ClusterImage, StoredTopic
from tailrace.meta.keys import Reassignment, TopicRecord
from tailrace.model import BrokerId, TopicPartition
from tailrace.transport import methods
from tailrace.transport.rpc import Handler, Method
from tailrace.transport.wire import (
    code_of,
    endpoint_of,
    from_partition,
    to_endpoint,
    to_partition,
)
from tailrace.v1 import common_pb2
from tailrace.v1 import controller_pb2 as pb

_KINDS: Final[dict[int, ConfigKind]] = {
    pb.CONFIG_KIND_TOPIC: ConfigKind.TOPIC,
    pb.CONFIG_KIND_BROKER: ConfigKind.BROKER,
    pb.CONFIG_KIND_CLIENT: ConfigKind.CLIENT,
}


class Reign(NamedTuple):
    """What the active controller answers with."""

    reconciler: Reconciler
    producers: ProducerIds


class _Response(Protocol):
    """Any response of this service: it can say what went wrong."""

    def __init__(self, *, error: Any = ..., message: str = ...) -> None: ...


R = TypeVar("R", bound=_Response)


class Answer(Protocol):
    """Does some work within the deadline; what goes wrong becomes a response of that kind."""

    def __call__(
        self, kind: type[R], what: str, work: Callable[[Reign], Awaitable[R]]
    ) -> Awaitable[R]: ...


class AdminService:
    """Answers administrators while this controller is active."""

    def __init__(self, answer: Answer, settings: ControllerSettings) -> None:
        self._answer = answer
        self._settings = settings

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.CONTROLLER_ALTER_CONFIG: self.alter_config,
            methods.CONTROLLER_DESCRIBE_CONFIGS: self.describe_configs,
            methods.CONTROLLER_ADD_PARTITIONS: self.add_partitions,
            methods.CONTROLLER_CORDON_BROKER: self.cordon_broker,
            methods.CONTROLLER_DESCRIBE_BROKERS: self.describe_brokers,
            methods.CONTROLLER_ELECT_LEADERS: self.elect_leaders,
            methods.CONTROLLER_REASSIGN: self.reassign,
            methods.CONTROLLER_CANCEL_REASSIGNMENTS: self.cancel_reassignments,
            methods.CONTROLLER_LIST_REASSIGNMENTS: self.list_reassignments,
        }

    # Settings.

    async def alter_config(self, request: pb.AlterConfigRequest) -> pb.AlterConfigResponse:
        async def alter(reign: Reign) -> pb.AlterConfigResponse:
            event = ConfigRequested(
                kind=_kind(request.kind),
                name=request.name,
                changed=dict(sorted(request.set.items())),
                unset=tuple(request.unset),
                log_defaults=self._settings.log_defaults,
            )
            decision = await reign.reconciler.administer(event, validate_only=request.validate_only)
            return pb.AlterConfigResponse(config=dict(decision.config or {}))

        what = f"changing settings of {request.name!r}"
        return await self._answer(pb.AlterConfigResponse, what, alter)

    async def describe_configs(
        self, request: pb.DescribeConfigsRequest
    ) -> pb.DescribeConfigsResponse:
        async def describe(reign: Reign) -> pb.DescribeConfigsResponse:
            image = await reign.reconciler.look()
            found = _configs(image, _kind(request.kind), request.name)
            return pb.DescribeConfigsResponse(
                configs=[pb.StoredConfig(name=name, config=found[name]) for name in sorted(found)]
            )

        return await self._answer(pb.DescribeConfigsResponse, "looking up settings", describe)

    # Topics.

    async def add_partitions(self, request: pb.AddPartitionsRequest) -> pb.AddPartitionsResponse:
        async def add(reign: Reign) -> pb.AddPartitionsResponse:
            event = PartitionsRequested(name=request.name, partitions=request.partitions)
            made = await reign.reconciler.add_partitions(event, validate_only=request.validate_only)
            topic = described_topic(reign.reconciler.image, request.name, made.record)
            return pb.AddPartitionsResponse(topic=topic, warnings=made.warnings)

        what = f"adding partitions to {request.name!r}"
        return await self._answer(pb.AddPartitionsResponse, what, add)

    # Brokers.

    async def cordon_broker(self, request: pb.CordonBrokerRequest) -> pb.CordonBrokerResponse:
        async def cordon(reign: Reign) -> pb.CordonBrokerResponse:
            event = CordonRequested(
                broker_id=BrokerId(request.broker_id), cordon=request.cordon, reason=request.reason
            )
            await reign.reconciler.administer(event)
            return pb.CordonBrokerResponse()

        what = f"{'cordoning' if request.cordon else 'uncordoning'} broker {request.broker_id}"
        return await self._answer(pb.CordonBrokerResponse, what, cordon)

    async def describe_brokers(self, _: pb.DescribeBrokersRequest) -> pb.DescribeBrokersResponse:
        async def describe(reign: Reign) -> pb.DescribeBrokersResponse:
            image = await reign.reconciler.look()
            brokers = _brokers(image)
            for each in brokers:
                if each.live:
                    unfit, folders = reign.reconciler.health_of(BrokerId(each.broker_id))
                    each.unfit = unfit
                    each.folders.extend(folders)
            return pb.DescribeBrokersResponse(brokers=brokers)

        return await self._answer(pb.DescribeBrokersResponse, "describing brokers", describe)

    # Leaders and replicas.

    async def elect_leaders(self, request: pb.ElectLeadersRequest) -> pb.ElectLeadersResponse:
        async def elect(reign: Reign) -> pb.ElectLeadersResponse:
            wishes = tuple(
                LeaderWish(
                    partition=from_partition(each.partition),
                    leader=BrokerId(each.leader),
                    loss=each.loss,
                )
                for each in request.partitions
            )
            if request.unclean and not wishes:
                raise InvalidRequest("an unclean election names its partitions")
            event = ElectionRequested(wishes=wishes, unclean=request.unclean)
            decision = await reign.reconciler.administer(event)
            image = reign.reconciler.image
            return pb.ElectLeadersResponse(
                partitions=[
                    _elected(image, each, decision.outcomes[each])
                    for each in sorted(decision.outcomes)
                ]
            )

        return await self._answer(pb.ElectLeadersResponse, "electing leaders", elect)

    async def reassign(self, request: pb.ReassignRequest) -> pb.ReassignResponse:
        async def reassign(reign: Reign) -> pb.ReassignResponse:
            event = MovesRequested(
                plan=_plan(request) if request.plan else None,
                to_brokers=tuple(sorted(map(BrokerId, {*request.to_brokers}))),
                drain=BrokerId(request.drain) if request.HasField("drain") else None,
                topics=tuple(request.topics),
            )
            decision = await reign.reconciler.administer(event, validate_only=request.validate_only)
            image = reign.reconciler.image
            return pb.ReassignResponse(
                moves=[_move(image, each, decision.moves[each]) for each in sorted(decision.moves)]
            )

        return await self._answer(pb.ReassignResponse, "moving replicas", reassign)

    async def cancel_reassignments(
        self, request: pb.CancelReassignmentsRequest
    ) -> pb.CancelReassignmentsResponse:
        async def cancel(reign: Reign) -> pb.CancelReassignmentsResponse:
            named = tuple(from_partition(each) for each in request.partitions)
            decision = await reign.reconciler.administer(MovesCancelled(partitions=named))
            given_up = [to_partition(each) for each in sorted(decision.moves)]
            return pb.CancelReassignmentsResponse(partitions=given_up)

        what = "giving up reassignments"
        return await self._answer(pb.CancelReassignmentsResponse, what, cancel)

    async def list_reassignments(
        self, _: pb.ListReassignmentsRequest
    ) -> pb.ListReassignmentsResponse:
        async def look(reign: Reign) -> pb.ListReassignmentsResponse:
            image = await reign.reconciler.look()
            found = image.reassignments
            return pb.ListReassignmentsResponse(
                reassignments=[_move(image, each, found[each].record) for each in sorted(found)]
            )

        return await self._answer(pb.ListReassignmentsResponse, "listing reassignments", look)


def described_topic(
    image: ClusterImage, name: str, record: TopicRecord
) -> common_pb2.TopicMetadata:
    """The topic as it is now; what was only checked has no states."""
    states = image.states.get(name, {})
    return topic_message(name, StoredTopic(record, 0), states, deleting=False)


def _kind(kind: int) -> ConfigKind:
    found = _KINDS.get(kind)
    if found is None:
        raise InvalidRequest("settings belong to a topic, a broker or a client")
    return found


def _configs(image: ClusterImage, kind: ConfigKind, name: str) -> dict[str, Mapping[str, str]]:
    if kind is ConfigKind.TOPIC:
        if name:
            return {name: existing_topic(image, name).record.config}
        return {each: topic.record.config for each, topic in image.topics.items()}
    stored = image.broker_configs if kind is ConfigKind.BROKER else image.client_configs
    if name:
        found = stored.get(name)
        return {name: {} if found is None else found.record.settings}
    return {each: config.record.settings for each, config in stored.items()}


def _brokers(image: ClusterImage) -> list[pb.BrokerDescription]:
    found = {each: pb.BrokerDescription(broker_id=each) for each in known_brokers(image)}
    for broker, live in image.brokers.items():
        about = found[broker]
        about.live, about.epoch = True, live.epoch
        about.endpoint.CopyFrom(to_endpoint(endpoint_of(live.registration)))
        about.draining = live.registration.draining
    for broker, cordon in image.cordons.items():
        about = found[broker]
        about.cordoned, about.cordon_reason = True, cordon.record.reason
        about.cordoned_ms = cordon.record.since_ms
    for partition, replicas in image.partitions():
        stored = image.state(partition)
        found[replicas[0]].preferred += 1
        for replica in replicas:
            found[replica].replicas += 1
            if stored is not None:
                found[replica].in_sync += replica in stored.state.isr
                found[replica].leaders += replica == stored.state.leader
    return [found[each] for each in sorted(found)]


def _elected(
    image: ClusterImage, partition: TopicPartition, error: TailraceError | None
) -> pb.LeaderElected:
    stored = image.state(partition)
    answer = pb.LeaderElected(
        partition=to_partition(partition), leader=-1 if stored is None else stored.state.leader
    )
    if error is not None:
        answer.error, answer.message = code_of(error), str(error)
    return answer


def _plan(request: pb.ReassignRequest) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    plan: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    for each in request.plan:
        partition = from_partition(each.partition)
        if partition in plan:
            raise InvalidRequest(f"the plan names {partition} twice")
        plan[partition] = tuple(map(BrokerId, each.replicas))
    return plan


def _move(image: ClusterImage, partition: TopicPartition, move: Reassignment) -> pb.Reassignment:
    stored, replicas = image.state(partition), image.replicas(partition)
    phase = pb.REASSIGNMENT_PHASE_WAITING
    if move.cancelled:
        phase = pb.REASSIGNMENT_PHASE_CANCELLING
    elif replicas == move.all_replicas:
        phase = pb.REASSIGNMENT_PHASE_COPYING
    return pb.Reassignment(
        partition=to_partition(partition),
        original=move.original,
        target=move.target,
        replicas=replicas,
        isr=() if stored is None else stored.state.isr,
        leader=-1 if stored is None else stored.state.leader,
        phase=phase,
        started_ms=move.started_ms,
    )
