"""Values and errors survive the wire; what cannot be is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import errors
from tailrace.errors import InvalidRequest, NotLeader, TailraceError, Unreachable
from tailrace.meta.keys import BrokerRegistration, ControllerRecord, LeaderChange
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition
from tailrace.transport import wire
from tailrace.transport.wire import Endpoint, OrderHeader, PartitionOrder
from tailrace.v1 import common_pb2, control_pb2

PARTITION = TopicPartition("orders", 3)

brokers = st.lists(st.integers(0, 2**31 - 1).map(BrokerId), unique=True, max_size=5).map(tuple)
texts = st.text(max_size=20)


def all_errors() -> list[type[TailraceError]]:
    return [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, TailraceError)
    ]


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_survives_the_wire(kind: type[TailraceError]) -> None:
    error = errors.error_for(kind.code, "what happened")
    code = wire.code_of(error)
    assert code == wire.error_code(kind.code)
    assert code != common_pb2.ERROR_CODE_UNSPECIFIED
    assert wire.code_name(code) == kind.code
    with pytest.raises(kind, match="what happened") as caught:
        wire.raise_for(code, "what happened")
    assert type(caught.value) is kind


def test_no_error_raises_nothing() -> None:
    wire.raise_for(common_pb2.ERROR_CODE_UNSPECIFIED, "")
    assert wire.error_of(0, "") is None
    assert wire.code_name(0) == ""


def test_errors_of_others_and_of_later_versions_are_unknown() -> None:
    assert wire.code_of(ValueError("x")) == common_pb2.ERROR_CODE_UNKNOWN
    assert wire.error_code("NEVER_HEARD_OF") == common_pb2.ERROR_CODE_UNKNOWN
    assert wire.code_name(9_999) == "UNKNOWN"
    assert type(wire.error_of(9_999, "new")) is TailraceError


def test_what_to_do_about_an_error_survives_too() -> None:
    error = wire.error_of(wire.code_of(NotLeader("x")), "x")
    assert error is not None
    assert (error.retriable, error.refresh_metadata) == (True, True)
    assert isinstance(wire.error_of(wire.error_code("CORRUPT_FRAME"), ""), Unreachable)


def test_partitions() -> None:
    message = wire.to_partition(PARTITION)
    assert (message.topic, message.partition) == ("orders", 3)
    assert wire.from_partition(message) == PARTITION


@pytest.mark.parametrize(("topic", "partition"), [("", 0), ("a/b", 0), ("..", 0), ("a", -1)])
def test_a_partition_that_cannot_be_is_refused(topic: str, partition: int) -> None:
    with pytest.raises(InvalidRequest):
        wire.from_partition(common_pb2.TopicPartition(topic=topic, partition=partition))


def test_endpoints() -> None:
    endpoint = Endpoint(3, "host", 9_092, "rack-a")
    assert wire.from_endpoint(wire.to_endpoint(endpoint)) == endpoint
    assert endpoint.address == "host:9092"
    assert Endpoint(1, "::1", 1).address == "[::1]:1"
    registration = BrokerRegistration(
        broker_id=BrokerId(3),
        host="host",
        port=9_092,
        link_host="link",
        link_port=9_093,
        incarnation="x",
        rack="rack-a",
    )
    assert wire.endpoint_of(registration) == endpoint
    record = ControllerRecord(controller_id=7, epoch=2, host="c", port=1)
    assert wire.endpoint_of(record) == Endpoint(7, "c", 1)


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**62), st.integers(0, 2**62))
def test_order_headers(controller_id: int, controller_epoch: int, broker_epoch: int) -> None:
    header = OrderHeader(
        controller_id=controller_id, controller_epoch=controller_epoch, broker_epoch=broker_epoch
    )
    assert wire.from_order_header(wire.to_order_header(header)) == header


@st.composite
def orders(draw: st.DrawFn) -> PartitionOrder:
    replicas = draw(brokers)
    count = draw(st.integers(0, len(replicas)))
    isr, elr = replicas[:count], replicas[count:]
    leader = draw(st.sampled_from([BrokerId(-1), *isr]))
    return PartitionOrder(
        partition=PARTITION,
        topic_id=TopicId("id"),
        leader=leader,
        leader_epoch=LeaderEpoch(draw(st.integers(0, 2**31 - 1))),
        isr=isr,
        elr=elr,
        replicas=replicas,
        revision=draw(st.integers(0, 2**62)),
        leader_link=draw(texts),
        config=draw(st.dictionaries(texts, texts, max_size=3)),
    )


@given(orders())
def test_orders(order: PartitionOrder) -> None:
    data = wire.to_order(order).SerializeToString()
    assert wire.from_order(control_pb2.PartitionOrder.FromString(data)) == order


@pytest.mark.parametrize(
    "fields",
    [
        {"topic_id": ""},
        {"leader_epoch": -1},
        {"leader": 9},
        {"isr": [1, 1]},
        {"elr": [1]},
        {"replicas": [1, 2, 2]},
        {"replicas": [-3]},
    ],
    ids=str,
)
def test_an_order_that_contradicts_itself_is_refused(fields: dict[str, object]) -> None:
    good: dict[str, object] = {
        "partition": wire.to_partition(PARTITION),
        "topic_id": "id",
        "leader": 1,
        "leader_epoch": 0,
        "isr": [1, 2],
        "replicas": [1, 2, 3],
    }
    wire.from_order(control_pb2.PartitionOrder(**good))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="orders-3"):
        wire.from_order(control_pb2.PartitionOrder(**{**good, **fields}))  # type: ignore[arg-type]


@given(brokers, brokers, texts)
def test_leader_changes(
    old_isr: tuple[BrokerId, ...], new_isr: tuple[BrokerId, ...], text: str
) -> None:
    change = LeaderChange(
        decided_ms=1,
        cause=text,
        noticed_ms=2,
        old_leader=BrokerId(-1),
        new_leader=BrokerId(4),
        leader_epoch=LeaderEpoch(5),
        old_isr=old_isr,
        new_isr=new_isr,
        candidates=("a", text),
        controller_id=6,
        controller_epoch=7,
        loss=text,
    )
    assert wire.from_change(wire.to_change(change)) == change
