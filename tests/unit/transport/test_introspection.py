"""Health and reflection, asked by clients of gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tailrace.clock import SystemClock
from tailrace.transport import introspection as introspection_module
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.introspection import (
    HEALTH_CHECK,
    HEALTH_WATCH,
    REFLECTION,
    REFLECTION_ALPHA,
)
from tailrace.transport.measured import MeasuredNetwork
from tailrace.transport.methods import CONTROLLER_EXPLAIN
from tailrace.transport.rpc import Kind, Method

EXPLAIN_SERVICE = "tailrace.v1.ControllerService"


async def explain(_: Any) -> Any:
    raise AssertionError("nobody asks")


@asynccontextmanager
async def asking(trouble: list[str]) -> AsyncIterator[grpc.aio.Channel]:
    """A service whose trouble is the last of these."""
    network = MeasuredNetwork(Http2Network(), SystemClock())
    network.why_not_ready = lambda: trouble[-1]
    server = await network.serve("127.0.0.1:0", {CONTROLLER_EXPLAIN: explain})
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield channel
    await server.stop(grace_ms=0)


def callable_of(channel: grpc.aio.Channel, method: Method[Any, Any]) -> Any:
    make: Any = {
        Kind.UNARY: channel.unary_unary,
        Kind.SERVER_STREAM: channel.unary_stream,
        Kind.BIDI_STREAM: channel.stream_stream,
    }[method.kind]
    return make(
        method.name,
        request_serializer=method.encode_request,
        response_deserializer=method.decode_response,
    )


async def test_health_is_that_of_the_service() -> None:
    trouble = ["the store does not answer"]
    status = health_pb2.HealthCheckResponse
    async with asking(trouble) as channel:
        check = callable_of(channel, HEALTH_CHECK)
        for name in ("", EXPLAIN_SERVICE):
            answer = await check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == status.NOT_SERVING
        trouble.append("")
        assert (await check(health_pb2.HealthCheckRequest())).status == status.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await check(health_pb2.HealthCheckRequest(service="no.such"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watch_is_told_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introspection_module, "WATCH_INTERVAL_S", 0.01)
    trouble = [""]
    status = health_pb2.HealthCheckResponse
    async with asking(trouble) as channel:
        watch = callable_of(channel, HEALTH_WATCH)
        call: Any = watch(health_pb2.HealthCheckRequest())
        assert (await call.read()).status == status.SERVING
        trouble.append("no lease")
        assert (await call.read()).status == status.NOT_SERVING
        trouble.append("")
        assert (await call.read()).status == status.SERVING
        call.cancel()
        unknown: Any = watch(health_pb2.HealthCheckRequest(service="no.such"))
        assert (await unknown.read()).status == status.SERVICE_UNKNOWN
        unknown.cancel()


@pytest.mark.parametrize("method", [REFLECTION, REFLECTION_ALPHA], ids=["v1", "v1alpha"])
async def test_reflection_tells_services_and_their_files(method: Method[Any, Any]) -> None:
    async with asking([""]) as channel:
        call = callable_of(channel, method)()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services="*"))
        listed = (await call.read()).list_services_response
        assert [each.name for each in listed.service] == [
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
            EXPLAIN_SERVICE,
        ]
        for each in listed.service:
            await call.write(
                reflection_pb2.ServerReflectionRequest(file_containing_symbol=each.name)
            )
            files = (await call.read()).file_descriptor_response.file_descriptor_proto
            read = [FileDescriptorProto.FromString(file) for file in files]
            assert any(
                f"{file.package}.{service.name}" == each.name
                for file in read
                for service in file.service
            )
        for method_name, is_there in (("Explain", True), ("NoSuch", False)):
            symbol = f"{EXPLAIN_SERVICE}.{method_name}"
            await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))
            assert (await call.read()).HasField("file_descriptor_response") is is_there
        await call.write(reflection_pb2.ServerReflectionRequest(file_by_filename="no/such"))
        assert (await call.read()).error_response.error_code == 5
        await call.done_writing()
