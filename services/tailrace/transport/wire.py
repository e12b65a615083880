"""Values of the model as protobuf messages, and back; errors as codes, and back.

Messages are mutable and know no invariants, so they end here: what comes off the wire becomes a
frozen value, or InvalidRequest when it cannot be one. Nothing is known here of who sends what.

What the store holds is imported where it is made: a client, which every Python process of Spark's
starts with, waits 25 ms for it and never meets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace.errors import InvalidRequest, TailraceError, error_for
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition, topic_name_problem
from tailrace.transport.addresses import join_address
from tailrace.transport.envelopes import PARTITIONS_KNOWN_MAX, Named
from tailrace.v1 import common_pb2, control_pb2, controller_pb2

if TYPE_CHECKING:
    from tailrace.meta.keys import (
        BrokerRegistration,
        ControllerRecord,
        CoordinatorRegistration,
        LeaderChange,
        SettingsChange,
    )

_PREFIX: Final = "ERROR_CODE_"
_NO_ERROR: Final = common_pb2.ERROR_CODE_UNSPECIFIED
_CODES: Final[dict[str, common_pb2.ErrorCode.ValueType]] = {
    name.removeprefix(_PREFIX): value for name, value in common_pb2.ErrorCode.items()
}
_NAMES: Final[dict[int, str]] = {
    value: name for name, value in _CODES.items() if value != _NO_ERROR
}


# ---------------------------------------------------------------------------------------- errors


def error_code(code: str) -> common_pb2.ErrorCode.ValueType:
    """The number of an error class's `code`."""
    return _CODES.get(code, common_pb2.ERROR_CODE_UNKNOWN)


def code_of(error: BaseException) -> common_pb2.ErrorCode.ValueType:
    """The number that tells the other side of this error; one of others' classes is UNKNOWN."""
    return error_code(error.code if isinstance(error, TailraceError) else TailraceError.code)


def code_name(code: int) -> str:
    """The `code` of the error class that a number stands for; empty when it says "no error"."""
    return "" if code == _NO_ERROR else _NAMES.get(code, TailraceError.code)


def error_of(code: int, message: str) -> TailraceError | None:
    """The error that the other side told of, or None."""
    name = code_name(code)
    return error_for(name, message) if name else None


def raise_for(code: int, message: str) -> None:
    """Raise the error that the other side told of, if it did."""
    error = error_of(code, message)
    if error is not None:
        raise error


# ------------------------------------------------------------------------ partitions and brokers


class Endpoint(NamedTuple):
    """Where a broker or controller can be reached."""

    id: int
    host: str
    port: int
    rack: str = ""

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)


def to_partition(partition: Named) -> common_pb2.TopicPartition:
    return common_pb2.TopicPartition(topic=partition.topic, partition=partition.partition)


def from_partition(message: Named) -> TopicPartition:
    """InvalidRequest when it names no partition that can exist."""
    return _checked(message.topic, message.partition)


@lru_cache(PARTITIONS_KNOWN_MAX)
def _checked(topic: str, partition: int) -> TopicPartition:
    problem = topic_name_problem(topic)
    if problem is not None or partition < 0:
        raise InvalidRequest(problem or f"partition {partition} is below 0")
    return TopicPartition(topic, partition)


def to_endpoint(endpoint: Endpoint) -> common_pb2.Endpoint:
    return common_pb2.Endpoint(
        id=endpoint.id, host=endpoint.host, port=endpoint.port, rack=endpoint.rack
    )


def from_endpoint(message: common_pb2.Endpoint) -> Endpoint:
    return Endpoint(message.id, message.host, message.port, message.rack)


def endpoint_of(
    record: BrokerRegistration | ControllerRecord | CoordinatorRegistration,
) -> Endpoint:
    """Where the process of a stored record can be reached."""
    from tailrace.meta.keys import (  # noqa: PLC0415 - see above.
        ControllerRecord,
        CoordinatorRegistration,
    )

    if isinstance(record, CoordinatorRegistration):
        return Endpoint(record.coordinator_id, record.host, record.port)
    if isinstance(record, ControllerRecord):
        return Endpoint(record.controller_id, record.host, record.port)
    return Endpoint(record.broker_id, record.host, record.port, record.rack)


