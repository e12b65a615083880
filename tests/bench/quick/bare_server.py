"""A gRPC server that does nothing with what it gets: the yardstick, in a process of its own.

It prints its port, and ends when its standard input does: so it never outlives who started it.
Of Tailrace it has the event loop alone, so that no change there moves the yardstick.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc

from tailrace.process import loop_factory

PRODUCE = "/bare.Bare/Produce"
FETCH = "/bare.Bare/Fetch"
ANSWER = bytes(24)
OPTIONS = [
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.max_receive_message_length", 64 << 20),
]


class Handlers(grpc.GenericRpcHandler):
    """Both methods take and give bytes as they are."""

    def service(self, details: Any) -> Any:
        if details.method == PRODUCE:
            return grpc.stream_stream_rpc_method_handler(produce)
        if details.method == FETCH:
            return grpc.unary_stream_rpc_method_handler(fetch)
        return None


async def produce(frames: AsyncIterator[bytes], context: Any) -> None:
    """A short answer for each frame."""
    async for _ in frames:
        await context.write(ANSWER)


async def fetch(request: bytes, context: Any) -> None:
    """So many messages of so many bytes."""
    count, size = map(int, request.split())
    message = bytes(size)
    for _ in range(count):
        await context.write(message)


async def serve() -> None:
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((Handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    await ended.wait()
    await server.stop(None)


def main() -> None:
    # As the services: the faster loop where it is installed.
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve())


if __name__ == "__main__":
    main()
