"""Fuzz a real cluster: mutated batches through the produce path, read back with every reader.

    make fuzz-live BATCHES=1000000

Three brokers, a topic that is kept and one that is compacted, raw bytes on the produce stream. Most
entries of a request are one mutant; some are good batches, alone or beside a mutant. After each
round every reader reads all that was accepted. It must hold: nothing unreadable is stored, good
records are all there exactly once, no process dies, compaction and look-ups by time go on, and no
request holds a loop for longer than 100 ms by itself: those that took longest are sent again alone,
while another call asks how long it has to wait.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from fuzz.ledger import Fate, Ledger, Sight, Stored, table
from fuzz.live_readers import READERS, Place, spark_sums
from fuzz.mutants import anonymous_seeds, named_mutant, seeds
from integration.cluster_harness import Cluster, connected, start, stop
from tailrace.client.reader import PartitionReader
from tailrace.clock import SystemClock
from tailrace.dev.cluster import DevCluster
from tailrace.dev.processes import Life
from tailrace.errors import TailraceError
from tailrace.model import TopicPartition
from tailrace.record.build import BatchBuilder
from tailrace.record.codec import Compression
from tailrace.transport import methods
from tailrace.transport.envelopes import PartitionBatches, ProduceRequest
from tailrace.transport.wire import to_partition
from tailrace.v1 import broker_pb2 as pb
from tailrace.v1.common_pb2 import ErrorCode

ROUND_BATCHES = 50_000
PLAIN_PARTITIONS, COMPACT_PARTITIONS = 24, 12
IN_FLIGHT = 8
BROKEN_MAX = 20
ANSWER_S = 60.0
READ_S = 400.0
COMPACTION_S, QUIET_S = 120.0, 5.0
KEPT = {"retention.ms": "-1"}
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "8192",
    "segment.ms": "3000",
    "min.cleanable.dirty.ratio": "0.01",
    "retention.ms": "-1",
}
STALL_MS, SOON_MS = "100", "500"
# Shares of what an entry of a request is; the rest is one mutant alone.
GOOD, PAIR, WITH_PRODUCER = 0.08, 0.08, 0.05
GOOD_KIND = "good"
SLOW_MS, SLOW_KEPT, HELD_TRIES, HELD_MS_MAX = 100.0, 12, 3, 100.0
LOOKUPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What one partition of a request is sent: batches, their kinds, values of good ones."""

    topic: str
    partition: int
    kinds: tuple[str, ...]
    values: tuple[tuple[bytes, ...], ...]
    data: bytes


@dataclass
class Report:
    """All that a run has to say."""

    seed: int
    seconds: float = 0.0
    fates: dict[str, Fate] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    # By reader: records that it read.
    readers: dict[str, int] = field(default_factory=dict)
    lookups: int = 0
    compactions: int = 0
    # How long a probe waited at most while the slowest requests were sent again, in ms.
    held_ms: float = 0.0
    retried: int = 0
    # Turns of loops longer than loop.stall.warn.ms; where their stacks stood.
    stalls: dict[str, int] = field(default_factory=dict)
    spark_records: int = -1

    @property
    def mutants(self) -> int:
        return sum(fate.sent for kind, fate in self.fates.items() if kind != GOOD_KIND)


