"""The store as the controller of one term has it: an image that is kept up, and guarded writes.

A full read, then a watch from the next revision on; a watch that missed something begins with a
full read again, and while the store is away the image stays as it was. What a transaction of our
own did is in the image as soon as it is known to be done.

A refused transaction means that the image is behind: wait for the watch to bring what was missed,
or read everything. One whose outcome is not known: read everything. Both leave it to the caller to
decide anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from tailrace.clock import Clock
from tailrace.controller.counting import count_changes
from tailrace.controller.facts import Transaction
from tailrace.controller.retries import Backoff
from tailrace.controller.settings import ControllerSettings
from tailrace.controller.traces import FailoverTraces
from tailrace.errors import LeaseLost, NotController, StoreUnavailable
from tailrace.meta.image import ClusterImage
from tailrace.meta.keys import INCARNATIONS, ROOT, Kind, place_of
from tailrace.meta.store import (
    Entry,
    MetadataStore,
    Operation,
    Put,
    Snapshot,
    TxnResult,
    WatchBatch,
)
from tailrace.metrics.values import ControllerCounts
from tailrace.model import BrokerId

# How long the watch may take to bring what made a transaction fail.
CATCH_UP_MS: Final = 500
# A watch that brings nothing, although the store has changed, is not trusted after this long.
DEAF_WATCH_MS: Final = 5_000


def incarnation_key(broker_id: BrokerId) -> str:
    return f"{INCARNATIONS}{broker_id}"


class Ledger:
    """The image of the store, and the one way to change the store."""

    def __init__(
        self,
        settings: ControllerSettings,
        *,
        store: MetadataStore,
        clock: Clock,
        rng: Random,
        say: Callable[[str], None],
        on_change: Callable[[ClusterImage], None],
        counts: ControllerCounts | None = None,
        traces: FailoverTraces | None = None,
    ) -> None:
        """`on_change` is told after each change, with the image before it."""
        self._settings = settings
        self._store = store
        self._clock = clock
        self._rng = rng
        self._say = say
        self._on_change = on_change
        self._counts = counts or ControllerCounts()
        self._traces = traces
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        # A full read and a transaction do not overlap, so that a read has all that we wrote.
        self._lock = asyncio.Lock()
        self._refusals = Backoff(settings.retry_ms, settings.retry_max_ms, rng)
        self._behind_since_ms: int | None = None
        self.image = ClusterImage()
        self.histories: dict[str, bytes] = {}
        self.incarnations: dict[BrokerId, str] = {}
        # What is wrong with the store, as far as the last attempt showed.
        self.trouble = ""

    async def follow(self) -> None:
        """Keep the image up, for ever."""
        while True:
            await self.read_anew()
            await self._watch()

    async def read_anew(self) -> None:
        """Read everything, however long it takes the store to answer."""
        backoff = Backoff(self._settings.retry_ms, self._settings.retry_max_ms, self._rng)
        while True:
            try:
                async with self._lock:
                    self._load(await self._store.snapshot(ROOT))
                    return
            except StoreUnavailable as error:
                self._note_trouble(error)
            await asyncio.sleep(backoff.next_s())

    async def get(self, key: str) -> Entry | None:
        """Read one key; StoreUnavailable."""
        try:
            return await self._store.get(key)
        except StoreUnavailable as error:
            self._note_trouble(error)
            raise

    async def commit(self, transaction: Transaction) -> bool:
        """Do it. False: it was not done, or nobody knows; the image is up to date then."""
        try:
            async with self._lock:
                before = self.image
                result = await self._txn(transaction)
                if result.succeeded:
                    self._note_well()
                    count_changes(self._counts, before, transaction.operations)
                    self._learn(transaction.operations, result.revision)
                    self._refusals.reset()
                    return True
        except LeaseLost:
            # A broker's registration that ended just now: the watch will tell.
            await asyncio.sleep(self._refusals.next_s())
            return False
        except StoreUnavailable as error:
            self._note_trouble(error)
            self._say(f"{transaction.what}: not known whether it was done, reading everything")
            await self.read_anew()
            return False
        self._counts.refusals += 1
        self._say(f"{transaction.what}: something has changed meanwhile, deciding again")
        if self.image.revision < result.revision:
            await self._catch_up(result.revision)
        else:
            # Nothing is missing, and yet the guards did not hold. Do not spin.
            await asyncio.sleep(self._refusals.next_s())
            await self.read_anew()
        return False

    async def _txn(self, transaction: Transaction) -> TxnResult:
        guards, operations = transaction.guards, transaction.operations
        if self._traces is None:
            return await self._store.txn(guards, operations)
        with self._traces.around(operations) as step:
            result = await self._store.txn(guards, operations)
            step.is_done = result.succeeded
        return result

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds of the image; NotController when the term ends before."""
        while not holds():
            waiting = asyncio.get_running_loop().create_future()
            self._waiting[waiting] = holds
            try:
                await waiting
            finally:
                self._waiting.pop(waiting, None)

    def close(self) -> None:
        """The term is over: nobody needs to wait for the image any longer."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(NotController("this controller is no longer active"))

    def is_deaf(self, revision: int) -> bool:
        """Whether the watch has been silent for too long, now that the store is at `revision`."""
        if self.image.revision >= revision:
            self._behind_since_ms = None
            return False
        now_ms = self._clock.monotonic_ms()
        if self._behind_since_ms is None:
            self._behind_since_ms = now_ms
        if now_ms - self._behind_since_ms < DEAF_WATCH_MS:
            return False
        self._behind_since_ms = None
        return True

    async def _watch(self) -> None:
        """Follow the changes until some were missed."""
        backoff = Backoff(self._settings.retry_ms, self._settings.retry_max_ms, self._rng)
        while True:
            try:
                watch = self._store.watch(ROOT, from_revision=self.image.revision + 1)
                async for batch in watch:
                    self._note_well()
                    backoff.reset()
                    if batch.compacted:
                        self._say("changes were compacted away before they came, reading anew")
                        return
                    self._advance(batch)
            except StoreUnavailable as error:
                self._note_trouble(error)
            await asyncio.sleep(backoff.next_s())

    async def _catch_up(self, revision: int) -> None:
        try:
            async with asyncio.timeout(CATCH_UP_MS / 1_000):
                await self.until(lambda: self.image.revision >= revision)
        except TimeoutError:
            await self.read_anew()

    def _load(self, snapshot: Snapshot) -> None:
        self._note_well()
        old, self.image = self.image, ClusterImage.from_snapshot(snapshot)
        self.histories = {
            entry.key: entry.value
            for entry in snapshot.entries
            if (place := place_of(entry.key)) is not None and place.kind is Kind.HISTORY
        }
        self.incarnations = {
            broker: entry.value.decode("utf-8", "replace")
            for entry in snapshot.entries
            if (broker := _broker_of(entry.key)) is not None
        }
        self._changed(old)

    def _advance(self, batch: WatchBatch) -> None:
        old, self.image = self.image, self.image.advance(batch)
        for change in batch.changes:
            # The watch may tell of a transaction of our own before its answer comes.
            self._note(change.key, None if change.entry is None else change.entry.value)
        self._changed(old)

    def _learn(self, operations: tuple[Operation, ...], revision: int) -> None:
        old, self.image = self.image, self.image.learn(operations, revision=revision)
        for operation in operations:
            self._note(operation.key, operation.value if isinstance(operation, Put) else None)
        self._changed(old)

    def _note(self, key: str, value: bytes | None) -> None:
        """Remember what the image does not hold: histories, and incarnations of brokers."""
        broker = _broker_of(key)
        if broker is not None and value is not None:
            self.incarnations[broker] = value.decode("utf-8", "replace")
        place = place_of(key)
        if place is None or place.kind is not Kind.HISTORY:
            return
        if value is None:
            self.histories.pop(key, None)
        else:
            self.histories[key] = value

    def _changed(self, old: ClusterImage) -> None:
        for key in self.image.damaged:
            if key not in old.damaged:
                self._say(f"cannot be read and is left alone: {self.image.damaged[key]}")
        self._on_change(old)
        for waiting, holds in list(self._waiting.items()):
            if not waiting.done() and holds():
                waiting.set_result(None)

    def _note_trouble(self, error: StoreUnavailable) -> None:
        if not self.trouble:
            self._say(f"the metadata store does not answer: {error}")
        self.trouble = str(error) or "no answer"

    def _note_well(self) -> None:
        if self.trouble:
            self._say("the metadata store answers again")
        self.trouble = ""


def _broker_of(key: str) -> BrokerId | None:
    if not key.startswith(INCARNATIONS):
        return None
    text = key[len(INCARNATIONS) :]
    return BrokerId(int(text)) if text.isascii() and text.isdigit() else None
