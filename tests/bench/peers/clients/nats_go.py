"""The bench tool of NATS, which is its Go client: figures as it tells them."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.peers.clients.job import Job, main

TOOL_S_MAX = 280
BATCH = 500


def produce(job: Job) -> dict[str, float]:
    return tool(job, "pub", "async", job.topic, "--batch", str(BATCH))


def consume(job: Job) -> dict[str, float]:
    return tool(job, "ordered", "--batch", str(BATCH))


def tool(job: Job, *arguments: str) -> dict[str, float]:
    """`tools`: where the tool is. It writes what it found to a file."""
    servers = ",".join(f"nats://{each}" for each in job.servers.split(","))
    with tempfile.TemporaryDirectory(prefix="nats-") as folder:
        told = Path(folder) / "told.csv"
        command = [
            *(job.tools, "--no-context", "--server", servers, "bench", "js", *arguments),
            *("--stream", job.topic, "--msgs", str(job.records), "--size", str(job.size)),
            *("--clients", "1", "--no-progress", "--csv", str(told)),
        ]
        # It looks for settings of its user: there shall be none.
        environment = {**os.environ, "HOME": folder, "XDG_CONFIG_HOME": folder}
        subprocess.run(
            command,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=TOOL_S_MAX,
        )
        with told.open(encoding="utf-8") as file:
            (row,) = csv.DictReader(file)
    return {"seconds": float(row["DurationSecs"])}


if __name__ == "__main__":
    sys.exit(main({"produce": produce, "fill": produce, "consume": consume}))
