"""No request of the protocol, however built, holds a service's loop for long (A6, F45).

Every method of the protocol is asked with the most expensive requests that its limits let in, made
from the description of its request: as many elements as fit, empty ones, alike ones and different
ones, and texts as long as fit. What is measured is the CPU time of each turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from integration.cluster_harness import connected
from integration.turn_meter import Turn, TurnMeter
from tailrace.clock import SystemClock
from tailrace.dev.cluster import DevCluster, Plan
from tailrace.errors import TailraceError
from tailrace.record.build import batch_from_columns
from tailrace.record.codec import Compression
from tailrace.transport import methods
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.rpc import REQUEST_BYTES_MAX, Channel, Kind, Method
from tailrace.v1 import broker_pb2, control_pb2, controller_pb2, group_pb2

TURN_MS_MAX: Final = 100.0
ANSWER_MS: Final = 30_000
STREAM_S: Final = 3.0
# Of batches more is taken, which is not looked at one by one.
SIZE_MAX: Final = 8 << 20
# What a controller tells a broker of a cluster of any size, on the port that is for controllers.
GROWING: Final = frozenset(
    {"BrokerControlService/LeaderAndIsr", "BrokerControlService/UpdateMetadata"}
)
TOPIC: Final = "t"
PARTITIONS: Final = 100
PRODUCE: Final = "BrokerService/Produce"

FILES: Final = (broker_pb2, control_pb2, controller_pb2, group_pb2)
PORTS: Final = {
    "BrokerService": ("broker-1", "port"),
    "BrokerControlService": ("broker-1", "control_port"),
    "ControllerService": ("controller-1", "port"),
    "GroupService": ("coordinator-1", "port"),
}
METHODS: Final = {
    each.name.removeprefix("/tailrace.v1."): each
    for each in vars(methods).values()
    if isinstance(each, Method)
}

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DevCluster, TurnMeter]]:
    folder: Path = tmp_path_factory.mktemp("turns")
    meter = TurnMeter(folder)
    dev = DevCluster(folder / "c", command_for=meter.command_for)
    asyncio.run(dev.up(Plan(brokers=1, controllers=1, coordinators=1, etcd_fsync=False)))
    asyncio.run(_begin(dev))
    yield dev, meter
    asyncio.run(dev.down())


async def _begin(dev: DevCluster) -> None:
    """A topic whose partitions the requests are about."""
    async with connected(dev) as cluster:
        await cluster.admin.create_topic(TOPIC, partitions=PARTITIONS)


def _request_of(name: str) -> type[Message]:
    service, method = name.split("/")
    for file in FILES:
        found = file.DESCRIPTOR.services_by_name.get(service)
        if found is not None:
            request: type[Message] = found.methods_by_name[method].input_type._concrete_class
            return request
    raise AssertionError(name)


def _value(field: Any, number: int) -> Any:
    if field.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
        text = "t" if field.name == "topic" else f"n{number}"
        return text if field.type == FieldDescriptor.TYPE_STRING else text.encode()
    if field.type == FieldDescriptor.TYPE_BOOL:
        return False
    if field.type == FieldDescriptor.TYPE_ENUM:
        return field.enum_type.values[-1].number
    return number % 2**31


def _fill(message: Message, number: int, depth: int = 3) -> None:
    """Give every field a value; of what is repeated, one."""
    for field in message.DESCRIPTOR.fields:
        is_message = field.type == FieldDescriptor.TYPE_MESSAGE
        if field.is_repeated and is_message and _is_map(field):
            continue
        if field.is_repeated and is_message:
            if depth:
                _fill(getattr(message, field.name).add(), number, depth - 1)
        elif field.is_repeated:
            getattr(message, field.name).append(_value(field, number))
        elif is_message:
            _fill(getattr(message, field.name), number, depth - 1)
        else:
            setattr(message, field.name, _value(field, number))


def _is_map(field: Any) -> bool:
    return bool(field.message_type.GetOptions().map_entry)


def _delimited(field: Any, inner: bytes) -> bytes:
    return _varint(field.number << 3 | 2) + _varint(len(inner)) + inner


def _varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return found + bytes((number,))


def _base(request: type[Message]) -> bytes:
    """Every field that is not repeated."""
    message = request()
    _fill(message, 1)
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            message.ClearField(field.name)
    return message.SerializeToString()


def _map_entry(field: Any, number: int) -> bytes:
    key, value = b"n%d" % number, b"1"
    return _delimited(
        field, b"\x0a" + _varint(len(key)) + key + b"\x12" + _varint(len(value)) + value
    )


def _element(field: Any, number: int) -> bytes:
    if field.type != FieldDescriptor.TYPE_MESSAGE:
        value = _value(field, number)
        if isinstance(value, str | bytes):
            return _delimited(field, value.encode() if isinstance(value, str) else value)
        return _varint(field.number << 3) + _varint(value)
    if _is_map(field):
        return _map_entry(field, number)
    inner = field.message_type._concrete_class()
    _fill(inner, number)
    return _delimited(field, inner.SerializeToString())


def expensive(name: str) -> dict[str, bytes]:
    """The requests, by how they are built."""
    request, size = _request_of(name), METHODS[name].request_bytes_max
    if name in GROWING:
        size = REQUEST_BYTES_MAX
    size = min(size, SIZE_MAX)
    base = _base(request)
    found = {"plain": base}
    for field in request.DESCRIPTOR.fields:
        room = size - len(base) - 64
        if field.is_repeated:
            empty = _delimited(field, b"")
            alike, number, different = _element(field, 7), 0, bytearray()
            while len(different) < room:
                different += _element(field, number)
                number += 1
            found[f"{field.name}, empty"] = base + empty * (room // len(empty))
            found[f"{field.name}, alike"] = base + alike * (room // len(alike))
            found[f"{field.name}, different"] = base + bytes(different[: -len(alike)] or different)
        elif field.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
            found[f"{field.name}, long"] = base + _delimited(field, b"x" * room)
        elif field.type == FieldDescriptor.TYPE_INT32:
            largest = _varint(field.number << 3) + _varint(2**31 - 1)
            found[f"{field.name}, largest"] = base + largest
    return {**found, **_batches()} if name == PRODUCE else found


def _batches() -> dict[str, bytes]:
    """Good batches that cost more than they carry."""
    count = 2_900_000
    empty = pa.repeat(pa.scalar(b"", pa.binary()), count)
    now_ms = SystemClock().wall_ms()
    bomb = batch_from_columns(None, empty, now_ms, compression=Compression.ZSTD)
    tiny = batch_from_columns(None, empty[:1], now_ms)
    found = {
        "batches, a bomb": bomb,
        "batches, tiny ones": tiny * (SIZE_MAX // len(tiny)),
        "batches, heads without bodies": tiny[:50] * (SIZE_MAX // 50),
    }
    return {how: _produce(batches) for how, batches in found.items()}


def _produce(batches: bytes) -> bytes:
    request = broker_pb2.ProduceRequest(acks=broker_pb2.ACKS_LEADER, timeout_ms=1_000)
    part = request.partitions.add(batches=batches, leader_epoch=-1)
    part.partition.topic = TOPIC
    return request.SerializeToString()


def _raw(method: Method[Any, Any]) -> Method[bytes, bytes]:
    """The method with requests as bytes, which nobody checks on this side."""
    return Method(
        name=method.name,
        kind=method.kind,
        encode_request=bytes,
        decode_request=bytes,
        encode_response=bytes,
        decode_response=bytes,
    )


async def _ask(channel: Channel, method: Method[bytes, bytes], request: bytes) -> str:
    """Ask, and say what came of it."""
    try:
        if method.kind is Kind.UNARY:
            await channel.call(method, request, timeout_ms=ANSWER_MS)
            return "answered"
        is_server_stream = method.kind is Kind.SERVER_STREAM
        stream = channel.open(method, request if is_server_stream else None)
        try:
            async with asyncio.timeout(STREAM_S):
                if not is_server_stream:
                    await stream.send(request)
                await stream.recv()
        finally:
            stream.cancel()
    except TimeoutError:
        return "no answer"
    except TailraceError as error:
        return f"{error.code}: {error}"[:200]
    return "answered"


@pytest.mark.parametrize("name", sorted(METHODS))
async def test_a6_no_request_holds_the_loop(
    world: tuple[DevCluster, TurnMeter], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dev, meter = world
    member, port = PORTS[name.split("/", maxsplit=1)[0]]
    about = dev.state.member(member)
    network = Http2Network()
    channel = network.channel(f"{about.host}:{getattr(about, port)}")
    method = _raw(METHODS[name])
    bad: dict[str, tuple[str, list[Turn]]] = {}
    meter.take(member)
    for how, request in expensive(name).items():
        said = await _ask(channel, method, request)
        # What it began may go on after the answer.
        await asyncio.sleep(0.05)
        turns = [each for each in meter.take(member) if each.cpu_ms > TURN_MS_MAX]
        if turns:
            bad[how] = (said, turns)
    await channel.close()
    assert not bad
    assert dev.life(about).name == "RUNNING"
