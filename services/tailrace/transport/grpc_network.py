"""The Network port over gRPC (grpc.aio): channels, calls, streams, servers, and a bare probe.

gRPC's own errors end here: what fails on the way is Unreachable, what took too long is
RequestTimedOut. Messages travel as a `Method` encodes them; generated stubs are not needed.

Two habits of grpc.aio shape this module. A task that is cancelled while it reads or writes breaks
its stream, and a stream that is cancelled shows as `CancelledError` in tasks that nobody cancelled:
the second is told as Unreachable. A handler that ends by CancelledError leaves its caller without
an answer: so every handler is wrapped, and whatever ends it is told to the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Generic, NoReturn, TypeVar

import grpc

from tailrace.errors import (
    AddressInUse,
    InvalidRequest,
    RequestTimedOut,
    TailraceError,
    TooManyConnections,
    Unreachable,
)
from tailrace.transport.addresses import join_address, listening_socket, split_address
from tailrace.transport.limits import Connections, ServerLimits
from tailrace.transport.probing import probe
from tailrace.transport.reasons import plain_reason
from tailrace.transport.rpc import (
    CALLER,
    KEEPALIVE_MS,
    KEEPALIVE_TIMEOUT_MS,
    MESSAGE_BYTES_MAX,
    Handler,
    Kind,
    Method,
    Probe,
    Stream,
    joined,
)

RECONNECT_MS_MIN: Final = 50
RECONNECT_MS_MAX: Final = 1_000
CONNECT_TIMEOUT_MS: Final = 2_000
BROKEN_OR_FINISHED_S: Final = 0.01
# What is said to the caller of a handler that raised.
DETAIL_CHARACTERS_MAX: Final = 1_000

_COMMON_OPTIONS: Final[list[tuple[str, int]]] = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_CHANNEL_OPTIONS: Final[list[tuple[str, int]]] = [
    *_COMMON_OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS_MIN),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
    # In spite of its name: how long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    # Connections are shared on purpose (by this module), not behind our back by all channels.
    ("grpc.use_local_subchannel_pool", 1),
    # Who calls decides whether to try again.
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
]
_SERVER_OPTIONS: Final[list[tuple[str, int]]] = [
    *_COMMON_OPTIONS,
    # Clients ask every KEEPALIVE_MS; the default takes that for an attack.
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    # Otherwise a second process would listen on the same port without an error.
    ("grpc.so_reuseport", 0),
]
_LOG: Final = logging.getLogger(__name__)

Q = TypeVar("Q")
R = TypeVar("R")


class GrpcNetwork:
    """The network of one process. All users of one address share one connection."""

    def __init__(self, limits: ServerLimits | None = None, *, idle_max: int = 0) -> None:
        """`limits`: those of its servers; without, they let in whatever comes.

        `idle_max`: so many connections stay when nobody uses them any more. Who asks the same few
        again and again would otherwise connect each time, which costs more than the question.
        """
        self._limits = limits
        self._idle_max = idle_max
        self._shared: dict[str, _SharedChannel] = {}
        # Those that were given up for a fresh one and still have users.
        self._given_up: dict[_SharedChannel, None] = {}
        self._servers: list[GrpcServer] = []

    def channel(self, address: str) -> GrpcChannel:
        split_address(address)
        return GrpcChannel(self, self.join(address))

    def join(self, address: str) -> _SharedChannel:
        """For GrpcChannel: one user more, of a connection that is there or tried at once."""
        shared = self._shared.get(address)
        if shared is not None and shared.waits_in_vain():
            # Its users keep it until they are done with it.
            self._given_up[shared] = None
            shared = None
        if shared is None:
            shared = self._shared[address] = _SharedChannel(address)
        shared.users += 1
        return shared

    async def serve(self, address: str, handlers: Mapping[Method[Any, Any], Handler]) -> GrpcServer:
        # gRPC does not say why it cannot listen, but for a line on the console: try before it does.
        (await listening_socket(address)).close()
        server = GrpcServer(handlers, self._limits)
        await server.start(address)
        self._servers.append(server)
        return server

    def connections(self) -> tuple[int, int]:
        """How many connections the servers have, and how many they refused."""
        counted = [each.connections for each in self._servers if each.connections is not None]
        return sum(map(len, counted)), sum(each.refused for each in counted)

    async def probe(self, address: str, *, timeout_ms: int) -> Probe:
        return await probe(address, timeout_ms=timeout_ms)

    async def close(self) -> None:
        """Close what is still open; servers are stopped by those who started them."""
        for shared in [*self._shared.values(), *self._given_up]:
            await shared.close()
        self._shared.clear()
        self._given_up.clear()

    async def release(self, shared: _SharedChannel) -> None:
        """For GrpcChannel: one user less."""
        shared.users -= 1
        if shared.users == 0 and self._shared.get(shared.address) is shared:
            # The last in the line: it was used last.
            self._shared[shared.address] = self._shared.pop(shared.address)
        idle = [each for each in self._shared.values() if not each.users]
        for each in idle[: max(len(idle) - self._idle_max, 0)]:
            del self._shared[each.address]
            self._given_up[each] = None
        unused = [each for each in self._given_up if not each.users]
        for each in unused:
            del self._given_up[each]
        # Others may release theirs meanwhile: what is closed here is nobody else's business by now.
        for each in unused:
            await each.close()


class GrpcChannel:
    """Calls and streams to one address."""

    def __init__(self, network: GrpcNetwork, shared: _SharedChannel) -> None:
        self.address = shared.address
        self._network = network
        self._shared = shared
        # In order, and as keys: grpc.aio's calls compare by identity.
        self._open: dict[Any, None] = {}
        self._closed = False

    async def call(self, method: Method[Q, R], request: Q, *, timeout_ms: int) -> R:
        self._check_open()
        if self._shared.waits_in_vain():
            old, self._shared = self._shared, self._network.join(self.address)
            await self._network.release(old)
        callable_ = self._shared.callable(method)
        try:
            call = callable_(request, timeout=timeout_ms / 1_000)
        except grpc.aio.UsageError as error:
            raise Unreachable(f"{self.address}: {error}") from error
        self._open[call] = None
        try:
            response: R = await call
        except grpc.aio.AioRpcError as error:
            raise _told(self.address, error) from None
        except asyncio.CancelledError:
            _raise_if_cancelled(self.address, "the call was cancelled here")
            raise
        finally:
            self._open.pop(call, None)
        return response

    def open(self, method: Method[Q, R], request: Q | None = None) -> Stream[Q, R]:
        self._check_open()
        callable_ = self._shared.callable(method)
        try:
            if method.kind is Kind.SERVER_STREAM:
                if request is None:
                    raise InvalidRequest(f"{method.name} takes a request")
                call = callable_(request)
            else:
                call = callable_()
        except grpc.aio.UsageError as error:
            raise Unreachable(f"{self.address}: {error}") from error
        self._open[call] = None
        call.add_done_callback(lambda _: self._open.pop(call, None))
        return _ClientStream(self.address, call)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for call in list(self._open):
            call.cancel()
        self._open.clear()
        await self._network.release(self._shared)

    def _check_open(self) -> None:
        if self._closed:
            raise Unreachable(f"the channel to {self.address} is closed")


class GrpcServer:
    """Serves a mapping of handlers; `start` once, `stop` once."""

    def __init__(
        self, handlers: Mapping[Method[Any, Any], Handler], limits: ServerLimits | None = None
    ) -> None:
        self.address = ""
        self.connections = Connections(limits) if limits is not None else None
        self._running: dict[asyncio.Task[Any], None] = {}
        options = dict(_SERVER_OPTIONS) | dict(limits.options() if limits is not None else ())
        self._server = grpc.aio.server(options=list(options.items()))
        self._server.add_generic_rpc_handlers(
            (_Handlers(handlers, self._running, self.connections),)
        )

    async def start(self, address: str) -> None:
        host, _ = split_address(address)
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            await self._server.stop(None)
            raise AddressInUse(f"cannot listen on {address}: {error}") from error
        await self._server.start()
        self.address = join_address(host, port)

    async def stop(self, *, grace_ms: int) -> None:
        await self._server.stop(grace_ms / 1_000 if grace_ms > 0 else None)
        # gRPC does not wait for what handlers do after they were cancelled.
        mine = asyncio.current_task()
        left = [task for task in self._running if task is not mine]
        if left:
            await asyncio.wait(left)


class _SharedChannel:
    """One connection, with the callables that grpc.aio makes for each method."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.users = 0
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._callables: dict[Method[Any, Any], Any] = {}
        self._born_s = asyncio.get_running_loop().time()

    def waits_in_vain(self) -> bool:
        """It failed to connect and lets time pass until it tries again.

        Who asks for a connection has reason to believe that there is somebody now: a broker that
        has just come back must not be out of reach for as long as it was tried without success.
        """
        if self._channel.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            return False
        age_s = asyncio.get_running_loop().time() - self._born_s
        return age_s >= RECONNECT_MS_MIN / 1_000

    def callable(self, method: Method[Any, Any]) -> Any:
        found = self._callables.get(method)
        if found is None:
            make = {
                Kind.UNARY: self._channel.unary_unary,
                Kind.SERVER_STREAM: self._channel.unary_stream,
                Kind.BIDI_STREAM: self._channel.stream_stream,
            }[method.kind]
            found = self._callables[method] = make(
                method.name,
                request_serializer=lambda request: joined(method.encode_request(request)),
                response_deserializer=method.decode_response,
            )
        return found

    async def close(self) -> None:
        await self._channel.close(None)


