"""The consumer that programs without asyncio import (as `tailrace.Consumer`): it blocks.

It stands on the asyncio one, in the loop of `background`; records that have arrived are taken in
the thread that polls, without a detour through the loop. One thread uses a consumer at a time;
`wakeup` and `close` may come from any. Callbacks run in the thread that polls.
"""

from __future__ import annotations

import asyncio
import atexit
import re
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeVar, Unpack
from weakref import WeakSet

import pyarrow as pa

from tailrace.client import asynchronous_consumer
from tailrace.client.arguments import milliseconds, record_limit
from tailrace.client.background import background
from tailrace.client.commits import CommitCallback, OffsetsGiven
from tailrace.client.consumer import CLOSE_TIMEOUT_MS
from tailrace.client.consumer_settings import ConsumerOptions
from tailrace.client.group_member import OffsetAndMetadata
from tailrace.client.lifetime import Lifetime
from tailrace.client.listening import Interceptor
from tailrace.client.records import ConsumerRecord
from tailrace.client.serializers import Deserializer
from tailrace.client.sync import EXIT_TIMEOUT_MS, THREAD_TIMEOUT_S
from tailrace.errors import ClientClosed, InvalidRequest, TailraceError
from tailrace.model import NO_LEADER_EPOCH, TopicPartition

T = TypeVar("T")


class Listener(Protocol):
    """What a program wants to know of its partitions; each is called inside `poll`."""

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        """They are given up; positions can still be committed."""

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        """They are read from now on; the program may seek."""

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        """They are gone already; others may have gone on with them."""