class Sender:
    """Sends entries to one leader, several requests at a time, and notes the answers."""

    def __init__(self, cluster: Cluster, address: str, ledger: Ledger, report: Report) -> None:
        self._channel = cluster.network.channel(address)
        self._ledger = ledger
        self._report = report
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._open: dict[int, tuple[float, list[Entry]]] = {}
        self._numbers = count(1)
        self._broken = 0
        # Set while no request is open.
        self._answered = asyncio.Event()
        self._answered.set()
        # The requests that took longest.
        self.slow: list[tuple[float, list[Entry]]] = []

    async def run(self, entries: Callable[[], list[Entry] | None]) -> None:
        """Send until there are no more entries; a stream that breaks is a problem and reopened."""
        while True:
            stream = self._channel.open(methods.BROKER_PRODUCE)
            receiving = asyncio.ensure_future(self._receive(stream))
            try:
                while (some := entries()) is not None:
                    await self._room.acquire()
                    if receiving.done():
                        self._room.release()
                        self._not_sent(some)
                        break
                    await stream.send(self._request(some))
                else:
                    async with asyncio.timeout(ANSWER_S):
                        await self._answered.wait()
                    await stream.finish()
                    return
            except (TailraceError, TimeoutError) as error:
                self._report.problems.append(f"produce stream: {type(error).__name__}: {error}")
                self._broken += 1
                if self._broken > BROKEN_MAX:
                    raise
            finally:
                receiving.cancel()
                with suppress(asyncio.CancelledError, TailraceError):
                    await receiving
                self._give_up()

    def _not_sent(self, entries: list[Entry]) -> None:
        for each in entries:
            for kind in each.kinds:
                self._ledger.unanswered(each.topic, each.partition, kind)

    def _request(self, entries: list[Entry]) -> ProduceRequest:
        number = next(self._numbers)
        self._open[number] = (time.monotonic(), entries)
        self._answered.clear()
        parts = [
            PartitionBatches(
                partition=to_partition(TopicPartition(each.topic, each.partition)),
                leader_epoch=-1,
                batches=each.data,
            )
            for each in entries
        ]
        return ProduceRequest(
            correlation=number,
            acks=pb.ACKS_ALL,
            timeout_ms=30_000,
            partitions=parts,
            client_id="fuzz",
        )

    async def _receive(self, stream: Any) -> None:
        while (response := await stream.recv()) is not None:
            began, entries = self._open.pop(response.correlation)
            if not self._open:
                self._answered.set()
            self._room.release()
            took_ms = (time.monotonic() - began) * 1_000
            if took_ms > SLOW_MS:
                self.slow.append((took_ms, entries))
                self.slow.sort(key=lambda each: -each[0])
                del self.slow[SLOW_KEPT:]
            for entry, answer in zip(entries, response.partitions, strict=True):
                self._note(entry, answer)

    def _note(self, entry: Entry, answer: pb.PartitionProduced) -> None:
        error = ErrorCode.Name(answer.error) if answer.error else ""
        placed = list(answer.batches)
        if len(placed) not in {0, len(entry.kinds)}:
            self._report.problems.append(
                f"{len(placed)} answers for {len(entry.kinds)} batches of {entry.kinds}"
            )
            return
        for at, kind in enumerate(entry.kinds):
            batch = placed[at] if placed else None
            if batch is None or batch.error:
                name = ErrorCode.Name(batch.error) if batch is not None else error
                self._ledger.refused(kind, name.removeprefix("ERROR_CODE_") or "NO ANSWER")
                if kind == GOOD_KIND and len(entry.kinds) == 1:
                    self._report.problems.append(f"a good batch was refused: {answer.message}")
            elif batch.duplicate:
                self._ledger.fates[kind].duplicate += 1
            else:
                place = Stored(batch.base_offset, batch.last_offset, kind)
                self._ledger.accepted(entry.topic, entry.partition, place, entry.values[at])

    def _give_up(self) -> None:
        for _, entries in self._open.values():
            self._not_sent(entries)
            self._room.release()
        self._open.clear()
        self._answered.set()


