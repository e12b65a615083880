from __future__ import annotations

import asyncio
from typing import Any

import pytest

from simulation.loop import LoopClock, SimLoop
from simulation.network import SimNetwork
from tailrace.errors import Unreachable
from tailrace.transport import methods
from tailrace.transport.measured import MeasuredNetwork
from tailrace.transport.rpc import Handler, Method, Probe, Stream
from tailrace.v1 import broker_pb2 as pb


def test_calls_are_timed_and_streams_counted() -> None:
    async def main(loop: SimLoop) -> None:
        network = SimNetwork(loop)
        server_process, client_process = loop.process("server"), loop.process("client")
        measured = MeasuredNetwork(
            network.host("server", server_process), LoopClock(loop), lambda: (3, 1)
        )
        client = network.host("client", client_process)

        async def list_offsets(request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
            if request.queries:
                raise RuntimeError("it cannot")
            await asyncio.sleep(0.03)
            return pb.ListOffsetsResponse()

        async def watch(_: Any, stream: Stream[Any, Any]) -> None:
            await stream.send(pb.WatchMetadataResponse())

        handlers: dict[Method[Any, Any], Handler] = {
            methods.BROKER_LIST_OFFSETS: list_offsets,
            methods.BROKER_WATCH_METADATA: watch,
        }
        await server_process.spawn("serve", measured.serve("server:1", handlers))

        async def work() -> None:
            channel = client.channel("server:1")
            ask = methods.BROKER_LIST_OFFSETS
            await channel.call(ask, pb.ListOffsetsRequest(), timeout_ms=1_000)
            bad = pb.ListOffsetsRequest(queries=[pb.OffsetQuery()])
            with pytest.raises(Unreachable):
                await channel.call(ask, bad, timeout_ms=1_000)
            stream = channel.open(methods.BROKER_WATCH_METADATA, pb.WatchMetadataRequest())
            assert await stream.recv() is not None
            assert await stream.recv() is None

        await client_process.spawn("work", work())
        view = measured.view()
        calls = view.calls["BrokerService/ListOffsets"]
        assert (calls.times.count, calls.failed, calls.times.sum_ms) == (2, 1, 30)
        assert view.opened == {"BrokerService/WatchMetadata": 1}
        assert view.open == {"BrokerService/WatchMetadata": 0}
        assert (view.connections, view.refused) == (3, 1)
        network.handler_failures.clear()

        # What it does not serve goes through it.
        async def reach() -> None:
            probing = MeasuredNetwork(client, LoopClock(loop))
            assert await probing.probe("server:1", timeout_ms=100) is Probe.OPEN
            assert probing.channel("server:1").address == "server:1"

        await client_process.spawn("reach", reach())

    SimLoop(1).run(main)
