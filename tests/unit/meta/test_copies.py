"""A copy of the metadata: what was written is read again; anything else is refused whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import CorruptCheckpoint
from tailrace.meta.copies import (
    FORMAT,
    CopiedEntry,
    MetadataCopy,
    ReplicaOrderRecord,
    StoredMetadata,
    brokers_of,
    decode_copy,
    encode_copy,
)
from tailrace.meta.keys import PartitionState, broker_key
from tailrace.meta.lineage import Witness
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition

ORDER = ReplicaOrderRecord(
    partition=TopicPartition("orders", 3),
    topic_id=TopicId("t-1"),
    state=PartitionState(
        controller_epoch=0,
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(4),
        isr=(BrokerId(1), BrokerId(2)),
    ),
    revision=77,
    replicas=(BrokerId(1), BrokerId(2)),
    config={"flush": "ack"},
)
STORED = StoredMetadata(
    copy=MetadataCopy(
        witness=Witness(cluster_id="c", store_id="s", revision=80, controller_epoch=2, token="x"),
        revision=81,
        taken_ms=1_700_000_000_000,
        entries=(CopiedEntry("/a", b'{"\xff":1}', 3, 4), CopiedEntry("/ü", "ü".encode(), 5, 5)),
    ),
    orders={ORDER.partition: ORDER},
)


def test_the_brokers_of_a_copy_are_those_with_replicas_and_those_that_were_registered() -> None:
    assert brokers_of(STORED) == {1, 2}
    entries = (CopiedEntry(broker_key(7), b"", 3, 3), CopiedEntry("/brokers/ids/x", b"", 3, 3))
    copy = MetadataCopy(witness=Witness(cluster_id="c"), revision=3, taken_ms=0, entries=entries)
    assert brokers_of(StoredMetadata(copy=copy)) == {7}
    assert brokers_of(StoredMetadata()) == set()


@pytest.mark.parametrize("stored", [STORED, StoredMetadata(), StoredMetadata(orders=STORED.orders)])
def test_what_is_written_is_read_again(stored: StoredMetadata) -> None:
    assert decode_copy(encode_copy(stored)) == stored


def test_every_flipped_byte_and_every_cut_is_noticed() -> None:
    data = encode_copy(STORED)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        with pytest.raises(CorruptCheckpoint):
            decode_copy(bytes(flipped))
        with pytest.raises(CorruptCheckpoint):
            decode_copy(data[:at])


@given(st.binary(max_size=200))
def test_junk_is_refused_with_its_place(junk: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match=r"^/data/x"):
        decode_copy(FORMAT + junk, where="/data/x")