class Consumer:
    """Reads records. Use it as `with Consumer("topic", ...)`, or `close` it at the end.

    Settings and deserializers are those of `tailrace.aio.Consumer`.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Sequence[str],
        key_deserializer: str | Deserializer | None = None,
        value_deserializer: str | Deserializer | None = None,
        interceptors: Sequence[Interceptor] = (),
        **settings: Unpack[ConsumerOptions],
    ) -> None:
        self._background = background()
        self._lifetime = Lifetime("consumer")
        self._consumer = asynchronous_consumer.Consumer(
            *topics,
            bootstrap_servers=bootstrap_servers,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            interceptors=interceptors,
            **settings,
        )
        self._core = self._consumer.core
        self.client_id, self.group_id = self._consumer.client_id, self._consumer.group_id
        self._in_use = threading.RLock()
        self._is_closing = False
        # What the loop wants to be done in the thread that waits for it.
        self._calls: list[SimpleQueue[_Call | None]] = []
        _OPEN.add(self)

    def __enter__(self) -> Consumer:
        self._wait(self._consumer.start())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, timeout: float = CLOSE_TIMEOUT_MS / 1000) -> None:
        """Commit what was handed out (with auto commit), leave the group at once, and end."""
        if self._is_closing or self._lifetime.is_closed or not self._lifetime.is_here:
            self._lifetime.end()
            return
        self._is_closing = True
        work = self._consumer.close(timeout_ms=int(timeout * 1000))
        is_ours = self._in_use.acquire(blocking=False)
        try:
            if is_ours:
                # Callbacks may still use the consumer.
                self._run(work, timeout + THREAD_TIMEOUT_S)
            else:
                # Another thread polls: it learns of the end there.
                self._background.wait(work, timeout + THREAD_TIMEOUT_S)
        finally:
            self._lifetime.end()
            if is_ours:
                self._in_use.release()

    # What is read.

    def subscribe(
        self,
        topics: str | Iterable[str] | re.Pattern[str],
        *,
        listener: Listener | None = None,
    ) -> None:
        """Read these topics, or all whose names match the pattern, together with the group.

        The listener's methods `on_revoked`, `on_assigned` and `on_lost` are called in `poll`.
        """
        told = _Telling(self, listener) if listener is not None else None
        self._wait(self._consumer.subscribe(topics, listener=told))

    def unsubscribe(self) -> None:
        """Read nothing any more, and leave the group."""
        self._wait(self._consumer.unsubscribe())

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, whoever else does."""
        self._wait(self._consumer.assign(partitions))

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read."""
        return self._consumer.assignment()

    def subscription(self) -> set[str]:
        """The topics that are subscribed to."""
        return self._consumer.subscription()

    # Reading.

    def poll(
        self, timeout: float | None = 1.0, *, max_records: int | None = None
    ) -> list[ConsumerRecord]:
        """Records that have arrived, `max_poll_records` at most.

        Waits up to `timeout` seconds (None: for ever) for the first one. Callbacks of a rebalance
        run in here.
        """
        if self._lifetime.is_over:
            self._lifetime.check()
        if not self._in_use.acquire(blocking=False):
            raise InvalidRequest("two threads use one consumer at the same time")
        try:
            limit = record_limit(max_records, self._core.max_poll_records)
            taker = self._core.taker
            found = self._take_here(lambda: taker.rows(limit, alone=True))
            return self._poll(timeout, max_records) if found is None else found
        finally:
            self._in_use.release()

    def _poll(self, timeout: float | None, max_records: int | None) -> list[ConsumerRecord]:
        taken: list[ConsumerRecord] = []

        async def poll() -> None:
            taken.extend(await self._consumer.poll(timeout, max_records=max_records))

        try:
            self._run(poll())
        except BaseException:
            # Ctrl-C: what was taken already, or just now, is not lost: it comes first next time.
            with suppress(TailraceError):
                self._background.wait(self._give_back(taken), THREAD_TIMEOUT_S)
            raise
        return taken

    async def _give_back(self, taken: list[ConsumerRecord]) -> None:
        self._core.taker.unread(taken)

    def _take_here(self, take: Callable[[], T | None]) -> T | None:
        """What has arrived is taken in this thread, without a detour through the loop."""
        found = self._core.take_at_once(take)
        if found is not None and self._core.credit_due():
            self._background.loop.call_soon_threadsafe(self._core.give_credit)
        return found

    def batches(
        self, *, timeout: float | None = None, headers: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Stored batches as Arrow columns: topic, partition, offset, timestamp, key, value.

        Ends when none came for `timeout` seconds; without one, never.
        """
        timeout_ms = milliseconds(timeout)
        self._wait(self._consumer.start())
        taker = self._core.taker
        while not self._lifetime.is_over:
            with self._in_use:
                found = self._take_here(lambda: taker.table(headers=headers, alone=True))
            if found is None:
                found = self._next_batch(timeout_ms, headers=headers)
            if found is None:
                return
            yield found

    def _next_batch(self, timeout_ms: int | None, *, headers: bool) -> pa.RecordBatch | None:
        taken: list[pa.RecordBatch] = []

        async def take() -> None:
            found = await self._core.next_batch(timeout_ms=timeout_ms, headers=headers)
            if found is not None:
                taken.append(found)

        async def give_back() -> None:
            if taken:
                self._core.taker.unread_table()

        try:
            self._wait(take())
        except BaseException:
            # Ctrl-C: what was taken already, or just now, is not lost: it comes first next time.
            with suppress(TailraceError):
                self._background.wait(give_back(), THREAD_TIMEOUT_S)
            raise
        return taken[0] if taken else None

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        record = self._core.taker.next_unread()
        if record is not None:
            return record
        try:
            first, *rest = self.poll(None)
        except ClientClosed:
            raise StopIteration from None
        self._core.taker.unread(rest)
        return first

    def wakeup(self) -> None:
        """Have the poll under way, or the next one, raise WokenUp; from any thread."""
        self._background.loop.call_soon_threadsafe(self._core.wakeup)

    # Positions.

    def seek(
        self, partition: TopicPartition, offset: int, *, last_epoch: int = NO_LEADER_EPOCH
    ) -> None:
        """Go on from another offset; with `last_epoch` a log that was cut below it is noticed."""
        self._wait(self._consumer.seek(partition, offset, last_epoch=last_epoch))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on from the first offset of these partitions, of all when none is named."""
        self._wait(self._consumer.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on from the end of these partitions, of all when none is named."""
        self._wait(self._consumer.seek_to_end(*partitions))

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these partitions until `resume`; of all when none is named."""
        self._wait(self._consumer.pause(*partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        self._wait(self._consumer.resume(*partitions))

    def paused(self) -> set[TopicPartition]:
        return self._consumer.paused()

    def position(self, partition: TopicPartition, *, timeout: float | None = None) -> int:
        """The offset of the next record that is handed out; waits until it is known."""
        return self._wait(self._consumer.position(partition, timeout=timeout))

    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets lie between the position and the end, where both are known."""
        return self._consumer.lag()

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time; None where no record is that late."""
        return self._wait(self._consumer.offsets_for_times(times_ms, timeout=timeout))

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        return self._wait(self._consumer.beginning_offsets(partitions, timeout=timeout))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        return self._wait(self._consumer.end_offsets(partitions, timeout=timeout))

    # Commits.

    def commit(self, offsets: OffsetsGiven | None = None, *, timeout: float | None = None) -> None:
        """Commit these positions, or those of all that was handed out, and wait for it."""
        self._wait(self._consumer.commit(offsets, timeout=timeout))

    def commit_async(
        self, offsets: OffsetsGiven | None = None, *, callback: CommitCallback | None = None
    ) -> None:
        """Commit without waiting; `callback(offsets, error)` is called in the client's thread."""

        async def begin() -> None:
            self._consumer.commit_async(offsets, callback=callback)

        self._wait(begin())

    def committed(
        self, *partitions: TopicPartition, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed positions of these partitions, of those assigned when none is named."""
        return self._wait(self._consumer.committed(*partitions, timeout=timeout))

    @property
    def skipped_batches(self) -> int:
        """How many stored batches could not be decoded and were passed over (on_corrupt="skip")."""
        return self._consumer.skipped_batches

    def metrics(self) -> dict[str, Any]:
        """What was polled, handed out and committed so far."""
        return self._consumer.metrics()

    # The loop and this thread.

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._lifetime.is_over:
            work.close()
            self._lifetime.check()
        if not self._in_use.acquire(blocking=False):
            work.close()
            raise InvalidRequest("two threads use one consumer at the same time")
        try:
            return self._run(work)
        finally:
            self._in_use.release()

    def _run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run it in the loop, and meanwhile here what it wants to be done in this thread."""
        self._background.check_not_inside(work)
        calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._calls.append(calls)
        future = self._background.start(work)
        future.add_done_callback(lambda _: calls.put(None))
        try:
            while (call := calls.get(timeout=timeout_s)) is not None:
                call.do()
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            self._calls.remove(calls)

    def call_here(self, work: Callable[[], None]) -> Future[None]:
        """Called in the loop: have the thread that waits do this."""
        call = _Call(work)
        if self._calls:
            self._calls[-1].put(call)
        else:
            call.done.set_result(None)
        return call.done


class _Call:
    """Something to be done in another thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self.done: Future[None] = Future()

    def do(self) -> None:
        # From now on who waits for it may give up, but cannot take it back.
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - who waits for it gets it.
            self.done.set_exception(error)
        except BaseException as error:
            # Ctrl-C and exits are this thread's alone: the loop would end of them, for all clients.
            self.done.set_exception(RuntimeError(f"a callback was interrupted: {error!r}"))
            raise
        else:
            self.done.set_result(None)


class _Telling:
    """A program's listener as the asyncio consumer calls it."""

    def __init__(self, consumer: Consumer, listener: Listener) -> None:
        self._consumer = consumer
        self._listener = listener

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        await self._tell(lambda: self._listener.on_revoked(partitions))

    async def on_assigned(self, partitions: list[TopicPartition]) -> None:
        await self._tell(lambda: self._listener.on_assigned(partitions))

    async def on_lost(self, partitions: list[TopicPartition]) -> None:
        await self._tell(lambda: self._listener.on_lost(partitions))

    async def _tell(self, work: Callable[[], None]) -> None:
        await asyncio.wrap_future(self._consumer.call_here(work))


_OPEN: Final[WeakSet[Consumer]] = WeakSet()


def _close_all() -> None:
    """At the end of the program: the others in the group need not wait for the session to end."""
    for consumer in list(_OPEN):
        with suppress(TailraceError):
            consumer.close(EXIT_TIMEOUT_MS / 1000)


atexit.register(_close_all)