class _ClientStream(Generic[Q, R]):
    """A stream that we opened."""

    def __init__(self, address: str, call: Any) -> None:
        self._address = address
        self._call = call
        self._sending = asyncio.Lock()

    async def send(self, message: Q) -> None:
        try:
            async with self._sending:
                await self._call.write(message)
        except grpc.aio.AioRpcError as error:
            raise _told(self._address, error) from None
        except (asyncio.InvalidStateError, grpc.aio.UsageError):
            await self._raise_why()
        except asyncio.CancelledError:
            self._call.cancel()
            _raise_if_cancelled(self._address, "the stream was cancelled here")
            raise

    async def recv(self) -> R | None:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise _told(self._address, error) from None
        except asyncio.CancelledError:
            self._call.cancel()
            _raise_if_cancelled(self._address, "the stream was cancelled here")
            raise
        if message is grpc.aio.EOF:
            return None
        received: R = message
        return received

    async def finish(self) -> None:
        try:
            async with self._sending:
                await self._call.done_writing()
        except grpc.aio.AioRpcError as error:
            raise _told(self._address, error) from None
        except asyncio.CancelledError:
            self._call.cancel()
            _raise_if_cancelled(self._address, "the stream was cancelled here")
            raise

    def cancel(self) -> None:
        self._call.cancel()

    async def _raise_why(self) -> NoReturn:
        """The stream had ended before we sent: say how."""
        if not self._call.done():
            raise InvalidRequest("this end has finished already")
        code, details = await self._call.code(), await self._call.details()
        if code is grpc.StatusCode.UNAVAILABLE:
            raise Unreachable(f"{self._address}: {plain_reason(details or '')}")
        raise Unreachable(f"{self._address}: the stream has ended: {code.name} {details}")