class Maker:
    """Makes entries, from one seed."""

    def __init__(self, seed: int, ledger: Ledger, mutants: int) -> None:
        self._rng = random.Random(f"live {seed}")
        self._ledger = ledger
        self.left = mutants
        self._numbers = count()

    def entries(self, partitions: Sequence[tuple[str, int]]) -> list[Entry] | None:
        """One for each of these partitions; None: that was all."""
        if self.left <= 0:
            return None
        return [self._entry(topic, partition) for topic, partition in partitions]

    def _entry(self, topic: str, partition: int) -> Entry:
        roll = self._rng.random()
        made = []
        if roll < GOOD + PAIR:
            made.append(self._good(topic))
        if roll >= GOOD:
            made.append(self._mutant())
        if roll < GOOD + PAIR / 2:
            made.reverse()
        for kind, _, _ in made:
            self._ledger.sent(kind)
        kinds, values, data = zip(*made, strict=True)
        return Entry(
            topic=topic, partition=partition, kinds=kinds, values=values, data=b"".join(data)
        )

    def _mutant(self) -> tuple[str, tuple[bytes, ...], bytes]:
        self.left -= 1
        is_named = self._rng.random() < WITH_PRODUCER
        found = named_mutant(self._rng, seeds() if is_named else anonymous_seeds())
        return found.kind + (", with a producer" if is_named else ""), (), found.data

    def _good(self, topic: str) -> tuple[str, tuple[bytes, ...], bytes]:
        builder = BatchBuilder(self._rng.choice(list(Compression)))
        values = []
        for _ in range(self._rng.choice((1, 1, 2, 5))):
            number = next(self._numbers)
            values.append(b"good %d of %s" % (number, topic.encode()))
            # No mutant has such a key: else compaction may prefer it.
            builder.append(values[-1], b"good key %d" % number, int(time.time() * 1_000))
        return GOOD_KIND, tuple(values), builder.build()


async def fuzzed(
    cluster: Cluster, arguments: argparse.Namespace, report: Report, say: Callable[[str], None]
) -> list[str]:
    """All rounds; gives the topics that were filled."""
    topics: list[str] = []
    ends: dict[tuple[str, int], Sight] = {}
    began, left, number, told = time.monotonic(), arguments.batches, 0, 0
    while left > 0 and (not arguments.seconds or time.monotonic() - began < arguments.seconds):
        size = min(left, arguments.round)
        ledger = Ledger()
        names = await _new_topics(cluster, number)
        sent_in = time.monotonic()
        slow = await _send(cluster, names, Maker(arguments.seed + number, ledger, size), report)
        sent_s = time.monotonic() - sent_in
        ends |= await _read_back(cluster, names, ledger, report)
        await _send_again(cluster, names[0], slow, report)
        _look_at_processes(cluster, report)
        ledger.add_to(report.fates)
        topics += names
        left, number = left - size, number + 1
        say(
            f"{time.monotonic() - began:6.0f} s  {report.mutants} mutants "
            f"({size / sent_s:.0f}/s), {sum(each.accepted for each in report.fates.values())} "
            f"batches stored, {len(report.problems)} problems"
        )
        for problem in report.problems[told:]:
            say(f"PROBLEM: {problem}")
        told = len(report.problems)
    if arguments.spark:
        await _by_spark(cluster, topics, ends, report)
    return topics


async def _new_topics(cluster: Cluster, number: int) -> list[str]:
    names = [f"plain-{number}", f"compact-{number}"]
    for name, partitions, config in (
        (names[0], PLAIN_PARTITIONS, KEPT),
        (names[1], COMPACT_PARTITIONS, COMPACTED),
    ):
        await cluster.admin.create_topic(
            name, partitions=partitions, replication_factor=3, config=config
        )
        await cluster.until_well(name)
    return names


async def _send(
    cluster: Cluster, topics: list[str], maker: Maker, report: Report
) -> list[tuple[float, list[Entry]]]:
    """Send everything to the leaders; gives the requests that took longest."""
    led: dict[int, list[tuple[str, int]]] = {}
    for topic in topics:
        described = await cluster.admin.describe_topic(topic)
        for at, partition in enumerate(described.partitions):
            led.setdefault(partition.leader, []).append((topic, at))
    senders = []
    async with asyncio.TaskGroup() as group:
        for leader, partitions in led.items():
            address = cluster.dev.state.member(f"broker-{leader}").address
            sender = Sender(cluster, address, maker._ledger, report)
            senders.append(sender)
            group.create_task(sender.run(partial(maker.entries, partitions)))
    return [each for sender in senders for each in sender.slow]


