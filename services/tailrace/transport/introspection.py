"""What every gRPC service tells of itself: `grpc.health.v1` and server reflection.

So `grpcurl`, probes of Kubernetes and load balancers work with every service of ours. Messages are
those of gRPC's own packages. Reflection is served as v1 and v1alpha, which differ only in name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final

from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from tailrace.transport.rpc import REQUEST_BYTES_MAX, CallRefused, Handler, Kind, Method, Stream

# How often a watch looks whether the service is still as it was.
WATCH_INTERVAL_S: Final = 1.0
_NOT_FOUND: Final = 5

HEALTH_CHECK: Final = Method[Any, Any](
    "/grpc.health.v1.Health/Check",
    Kind.UNARY,
    health_pb2.HealthCheckRequest.SerializeToString,
    health_pb2.HealthCheckRequest.FromString,
    health_pb2.HealthCheckResponse.SerializeToString,
    health_pb2.HealthCheckResponse.FromString,
    REQUEST_BYTES_MAX,
)
HEALTH_WATCH: Final = Method[Any, Any](
    "/grpc.health.v1.Health/Watch",
    Kind.SERVER_STREAM,
    health_pb2.HealthCheckRequest.SerializeToString,
    health_pb2.HealthCheckRequest.FromString,
    health_pb2.HealthCheckResponse.SerializeToString,
    health_pb2.HealthCheckResponse.FromString,
    REQUEST_BYTES_MAX,
)


def _reflection(version: str) -> Method[Any, Any]:
    return Method[Any, Any](
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        Kind.BIDI_STREAM,
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
        REQUEST_BYTES_MAX,
    )


REFLECTION: Final = _reflection("v1")
REFLECTION_ALPHA: Final = _reflection("v1alpha")


def introspection(
    methods: Iterable[Method[Any, Any]], why_not_ready: Callable[[], str]
) -> Mapping[Method[Any, Any], Handler]:
    """The handlers that tell of a server with these methods."""
    names = {each.name.split("/")[1] for each in methods}
    names |= {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    health = _Health(names, why_not_ready)
    servicer = reflection.aio.ReflectionServicer(names)

    async def reflect(stream: Stream[Any, Any]) -> None:
        async for answer in servicer.ServerReflectionInfo(_requests(stream), None):
            await stream.send(answer)

    return {
        HEALTH_CHECK: health.check,
        HEALTH_WATCH: health.watch,
        REFLECTION: reflect,
        REFLECTION_ALPHA: reflect,
    }


async def _requests(stream: Stream[Any, Any]) -> AsyncIterator[Any]:
    while (request := await stream.recv()) is not None:
        if request.HasField("file_containing_symbol"):
            request.file_containing_symbol = _findable(request.file_containing_symbol)
        yield request


def _findable(symbol: str) -> str:
    """A symbol of the same file that protobuf finds: it knows no methods by their names."""
    service, _, method = symbol.rpartition(".")
    try:
        found = descriptor_pool.Default().FindServiceByName(service)
    except KeyError:
        return symbol
    return service if method in found.methods_by_name else symbol


class _Health:
    """The state of a server, and of each of its services, which is the same."""

    def __init__(self, names: Iterable[str], why_not_ready: Callable[[], str]) -> None:
        self._names = {"", *names}
        self._why_not_ready = why_not_ready

    def _status(self) -> Any:
        statuses = health_pb2.HealthCheckResponse
        return statuses.NOT_SERVING if self._why_not_ready() else statuses.SERVING

    async def check(self, request: Any) -> Any:
        if request.service not in self._names:
            raise CallRefused(_NOT_FOUND, f"no service {request.service!r}")
        return health_pb2.HealthCheckResponse(status=self._status())

    async def watch(self, request: Any, stream: Stream[Any, Any]) -> None:
        """Tell the state now and whenever it changes, as long as the caller listens."""
        told = None
        while True:
            status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            if request.service in self._names:
                status = self._status()
            if status != told:
                told = status
                await stream.send(health_pb2.HealthCheckResponse(status=status))
            await asyncio.sleep(WATCH_INTERVAL_S)
