"""`tailrace demo`: a cluster that loses its leader while records are written, before your eyes.

Real processes in a temporary folder: etcd, two controllers, three brokers. A producer with acks=all
goes on while the leader of a partition is killed with SIGKILL, and Spark aggregates the records;
then every record is read back and counted. What does not hold ends the demo with an exit code that
is not 0.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from tailrace.cli.asking import TIMEOUT_S
from tailrace.cli.connecting import Connection, connection, run
from tailrace.cli.demo_spark import OUTPUT, Aggregation
from tailrace.cli.formatting import counted
from tailrace.cli.output import stdout_console
from tailrace.cli.topics import print_change, print_topic
from tailrace.client.admin import AdminCore
from tailrace.client.delivery import RecordMetadata
from tailrace.client.settings import ProducerSettings
from tailrace.dev.cluster import DevCluster, Plan
from tailrace.errors import TailraceError
from tailrace.runtime import Tasks

TOPIC: Final = "orders"
PARTITIONS: Final = 3
TABLE_LINES_MAX: Final = 20
SHOPS: Final = ("north", "east", "south")
# How long records flow before the leader is killed, and after.
FLOW_S: Final = 1.5
PACE_S: Final = 0.002
WAIT_S: Final = 30.0


def demo_cluster(*, keep: bool) -> bool:
    """Run the demo; returns whether nothing was lost."""
    console = stdout_console()
    folder = Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
    kept = False
    try:
        held = run(_show(folder, console, keep=keep))
        kept = keep
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
    return held


class Flow:
    """A producer that goes on until it is told to stop, and what became of its records."""

    def __init__(self, to: Connection) -> None:
        self._to = to
        self._stopped = False
        self.sent = 0
        self.failed = 0
        # (partition, offset) of what is acknowledged, and when: for the longest pause.
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.waits_ms: list[tuple[int, int]] = []

    async def run(self) -> None:
        producer = self._to.producer(ProducerSettings())
        try:
            while not self._stopped:
                number = self.sent
                key = b"customer-%d" % (number % 100)
                await producer.send(
                    TOPIC, order(number), key, callback=self._noting(self._now_ms(), number)
                )
                self.sent += 1
                await asyncio.sleep(PACE_S)
            await producer.flush()
        finally:
            await producer.close()

    def stop(self) -> None:
        self._stopped = True

    def longest_wait_ms(self, since_ms: int) -> int:
        """The longest that a record waited for its acknowledgement, from a moment on."""
        waits = [acked - max(sent, since_ms) for sent, acked in self.waits_ms if acked >= since_ms]
        return max(waits, default=0)

    def _noting(
        self, sent_ms: int, number: int
    ) -> Callable[[RecordMetadata | None, TailraceError | None], None]:
        def note(metadata: RecordMetadata | None, _: TailraceError | None) -> None:
            if metadata is None:
                self.failed += 1
                return
            self.acknowledged[metadata.partition, metadata.offset] = number
            self.waits_ms.append((sent_ms, self._now_ms()))

        return note

    def _now_ms(self) -> int:
        return self._to.clock.monotonic_ms()


def order(number: int) -> bytes:
    """The value of a record: JSON, so that others can do something with it."""
    shop = SHOPS[number % len(SHOPS)]
    return json.dumps({"order": number, "shop": shop, "amount": number % 50}).encode()


async def _show(folder: Path, console: Console, *, keep: bool) -> bool:
    cluster = DevCluster(folder)
    say = _Saying(console)
    say.step("Three brokers, two controllers and etcd start")
    begun_ms = say.now_ms()
    await cluster.up(Plan(brokers=3, controllers=2, coordinators=0))
    say.tell(f"up in {(say.now_ms() - begun_ms) / 1000:.1f} s, in {folder}")
    kept = False
    try:
        to = connection(cluster.state.bootstrap, TIMEOUT_S)
        async with to.admin() as admin:
            held = await _break_it(cluster, to, admin, say)
        if keep:
            say.tell(f"It goes on: tailrace dev status --dir {folder}")
        kept = keep
    except asyncio.CancelledError:
        say.tell("Interrupted: everything is being stopped.")
        raise
    else:
        return held
    finally:
        if not kept:
            await cluster.down()


async def _break_it(cluster: DevCluster, to: Connection, admin: AdminCore, say: _Saying) -> bool:
    say.step(f"A topic of {PARTITIONS} partitions, each on three brokers")
    print_topic(say.console, await admin.create_topic(TOPIC, partitions=PARTITIONS))
    await admin.create_topic(OUTPUT, partitions=1)
    aggregation = Aggregation(cluster.folder)
    await aggregation.start(cluster.state.bootstrap, TOPIC)
    flow = Flow(to)
    tasks = Tasks(lambda _, __: None)
    flowing = tasks.spawn("flow", flow.run())
    try:
        say.step("A producer writes with acks=all, and the leader of partition 0 is killed")
        await asyncio.sleep(FLOW_S)
        leader = (await admin.describe_topic(TOPIC)).partitions[0].leader
        say.tell(
            f"{counted(len(flow.acknowledged), 'record')} acknowledged; kill -9 broker-{leader}"
        )
        killed_ms = say.now_ms()
        await cluster.signal(f"broker-{leader}", signal.SIGKILL)
        await asyncio.sleep(FLOW_S)
        pause_ms = flow.longest_wait_ms(killed_ms)
        say.tell(f"the longest wait for an acknowledgement was {pause_ms} ms", style="bold")
        print_topic(say.console, await admin.describe_topic(TOPIC))
        say.step("What happened to partition 0")
        for change in await admin.explain(TOPIC, 0):
            print_change(say.console, change)
        say.step(f"broker-{leader} comes back and catches up")
        await cluster.start(f"broker-{leader}")
        begun_ms = say.now_ms()
        await _until_in_sync(admin)
        say.tell(f"all replicas in sync after {(say.now_ms() - begun_ms) / 1000:.1f} s")
        flow.stop()
        async with asyncio.timeout(WAIT_S):
            await flowing
        say.step("Every record is read back and counted")
        held = await _read_back(flow, to, admin, say)
        say.step("Spark has aggregated the records meanwhile, by shop and by 5 seconds")
        return await _show_table(aggregation, flow, say) and held
    finally:
        await aggregation.close()
        await tasks.close()


async def _show_table(aggregation: Aggregation, flow: Flow, say: _Saying) -> bool:
    """The results of the job; whether it saw every record once. Without Java there are none."""
    found = await aggregation.finish(lambda line: say.tell(line, style="dim"))
    if found.missing:
        say.tell(f"Left out: {found.missing}", style="yellow")
        return True
    if found.failure:
        say.tell(f"The job failed: {found.failure}", style="bold red")
        return False
    head, foot = found.table[:-1][:TABLE_LINES_MAX], found.table[-1:]
    for line in [*head, *foot]:
        say.tell(line)
    held = found.records == flow.sent
    verdict = "each once" if held else f"but {flow.sent:,} were sent"
    style = "bold green" if held else "bold red"
    say.tell(f"{found.records:,} records aggregated, {verdict}.", style=style)
    return held


async def _until_in_sync(admin: AdminCore) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            described = await admin.describe_topic(TOPIC)
            if all(len(each.isr) == len(each.replicas) for each in described.partitions):
                return
            await asyncio.sleep(0.05)


async def _read_back(flow: Flow, to: Connection, admin: AdminCore, say: _Saying) -> bool:
    ends = await admin.list_offsets(TOPIC)
    wrong = twice = 0
    seen: dict[int, int] = {}
    for partition, end in ends.items():
        async with to.reader(TOPIC, partition, 0) as reader:
            while reader.position < end.offset:
                fetched = await reader.next(timeout_ms=to.timeout_ms)
                if fetched is None:
                    break
                for record in fetched.view.records():
                    number = int(json.loads(record.value or b"{}")["order"])
                    twice += number in seen
                    seen[number] = record.offset
                    wrong += flow.acknowledged.get((partition, record.offset)) != number
    lost = len(set(flow.acknowledged.values()) - set(seen))
    say.tell(
        f"{flow.sent:,} sent, {len(flow.acknowledged):,} acknowledged, {len(seen):,} read back: "
        f"{lost} lost, {twice} twice, {wrong} in the wrong place, {flow.failed} failed"
    )
    held = len(seen) == flow.sent and not (lost or twice or wrong or flow.failed)
    verdict = "Nothing was lost." if held else "This does not hold."
    say.tell(verdict, style="bold green" if held else "bold red")
    return held


class _Saying:
    """Headings with numbers, lines below them, and the time."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._steps = 0

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def step(self, title: str) -> None:
        self._steps += 1
        self.console.print(Text.assemble(f"\n{self._steps}. ", (title, "bold cyan")))

    def tell(self, line: str, *, style: str = "") -> None:
        self.console.print(Text(f"   {line}", style=style), soft_wrap=True)
