"""The load of an end-to-end test. Runs in a pod, from a ConfigMap, on the shipped clients alone.

One idempotent producer numbers its records; two members of a group read them and commit. What was
acknowledged where is kept, and compared at the end with what a reader of its own finds in the log:
so the count does not come from anything that is being tested beside it.

`/tmp/report.json` says how it stands, twice a second; when `/tmp/stop` is there the load ends, and
the last line of its output is the verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from tailrace.aio import Admin, Consumer, Producer, RecordMetadata, TailraceError, TopicPartition

REPORT = Path("/tmp/report.json")
STOP = Path("/tmp/stop")
KEYS = 48
MEMBERS = 2
OPEN_MAX = 5_000
# How long records may stay without a fate, and the group behind, once nothing is done any more.
SETTLE_S = 120.0
READ_S = 120.0
# Waits of this length or more are told: the longest of those sent in one tenth of a second, for the
# latest so many tenths.
WAIT_SHOWN_MS = 50.0
WAITS_SHOWN = 3_000
PROBLEMS_SHOWN = 10


class Load:
    def __init__(self, bootstrap: str, topic: str, group: str, rate: float) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, topic, group
        self.interval_s = 1 / rate
        self.stopped = False
        self.who: dict[str, int] = {}
        self.sent = 0
        self.open = 0
        self.acked: dict[int, tuple[int, int]] = {}
        # The tenth of a second in which records were sent, and the longest until one of them was
        # acknowledged.
        self.waits: dict[float, float] = {}
        self.longest_ms = 0.0
        self.failed: list[str] = []
        self.problems: list[str] = []
        self.seen: Counter[int] = Counter()

    async def run(self) -> dict[str, Any]:
        async with asyncio.TaskGroup() as tasks:
            reporting = tasks.create_task(self.report())
            asking = tasks.create_task(self.ask())
            members = [tasks.create_task(self.consume(number)) for number in range(MEMBERS)]
            await self.produce()
            await self.until(lambda: self.seen.keys() >= self.acked.keys())
            for each in [reporting, asking, *members]:
                each.cancel()
        return await self.verdict()

    async def produce(self) -> None:
        async with Producer(self.bootstrap, client_id="e2e") as producer:
            due = time.monotonic()
            while not self.stopped:
                due = max(due + self.interval_s, time.monotonic() - 1)
                await asyncio.sleep(max(due - time.monotonic(), 0))
                if self.open < OPEN_MAX:
                    await self.send(producer)
            await producer.flush()
            await self.until(lambda: not self.open)

    async def send(self, producer: Producer) -> None:
        number, at = self.sent, time.time()
        began = time.monotonic()
        self.sent += 1
        self.open += 1

        def ended(metadata: RecordMetadata | None, error: TailraceError | None) -> None:
            self.open -= 1
            self.waited(at, (time.monotonic() - began) * 1000)
            if metadata is not None:
                self.acked[number] = (metadata.partition, metadata.offset)
            else:
                self.failed.append(f"{number}: {type(error).__name__}: {error}")

        try:
            key = b"%d" % (number % KEYS)
            await producer.send(self.topic, b"%d" % number, key, callback=ended)
        except TailraceError as error:
            ended(None, error)

    async def consume(self, member: int) -> None:
        while True:
            try:
                async with Consumer(
                    self.topic,
                    bootstrap_servers=self.bootstrap,
                    group_id=self.group,
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                    client_id=f"e2e-{member}",
                ) as consumer:
                    while True:
                        records = await consumer.poll(timeout=0.5)
                        self.seen.update(int(each.value or b"-1") for each in records)
                        if records:
                            await self.commit(consumer, member)
            except TailraceError as error:
                self.problems.append(f"member {member}: {type(error).__name__}: {error}")
                await asyncio.sleep(0.5)

    async def commit(self, consumer: Consumer, member: int) -> None:
        try:
            await consumer.commit()
        except TailraceError as error:
            # Its next poll goes on from where it is, or from what is committed: others may repeat.
            self.problems.append(f"commit of {member}: {type(error).__name__}: {error}")

    async def ask(self) -> None:
        """Who leads, controls and coordinates: so that a test knows whom to kill."""
        async with Admin(self.bootstrap, request_timeout_ms=2_000) as admin:
            while True:
                self.who = {
                    "leader": await self.answered(self.leader(admin)),
                    "controller": await self.answered(self.controller(admin)),
                    "coordinator": await self.answered(self.coordinator(admin)),
                }
                await asyncio.sleep(1)

    async def answered(self, question: Awaitable[int]) -> int:
        """-1: nobody knows, which is a problem worth telling if it lasts."""
        try:
            return await question
        except TailraceError as error:
            self.problems.append(f"asking: {type(error).__name__}: {error}")
            return -1

    async def leader(self, admin: Admin) -> int:
        return (await admin.describe_topic(self.topic)).partitions[0].leader

    async def controller(self, admin: Admin) -> int:
        return (await admin.describe_cluster()).controller_id

    async def coordinator(self, admin: Admin) -> int:
        return (await admin.describe_group(self.group)).coordinator_id

    async def report(self) -> None:
        while True:
            self.tell()
            await asyncio.sleep(0.5)

    def tell(self) -> None:
        REPORT.with_suffix(".new").write_text(json.dumps(self.figures()))
        REPORT.with_suffix(".new").replace(REPORT)
        self.stopped = self.stopped or STOP.exists()

    def waited(self, at: float, ms: float) -> None:
        self.longest_ms = max(self.longest_ms, ms)
        if ms >= WAIT_SHOWN_MS:
            tenth = round(at, 1)
            self.waits[tenth] = max(self.waits.get(tenth, 0.0), ms)

    def figures(self) -> dict[str, Any]:
        shown = sorted(self.waits.items())[-WAITS_SHOWN:]
        return {
            "now": time.time(),
            "sent": self.sent,
            "open": self.open,
            "acked": len(self.acked),
            "failed": len(self.failed),
            "consumed": len(self.seen),
            "repeated": sum(count - 1 for count in self.seen.values()),
            "waits": [[at, round(ms, 1)] for at, ms in shown],
            "longest": round(self.longest_ms, 1),
            "who": self.who,
            "problems": [*self.failed[:PROBLEMS_SHOWN], *self.problems[-PROBLEMS_SHOWN:]],
        }

    async def verdict(self) -> dict[str, Any]:
        """Read the whole log with a reader of its own, and compare."""
        found: Counter[int] = Counter()
        elsewhere = 0
        async with Consumer(
            bootstrap_servers=self.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            partitions = [
                TopicPartition(self.topic, number) for number in range(await self.partitions())
            ]
            await consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            left = sum(ends.values())
            deadline = time.monotonic() + READ_S
            while left > 0 and time.monotonic() < deadline:
                for record in await consumer.poll(timeout=1):
                    left -= 1
                    number = int(record.value or b"-1")
                    found[number] += 1
                    told = self.acked.get(number)
                    elsewhere += told is not None and told != (record.partition, record.offset)
        return {
            **self.figures(),
            "lost": sum(number not in found for number in self.acked),
            "duplicated": sum(count - 1 for count in found.values()),
            "elsewhere": elsewhere,
            "unread": left,
            "missed": sum(number not in self.seen for number in self.acked),
        }

    async def partitions(self) -> int:
        return max(partition for partition, _ in self.acked.values()) + 1

    async def until(self, check: Any) -> None:
        end = time.monotonic() + SETTLE_S
        while not check() and time.monotonic() < end:  # noqa: ASYNC110 - nobody tells.
            await asyncio.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rate", type=float, default=100.0)
    given = parser.parse_args()
    load = Load(given.bootstrap, given.topic, f"{given.topic}-readers", given.rate)
    print(json.dumps(asyncio.run(load.run())), flush=True)


if __name__ == "__main__":
    main()
