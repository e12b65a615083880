"""Blocks of producer ids: in hand before they are needed, never handed out twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from simulation.loop import SimLoop
from tailrace.errors import NotController, StoreUnavailable
from tailrace.meta.keys import NEXT_PRODUCER_ID, encode_counter
from tailrace.meta.memory import MemoryEtcd
from tailrace.meta.producer_ids import PRODUCER_IDS_PER_BLOCK, STOCK_MIN, ProducerIdBlocks
from tailrace.meta.store import CreatedAt, Delete, Put

GUARD = "/guard"


def blocks_of(etcd: MemoryEtcd) -> ProducerIdBlocks:
    entry = etcd.get(GUARD)
    revision = etcd.txn([], [Put(GUARD, b"g")]).revision if entry is None else entry.create_revision
    return ProducerIdBlocks(
        etcd.connect(timeout_ms=200),
        guard=lambda: CreatedAt(GUARD, revision),
        lost=lambda: NotController("the guard is gone"),
    )


def simulate(main: Callable[[SimLoop, MemoryEtcd], Awaitable[None]]) -> None:
    async def start(loop: SimLoop) -> None:
        await main(loop, MemoryEtcd())

    SimLoop(1).run(start)


def test_l9_ids_in_hand_are_given_while_the_store_is_away() -> None:
    async def main(loop: SimLoop, etcd: MemoryEtcd) -> None:
        blocks = blocks_of(etcd)
        stocking = loop.create_task(blocks.keep_stocked())
        await asyncio.sleep(1)
        assert blocks.in_hand == PRODUCER_IDS_PER_BLOCK
        etcd.stop()
        given = [await blocks.next_id() for _ in range(PRODUCER_IDS_PER_BLOCK)]
        assert given == list(range(1, PRODUCER_IDS_PER_BLOCK + 1))
        with pytest.raises(StoreUnavailable):
            await blocks.next_id()
        etcd.start()
        await asyncio.sleep(5)
        assert blocks.in_hand >= STOCK_MIN
        stocking.cancel()

    simulate(main)


def test_no_two_processes_give_the_same_id() -> None:
    async def main(_: SimLoop, etcd: MemoryEtcd) -> None:
        both = [blocks_of(etcd), blocks_of(etcd)]
        wanted = [each.next_id() for each in both for _ in range(2 * PRODUCER_IDS_PER_BLOCK)]
        given = await asyncio.gather(*wanted)
        assert len({*given}) == len(given)

    simulate(main)


def test_l6_a_store_that_went_back_gives_no_block_that_was_given_before() -> None:
    async def main(_: SimLoop, etcd: MemoryEtcd) -> None:
        blocks = blocks_of(etcd)
        for _number in range(PRODUCER_IDS_PER_BLOCK):
            await blocks.next_id()
        etcd.txn([], [Put(NEXT_PRODUCER_ID, encode_counter(1))])
        with pytest.raises(StoreUnavailable, match="went back"):
            await blocks.next_id()
        etcd.txn([], [Delete(NEXT_PRODUCER_ID)])
        with pytest.raises(StoreUnavailable, match="went back"):
            await blocks.next_id()

    simulate(main)


def test_a_process_whose_guard_is_gone_takes_nothing() -> None:
    async def main(_: SimLoop, etcd: MemoryEtcd) -> None:
        blocks = blocks_of(etcd)
        etcd.txn([], [Delete(GUARD)])
        with pytest.raises(NotController):
            await blocks.next_id()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await blocks.keep_stocked()
        assert etcd.get(NEXT_PRODUCER_ID) is None

    simulate(main)


def test_a_producer_that_starts_over_keeps_its_id_until_its_epochs_end() -> None:
    async def main(_: SimLoop, etcd: MemoryEtcd) -> None:
        blocks = blocks_of(etcd)
        assert await blocks.renewed(7, 3) == (7, 4)
        assert await blocks.renewed(7, 32_767) == (1, 0)
        assert await blocks.renewed(-1, -1) == (2, 0)
        assert await blocks.renewed(0, 0) == (3, 0)

    simulate(main)
