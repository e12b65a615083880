"""The walk over every file of a data folder: what is done to which file, and whether it is told.

A case is one kind of file, one fault and one role of the broker whose file it is. Cases of files of
a partition have a topic each and share the restart; cases of files of the folder have a restart
each. What must hold of each: every acknowledged record is there, or somebody says that it is not.
Enter at `PartitionWalk` and `FolderWalk`.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random

from integration.cluster_harness import Cluster, listens
from tailrace.client.producer import ProducerCore
from tailrace.client.reader import PartitionReader
from tailrace.client.settings import ProducerSettings
from tailrace.clock import SystemClock
from tailrace.dev.cluster import DevCluster
from tailrace.dev.processes import Life
from tailrace.dev.state import DevError
from tailrace.errors import TailraceError

TOPIC = "walk"
VICTIM = "broker-2"
OTHERS = ("broker-1", "broker-3")
SEGMENT_BYTES = 16_384
VALUE = Random(43).randbytes(200)
# Records of each half; an older copy has the first half. Batches of a tenth: several segments.
HALF = 200
FLUSH_EVERY = 20
SETTLE_S = 45.0
REPLICAS = 3
# Topics that are read side by side.
READERS = 12
READ_S = 8.0
CHECKPOINT_S = 6.0


class Fault(StrEnum):
    REMOVED = "removed"
    CUT = "cut"
    FLIPPED = "flipped"
    OLDER = "older"


class Role(StrEnum):
    LEADER = "leader"
    FOLLOWER = "follower"
    LAST = "last in sync"


# By kind of file: the pattern, and which of those that match, in order.
OF_PARTITIONS: Mapping[str, tuple[str, int]] = {
    "first .log": ("*.log", 0),
    "middle .log": ("*.log", 1),
    "last .log": ("*.log", -1),
    ".index": ("*.index", 0),
    ".timeindex": ("*.timeindex", 0),
    ".snapshot": ("*.snapshot", -1),
    "leader-epoch-checkpoint": ("leader-epoch-checkpoint", 0),
    "partition.metadata": ("partition.metadata", 0),
}
OF_FOLDERS = (
    "meta.properties",
    "clean-shutdown",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "log-start-cause-checkpoint",
    "topic-id-checkpoint",
    "metadata-copy",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of file, and what is done to it."""

    kind: str
    fault: Fault
    role: Role

    def __str__(self) -> str:
        return f"{self.kind} {self.fault}, {self.role}"


@dataclass(slots=True)
class Outcome:
    """What came of one case. `told`: who says that something is wrong, and what."""

    case: Case
    # Of TOPIC.
    partition: int = -1
    acked: int = 0
    read: int = 0
    # Empty: the file was not there, or was no other before.
    done: str = ""
    told: list[str] = field(default_factory=list)
    # The replicas are not the same, or the reader met records that are not those.
    wrong: list[str] = field(default_factory=list)

    # While the victim served alone what it has: how much of it; None: it never did.
    alone: int | None = None
    # The others have it all: it must be there in the end, whatever is told.
    others_have_it: bool = False

    @property
    def is_silent_loss(self) -> bool:
        is_less = self.read < self.acked or (self.alone is not None and self.alone < self.acked)
        # A bit that rots in the active segment is named by every reader until the scrub finds it.
        is_named = any("UnreadableBatch" in each for each in self.told)
        is_gone = self.others_have_it and self.read < self.acked and not is_named
        return bool(self.wrong) or is_gone or (is_less and not self.told)

    def row(self) -> str:
        what = "whole" if self.read >= self.acked else f"{self.read} of {self.acked} readable"
        if self.alone is not None and self.alone < self.acked:
            what += f", {self.alone} while alone"
        told = "; ".join(self.told[:2])[:150] or "nobody"
        wrong = f" WRONG {self.wrong}" if self.wrong else ""
        return f"| {self.case} | {self.done} | {what}{wrong} | {told} |"


def data_folder(dev: DevCluster, broker: str) -> Path:
    (found,) = (each.parent for each in (dev.folder / broker).rglob("meta.properties"))
    return found


