"""The consumer: what a program calls, on top of fetch streams and a membership in a group.

What is read and how far is in `fetch_plan`, the streams in `fetcher`, how it is handed out in
`taker`, the group in `membership` and `group_member`, commits in `commits`. Here they are joined.
What changes what the program reads happens in its own calls: a rebalance waits for `poll`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from random import Random
from typing import Any, Final, TypedDict, TypeVar

import pyarrow as pa

from tailrace.client.admin import AdminCore, FoundOffset, OffsetSpec
from tailrace.client.arguments import check_offset, partitions_given, record_limit, topic_names
from tailrace.client.commits import CommitCallback, Commits, Offsets, OffsetsGiven, offsets_of
from tailrace.client.consumer_settings import NONE, ConsumerSettings
from tailrace.client.fetch_plan import EARLIEST, LATEST, Reading
from tailrace.client.fetcher import Fetcher, FetchSettings
from tailrace.client.group_member import GroupMember, OffsetAndMetadata
from tailrace.client.lifetime import Lifetime
from tailrace.client.listening import Interceptor, Interceptors, RebalanceListener
from tailrace.client.membership import Handover
from tailrace.client.metadata import MetadataWatcher
from tailrace.client.records import ConsumerRecord
from tailrace.client.resting import REST
from tailrace.client.serializers import Deserializer
from tailrace.client.starting import StartingPositions
from tailrace.client.taker import Taker
from tailrace.client.traces import TracedFetcher
from tailrace.client.unreadable import SKIP, log_skipped
from tailrace.clock import Clock
from tailrace.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    RequestTimedOut,
    TailraceError,
    UnreadableBatch,
    WokenUp,
)
from tailrace.model import NO_LEADER_EPOCH, TopicPartition
from tailrace.runtime import Tasks
from tailrace.tracing import Tracer
from tailrace.transport.rpc import Network

CLOSE_TIMEOUT_MS: Final = 30_000
GIVE_UP_COMMIT_TIMEOUT_MS: Final = 5_000

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)


class _Ports(TypedDict):
    network: Network
    clock: Clock
    rng: Random


class ConsumerCore:
    """A consumer on given ports. `tailrace.aio.Consumer` makes one on the real ones."""

    def __init__(
        self,
        bootstrap: Sequence[str],
        settings: ConsumerSettings,
        *,
        network: Network,
        clock: Clock,
        rng: Random,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        interceptors: Sequence[Interceptor] = (),
        tracer: Tracer | None = None,
    ) -> None:
        make_fetcher = Fetcher if tracer is None else partial(TracedFetcher, tracer)
        self._settings = settings
        self._clock = clock
        self._interceptors = Interceptors(interceptors)
        self.counts = self._interceptors.counts
        self._lifetime = Lifetime("consumer")
        self._tasks = Tasks(self._task_failed)
        self._news = asyncio.Event()
        ports: _Ports = {"network": network, "clock": clock, "rng": rng}
        self._metadata = MetadataWatcher(network, bootstrap, rng, on_change=self._changed)
        self._fetcher = make_fetcher(
            self._metadata,
            _fetch_settings(settings),
            **ports,
            on_news=self._news.set,
            on_failure=self._task_failed,
        )
        self._plan = self._fetcher.plan
        self.taker = Taker(
            self._plan,
            key=key_deserializer,
            value=value_deserializer,
            rest=REST,
            on_taken=self._interceptors.consumed,
            on_problem=self._deal_with,
            on_skipped=self._skipped if settings.on_corrupt == SKIP else None,
        )
        self._admin = AdminCore(
            bootstrap, **ports, request_timeout_ms=settings.default_api_timeout_ms
        )
        self._member = (
            GroupMember(
                settings,
                self._metadata,
                **ports,
                on_attention=self._needs_attention,
                on_failure=self._task_failed,
            )
            if settings.group_id
            else None
        )
        self._commits = Commits(
            self._member.commit if self._member is not None else _without_group,
            self._tasks,
            timeout_ms=settings.default_api_timeout_ms,
            on_commit=self._interceptors.committed,
        )
        self._listener: RebalanceListener | None = None
        self._subscribed: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        # Topics of which all partitions are read, without a group.
        self._whole: frozenset[str] = frozenset()
        self._auto_commit_ms = 0
        policy, found = settings.auto_offset_reset, self._positions_found
        self._starting = StartingPositions(self._plan, self._member, policy, on_found=found)
        self._is_started = self._is_polling = self._is_woken = self._attention = False
        self._is_closing = False

    # Beginning and end.

    async def start(self) -> None:
        self._lifetime.check()
        if self._is_started:
            return
        self._is_started = True
        self._auto_commit_ms = self._clock.monotonic_ms() + self._settings.auto_commit_interval_ms
        self._tasks.spawn("consumer metadata", self._metadata.run())
        self._tasks.spawn("consumer fetch", self._fetcher.run())
        self._tasks.spawn("consumer positions", self._starting.run())

    async def close(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Commit what was handed out (with auto commit), leave the group at once, and end."""
        if self._lifetime.is_closed or not self._lifetime.is_here:
            self._lifetime.end()
            return
        if self._is_closing:
            # A callback that is told of the end ends it once more.
            return
        self._is_closing = True
        try:
            if self._is_started and self._lifetime.error is None:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._give_up_all()
        except TimeoutError:
            _LOG.warning("the consumer was closed before it had committed all")
        finally:
            self._lifetime.end()
            self._news.set()
            if self._member is not None:
                await self._member.close("the consumer is closed")
            await self._tasks.close()
            await self._admin.close()

    async def _give_up_all(self) -> None:
        """Before the end of a membership: commit, and tell the program."""
        await self._commits.drain()
        if self._settings.is_auto_commit:
            await self._commit_quietly()
        if self._is_subscribed and self._plan.readings:
            await self._tell("on_revoked", self._plan.readings)

    @property
    def max_poll_records(self) -> int:
        return self._settings.max_poll_records

    @property
    def is_over(self) -> bool:
        """Whether it was closed, has failed, or belongs to another process."""
        return self._lifetime.is_over

    async def _begin(self) -> None:
        if self._lifetime.is_over:
            self._lifetime.check()
        if not self._is_started:
            await self.start()

    # What is read.

    async def subscribe(
        self,
        topics: str | Iterable[str] | re.Pattern[str],
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read these topics, or all whose names match, together with the rest of the group."""
        await self._begin()
        if self._member is None:
            raise InvalidRequest("subscribe needs a group: give group_id, or use assign")
        if self._plan.readings and not self._is_subscribed:
            raise InvalidRequest("partitions are assigned by hand: unsubscribe first")
        if isinstance(topics, re.Pattern):
            self._pattern, self._subscribed = topics, frozenset()
        else:
            names = frozenset(topic_names(topics))
            if not names:
                raise InvalidRequest("subscribe to at least one topic, or unsubscribe")
            self._pattern, self._subscribed = None, names
        self._listener = listener
        self._member.polled()
        self._member.start()
        self._follow_topics()

    async def unsubscribe(self) -> None:
        """Read nothing any more, and leave the group."""
        await self._begin()
        if self._is_subscribed and self._member is not None:
            await self._give_up_all()
            await self._member.leave("unsubscribed")
        self._pattern, self._subscribed, self._listener = None, frozenset(), None
        self._whole = frozenset()
        self._remove(list(self._plan.readings))

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, whoever else does; positions that are known stay."""
        await self._begin()
        if self._is_subscribed:
            raise InvalidRequest("topics are subscribed to: unsubscribe first")
        wanted = dict.fromkeys(partitions_given(partitions))
        self._whole = frozenset()
        self._remove([each for each in self._plan.readings if each not in wanted])
        self._add([each for each in wanted if each not in self._plan.readings])

    async def assign_topics(self, topics: Iterable[str]) -> None:
        """Read all partitions of these topics, also those that come later; UnknownTopic."""
        await self._begin()
        counts = {name: await self.partitions_of(name) for name in topics}
        await self.assign(
            TopicPartition(name, number) for name in counts for number in range(counts[name])
        )
        self._whole = frozenset(counts)

    async def partitions_of(self, topic: str, *, timeout_ms: int | None = None) -> int:
        """How many partitions a topic has; UnknownTopic, Unreachable."""
        await self._begin()
        most = self._settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        found = await self._metadata.topic(
            topic,
            timeout_ms=most,
            unknown_ms=self._settings.unknown_topic_wait_ms,
        )
        return len(found.partitions)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read."""
        return set(self._plan.readings)

    def subscription(self) -> set[str]:
        """The topics that are subscribed to; of a pattern, those that it has found."""
        return set(self._matching())

    @property
    def _is_subscribed(self) -> bool:
        return self._pattern is not None or bool(self._subscribed)

    def _matching(self) -> frozenset[str]:
        pattern = self._pattern
        if pattern is None:
            return self._subscribed
        topics = self._metadata.picture.topics
        return frozenset(
            name for name in topics if pattern.fullmatch(name) and not topics[name].deleting
        )

    def _follow_topics(self) -> None:
        """Topics come and go, and get more partitions."""
        picture = self._metadata.picture
        for name in self._whole & picture.topics.keys():
            for number in range(len(picture.topics[name].partitions)):
                if (partition := TopicPartition(name, number)) not in self._plan.readings:
                    self._plan.seek(self._plan.add(partition), EARLIEST)
                    self._fetcher.poke()
        if self._member is None or not self._is_subscribed or picture.revision < 0:
            return
        self._member.partitions_changed(
            {
                name: len(topic.partitions)
                for name, topic in picture.topics.items()
                if not topic.deleting
            }
        )
        self._member.subscribe(self._matching(), "other topics are subscribed to")

    def _add(self, partitions: Iterable[TopicPartition]) -> None:
        self._starting.add(partitions)
        self._fetcher.poke()

    def _remove(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._plan.remove(partition)
            self.taker.forget(partition)
        self._fetcher.poke()

    # Reading.

    async def poll(
        self, *, timeout_ms: int | None = 1_000, max_records: int | None = None
    ) -> list[ConsumerRecord]:
        """Records that have arrived, `max_poll_records` at most; none when the time is over.

        Raises WokenUp after `wakeup`, and what a partition cannot go on from by itself.
        """
        limit = record_limit(max_records, self.max_poll_records)
        found: list[ConsumerRecord] | None = await self._poll(
            lambda: self.taker.rows(limit), timeout_ms
        )
        return found or []

    async def next_batch(
        self, *, timeout_ms: int | None = 1_000, headers: bool = False
    ) -> pa.RecordBatch | None:
        """The next stored batch as columns, None when the time is over; raises as `poll` does."""
        found: pa.RecordBatch | None = await self._poll(
            lambda: self.taker.table(headers=headers), timeout_ms
        )
        return found

    def take_at_once(self, take: Callable[[], T | None]) -> T | None:
        """What a poll would give at once, None when it would have anything else to do.

        The one method that may be called in another thread than the loop's, with a `take` that
        takes nothing but what has arrived.
        """
        now_ms = self._clock.monotonic_ms()
        if (
            self._attention
            or self._is_woken
            or self._lifetime.is_over
            or not self.taker.is_simple
            or not (self._member is None or self._member.is_calm)
            or now_ms >= self._auto_commit_ms
        ):
            return None
        found = take()
        if found is not None:
            self.counts["polls"] += 1
            if self._member is not None:
                self._member.machine.touch(now_ms)
        return found

    def credit_due(self) -> list[int]:
        """Brokers that could be given credit after something was taken."""
        return self._fetcher.credit_due()

    def give_credit(self) -> None:
        for broker in self._fetcher.credit_due():
            self._fetcher.give_credit(broker)

    async def _poll(self, take: Callable[[], Any], timeout_ms: int | None) -> Any:
        await self._begin()
        if self._is_polling:
            raise InvalidRequest("two tasks poll one consumer at the same time")
        if not (self._plan.readings or self._is_subscribed):
            raise InvalidRequest("there is nothing to poll: subscribe to topics or assign them")
        self._is_polling = True
        self.counts["polls"] += 1
        self._commit_if_due()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000) as limit:
                while True:
                    await self._attend(limit)
                    found = take()
                    self.give_credit()
                    if found is not None:
                        return found
                    self._raise_problems()
                    self._news.clear()
                    with self._member.waiting() if self._member is not None else nullcontext():
                        await self._news.wait()
        except TimeoutError:
            return None
        except TailraceError:
            # A program that polls again at once must not keep other partitions from going on.
            self.give_credit()
            await asyncio.sleep(0)
            raise
        finally:
            self._is_polling = False

    async def _attend(self, limit: asyncio.Timeout) -> None:
        """What comes before the next records: wake-ups, and what the group wants."""
        self._lifetime.check()
        if self._is_woken:
            self._is_woken = False
            raise WokenUp("wakeup was called")
        member = self._member
        self._attention = False
        if member is None or not self._is_subscribed:
            return
        member.polled()
        while (handover := member.machine.handover) is not None:
            # Callbacks take the time that they take.
            due = limit.when()
            limit.reschedule(None)
            await self._hand_over(member, handover)
            limit.reschedule(due)
            # The callbacks may have closed it.
            self._lifetime.check()
        if member.machine.error is not None:
            raise member.machine.error

    def _raise_problems(self) -> None:
        """Nothing comes: a partition that cannot go on may be why."""
        for reading in self._plan.readings.values():
            if reading.problem is not None and not reading.is_paused:
                raise reading.problem.with_traceback(None)

    def _deal_with(self, reading: Reading, problem: TailraceError) -> bool:
        """Whether a problem can be dealt with as the settings say."""
        if isinstance(problem, UnreadableBatch) and self._settings.on_corrupt == SKIP:
            self._skipped(problem)
            self._plan.seek(reading, problem.last_offset + 1)
            self._fetcher.poke()
            return True
        policy = self._settings.auto_offset_reset
        if not isinstance(problem, OffsetOutOfRange) or policy == NONE:
            return False
        _LOG.warning("%s: %s; going on at the %s", reading.partition, problem, policy)
        self.counts["resets"] += 1
        self._plan.seek(reading, policy)
        self._fetcher.poke()
        return True

    def _skipped(self, error: UnreadableBatch) -> None:
        """Count and log a batch that was passed over."""
        self.counts["skipped_batches"] += 1
        log_skipped(error)

    def wakeup(self) -> None:
        """Have the poll under way, or the next one, raise WokenUp."""
        self._is_woken = True
        self._news.set()

    # The group.

    async def _hand_over(self, member: GroupMember, handover: Handover) -> None:
        lost = [each for each in handover.lost if each in self._plan.readings]
        if lost:
            self._commits.drop(lost)
            self._remove(lost)
            await self._tell("on_lost", lost)
        if handover.revoked:
            await self._commits.drain()
            if self._settings.is_auto_commit:
                await self._commit_quietly()
            await self._tell("on_revoked", handover.revoked)
            self._remove(handover.revoked)
        if member.machine.handover is not handover:
            # The group went on meanwhile: it decides anew what there is to hand over.
            return
        self._add(handover.added)
        member.handed_over()
        if handover.added:
            await self._tell("on_assigned", handover.added)

    async def _tell(self, what: str, partitions: Iterable[TopicPartition]) -> None:
        if self._listener is not None:
            await getattr(self._listener, what)(sorted(partitions))

    def _positions_found(self) -> None:
        self._fetcher.poke()
        self._news.set()

    def _needs_attention(self) -> None:
        self._attention = True
        self._news.set()

    # Positions.

    async def seek(
        self, partition: TopicPartition, offset: int, *, last_epoch: int = NO_LEADER_EPOCH
    ) -> None:
        """Go on from another offset."""
        check_offset(offset)
        self._seek([partition], offset, last_epoch)

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go on from the first offset of these partitions, of all when none is named."""
        self._seek(partitions, EARLIEST)

    async def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go on from the end of these partitions, of all when none is named."""
        self._seek(partitions, LATEST)

    def _seek(
        self,
        partitions: Iterable[TopicPartition],
        wanted: int | str,
        last_epoch: int = NO_LEADER_EPOCH,
    ) -> None:
        self._lifetime.check()
        for reading in self._readings(partitions):
            self.taker.forget(reading.partition)
            self._plan.seek(reading, wanted, last_epoch=last_epoch)
        self._fetcher.poke()

    def stuck(self) -> list[TopicPartition]:
        """Partitions that cannot go on from where they are."""
        return [each.partition for each in self._plan.readings.values() if each.problem is not None]

    def _readings(self, partitions: Iterable[TopicPartition]) -> list[Reading]:
        wanted = partitions_given(partitions) or list(self._plan.readings)
        missing = [str(each) for each in wanted if each not in self._plan.readings]
        if missing:
            raise InvalidRequest(f"{', '.join(missing)} is not assigned to this consumer")
        return [self._plan.readings[each] for each in wanted]

    async def position(self, partition: TopicPartition, *, timeout_ms: int | None = None) -> int:
        """The offset of the next record that is handed out; waits until it is known."""
        await self._begin()
        self._readings([partition])
        limit_ms = self._settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                while (found := self.taker.positions().get(partition)) is None:
                    reading = self._readings([partition])[0]
                    if reading.problem is not None:
                        raise reading.problem
                    await asyncio.sleep(0.005)
        except TimeoutError:
            trouble = self._plan.readings[partition].trouble
            raise RequestTimedOut(
                f"the position of {partition} was not known within {limit_ms} ms: {trouble}"
            ) from None
        return found[0]

    async def pause(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Hand out nothing of these partitions until `resume`; all when none is named."""
        for reading in self._readings(partitions):
            self._plan.pause(reading)
        self._fetcher.poke()

    async def resume(self, partitions: Iterable[TopicPartition] = ()) -> None:
        for reading in self._readings(partitions):
            self._plan.resume(reading)
        self._fetcher.poke()
        self._news.set()

    def paused(self) -> set[TopicPartition]:
        return {each for each, reading in self._plan.readings.items() if reading.is_paused}

    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets lie between the position and the end, where both are known."""
        positions = self.taker.positions()
        return {
            partition: max(reading.high_watermark - positions[partition][0], 0)
            for partition, reading in self._plan.readings.items()
            if partition in positions and reading.high_watermark >= 0
        }

    def cluster_trouble(self) -> str:
        """Why no broker has told anything yet, for people; empty when one has."""
        return self._metadata.problem if self._metadata.picture.revision < 0 else ""

    def trouble(self) -> dict[TopicPartition, str]:
        """Why nothing comes of a partition, for people; those without trouble are left out."""
        return {
            partition: reading.trouble
            for partition, reading in self._plan.readings.items()
            if reading.trouble
        }

    def metrics(self) -> dict[str, int]:
        """What was polled, handed out and committed so far."""
        return {
            **self.counts,
            "commit_failures": self._commits.failures,
            "rebalances": self._member.machine.rebalances if self._member is not None else 0,
            "lag": sum(self.lag().values()),
        }

    @property
    def group_trouble(self) -> str:
        """Why the group does not go on, for people; empty while all is well."""
        problem = self._member.problem if self._member is not None else None
        return str(problem or "")

    async def offsets_for(
        self, wanted: Mapping[TopicPartition, OffsetSpec], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, FoundOffset]:
        """Offsets of partitions: "earliest", "latest", or the first record at or after a time.

        The offset is -1 where no record is that late.
        """
        await self._begin()
        groups: dict[tuple[str, OffsetSpec], list[int]] = {}
        for partition, spec in wanted.items():
            groups.setdefault((partition.topic, spec), []).append(partition.partition)
        found: dict[TopicPartition, FoundOffset] = {}
        for (topic, spec), numbers in groups.items():
            offsets = await self._admin.list_offsets(
                topic, spec, partitions=numbers, timeout_ms=timeout_ms
            )
            found |= {TopicPartition(topic, number): each for number, each in offsets.items()}
        return found

    # Commits.

    async def commit(
        self, offsets: OffsetsGiven | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Commit these positions, or those of all that was handed out, and wait for it."""
        await self._begin()
        self._require_group()
        await self._commits.now(self._checked(offsets), timeout_ms=timeout_ms)

    def commit_later(
        self, offsets: OffsetsGiven | None = None, callback: CommitCallback | None = None
    ) -> None:
        """Commit without waiting. Commits go one after the other, the newest position last."""
        self._lifetime.check()
        self._require_group()
        self._commits.later(self._checked(offsets), callback)

    async def committed(
        self, partitions: Iterable[TopicPartition] = (), *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed positions of these partitions (of the assigned ones when none is named)."""
        await self._begin()
        member = self._require_group()
        wanted = list(partitions) or list(self._plan.readings)
        limit_ms = self._settings.default_api_timeout_ms if timeout_ms is None else timeout_ms
        return await member.committed(wanted, timeout_ms=limit_ms) if wanted else {}

    def _require_group(self) -> GroupMember:
        if self._member is None:
            raise InvalidRequest("positions are committed in the name of a group: give group_id")
        return self._member

    def _checked(self, offsets: OffsetsGiven | None) -> Offsets:
        if offsets is None:
            return self._positions()
        known = self._plan.readings
        return {
            partition: each
            if each.topic_id or partition not in known
            else each._replace(topic_id=known[partition].topic_id)
            for partition, each in offsets_of(offsets).items()
        }

    def _positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            partition: OffsetAndMetadata(
                offset, epoch, topic_id=self._plan.readings[partition].topic_id
            )
            for partition, (offset, epoch) in self.taker.positions().items()
        }

    def _positions_to_keep(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Without those of topics that were deleted: the coordinator would be asked in vain."""
        topics = self._metadata.picture.topics
        return {
            partition: each
            for partition, each in self._positions().items()
            if (topic := topics.get(partition.topic)) is not None
            and not topic.deleting
            and each.topic_id in {"", topic.topic_id}
        }

    def _commit_if_due(self) -> None:
        """What was handed out before this poll is done with."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._auto_commit_ms:
            return
        self._auto_commit_ms = now_ms + self._settings.auto_commit_interval_ms
        if self._settings.is_auto_commit and self._plan.readings:
            self._commits.later(self._positions_to_keep())

    async def _commit_quietly(self) -> None:
        try:
            await self._commits.now(self._positions_to_keep(), timeout_ms=GIVE_UP_COMMIT_TIMEOUT_MS)
        except TailraceError as error:
            _LOG.warning("positions were not committed before partitions were given up: %s", error)

    # What happens around it.

    def _changed(self) -> None:
        self._fetcher.metadata_changed()
        self._follow_topics()

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._lifetime.fail(error if isinstance(error, TailraceError) else f"{name}: {error!r}")
        self._needs_attention()


def _fetch_settings(settings: ConsumerSettings) -> FetchSettings:
    return FetchSettings(
        bytes_max=settings.fetch_max_bytes,
        partition_bytes=min(settings.max_partition_fetch_bytes, settings.fetch_max_bytes),
        min_bytes=settings.fetch_min_bytes,
        max_wait_ms=settings.fetch_max_wait_ms,
        topic_timeout_ms=min(settings.default_api_timeout_ms, settings.unknown_topic_wait_ms),
        client_id=settings.client_id,
    )


async def _without_group(offsets: Offsets, *, timeout_ms: int) -> None:
    raise InvalidRequest("positions are committed in the name of a group: give group_id")
