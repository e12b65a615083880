"""Administration: topics, the health of their partitions, the cluster, why a leader changed.

What is only asked for comes from the metadata that brokers push; what changes something goes to the
active controller, found through the same metadata and tried again until the deadline. Errors say
what is down: no broker, no controller, or the metadata store behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Final, NamedTuple, TypeAlias, TypeVar

from tailrace.client.describing import (
    ClusterDescription,
    TopicDescription,
    describe_cluster,
    describe_topic,
)
from tailrace.client.lifetime import Lifetime
from tailrace.client.metadata import ClusterPicture, MetadataWatcher, topic_picture
from tailrace.clock import Clock
from tailrace.errors import (
    InvalidRequest,
    NotController,
    NotLeader,
    RequestTimedOut,
    ShuttingDown,
    StoreUnavailable,
    TailraceError,
    TopicExists,
    UnknownTopic,
    Unreachable,
)
from tailrace.meta.keys import LeaderChange
from tailrace.model import TopicPartition
from tailrace.runtime import Tasks
from tailrace.transport import methods
from tailrace.transport.rpc import Method, Network
from tailrace.transport.wire import error_of, from_change, from_partition, raise_for, to_partition
from tailrace.v1 import broker_pb2, controller_pb2

Q = TypeVar("Q")
T = TypeVar("T")
_R = TypeVar(
    "_R",
    controller_pb2.CreateTopicResponse,
    controller_pb2.DeleteTopicResponse,
    controller_pb2.ExplainResponse,
    controller_pb2.FenceBrokerResponse,
)

REQUEST_TIMEOUT_MS: Final = 30_000
# One attempt may take this long; the controller itself gives up earlier and says why.
ATTEMPT_TIMEOUT_MS: Final = 10_000
RETRY_MIN_MS: Final = 50
RETRY_MAX_MS: Final = 1_000

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

_WORTH_ANOTHER_TRY: Final = (
    NotController,
    NotLeader,
    RequestTimedOut,
    ShuttingDown,
    StoreUnavailable,
    Unreachable,
)

OffsetSpec: TypeAlias = int | str
"""`EARLIEST`, `LATEST`, or a time in ms since 1970: the first record at or after it."""


class FoundOffset(NamedTuple):
    """The answer of `list_offsets` for one partition; offset -1: no record is that late."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


