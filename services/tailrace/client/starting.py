"""Where a consumer begins to read partitions: where its group stopped, or as the policy says.

Runs beside the program: partitions that wait for their positions hold up no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from tailrace.client.consumer_settings import NONE
from tailrace.client.fetch_plan import UNDECIDED, FetchPlan, Reading
from tailrace.client.group_member import GroupMember, OffsetAndMetadata
from tailrace.errors import NoOffset, TailraceError
from tailrace.model import TopicPartition

POSITION_TIMEOUT_MS: Final = 10_000


class StartingPositions:
    """Finds them: `run` in a task, `add` what is to be read."""

    def __init__(
        self,
        plan: FetchPlan,
        member: GroupMember | None,
        policy: str,
        *,
        on_found: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._member = member
        self._policy = policy
        self._on_found = on_found
        self._due = asyncio.Event()

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._plan.seek(self._plan.add(partition), UNDECIDED)
        self._due.set()

    async def run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            wanted = {
                partition: reading.version
                for partition, reading in self._plan.readings.items()
                if reading.wanted == UNDECIDED and reading.problem is None
            }
            if not wanted:
                continue
            try:
                found = await self._stored(wanted)
            except TailraceError as error:
                self._failed(wanted, error)
                continue
            for partition, version in wanted.items():
                reading = self._plan.readings.get(partition)
                if reading is not None and reading.version == version:
                    self._begin_at(reading, found.get(partition))
            self._on_found()

    async def _stored(
        self, wanted: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if self._member is None:
            return {}
        return await self._member.committed(wanted, timeout_ms=POSITION_TIMEOUT_MS)

    def _failed(self, partitions: Iterable[TopicPartition], error: TailraceError) -> None:
        for partition in partitions:
            reading = self._plan.readings.get(partition)
            if reading is not None and reading.wanted == UNDECIDED:
                reading.trouble = str(error)
                if not error.retriable:
                    self._plan.stop(reading, error)
        # What is left is asked for again; the coordinator was waited for already.
        self._due.set()
        self._on_found()

    def _begin_at(self, reading: Reading, stored: OffsetAndMetadata | None) -> None:
        if stored is not None:
            self._plan.seek(
                reading, stored.offset, last_epoch=stored.leader_epoch, topic_id=stored.topic_id
            )
        elif self._policy == NONE:
            self._plan.stop(
                reading,
                NoOffset(f"{reading.partition} has no committed offset, and no reset is allowed"),
            )
        else:
            self._plan.seek(reading, self._policy)