def hurt(path: Path | None, older: Path | None, fault: Fault, rng: Random) -> str:
    """Do it; says what was done, empty when it cannot be."""
    if path is None or not path.exists():
        return ""
    data = bytearray(path.read_bytes())
    if fault is Fault.REMOVED:
        path.unlink()
        return "removed"
    if fault is Fault.OLDER:
        if older is None or not older.exists() or older.read_bytes() == bytes(data):
            return ""
        shutil.copyfile(older, path)
        return f"{older.stat().st_size} bytes of before"
    if not data:
        return ""
    at = rng.randrange(len(data))
    if fault is Fault.CUT:
        path.write_bytes(data[:at])
        return f"cut to {at} of {len(data)} bytes"
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"a bit of byte {at} of {len(data)}"


class Walk:
    """What both walks need: a cluster, a victim, writing, reading, waiting."""

    def __init__(self, dev: DevCluster, cluster: Cluster, rng: Random, copy: Path) -> None:
        self.dev = dev
        self.cluster = cluster
        self.rng = rng
        self.copy = copy

    @property
    def data(self) -> Path:
        return data_folder(self.dev, VICTIM)

    async def write(self, partitions: Sequence[int], first: int) -> None:
        """HALF records to each, numbers as keys, all of them acknowledged."""
        producer = ProducerCore(
            self.cluster.bootstrap,
            ProducerSettings(),
            network=self.cluster.network,
            clock=SystemClock(),
            rng=Random(),
        )
        try:
            for number in range(first, first + HALF):
                for partition in partitions:
                    await producer.send(TOPIC, VALUE, key=b"%d" % number, partition=partition)
                if number % FLUSH_EVERY == FLUSH_EVERY - 1:
                    await producer.flush()
        finally:
            await producer.close()

    async def take_copy(self) -> None:
        """What an older copy is taken from: the folder, when all that it holds is checkpointed."""
        await asyncio.sleep(CHECKPOINT_S)
        shutil.rmtree(self.copy, ignore_errors=True)
        data = self.data
        for path in data.rglob("*"):
            target = self.copy / path.relative_to(data)
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                if path.is_file():
                    shutil.copyfile(path, target)

    async def end(self, *names: str, by: signal.Signals) -> None:
        for name in names:
            await self.dev.signal(name, by)
        for name in names:
            await self.cluster.until_gone(name)

    async def start(self, name: str) -> str:
        """Start it; why it does not run, if it does not."""
        end = time.monotonic() + SETTLE_S
        # Another process may have its port for a moment.
        while problem := await self._start_problem(name):
            if time.monotonic() > end:
                return f"{name} does not start: {problem}"
            await asyncio.sleep(1)
        while time.monotonic() < end:
            member = self.dev.state.member(name)
            if self.dev.life(member) is Life.EXITED:
                return f"{name} does not start: {self.dev.last_words(name)}"
            if await listens(member):
                return ""
            await asyncio.sleep(0.1)
        return f"{name} does not listen: {self.dev.last_words(name)}"

    async def _start_problem(self, name: str) -> str:
        try:
            await self.dev.start(name)
        except DevError as error:
            return str(error)
        return ""

    async def settle(self, partitions: Sequence[int], within_s: float = SETTLE_S) -> None:
        """Wait until all are in sync, or nothing changes any more."""
        end, before, since = time.monotonic() + within_s, "", time.monotonic()
        while time.monotonic() < end:
            described = await self._described(partitions)
            states = [(each.leader, each.isr) for each in described.values()]
            if states and all(leader >= 0 and len(isr) == REPLICAS for leader, isr in states):
                return
            if str(states) != before:
                before, since = str(states), time.monotonic()
            elif time.monotonic() - since > within_s / 3:
                return
            await asyncio.sleep(0.2)

    async def judge(
        self, outcomes: Sequence[Outcome], log_from: int, *, is_alone: bool = False
    ) -> None:
        """Read everything, and gather who says what; `log_from`: where the victim's log began."""
        described = await self._described([each.partition for each in outcomes])
        text = self.dev.log_path(VICTIM).read_text(errors="replace")[log_from:]
        led = [each for each in outcomes if _leads(described.get(each.partition))]
        for at in range(0, len(led), READERS):
            counts = await asyncio.gather(*(self._read(each) for each in led[at : at + READERS]))
            for outcome, count in zip(led[at : at + READERS], counts, strict=True):
                outcome.read = count
        nobody = PartitionState(leader=-1, isr=(), loss="")
        for outcome in outcomes:
            partition = described.get(outcome.partition, nobody)
            if partition.leader < 0:
                outcome.told.append("describe: no leader, the partition waits")
                outcome.read = 0
            elif len(partition.isr) < REPLICAS and not is_alone:
                outcome.told.append(f"describe: ISR {list(partition.isr)}")
            if partition.loss:
                outcome.told.append(f"describe: loss: {partition.loss}")
            outcome.told += _said(text, outcome.partition)

    async def _described(self, partitions: Sequence[int]) -> dict[int, PartitionState]:
        with suppress(TailraceError):
            found = (await self.cluster.admin.describe_topic(TOPIC, timeout_ms=5_000)).partitions
            return {
                at: PartitionState(leader=found[at].leader, isr=found[at].isr, loss=found[at].loss)
                for at in partitions
            }
        return {}

    async def _read(self, outcome: Outcome) -> int:
        """How many of the acknowledged records are there, each at its place."""
        count = 0
        reader = PartitionReader(
            self.cluster.bootstrap,
            TOPIC,
            outcome.partition,
            network=self.cluster.network,
            clock=SystemClock(),
            rng=Random(),
        )
        try:
            async with asyncio.timeout(READ_S), reader:
                async for record in reader.records():
                    if (record.offset, record.key) != (count, b"%d" % count):
                        outcome.wrong.append(f"{record.key!r} at {record.offset}, due {count}")
                        return count
                    count += 1
                    if count >= outcome.acked:
                        return count
        except TimeoutError:
            outcome.told.append(f"reader stands at {count}: {reader.trouble or 'the end'}")
            if not reader.trouble:
                outcome.told.pop()
        except TailraceError as error:
            outcome.told.append(f"reader: {type(error).__name__}")
        return count


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """What `describe` says of a partition, as far as the walk asks."""

    leader: int
    isr: tuple[int, ...]
    loss: str


