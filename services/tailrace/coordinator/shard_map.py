"""Which shards the controller gave to whom, as the store has it: followed by a watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Final

from tailrace.errors import CorruptCheckpoint, StoreUnavailable
from tailrace.meta.keys import SHARDS, Kind, ShardOwner, decode, place_of
from tailrace.meta.store import Entry, MetadataStore

RETRY_MS: Final = 250


class ShardMap:
    """Follows who owns which shard: a full read, then a watch; again when something was missed."""

    def __init__(
        self, store: MetadataStore, *, on_change: Callable[[], None], say: Callable[[str], None]
    ) -> None:
        self._store = store
        self._on_change = on_change
        self._say = say
        self._owners: dict[int, ShardOwner] = {}
        # How many shards there are; 0 while no coordinator was given any. Every commit asks.
        self.count = 0

    @property
    def owners(self) -> Mapping[int, ShardOwner]:
        return self._owners

    async def run(self) -> None:
        """Keep it up, for ever."""
        while True:
            try:
                await self._follow()
            except StoreUnavailable:
                await asyncio.sleep(RETRY_MS / 1_000)

    async def _follow(self) -> None:
        snapshot = await self._store.snapshot(SHARDS)
        self._owners = {}
        for entry in snapshot.entries:
            self._take(entry.key, entry)
        self._changed()
        watch = self._store.watch(SHARDS, from_revision=snapshot.revision + 1)
        async with aclosing(watch):
            async for batch in watch:
                if batch.compacted:
                    return
                for change in batch.changes:
                    self._take(change.key, change.entry)
                if batch.changes:
                    self._changed()

    def _changed(self) -> None:
        self.count = max(self._owners, default=-1) + 1
        self._on_change()

    def _take(self, key: str, entry: Entry | None) -> None:
        place = place_of(key)
        if place is None or place.kind is not Kind.SHARD:
            return
        if entry is None:
            self._owners.pop(place.number, None)
            return
        try:
            self._owners[place.number] = decode(ShardOwner, entry.value, key=key)
        except CorruptCheckpoint as error:
            self._say(str(error))
            self._owners.pop(place.number, None)
