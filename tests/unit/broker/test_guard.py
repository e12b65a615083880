"""What takes time before an append: looks off the loop, and who owns a shard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from simulation.loop import InlineBlocking
from tailrace.broker import guard as module
from tailrace.broker.guard import INLINE_WORK_BYTES_MAX, LOOKS_MAX, pieces
from tailrace.log.admission import check_bodies
from tailrace.meta.keys import ShardOwner, encode, shard_key
from tailrace.meta.store import Delete, Put
from tailrace.model import OFFSETS_TOPIC, TopicPartition
from tailrace.record.build import BatchBuilder
from tailrace.record.codec import Compression
from tailrace.record.header import assemble, read_header
from tailrace.record.validation import work_bytes
from tailrace.transport.envelopes import PartitionBatches, ProduceRequest
from tailrace.transport.wire import code_name, to_partition
from tailrace.v1 import broker_pb2
from unit.broker.test_internal_topics import batch as shard_batch
from unit.broker.trio import T0, Trio, batch, simulate

T = TypeVar("T")
SHARD = TopicPartition(OFFSETS_TOPIC, 7)
OTHER = TopicPartition("t", 1)


def packed(
    rows: int, *, sequence: int = -1, codec: Compression = Compression.ZSTD, tag: bytes = b""
) -> bytes:
    builder = BatchBuilder(codec)
    for row in range(rows):
        builder.append(tag + b"value %d" % row * 20, timestamp_ms=5)
    if sequence < 0:
        return builder.build()
    return builder.build(producer_id=5, producer_epoch=0, base_sequence=sequence)


LARGE = packed(5_000)


def junk(data: bytes = LARGE) -> bytes:
    """A frame that says the right size, with its content damaged."""
    header = read_header(data)
    stored = bytearray(data[88 : header.length - header.padding])
    stored[len(stored) // 2] ^= 0xFF
    stored[-3] ^= 0xFF
    return assemble(header, bytes(stored))


async def looks(trio: Trio) -> int:
    producing = trio.brokers[0].producing
    assert producing is not None
    return producing.guard.looks


async def sent(trio: Trio, *parts: tuple[TopicPartition, bytes]) -> list[Any]:
    stream = trio.producing()
    await stream.send(_request(1, parts))
    response = await stream.recv()
    assert response is not None
    return list(response.partitions)


def _request(number: int, parts: Sequence[tuple[TopicPartition, bytes]]) -> ProduceRequest:
    return ProduceRequest(
        correlation=number,
        acks=broker_pb2.ACKS_ALL,
        timeout_ms=3_000,
        partitions=[
            PartitionBatches(partition=to_partition(each), leader_epoch=-1, batches=data)
            for each, data in parts
        ],
    )


def run(main: Callable[[Trio], Any]) -> None:
    async def start(trio: Trio) -> None:
        await trio.start()
        for partition in (T0, OTHER, SHARD):
            await trio.lead(0, 1, partition=partition)
        await main(trio)

    simulate(start)()


def test_only_what_is_large_is_looked_at_off_the_loop() -> None:
    async def main(trio: Trio) -> None:
        assert not (await trio.produce(packed(5))).error
        assert not (await trio.produce(batch())).error
        assert await looks(trio) == 0
        assert work_bytes(LARGE) > INLINE_WORK_BYTES_MAX
        assert not (await trio.produce(LARGE)).error
        assert await looks(trio) == 1

    run(main)


def test_f45_a_refused_partition_leaves_the_others_of_the_request_alone() -> None:
    async def main(trio: Trio) -> None:
        for data in (junk(), _rubbish()):
            bad, good = await sent(trio, (T0, data), (OTHER, batch()))
            assert code_name(bad.error) == "CORRUPT_BATCH"
            assert "does not decompress" in bad.message or "Arrow message" in bad.message
            assert not good.error
        assert trio.ends()[0] == 0
        assert trio.ends(OTHER)[0] > 0

    run(main)


def _rubbish() -> bytes:
    header = read_header(batch())
    return assemble(header, bytes(header.body_bytes))


def test_a_look_keeps_the_order_of_a_stream() -> None:
    """Small requests behind a large one do not overtake it: an idempotent producer goes on."""

    async def main(trio: Trio) -> None:
        stream = trio.producing()
        sequence = 0
        for number in range(12):
            rows = 5_000 if number % 3 == 0 else 2
            await stream.send(_request(number, [(T0, packed(rows, sequence=sequence))]))
            sequence += rows
        for number in range(12):
            response = await stream.recv()
            assert response is not None
            assert response.correlation == number
            (part,) = response.partitions
            assert not part.error, part.message
            assert not part.batches[0].error, part.batches[0].message
        assert trio.ends()[0] == sequence
        assert await looks(trio) == 4

    run(main)


def test_few_looks_are_taken_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(trio: Trio) -> None:
        under_way = most = 0
        plain = InlineBlocking.run

        def counted(self: InlineBlocking, work: Callable[[], T]) -> asyncio.Future[T]:
            nonlocal under_way, most
            found = plain(self, work)
            if getattr(work, "func", None) is check_bodies:
                under_way += 1
                most = max(most, under_way)

                def over(_: object) -> None:
                    nonlocal under_way
                    under_way -= 1

                found.add_done_callback(over)
            return found

        monkeypatch.setattr(InlineBlocking, "run", counted)
        answers = await asyncio.gather(*(trio.produce(LARGE) for _ in range(10)))
        assert not any(each.error for each in answers)
        assert most == LOOKS_MAX

    run(main)


def test_batches_go_in_pieces() -> None:
    data = LARGE * 40
    found = list(pieces(data))
    assert len(found) > 1
    assert b"".join(found) == data
    assert all(work_bytes(each) <= module.LOOK_BYTES_MAX for each in found)
    for odd in (b"", b"rubbish", LARGE + b"rubbish", LARGE[:-8]):
        assert b"".join(pieces(odd)) == odd


async def own(trio: Trio, epoch: int, shard: int = 7) -> None:
    owner = ShardOwner(owner=1, owner_epoch=2, epoch=epoch)
    await trio.store.txn([], [Put(shard_key(shard), encode(owner))])
    # What the store said a moment ago is believed for a moment.
    await asyncio.sleep(1)


def test_a1_only_the_owner_of_a_shard_writes_to_it() -> None:
    async def main(trio: Trio) -> None:
        refused = await trio.produce(batch(), partition=SHARD)
        assert code_name(refused.error) == "INVALID_REQUEST"
        assert "clients read it, and do not write to it" in refused.message
        # Nobody owns the shard, then somebody does.
        refused = await trio.produce(shard_batch(), partition=SHARD)
        assert code_name(refused.error) == "NOT_COORDINATOR"
        await own(trio, 4)
        assert not (await trio.produce(shard_batch(), partition=SHARD)).error
        # An epoch that nobody was given would shut the owner out.
        for epoch in (5, 9, 32_767, 1 << 20):
            refused = await trio.produce(shard_batch(epoch=epoch), partition=SHARD)
            assert code_name(refused.error) == "NOT_COORDINATOR"
        assert not (await trio.produce(shard_batch(sequence=1), partition=SHARD)).error
        assert trio.ends(SHARD)[0] == 2

    run(main)


def test_a1_an_owner_of_before_is_shut_out() -> None:
    async def main(trio: Trio) -> None:
        await own(trio, 6)
        refused = await trio.produce(shard_batch(epoch=5), partition=SHARD)
        assert code_name(refused.error) == "PRODUCER_FENCED"
        assert not (await trio.produce(shard_batch(epoch=6), partition=SHARD)).error

    run(main)


def test_a1_junk_in_the_name_of_the_owner_is_refused() -> None:
    async def main(trio: Trio) -> None:
        await own(trio, 4)
        good = shard_batch()
        header = read_header(good)
        answer = await trio.produce(assemble(header, bytes(header.body_bytes)), partition=SHARD)
        assert code_name(answer.error) == "CORRUPT_BATCH"
        answer = await trio.produce(shard_batch((b"key", b"value")), partition=SHARD)
        assert code_name(answer.error) == "INVALID_REQUEST"
        assert "no coordinator writes" in answer.message
        assert trio.ends(SHARD)[0] == 0

    run(main)


def test_an_owner_that_the_log_knows_needs_no_store() -> None:
    """With the store away, or rolled back, who owns a shard goes on."""

    async def main(trio: Trio) -> None:
        await own(trio, 4)
        assert not (await trio.produce(shard_batch(), partition=SHARD)).error
        await trio.store.txn([], [Delete(shard_key(7))])
        await asyncio.sleep(1)
        assert not (await trio.produce(shard_batch(sequence=1), partition=SHARD)).error

    run(main)


def test_the_store_is_not_asked_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(trio: Trio) -> None:
        producing = trio.brokers[0].producing
        assert producing is not None
        asked: list[int] = []
        plain = producing.guard._stored_epoch

        async def counted(shard: int) -> int | None:
            asked.append(shard)
            return await plain(shard)

        monkeypatch.setattr(producing.guard, "_stored_epoch", counted)
        for epoch in range(5, 50):
            await trio.produce(shard_batch(epoch=epoch), partition=SHARD)
        assert len(asked) < 10

    run(main)