class PartitionWalk(Walk):
    """All files of partitions at once: a topic for each case, one restart for all."""

    async def outcomes_of(self, cases: Sequence[Case]) -> list[Outcome]:
        """Make the topic, and give each case a partition that the victim leads or follows in."""
        await make_topic(self.cluster, 3 * len(cases))
        described = (await self.cluster.admin.describe_topic(TOPIC)).partitions
        by_role: dict[bool, list[int]] = {True: [], False: []}
        for at, each in enumerate(described):
            by_role[each.leader == int(VICTIM[-1])].append(at)
        return [
            Outcome(case=each, partition=by_role[each.role is not Role.FOLLOWER].pop(0))
            for each in cases
        ]

    async def of_one_in_three(self, cases: Sequence[Case], death: signal.Signals) -> list[Outcome]:
        """The victim leads some and follows in others; the others live on."""
        outcomes = await self.outcomes_of(cases)
        partitions = [each.partition for each in outcomes]
        await self.write(partitions, 0)
        await self.take_copy()
        await self.write(partitions, HALF)
        await asyncio.sleep(CHECKPOINT_S)
        await self.end(VICTIM, by=death)
        log_from = self.damage(outcomes, acked=2 * HALF)
        assert not await self.start(VICTIM)
        await self.settle(partitions)
        # Whoever is in sync has everything: let the victim alone serve it.
        await self.end(*OTHERS, by=signal.SIGKILL)
        await self.until_led_by_victim(partitions)
        await self.judge(outcomes, log_from, is_alone=True)
        for each in outcomes:
            each.alone, each.others_have_it = each.read, True
        for name in OTHERS:
            assert not await self.start(name)
        await self.settle(partitions)
        await self.judge(outcomes, log_from)
        return outcomes

    async def of_the_last(self, cases: Sequence[Case], death: signal.Signals) -> list[Outcome]:
        """The victim alone has the second half, dies, and comes back first."""
        outcomes = await self.outcomes_of(cases)
        partitions = [each.partition for each in outcomes]
        await self.write(partitions, 0)
        await self.take_copy()
        await self.end(*OTHERS, by=signal.SIGTERM)
        await self.until_led_by_victim(partitions)
        await self.write(partitions, HALF)
        await asyncio.sleep(CHECKPOINT_S)
        await self.end(VICTIM, by=death)
        log_from = self.damage(outcomes, acked=2 * HALF)
        assert not await self.start(VICTIM)
        await asyncio.sleep(3)
        for name in OTHERS:
            assert not await self.start(name)
        await self.settle(partitions)
        await self.judge(outcomes, log_from)
        return outcomes

    def damage(self, outcomes: Sequence[Outcome], *, acked: int) -> int:
        """Hurt one file of each topic's replica; gives where the victim's log ends."""
        data = self.data
        for outcome in outcomes:
            pattern, which = OF_PARTITIONS[outcome.case.kind]
            folder = data / f"{TOPIC}-{outcome.partition}"
            files = sorted(folder.glob(pattern))
            copies = {each: self.copy / each.relative_to(data) for each in files}
            if outcome.case.fault is Fault.OLDER:
                # Of closed segments and of most side files there is no older state.
                files = [each for each in files if _differ(each, copies[each])]
            path = files[which] if -len(files) <= which < len(files) else None
            older = copies[path] if path else None
            outcome.done = hurt(path, older, outcome.case.fault, self.rng)
            outcome.acked = acked
        return len(self.dev.log_path(VICTIM).read_text(errors="replace"))

    async def until_led_by_victim(self, partitions: Sequence[int]) -> None:
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            described = await self._described(partitions)
            leaders = {each.leader for each in described.values()}
            if leaders == {int(VICTIM[-1])}:
                return
            await asyncio.sleep(0.2)


