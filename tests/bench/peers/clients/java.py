"""The perf tools of Apache Kafka: speeds as they tell them, CPU as all that Java used."""

from __future__ import annotations

import re
import subprocess
import sys

from bench.peers.clients.job import Job, main

TOOL_S_MAX = 280
PACKAGE = "org.apache.kafka.tools"
# The last line but for percentiles: "500000 records sent, 81234.5 records/sec (79.33 MB/sec), ..."
SENT = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)
FETCH_RATE = -1


def produce(job: Job) -> dict[str, float]:
    props = [
        f"bootstrap.servers={job.servers}",
        "acks=all",
        f"batch.size={job.batch_bytes}",
        "linger.ms=5",
        "buffer.memory=268435456",
        f"max.request.size={max(2 * job.batch_bytes, 1 << 20)}",
    ]
    told = tool(
        job,
        *("ProducerPerformance", "--topic", job.topic, "--num-records", str(job.records)),
        *("--record-size", str(job.size), "--throughput", "-1", "--producer-props", *props),
    )
    records, rate = SENT.findall(told)[-1]
    if int(records) != job.records:
        raise RuntimeError(f"{records} of {job.records} records were sent")
    return {"seconds": job.records / float(rate)}


def consume(job: Job) -> dict[str, float]:
    """Without the time that it took to join its group: other clients have none."""
    told = tool(
        job,
        *("ConsumerPerformance", "--topic", job.topic, "--bootstrap-server", job.servers),
        *("--messages", str(job.records), "--timeout", "60000", "--group", job.group),
    )
    heads, fields = (
        [each.strip() for each in line.split(",")] for line in told.splitlines() if "," in line
    )
    found = dict(zip(heads, fields, strict=True))
    records = int(found["data.consumed.in.nMsg"])
    return {"records": records, "seconds": int(found["fetch.time.ms"]) / 1_000}


def tool(job: Job, name: str, *arguments: str) -> str:
    """`tools`: the command line of Java with its class path, one word a line."""
    command = [*job.tools.split("\n"), f"{PACKAGE}.{name}", *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=TOOL_S_MAX
    )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main({"produce": produce, "consume": consume}))
