"""The metadata store on etcd: the only module that knows the etcd library.

It speaks etcd's own gRPC API through the stubs of `aetcd`, whose client has one endpoint, no TLS
and no guards on delete events: endpoints, failover, deadlines and errors are handled here, once.

Endpoints: all calls go to one of them until it fails, then to the next. A transaction is sent at
most once, and only over a connection that stands; when its answer does not come, its outcome is
not known. Everything else is repeated until the deadline. Reads are linearizable, watches ask for
a member that has a leader. Invariant: every call ends within its deadline, with a result,
StoreUnavailable or LeaseLost.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import grpc
from aetcd import rpc  # type: ignore[import-untyped]  # The library has no type hints.

from tailrace.errors import InvariantViolation, LeaseLost, StoreUnavailable
from tailrace.meta.store import (
    LEASE_TTL_UNIT_MS,
    Change,
    CreatedAt,
    Delete,
    Entry,
    Guard,
    MetadataStore,
    Operation,
    Snapshot,
    TxnResult,
    WatchBatch,
    check_keys,
    check_txn,
)

CALL_TIMEOUT_MS: Final = 2_000
# How long a call waits for one endpoint to connect before it tries the next.
CONNECT_TIMEOUT_MS: Final = 500
RETRY_PAUSE_MS: Final = 50
MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024

_CONNECT_POLL_MS: Final = 5
# etcd ends connections that ping more often than every 5 s.
_PING_INTERVAL_MS: Final = 10_000
_PING_TIMEOUT_MS: Final = 5_000
_RECONNECT_BACKOFF_MS: Final = (50, 300)
# In Kubernetes an etcd that was replaced has another address under the same name. gRPC asks for
# it at most every 30 s unless it is told otherwise: so long its users would not find it.
_RESOLVE_EVERY_MS: Final = 1_000
_PROBLEM_TIMEOUT_S: Final = 0.1
# Asks a member that knows no leader to say so at once, before it does anything.
_HAS_LEADER: Final = ("hasleader", "true")
_NOT_DONE: Final = "etcdserver: no leader"
_KEYS_AFTER_ALL: Final = b"\0"
_REFUSALS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """PEM bytes: whom to trust, and who we are (both or none)."""

    authority: bytes
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    # The name in the server's certificate, where it is not that of the endpoint.
    server_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user of etcd."""

    user: str
    password: str = field(repr=False)


