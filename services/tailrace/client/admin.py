"""Administration: topics, the health of their partitions, the cluster, why a leader changed.

What is only asked for comes from the metadata that brokers push; what changes something goes to the
active controller, found through the same metadata and tried again until the deadline. Errors say
what is down: no broker, no controller, or the metadata store behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tailrace.client.asking import Call
from tailrace.client.describing import (
    ClusterDescription,
    TopicDescription,
    describe_cluster,
    describe_topic,
)
from tailrace.client.metadata import ClusterPicture, topic_picture
from tailrace.client.operations import Operations
from tailrace.errors import (
    InvalidRequest,
    NotLeader,
    TailraceError,
    TopicExists,
    UnknownTopic,
    Unreachable,
)
from tailrace.model import TopicPartition
from tailrace.transport import methods
from tailrace.transport.wire import (
    error_of,
    from_change,
    from_partition,
    from_settings_change,
    to_partition,
)
from tailrace.v1 import broker_pb2, controller_pb2

if TYPE_CHECKING:
    from tailrace.client.group_admin import (
        GroupAdmin,
        GroupDescription,
        GroupListing,
        PositionReset,
        ResetTo,
    )
    from tailrace.meta.keys import LeaderChange, SettingsChange

# How long a deletion is waited for: a broker that hangs holds it up until its lease ends.
DELETED_WAIT_MS: Final = 2_000

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

OffsetSpec: TypeAlias = int | str
"""`EARLIEST`, `LATEST`, or a time in ms since 1970: the first record at or after it."""


class FoundOffset(NamedTuple):
    """The answer of `list_offsets` for one partition; offset -1: no record is that late."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class AdminCore(Operations):
    """An administrator's client on given ports. `tailrace.aio.Admin` makes one on the real ones."""

    # Topics.

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 0,
        replication_factor: int = 0,
        config: Mapping[str, str] | None = None,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> TopicDescription:
        """Make a topic and wait until the brokers know it; 0 stands for the cluster's default."""
        call = await self._begin(timeout_ms)
        request = controller_pb2.CreateTopicRequest(
            name=name,
            partitions=partitions,
            replication_factor=replication_factor,
            config=config or {},
            validate_only=validate_only,
        )
        try:
            response = await self._ask_controller(methods.CONTROLLER_CREATE_TOPIC, request, call)
        except TopicExists as error:
            if call.in_doubt:
                raise TopicExists(
                    f"{error} (an earlier attempt of this call may have made it)"
                ) from None
            raise
        warnings = tuple(response.warnings)
        made = replace(describe_topic(name, topic_picture(response.topic)), warnings=warnings)
        if not validate_only:
            with suppress(TimeoutError):
                await self._metadata.wait_for(
                    lambda seen: _is_ready(seen, name, made.topic_id), timeout_ms=call.left_ms()
                )
                seen = describe_topic(name, self._metadata.picture.topics[name])
                return replace(seen, warnings=warnings)
        return made

    async def delete_topic(
        self, name: str, *, topic_id: str = "", timeout_ms: int | None = None
    ) -> None:
        """Delete a topic, with `topic_id` only the one that is meant.

        It waits for a moment until the name is free again; with a broker that hangs its data goes
        later.
        """
        call = await self._begin(timeout_ms)
        request = controller_pb2.DeleteTopicRequest(name=name, topic_id=topic_id)
        try:
            await self._ask_controller(methods.CONTROLLER_DELETE_TOPIC, request, call)
        except UnknownTopic:
            # After an attempt whose end is not known, "it is not there" is success.
            if not call.in_doubt:
                raise
        with suppress(TimeoutError):
            await self._metadata.wait_for(
                lambda seen: name not in seen.topics or seen.topics[name].deleting,
                timeout_ms=call.left_ms(),
            )
            await self._metadata.wait_for(
                lambda seen: name not in seen.topics or not seen.topics[name].deleting,
                timeout_ms=min(DELETED_WAIT_MS, call.left_ms()),
            )

    async def list_topics(self, *, timeout_ms: int | None = None) -> list[str]:
        picture = await self._picture(await self._begin(timeout_ms))
        return sorted(name for name, topic in picture.topics.items() if not topic.deleting)

    async def describe_topics(
        self, names: Iterable[str] | None = None, *, timeout_ms: int | None = None
    ) -> list[TopicDescription]:
        """These topics, all when none is named; UnknownTopic when one is not there."""
        picture = await self._picture(await self._begin(timeout_ms))
        wanted = sorted(picture.topics) if names is None else list(names)
        missing = [name for name in wanted if name not in picture.topics]
        if missing:
            raise self._metadata.unknown_topic(*missing)
        return [describe_topic(name, picture.topics[name]) for name in wanted]

    async def describe_topic(self, name: str, *, timeout_ms: int | None = None) -> TopicDescription:
        return (await self.describe_topics([name], timeout_ms=timeout_ms))[0]

    # The cluster.

    async def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        return describe_cluster(await self._picture(await self._begin(timeout_ms)))

    async def explain(
        self, topic: str, partition: int, *, timeout_ms: int | None = None
    ) -> list[LeaderChange]:
        """The recorded leader changes of a partition, newest first."""
        call = await self._begin(timeout_ms)
        request = controller_pb2.ExplainRequest(
            partition=to_partition(TopicPartition(topic, partition))
        )
        response = await self._ask_controller(methods.CONTROLLER_EXPLAIN, request, call)
        return [from_change(each) for each in response.changes]

    async def explain_settings(
        self, topic: str, *, timeout_ms: int | None = None
    ) -> list[SettingsChange]:
        """The recorded changes of a topic's settings, newest first."""
        call = await self._begin(timeout_ms)
        request = controller_pb2.ExplainRequest(partition=to_partition(TopicPartition(topic, 0)))
        response = await self._ask_controller(methods.CONTROLLER_EXPLAIN, request, call)
        return [from_settings_change(each) for each in response.settings]

    async def fence_broker(
        self,
        broker_id: int,
        *,
        broker_epoch: int = 0,
        instance: str = "",
        reason: str,
        timeout_ms: int | None = None,
    ) -> None:
        """Tell the controller that a broker is gone for sure: the life of it that is named.

        StaleBroker when it has another epoch, or runs in another instance, by now.
        """
        call = await self._begin(timeout_ms)
        request = controller_pb2.FenceBrokerRequest(
            broker_id=broker_id, broker_epoch=broker_epoch, reason=reason, instance=instance
        )
        await self._ask_controller(methods.CONTROLLER_FENCE_BROKER, request, call)

    # Offsets.

    async def list_offsets(
        self,
        topic: str,
        position: OffsetSpec = LATEST,
        *,
        partitions: Iterable[int] | None = None,
        timeout_ms: int | None = None,
    ) -> dict[int, FoundOffset]:
        """Offsets of partitions of a topic, of all when none is named, from their leaders."""
        kind, time_ms = _position(position)
        call = await self._begin(timeout_ms)
        picture = await self._picture(call)
        known = picture.topics.get(topic)
        if known is None:
            raise self._metadata.unknown_topic(topic)
        numbers = range(len(known.partitions)) if partitions is None else sorted(set(partitions))
        wrong = [each for each in numbers if not 0 <= each < len(known.partitions)]
        if wrong:
            raise InvalidRequest(
                f"{topic} has partitions 0 to {len(known.partitions) - 1}, not {wrong}"
            )
        queries = {
            TopicPartition(topic, each): broker_pb2.OffsetQuery(
                partition=to_partition(TopicPartition(topic, each)),
                position=kind,
                timestamp_ms=time_ms,
            )
            for each in numbers
        }
        found: dict[int, FoundOffset] = {}
        await self._until_deadline(
            call, f"offsets of {topic}", lambda: self._look_up(call, queries, found)
        )
        return dict(sorted(found.items()))

    async def _look_up(
        self,
        call: Call,
        queries: dict[TopicPartition, broker_pb2.OffsetQuery],
        found: dict[int, FoundOffset],
    ) -> None:
        """Ask the leaders once; what is answered leaves `queries`. Raises what is left to say."""
        by_leader: dict[int, list[broker_pb2.OffsetQuery]] = {}
        problem: TailraceError | None = None
        for partition, query in queries.items():
            if partition.topic not in self._metadata.picture.topics:
                raise UnknownTopic(f"there is no topic {partition.topic!r} any more")
            leader, _ = self._metadata.leader_of(partition)
            if leader in self._metadata.picture.brokers:
                by_leader.setdefault(leader, []).append(query)
            else:
                problem = Unreachable(f"{partition} has no leader: it is offline")
        asking = [self._ask_leader(leader, asked, call) for leader, asked in by_leader.items()]
        # All at once: who follows a topic asks again and again, and would wait for one by one.
        for response in await asyncio.gather(*asking):
            if isinstance(response, TailraceError):
                problem = response
                continue
            for each in response.offsets:
                error_found = error_of(each.error, each.message)
                if isinstance(error_found, UnknownTopic):
                    # We know it: this broker has yet to hear that it leads a part of it.
                    error_found = NotLeader(str(error_found))
                if error_found is not None:
                    problem = error_found
                    continue
                partition = from_partition(each.partition)
                queries.pop(partition, None)
                found[partition.partition] = FoundOffset(
                    each.offset, each.timestamp_ms, each.leader_epoch
                )
        if problem is not None:
            raise problem

    async def _ask_leader(
        self, leader: int, asked: list[broker_pb2.OffsetQuery], call: Call
    ) -> broker_pb2.ListOffsetsResponse | TailraceError:
        address = self._metadata.picture.brokers[leader]
        request = broker_pb2.ListOffsetsRequest(queries=asked)
        try:
            return await self._call(address, methods.BROKER_LIST_OFFSETS, request, call)
        except TailraceError as error:
            return error

    # Groups.

    @property
    def _groups(self) -> GroupAdmin:
        from tailrace.client.group_admin import GroupAdmin  # noqa: PLC0415 - most never ask.

        return GroupAdmin(
            self._metadata,
            network=self._network,
            clock=self._clock,
            rng=self._rng,
            look_up=lambda topic, position, numbers: self.list_offsets(
                topic, position, partitions=numbers
            ),
        )

    async def list_groups(
        self, states: Sequence[str] = (), *, timeout_ms: int | None = None
    ) -> list[GroupListing]:
        """The groups of all coordinators, only those in one of these states if any is named."""
        call = await self._begin(timeout_ms)
        await self._picture(call)
        return await self._groups.list_all(states, timeout_ms=call.left_ms())

    async def describe_group(
        self, group: str, *, timeout_ms: int | None = None
    ) -> GroupDescription:
        """Members, positions and lag, in records and in time; GroupNotFound."""
        call = await self._begin(timeout_ms)
        await self._picture(call)
        return await self._groups.describe(group, timeout_ms=call.left_ms())

    async def delete_groups(
        self, groups: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, TailraceError | None]:
        """Forget groups without members, with their positions; says of each why it is there yet."""
        call = await self._begin(timeout_ms)
        await self._picture(call)
        return await self._groups.delete(groups, timeout_ms=call.left_ms())

    async def delete_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, timeout_ms: int | None = None
    ) -> None:
        """Forget positions of a group without members."""
        call = await self._begin(timeout_ms)
        await self._picture(call)
        await self._groups.delete_positions(group, partitions, timeout_ms=call.left_ms())

    async def reset_offsets(
        self,
        group: str,
        to: ResetTo,
        value: int = 0,
        *,
        topics: Mapping[str, Sequence[int] | None] | None = None,
        dry_run: bool = True,
        timeout_ms: int | None = None,
    ) -> list[PositionReset]:
        """Move positions of a group without members; with `dry_run` only say what would change.

        `value`: the time in ms, the offset, or by how much to shift. `topics`: partitions by topic,
        None for all of a topic; without, all partitions in which the group has a position.
        """
        call = await self._begin(timeout_ms)
        await self._picture(call)
        return await self._groups.reset(
            group, to, value, topics=topics, dry_run=dry_run, timeout_ms=call.left_ms()
        )


def _is_ready(picture: ClusterPicture, name: str, topic_id: str) -> bool:
    topic = picture.topics.get(name)
    return (
        topic is not None
        and topic.topic_id == topic_id
        and all(each.leader >= 0 for each in topic.partitions)
    )


def _position(position: OffsetSpec) -> tuple[broker_pb2.OffsetPosition.ValueType, int]:
    if position == EARLIEST:
        return broker_pb2.OFFSET_POSITION_EARLIEST, 0
    if position == LATEST:
        return broker_pb2.OFFSET_POSITION_LATEST, 0
    if isinstance(position, str):
        raise InvalidRequest(f"{position!r} is neither 'earliest' nor 'latest' nor a time in ms")
    return broker_pb2.OFFSET_POSITION_TIME, position
