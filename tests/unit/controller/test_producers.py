"""Ids are never given twice, epochs only rise, and one who is deposed gives none."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tailrace.controller.facts import Term
from tailrace.controller.producers import ProducerIds
from tailrace.errors import InvalidRequest, NotController
from tailrace.meta.keys import (
    CONTROLLER,
    NEXT_PRODUCER_ID,
    ProducerName,
    decode,
    encode,
    encode_counter,
    producer_name_key,
)
from tailrace.meta.memory import MemoryEtcd
from tailrace.meta.store import Delete, Put
from tailrace.model import PRODUCER_EPOCH_MAX, ProducerId


def crowned(etcd: MemoryEtcd, epoch: int = 1) -> ProducerIds:
    """The ids of a controller that has just taken the crown."""
    if etcd.get(CONTROLLER) is not None:
        etcd.txn([], [Delete(CONTROLLER)])
    revision = etcd.txn([], [Put(CONTROLLER, b"c")]).revision
    return ProducerIds(Term(1, epoch, revision), etcd.connect())


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_ids_come_from_blocks() -> None:
    async def scenario() -> None:
        etcd = MemoryEtcd()
        ids = crowned(etcd)
        given = [await ids.unnamed(-1, -1) for _ in range(1_001)]
        assert [each.producer_id for each in given] == list(range(1, 1_002))
        assert {each.epoch for each in given} == {0}
        assert etcd.get(NEXT_PRODUCER_ID).value == b"2001"  # type: ignore[union-attr]

    run(scenario())


def test_an_id_is_given_once_however_many_ask_and_whoever_reigns() -> None:
    async def scenario() -> None:
        etcd = MemoryEtcd()
        seen: list[int] = []
        for epoch in range(1, 4):
            ids = crowned(etcd, epoch)
            given = await asyncio.gather(*(ids.unnamed(0, 0) for _ in range(700)))
            seen += [each.producer_id for each in given]
        assert len(seen) == len({*seen})

    run(scenario())


def test_an_unnamed_producer_that_starts_over_keeps_its_id() -> None:
    async def scenario() -> None:
        ids = crowned(MemoryEtcd())
        assert await ids.unnamed(77, 4) == (77, 5)
        assert await ids.unnamed(77, PRODUCER_EPOCH_MAX - 1) == (77, PRODUCER_EPOCH_MAX)
        assert await ids.unnamed(77, PRODUCER_EPOCH_MAX) == (1, 0)

    run(scenario())


def test_a_named_producer_keeps_its_id_and_its_epoch_rises() -> None:
    async def scenario() -> None:
        etcd = MemoryEtcd()
        ids = crowned(etcd)
        assert await ids.named("a") == (1, 0)
        assert await ids.named("b") == (2, 0)
        assert await ids.named("a") == (1, 1)
        both = await asyncio.gather(ids.named("a"), ids.named("a"))
        assert sorted(both) == [(1, 2), (1, 3)]
        stored = etcd.get(producer_name_key("a"))
        assert stored is not None
        assert decode(ProducerName, stored.value).epoch == 3

    run(scenario())


def test_after_the_last_epoch_a_name_gets_a_new_id() -> None:
    async def scenario() -> None:
        etcd = MemoryEtcd()
        ids = crowned(etcd)
        last = ProducerName(producer_id=ProducerId(50), epoch=PRODUCER_EPOCH_MAX)
        etcd.txn([], [Put(producer_name_key("a"), encode(last))])
        etcd.txn([], [Put(NEXT_PRODUCER_ID, encode_counter(900))])
        assert await ids.named("a") == (900, 0)
        assert await ids.named("a") == (900, 1)

    run(scenario())


def test_f6_one_who_lost_the_crown_gives_no_new_ids_and_raises_no_epoch() -> None:
    async def scenario() -> None:
        etcd = MemoryEtcd()
        old = crowned(etcd)
        await old.named("a")
        new = crowned(etcd, 2)
        with pytest.raises(NotController):
            await old.named("a")
        fresh = crowned(etcd, 3)
        with pytest.raises(NotController):
            await new.unnamed(0, 0)
        assert (await fresh.named("a")).epoch == 1
        etcd.txn([], [Delete(CONTROLLER)])
        with pytest.raises(NotController):
            await fresh.named("a")

    run(scenario())


@pytest.mark.parametrize("name", ["x" * 201, "a\nb"])
def test_names_are_short_and_printable(name: str) -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidRequest):
            await crowned(MemoryEtcd()).named(name)

    run(scenario())
