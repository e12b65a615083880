"""The messages that carry batches, read and written by hand: a batch is copied once, or not at all.

They are those of `proto/tailrace/v1/broker.proto`, byte for byte on the wire; a test compares both
codecs. Protobuf would copy the bytes of a batch into its own memory, out of it again at each look
at the field, and once more to nest one message in another, which costs more than all else that a
broker does with a batch. Here `batches` of a message that was read is a view of the bytes that
came, and a message is written as a list of pieces, the batches as they are. What is fetched lies at
a multiple of eight bytes, as Arrow wants its columns: a reader uses them where they are.

Fields that are not known are skipped, as the protocol demands; bytes that are no message raise
DecodeError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from tailrace.model import TopicPartition
from tailrace.transport.rpc import REQUEST_ENTRIES_MAX, Bytes
from tailrace.v1 import broker_pb2 as pb

PARTITIONS_KNOWN_MAX: Final = 16_384
# A message is taken apart in one turn of the loop: what it may consist of at most.
FIELDS_MAX: Final = 65_536
PARTITION_FIELDS_MAX: Final = 8
"""How many names of partitions are kept in their encoded form."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_UINT64: Final = 1 << 64
_SIGN: Final = 1 << 63
_VARINT_BITS_MAX: Final = 63
_NOBODY: Final = TopicPartition("", 0)
_ALIGNMENT: Final = 8
# A field of padding takes two bytes at least.
_PADDINGS: Final = (b"", *(b"\x5a" + bytes((each,)) + bytes(each) for each in range(_ALIGNMENT)))