class AdminCore:
    """An administrator's client on given ports. `tailrace.aio.Admin` makes one on the real ones."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        *,
        network: Network,
        clock: Clock,
        rng: Random,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        self._network = network
        self._clock = clock
        self._rng = rng
        self._timeout_ms = request_timeout_ms
        self._metadata = MetadataWatcher(network, bootstrap, rng)
        self._tasks = Tasks(self._task_failed)
        self._lifetime = Lifetime("admin client")
        self._started = False

    async def start(self) -> None:
        """Begin to follow the cluster; every other call does it when it has to."""
        self._lifetime.check()
        if not self._started:
            self._started = True
            self._tasks.spawn("admin metadata", self._metadata.run())

    async def close(self) -> None:
        if self._lifetime.end():
            await self._tasks.close()

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
        made = describe_topic(name, topic_picture(response.topic))
        if not validate_only:
            with suppress(TimeoutError):
                await self._metadata.wait_for(
                    lambda seen: _is_ready(seen, name, made.topic_id), timeout_ms=call.left_ms()
                )
                return describe_topic(name, self._metadata.picture.topics[name])
        return made

    async def delete_topic(
        self, name: str, *, topic_id: str = "", timeout_ms: int | None = None
    ) -> None:
        """Delete a topic, with `topic_id` only the one that is meant; its data goes later."""
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
            raise UnknownTopic(f"there is no topic {', '.join(map(repr, missing))}")
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
            raise UnknownTopic(f"there is no topic {topic!r}")
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
        call: _Call,
        queries: dict[TopicPartition, broker_pb2.OffsetQuery],
        found: dict[int, FoundOffset],
    ) -> None:
        """Ask the leaders once; what is answered leaves `queries`. Raises what is left to say."""
        by_leader: dict[int, list[broker_pb2.OffsetQuery]] = {}
        problem: TailraceError | None = None
        for partition, query in queries.items():
            leader, _ = self._metadata.leader_of(partition)
            if leader in self._metadata.picture.brokers:
                by_leader.setdefault(leader, []).append(query)
            else:
                problem = Unreachable(f"{partition} has no leader: it is offline")
        for leader, asked in by_leader.items():
            try:
                response = await self._call(
                    self._metadata.picture.brokers[leader],
                    methods.BROKER_LIST_OFFSETS,
                    broker_pb2.ListOffsetsRequest(queries=asked),
                    call,
                )
            except TailraceError as error:
                problem = error
                continue
            for each in response.offsets:
                error_found = error_of(each.error, each.message)
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

    # Asking.

    async def _begin(self, timeout_ms: int | None) -> _Call:
        self._lifetime.check()
        await self.start()
        return _Call(self._clock, self._timeout_ms if timeout_ms is None else timeout_ms)

    async def _picture(self, call: _Call) -> ClusterPicture:
        try:
            return await self._metadata.wait_for(
                lambda seen: seen.revision >= 0, timeout_ms=call.left_ms()
            )
        except TimeoutError:
            raise self._metadata.nobody_answers(call.timeout_ms) from None

    async def _ask_controller(self, method: Method[Q, _R], request: Q, call: _Call) -> _R:
        async def ask() -> _R:
            response = await self._call(await self._controller(call), method, request, call)
            raise_for(response.error, response.message)
            return response

        return await self._until_deadline(call, "the controller", ask)

    async def _controller(self, call: _Call) -> str:
        await self._picture(call)
        try:
            picture = await self._metadata.wait_for(
                lambda seen: bool(seen.controller), timeout_ms=call.left_ms()
            )
        except TimeoutError:
            raise Unreachable(
                f"brokers answer ({', '.join(self._metadata.picture.brokers.values())}), but they "
                f"know of no active controller: are controllers and etcd up?"
            ) from None
        return picture.controller

    async def _call(self, address: str, method: Method[Q, T], request: Q, call: _Call) -> T:
        channel = self._network.channel(address)
        try:
            return await channel.call(
                method, request, timeout_ms=max(min(call.left_ms(), ATTEMPT_TIMEOUT_MS), 1)
            )
        except (Unreachable, RequestTimedOut):
            call.in_doubt = True
            raise
        finally:
            await channel.close()

    async def _until_deadline(
        self, call: _Call, what: str, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        """Try until it works, the error is one that stays, or the time is over."""
        pause_ms = RETRY_MIN_MS
        told: TailraceError | None = None
        while True:
            try:
                return await attempt()
            except _WORTH_ANOTHER_TRY as error:
                if isinstance(error, StoreUnavailable | RequestTimedOut):
                    call.in_doubt = True
                # Our own deadline may cut the last attempt short: an earlier answer says more.
                if told is None or not isinstance(error, RequestTimedOut):
                    told = error
                wait_ms = int(pause_ms * self._rng.uniform(0.5, 1.0))
                if wait_ms >= call.left_ms():
                    raise type(told)(
                        f"{what}: not done within {call.timeout_ms} ms: {told}"
                    ) from error
                self._metadata.refresh()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._metadata.changed()
            pause_ms = min(pause_ms * 2, RETRY_MAX_MS)

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._lifetime.fail(f"{name}: {error!r}")


class _Call:
    """One call of the program: how long it may still take, and whether an attempt got lost."""

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self._clock = clock
        self._deadline_ms = clock.monotonic_ms() + timeout_ms
        self.timeout_ms = timeout_ms
        self.in_doubt = False

    def left_ms(self) -> int:
        return max(self._deadline_ms - self._clock.monotonic_ms(), 0)


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
