"""The store on etcd without an etcd: deadlines, and how errors and prefixes are read.

What it does with a server is in tests/integration: test_meta_contract.py and test_meta_etcd.py.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import grpc
import pytest

from tailrace.errors import InvariantViolation, LeaseLost, StoreUnavailable
from tailrace.meta import etcd
from tailrace.meta.etcd import EtcdStore, Login, Tls
from tailrace.meta.store import Put

# With these an HTTP/2 server greets: a client then takes the connection for a good one.
EMPTY_SETTINGS: Final = b"\0\0\0\4\0\0\0\0\0"


@asynccontextmanager
async def serving(endpoint: str, greeting: bytes) -> AsyncIterator[None]:
    """Take connections, greet, and say no more."""
    open_ones: list[asyncio.StreamWriter] = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.append(writer)
        writer.write(greeting)

    host, port = endpoint.split(":")
    async with await asyncio.start_server(serve, host, int(port)):
        yield
    # gRPC keeps a connection as long as somebody holds one of its calls: do not wait for it.
    for writer in open_ones:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@pytest.fixture
def dead_endpoint() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_there_is_an_endpoint() -> None:
    with pytest.raises(InvariantViolation):
        EtcdStore([])


async def test_nobody_there_is_known_by_the_deadline(dead_endpoint: str) -> None:
    store = EtcdStore([dead_endpoint, dead_endpoint], timeout_ms=150)
    loop = asyncio.get_running_loop()
    for call in (store.get("/a"), store.txn([], [Put("/a", b"")]), store.keep_alive(1)):
        before = loop.time()
        with pytest.raises(StoreUnavailable, match=f"no etcd answers at {dead_endpoint}"):
            await call
        assert 0.14 < loop.time() - before < 1
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.get("/a")


async def test_somebody_who_is_no_etcd(dead_endpoint: str) -> None:
    store = EtcdStore([dead_endpoint], tls=Tls(authority=b"no certificate"), timeout_ms=200)
    async with serving(dead_endpoint, b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        with pytest.raises(StoreUnavailable, match="no etcd answers"):
            await store.get("/a")
        await store.close()


async def test_somebody_who_never_answers(dead_endpoint: str) -> None:
    store = EtcdStore([dead_endpoint], timeout_ms=200)
    async with serving(dead_endpoint, EMPTY_SETTINGS):
        with pytest.raises(StoreUnavailable, match="could not write: DEADLINE_EXCEEDED"):
            await store.txn([], [Put("/a", b"")])
        with pytest.raises(StoreUnavailable, match="DEADLINE_EXCEEDED"):
            await store.get("/a")
        with pytest.raises(StoreUnavailable, match="DEADLINE_EXCEEDED"):
            await store.keep_alive(1)
        with pytest.raises(StoreUnavailable, match="began no watch in 200 ms"):
            await anext(store.watch("/", from_revision=1))
        await store.close()


async def test_a_login_is_not_waited_for_longer_than_the_call(dead_endpoint: str) -> None:
    login = Login(user="root", password="secret")
    store = EtcdStore([dead_endpoint], login=login, timeout_ms=200)
    async with serving(dead_endpoint, EMPTY_SETTINGS):
        with pytest.raises(StoreUnavailable, match="does not let 'root' in"):
            await store.get("/a")
        await store.close()


async def test_calls_and_watches_that_wait_when_the_store_is_closed(dead_endpoint: str) -> None:
    store = EtcdStore([dead_endpoint], timeout_ms=10_000)
    async with serving(dead_endpoint, EMPTY_SETTINGS):
        calls = [
            asyncio.ensure_future(store.get("/a")),
            asyncio.ensure_future(store.keep_alive(1)),
            asyncio.ensure_future(_first(store)),
        ]
        await asyncio.sleep(0.1)
        cancelled = asyncio.ensure_future(store.get("/a"))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        await store.close()
        for call in calls:
            with pytest.raises(StoreUnavailable):
                await call
        with pytest.raises(asyncio.CancelledError):
            await cancelled


async def _first(store: EtcdStore) -> object:
    return await anext(store.watch("/", from_revision=1))


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"/", b"0"), (b"/a/", b"/a0"), (b"a\xff", b"b"), (b"\xff", b"\0"), (b"", b"\0")],
)
def test_the_end_of_a_prefix(prefix: bytes, end: bytes) -> None:
    assert etcd._end_of(prefix) == end


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def test_errors_that_no_repetition_changes() -> None:
    lost = _error(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")
    with pytest.raises(LeaseLost):
        etcd._raise_if_final(lost)
    refused = _error(grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied")
    with pytest.raises(StoreUnavailable, match="permission denied"):
        etcd._raise_if_final(refused)
    etcd._raise_if_final(_error(grpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed"))
