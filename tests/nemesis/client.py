"""One client of a nemesis, as a process: runs a `Workload` until it is told to stop.

What it is told and what it answers are lines of JSON on its standard input and output: `stop` (it
answers when all of its records have their fate), then `end` with how many records each partition
has (it writes what it observed to the file it was given, and ends). Without an input it ends too.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from pathlib import Path
from typing import Any

from nemesis.workload import Observed, Workload


async def observe(given: dict[str, Any]) -> Observed:
    workload = Workload(
        number=given["number"],
        bootstrap=given["bootstrap"],
        topic=given["topic"],
        partitions=given["partitions"],
        live=given["live"],
    )
    running = asyncio.ensure_future(workload.run())
    told = await _lines()
    while line := await told.readline():
        command = json.loads(line)
        if command["do"] == "stop":
            await workload.stop()
            print(json.dumps({"done": "stop"}), flush=True)
        else:
            await workload.catch_up({int(key): count for key, count in command["records"].items()})
            break
    workload.close()
    await running
    return workload.observed


async def _lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def main() -> None:
    given = json.loads(sys.argv[1])
    observed = asyncio.run(observe(given))
    Path(given["output"]).write_bytes(pickle.dumps(observed))


if __name__ == "__main__":
    main()