class EtcdStore(MetadataStore):
    """One client's connection to an etcd cluster."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: Tls | None = None,
        login: Login | None = None,
        namespace: str = "",
        timeout_ms: int = CALL_TIMEOUT_MS,
    ) -> None:
        """`endpoints` are `host:port`; `namespace` goes before every key, as `/tailrace/prod`."""
        if not endpoints:
            raise InvariantViolation("an etcd has at least one endpoint")
        self._members = [_Member(endpoint, tls) for endpoint in endpoints]
        self._current = 0
        self._login = login
        self._token: str | None = None
        self._namespace = namespace
        self._timeout_ms = timeout_ms
        self._closed = False

    async def get(self, key: str) -> Entry | None:
        request = rpc.RangeRequest(key=self._key(key))
        answer = await self._call("read", lambda to: to.ask(to.member.kv.Range, request))
        return self._entry(answer.kvs[0]) if answer.kvs else None

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        check_keys(keys)
        reads = [rpc.RequestOp(request_range=rpc.RangeRequest(key=self._key(key))) for key in keys]
        request = rpc.TxnRequest(success=reads)
        answer = await self._call("read", lambda to: to.ask(to.member.kv.Txn, request))
        found = [each.response_range.kvs for each in answer.responses]
        return [self._entry(kvs[0]) if kvs else None for kvs in found]

    async def snapshot(self, prefix: str) -> Snapshot:
        start = self._key(prefix)
        request = rpc.RangeRequest(key=start, range_end=_end_of(start))
        answer = await self._call("read", lambda to: to.ask(to.member.kv.Range, request))
        entries = tuple(self._entry(each) for each in answer.kvs)
        return Snapshot(answer.header.revision, entries)

    async def txn(self, guards: Sequence[Guard], operations: Sequence[Operation]) -> TxnResult:
        check_txn(guards, operations)
        request = rpc.TxnRequest(
            compare=[self._compare(guard) for guard in guards],
            success=[self._request(operation) for operation in operations],
        )
        answer = await self._call(
            "write", lambda to: to.ask(to.member.kv.Txn, request), repeat=False
        )
        return TxnResult(succeeded=answer.succeeded, revision=answer.header.revision)

    async def grant_lease(self, ttl_ms: int) -> int:
        request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl_ms / LEASE_TTL_UNIT_MS))
        answer = await self._call(
            "grant a lease", lambda to: to.ask(to.member.lease.LeaseGrant, request)
        )
        return int(answer.ID)

    async def keep_alive(self, lease: int) -> int:
        request = rpc.LeaseKeepAliveRequest(ID=lease)
        answer = await self._call(
            "renew a lease", lambda to: to.ask_stream(to.member.lease.LeaseKeepAlive, request)
        )
        if answer.TTL <= 0:
            raise LeaseLost(f"there is no lease {lease} (any more)")
        return int(answer.TTL) * LEASE_TTL_UNIT_MS

    async def revoke_lease(self, lease: int) -> None:
        request = rpc.LeaseRevokeRequest(ID=lease)
        try:
            await self._call(
                "revoke a lease", lambda to: to.ask(to.member.lease.LeaseRevoke, request)
            )
        except LeaseLost:
            return

    async def compact(self, revision: int) -> None:
        """Forget the history up to a revision: for tests and tools, etcd does it by itself."""
        request = rpc.CompactionRequest(revision=revision, physical=True)
        await self._call("compact", lambda to: to.ask(to.member.kv.Compact, request), repeat=False)

    async def watch(self, prefix: str, *, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        deadline = self._deadline()
        member = await self._connected(deadline)
        token = await self._metadata(member, deadline)
        call = member.watch.Watch(metadata=token)
        member.watches[call] = None
        try:
            async with asyncio.timeout_at(deadline):
                await call.write(self._watch_request(prefix, from_revision))
                answer = await call.read()
            while True:
                if answer is grpc.aio.EOF:
                    _gone("etcd ended the watch")
                if answer.compact_revision:
                    yield WatchBatch(answer.compact_revision, (), compacted=True)
                    return
                if answer.canceled:
                    _gone(f"etcd ended the watch: {answer.cancel_reason}")
                changes = self._changes(answer.events, from_revision)
                if changes:
                    # Not the header's revision: more changes from before it may be on their way.
                    yield WatchBatch(changes[-1].revision, changes)
                answer = await call.read()
        except TimeoutError as error:
            self._leave(member)
            raise StoreUnavailable(f"etcd began no watch in {self._timeout_ms} ms") from error
        except grpc.aio.AioRpcError as error:
            self._leave(member)
            self._forget_token_after(error)
            raise StoreUnavailable(f"the watch broke: {_words(error)}") from error
        except asyncio.CancelledError:
            self._raise_unless_ours(call)
            raise
        finally:
            member.watches.pop(call, None)
            call.cancel()

    async def close(self) -> None:
        self._closed = True
        for member in self._members:
            await member.close()

    # ------------------------------------------------------------------------ calls and endpoints

    async def _call(
        self, what: str, send: Callable[[_To], Awaitable[Any]], *, repeat: bool = True
    ) -> Any:
        """Send a request; when `repeat`, again and elsewhere until the deadline."""
        deadline = self._deadline()
        loop = asyncio.get_running_loop()
        renewed_token = False
        while True:
            member = await self._connected(deadline)
            token = await self._metadata(member, deadline)
            left_s = deadline - loop.time()
            # A member that hangs must leave time to ask another one.
            timeout_s = left_s / 2 if repeat and len(self._members) > 1 else left_s
            try:
                return await send(_To(member, max(timeout_s, 0.001), token))
            except grpc.aio.AioRpcError as error:
                if self._forget_token_after(error) and not renewed_token:
                    renewed_token = True
                    continue
                _raise_if_final(error)
                self._leave(member)
                pause_s = RETRY_PAUSE_MS / 1_000
                may_repeat = repeat or _NOT_DONE in _words(error)
                if not may_repeat or loop.time() + pause_s >= deadline:
                    raise StoreUnavailable(
                        f"etcd at {member.endpoint} could not {what}: {_words(error)}"
                    ) from error
                await asyncio.sleep(pause_s)
            except asyncio.CancelledError:
                self._raise_unless_ours(None)
                raise

    async def _connected(self, deadline: float) -> _Member:
        """Return a member whose connection stands: first the one used last, then the others."""
        loop = asyncio.get_running_loop()
        patience_s = CONNECT_TIMEOUT_MS / 1_000
        next_one_at = loop.time() + patience_s
        while True:
            if self._closed:
                _gone("the connection to the store was closed")
            member = self._members[self._current]
            state = member.state()
            if state is grpc.ChannelConnectivity.READY:
                return member
            now = loop.time()
            if now >= deadline:
                endpoints = ", ".join(each.endpoint for each in self._members)
                _gone(f"no etcd answers at {endpoints}: {await member.problem()}")
            if now >= next_one_at or state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                self._current = (self._current + 1) % len(self._members)
                next_one_at = now + patience_s
            await asyncio.sleep(_CONNECT_POLL_MS / 1_000)

    def _leave(self, member: _Member) -> None:
        """Go on with the next member, watches too: a member that failed may hang."""
        if len(self._members) > 1 and member is self._members[self._current]:
            self._current = (self._current + 1) % len(self._members)
            for call in list(member.watches):
                call.cancel()

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout_ms / 1_000

    def _raise_unless_ours(self, call: Any) -> None:
        """Tell a call that was cancelled here, by `close` or `_leave`, from a cancelled task."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return
        if self._closed or (call is not None and call.cancelled()):
            raise StoreUnavailable("the connection to the store was given up") from None

    # ---------------------------------------------------------------------------------------- login

    async def _metadata(self, member: _Member, deadline: float) -> _Metadata:
        if self._login is None:
            return (_HAS_LEADER,)
        if self._token is None:
            left_s = max(deadline - asyncio.get_running_loop().time(), 0.001)
            request = rpc.AuthenticateRequest(name=self._login.user, password=self._login.password)
            try:
                answer = await _To(member, left_s, ()).ask(member.auth.Authenticate, request)
            except grpc.aio.AioRpcError as error:
                self._leave(member)
                raise StoreUnavailable(
                    f"etcd does not let {self._login.user!r} in: {_words(error)}"
                ) from error
            self._token = str(answer.token)
        return (_HAS_LEADER, ("token", self._token))

    def _forget_token_after(self, error: grpc.aio.AioRpcError) -> bool:
        """Tokens end with time and with etcd's restarts; the request was not looked at then."""
        if self._login is None or not _is_about_token(error):
            return False
        self._token = None
        return True

    # ------------------------------------------------------------------------------- translation

    def _key(self, key: str) -> bytes:
        return (self._namespace + key).encode("utf-8", "surrogateescape")

    def _entry(self, found: Any) -> Entry:
        return Entry(
            self._name(found.key),
            found.value,
            found.create_revision,
            found.mod_revision,
            found.lease,
        )

    def _name(self, key: bytes) -> str:
        return key.decode("utf-8", "surrogateescape")[len(self._namespace) :]

    def _compare(self, guard: Guard) -> Any:
        key = self._key(guard.key)
        if isinstance(guard, CreatedAt):
            return rpc.Compare(key=key, target=rpc.Compare.CREATE, create_revision=guard.revision)
        return rpc.Compare(key=key, target=rpc.Compare.MOD, mod_revision=guard.revision)

    def _request(self, operation: Operation) -> Any:
        key = self._key(operation.key)
        if isinstance(operation, Delete):
            return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))
        put = rpc.PutRequest(key=key, value=operation.value, lease=operation.lease)
        return rpc.RequestOp(request_put=put)

    def _watch_request(self, prefix: str, from_revision: int) -> Any:
        start = self._key(prefix)
        create = rpc.WatchCreateRequest(
            key=start,
            range_end=_end_of(start),
            # One earlier than asked for: a watch from just the compacted revision is let through
            # by etcd, but lacks the deletions of that revision.
            start_revision=max(from_revision - 1, 1),
        )
        return rpc.WatchRequest(create_request=create)

    def _changes(self, events: Sequence[Any], from_revision: int) -> tuple[Change, ...]:
        changes = []
        for event in events:
            found = event.kv
            if found.mod_revision < from_revision:
                continue
            deleted = event.type == rpc.Event.DELETE
            entry = None if deleted else self._entry(found)
            changes.append(Change(self._name(found.key), entry, found.mod_revision))
        return tuple(changes)


