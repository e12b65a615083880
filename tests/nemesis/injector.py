"""Does the steps of a plan to a running cluster, and undoes them; keeps a record of what was done.

A process has one fault of its own at a time, and one each of its network, disk and clock; a step
that finds its target taken, or that would not be safe now, is skipped, and the report says so.
Processes that end unasked are started again, as an operator would, and told of.
"""

from __future__ import annotations

import asyncio
import errno
import math
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from integration.cluster_harness import Cluster, listens
from nemesis.machine import Machine
from nemesis.plan import NETWORK, SHIMMED, Kind, Step
from tailrace.client.asynchronous import Producer
from tailrace.dev.processes import Life
from tailrace.dev.state import DevError, Role
from tailrace.errors import TailraceError

CALM_S = 120.0
PORT_ATTEMPTS = 50
WIPE_WAITS_S = 30.0
WATCH_S = 0.5
EXIT_GRACE_S = 30.0
CLONE_ENDS_S = 60.0
# Within this time everybody has heard of what was written to the store, and noted it.
SEEN_S = 5.0
DISK_REST_S = 10.0
OFFSETS_TOPIC = "__consumer_offsets"


class SkippedStep(Exception):
    """This step cannot be done now."""


@dataclass
class Done:
    """A step, and what came of it."""

    step: Step
    began_s: float
    ended_s: float = 0.0
    result: str = ""


