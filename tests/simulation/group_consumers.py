"""Members of groups that are shipped consumers: they read real records, and commit what they read.

A consumer polls, then commits and waits for it. What it reads first of a partition that it was
given must not lie below what was acknowledged to anybody before it was given it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from simulation.checkers import Violation
from simulation.groups import REBALANCE_MS, SESSION_MS, TOPIC, GroupRun
from simulation.loop import LoopClock
from tailrace.client.consumer import ConsumerCore
from tailrace.client.consumer_settings import ConsumerSettings
from tailrace.client.membership import State
from tailrace.errors import TailraceError
from tailrace.model import TopicPartition

WRITE_EVERY_S = 0.1


class ShippedMember:
    """One consumer in a process of its own, until it is killed or told to leave."""

    def __init__(self, run: GroupRun, group: str, name: str) -> None:
        self.run = run
        self.group = group
        self.name = name
        self.process, host, rng = run.cluster.client_host(name)
        self.rng = rng
        self.slow_s = 0.0
        self.leaving = False
        self.steps = 0
        self.owned: dict[int, int] = {}
        # What had been acknowledged when each partition was given to us.
        self._least: dict[int, int] = {}
        # How long records waited for us while their partition was ours: since they were written, or
        # since the one before was handed out; and offset and time of that one.
        self.waits_ms: list[int] = []
        self._before: dict[int, tuple[int, int]] = {}
        self._clock = LoopClock(run.loop)
        self._consumer = ConsumerCore(
            run.cluster.bootstrap,
            ConsumerSettings(
                group_id=group,
                client_id=name,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=1_000,
                max_poll_interval_ms=REBALANCE_MS * 2,
                max_poll_records=20,
                default_api_timeout_ms=20_000,
            ),
            network=host,
            clock=self._clock,
            rng=rng,
        )
        self.task = self.process.spawn("consumer", self._live())

    @property
    def is_up(self) -> bool:
        return not self.process.is_dead and not self.process.is_paused

    @property
    def member_id(self) -> str:
        member = self._consumer._member
        return member.machine.member_id if member is not None else ""

    @property
    def generation(self) -> int:
        member = self._consumer._member
        return member.machine.generation if member is not None else -1

    async def on_assigned(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self.owned[each.partition] = -1
            self._least[each.partition] = self.run.witness.known(self.group, each.partition)

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self.owned.pop(each.partition, None)
            self._before.pop(each.partition, None)

    on_lost = on_revoked

    async def _live(self) -> None:
        await self._consumer.subscribe(TOPIC, self)
        while not self.leaving:
            try:
                await self._step()
            except TailraceError:
                await asyncio.sleep(0.1)
            except Violation as error:
                self.run.violations.append(str(error))
                raise
        self.owned = {}
        with suppress(TailraceError):
            await self._consumer.close()

    async def _step(self) -> None:
        records = await self._consumer.poll(timeout_ms=300)
        member = self._consumer._member
        if member is not None and member.machine.state is State.STABLE:
            # I5: who has what in this generation, once it is in our hands.
            self.run.witness.assigned(
                self.group, self.generation, self.member_id, sorted(self.owned)
            )
        now_ms = self._clock.wall_ms()
        for record in records:
            offset, before_ms = self._before.get(record.partition, (-2, 0))
            if offset + 1 == record.offset:
                self.waits_ms.append(now_ms - max(before_ms, record.timestamp_ms))
            self._before[record.partition] = record.offset, now_ms
            least = self._least.pop(record.partition, 0)
            if record.offset < least:
                raise Violation(
                    f"{self.group} partition {record.partition}: {least} was acknowledged, and "
                    f"{self.name} reads {record.offset}"
                )
            if record.partition in self.owned:
                self.owned[record.partition] = record.offset + 1
        await asyncio.sleep(self.slow_s)
        if records:
            reached = {number: position for number, position in self.owned.items() if position >= 0}
            await self._consumer.commit()
            for number, position in reached.items():
                if number in self.owned:
                    self.run.witness.committed(self.group, number, position)
            self.steps += 1


class ConsumerRun(GroupRun):
    """Groups of shipped consumers, and a producer that gives them something to read."""

    def __init__(self, loop: Any, **options: Any) -> None:
        super().__init__(loop, make=ShippedMember, **options)
        self._writing = False

    def add(self, group: str) -> Any:
        if not self._writing:
            self._writing = True
            process, make = self.cluster.producer("p0")
            process.spawn("write", self._write(make))
        return super().add(group)

    async def _write(self, make: Any) -> None:
        producer = make()
        number = 0
        while True:
            number += 1
            await producer.send(TOPIC, b"%d" % number, partition=number % 4)
            await asyncio.sleep(WRITE_EVERY_S)