class Named(Protocol):
    """A partition, as a value or as a message."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...


@dataclass(slots=True)
class PartitionBatches:
    """Batches for one partition."""

    partition: Named = _NOBODY
    topic_id: str = ""
    # Unset stands for none. It is always written: brokers of before took unset for 0.
    leader_epoch: int = -1
    batches: Bytes = b""


@dataclass(slots=True)
class ProduceRequest:
    """Batches for any number of partitions."""

    correlation: int = 0
    acks: pb.Acks.ValueType = pb.ACKS_UNSPECIFIED
    timeout_ms: int = 0
    partitions: Sequence[PartitionBatches] = ()
    client_id: str = ""
    traceparent: str = ""


@dataclass(slots=True)
class PartitionFetched:
    """Data of one partition, or why it is read no longer."""

    partition: Named = _NOBODY
    error: int = 0
    message: str = ""
    high_watermark: int = 0
    log_start: int = 0
    batches: Bytes = b""
    leader: int = 0
    leader_epoch: int = 0
    agreed_offset: int = 0
    tag: int = 0


@dataclass(slots=True)
class FetchResponse:
    """Data of some of the partitions."""

    partitions: list[PartitionFetched] = field(default_factory=list)
    throttle_ms: int = 0
    traceparent: str = ""


# --------------------------------------------------------------------------------------- writing


def encode_produce_request(request: ProduceRequest) -> list[Bytes]:
    pieces: list[Bytes] = []
    if request.correlation:
        pieces.append(b"\x08" + _varint(request.correlation))
    if request.acks:
        pieces.append(b"\x10" + _varint(request.acks))
    if request.timeout_ms:
        pieces.append(b"\x18" + _varint(request.timeout_ms))
    for part in request.partitions:
        head = _partition_field(part.partition)
        if part.topic_id:
            head += _text(b"\x12", part.topic_id)
        head += b"\x18" + _varint(part.leader_epoch)
        _add(pieces, b"\x22", head, b"\x22", part.batches)
    if request.client_id:
        pieces.append(_text(b"\x2a", request.client_id))
    if request.traceparent:
        pieces.append(_text(b"\x32", request.traceparent))
    return pieces


def encode_fetch_response(response: FetchResponse) -> list[Bytes]:
    pieces: list[Bytes] = []
    at = 0
    for part in response.partitions:
        head = _partition_field(part.partition)
        for tag, number in (
            (b"\x10", part.error),
            (b"\x20", part.high_watermark),
            (b"\x28", part.log_start),
            (b"\x38", part.leader),
            (b"\x40", part.leader_epoch),
            (b"\x48", part.agreed_offset),
            (b"\x50", part.tag),
        ):
            if number:
                head += tag + _varint(number)
        if part.message:
            head += _text(b"\x1a", part.message)
        if part.batches:
            head += _padding(at, len(head), len(part.batches))
        at += _add(pieces, b"\x0a", head, b"\x32", part.batches)
    if response.throttle_ms:
        pieces.append(b"\x10" + _varint(response.throttle_ms))
    if response.traceparent:
        pieces.append(_text(b"\x1a", response.traceparent))
    return pieces


def _add(pieces: list[Bytes], tag: bytes, head: bytes, batches_tag: bytes, batches: Bytes) -> int:
    """One nested message: its small fields, then its batches as they are. Gives its size."""
    size = len(batches)
    if size:
        head += batches_tag + _varint(size)
    head = tag + _varint(len(head) + size) + head
    pieces += (head, batches)
    return len(head) + size


def _padding(at: int, head_bytes: int, size: int) -> bytes:
    """What makes the batches of a nested message at `at` begin at a multiple of eight."""
    head_bytes += 1 + _varint_bytes(size)
    for padding in _PADDINGS:
        inner = head_bytes + len(padding)
        if (at + 1 + _varint_bytes(inner + size) + inner) % _ALIGNMENT == 0:
            return padding
    # Where the length of the length changes in between, none may fit: then they are copied.
    return b""


def _partition_field(partition: Named) -> bytes:
    return _named(partition.topic, partition.partition)


@lru_cache(PARTITIONS_KNOWN_MAX)
def _named(topic: str, partition: int) -> bytes:
    body = _text(b"\x0a", topic) if topic else b""
    if partition:
        body += b"\x10" + _varint(partition)
    # A message of which every field has its default is there, or is not: both mean the same.
    return b"\x0a" + _varint(len(body)) + body if body else b""


def _text(tag: bytes, text: str) -> bytes:
    data = text.encode()
    return tag + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    if 0 <= number < 0x80:
        return _SMALL[number]
    if number < 0:
        number += _UINT64
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _varint_bytes(number: int) -> int:
    return (number.bit_length() + 6) // 7 or 1


_SMALL: Final = tuple(bytes((number,)) for number in range(0x80))


# --------------------------------------------------------------------------------------- reading


def check_fields(data: Bytes, at_most: int) -> None:
    """Raise DecodeError for a message with more fields at its top than that.

    Protobuf makes an object of each, however little they carry: who counts first is spared that.
    """
    for _ in _fields(data, 0, len(data), at_most):
        pass


def decode_produce_request(data: Bytes) -> ProduceRequest:
    request = ProduceRequest()
    parts: list[PartitionBatches] = []
    for number, value, start in _fields(data, 0, len(data)):
        if number == 1 and start < 0:
            request.correlation = value
        elif number == 2 and start < 0:
            request.acks = _acks(value)
        elif number == 3 and start < 0:
            request.timeout_ms = value & 0xFFFFFFFF
        elif number == 4 and start >= 0:
            if len(parts) >= REQUEST_ENTRIES_MAX:
                raise DecodeError(f"a request with more than {REQUEST_ENTRIES_MAX} partitions")
            parts.append(_partition_batches(data, start, value))
        elif number == 5 and start >= 0:
            request.client_id = _string(data, start, value)
        elif number == 6 and start >= 0:
            request.traceparent = _string(data, start, value)
    request.partitions = parts
    return request


def decode_fetch_response(data: Bytes) -> FetchResponse:
    response = FetchResponse()
    for number, value, start in _fields(data, 0, len(data)):
        if number == 1 and start >= 0:
            response.partitions.append(_partition_fetched(data, start, value))
        elif number == 2 and start < 0:
            response.throttle_ms = value & 0xFFFFFFFF
        elif number == 3 and start >= 0:
            response.traceparent = _string(data, start, value)
    return response


def _partition_batches(data: Bytes, at: int, end: int) -> PartitionBatches:
    part = PartitionBatches()
    for number, value, start in _fields(data, at, end, PARTITION_FIELDS_MAX):
        if number == 4 and start >= 0:
            part.batches = memoryview(data)[start:value]
        elif number == 1 and start >= 0:
            part.partition = _partition(bytes(data[start:value]))
        elif number == 2 and start >= 0:
            part.topic_id = _string(data, start, value)
        elif number == 3 and start < 0:
            part.leader_epoch = _signed32(value)
    return part


def _partition_fetched(data: Bytes, at: int, end: int) -> PartitionFetched:
    part = PartitionFetched()
    for number, value, start in _fields(data, at, end):
        if start >= 0:
            if number == 6:
                part.batches = memoryview(data)[start:value]
            elif number == 1:
                part.partition = _partition(bytes(data[start:value]))
            elif number == 3:
                part.message = _string(data, start, value)
        elif number in _FETCHED_NUMBERS:
            name, convert = _FETCHED_NUMBERS[number]
            setattr(part, name, convert(value))
    return part


@lru_cache(PARTITIONS_KNOWN_MAX)
def _partition(data: bytes) -> TopicPartition:
    topic, partition = "", 0
    for number, value, start in _fields(data, 0, len(data)):
        if number == 1 and start >= 0:
            topic = _string(data, start, value)
        elif number == 2 and start < 0:
            partition = _signed32(value)
    return TopicPartition(topic, partition)


def _fields(
    data: Bytes, at: int, end: int, at_most: int = FIELDS_MAX
) -> Iterator[tuple[int, int, int]]:
    """Each field as (number, value, -1) or, where it is a run of bytes, (number, end, start)."""
    left = at_most
    while at < end:
        left -= 1
        if left < 0:
            raise DecodeError(f"a message with more than {at_most} fields")
        tag = data[at]
        at += 1
        if tag > 0x7F:
            tag, at = _read_varint(data, at - 1, end)
        kind = tag & 7
        if kind in {_VARINT, _BYTES}:
            if at < end and data[at] < 0x80:
                value = data[at]
                at += 1
            else:
                value, at = _read_varint(data, at, end)
            if kind == _VARINT:
                yield tag >> 3, value, -1
                continue
        elif kind in {_FIXED64, _FIXED32}:
            value = 8 if kind == _FIXED64 else 4
        else:
            raise DecodeError(f"a field of wire type {kind}")
        start, at = at, at + value
        if at > end or not tag >> 3:
            raise DecodeError("a field goes beyond the end of its message")
        if kind == _BYTES:
            yield tag >> 3, at, start


def _read_varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        digit = data[at]
        at += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value % _UINT64, at
        shift += 7
        if shift > _VARINT_BITS_MAX:
            break
    raise DecodeError("a number without an end")


def _string(data: Bytes, start: int, end: int) -> str:
    try:
        return bytes(data[start:end]).decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"not a text: {error}") from error


def _signed64(value: int) -> int:
    return value - _UINT64 if value >= _SIGN else value


def _signed32(value: int) -> int:
    low = value & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low


def _unsigned(value: int) -> int:
    return value


def _acks(value: int) -> pb.Acks.ValueType:
    low = _signed32(value)
    # What a newer client may say means the safest that is known here.
    return _ACKS.get(low, pb.ACKS_ALL)


_ACKS: Final = {int(value): value for value in pb.Acks.values()}
_FETCHED_NUMBERS: Final = {
    2: ("error", _signed32),
    4: ("high_watermark", _signed64),
    5: ("log_start", _signed64),
    7: ("leader", _signed32),
    8: ("leader_epoch", _signed32),
    9: ("agreed_offset", _signed64),
    10: ("tag", _unsigned),
}