# Reading back.


async def _read_back(
    cluster: Cluster, topics: list[str], ledger: Ledger, report: Report
) -> dict[tuple[str, int], Sight]:
    """Read with every reader; gives what the first one saw."""
    seen: dict[tuple[str, int], Sight] = {}
    problems_before = len(report.problems)
    for topic in topics:
        is_compacted = topic.startswith("compact")
        if is_compacted:
            report.compactions += await _until_compacted(cluster, topic, report)
        place = await _place(cluster, topic, ledger)
        first: dict[int, Sight] = {}
        for name, read in READERS.items():
            sights = await _sights(name, read, place, report)
            for partition, sight in sights.items():
                report.readers[name] = report.readers.get(name, 0) + sight.records
                found = ledger.check(topic, partition, sight, is_compacted=is_compacted)
                report.problems += [f"{name}: {each}" for each in found]
                other = first.setdefault(partition, sight)
                if sight.figures != other.figures:
                    report.problems.append(
                        f"{name}: {topic}-{partition} has {sight.figures}, rows {other.figures}"
                    )
        seen |= {(topic, partition): sight for partition, sight in first.items()}
        if not is_compacted:
            await _look_up_times(cluster, place, report)
    if len(report.problems) == problems_before:
        ledger.all_read()
    return seen


async def _sights(
    name: str,
    read: Callable[[Place], Awaitable[dict[int, Sight]]],
    place: Place,
    report: Report,
) -> dict[int, Sight]:
    try:
        async with asyncio.timeout(READ_S):
            return await read(place)
    except (TailraceError, TimeoutError, RuntimeError, pa.ArrowException) as error:
        report.problems.append(f"{name} of {place.topic}: {type(error).__name__}: {error}")
        return {}


async def _place(cluster: Cluster, topic: str, ledger: Ledger) -> Place:
    ends = await cluster.admin.list_offsets(topic)
    described = await cluster.admin.describe_topic(topic)
    return Place(
        bootstrap=cluster.bootstrap,
        topic=topic,
        topic_id=described.topic_id,
        ends={partition: found.offset for partition, found in ends.items()},
        good={each: ledger.of(topic, each).good for each in ends},
    )


async def _until_compacted(cluster: Cluster, topic: str, report: Report) -> int:
    """Wait until compaction has passed over the topic and rests; gives how often it ran."""
    count_before, quiet_since = -1, time.monotonic()
    deadline = time.monotonic() + COMPACTION_S
    while time.monotonic() - quiet_since < QUIET_S or count_before == 0:
        if time.monotonic() > deadline:
            report.problems.append(f"{topic}: compaction never came to rest, {count_before} runs")
            break
        await asyncio.sleep(0.5)
        counted = sum(
            f"{topic}-" in line and "compacted to offset" in line
            for text in _logs(cluster).values()
            for line in text.splitlines()
        )
        if counted != count_before:
            count_before, quiet_since = counted, time.monotonic()
    return count_before


async def _look_up_times(cluster: Cluster, place: Place, report: Report) -> None:
    """`ListOffsets` by time finds the first record that is as late, in every partition."""
    times = await _times(cluster, place)
    rng = random.Random(place.topic)
    everything = [each for found in times.values() for each in found]
    wanted = [0, 1, max(everything), max(everything) + 1, *rng.choices(everything, k=LOOKUPS)]
    for moment in wanted:
        try:
            found = await cluster.admin.list_offsets(place.topic, moment, timeout_ms=30_000)
        except TailraceError as error:
            report.problems.append(f"list_offsets at {moment}: {type(error).__name__}: {error}")
            continue
        for partition, stamps in times.items():
            due = next((at for at, stamp in enumerate(stamps) if stamp >= moment), -1)
            report.lookups += 1
            if found[partition].offset != due:
                report.problems.append(
                    f"list_offsets: {place.topic}-{partition} at {moment} is "
                    f"{found[partition].offset} instead of {due}"
                )


