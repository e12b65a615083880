"""What is let into the topics of the cluster's own, by its looks."""

from __future__ import annotations

import pytest

from tailrace.broker.internal_topics import check_records, claimed_epoch, is_known
from tailrace.coordinator.records import (
    Change,
    GroupFacts,
    GroupStored,
    Member,
    Phase,
    Position,
    PositionStored,
    ShardTaken,
    encode,
)
from tailrace.errors import CorruptBatch, InvalidRequest
from tailrace.log.producers import ProducerStates
from tailrace.meta.shard_producers import producer_of
from tailrace.model import OFFSETS_TOPIC, TopicPartition
from tailrace.record.build import BatchBuilder
from tailrace.record.codec import Compression

SHARD = TopicPartition(OFFSETS_TOPIC, 7)
MEMBER = Member(
    member_id='odd "name"\\ é\n',
    session_timeout_ms=1,
    rebalance_timeout_ms=2,
    protocols=(("range", b"\xff\0"),),
)
CHANGES: tuple[Change, ...] = (
    ShardTaken(3, 9),
    GroupStored("größe \"'\\", GroupFacts(phase=Phase.STABLE, members={"m": MEMBER})),
    GroupStored("gone", None),
    PositionStored("g\n\t", TopicPartition("a.b_c-d", 0), Position(5, 1, "id", "Größe {}", 9)),
    PositionStored("g", TopicPartition("t", 12), None),
)


def batch(
    *records: tuple[bytes | None, bytes | None],
    shard: int = 7,
    epoch: int = 4,
    codec: Compression = Compression.NONE,
    sequence: int = 0,
) -> bytes:
    builder = BatchBuilder(codec)
    for key, value in records or ((b'["owner"]', b'{"version":1}'),):
        builder.append(value, key, 5)
    producer_id, producer_epoch = producer_of(shard, epoch)
    return builder.build(
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence
    )


def test_what_coordinators_write_is_let_in() -> None:
    data = batch(*((each.key, each.value) for each in map(encode, CHANGES)))
    assert claimed_epoch(SHARD, data) == 4
    check_records(SHARD, data)
    check_records(SHARD, batch((b'["later","kind",1]', b'{"version":77,"x":[]}')))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b'{"version":1}'),
        (b"key", b'{"version":1}'),
        (b'["owner"', b'{"version":1}'),
        (b'["owner"]\n', b'{"version":1}'),
        (b'["\xff"]', None),
        (b'["owner"]', b"value"),
        (b'["owner"]', b'{"version":1'),
        (b'["owner"]', b'{"version":x}'),
        (b'["owner"]', b""),
        (b"", None),
    ],
)
def test_a1_other_records_are_refused(key: bytes | None, value: bytes | None) -> None:
    good = (b'["owner"]', b'{"version":1}')
    with pytest.raises(InvalidRequest, match="no coordinator writes"):
        check_records(SHARD, batch(good, (key, value), good))


def test_a1_a_batch_in_nobodys_name_is_refused() -> None:
    anonymous = BatchBuilder()
    anonymous.append(b"v")
    others = (
        anonymous.build(),
        anonymous.build(producer_id=7, producer_epoch=0, base_sequence=0),
        batch(shard=8),
        batch() + batch(epoch=5, sequence=1),
        batch((b'["owner"]', b'{"version":1}' * 99), codec=Compression.ZSTD),
        b"",
    )
    for data in others:
        with pytest.raises(InvalidRequest, match="clients read it, and do not write"):
            claimed_epoch(SHARD, data)
    with pytest.raises(CorruptBatch):
        claimed_epoch(SHARD, b"rubbish" * 20)


def test_a1_there_are_no_owners_of_other_topics() -> None:
    with pytest.raises(InvalidRequest, match="__of_mine is the cluster's own"):
        claimed_epoch(TopicPartition("__of_mine", 7), batch())


def test_the_log_knows_who_wrote_last() -> None:
    producers = ProducerStates()
    assert not is_known(producers, SHARD, 4)
    producer_id, producer_epoch = producer_of(7, 4)
    producers.update(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=0,
        last_sequence=0,
        base_offset=0,
        last_offset=0,
        timestamp_ms=0,
        now_ms=0,
    )
    assert is_known(producers, SHARD, 4)
    assert not is_known(producers, SHARD, 3)
    assert not is_known(producers, SHARD, 5)