@dataclass
class Injector:
    """The hand that does it. Run `watch` beside it."""

    cluster: Cluster
    machine: Machine
    # The topics that must be well in a calm. The last one is for records of the injector's own.
    topics: list[str]
    began: float = field(default_factory=time.monotonic)
    done: list[Done] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)
    calms_s: list[float] = field(default_factory=list)
    _busy: set[str] = field(default_factory=set)
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Until when no other disk may lose something (monotonic).
    _disks_taken_until: float = 0.0
    # The step that has taken the disks.
    _claimant: Step | None = None

    async def run(self, steps: Iterable[Step]) -> None:
        """Do the steps at their times, side by side; a calm waits for all before it."""
        late_s = 0.0
        async with asyncio.TaskGroup() as group:
            running: set[asyncio.Task[None]] = set()
            for step in steps:
                await asyncio.sleep(max(step.at_s + late_s - self._now_s(), 0))
                if step.kind is Kind.CALM:
                    if running:
                        await asyncio.wait(running)
                    running.clear()
                    await self._calm(step)
                    late_s = max(self._now_s() - step.at_s, 0)
                else:
                    running.add(group.create_task(self._do(step)))

    async def watch(self) -> None:
        """Start again what ended without being asked to."""
        while True:
            await asyncio.sleep(WATCH_S)
            for member in self.cluster.dev.state.members:
                if member.name in self._busy:
                    continue
                if self.cluster.dev.life(member) is Life.EXITED:
                    words = self.cluster.dev.last_words(member.name)
                    self.unasked.append(f"{self._now_s():.1f} s {member.name}: {words}")
                    await self._start(member.name)

    def _now_s(self) -> float:
        return time.monotonic() - self.began

    async def _do(self, step: Step) -> None:
        done = Done(step, self._now_s())
        self.done.append(done)
        names = [] if step.kind is Kind.BOTH else step.target.split("|")
        if step.kind is Kind.STORM:
            names = self._names(Role.BROKER)
        try:
            if step.kind is Kind.BOTH:
                names = await self._leader_and_controller()
            async with self._taken([f"{_part(step.kind)}{name}" for name in names]):
                result = await self._acts()[step.kind](step, *names)
            done.result = result or "done"
        except SkippedStep as error:
            done.result = f"skipped: {error}"
        except (DevError, TailraceError, OSError) as error:
            done.result = f"failed: {type(error).__name__}: {error}"
            self.problems.append(f"{step.kind} of {step.target}: {done.result}")
        if self._claimant is step:
            # By then the cluster has noticed, and says whether all are in sync again.
            self._claimant = None
            self._disks_taken_until = time.monotonic() + DISK_REST_S
        done.ended_s = self._now_s()

    def _acts(self) -> dict[Kind, Callable[..., Awaitable[str | None]]]:
        return {
            Kind.KILL: self._kill,
            Kind.BOTH: self._kill,
            Kind.ETCD_KILL: self._kill,
            Kind.TERM: self._terminate,
            Kind.STOP: self._stop,
            Kind.ETCD_STOP: self._stop,
            Kind.STUTTER: self._stutter,
            Kind.STORM: self._storm,
            Kind.ETCD_LOST: self._lose_store,
            Kind.ETCD_OLD: self._roll_store_back,
            Kind.WIPE: self._wipe,
            Kind.FILE: self._damage_file,
            Kind.OLD_FOLDER: self._put_back_folder,
            Kind.CLONE: self._clone,
            Kind.SYNC_ERROR: self._fail_syncs,
            Kind.CUT: self._cut,
            Kind.CUT_ONE_WAY: self._cut,
            Kind.LOSS: self._cut,
            Kind.FLAP: self._flap,
            Kind.CUT_STORE: self._cut_store,
            Kind.DISK_FULL: self._fill_disk,
            Kind.DISK_SLOW: self._disturb,
            Kind.CLOCK: self._disturb,
        }

    # Processes.

    async def _kill(self, step: Step, *names: str) -> str:
        await self.cluster.kill(*names)
        await asyncio.sleep(step.seconds)
        for name in names:
            await self._start(name)
        return ", ".join(names)

    async def _terminate(self, step: Step, name: str) -> str:
        began = time.monotonic()
        await self.cluster.dev.signal(name, signal.SIGTERM)
        took_s = await self._until_gone(name, began)
        await asyncio.sleep(step.seconds)
        await self._start(name)
        return f"ended in {took_s:.1f} s"

    async def _stop(self, step: Step, name: str) -> None:
        await self.cluster.dev.signal(name, signal.SIGSTOP)
        try:
            await asyncio.sleep(step.seconds)
        finally:
            await self.cluster.dev.signal(name, signal.SIGCONT)

    async def _stutter(self, step: Step, name: str) -> None:
        """As a machine that has too much to do, or a disk on which every call hangs a little."""
        end = time.monotonic() + step.seconds
        while time.monotonic() < end:
            await self.cluster.dev.signal(name, signal.SIGSTOP)
            await asyncio.sleep(0.15)
            await self.cluster.dev.signal(name, signal.SIGCONT)
            await asyncio.sleep(0.05)

    async def _storm(self, step: Step, *names: str) -> str:
        for number in range(2 * len(names)):
            name = names[number % len(names)]
            await self.cluster.kill(name)
            await self._start(name)
            await asyncio.sleep(step.seconds)
        return f"{2 * len(names)} kills"

    async def _wipe(self, step: Step, name: str) -> str:
        """Only with a copy of all on every disk, and never two at a time."""
        await self._claim_disks(step)
        await self.cluster.kill(name)
        shutil.rmtree(self._folder(name) / "data")
        await asyncio.sleep(step.seconds)
        await self._start(name)
        return "data folder removed"

    # The store and the files: missing, old, damaged.

    async def _lose_store(self, step: Step, name: str) -> str:
        """The store comes back without anything in it, and later as it was."""
        await self._claim_disks(step)
        await self.cluster.kill(name)
        data, right = self._folder(name) / "data", self._folder(name) / "right"
        data.rename(right)
        believers = await self._live_with_wrong_store(step, name)
        return f"empty, then as it was; believed by {', '.join(believers) or 'nobody'}"

    async def _roll_store_back(self, step: Step, name: str) -> str:
        """The store comes back as it was a while ago, and later as it was.

        Everybody has seen something newer: who has not cannot tell, and is not to blame.
        """
        await self._claim_disks(step)
        data, right = self._folder(name) / "data", self._folder(name) / "right"
        old = self._folder(name) / "old"
        await self.cluster.kill(name)
        shutil.copytree(data, old)
        await self._live_with_store(step, name)
        try:
            topic = f"since-{self._now_s():.0f}"
            await self.cluster.admin.create_topic(
                topic, partitions=1, replication_factor=3, timeout_ms=6_000
            )
            is_seen = await self._is_whole(WIPE_WAITS_S, [topic])
        except TailraceError:
            is_seen = False
        if not is_seen:
            shutil.rmtree(old)
            raise SkippedStep("not every broker has seen something newer")
        await asyncio.sleep(SEEN_S)
        await self.cluster.kill(name)
        data.rename(right)
        old.rename(data)
        believers = await self._live_with_wrong_store(step, name)
        return f"older, then as it was; believed by {', '.join(believers) or 'nobody'}"

    async def _live_with_wrong_store(self, step: Step, name: str) -> list[str]:
        """Run it for a while; whatever happens, the right one is put back. Gives who believed."""
        try:
            await self._live_with_store(step, name)
            return await self._believers()
        finally:
            await self._put_right_store_back(name)

    async def _put_right_store_back(self, name: str) -> None:
        if self.cluster.dev.life(self.cluster.dev.state.member(name)) is not Life.EXITED:
            await self.cluster.kill(name)
        data, right = self._folder(name) / "data", self._folder(name) / "right"
        shutil.rmtree(data, ignore_errors=True)
        right.rename(data)
        await self._start(name)

    async def _believers(self) -> list[str]:
        """Brokers that ran before the store was swapped and say that they believe it."""
        found: list[str] = []
        for name in self._names(Role.BROKER):
            member = self.cluster.dev.state.member(name)
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(3):
                    page = await scraped(member.host, member.metrics_port)
                if "\ntailrace_store_distrusted 0" in page:
                    found.append(name)
        return found

    async def _live_with_store(self, step: Step, name: str) -> None:
        await self._start(name)
        await asyncio.sleep(step.seconds)

    async def _damage_file(self, step: Step, name: str) -> str:
        """Remove, cut, flip or replace by an older copy one file of a broker that was killed."""
        await self._claim_disks(step)
        data, before = self._folder(name) / "data", self._folder(name) / "before"
        self._copy_before(data, before)
        await asyncio.sleep(step.seconds)
        await self.cluster.kill(name)
        rng = Random(step.amount)
        files = sorted(each for each in data.rglob("*") if each.is_file() and each.name != ".lock")
        chosen = rng.choice(files)
        result = _damage(chosen, before / chosen.relative_to(data), rng)
        shutil.rmtree(before)
        await self._start(name)
        return f"{result} {chosen.relative_to(data)}"

    async def _put_back_folder(self, step: Step, name: str) -> str:
        """A broker that was killed returns with its data as they were before."""
        await self._claim_disks(step)
        data, before = self._folder(name) / "data", self._folder(name) / "before"
        self._copy_before(data, before)
        await asyncio.sleep(step.seconds)
        await self.cluster.kill(name)
        shutil.rmtree(data)
        before.rename(data)
        await self._start(name)
        return f"as it was {step.seconds:.1f} s before"

    async def _clone(self, step: Step, name: str) -> str:
        """A second process with a copy of a live folder must end by itself, and do no harm."""
        copy = self._folder(name) / "clone"
        self._copy_before(self._folder(name) / "data", copy)
        (copy / ".lock").unlink(missing_ok=True)
        config = self._folder(name) / "clone.properties"
        own = {"listeners", "link.listeners", "control.listeners", "metrics.listeners", "log.dirs"}
        lines = (self._folder(name) / "broker.properties").read_text().splitlines()
        host = self.machine.hosts.get(name, "127.0.0.1")
        kept = [line for line in lines if line.partition("=")[0] not in own]
        kept += [f"listeners={host}:0", f"link.listeners={host}:0", f"log.dirs={copy}"]
        config.write_text("\n".join(kept) + "\n")
        command = [sys.executable, "-m", "tailrace.cli.main", "broker", "--config", str(config)]
        process = await asyncio.create_subprocess_exec(
            *self.machine.command_for(name, command),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), CLONE_ENDS_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise OSError(f"the clone of {name} ran on for {CLONE_ENDS_S:.0f} s") from None
        finally:
            shutil.rmtree(copy)
        text = output.decode(errors="replace")
        return "refused" if "runs already" in text else f"ended: {text[-200:]}"

    async def _fail_syncs(self, step: Step, name: str) -> str:
        await self._claim_disks(step)
        self.machine.disturb(name, syncs_fail=True)
        try:
            await asyncio.sleep(step.seconds)
        finally:
            self.machine.disturb(name)
        return "EIO"

    @staticmethod
    def _copy_before(data: Path, copy: Path) -> None:
        try:
            _copy_moving(data, copy)
        except OSError as error:
            shutil.rmtree(copy, ignore_errors=True)
            if error.errno != errno.ENOSPC:
                raise
            raise SkippedStep("its disk is full") from error

    async def _claim_disks(self, step: Step) -> None:
        """One disk at a time may lose something, and only while every replica is in sync."""
        if time.monotonic() < self._disks_taken_until:
            raise SkippedStep("another disk is being filled again")
        self._disks_taken_until = math.inf
        self._claimant = step
        if not await self._is_whole(WIPE_WAITS_S):
            raise SkippedStep("not every replica is in sync")

    # The network, the disk, the clock.

    async def _cut(self, step: Step, one: str, other: str) -> None:
        percent = step.amount if step.kind is Kind.LOSS else 100
        await self._apart(one, other, step.seconds, step.kind is not Kind.CUT_ONE_WAY, percent)

    async def _flap(self, step: Step, one: str, other: str) -> None:
        end = time.monotonic() + step.seconds
        while time.monotonic() < end:
            await self._apart(one, other, 0.3, True, 100)
            await asyncio.sleep(0.2)

    async def _cut_store(self, step: Step, name: str) -> None:
        await self._apart(name, Role.ETCD, step.seconds, True, 100)

    async def _apart(
        self, one: str, other: str, seconds: float, is_both_ways: bool, percent: int
    ) -> None:
        made = self.machine.cut(one, other, is_both_ways=is_both_ways, percent=percent)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.machine.mend(made)

    async def _fill_disk(self, step: Step, name: str) -> str:
        free = self.machine.fill_disk(self._folder(name))
        try:
            await asyncio.sleep(step.seconds)
        finally:
            self.machine.empty_disk(self._folder(name))
        return f"{free >> 20} MiB filled"

    async def _disturb(self, step: Step, name: str) -> str:
        if step.kind is Kind.CLOCK:
            self.machine.disturb(name, clock_ms=step.amount)
            text = f"{step.amount / 60_000:+.1f} min"
        else:
            self.machine.disturb(name, sync_ms=step.amount, write_ms=step.amount // 50)
            text = f"{step.amount} ms a sync, {step.amount // 50} ms a write"
        try:
            await asyncio.sleep(step.seconds)
        finally:
            self.machine.disturb(name)
        return text

    # Calm.

    async def _calm(self, step: Step) -> None:
        """Everything is healed: all must be well again within CALM_S."""
        began = self._now_s()
        for member in self.cluster.dev.state.members:
            if self.cluster.dev.life(member) is Life.EXITED:
                await self._start(member.name)
        well = (
            await self._is_whole(CALM_S)
            and await self._all_listen(CALM_S)
            and await self._acknowledges(CALM_S)
        )
        took_s = self._now_s() - began
        self.calms_s.append(took_s)
        kinds = [f"{each.step.kind}: {each.result}" for each in self.done[-1:]]
        print(f"{began:7.0f} s  calm after {took_s:.1f} s, last {kinds}", file=sys.stderr)
        self._disks_taken_until = 0.0
        text = f"well after {took_s:.1f} s" if well else f"NOT WELL after {took_s:.0f} s"
        self.done.append(Done(step, began, self._now_s(), text))
        if not well:
            self.problems.append(f"calm at {began:.0f} s: {text}: {await self._picture()}")

    async def _is_whole(self, within_s: float, topics: Iterable[str] = ()) -> bool:
        """Whether every partition has a leader and every replica is in sync, soon."""
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            with suppress(TailraceError):
                described = [
                    await self.cluster.admin.describe_topic(topic, timeout_ms=3_000)
                    for topic in [*self.topics, OFFSETS_TOPIC, *topics]
                ]
                if all(
                    each.leader >= 0 and len(each.isr) == len(each.replicas)
                    for topic in described
                    for each in topic.partitions
                ):
                    return True
            await asyncio.sleep(0.2)
        return False

    async def _all_listen(self, within_s: float) -> bool:
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            deaf = [each for each in self.cluster.dev.state.members if not await listens(each)]
            if not deaf:
                return True
            await asyncio.sleep(0.2)
        return False

    async def _acknowledges(self, within_s: float) -> bool:
        """Whether a new producer's records are acknowledged in every partition."""
        topic = self.topics[-1]
        with suppress(TailraceError, TimeoutError):
            async with asyncio.timeout(within_s):
                partitions = (await self.cluster.admin.describe_topic(topic)).partitions
                async with Producer(self.cluster.bootstrap) as producer:
                    for partition in range(len(partitions)):
                        await producer.send(topic, b"probe", partition=partition)
                    await producer.flush()
            return True
        return False

    async def _picture(self) -> str:
        found: list[str] = []
        for topic in [*self.topics, OFFSETS_TOPIC]:
            try:
                described = await self.cluster.admin.describe_topic(topic, timeout_ms=3_000)
            except TailraceError as error:
                found.append(f"{topic}: {error}")
                continue
            found += [
                f"{topic}-{at}: {each}"
                for at, each in enumerate(described.partitions)
                if each.leader < 0 or len(each.isr) < len(each.replicas)
            ]
        return "; ".join(found)[:3_000]

    # Helpers.

    @asynccontextmanager
    async def _taken(self, names: list[str]) -> AsyncIterator[None]:
        taken = [name for name in names if name in self._busy]
        if taken:
            raise SkippedStep(f"{', '.join(taken)} has another fault")
        self._busy.update(names)
        try:
            yield
        finally:
            self._busy.difference_update(names)

    async def _leader_and_controller(self) -> list[str]:
        try:
            names = [await self.cluster.leader(self.topics[0], 0), await self.cluster.controller()]
        except TailraceError as error:
            raise SkippedStep(f"nobody says who they are: {error}") from error
        known = self._names(Role.BROKER) + self._names(Role.CONTROLLER)
        if not set(names) <= set(known):
            raise SkippedStep("at this moment there are none")
        return names

    async def _start(self, name: str) -> None:
        async with self._starting:
            member = self.cluster.dev.state.member(name)
            for _ in range(PORT_ATTEMPTS):
                if self.cluster.dev.life(member) is not Life.EXITED:
                    return
                # The port of one that was killed may be taken for a moment.
                with suppress(DevError):
                    await self.cluster.dev.start(name)
                    return
                await asyncio.sleep(0.2)
            await self.cluster.dev.start(name)

    async def _until_gone(self, name: str, began: float) -> float:
        member = self.cluster.dev.state.member(name)
        while self.cluster.dev.life(member) is not Life.EXITED:
            if time.monotonic() - began > EXIT_GRACE_S:
                self.problems.append(f"{name} did not end within {EXIT_GRACE_S:.0f} s of SIGTERM")
                await self.cluster.dev.signal(name, signal.SIGKILL)
                break
            await asyncio.sleep(0.02)
        return time.monotonic() - began

    def _folder(self, name: str) -> Path:
        return self.cluster.dev.folder / name

    def _names(self, role: Role) -> list[str]:
        return [each.name for each in self.cluster.dev.state.members if each.role is role]


async def scraped(host: str, port: int) -> str:
    """A page of metrics."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(b"GET /metrics HTTP/1.0\r\nHost: nemesis\r\n\r\n")
        return (await reader.read(-1)).decode(errors="replace")
    finally:
        writer.close()


def _part(kind: Kind) -> str:
    """What of a process is taken by a fault; the process itself: nothing more."""
    if kind in NETWORK:
        return "network of "
    return f"{kind} of " if kind in SHIMMED or kind is Kind.DISK_FULL else ""


def _copy_moving(source: Path, target: Path) -> None:
    """Copy a folder that is in use: what goes away meanwhile is left out."""
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        with suppress(FileNotFoundError):
            if path.is_dir():
                copy.mkdir(parents=True, exist_ok=True)
            else:
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


def _damage(path: Path, older: Path, rng: Random) -> str:
    """Do one thing to a file, and say which."""
    data = bytearray(path.read_bytes())
    ways = ["removed"]
    if data:
        ways += ["cut", "flipped"]
    if older.exists() and older.read_bytes() != data:
        ways += ["older copy of"] * 2
    way = rng.choice(ways)
    if way == "removed":
        path.unlink()
    elif way == "older copy of":
        shutil.copyfile(older, path)
    elif way == "cut":
        path.write_bytes(data[: rng.randrange(len(data))])
    else:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    return way