_Metadata = tuple[tuple[str, str], ...]


class _Member:
    """One endpoint: its channel, made when it is first needed, and what goes over it."""

    def __init__(self, endpoint: str, tls: Tls | None) -> None:
        self.endpoint = endpoint
        self.watches: dict[Any, None] = {}
        self._calls: dict[Any, None] = {}
        self._tls = tls
        self._channel: grpc.aio.Channel | None = None
        self.kv: Any = None
        self.lease: Any = None
        self.watch: Any = None
        self.auth: Any = None

    def state(self) -> grpc.ChannelConnectivity:
        if self._channel is None:
            self._channel = _channel(self.endpoint, self._tls)
            self.kv = rpc.KVStub(self._channel)
            self.lease = rpc.LeaseStub(self._channel)
            self.watch = rpc.WatchStub(self._channel)
            self.auth = rpc.AuthStub(self._channel)
        return self._channel.get_state(try_to_connect=True)

    async def problem(self) -> str:
        """Say why the connection does not stand, as gRPC tells it to a call that does not wait."""
        try:
            await self.kv.Range(rpc.RangeRequest(key=b"/"), timeout=_PROBLEM_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return _words(error)
        return "it has just come back"

    @contextmanager
    def tracking(self, call: Any) -> Iterator[None]:
        """Remember a call as long as it runs: a channel that is closed leaves its calls waiting."""
        self._calls[call] = None
        try:
            yield
        finally:
            self._calls.pop(call, None)

    async def close(self) -> None:
        for call in [*self._calls, *self.watches]:
            call.cancel()
        if self._channel is not None:
            await self._channel.close()


@dataclass(frozen=True, slots=True)
class _To:
    """Where a request goes, and how long it may take."""

    member: _Member
    timeout_s: float
    metadata: _Metadata

    async def ask(self, method: Any, request: Any) -> Any:
        call = method(request, timeout=self.timeout_s, metadata=self.metadata)
        with self.member.tracking(call):
            return await call

    async def ask_stream(self, method: Any, request: Any) -> Any:
        """Send one request over a stream of its own, and return the one answer."""
        call = method(timeout=self.timeout_s, metadata=self.metadata)
        with self.member.tracking(call):
            try:
                await call.write(request)
                answer = await call.read()
            finally:
                call.cancel()
        if answer is grpc.aio.EOF:
            _gone("etcd ended the stream without an answer")
        return answer


def _channel(endpoint: str, tls: Tls | None) -> grpc.aio.Channel:
    backoff_min_ms, backoff_max_ms = _RECONNECT_BACKOFF_MS
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.keepalive_time_ms", _PING_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", backoff_min_ms),
        ("grpc.min_reconnect_backoff_ms", backoff_min_ms),
        ("grpc.max_reconnect_backoff_ms", backoff_max_ms),
        ("grpc.dns_min_time_between_resolutions_ms", _RESOLVE_EVERY_MS),
        # Two stores in one process must not share a connection: they fail apart.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]
    if tls is None:
        return grpc.aio.insecure_channel(endpoint, options=options)
    if tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    credentials = grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
    return grpc.aio.secure_channel(endpoint, credentials, options=options)


def _end_of(prefix: bytes) -> bytes:
    """Return the first key after all that begin with the prefix."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else _KEYS_AFTER_ALL


def _raise_if_final(error: grpc.aio.AioRpcError) -> None:
    """Raise what no repetition can change."""
    code, words = error.code(), _words(error)
    if code is grpc.StatusCode.NOT_FOUND and "lease" in words:
        raise LeaseLost(words) from error
    if code in _REFUSALS:
        raise StoreUnavailable(f"etcd refuses the request: {words}") from error


def _is_about_token(error: grpc.aio.AioRpcError) -> bool:
    words = _words(error)
    return "invalid auth token" in words or "revision of auth store is old" in words


def _words(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"


def _gone(why: str) -> NoReturn:
    raise StoreUnavailable(why)
