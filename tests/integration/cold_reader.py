"""A program of its own that reads a partition from the beginning each time it is told to.

Told by a line on its input, it answers with one line of JSON: what it read, how long that took, and
how much memory it ever needed beyond what it had before.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from random import Random

from tailrace.client.reader import PartitionReader
from tailrace.clock import SystemClock
from tailrace.transport.grpc_network import GrpcNetwork


def memory_bytes() -> int:
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def read_all(bootstrap: str, topic: str, end_offset: int) -> dict[str, float]:
    began_s, offset, size = time.monotonic(), 0, 0
    async with PartitionReader(
        bootstrap.split(","),
        topic,
        0,
        "earliest",
        network=GrpcNetwork(),
        clock=SystemClock(),
        rng=Random(),
    ) as reader:
        while offset < end_offset:
            fetched = await reader.next(timeout_ms=60_000)
            if fetched is None:
                raise TimeoutError(f"nothing came after offset {offset}")
            offset = fetched.header.next_offset
            size += fetched.header.length
    return {"bytes": size, "seconds": time.monotonic() - began_s}


def main() -> None:
    bootstrap, topic, end_offset = sys.argv[1:]
    before_bytes = memory_bytes()
    print("ready", flush=True)
    for _ in sys.stdin:
        found = asyncio.run(read_all(bootstrap, topic, int(end_offset)))
        print(json.dumps(found | {"memory_bytes": memory_bytes() - before_bytes}), flush=True)


if __name__ == "__main__":
    main()
