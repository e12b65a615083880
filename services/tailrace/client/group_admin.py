"""Administration of groups: list, describe with lag, delete, reset positions.

Each group is asked of its own coordinator, which `coordinator` finds. Lag is counted in records
(from the position to the high watermark) and in time (the age of the next record to be read, whose
timestamp is looked up by reading it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, assert_never

from google.protobuf.message import DecodeError

from tailrace.client.coordinator import (
    ATTEMPT_TIMEOUT_MS,
    WORTH_ANOTHER_TRY,
    CoordinatorClient,
)
from tailrace.client.metadata import MetadataWatcher
from tailrace.client.subscription import decode_assignment
from tailrace.clock import Clock
from tailrace.errors import (
    CoordinatorLoading,
    GroupNotEmpty,
    GroupNotFound,
    InvalidRequest,
    TailraceError,
    Unreachable,
)
from tailrace.model import TopicPartition
from tailrace.runtime import Tasks
from tailrace.transport import methods
from tailrace.transport.rpc import Method, Network
from tailrace.transport.wire import error_of, raise_for, to_partition
from tailrace.v1 import group_pb2 as pb

if TYPE_CHECKING:
    from tailrace.client.fetcher import Fetcher

EMPTY: Final = "Empty"
CONSUMER: Final = "consumer"
# How long the records are waited for whose age is the lag in time.
LAG_READ_MS: Final = 2_000
LAG_READ_BYTES: Final = 16 << 20
LAG_PARTITION_BYTES: Final = 64 << 10
LIST_RETRY_MS: Final = 100

Q = TypeVar("Q")
A = TypeVar("A")


class FoundOffset(Protocol):
    @property
    def offset(self) -> int: ...


LookUp = Callable[[str, int | str, Iterable[int]], Awaitable[Mapping[int, FoundOffset]]]
"""Offsets of partitions of a topic: "earliest", "latest", or by a time in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """One group in a list."""

    group: str
    state: str
    kind: str
    members: int
    coordinator_id: int

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemberDescription:
    """One member; `partitions` is None when its assignment is of a kind that is not known."""

    member_id: str
    instance_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...] | None

    def as_dict(self) -> dict[str, Any]:
        shown = None if self.partitions is None else [str(each) for each in self.partitions]
        return {
            "member_id": self.member_id,
            "instance_id": self.instance_id,
            "client_id": self.client_id,
            "host": self.host,
            "partitions": shown,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """Where a group stands in one partition; -1 and None say that something is not known."""

    topic: str
    partition: int
    offset: int
    log_start: int
    log_end: int
    lag: int
    lag_ms: int | None
    commit_ms: int
    metadata: str
    member_id: str
    client_id: str
    host: str
    # The topic was deleted, or made anew: the position means nothing for it.
    stale: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """One group."""

    group: str
    state: str
    kind: str
    protocol: str
    generation: int
    coordinator_id: int
    members: tuple[GroupMemberDescription, ...]
    positions: tuple[GroupPosition, ...]

    @property
    def lag(self) -> int:
        """All records that are still to be read."""
        return sum(max(each.lag, 0) for each in self.positions)

    def as_dict(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "state": self.state,
            "kind": self.kind,
            "protocol": self.protocol,
            "generation": self.generation,
            "coordinator_id": self.coordinator_id,
            "lag": self.lag,
            "members": [each.as_dict() for each in self.members],
            "positions": [each.as_dict() for each in self.positions],
        }


class ResetTo(Enum):
    """Where positions are moved to."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    OFFSET = "offset"
    SHIFT = "shift"


class PositionReset(NamedTuple):
    """One position, as it is (-1: none) and as it is to be.

    `asked` is where it would be if the log went that far; as `new`, where it does.
    """

    partition: TopicPartition
    old: int
    new: int
    asked: int


class GroupAdmin:
    """Asks coordinators on behalf of an administrator; the metadata are followed elsewhere."""

    def __init__(
        self,
        metadata: MetadataWatcher,
        *,
        network: Network,
        clock: Clock,
        rng: Random,
        look_up: LookUp,
    ) -> None:
        self._metadata = metadata
        self._network = network
        self._clock = clock
        self._rng = rng
        self._look_up = look_up

    # Looking.

    async def list_all(self, states: Sequence[str], *, timeout_ms: int) -> list[GroupListing]:
        """All groups of all coordinators, by name."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            try:
                return await self._list_once(states, deadline_ms - self._clock.monotonic_ms())
            except (CoordinatorLoading, Unreachable):
                # A coordinator that is gone is in the picture for a moment longer.
                if self._clock.monotonic_ms() + LIST_RETRY_MS >= deadline_ms:
                    raise
            await asyncio.sleep(LIST_RETRY_MS / 1_000)

    async def describe(
        self, group: str, *, timeout_ms: int, with_time: bool = True
    ) -> GroupDescription:
        """A group with its members and positions; GroupNotFound."""
        found = await self._description(group, timeout_ms)
        members = tuple(map(_member, found.members))
        stored = await self._positions(group, timeout_ms)
        owners = {partition: member for member in members for partition in member.partitions or ()}
        stale = {each for each in stored if self._is_stale(each, stored)}
        # A reader of another kind may mean to read only some partitions of a topic.
        rest = self._whole(stored.keys() - stale) if found.kind == CONSUMER else ()
        wanted = sorted({*stored, *owners, *rest})
        ends = await self._ends(filter(self._is_there, wanted))
        behind = {
            each: position.offset
            for each, position in stored.items()
            if each not in stale and each in ends and position.offset < ends[each][1]
        }
        ages = await self._ages(behind) if with_time else {}
        positions = tuple(
            _position(each, stored.get(each), ends.get(each), owners.get(each), each in stale, ages)
            for each in wanted
        )
        return GroupDescription(
            group=group,
            state=found.state,
            kind=found.kind,
            protocol=found.protocol,
            generation=found.generation,
            coordinator_id=found.coordinator_id,
            members=members,
            positions=positions,
        )

    # Changing.

    async def delete(
        self, groups: Iterable[str], *, timeout_ms: int
    ) -> dict[str, TailraceError | None]:
        """Forget groups without members; says of each why it is still there."""
        results: dict[str, TailraceError | None] = {}
        for group in groups:
            answer = await self._ask(
                group,
                methods.GROUP_DELETE,
                pb.DeleteGroupsRequest(groups=[group]),
                lambda answer: answer.groups[0],
                timeout_ms,
            )
            results[group] = error_of(answer.groups[0].error, answer.groups[0].message)
        return results

    async def delete_positions(
        self, group: str, partitions: Sequence[TopicPartition], *, timeout_ms: int
    ) -> None:
        answer = await self._client(group).call(
            methods.GROUP_DELETE_OFFSETS,
            pb.DeleteOffsetsRequest(
                group=group, partitions=[to_partition(each) for each in partitions]
            ),
            timeout_ms=timeout_ms,
        )
        raise_for(answer.error, answer.message)
        for each in answer.partitions:
            raise_for(each.error, each.message)

    async def reset(
        self,
        group: str,
        to: ResetTo,
        value: int,
        *,
        topics: Mapping[str, Sequence[int] | None] | None,
        dry_run: bool,
        timeout_ms: int,
    ) -> list[PositionReset]:
        """Move positions; GroupNotEmpty while the group has members.

        `topics`: partitions by topic, None for all of them; without, all that have a position.
        """
        await self._require_empty(group, timeout_ms, may_be_new=topics is not None)
        stored = await self._positions(group, timeout_ms)
        wanted = self._wanted(group, topics, stored)
        ends = await self._ends(wanted)
        found: dict[TopicPartition, int] = {}
        if to is ResetTo.TIME:
            for topic, numbers in _by_topic(wanted).items():
                offsets = await self._look_up(topic, value, numbers)
                found |= {TopicPartition(topic, n): at.offset for n, at in offsets.items()}
        plan = []
        for partition in wanted:
            start, end = ends[partition]
            is_known = partition in stored and not self._is_stale(partition, stored)
            old = stored[partition].offset if is_known else -1
            at = found.get(partition, -1)
            new, asked = target(to, value, start=start, end=end, old=old, found=at)
            plan.append(PositionReset(partition, old, new, asked))
        if not dry_run:
            await self._commit(group, plan, timeout_ms)
        return plan

    # Inside.

    def _client(self, group: str) -> CoordinatorClient:
        return CoordinatorClient(
            group, self._metadata, network=self._network, clock=self._clock, rng=self._rng
        )

    async def _list_once(self, states: Sequence[str], timeout_ms: int) -> list[GroupListing]:
        found: list[GroupListing] = []
        for number, address in sorted(self._metadata.picture.coordinators.items()):
            channel = self._network.channel(address)
            try:
                response = await channel.call(
                    methods.GROUP_LIST,
                    pb.ListGroupsRequest(states=states),
                    timeout_ms=max(timeout_ms, 1),
                )
            finally:
                await channel.close()
            raise_for(response.error, response.message)
            found += [
                GroupListing(
                    group=each.group,
                    state=each.state,
                    kind=each.kind,
                    members=each.members,
                    coordinator_id=number,
                )
                for each in response.groups
            ]
        return sorted(found, key=lambda each: each.group)

    async def _description(self, group: str, timeout_ms: int) -> pb.GroupDescription:
        response = await self._ask(
            group,
            methods.GROUP_DESCRIBE,
            pb.DescribeGroupsRequest(groups=[group]),
            lambda answer: answer.groups[0],
            timeout_ms,
        )
        raise_for(response.groups[0].error, response.groups[0].message)
        return response.groups[0]

    async def _positions(
        self, group: str, timeout_ms: int
    ) -> dict[TopicPartition, pb.CommittedOffset]:
        answer = await self._client(group).call(
            methods.GROUP_FETCH_OFFSETS,
            pb.FetchOffsetsRequest(group=group),
            timeout_ms=timeout_ms,
        )
        raise_for(answer.error, answer.message)
        return {TopicPartition(each.topic, each.partition): each for each in answer.offsets}

    async def _require_empty(self, group: str, timeout_ms: int, *, may_be_new: bool) -> None:
        try:
            found = await self._description(group, timeout_ms)
        except GroupNotFound:
            if not may_be_new:
                raise
            return
        if found.state != EMPTY:
            raise GroupNotEmpty(
                f"group {group!r} is {found.state}, with members ({len(found.members)}): stop them "
                "first, they would commit over it"
            )

    def _wanted(
        self,
        group: str,
        topics: Mapping[str, Sequence[int] | None] | None,
        stored: Mapping[TopicPartition, pb.CommittedOffset],
    ) -> list[TopicPartition]:
        known = self._metadata.picture.topics
        if topics is None:
            wanted = [each for each in sorted(stored) if self._is_there(each)]
            if not wanted:
                raise InvalidRequest(f"group {group!r} has no positions: name the topics")
            return wanted
        wanted = []
        for topic, numbers in topics.items():
            if topic not in known:
                raise self._metadata.unknown_topic(topic)
            count = len(known[topic].partitions)
            for number in range(count) if numbers is None else numbers:
                if not 0 <= number < count:
                    raise InvalidRequest(f"{topic} has partitions 0 to {count - 1}, not {number}")
                wanted.append(TopicPartition(topic, number))
        return wanted

    def _is_there(self, partition: TopicPartition) -> bool:
        topic = self._metadata.picture.topics.get(partition.topic)
        return topic is not None and partition.partition < len(topic.partitions)

    def _whole(self, partitions: Iterable[TopicPartition]) -> Iterator[TopicPartition]:
        """All partitions of the topics of these."""
        for topic in {each.topic for each in partitions}:
            for number in range(len(self._metadata.picture.topics[topic].partitions)):
                yield TopicPartition(topic, number)

    def _is_stale(
        self, partition: TopicPartition, stored: Mapping[TopicPartition, pb.CommittedOffset]
    ) -> bool:
        """Whether a position was committed for a topic that is gone, or is another one now."""
        topic = self._metadata.picture.topics.get(partition.topic)
        return topic is None or topic.topic_id != stored[partition].topic_id

    async def _ends(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Where each log starts and ends."""
        found = {}
        for topic, numbers in _by_topic(partitions).items():
            starts = await self._look_up(topic, ResetTo.EARLIEST.value, numbers)
            ends = await self._look_up(topic, ResetTo.LATEST.value, numbers)
            for number in numbers:
                found[TopicPartition(topic, number)] = (
                    starts[number].offset,
                    ends[number].offset,
                )
        return found

    async def _commit(self, group: str, plan: Sequence[PositionReset], timeout_ms: int) -> None:
        answer = await self._client(group).call(
            methods.GROUP_COMMIT_OFFSETS,
            pb.CommitOffsetsRequest(
                group=group,
                generation=-1,
                offsets=[
                    pb.OffsetToCommit(
                        topic=each.partition.topic,
                        partition=each.partition.partition,
                        offset=each.new,
                        leader_epoch=-1,
                    )
                    for each in plan
                ],
            ),
            timeout_ms=timeout_ms,
        )
        raise_for(answer.error, answer.message)
        for each in answer.partitions:
            raise_for(each.error, each.message)

    async def _ages(self, behind: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """How old the next record to be read is, in ms, as far as it comes in time."""
        if not behind:
            return {}
        # Whoever only asks for names need not wait for what decodes records.
        from tailrace.client.fetcher import Fetcher, FetchSettings  # noqa: PLC0415

        ages: dict[TopicPartition, int] = {}
        news = asyncio.Event()
        fetcher = Fetcher(
            self._metadata,
            FetchSettings(
                bytes_max=LAG_READ_BYTES,
                partition_bytes=LAG_PARTITION_BYTES,
                min_bytes=1,
                max_wait_ms=LAG_READ_MS,
                topic_timeout_ms=LAG_READ_MS,
            ),
            network=self._network,
            clock=self._clock,
            rng=self._rng,
            on_news=news.set,
            on_failure=lambda _, __: news.set(),
        )
        for partition, offset in behind.items():
            fetcher.plan.seek(fetcher.plan.add(partition), offset)
        tasks = Tasks(lambda _, __: None)
        tasks.spawn("read for the lag", fetcher.run())
        try:
            async with asyncio.timeout(LAG_READ_MS / 1_000):
                while len(ages) < len(behind):
                    await news.wait()
                    news.clear()
                    self._take_ages(fetcher, behind, ages)
        except TimeoutError:
            # What did not come in time is not known.
            pass
        finally:
            await tasks.close()
        return ages

    def _take_ages(
        self,
        fetcher: Fetcher,
        behind: Mapping[TopicPartition, int],
        ages: dict[TopicPartition, int],
    ) -> None:
        now_ms = self._clock.wall_ms()
        while fetcher.plan.arrivals:
            partition = fetcher.plan.arrivals[0].reading.partition
            with suppress(TailraceError):
                arrival = fetcher.plan.take()
                if arrival is None or arrival.fetched is None or partition in ages:
                    continue
                for record in arrival.fetched.view.records():
                    if record.offset >= behind[partition]:
                        ages[partition] = max(now_ms - record.timestamp_ms, 0)
                        fetcher.plan.remove(partition)
                        break

    async def _ask(
        self,
        group: str,
        method: Method[Q, A],
        request: Q,
        told: Callable[[A], pb.GroupDescription | pb.GroupResult],
        timeout_ms: int,
    ) -> A:
        """Ask about one group; what is wrong with the group itself is left in the answer."""
        client = self._client(group)
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            left_ms = max(deadline_ms - self._clock.monotonic_ms(), 1)
            try:
                channel = client.channel()
                try:
                    answer = await channel.call(
                        method, request, timeout_ms=min(left_ms, ATTEMPT_TIMEOUT_MS)
                    )
                finally:
                    await channel.close()
                one = told(answer)
                problem = error_of(one.error, one.message)
                if not isinstance(problem, WORTH_ANOTHER_TRY):
                    return answer
            except WORTH_ANOTHER_TRY as error:
                problem = error
            if self._clock.monotonic_ms() >= deadline_ms:
                raise problem
            await client.pause(problem)


def target(
    to: ResetTo, value: int, *, start: int, end: int, old: int, found: int
) -> tuple[int, int]:
    """The new position, within the log whatever was asked for; and the one that was."""
    asked = _asked(to, value, start=start, end=end, old=old, found=found)
    return min(max(asked, start), end), asked


def _asked(to: ResetTo, value: int, *, start: int, end: int, old: int, found: int) -> int:
    match to:
        case ResetTo.EARLIEST:
            return start
        case ResetTo.LATEST:
            return end
        case ResetTo.TIME:
            # No record is that late: the next one that comes.
            return found if found >= 0 else end
        case ResetTo.OFFSET:
            return value
        case ResetTo.SHIFT:
            return (old if old >= 0 else start) + value
        case _:
            assert_never(to)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in partitions:
        found.setdefault(each.topic, []).append(each.partition)
    return found


def _member(member: pb.GroupMember) -> GroupMemberDescription:
    partitions: tuple[TopicPartition, ...] | None = ()
    if member.assignment:
        try:
            partitions = tuple(sorted(decode_assignment(member.assignment)))
        except (TailraceError, DecodeError):
            partitions = None
    return GroupMemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.host,
        partitions=partitions,
    )


def _position(
    partition: TopicPartition,
    stored: pb.CommittedOffset | None,
    ends: tuple[int, int] | None,
    owner: GroupMemberDescription | None,
    stale: bool,
    ages: Mapping[TopicPartition, int],
) -> GroupPosition:
    start, end = ends if ends is not None else (-1, -1)
    offset = -1 if stored is None else stored.offset
    lag = max(end - max(offset, start), 0) if offset >= 0 and end >= 0 and not stale else -1
    return GroupPosition(
        topic=partition.topic,
        partition=partition.partition,
        offset=offset,
        log_start=start,
        log_end=end,
        lag=lag,
        lag_ms=0 if lag == 0 else ages.get(partition),
        commit_ms=-1 if stored is None else stored.commit_ms,
        metadata="" if stored is None else stored.metadata,
        member_id=owner.member_id if owner is not None else "",
        client_id=owner.client_id if owner is not None else "",
        host=owner.host if owner is not None else "",
        stale=stale,
    )