class _ServerStream(Generic[Q, R]):
    """A stream in its handler: what comes is `Q`, what goes is `R`."""

    def __init__(self, context: Any, handler: asyncio.Task[Any]) -> None:
        self._context = context
        self._handler = handler
        self._sending = asyncio.Lock()
        self._broken = False
        self.caller_is_gone = False

    async def send(self, message: R) -> None:
        self._check()
        try:
            async with self._sending:
                await self._context.write(message)
        except grpc.aio.BaseError as error:
            self.caller_is_gone = True
            raise Unreachable(f"the caller is gone: {error}") from error
        except asyncio.CancelledError:
            self._broken = True
            raise

    async def recv(self) -> Q | None:
        self._check()
        try:
            message = await self._context.read()
            if message is grpc.aio.EOF:
                # A caller that broke the stream looks like one that has finished, until gRPC
                # cancels us a moment later.
                await asyncio.sleep(BROKEN_OR_FINISHED_S)
        except grpc.aio.BaseError as error:
            self.caller_is_gone = True
            raise Unreachable(f"the caller is gone: {error}") from error
        except asyncio.CancelledError:
            # The operation is still under way in gRPC, which allows no second one beside it.
            self._broken = True
            raise
        if message is grpc.aio.EOF:
            return None
        received: Q = message
        return received

    async def finish(self) -> None:
        """The stream ends when its handler returns."""

    def cancel(self) -> None:
        self._broken = True
        self._handler.cancel()

    def _check(self) -> None:
        if self._broken:
            raise Unreachable("the stream was broken here")


