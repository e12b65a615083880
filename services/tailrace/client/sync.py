"""What programs without asyncio import (as `tailrace`): Producer and Admin that block.

Both stand on the asyncio ones, in the loop of `background`. Any number of threads may use one
client. Records go through a short queue into the loop, in the order in which they were sent; while
the producer's buffer is full that queue fills up too, and `send` waits.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any, Final, Unpack
from weakref import WeakSet

from tailrace.client import asynchronous
from tailrace.client.accumulator import RECORD_OVERHEAD_BYTES, record_size
from tailrace.client.admin import LATEST, FoundOffset, OffsetSpec
from tailrace.client.arguments import Headers, check_columns, check_place, header_pairs
from tailrace.client.asking import REQUEST_TIMEOUT_MS
from tailrace.client.background import background
from tailrace.client.delivery import BatchMetadata, Callback
from tailrace.client.describing import ClusterDescription, TopicDescription
from tailrace.client.group_admin import (
    GroupDescription,
    GroupListing,
    PositionReset,
    ResetTo,
)
from tailrace.client.handing import RUN_RECORDS_MAX, DeliveryFuture, Run, Shared
from tailrace.client.lifetime import Lifetime
from tailrace.client.moving import Move, Progress
from tailrace.client.operations import BrokerState, Deleted, Elected, LeaderChoice
from tailrace.client.partitioner import Partitioner
from tailrace.client.producer import CLOSE_TIMEOUT_MS
from tailrace.client.serializers import Serializer, from_bytes_like, serializer_for
from tailrace.client.settings import ProducerOptions, ProducerSettings
from tailrace.client.tables import Columns
from tailrace.client.trouble import because
from tailrace.clock import NS_IN_MS, wall_ns
from tailrace.errors import BufferFull, ClientClosed, RequestTimedOut, TailraceError
from tailrace.meta.keys import LeaderChange
from tailrace.metrics.values import ProducerCounts
from tailrace.model import TopicPartition

INBOX_BYTES_MAX: Final = 4 << 20
EXIT_TIMEOUT_MS: Final = 5_000
THREAD_TIMEOUT_S: Final = 5.0
"""How much longer than it is told to take a call in the loop may take before it is given up."""


class Producer:
    """Sends records from any thread. Use it as `with Producer(...)`, or `close` it at the end.

    Settings, serializers and partitioners are those of `tailrace.aio.Producer`.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        key_serializer: str | Serializer | None = None,
        value_serializer: str | Serializer | None = None,
        partitioner: str | Partitioner | None = None,
        **settings: Unpack[ProducerOptions],
    ) -> None:
        # Serializers run in the thread that sends, so that it gets their errors.
        self._key = serializer_for(key_serializer, "key_serializer")
        self._value = serializer_for(value_serializer, "value_serializer")
        self._settings = ProducerSettings.of(dict(settings))
        self._producer = asynchronous.Producer(
            bootstrap_servers, partitioner=partitioner, **settings
        )
        self._trouble = self._producer.trouble
        self._checked: object = self
        self.client_id = self._settings.client_id
        self._lifetime = Lifetime("producer")
        self._background = background()
        self._inbox_bytes_max = min(INBOX_BYTES_MAX, self._settings.buffer_memory)
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._shared = Shared(self._background, self._trouble)
        # Runs of records, and marks: everything before them was handed over.
        self._inbox: deque[Run | Future[None]] = deque()
        # The last run of the queue, while more may join it.
        self._run: Run | None = None
        self._is_plain = self._key is from_bytes_like and self._value is from_bytes_like
        self._inbox_bytes = 0
        self._is_pumping = False
        _OPEN.add(self)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        *,
        callback: Callback | None = None,
    ) -> DeliveryFuture:
        """Hand over a record; `.result()` of what is returned is its `RecordMetadata`.

        Waits only while the buffer is full, `max_block_ms` at most (BufferFull). Arguments that
        make no sense raise here; what else is wrong with a record, or its topic, is told by the
        future. `callback(metadata, error)` is called in the producer's thread, also when the record
        could not be handed over.
        """
        # This runs for every record: it is written out where a call would cost more than its work.
        if self._lifetime.is_over:
            self._lifetime.check()
        # A topic that was good once is good again.
        if topic is not self._checked or partition is not None or timestamp_ms is not None:
            check_place(topic, partition, timestamp_ms)
            self._checked = topic
        if type(value) is not bytes or key is not None or not self._is_plain:
            value, key = self._value(value), self._key(key)
            if key is not None or type(value) is not bytes:
                return self._send_alone(
                    topic, (value, key, headers, partition), timestamp_ms, callback
                )
        if headers or callback or partition is not None:
            return self._send_alone(
                topic, (value, None, headers, partition), timestamp_ms, callback
            )
        size = RECORD_OVERHEAD_BYTES + len(value)
        with self._lock:
            if self._inbox_bytes + size > self._inbox_bytes_max and self._inbox:
                self._wait_for_room(size)
            self._inbox_bytes += size
            run = self._run
            if run is None or run.topic is not topic or len(run.values) >= RUN_RECORDS_MAX:
                run = self._run = Run(topic)
                self._inbox.append(run)
            values = run.values
            number = len(values)
            run.times.append(wall_ns() // NS_IN_MS if timestamp_ms is None else timestamp_ms)
            values.append(value)
            is_pumping, self._is_pumping = self._is_pumping, True
        if not is_pumping:
            self._background.loop.call_soon_threadsafe(self._start_pump)
        return DeliveryFuture(run, number, self._shared)

    def _send_alone(
        self,
        topic: str,
        place: tuple[Any, Any, Headers | None, int | None],
        timestamp_ms: int | None,
        callback: Callback | None,
    ) -> DeliveryFuture:
        """Hand over a record (value, key, headers, partition) that others cannot join."""
        value, key, headers, partition = place
        pairs = header_pairs(headers) if headers else None
        run = Run(topic, place=(value, key, pairs, partition), callback=callback)
        run.times.append(wall_ns() // NS_IN_MS if timestamp_ms is None else timestamp_ms)
        size = record_size(value, key, pairs)
        with self._lock:
            if self._inbox_bytes + size > self._inbox_bytes_max and self._inbox:
                self._wait_for_room(size)
            self._inbox_bytes += size
            self._run = None
            self._inbox.append(run)
            is_pumping, self._is_pumping = self._is_pumping, True
        if not is_pumping:
            self._background.loop.call_soon_threadsafe(self._start_pump)
        return DeliveryFuture(run, 0, self._shared)

    def send_batch(
        self,
        topic: str,
        columns: Columns,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Future[list[BatchMetadata]]:
        """Hand over an Arrow RecordBatch or Table, or a mapping of columns, as it is.

        Waits until it is in the buffer; `.result()` of what is returned is the list of
        `BatchMetadata`. What was sent before comes before it.
        """
        self._lifetime.check()
        check_place(topic, partition, timestamp_ms)
        check_columns(columns)
        self._hand_over(self._settings.max_block_ms / 1000)
        delivery = self._background.wait(
            self._producer.send_batch(
                topic, columns, partition=partition, timestamp_ms=timestamp_ms
            )
        )

        async def arrive() -> list[BatchMetadata]:
            return await delivery

        return self._background.start(arrive())

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is acknowledged or has failed; RequestTimedOut."""
        self._lifetime.check()
        self._hand_over(timeout)
        try:
            self._background.wait(self._producer.flush(), timeout)
        except RequestTimedOut as error:
            raise RequestTimedOut(f"{error}{because(self._trouble())}") from None

    def close(self, timeout: float = CLOSE_TIMEOUT_MS / 1000) -> None:
        """Send what is left, within so many seconds, and end."""
        if self._lifetime.is_closed or not self._lifetime.is_here:
            self._lifetime.end()
            return
        if self._lifetime.error is None:
            with suppress(RequestTimedOut):
                self._hand_over(timeout)
        self._lifetime.end()
        _OPEN.discard(self)
        with self._lock:
            left, self._inbox = self._inbox, deque()
            self._run = None
            self._room.notify_all()
        error = ClientClosed("the producer was closed before the record was handed over")
        self._background.loop.call_soon_threadsafe(_refuse_all, left, error)
        self._background.wait(
            self._producer.close(timeout_ms=int(timeout * 1000)), timeout + THREAD_TIMEOUT_S
        )

    def trouble(self) -> str:
        """Why what was sent is not acknowledged yet, for people; empty: nothing is known."""
        return self._trouble()

    def metrics(self) -> dict[str, float]:
        """What was sent so far, how it went, and what is on its way."""
        return self._producer.metrics()

    @property
    def counts(self) -> ProducerCounts:
        """What `metrics` is made of: for collectors."""
        return self._producer.counts

    def state(self, timeout: float | None = None) -> dict[str, Any]:
        """Flush, then give ids and sequences, to be saved together with the input's position."""
        self._lifetime.check()
        self._hand_over(timeout)
        return self._background.wait(self._producer.state(), timeout)

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, before anything is sent: what is sent again is not twice."""
        self._lifetime.check()
        self._background.wait(_call(lambda: self._producer.resume(state)))

    # The queue into the loop.

    def _wait_for_room(self, size: int) -> None:
        self._background.check_not_inside()
        limit_s = self._settings.max_block_ms / 1000
        has_room = self._room.wait_for(
            lambda: (
                self._lifetime.is_over
                or not self._inbox
                or self._inbox_bytes + size <= self._inbox_bytes_max
            ),
            limit_s,
        )
        if self._lifetime.is_over:
            self._lifetime.check()
        if not has_room:
            raise BufferFull(
                f"buffer_memory={self._settings.buffer_memory} was full for "
                f"max_block_ms={self._settings.max_block_ms}{because(self._trouble())}"
            )

    def _hand_over(self, timeout_s: float | None) -> None:
        """Wait until all that was sent before is in the producer's buffer."""
        self._background.check_not_inside()
        mark: Future[None] = Future()
        with self._lock:
            self._run = None
            self._inbox.append(mark)
            is_pumping, self._is_pumping = self._is_pumping, True
        if not is_pumping:
            self._background.loop.call_soon_threadsafe(self._start_pump)
        try:
            mark.result(timeout_s)
        except FutureTimeout:
            why = because(self._trouble())
            raise RequestTimedOut(
                f"records could not be handed over in {timeout_s} s{why}"
            ) from None

    def _start_pump(self) -> None:
        self._background.loop.create_task(self._pump(), name="hand records over")

    async def _pump(self) -> None:
        """Take all that is in the queue, in order, until it is empty."""
        while True:
            with self._lock:
                runs, self._inbox = self._inbox, deque()
                self._run = None
                self._inbox_bytes = 0
                self._room.notify_all()
                if not runs:
                    self._is_pumping = False
                    return
            for run in runs:
                if isinstance(run, Future):
                    _mark(run)
                else:
                    await self._hand_over_run(run)

    async def _hand_over_run(self, run: Run) -> None:
        if run.place is None:
            await self._producer.send_run(run)
            return
        try:
            delivery = await self._producer.send(
                run.topic, *run.place, run.times[0], callback=run.callback
            )
        except Exception as error:  # noqa: BLE001 - a partitioner of the program's own.
            run.refuse(0, 1, error)
        else:
            run.put(0, 1, delivery.outcome, delivery.index)


class Admin:
    """Administration. Use it as `with Admin(...)`, or `close` it at the end."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        self._admin = asynchronous.Admin(bootstrap_servers, request_timeout_ms=request_timeout_ms)
        self._lifetime = Lifetime("admin client")
        self._background = background()

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create_topic(
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
        self._lifetime.check()
        return self._background.wait(
            self._admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                config=config,
                validate_only=validate_only,
                timeout_ms=timeout_ms,
            )
        )

    def delete_topic(self, name: str, *, topic_id: str = "", timeout_ms: int | None = None) -> None:
        """Delete a topic, with `topic_id` only the one that is meant; its data goes later."""
        self._lifetime.check()
        self._background.wait(
            self._admin.delete_topic(name, topic_id=topic_id, timeout_ms=timeout_ms)
        )

    def list_topics(self, *, timeout_ms: int | None = None) -> list[str]:
        self._lifetime.check()
        return self._background.wait(self._admin.list_topics(timeout_ms=timeout_ms))

    def describe_topics(
        self, names: Iterable[str] | None = None, *, timeout_ms: int | None = None
    ) -> list[TopicDescription]:
        """These topics, all when none is named; UnknownTopic when one is not there."""
        self._lifetime.check()
        return self._background.wait(self._admin.describe_topics(names, timeout_ms=timeout_ms))

    def describe_topic(self, name: str, *, timeout_ms: int | None = None) -> TopicDescription:
        self._lifetime.check()
        return self._background.wait(self._admin.describe_topic(name, timeout_ms=timeout_ms))

    def describe_cluster(self, *, timeout_ms: int | None = None) -> ClusterDescription:
        self._lifetime.check()
        return self._background.wait(self._admin.describe_cluster(timeout_ms=timeout_ms))

    def explain(
        self, topic: str, partition: int, *, timeout_ms: int | None = None
    ) -> list[LeaderChange]:
        """The recorded leader changes of a partition, newest first."""
        self._lifetime.check()
        return self._background.wait(self._admin.explain(topic, partition, timeout_ms=timeout_ms))

    def list_offsets(
        self,
        topic: str,
        position: OffsetSpec = LATEST,
        *,
        partitions: Iterable[int] | None = None,
        timeout_ms: int | None = None,
    ) -> dict[int, FoundOffset]:
        """Offsets of partitions of a topic, of all when none is named, from their leaders."""
        self._lifetime.check()
        return self._background.wait(
            self._admin.list_offsets(topic, position, partitions=partitions, timeout_ms=timeout_ms)
        )

    def alter_config(
        self,
        kind: str,
        name: str,
        changed: Mapping[str, str] | None = None,
        *,
        unset: Iterable[str] = (),
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[str, str]:
        """Change settings of one of `topics`, `brokers`, `clients`; gives all that are set then."""
        self._lifetime.check()
        return self._background.wait(
            self._admin.alter_config(
                kind, name, changed, unset=unset, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def describe_configs(
        self, kind: str, name: str = "", *, timeout_ms: int | None = None
    ) -> dict[str, dict[str, str]]:
        """The settings that are stored, by name; without a name, of all that have some."""
        self._lifetime.check()
        return self._background.wait(
            self._admin.describe_configs(kind, name, timeout_ms=timeout_ms)
        )

    def add_partitions(
        self,
        topic: str,
        partitions: int,
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> TopicDescription:
        """Give a topic so many partitions in all."""
        self._lifetime.check()
        return self._background.wait(
            self._admin.add_partitions(
                topic, partitions, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, Deleted]:
        """Delete what is below these offsets (HIGH_WATERMARK: all that can be read)."""
        self._lifetime.check()
        return self._background.wait(self._admin.delete_records(before, timeout_ms=timeout_ms))

    def describe_brokers(self, *, timeout_ms: int | None = None) -> list[BrokerState]:
        """The brokers that are registered, hold replicas or are cordoned."""
        self._lifetime.check()
        return self._background.wait(self._admin.describe_brokers(timeout_ms=timeout_ms))

    def cordon_broker(
        self,
        broker_id: int,
        *,
        cordon: bool = True,
        reason: str = "",
        timeout_ms: int | None = None,
    ) -> None:
        """Give a broker no new replicas and no leadership, or end that."""
        self._lifetime.check()
        self._background.wait(
            self._admin.cordon_broker(
                broker_id, cordon=cordon, reason=reason, timeout_ms=timeout_ms
            )
        )

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] = (), *, timeout_ms: int | None = None
    ) -> list[Elected]:
        """Let the preferred replicas of partitions lead; of all, when none is named."""
        self._lifetime.check()
        return self._background.wait(self._admin.elect_leaders(partitions, timeout_ms=timeout_ms))

    def elect_unclean(
        self, choices: Sequence[LeaderChoice], *, timeout_ms: int | None = None
    ) -> list[Elected]:
        """Let replicas lead that may lack acknowledged records, which are lost by that."""
        self._lifetime.check()
        return self._background.wait(self._admin.elect_unclean(choices, timeout_ms=timeout_ms))

    def reassign(
        self,
        plan: Mapping[TopicPartition, Sequence[int]] | None = None,
        *,
        to_brokers: Iterable[int] = (),
        drain: int | None = None,
        topics: Iterable[str] = (),
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> list[Move]:
        """Move replicas: by a plan, by the rule over some brokers, or all away from one."""
        self._lifetime.check()
        return self._background.wait(
            self._admin.reassign(
                plan,
                to_brokers=to_brokers,
                drain=drain,
                topics=topics,
                validate_only=validate_only,
                timeout_ms=timeout_ms,
            )
        )

    def cancel_reassignments(
        self, partitions: Iterable[TopicPartition] = (), *, timeout_ms: int | None = None
    ) -> list[TopicPartition]:
        """Give reassignments up, all when none is named; gives those that go back."""
        self._lifetime.check()
        return self._background.wait(
            self._admin.cancel_reassignments(partitions, timeout_ms=timeout_ms)
        )

    def reassignment_progress(
        self, moves: Sequence[Move] | None = None, *, timeout_ms: int | None = None
    ) -> Progress:
        """How far reassignments are, in bytes; of these moves, or of all that are under way."""
        self._lifetime.check()
        return self._background.wait(
            self._admin.reassignment_progress(moves, timeout_ms=timeout_ms)
        )

    def list_groups(
        self, states: Sequence[str] = (), *, timeout_ms: int | None = None
    ) -> list[GroupListing]:
        """The groups of all coordinators, only those in one of these states if any is named."""
        self._lifetime.check()
        return self._background.wait(self._admin.list_groups(states, timeout_ms=timeout_ms))

    def describe_group(self, group: str, *, timeout_ms: int | None = None) -> GroupDescription:
        """Members, positions and lag, in records and in time; GroupNotFound."""
        self._lifetime.check()
        return self._background.wait(self._admin.describe_group(group, timeout_ms=timeout_ms))

    def delete_groups(
        self, groups: Iterable[str], *, timeout_ms: int | None = None
    ) -> dict[str, TailraceError | None]:
        """Forget groups without members, with their positions; says of each why it is there yet."""
        self._lifetime.check()
        return self._background.wait(self._admin.delete_groups(groups, timeout_ms=timeout_ms))

    def delete_offsets(
        self, group: str, partitions: Sequence[TopicPartition], *, timeout_ms: int | None = None
    ) -> None:
        """Forget positions of a group without members."""
        self._lifetime.check()
        self._background.wait(self._admin.delete_offsets(group, partitions, timeout_ms=timeout_ms))

    def reset_offsets(
        self,
        group: str,
        to: ResetTo,
        value: int = 0,
        *,
        topics: Mapping[str, Sequence[int] | None] | None = None,
        dry_run: bool = True,
        timeout_ms: int | None = None,
    ) -> list[PositionReset]:
        """Move positions of a group without members; with `dry_run` only say what would change."""
        self._lifetime.check()
        return self._background.wait(
            self._admin.reset_offsets(
                group, to, value, topics=topics, dry_run=dry_run, timeout_ms=timeout_ms
            )
        )

    def close(self) -> None:
        if self._lifetime.end():
            self._background.wait(self._admin.close(), THREAD_TIMEOUT_S)


async def _call(work: Callable[[], Any]) -> Any:
    return work()


def _refuse_all(runs: Iterable[Run | Future[None]], error: TailraceError) -> None:
    for run in runs:
        if isinstance(run, Future):
            _mark(run)
        else:
            run.refuse_rest(error)


def _mark(mark: Future[None]) -> None:
    if not mark.done():
        mark.set_result(None)


_OPEN: Final[WeakSet[Producer]] = WeakSet()


def _close_all() -> None:
    """At the end of the program: what was sent and not flushed still gets a chance."""
    for producer in list(_OPEN):
        producer.close(EXIT_TIMEOUT_MS / 1000)


atexit.register(_close_all)
