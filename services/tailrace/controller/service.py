"""ControllerService: what administrators, producers and brokers ask of the active controller.

Messages in, messages out: whatever goes wrong is told by its code and a sentence, and every answer
comes within a deadline, also while the store is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any, Final

from tailrace.controller.admin_service import AdminService, R, Reign, described_topic
from tailrace.controller.facts import DeletionRequested, FenceRequested, TopicRequested
from tailrace.controller.settings import ControllerSettings
from tailrace.errors import (
    InvalidRequest,
    InvariantViolation,
    RequestTimedOut,
    StoreUnavailable,
    TailraceError,
    UnknownTopic,
)
from tailrace.model import BrokerId, TopicId
from tailrace.transport import methods
from tailrace.transport.rpc import Handler, Method
from tailrace.transport.wire import (
    code_of,
    from_partition,
    to_change,
    to_partition,
    to_settings_change,
)
from tailrace.v1 import controller_pb2 as pb

# Topics of the cluster's own are made on purpose only.
INTERNAL_PREFIX: Final = "__"


class ControllerService:
    """Answers while this controller is active; `reign` raises NotController while it is not."""

    def __init__(
        self, settings: ControllerSettings, *, rng: Random, reign: Callable[[], Reign]
    ) -> None:
        self._settings = settings
        self._rng = rng
        self._reign = reign

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.CONTROLLER_CREATE_TOPIC: self.create_topic,
            methods.CONTROLLER_DELETE_TOPIC: self.delete_topic,
            methods.CONTROLLER_INIT_PRODUCER: self.init_producer,
            methods.CONTROLLER_CONTROLLED_SHUTDOWN: self.controlled_shutdown,
            methods.CONTROLLER_FENCE_BROKER: self.fence_broker,
            methods.CONTROLLER_EXPLAIN: self.explain,
            **AdminService(self._answer, self._settings).handlers(),
        }

    async def create_topic(self, request: pb.CreateTopicRequest) -> pb.CreateTopicResponse:
        async def create(reign: Reign) -> pb.CreateTopicResponse:
            if request.partitions < 0 or request.replication_factor < 0:
                raise InvalidRequest("numbers of partitions and replicas are not below 0")
            if request.automatic:
                self._check_automatic(request.name)
            default = self._settings.num_partitions if request.automatic else 1
            event = TopicRequested(
                name=request.name,
                topic_id=TopicId(f"{self._rng.getrandbits(128):032x}"),
                partitions=request.partitions or default,
                replication_factor=request.replication_factor,
                default_replication_factor=self._settings.default_replication_factor,
                config=dict(sorted(request.config.items())),
                log_defaults=self._settings.log_defaults,
            )
            made = await reign.reconciler.create_topic(event, validate_only=request.validate_only)
            return pb.CreateTopicResponse(
                topic=described_topic(reign.reconciler.image, request.name, made.record),
                warnings=made.warnings,
            )

        what = f"creating topic {request.name!r}"
        return await self._answer(pb.CreateTopicResponse, what, create)

    async def delete_topic(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
        async def delete(reign: Reign) -> pb.DeleteTopicResponse:
            event = DeletionRequested(name=request.name, topic_id=request.topic_id)
            await reign.reconciler.delete_topic(event)
            return pb.DeleteTopicResponse()

        what = f"deleting topic {request.name!r}"
        return await self._answer(pb.DeleteTopicResponse, what, delete)

    async def init_producer(self, request: pb.InitProducerRequest) -> pb.InitProducerResponse:
        async def init(reign: Reign) -> pb.InitProducerResponse:
            if request.name:
                identity = await reign.producers.named(
                    request.name, request.producer_id, request.producer_epoch
                )
            else:
                identity = await reign.producers.unnamed(
                    request.producer_id, request.producer_epoch
                )
            return pb.InitProducerResponse(
                producer_id=identity.producer_id, producer_epoch=identity.epoch
            )

        return await self._answer(pb.InitProducerResponse, "starting a producer", init)

    async def controlled_shutdown(
        self, request: pb.ControlledShutdownRequest
    ) -> pb.ControlledShutdownResponse:
        async def relieve(reign: Reign) -> pb.ControlledShutdownResponse:
            remaining = await reign.reconciler.relieve(
                BrokerId(request.broker_id), request.broker_epoch
            )
            return pb.ControlledShutdownResponse(
                remaining=[to_partition(each) for each in remaining]
            )

        what = f"relieving broker {request.broker_id}"
        return await self._answer(pb.ControlledShutdownResponse, what, relieve)

    async def fence_broker(self, request: pb.FenceBrokerRequest) -> pb.FenceBrokerResponse:
        async def fence(reign: Reign) -> pb.FenceBrokerResponse:
            reason = request.reason or "no reason given"
            event = FenceRequested(
                broker_id=BrokerId(request.broker_id),
                epoch=request.broker_epoch,
                instance=request.instance,
            )
            await reign.reconciler.fence(event, reason)
            return pb.FenceBrokerResponse()

        what = f"fencing broker {request.broker_id}"
        return await self._answer(pb.FenceBrokerResponse, what, fence)

    async def explain(self, request: pb.ExplainRequest) -> pb.ExplainResponse:
        async def explain(reign: Reign) -> pb.ExplainResponse:
            partition = from_partition(request.partition)
            history = await reign.reconciler.explain(partition)
            topic = reign.reconciler.image.topics.get(partition.topic)
            settings = () if topic is None else topic.record.changes
            return pb.ExplainResponse(
                changes=[to_change(each) for each in history.changes],
                settings=[to_settings_change(each) for each in settings],
            )

        return await self._answer(pb.ExplainResponse, "explaining a partition", explain)

    def _check_automatic(self, name: str) -> None:
        if not self._settings.auto_create_topics_enable or name.startswith(INTERNAL_PREFIX):
            raise UnknownTopic(f"there is no topic {name!r}; create it first")

    # Also for the other half of this service, `AdminService`.

    async def _answer(self, kind: type[R], what: str, work: Callable[[Reign], Awaitable[R]]) -> R:
        try:
            reign = self._reign()
            return await self._in_time(what, reign, work)
        except InvariantViolation:
            raise
        except TailraceError as error:
            return kind(error=code_of(error), message=str(error))

    async def _in_time(self, what: str, reign: Reign, work: Callable[[Reign], Awaitable[R]]) -> R:
        limit_ms = self._settings.request_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1_000):
                return await work(reign)
        except TimeoutError:
            trouble = reign.reconciler.trouble
            if trouble:
                raise StoreUnavailable(
                    f"{what}: the metadata store (etcd) does not answer: {trouble}"
                ) from None
            raise RequestTimedOut(f"{what}: not done within {limit_ms} ms") from None
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f"{what}: the metadata store (etcd) does not answer: {error}"
            ) from error