async def _times(cluster: Cluster, place: Place) -> dict[int, list[int]]:
    """The timestamps of all records, by offset."""
    times: dict[int, list[int]] = {}
    for partition, end in place.ends.items():
        stamps = times.setdefault(partition, [])
        reader = PartitionReader(
            place.bootstrap,
            place.topic,
            partition,
            end=end,
            network=cluster.network,
            clock=SystemClock(),
            rng=random.Random(),
        )
        async with reader, asyncio.timeout(READ_S):
            while reader.position < end and (found := await reader.next()) is not None:
                stamps += [record.timestamp_ms for record in found.view.records()]
    return times


async def _by_spark(
    cluster: Cluster,
    topics: list[str],
    ends: dict[tuple[str, int], Sight],
    report: Report,
) -> None:
    """A real Spark job over all that was stored finds the same sums."""
    found = await asyncio.to_thread(spark_sums, ",".join(cluster.bootstrap), topics)
    report.spark_records = sum(records for records, _, _ in found.values())
    for place, sight in ends.items():
        wanted = (sight.records, sight.last, sight.checksum)
        if sight.records and found.get(place) != wanted:
            report.problems.append(f"Spark: {place} has {found.get(place)} instead of {wanted}")


# Processes and their loops.


async def _send_again(
    cluster: Cluster, topic: str, slow: list[tuple[float, list[Entry]]], report: Report
) -> None:
    """Send the slowest requests alone: does anybody else have to wait for them?"""
    again = sorted(slow, key=lambda each: -each[0])[:SLOW_KEPT]
    if not again:
        return
    name = f"again-{topic}"
    await cluster.admin.create_topic(name, partitions=1, replication_factor=1)
    await cluster.until_well(name)
    leader = await cluster.leader(name, 0)
    channel = cluster.network.channel(cluster.dev.state.member(leader).address)
    for _, entries in again:
        for entry in entries:
            waits = [await _held_ms(cluster, channel, name, entry) for _ in range(HELD_TRIES)]
            report.retried += 1
            report.held_ms = max(report.held_ms, min(waits))
            if min(waits) > HELD_MS_MAX:
                report.problems.append(f"a loop was held for {min(waits):.0f} ms by {entry.kinds}")


async def _held_ms(cluster: Cluster, channel: Any, topic: str, entry: Entry) -> float:
    """How long a small call waits at most while this entry is on its way."""
    stream = channel.open(methods.BROKER_PRODUCE)
    part = PartitionBatches(
        partition=to_partition(TopicPartition(topic, 0)), leader_epoch=-1, batches=entry.data
    )
    request = ProduceRequest(
        correlation=1, acks=pb.ACKS_ALL, timeout_ms=30_000, partitions=[part], client_id="fuzz"
    )
    await cluster.admin.list_offsets(topic)
    await stream.send(request)
    answer = asyncio.ensure_future(stream.recv())
    worst_ms = 0.0
    while not answer.done() or not worst_ms:
        began = time.monotonic()
        await cluster.admin.list_offsets(topic)
        worst_ms = max(worst_ms, (time.monotonic() - began) * 1_000)
    await answer
    await stream.finish()
    return worst_ms


def _look_at_processes(cluster: Cluster, report: Report) -> None:
    """Nobody has died or written a trace; where loops stood for longer than they may."""
    _look_at_deaths(cluster.dev, report)
    stalls: Counter[str] = Counter()
    for name, text in _logs(cluster).items():
        lines = text.splitlines()
        for at, line in enumerate(lines):
            if "the event loop has not turned" in line:
                stalls[_place_of(line, lines[at + 1 : at + 70])] += 1
            if line.startswith("Traceback"):
                report.problems.append(f"{name} wrote a trace: {lines[at : at + 40]}"[:2_000])
    report.stalls = dict(stalls)


