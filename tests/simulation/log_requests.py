"""What producers send to the log under test: plain batches, idempotent ones, retries, nonsense."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Final

from simulation.log_model import PartitionModel, Produced, Request, Row, Stored
from tailrace.record.build import BatchBuilder
from tailrace.record.codec import Compression
from tailrace.record.header import HEADER_BYTES, assemble, read_header

START_MS: Final = 1_700_000_000_000
STEP_MS: Final = 20
POOL_SIZE: Final = 64
KEYS: Final = 8
RETRIES_FROM: Final = 7
"""A retry is one of this many newest batches; the log must know the newest five."""

# Lists that a choice is made from: how many batches an append has, and by how much epochs rise.
APPEND_SIZES: Final = (1, 1, 1, 2, 3)
LEADER_STEPS: Final = (*(0,) * 8, 1, 2)
BATCH_STEPS: Final = (*(0,) * 7, 1)


@cache
def pool() -> tuple[Request, ...]:
    """Batches of some sizes and times, built once: making one costs more than appending it."""
    rng = Random(0)
    return tuple(_pooled(rng, number) for number in range(POOL_SIZE))


def plain_request(rng: Random, step: int) -> Request:
    """A batch with about the time of this step."""
    return pool()[max(0, min(POOL_SIZE - 1, step + rng.randint(-4, 4)))]


def produced(plain: Request, producer_id: int, epoch: int, sequence: int) -> Request:
    """The batch with the marks of an idempotent producer."""
    header = plain.header._replace(
        producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    body = plain.data[HEADER_BYTES : len(plain.data) - header.padding]
    data = assemble(header, body)
    return Request(data, read_header(data), plain.rows)


def random_request(
    rng: Random, step: int, model: PartitionModel, producer_ids: list[int]
) -> Request:
    """A batch, half of the time of an idempotent producer: new, retried or out of order."""
    plain = plain_request(rng, step)
    if rng.random() < 0.5:
        return plain
    producer_id = rng.choice(producer_ids)
    history = model.history(producer_id)
    draw = rng.random()
    if not history:
        return produced(plain, producer_id, 0, 0 if draw < 0.95 else 3)
    newest = history[0]
    epoch = newest.header.producer_epoch
    if draw < 0.3:
        return rng.choice(history[:RETRIES_FROM]).request
    if draw < 0.35:
        return produced(plain, producer_id, epoch + 1, rng.choice((0, 0, 0, 1)))
    if draw < 0.37 and epoch > 0:
        return produced(plain, producer_id, epoch - 1, 0)
    gap = 7 if draw > 0.97 else 0
    return produced(plain, producer_id, epoch, newest.next_sequence + gap)


def replicated_request(
    rng: Random, step: int, model: PartitionModel, producer_ids: list[int], before: list[Stored]
) -> Request:
    """A batch that a leader has taken, after those `before` it: so it is in order."""
    plain = plain_request(rng, step)
    if rng.random() < 0.6:
        return plain
    producer_id = rng.choice(producer_ids)
    newest = _newest(before, producer_id) or next(iter(model.history(producer_id)), None)
    if newest is None:
        return produced(plain, producer_id, 0, 0)
    epoch = newest.header.producer_epoch
    if rng.random() < 0.1:
        return produced(plain, producer_id, epoch + 1, 0)
    return produced(plain, producer_id, epoch, newest.next_sequence)


def shown(request: Request) -> str:
    header = request.header
    who = ""
    if header.producer_id >= 0:
        who = f" p{header.producer_id}/{header.producer_epoch}#{header.base_sequence}"
    return f"{header.record_count} records{who}"


def _newest(batches: list[Stored], producer_id: int) -> Produced | None:
    for batch in reversed(batches):
        request = batch.request
        if request is not None and request.header.producer_id == producer_id:
            return Produced(batch.base, batch.end, batch.max_time_ms, request)
    return None


def _pooled(rng: Random, number: int) -> Request:
    codec = rng.choice((Compression.NONE, Compression.NONE, Compression.LZ4, Compression.ZSTD))
    builder = BatchBuilder(codec)
    rows: list[Row] = []
    for offset in range(rng.choice((1, 1, 2, 3, 5))):
        time_ms = START_MS + number * STEP_MS + rng.randint(-3 * STEP_MS, 3 * STEP_MS)
        key = b"key-%d" % rng.randrange(KEYS) if rng.random() < 0.9 else None
        value = None if rng.random() < 0.2 else bytes([number]) * rng.choice((0, 10, 200, 600))
        builder.append(value, key, time_ms, [("h", b"x")] if rng.random() < 0.1 else None)
        rows.append(Row(offset, time_ms, key, value))
    data = builder.build()
    return Request(data, read_header(data), tuple(rows))
