"""Batches that arrived and cannot be decoded: what they are called, and how far they reach. Pure.

Owns no state. A body that is junk under a valid checksum has a header that can be trusted, so its
offsets are known. Bytes whose checksum is wrong say only what a second batch, or two fields of the
header that agree, confirm: a reader that skips must not pass over records that are sound.
"""

from __future__ import annotations

import logging
from typing import Final

import pyarrow as pa

from tailrace.errors import BatchFault, CorruptBatch, InvalidConfig, UnreadableBatch
from tailrace.model import TopicPartition
from tailrace.record.header import HEADER_BYTES, BatchHeader, read_header

RAISE: Final = "raise"
SKIP: Final = "skip"
ON_CORRUPT: Final = (RAISE, SKIP)
"""What a reader may do at a batch that it cannot decode."""

UNDECODABLE: Final = (CorruptBatch, pa.ArrowException, ValueError, OverflowError, LookupError)
"""What decoding untrusted bytes may raise; running out of memory says nothing of the bytes."""

_LOG: Final = logging.getLogger(__name__)
# The bytes are as their producer sent them, so every replica has the same.
_BODY_FAULTS: Final = (BatchFault.BAD_BODY, BatchFault.BAD_COMPRESSION, BatchFault.TOO_LARGE)


def check_on_corrupt(name: str, value: object) -> None:
    """InvalidConfig when it is not one of ON_CORRUPT."""
    if value not in ON_CORRUPT:
        raise InvalidConfig(f"{name}={value!r} must be one of {', '.join(ON_CORRUPT)}")


def unreadable_body(
    partition: TopicPartition, header: BatchHeader, cause: Exception
) -> UnreadableBatch:
    """The error for a batch whose checksum is right and whose body is not."""
    return _made(partition, header.base_offset, header.last_offset, cause)


def unreadable_bytes(
    partition: TopicPartition, due: int, data: bytes | memoryview, cause: Exception
) -> UnreadableBatch:
    """The error for bytes that came where offset `due` was expected."""
    return _made(partition, due, max(_last_offset(data, due), due), cause)


def log_skipped(error: UnreadableBatch) -> None:
    """Say which batch a reader passed over: once for each, since none comes twice."""
    _LOG.warning(
        "skipped an unreadable batch: topic=%s partition=%d first_offset=%d last_offset=%d "
        "reason=%s",
        error.topic,
        error.partition,
        error.first_offset,
        error.last_offset,
        error.reason,
    )


def may_differ_elsewhere(error: Exception | None) -> bool:
    """Whether another replica may have a sound copy of what this error is about."""
    return isinstance(error, UnreadableBatch) and error.fault not in _BODY_FAULTS


def _made(
    partition: TopicPartition, first_offset: int, last_offset: int, cause: Exception
) -> UnreadableBatch:
    reason = str(cause) or repr(cause)
    topic, number = partition.topic, partition.partition
    error = UnreadableBatch(topic, number, first_offset, last_offset, reason)
    error.fault = getattr(cause, "fault", BatchFault.BAD_BODY)
    error.__cause__ = cause
    return error


def _last_offset(data: bytes | memoryview, due: int) -> int:
    """The last offset of the batch that holds `due`, as far as its bytes can be believed."""
    position, claimed = 0, due
    while position + HEADER_BYTES <= len(data):
        try:
            header = read_header(data, position)
        except CorruptBatch:
            break
        if header.base_offset > due:
            # A prefix with a checksum of its own: the batch before ends there.
            return header.base_offset - 1
        if not header.is_compacted and header.last_offset >= due:
            # The count of records and the last offset agree.
            claimed = header.last_offset
        position += header.length
    return claimed
