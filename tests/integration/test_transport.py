"""gRPC and sockets: the contract of the transport, and what only real ones can show.

Both of our networks speak gRPC, so each must understand the other.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from simulation.transport_contract import LINK_SCENARIOS, NETWORK_SCENARIOS, Scenario
from tailrace.log.file_cache import FileCache
from tailrace.log.files import Files, OsFiles
from tailrace.transport.grpc_network import GrpcNetwork
from tailrace.transport.http2.network import Http2Network
from tailrace.transport.links import SocketLinks
from tailrace.transport.rpc import Links, Network

pytestmark = pytest.mark.integration


@dataclass
class RealWorld:
    client: Network
    server: Network
    client_links: Links
    server_links: Links
    server_files: Files
    server_folder: str
    free_address: str = "127.0.0.1:0"


PAIRS: dict[str, tuple[type[GrpcNetwork | Http2Network], type[GrpcNetwork | Http2Network]]] = {
    "grpcio": (GrpcNetwork, GrpcNetwork),
    "ours": (Http2Network, Http2Network),
    "our-client": (Http2Network, GrpcNetwork),
    "our-server": (GrpcNetwork, Http2Network),
}


@pytest.fixture
async def world(tmp_path: Path, pair: str) -> AsyncIterator[RealWorld]:
    files = OsFiles()
    caches = [FileCache(files, open_files_max=2) for _ in range(2)]
    client, server = (make() for make in PAIRS[pair])
    yield RealWorld(
        client,
        server,
        SocketLinks(caches[0]),
        SocketLinks(caches[1]),
        files,
        str(tmp_path / "server"),
    )
    await client.close()
    await server.close()
    for cache in caches:
        cache.close()
        assert cache.counters().open_files == 0


@pytest.mark.parametrize(
    ("pair", "scenario"),
    [
        pytest.param(pair, scenario, id=f"{scenario.__name__}-{pair}")
        for scenarios, pairs in ((NETWORK_SCENARIOS, [*PAIRS]), (LINK_SCENARIOS, ["ours"]))
        for scenario in scenarios
        for pair in pairs
    ],
)
async def test_contract(
    scenario: Scenario, world: RealWorld, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await scenario(world)
        await asyncio.sleep(0.05)
        gc.collect()
    expected = "what_a_handler_raises" in scenario.__name__
    noise = [
        r
        for r in caplog.records
        if not (expected and r.name.startswith("tailrace.")) and not _is_of_a_loop_before(r)
    ]
    assert [f"{r.name}: {r.getMessage()}" for r in noise] == []
    others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    assert [t.get_name() for t in others if "tailrace" in repr(t)] == []


def _is_of_a_loop_before(record: logging.LogRecord) -> bool:
    """gRPC's poller is shared by all loops of a process; the end of one wakes the next once."""
    error = record.exc_info[1] if record.exc_info else None
    return record.name == "asyncio" and isinstance(error, OSError) and error.errno == errno.EBADF
