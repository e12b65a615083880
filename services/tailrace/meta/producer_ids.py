"""Blocks of producer ids, taken from the store ahead of need.

Controllers and brokers each keep ids in hand, so that new idempotent producers start while the
store is away. A block belongs to the process that took it and is never given back: an id is handed
out once, whatever becomes of the process.

Invariant: no id is handed out twice. Two blocks overlap only if the store forgets a block, so a
process refuses a block that begins below one that it has taken before.
Enter at `next_id`; `keep_stocked` runs beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tailrace.errors import StoreUnavailable, TailraceError
from tailrace.meta.keys import NEXT_PRODUCER_ID, decode_counter, encode_counter
from tailrace.meta.store import CreatedAt, MetadataStore, ModifiedAt, Put
from tailrace.model import FIRST_PRODUCER_ID, PRODUCER_EPOCH_MAX, ProducerId

PRODUCER_IDS_PER_BLOCK: Final = 1_000
# A new block is taken as soon as fewer ids than this are in hand.
STOCK_MIN: Final = 500
STOCK_RETRY_MS: Final = 1_000


class ProducerIdBlocks:
    """The ids that one process may hand out."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        guard: Callable[[], CreatedAt],
        lost: Callable[[], TailraceError],
    ) -> None:
        """`guard`: what must hold for this process to take a block; may raise.

        `lost` makes the error for a guard that does not hold any more.
        """
        self._store = store
        self._guard = guard
        self._lost = lost
        self._stock: list[range] = []
        self._taking = asyncio.Lock()
        self._is_low = asyncio.Event()
        self._is_low.set()
        self._highest = 0

    @property
    def in_hand(self) -> int:
        """How many ids can be handed out without the store."""
        return sum(map(len, self._stock))

    async def next_id(self) -> ProducerId:
        """An id that nobody has. StoreUnavailable when none is in hand and none can be taken."""
        while not self._stock:
            async with self._taking:
                if not self._stock:
                    await self._take()
        block = self._stock[0]
        if len(block) > 1:
            self._stock[0] = block[1:]
        else:
            self._stock.pop(0)
        if self.in_hand < STOCK_MIN:
            self._is_low.set()
        return ProducerId(block[0])

    async def renewed(self, producer_id: int, epoch: int) -> tuple[ProducerId, int]:
        """The caller's own id with a higher epoch; a new id if it has none or the epochs end."""
        if producer_id >= FIRST_PRODUCER_ID and 0 <= epoch < PRODUCER_EPOCH_MAX:
            return ProducerId(producer_id), epoch + 1
        return await self.next_id(), 0

    async def keep_stocked(self) -> None:
        """Take a block whenever few ids are left, and try again while that fails."""
        while True:
            await self._is_low.wait()
            try:
                async with self._taking:
                    if self.in_hand < STOCK_MIN:
                        await self._take()
                self._is_low.clear()
            except TailraceError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(STOCK_RETRY_MS / 1_000)

    async def _take(self) -> None:
        """Take one block; the caller holds the lock."""
        while True:
            guard = self._guard()
            entry = await self._store.get(NEXT_PRODUCER_ID)
            start, revision = FIRST_PRODUCER_ID, 0
            if entry is not None:
                start = decode_counter(entry.value, key=NEXT_PRODUCER_ID)
                revision = entry.mod_revision
            if start < self._highest:
                raise StoreUnavailable(
                    f"{NEXT_PRODUCER_ID} is {start} and was {self._highest} before: the metadata "
                    "store went back, and its producer ids may have been used"
                )
            end = start + PRODUCER_IDS_PER_BLOCK
            result = await self._store.txn(
                [guard, ModifiedAt(NEXT_PRODUCER_ID, revision)],
                [Put(NEXT_PRODUCER_ID, encode_counter(end))],
            )
            if result.succeeded:
                self._highest = end
                self._stock.append(range(start, end))
                return
            holder = await self._store.get(guard.key)
            if holder is None or holder.create_revision != guard.revision:
                raise self._lost()