def _look_at_deaths(dev: DevCluster, report: Report) -> None:
    for member in dev.state.members:
        if dev.life(member) is Life.EXITED:
            report.problems.append(f"{member.name} has died: {dev.last_words(member.name)}")


def _place_of(line: str, after: list[str]) -> str:
    """The innermost frame of a stack in a log, be it one line of JSON or several of text."""
    text = line.replace("\\n", "\n").splitlines() + after
    frames = []
    for each in text[1:]:
        if each.strip().startswith("File "):
            frames.append(each.strip())
        elif not each.startswith(" "):
            break
    return frames[-1] if frames else "unknown"


def _logs(cluster: Cluster) -> dict[str, str]:
    names = [each.name for each in cluster.dev.state.members]
    paths = {name: cluster.dev.log_path(name) for name in names if name != "etcd"}
    return {name: path.read_text(errors="replace") for name, path in paths.items()}


# The program.


def lines(report: Report) -> list[str]:
    """The report for people."""
    found = [f"live fuzz, seed {report.seed}, {report.seconds:.0f} s", *table(report.fates)]
    found += [f"{name}: {count} records read back" for name, count in report.readers.items()]
    if report.spark_records >= 0:
        found.append(f"a Spark job: {report.spark_records} records")
    found.append(f"{report.lookups} look-ups by time, {report.compactions} compactions")
    found.append(
        f"{report.retried} slow entries sent again alone: another call waited "
        f"{report.held_ms:.0f} ms at most"
    )
    found += [f"loops stood {count} times at {where}" for where, count in report.stalls.items()]
    found += [f"PROBLEM: {each}" for each in report.problems[:50]]
    found.append(f"verdict: {'NOT GOOD' if report.problems else 'good'}")
    return found


async def _run(arguments: argparse.Namespace, dev: DevCluster, report: Report) -> None:
    async with connected(dev) as cluster:
        await fuzzed(cluster, arguments, report, lambda line: print(line, file=sys.stderr))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--batches", type=int, default=1_000_000, help="mutants to send")
    parser.add_argument("--seconds", type=float, default=0, help="end after the round at this time")
    parser.add_argument("--round", type=int, default=ROUND_BATCHES, help="mutants of a round")
    parser.add_argument("--seed", type=int, default=None, help="a new one if not given")
    parser.add_argument("--spark", action="store_true", help="a real Spark job at the end")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--keep", default="", help="copy everything here if there is a problem")
    parser.add_argument("--folder", default=None, help="make the cluster below this folder")
    arguments = parser.parse_args()
    if arguments.seed is None:
        arguments.seed = random.randrange(1_000_000)
    report = Report(seed=arguments.seed)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="tailrace-fuzz-", dir=arguments.folder, ignore_cleanup_errors=True
    ) as folder:
        dev = start(
            Path(folder) / "cluster",
            controllers=1,
            loop_stall_warn_ms=STALL_MS,
            log_cleaner_backoff_ms=SOON_MS,
            log_retention_clock_settle_ms=SOON_MS,
            flush_interval_ms=SOON_MS,
        )
        try:
            asyncio.run(_run(arguments, dev, report))
        except* (TailraceError, OSError) as group:
            report.problems += [f"ended early: {each!r}" for each in group.exceptions]
            _look_at_deaths(dev, report)
        finally:
            stop(dev)
            if report.problems and arguments.keep:
                shutil.copytree(folder, arguments.keep, dirs_exist_ok=True)
    report.seconds = time.monotonic() - began
    if arguments.json:
        print(json.dumps({**asdict(report), "mutants": report.mutants}))
    else:
        print("\n".join(lines(report)))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
