"""Every service of a real cluster, asked by grpcio: each side must understand any other gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration import cluster_harness
from tailrace.dev.cluster import DevCluster
from tailrace.transport.introspection import HEALTH_CHECK, REFLECTION
from tailrace.transport.methods import (
    BROKER_DIAGNOSE,
    CONTROLLER_DESCRIBE_BROKERS,
    GROUP_LIST,
)
from tailrace.transport.rpc import Method

pytestmark = pytest.mark.integration

SERVICES: dict[str, tuple[str, Method[Any, Any]]] = {
    "broker-1": ("tailrace.v1.BrokerService", BROKER_DIAGNOSE),
    "controller-1": ("tailrace.v1.ControllerService", CONTROLLER_DESCRIBE_BROKERS),
    "coordinator-1": ("tailrace.v1.GroupService", GROUP_LIST),
}
READY_S = 30.0
SILENT = 2_000


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    folder: Path = tmp_path_factory.mktemp("introspection")
    dev = cluster_harness.start(folder, brokers=1, controllers=1, coordinators=1)
    yield dev
    cluster_harness.stop(dev)


def callable_of(channel: grpc.aio.Channel, method: Method[Any, Any], kind: str) -> Any:
    make = getattr(channel, kind)
    return make(
        method.name,
        request_serializer=method.encode_request,
        response_deserializer=method.decode_response,
    )


@pytest.mark.parametrize("name", SERVICES)
async def test_grpcio_understands_every_service(dev: DevCluster, name: str) -> None:
    service, method = SERVICES[name]
    member = dev.state.member(name)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{member.port}") as channel:
        check = callable_of(channel, HEALTH_CHECK, "unary_unary")
        request = HEALTH_CHECK.decode_request(b"")
        end_s = asyncio.get_running_loop().time() + READY_S
        # 1: it serves.
        while (await check(request)).status != 1:
            assert asyncio.get_running_loop().time() < end_s
            await asyncio.sleep(0.05)
        reflect = callable_of(channel, REFLECTION, "stream_stream")()
        asked = REFLECTION.decode_request(b"")
        asked.list_services = "*"
        await reflect.write(asked)
        listed = await reflect.read()
        assert service in {each.name for each in listed.list_services_response.service}
        await reflect.done_writing()
        answer = await callable_of(channel, method, "unary_unary")(method.decode_request(b""))
        assert type(answer) is type(method.decode_response(b""))


async def test_a8_silent_connections_and_resets_do_not_stop_a_controller(dev: DevCluster) -> None:
    """On grpcio, one connection that reset its calls made those of others fail."""
    from tailrace.transport.http2 import frames as h2  # noqa: PLC0415 - the attacker's tools.

    member = dev.state.member("controller-1")
    silent = [await asyncio.open_connection("127.0.0.1", member.port) for _ in range(SILENT)]
    reader, writer = await asyncio.open_connection("127.0.0.1", member.port)
    fields = [(":method", "POST"), (":scheme", "http")]
    fields += [(":path", CONTROLLER_DESCRIBE_BROKERS.name), ("content-type", "application/grpc")]
    block = h2.header_block(fields)
    writer.write(h2.PREFACE + h2.settings(()))
    reading = asyncio.ensure_future(reader.read())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{member.port}") as channel:
        call = callable_of(channel, CONTROLLER_DESCRIBE_BROKERS, "unary_unary")
        for start in range(0, 4_000, 100):
            if reading.done():
                break
            for number in range(2 * start + 1, 2 * start + 201, 2):
                headers = h2.frame(h2.HEADERS, h2.END_HEADERS, number, block)
                writer.write(headers + h2.reset(number, h2.CANCEL))
            answer = await call(CONTROLLER_DESCRIBE_BROKERS.decode_request(b""))
            assert answer.brokers
        received = await asyncio.wait_for(reading, READY_S)
        # The attacker's view: GOAWAY with ENHANCE_YOUR_CALM.
        assert b"it keeps us busy with nothing" in received
        assert (await call(CONTROLLER_DESCRIBE_BROKERS.decode_request(b""))).brokers
    for _, each in [*silent, (reader, writer)]:
        each.close()
