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
    PartitionsRequested,
)
from tailrace.controller.messages import topic_message
from tailrace.controller.producers import ProducerIds
from tailrace.controller.reconciler import Reconciler
from tailrace.controller.settings import ControllerSettings
from tailrace.errors import InvalidRequest
from tailrace.meta.image import ClusterImage, StoredTopic
from tailrace.meta.keys import TopicRecord
from tailrace.model import BrokerId
from tailrace.transport import methods
from tailrace.transport.rpc import Handler, Method
from tailrace.transport.wire import endpoint_of, to_endpoint
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
            record = await reign.reconciler.add_partitions(
                event, validate_only=request.validate_only
            )
            topic = described_topic(reign.reconciler.image, request.name, record)
            return pb.AddPartitionsResponse(topic=topic)

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
            return pb.DescribeBrokersResponse(brokers=_brokers(image))

        return await self._answer(pb.DescribeBrokersResponse, "describing brokers", describe)


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