class _Handlers(grpc.GenericRpcHandler):
    """Finds the handler of a method, and wraps it so that every end is told to the caller."""

    def __init__(
        self,
        handlers: Mapping[Method[Any, Any], Handler],
        running: dict[asyncio.Task[Any], None],
        connections: Connections | None,
    ) -> None:
        self._running = running
        self._connections = connections
        self._found = {
            method.name: self._wrapped(method, handler) for method, handler in handlers.items()
        }

    def service(self, handler_call_details: Any) -> Any:
        return self._found.get(handler_call_details.method)

    def _wrapped(self, method: Method[Any, Any], handler: Handler) -> Any:
        async def call(request: Any, context: Any) -> Any:
            return await self._guarded(method, context, lambda _: handler(request))

        async def server_stream(request: Any, context: Any) -> None:
            await self._guarded(method, context, lambda stream: handler(request, stream))

        async def bidi_stream(_: Any, context: Any) -> None:
            await self._guarded(method, context, handler)

        make, wrapped = {
            Kind.UNARY: (grpc.unary_unary_rpc_method_handler, call),
            Kind.SERVER_STREAM: (grpc.unary_stream_rpc_method_handler, server_stream),
            Kind.BIDI_STREAM: (grpc.stream_stream_rpc_method_handler, bidi_stream),
        }[method.kind]
        return make(
            wrapped,
            request_deserializer=method.decode_request,
            response_serializer=lambda response: joined(method.encode_response(response)),
        )

    async def _guarded(
        self, method: Method[Any, Any], context: Any, work: Callable[[Any], Awaitable[Any]]
    ) -> Any:
        connections, peer = self._connections, ""
        if connections is not None and connections.is_counted(method.name):
            peer = context.peer()
            refusal = connections.enter(peer)
            if refusal is not None:
                await context.abort(grpc.StatusCode.UNAVAILABLE, f"{refusal.code}: {refusal}")
        try:
            return await self._run(method, context, work)
        finally:
            if connections is not None and peer:
                connections.leave(peer)

    async def _run(
        self, method: Method[Any, Any], context: Any, work: Callable[[Any], Awaitable[Any]]
    ) -> Any:
        task = asyncio.current_task()
        assert task is not None
        self._running[task] = None
        stream = _ServerStream[Any, Any](context, task)
        CALLER.set(context.peer)
        try:
            return await work(stream)
        except asyncio.CancelledError:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "the handler was cancelled")
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told.
            if not stream.caller_is_gone:
                _LOG.exception("%s failed", method.name)
            detail = f"{type(error).__name__}: {error}"[:DETAIL_CHARACTERS_MAX]
            await context.abort(grpc.StatusCode.INTERNAL, detail)
        finally:
            self._running.pop(task, None)


async def _abort(context: Any, code: grpc.StatusCode, detail: str) -> None:
    """Tell the caller, unless it is gone, which is the usual reason for ending up here."""
    with suppress(grpc.aio.BaseError):
        await context.abort(code, detail)


def _told(address: str, error: grpc.aio.AioRpcError) -> TailraceError:
    code, details = error.code(), error.details() or ""
    text = f"{address}: {code.name}: {details}"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestTimedOut(f"{address}: it did not answer in time")
    if code in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED}:
        # No such method, or a message above the limit: it would fail again.
        return InvalidRequest(text)
    if details.startswith(TooManyConnections.code):
        return TooManyConnections(f"{address}: {details}")
    if code is grpc.StatusCode.UNAVAILABLE:
        return Unreachable(f"{address}: {plain_reason(details)}")
    return Unreachable(text)


def _raise_if_cancelled(address: str, reason: str) -> None:
    """Tell a stream that was cancelled from a task that was: only the first is Unreachable."""
    task = asyncio.current_task()
    if task is None or task.cancelling() == 0:
        raise Unreachable(f"{address}: {reason}") from None
