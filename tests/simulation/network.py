"""The Network and Links ports on simulated wires: calls, streams and replica links.

`SimNetwork` is the one network of a simulation; `SimNetwork.host(name, process)` is what one
process sees of it. Addresses are `name:port`. It behaves as `tailrace.transport` does, and both
pass the same tests: a stream or call that is cancelled tells the other side, whose handler is then
cancelled; `send` waits while the other side is behind; a port nobody listens on refuses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

from simulation.ends import (
    Answer,
    ServerCall,
    ServerStream,
    SimLink,
    SimStream,
    WireEnd,
    copied,
)
from simulation.fabric import FAIR, Connection, Fabric, Weather
from simulation.loop import Process, SimLoop
from simulation.storage import SimulatedCrash
from tailrace.errors import AddressInUse, InvalidRequest, RequestTimedOut, Unreachable
from tailrace.log.file_cache import FileCache
from tailrace.transport.addresses import join_address, split_address
from tailrace.transport.rpc import Handler, Kind, Link, Method, Probe, Stream

Q = TypeVar("Q")
R = TypeVar("R")

FIRST_FREE_PORT: Final = 40_000

_LOG: Final = logging.getLogger(__name__)


class SimNetwork(Fabric):
    """All hosts of one simulation and the wires between them."""

    def __init__(self, loop: SimLoop, *, weather: Weather = FAIR, strict: bool = True) -> None:
        super().__init__(loop, weather=weather, strict=strict)
        self.hosts: dict[str, SimHost] = {}

    def host(self, name: str, process: Process) -> SimHost:
        """The network as `process` sees it from host `name`, where no other one listens."""
        former = self.hosts.get(name)
        if former is not None and former.servers and not former.process.is_dead:
            raise ValueError(f"{name} still runs")
        host = self.hosts[name] = SimHost(self, name, process)
        return host


class SimHost:
    """The Network port of one process."""

    def __init__(self, network: SimNetwork, name: str, process: Process) -> None:
        self.network = network
        self.name = name
        self.process = process
        self.servers: dict[int, SimServer] = {}
        self._free_port = FIRST_FREE_PORT
        process.on_kill(self._killed)
        process.on_pause(lambda: network.paused(process))

    def channel(self, address: str) -> SimChannel:
        return SimChannel(self, address)

    async def serve(self, address: str, handlers: Mapping[Method[Any, Any], Handler]) -> SimServer:
        return self._listen(address, {method.name: each for method, each in handlers.items()}, None)

    async def probe(self, address: str, *, timeout_ms: int) -> Probe:
        self.process.check_alive()
        target, port = split_address(address)
        connection = self.network.connect(self.process, self.name, target)
        answer = Answer[Probe](self, connection)

        def knock() -> None:
            host = self.network.hosts.get(target)
            if host is not None:
                found = Probe.OPEN if host.listens(port) else Probe.REFUSED
                connection.back.put(0, answer.arrived, found, 0)

        connection.there.put(0, knock)
        try:
            return await answer.within(timeout_ms)
        except (RequestTimedOut, Unreachable):
            return Probe.SILENT
        finally:
            connection.b_open = False
            answer.close()

    def links(self, cache: FileCache) -> SimLinks:
        """The Links port of the same process; payloads come from its `cache` of open files."""
        return SimLinks(self, cache)

    def listens(self, port: int) -> bool:
        return not self.process.is_dead and port in self.servers

    def free(self, server: SimServer) -> None:
        self.servers.pop(server.port, None)

    def _listen(
        self,
        address: str,
        handlers: Mapping[str, Handler],
        accept: Callable[[Link], Awaitable[None]] | None,
    ) -> SimServer:
        self.process.check_alive()
        _, port = split_address(address)
        if port == 0:
            self._free_port += 1
            port = self._free_port
        if port in self.servers:
            raise AddressInUse(f"another process listens on {address}")
        server = self.servers[port] = SimServer(self, port, handlers, accept)
        return server

    def _killed(self) -> None:
        self.servers.clear()
        self.network.crash(self.process, f"connection reset: {self.name} died")


class SimServer:
    """Listens on one port; each call, stream or link that comes gets a task."""

    def __init__(
        self,
        host: SimHost,
        port: int,
        handlers: Mapping[str, Handler],
        accept: Callable[[Link], Awaitable[None]] | None,
    ) -> None:
        self.host = host
        self.port = port
        self.address = join_address(host.name, port)
        self.handlers = handlers
        self.accept = accept
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def stop(self, *, grace_ms: int) -> None:
        self.host.free(self)
        mine = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not mine]
        if tasks and grace_ms > 0:
            await asyncio.wait(tasks, timeout=grace_ms / 1_000)
        tasks = [task for task in tasks if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.host.process.spawn(name, work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and isinstance(task.exception(), SimulatedCrash):
            self.host.process.kill()


class SimChannel:
    """Calls and streams to one address."""

    def __init__(self, host: SimHost, address: str) -> None:
        self.address = address
        self._host = host
        self._target, self._port = split_address(address)
        self._open: dict[WireEnd, None] = {}
        self._closed = False

    async def call(self, method: Method[Q, R], request: Q, *, timeout_ms: int) -> R:
        self._check_usable()
        network = self._host.network
        message, size = copied(network, request, method.encode_request, method.decode_request)
        connection = network.connect(self._host.process, self._host.name, self._target)
        answer = Answer[R](self._host, connection)
        self._open[answer] = None
        if network.loses(connection.there):
            connection.lose(connection.there, "connection reset")
        else:
            serve = _serve_call, network, connection, self._target, self._port, method, message
            connection.there.put(size, *serve)
            self._maybe_twice(size, *serve)
        try:
            return await answer.within(timeout_ms)
        finally:
            self._open.pop(answer, None)
            answer.close()

    def open(self, method: Method[Q, R], request: Q | None = None) -> Stream[Q, R]:
        self._check_usable()
        network = self._host.network
        connection = network.connect(self._host.process, self._host.name, self._target)
        stream = SimStream[Q, R](
            self._host,
            connection,
            connection.there,
            (method.encode_request, method.decode_request),
        )
        self._open[stream] = None
        stream.on_close = lambda: self._open.pop(stream, None)
        message: Any = None
        size = 0
        if method.kind is Kind.SERVER_STREAM:
            if request is None:
                raise InvalidRequest(f"{method.name} takes a request")
            message, size = copied(network, request, method.encode_request, method.decode_request)
        connection.there.put(
            size, _serve_stream, network, connection, self._target, self._port, method, message
        )
        return stream

    async def close(self) -> None:
        self._closed = True
        for end in list(self._open):
            end.abandon("the channel was closed")

    def _check_usable(self) -> None:
        self._host.process.check_alive()
        if self._closed:
            raise Unreachable(f"the channel to {self.address} is closed")

    def _maybe_twice(self, size: int, serve: Callable[..., None], *args: Any) -> None:
        """A retry on the way: the request arrives once more, later, and nobody hears the answer."""
        network, host = self._host.network, self._host
        weather = network.weather_between(host.name, self._target)
        if weather.duplicate_probability and network.rng.random() < weather.duplicate_probability:
            network.loop.note(f"{host.name}>{self._target} twice")
            again = network.connect(host.process, host.name, self._target)
            again.there.put(size, serve, args[0], again, *args[2:])
            again.back.cut()
            again.a_open = False


class SimLinks:
    """The Links port of one process."""

    def __init__(self, host: SimHost, cache: FileCache) -> None:
        self._host = host
        self._cache = cache

    async def connect(self, address: str, *, timeout_ms: int) -> SimLink:
        self._host.process.check_alive()
        target, port = split_address(address)
        network = self._host.network
        connection = network.connect(self._host.process, self._host.name, target)
        answer = Answer[None](self._host, connection)
        connection.there.put(0, _serve_link, network, connection, target, port, answer)
        try:
            await answer.within(timeout_ms)
        except (RequestTimedOut, Unreachable) as error:
            answer.close()
            raise Unreachable(f"cannot connect to {address}: {error}") from error
        except BaseException:
            answer.close()
            raise
        link = SimLink(self._host, connection, connection.there, self._cache, address)
        # What was sent before we looked.
        for item, size in answer.early:
            link.arrived(item, size)
        if answer.early_end is not None:
            answer.early_end(link)
        return link

    async def listen(self, address: str, accept: Callable[[Link], Awaitable[None]]) -> SimServer:
        host, cache = self._host, self._cache

        async def accepted(link: Link) -> None:
            assert isinstance(link, SimLink)
            link.cache = cache
            await accept(link)

        return host._listen(address, {}, accepted)


# ------------------------------------------------------------------- at the other end of the wire


def _server(network: SimNetwork, connection: Connection, name: str, port: int) -> SimServer | None:
    """Whoever listens there; otherwise the attempt is refused, or not answered at all."""
    host = network.hosts.get(name)
    if host is None:
        return None
    if not host.listens(port):
        connection.b_open = False
        connection.back.crash(f"connection refused by {name}:{port}")
        return None
    connection.b = host.process
    if host.process.is_paused:
        network.watch_pause(connection, host.process)
    return host.servers[port]


def _serve_call(
    network: SimNetwork,
    connection: Connection,
    name: str,
    port: int,
    method: Method[Any, Any],
    message: Any,
) -> None:
    server = _server(network, connection, name, port)
    if server is None:
        return
    network.loop.note(f"{connection.there.source}>{name} {method.name}")
    end = ServerCall(server.host, connection, connection.back)
    end.task = server.spawn(method.name, _run_call(server, end, method, message))


async def _run_call(
    server: SimServer, end: ServerCall, method: Method[Any, Any], message: Any
) -> None:
    network = server.host.network
    try:
        response = await _handler(server, method)(message)
        end.answer(*copied(network, response, method.encode_response, method.decode_response))
    except asyncio.CancelledError:
        end.abandon("the handler was cancelled")
        raise
    except Exception as error:  # noqa: BLE001 - as the real server: whatever it is, it is told.
        _failed(network, method.name, error)
        end.abandon(f"{type(error).__name__}: {error}")


def _serve_stream(
    network: SimNetwork,
    connection: Connection,
    name: str,
    port: int,
    method: Method[Any, Any],
    message: Any,
) -> None:
    server = _server(network, connection, name, port)
    if server is None:
        return
    network.loop.note(f"{connection.there.source}>{name} {method.name}")
    codec = method.encode_response, method.decode_response
    end = ServerStream[Any, Any](server.host, connection, connection.back, codec)
    end.task = server.spawn(method.name, _run_stream(server, end, method, message))


async def _run_stream(
    server: SimServer, end: ServerStream[Any, Any], method: Method[Any, Any], message: Any
) -> None:
    try:
        handler = _handler(server, method)
        if method.kind is Kind.SERVER_STREAM:
            await handler(message, end)
        else:
            await handler(end)
        end.complete()
    except asyncio.CancelledError:
        end.abandon("the handler was cancelled")
        raise
    except Exception as error:  # noqa: BLE001 - as the real server: whatever it is, it is told.
        if end.reason is None:
            _failed(server.host.network, method.name, error)
        end.abandon(f"{type(error).__name__}: {error}")


def _serve_link(
    network: SimNetwork, connection: Connection, name: str, port: int, answer: Answer[None]
) -> None:
    server = _server(network, connection, name, port)
    if server is None or server.accept is None:
        return
    source = connection.there.source
    network.loop.note(f"{source}>{name} link")
    connection.back.put(0, answer.arrived, None, 0)
    link = SimLink(server.host, connection, connection.back, None, source)
    server.spawn(f"link from {source}", _run_link(server, link))


async def _run_link(server: SimServer, link: SimLink) -> None:
    assert server.accept is not None
    try:
        await server.accept(link)
    except Unreachable as error:
        _LOG.info("link from %s ended: %s", link.peer, error)
    except Exception as error:  # noqa: BLE001 - as the real server.
        _failed(server.host.network, f"link from {link.peer}", error)
    finally:
        link.close()


def _handler(server: SimServer, method: Method[Any, Any]) -> Handler:
    found = server.handlers.get(method.name)
    if found is None:
        raise InvalidRequest(f"{server.address} has no {method.name}")
    return found


def _failed(network: SimNetwork, what: str, error: Exception) -> None:
    # What is dropped with the loop has not failed.
    if not network.loop.is_over:
        _LOG.error("%s failed", what, exc_info=error)
        network.handler_failures.append(f"{what}: {error!r}")
