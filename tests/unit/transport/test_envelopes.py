"""The hand-made codecs say on the wire what protobuf says, and read what protobuf writes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model import TopicPartition
from tailrace.record.build import batch_from_columns
from tailrace.record.view import BatchView
from tailrace.transport.envelopes import (
    FIELDS_MAX,
    PARTITION_FIELDS_MAX,
    FetchResponse,
    PartitionBatches,
    PartitionFetched,
    ProduceRequest,
    decode_fetch_response,
    decode_produce_request,
    encode_fetch_response,
    encode_produce_request,
)
from tailrace.transport.rpc import REQUEST_ENTRIES_MAX, joined
from tailrace.v1 import broker_pb2 as pb
from tailrace.v1 import common_pb2

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
PARTITION = st.builds(TopicPartition, st.text(max_size=9), INT32)
BATCHES = st.binary(max_size=300)

PRODUCE_REQUEST = st.builds(
    ProduceRequest,
    correlation=st.integers(0, 2**64 - 1),
    acks=st.sampled_from(pb.Acks.values()),
    timeout_ms=st.integers(0, 2**32 - 1),
    client_id=st.text(max_size=9),
    traceparent=st.text(max_size=9),
    partitions=st.lists(
        st.builds(
            PartitionBatches,
            partition=PARTITION,
            topic_id=st.text(max_size=9),
            leader_epoch=INT32,
            batches=BATCHES,
        ),
        max_size=3,
    ),
)
FETCH_RESPONSE = st.builds(
    FetchResponse,
    st.lists(
        st.builds(
            PartitionFetched,
            partition=PARTITION,
            error=st.sampled_from(common_pb2.ErrorCode.values()),
            message=st.text(max_size=9),
            high_watermark=INT64,
            log_start=INT64,
            batches=BATCHES,
            leader=INT32,
            leader_epoch=INT32,
            agreed_offset=INT64,
            tag=st.integers(0, 2**64 - 1),
        ),
        max_size=3,
    ),
    throttle_ms=st.integers(0, 2**32 - 1),
    traceparent=st.text(max_size=9),
)


def as_message(value: Any) -> Any:
    """The same as protobuf has it."""
    fields = {name: getattr(value, name) for name in value.__slots__}
    if "batches" in fields:
        named = fields.pop("partition")
        if named != TopicPartition("", 0):
            fields["partition"] = common_pb2.TopicPartition(
                topic=named.topic, partition=named.partition
            )
        fields["batches"] = bytes(fields["batches"])
    if "partitions" in fields:
        fields["partitions"] = [as_message(each) for each in fields["partitions"]]
    return getattr(pb, type(value).__name__)(**fields)


def joined_produce_request(request: ProduceRequest) -> bytes:
    return joined(encode_produce_request(request))


@given(PRODUCE_REQUEST)
def test_protobuf_reads_a_produce_request_and_writes_one_that_is_read(
    request: ProduceRequest,
) -> None:
    message = as_message(request)
    assert pb.ProduceRequest.FromString(joined(encode_produce_request(request))) == message
    assert as_message(decode_produce_request(message.SerializeToString())) == message


def test_an_epoch_that_is_not_set_is_none_and_not_the_first() -> None:
    message = pb.ProduceRequest(partitions=[pb.PartitionBatches(), pb.PartitionBatches()])
    message.partitions[1].leader_epoch = 0
    read = decode_produce_request(message.SerializeToString())
    assert [each.leader_epoch for each in read.partitions] == [-1, 0]
    # Ours is always written: brokers of before would take it for 0.
    written = joined_produce_request(ProduceRequest(partitions=[PartitionBatches()]))
    assert pb.ProduceRequest.FromString(written).partitions[0].leader_epoch == -1


@given(FETCH_RESPONSE)
def test_protobuf_reads_a_fetch_response_and_writes_one_that_is_read(
    response: FetchResponse,
) -> None:
    message = as_message(response)
    theirs = pb.FetchResponse.FromString(joined(encode_fetch_response(response)))
    for part in theirs.partitions:
        assert not any(part.padding)
        part.ClearField("padding")
    assert theirs == message
    assert as_message(decode_fetch_response(message.SerializeToString())) == message


@given(FETCH_RESPONSE, st.lists(st.integers(1, 40), min_size=3, max_size=3))
def test_columns_of_what_is_fetched_are_used_where_they_lie(
    response: FetchResponse, counts: list[int]
) -> None:
    for part, count in zip(response.partitions, counts, strict=False):
        part.batches = batch_from_columns(None, pa.array([b"v"] * count, pa.binary()), 5)
    data = joined(encode_fetch_response(response))
    start = pa.py_buffer(data).address
    for part in decode_fetch_response(data).partitions:
        values = BatchView(part.batches).record_batch().column("value").buffers()[2]
        assert values is not None
        assert start <= values.address < start + len(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_decode_error(data: bytes) -> None:
    for decode in (decode_produce_request, decode_fetch_response):
        try:
            decode(data)
        except DecodeError:
            continue


@given(PRODUCE_REQUEST, st.data())
def test_what_is_cut_short_is_never_read_beyond_its_end(
    request: ProduceRequest, draw: st.DataObject
) -> None:
    data = joined(encode_produce_request(request))
    cut = data[: draw.draw(st.integers(0, len(data)))]
    try:
        theirs = pb.ProduceRequest.FromString(cut)
    except DecodeError:
        with pytest.raises(DecodeError):
            decode_produce_request(cut)
    else:
        assert as_message(decode_produce_request(cut)) == theirs


def test_fields_of_a_newer_protocol_are_skipped() -> None:
    newer = b"\xa0\x06\x05" + b"\xaa\x06\x02hi" + b"\xa5\x06\x00\x00\x00\x00"
    newer += b"\xa1\x06" + bytes(8)
    part = joined_produce_request(
        ProduceRequest(partitions=[PartitionBatches(TopicPartition("t", 3), batches=b"abc")])
    )
    request = decode_produce_request(newer + b"\x08\x07" + part + newer)
    assert request.correlation == 7
    assert request.partitions[0].partition == TopicPartition("t", 3)
    assert request.partitions[0].batches == b"abc"


def test_acks_of_a_newer_protocol_are_taken_for_all() -> None:
    assert decode_produce_request(b"\x10\x63").acks == pb.ACKS_ALL


@pytest.mark.parametrize(
    "data",
    [
        b"\x0b",  # A group, which proto3 has not.
        b"\x08",  # A number without a value.
        b"\x22\x05abc",
        b"\x08" + b"\xff" * 10,
        b"\x22\x06\x0a\x04\x0a\x02\xff\xfe",  # A topic that is no text.
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_produce_request(data)


def test_batches_are_a_view_of_what_came() -> None:
    data = joined_produce_request(
        ProduceRequest(partitions=[PartitionBatches(TopicPartition("t", 0), batches=b"abc")])
    )
    batches = decode_produce_request(data).partitions[0].batches
    assert isinstance(batches, memoryview)
    assert batches.obj is data


def test_a6_a_request_of_many_small_parts_is_not_taken_apart() -> None:
    part = b"\x22\x00"
    assert len(decode_produce_request(part * REQUEST_ENTRIES_MAX).partitions) == 10_000
    with pytest.raises(DecodeError, match="more than 10000 partitions"):
        decode_produce_request(part * (REQUEST_ENTRIES_MAX + 1))
    # Fields that nobody knows are passed over, one after the other.
    with pytest.raises(DecodeError, match="more than 65536 fields"):
        decode_produce_request(b"\x78\x00" * (FIELDS_MAX + 1))
    junk = b"\x78\x00" * (PARTITION_FIELDS_MAX + 1)
    with pytest.raises(DecodeError, match="more than 8 fields"):
        decode_produce_request(b"\x22" + bytes((len(junk),)) + junk)
