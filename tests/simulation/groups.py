"""Groups under load in a simulated cluster: members that read, commit and come to harm.

The members are a small client of their own that speaks the RPCs: join, sync, heartbeat, fetch,
commit. What they read is a counter: each goes on from the committed position and commits after each
step, so that whatever is lost or goes back is seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from simulation.checkers import Violation
from simulation.cluster import SimCluster
from simulation.loop import Process, SimLoop
from simulation.network import SimHost
from tailrace.client.metadata import MetadataWatcher
from tailrace.errors import (
    CoordinatorLoading,
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    LimitReached,
    NotCoordinator,
    Overloaded,
    RebalanceInProgress,
    RequestTimedOut,
    TailraceError,
    UnknownMember,
    UnknownTopic,
    Unreachable,
)
from tailrace.transport import methods
from tailrace.transport.rpc import Method, Stream
from tailrace.transport.wire import error_of, raise_for
from tailrace.v1 import group_pb2 as pb

TOPIC = "orders"
PARTITIONS = 4
SESSION_MS = 6_000
REBALANCE_MS = 4_000
HEARTBEAT_S = 1.0
STEP_S = 0.25
CALL_MS = 5_000
SETTLE_S = 90.0

_LATER = (
    CoordinatorLoading,
    LimitReached,
    NotCoordinator,
    Overloaded,
    RequestTimedOut,
    UnknownTopic,
    Unreachable,
)
_AS_SOMEBODY_NEW = (UnknownMember, FencedInstance)
_AGAIN = (RebalanceInProgress, IllegalGeneration)

Faults = Callable[["GroupRun"], Awaitable[None]]


class GroupWitness:
    """Knows what members were told, and what must hold of it."""

    def __init__(self) -> None:
        # By group and generation: which member owns a partition (I5).
        self.owners: dict[tuple[str, int], dict[int, str]] = {}
        # The highest position that was acknowledged, by group and partition.
        self.acknowledged: dict[tuple[str, int], int] = {}
        self.commits = 0
        self.refused = 0
        self.generations = 0

    def assigned(self, group: str, generation: int, member_id: str, partitions: list[int]) -> None:
        owners = self.owners.setdefault((group, generation), {})
        if not owners:
            self.generations += 1
        for partition in partitions:
            other = owners.setdefault(partition, member_id)
            if other != member_id:
                raise Violation(
                    f"I5: {group} generation {generation}: partition {partition} belongs to "
                    f"{other} and to {member_id}"
                )

    def committed(self, group: str, partition: int, position: int) -> None:
        self.commits += 1
        key = group, partition
        self.acknowledged[key] = max(self.acknowledged.get(key, 0), position)

    def known(self, group: str, partition: int) -> int:
        """What a fetch that begins now must tell at the least."""
        return self.acknowledged.get((group, partition), 0)


class Member:
    """One member of a group, in a process of its own, until it is killed or told to leave."""

    def __init__(self, run: GroupRun, group: str, name: str, *, instance: str = "") -> None:
        self.run = run
        self.group = group
        self.name = name
        self.instance = instance
        self.process: Process
        self.host: SimHost
        self.process, self.host, self.rng = run.cluster.client_host(name)
        self.member_id = ""
        self._proposed = self._new_id()
        self.generation = -1
        self.owned: dict[int, int] = {}
        self.slow_s = 0.0
        self.leaving = False
        self.steps = 0
        self._metadata = MetadataWatcher(self.host, run.cluster.bootstrap, self.rng)
        self._over = asyncio.Event()
        self.process.spawn("metadata", self._metadata.run())
        self.task = self.process.spawn("member", self._live())

    @property
    def is_up(self) -> bool:
        return not self.process.is_dead and not self.process.is_paused

    def _new_id(self) -> str:
        return f"{self.name}-{self.rng.getrandbits(32):08x}"

    async def _live(self) -> None:
        while not self.leaving:
            try:
                await self._one_generation()
            except _AS_SOMEBODY_NEW:
                self.member_id, self.generation = "", -1
                self._proposed = self._new_id()
            except _AGAIN:
                pass
            except (*_LATER, GroupFull):
                await asyncio.sleep(self.rng.uniform(0.02, 0.3))
            except Violation as error:
                self.run.violations.append(str(error))
                raise
            self.owned = {}
        with suppress(TailraceError):
            leaving = pb.LeavingMember(member_id=self.member_id, instance_id=self.instance)
            await self._call(
                methods.GROUP_LEAVE, pb.LeaveGroupRequest(group=self.group, members=[leaving])
            )

    async def _one_generation(self) -> None:
        joined = await self._call(
            methods.GROUP_JOIN,
            pb.JoinGroupRequest(
                group=self.group,
                member_id=self.member_id,
                proposed_member_id=self._proposed,
                instance_id=self.instance,
                client_id=self.name,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                protocols=[pb.GroupProtocol(name="range", metadata=self.name.encode())],
            ),
            timeout_ms=REBALANCE_MS * 3,
        )
        self.member_id, self.generation = joined.member_id, joined.generation
        await asyncio.sleep(self.slow_s)
        synced = await self._call(
            methods.GROUP_SYNC,
            pb.SyncGroupRequest(
                group=self.group,
                generation=self.generation,
                member_id=self.member_id,
                instance_id=self.instance,
                assignments=_assign(joined),
            ),
            timeout_ms=REBALANCE_MS * 3,
        )
        mine = list(synced.assignment)
        self.run.witness.assigned(self.group, self.generation, self.member_id, mine)
        self._over = asyncio.Event()
        beating = self.process.spawn("heartbeats", self._beat())
        try:
            await self._fetch(mine)
            while not self._over.is_set() and not self.leaving:
                await asyncio.sleep(STEP_S * self.rng.uniform(0.5, 1.5) + self.slow_s)
                await self._step()
        finally:
            beating.cancel()

    async def _fetch(self, mine: list[int]) -> None:
        if not mine:
            # To name no partition asks for all.
            return
        least = {each: self.run.witness.known(self.group, each) for each in mine}
        found = await self._call(
            methods.GROUP_FETCH_OFFSETS,
            pb.FetchOffsetsRequest(
                group=self.group,
                partitions=[{"topic": TOPIC, "partition": each} for each in mine],  # type: ignore[misc]
            ),
        )
        positions = {each.partition: max(each.offset, 0) for each in found.offsets}
        for partition in mine:
            if positions[partition] < least[partition]:
                raise Violation(
                    f"{self.group} partition {partition}: position {least[partition]} was "
                    f"acknowledged, and {positions[partition]} is what {self.member_id} of "
                    f"generation {self.generation} got"
                )
        self.owned = positions

    async def _step(self) -> None:
        """Process one more of each partition, then commit."""
        if not self.owned:
            return
        wanted = {partition: position + 1 for partition, position in self.owned.items()}
        response = await self._call(
            methods.GROUP_COMMIT_OFFSETS,
            pb.CommitOffsetsRequest(
                group=self.group,
                generation=self.generation,
                member_id=self.member_id,
                instance_id=self.instance,
                offsets=[
                    pb.OffsetToCommit(topic=TOPIC, partition=partition, offset=position)
                    for partition, position in wanted.items()
                ],
            ),
        )
        for each in response.partitions:
            raise_for(each.error, each.message)
        for partition, position in wanted.items():
            self.run.witness.committed(self.group, partition, position)
        self.owned = wanted
        self.steps += 1

    async def _beat(self) -> None:
        """Heartbeats on a stream of their own, beside the work."""
        while not self._over.is_set():
            with suppress(*_LATER):
                channel = self.host.channel(self._address())
                try:
                    await self._beat_on(channel.open(methods.GROUP_HEARTBEAT))
                finally:
                    await channel.close()
            await asyncio.sleep(0.1)

    async def _beat_on(self, stream: Stream[pb.HeartbeatRequest, pb.HeartbeatResponse]) -> None:
        reading = self.process.spawn("hear", self._hear(stream))
        try:
            while not reading.done():
                await stream.send(
                    pb.HeartbeatRequest(
                        group=self.group,
                        generation=self.generation,
                        member_id=self.member_id,
                        instance_id=self.instance,
                    )
                )
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        await asyncio.shield(reading)
        finally:
            reading.cancel()
            stream.cancel()

    async def _hear(self, stream: Stream[pb.HeartbeatRequest, pb.HeartbeatResponse]) -> None:
        with suppress(*_LATER):
            while (told := await stream.recv()) is not None:
                error = error_of(told.error, told.message)
                if isinstance(error, (*_AGAIN, *_AS_SOMEBODY_NEW)):
                    self._over.set()
                if error is not None:
                    return

    def _address(self) -> str:
        address = self._metadata.picture.coordinator_of(self.group)
        if not address:
            raise NotCoordinator("no coordinator is known")
        return address

    async def _call(
        self, method: Method[Any, Any], request: Any, *, timeout_ms: int = CALL_MS
    ) -> Any:
        channel = self.host.channel(self._address())
        try:
            response = await channel.call(method, request, timeout_ms=timeout_ms)
        finally:
            await channel.close()
        error = error_of(response.error, response.message)
        if error is not None:
            self.run.witness.refused += 1
            raise error
        return response


class GroupRun:
    """One cluster with groups under load."""

    def __init__(
        self,
        loop: SimLoop,
        *,
        groups: int = 2,
        members: int = 2,
        make: Callable[[GroupRun, str, str], Any] | None = None,
    ) -> None:
        """`make`: other members than those of this module, by group and name."""
        self.loop = loop
        self.rng = loop.fork_rng("groups")
        self.cluster = SimCluster(loop, controllers=1, coordinators=2)
        self.witness = GroupWitness()
        self.violations: list[str] = []
        self.groups = ["red", "orders", "green", "blue"][:groups]
        self.members: list[Member] = []
        self._members_each = members
        self._make = make or Member
        self._count = 0

    async def play(self, faults: Faults | None = None, *, load_s: float = 6.0) -> None:
        """Start, load, break, heal, and check."""
        cluster = self.cluster
        cluster.start_all()
        await cluster.create_topic(TOPIC, partitions=PARTITIONS)
        for group in self.groups:
            for _ in range(self._members_each):
                self.add(group)
        await self._until(self.is_whole, 30.0, "the groups never began")
        if faults is None:
            await asyncio.sleep(load_s)
        else:
            await faults(self)
        self.heal()
        await self._until(self.is_whole, SETTLE_S, "I6: not every rebalance has ended")
        before = {id(member): member.steps for member in self.members}
        await self._until(
            lambda: all(m.steps > before.get(id(m), 0) for m in self.members if m.owned),
            SETTLE_S,
            "I6: members make no progress",
        )
        if not self.witness.commits:
            raise Violation("nothing was ever committed")
        problems = self.violations + cluster.problems + cluster.network.handler_failures
        if problems:
            raise Violation("; ".join(problems))

    def add(self, group: str) -> Member:
        self._count += 1
        name = f"m{self._count}"
        member: Member = self._make(self, group, name)
        self.members.append(member)
        return member

    def kill(self, member: Member) -> None:
        """SIGKILL: it leaves no word."""
        member.process.kill()
        self.members.remove(member)

    def some_member(self) -> Member:
        return self.rng.choice(self.members)

    def heal(self) -> None:
        cluster = self.cluster
        cluster.network.heal()
        cluster.etcd.make_right()
        cluster.etcd.heal()
        for node in cluster.brokers:
            node.files.disk_bytes_max = None
        cluster.start_all()
        for member in self.members:
            member.slow_s = 0.0
            member.process.resume()
        self.loop.create_task(self._keep_started())

    async def _keep_started(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.cluster.start_all()

    def is_whole(self) -> bool:
        """Every group: one generation, all partitions owned once, by members that are there."""
        if self.violations:
            raise Violation("; ".join(self.violations))
        for group in self.groups:
            mine = [each for each in self.members if each.group == group]
            generations = {each.generation for each in mine}
            owned = sorted(partition for each in mine for partition in each.owned)
            if not mine:
                continue
            if len(generations) != 1 or owned != list(range(PARTITIONS)):
                return False
        return True

    async def _until(self, holds: Callable[[], bool], within_s: float, what: str) -> None:
        until_s = self.loop.time() + within_s
        while not holds():
            if self.loop.time() > until_s:
                raise Violation(f"{what}: {self._state()}")
            await asyncio.sleep(0.1)

    def _state(self) -> str:
        lines = [
            f"{m.name} of {m.group}: {m.member_id} generation {m.generation} owns {m.owned} "
            f"up {m.is_up} task {m.task}"
            for m in self.members
        ]
        for node in self.cluster.coordinators:
            runtime = node.coordinator.runtime if node.coordinator is not None else None
            for shard in runtime.owned.values() if runtime is not None else ():
                groups = [shard.shard.group(name) for name in shard.shard.names()]
                lines.append(
                    f"{node.name} shard {shard.number} {shard.owner} loaded "
                    f"{shard.loaded.is_set()} parked {shard.journal.parked}: "
                    + ", ".join(
                        f"{g.name} {g.facts.phase.value} {g.facts.generation}" for g in groups
                    )
                )
        return "\n  ".join(["", *lines])


def _assign(joined: pb.JoinGroupResponse) -> list[pb.MemberAssignment]:
    """In turns, by the leader; an assignment is one byte for each partition."""
    members = sorted(each.member_id for each in joined.members)
    if not members or joined.skip_assignment:
        return []
    return [
        pb.MemberAssignment(
            member_id=member_id,
            assignment=bytes(range(number, PARTITIONS, len(members))),
        )
        for number, member_id in enumerate(members)
    ]
