"""A bare attempt to connect, and what it says about a process."""

from __future__ import annotations

import socket

import pytest

from tailrace.transport import probing
from tailrace.transport.addresses import Resolved
from tailrace.transport.probing import probe
from tailrace.transport.rpc import Probe


async def test_who_listens_is_open_and_who_is_gone_refuses() -> None:
    for host, family in (("127.0.0.1", socket.AF_INET), ("[::1]", socket.AF_INET6)):
        with socket.create_server((host.strip("[]"), 0), family=family) as server:
            address = f"{host}:{server.getsockname()[1]}"
            assert await probe(address, timeout_ms=1_000) is Probe.OPEN
        assert await probe(address, timeout_ms=1_000) is Probe.REFUSED


async def test_of_what_nothing_is_known_nothing_is_said() -> None:
    assert await probe("no.such.host.invalid:1", timeout_ms=5_000) is Probe.SILENT
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        fillers = [socket.socket() for _ in range(4)]
        for each in fillers:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        address = "{}:{}".format(*full.getsockname())
        assert await probe(address, timeout_ms=50) is Probe.SILENT
        for each in fillers:
            each.close()


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ((), Probe.SILENT),
        (("refused",), Probe.REFUSED),
        (("refused", "open"), Probe.OPEN),
        (("refused", "silent"), Probe.SILENT),
        (("silent", "open"), Probe.OPEN),
    ],
)
async def test_a_host_with_several_addresses(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], expected: Probe
) -> None:
    """It is gone only when nothing listens at any of them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ways = {
            "open": Resolved(socket.AF_INET, server.getsockname()),
            "refused": Resolved(socket.AF_INET, ("127.0.0.1", 1)),
            # To connect there is not allowed, which says nothing about who listens.
            "silent": Resolved(socket.AF_INET, ("255.255.255.255", 1)),
        }

        async def resolve(_address: str) -> list[Resolved]:
            return [ways[each] for each in there]

        monkeypatch.setattr(probing, "resolve", resolve)
        assert await probe("some.host:1", timeout_ms=1_000) is expected