# ---------------------------------------------------------------------------------------- orders


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderHeader:
    """Who gives an order, and to which life of the broker."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    # Of the broker's registration; empty: an older controller, which does not say.
    broker_incarnation: str = ""
    # Of the controller's term in the store; empty: an older controller, which has none.
    term_token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOrder:
    """The state of one partition, as the controller tells it to a replica."""

    partition: TopicPartition
    topic_id: TopicId
    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    replicas: tuple[BrokerId, ...]
    revision: int
    # `host:port` of the leader's replica link; empty when there is no leader.
    leader_link: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    # Those of the replicas that a reassignment adds, and those that go when it is done.
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    # The last epoch that began with an election that may have lost records; 0: none is known.
    unclean_epoch: int = 0
    # Which start of the leader's process was given the epoch; empty: not known.
    leader_process: str = ""
    # While the topic is `syncing`: the revision of its record, which is not sent. Who obeys has
    # synced what it had then.
    syncing_revision: int = 0


def to_order_header(header: OrderHeader) -> control_pb2.OrderHeader:
    return control_pb2.OrderHeader(
        controller_id=header.controller_id,
        controller_epoch=header.controller_epoch,
        broker_epoch=header.broker_epoch,
        broker_incarnation=header.broker_incarnation,
        term_token=header.term_token,
    )


def from_order_header(message: control_pb2.OrderHeader) -> OrderHeader:
    return OrderHeader(
        controller_id=message.controller_id,
        controller_epoch=message.controller_epoch,
        broker_epoch=message.broker_epoch,
        broker_incarnation=message.broker_incarnation,
        term_token=message.term_token,
    )


def to_order(order: PartitionOrder) -> control_pb2.PartitionOrder:
    return control_pb2.PartitionOrder(
        partition=to_partition(order.partition),
        topic_id=order.topic_id,
        leader=order.leader,
        leader_epoch=order.leader_epoch,
        isr=order.isr,
        elr=order.elr,
        replicas=order.replicas,
        revision=order.revision,
        leader_link=order.leader_link,
        config=order.config,
        adding=order.adding,
        removing=order.removing,
        unclean_epoch=order.unclean_epoch,
        leader_process=order.leader_process,
    )


def from_order(message: control_pb2.PartitionOrder) -> PartitionOrder:
    """InvalidRequest when its parts contradict each other."""
    order = PartitionOrder(
        partition=from_partition(message.partition),
        topic_id=TopicId(message.topic_id),
        leader=BrokerId(message.leader),
        leader_epoch=LeaderEpoch(message.leader_epoch),
        isr=_brokers(message.isr),
        elr=_brokers(message.elr),
        replicas=_brokers(message.replicas),
        revision=message.revision,
        leader_link=message.leader_link,
        config=dict(sorted(message.config.items())),
        adding=_brokers(message.adding),
        removing=_brokers(message.removing),
        unclean_epoch=message.unclean_epoch,
        leader_process=message.leader_process,
    )
    problem = _order_problem(order)
    if problem is not None:
        raise InvalidRequest(f"order for {order.partition}: {problem}")
    return order


def to_change(change: LeaderChange) -> controller_pb2.LeaderChange:
    return controller_pb2.LeaderChange(
        decided_ms=change.decided_ms,
        cause=change.cause,
        noticed_ms=change.noticed_ms,
        old_leader=change.old_leader,
        new_leader=change.new_leader,
        leader_epoch=change.leader_epoch,
        old_isr=change.old_isr,
        new_isr=change.new_isr,
        candidates=change.candidates,
        controller_id=change.controller_id,
        controller_epoch=change.controller_epoch,
        loss=change.loss,
    )


def from_change(message: controller_pb2.LeaderChange) -> LeaderChange:
    from tailrace.meta.keys import LeaderChange  # noqa: PLC0415 - see above.

    return LeaderChange(
        decided_ms=message.decided_ms,
        cause=message.cause,
        noticed_ms=message.noticed_ms,
        old_leader=BrokerId(message.old_leader),
        new_leader=BrokerId(message.new_leader),
        leader_epoch=LeaderEpoch(message.leader_epoch),
        old_isr=_brokers(message.old_isr),
        new_isr=_brokers(message.new_isr),
        candidates=tuple(message.candidates),
        controller_id=message.controller_id,
        controller_epoch=message.controller_epoch,
        loss=message.loss,
    )


def to_settings_change(change: SettingsChange) -> controller_pb2.SettingsChange:
    return controller_pb2.SettingsChange(
        decided_ms=change.decided_ms,
        set=change.set,
        unset=change.unset,
        controller_id=change.controller_id,
    )


def from_settings_change(message: controller_pb2.SettingsChange) -> SettingsChange:
    from tailrace.meta.keys import SettingsChange  # noqa: PLC0415 - see above.

    return SettingsChange(
        decided_ms=message.decided_ms,
        set=dict(sorted(message.set.items())),
        unset=tuple(message.unset),
        controller_id=message.controller_id,
    )


def _brokers(ids: Iterable[int]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(each) for each in ids)


def _order_problem(order: PartitionOrder) -> str | None:
    from tailrace.meta.keys import NO_BROKER  # noqa: PLC0415 - see above.

    if not order.topic_id:
        return "it names no topic id"
    if order.leader_epoch < 0:
        return f"leader epoch {order.leader_epoch} is below 0"
    if order.leader != NO_BROKER and order.leader not in order.isr:
        return f"leader {order.leader} is not in the ISR {order.isr}"
    for what, brokers in (("replicas", order.replicas), ("ISR and ELR", order.isr + order.elr)):
        if len(set(brokers)) != len(brokers) or any(broker < 0 for broker in brokers):
            return f"{what} {brokers} cannot be"
    return None