class FolderWalk(Walk):
    """Files of the folder, one after the other: three partitions, one that the victim leads."""

    async def run(self, cases: Sequence[Case], death: signal.Signals) -> list[Outcome]:
        """Records are added in each case."""
        await make_topic(self.cluster, REPLICAS)
        partitions = range(REPLICAS)
        outcomes: list[Outcome] = []
        acked = 0
        for case in cases:
            await self.write(partitions, acked)
            acked += HALF
            await self.take_copy()
            if case.role is Role.LAST:
                await self.end(*OTHERS, by=signal.SIGTERM)
            await self.write(partitions, acked)
            acked += HALF
            await asyncio.sleep(CHECKPOINT_S)
            outcomes += await self._one(case, partitions, acked, death)
        return outcomes

    async def _one(
        self, case: Case, partitions: Sequence[int], acked: int, death: signal.Signals
    ) -> list[Outcome]:
        await self.end(VICTIM, by=death)
        path = self.data / case.kind
        right = path.read_bytes() if path.exists() else None
        data, log_from = self.data, len(self.dev.log_path(VICTIM).read_text(errors="replace"))
        done = hurt(path, self.copy / case.kind, case.fault, self.rng)
        found = [Outcome(case=case, partition=each, acked=acked, done=done) for each in partitions]
        problem = await self.start(VICTIM)
        await asyncio.sleep(3)
        if case.role is Role.LAST:
            for name in OTHERS:
                assert not await self.start(name)
        await self.settle(partitions)
        await self.judge(found, log_from)
        for each in found:
            each.told += [problem] if problem else []
            print(each.row())
        if problem and right is not None:
            # Somebody puts right what they were told of.
            if self.dev.life(self.dev.state.member(VICTIM)) is not Life.EXITED:
                await self.end(VICTIM, by=signal.SIGKILL)
            (data / case.kind).write_bytes(right)
            assert not await self.start(VICTIM)
        await self.cluster.until_well(TOPIC)
        return found


async def make_topic(cluster: Cluster, partitions: int) -> None:
    await cluster.admin.create_topic(
        TOPIC,
        partitions=partitions,
        replication_factor=REPLICAS,
        config={"segment.bytes": str(SEGMENT_BYTES), "min.insync.replicas": "1"},
    )
    await cluster.until_well(TOPIC)


def _differ(path: Path, other: Path) -> bool:
    return other.exists() and other.read_bytes() != path.read_bytes()


def _leads(state: PartitionState | None) -> bool:
    return state is not None and state.leader >= 0


def _said(text: str, partition: int) -> list[str]:
    """Lines of a log that say of a topic, or of its folder, that something is wrong."""
    words = (
        "damage",
        "missing",
        "lost",
        "corrupt",
        "cannot",
        "begins at",
        "is committed",
        "filled",
    )
    name = re.compile(rf"{TOPIC}-{partition}\b")
    lines = [_text_of(line) for line in text.splitlines() if name.search(line)]
    return list(
        dict.fromkeys(f"log: {line}" for line in lines if any(map(line.__contains__, words)))
    )


def _text_of(line: str) -> str:
    _, found, rest = line.partition('"text": "')
    return rest.rstrip('"}') if found else line
