"""What the controller tells a broker: every order is checked for its epochs, then carried out.

An order of an older controller is refused, and so is one for a former life of this broker. Orders
are idempotent: a repeated one changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.broker.controller_guard import ControllerGuard
from tailrace.broker.disk_watch import DiskWatch
from tailrace.broker.hosted import ReplicaOrder, StopOrder
from tailrace.broker.live import LiveSettings
from tailrace.broker.replicas import Replicas
from tailrace.broker.service import MetadataService
from tailrace.errors import StoreUnavailable, TailraceError, Unreachable
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition
from tailrace.replication.events import StoredState
from tailrace.transport.rpc import Stream
from tailrace.transport.wire import error_code, from_partition, to_partition
from tailrace.v1 import control_pb2 as pb


class ControlService:
    """Takes the orders of the active controller."""

    def __init__(
        self,
        broker_id: int,
        replicas: Replicas,
        metadata: MetadataService,
        live: LiveSettings,
        disks: DiskWatch,
        guard: ControllerGuard,
        *,
        epoch: Callable[[], int | None],
        draining: Callable[[], bool],
        ordered: Callable[[], None],
        health_interval_ms: int,
    ) -> None:
        """`ordered` is told of every order that counts."""
        self._broker_id = broker_id
        self._replicas = replicas
        self._metadata = metadata
        self._live = live
        self._disks = disks
        self._epoch = epoch
        self._draining = draining
        self._ordered = ordered
        self._health_interval_ms = health_interval_ms
        self.guard = guard

    async def health(
        self, request: pb.HealthRequest, stream: Stream[pb.HealthResponse, pb.HealthRequest]
    ) -> None:
        """Say that we live, and what is out of service, as long as the controller listens.

        Now and then, and at once when another replica goes out of service.
        """
        if await self._problem(request.header) is not None:
            return
        try:
            while request.header.controller_epoch >= self.guard.controller_epoch:
                await stream.send(
                    pb.HealthResponse(
                        broker_id=self._broker_id,
                        broker_epoch=self._epoch() or 0,
                        draining=self._draining(),
                        unfit=self._disks.unfit,
                        folders=self._folders(),
                        offline=[
                            _failed(partition, error)
                            for partition, error in self._replicas.offline.items()
                        ],
                    )
                )
                await self._replicas.news(timeout_ms=self._health_interval_ms)
        except Unreachable:
            return

    def _folders(self) -> list[pb.FolderHealth]:
        return [
            pb.FolderHealth(
                path=disk.path,
                free_bytes=disk.free_bytes,
                total_bytes=disk.total_bytes,
                replicas=replicas,
                trouble=disk.trouble,
            )
            for disk, replicas in self._disks.folders()
        ]

    async def leader_and_isr(self, request: pb.LeaderAndIsrRequest) -> pb.LeaderAndIsrResponse:
        problem = await self._problem(request.header)
        if problem is not None:
            return pb.LeaderAndIsrResponse(error=error_code(problem.code), message=str(problem))
        self._ordered()
        orders = [_order(each) for each in request.partitions]
        response = pb.LeaderAndIsrResponse()
        for partition, error in await self._replicas.obey(orders):
            response.errors.append(_failed(partition, error))
        if request.full:
            named = {order.partition for order in orders}
            for partition, topic_id in await self._replicas.stray(named):
                response.stray.append(
                    pb.StrayPartition(partition=to_partition(partition), topic_id=topic_id)
                )
        return response

    async def stop_replica(self, request: pb.StopReplicaRequest) -> pb.StopReplicaResponse:
        problem = await self._problem(request.header)
        if problem is not None:
            return pb.StopReplicaResponse(error=error_code(problem.code), message=str(problem))
        orders = [
            StopOrder(
                from_partition(each.partition),
                each.topic_id,
                each.delete and not each.set_aside,
                each.revision,
                each.set_aside,
            )
            for each in request.partitions
        ]
        try:
            failures = await self._replicas.stop(
                orders, controller_epoch=request.header.controller_epoch
            )
        except StoreUnavailable as error:
            return pb.StopReplicaResponse(error=error_code(error.code), message=str(error))
        return pb.StopReplicaResponse(
            errors=[_failed(partition, error) for partition, error in failures.items()]
        )

    async def update_metadata(self, request: pb.UpdateMetadataRequest) -> pb.UpdateMetadataResponse:
        problem = await self._problem(request.header)
        if problem is not None:
            return pb.UpdateMetadataResponse(error=error_code(problem.code), message=str(problem))
        self._metadata.update(request.metadata)
        return pb.UpdateMetadataResponse()

    async def update_settings(self, request: pb.UpdateSettingsRequest) -> pb.UpdateSettingsResponse:
        problem = await self._problem(request.header)
        if problem is not None:
            return pb.UpdateSettingsResponse(error=error_code(problem.code), message=str(problem))
        clients = {each.client_id: dict(each.settings) for each in request.clients}
        self._live.update(dict(request.broker), clients)
        return pb.UpdateSettingsResponse()

    async def _problem(self, header: pb.OrderHeader) -> TailraceError | None:
        """Why an order must not be obeyed."""
        return await self.guard.problem(header)


def _failed(partition: TopicPartition, error: TailraceError) -> pb.PartitionError:
    return pb.PartitionError(
        partition=to_partition(partition), error=error_code(error.code), message=str(error)
    )


def _order(each: pb.PartitionOrder) -> ReplicaOrder:
    return ReplicaOrder(
        partition=from_partition(each.partition),
        topic_id=TopicId(each.topic_id),
        state=StoredState(
            leader=BrokerId(each.leader),
            leader_epoch=LeaderEpoch(each.leader_epoch),
            isr=tuple(map(BrokerId, each.isr)),
            elr=tuple(map(BrokerId, each.elr)),
            revision=each.revision,
            unclean_epoch=each.unclean_epoch,
        ),
        replicas=tuple(map(BrokerId, each.replicas)),
        leader_link=each.leader_link,
        config=dict(each.config),
        adding=tuple(map(BrokerId, each.adding)),
        removing=tuple(map(BrokerId, each.removing)),
        leader_process=each.leader_process,
    )
