"""The errors of Tailrace: one class, one code, and what the caller should do about it.

`retriable` says that the same call may succeed later; `refresh_metadata` that the caller's view of
the cluster is old. Codes are the names in `proto/tailrace/v1/common.proto` and never change.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


class TailraceError(Exception):
    """The root of every error that Tailrace raises on purpose."""

    code: ClassVar[str] = "UNKNOWN"
    retriable: ClassVar[bool] = False
    refresh_metadata: ClassVar[bool] = False


class InvariantViolation(TailraceError):
    """Our own bug: a rule that protects data does not hold. The process must stop."""

    code = "INVARIANT_VIOLATION"


class BatchFault(Enum):
    """What is wrong with the bytes of a record batch."""

    CUT_SHORT = "cut short"
    BAD_LENGTH = "length field is impossible"
    BAD_MAGIC = "unknown magic"
    BAD_PREFIX_CRC = "CRC of the prefix does not match"
    BAD_CRC = "CRC does not match"
    BAD_HEADER = "header fields contradict each other"
    TOO_LARGE = "larger than the limit"
    BAD_COMPRESSION = "body does not decompress"
    BAD_BODY = "body is not the Arrow message that the header promises"


class CorruptBatch(TailraceError):
    """Bytes that are not a valid record batch: the one error for every kind of bad bytes."""

    code = "CORRUPT_BATCH"

    def __init__(self, fault: BatchFault, detail: str = "") -> None:
        self.fault = fault
        super().__init__(f"corrupt batch: {fault.value}" + (f": {detail}" if detail else ""))


class BatchTooLarge(TailraceError):
    """The batch is whole, but larger than `message.max.bytes` of its topic."""

    code = "BATCH_TOO_LARGE"


class OffsetOutOfRange(TailraceError):
    """The offset asked for is below the log start or above the log end."""

    code = "OFFSET_OUT_OF_RANGE"

    def __init__(self, offset: int, *, log_start: int, log_end: int) -> None:
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end
        super().__init__(f"offset {offset} is outside the log [{log_start}, {log_end})")


class NonContiguousAppend(TailraceError):
    """A follower was handed batches that do not continue its log."""

    code = "NON_CONTIGUOUS_APPEND"


class OutOfOrderSequence(TailraceError):
    """A batch of an idempotent producer skips sequences: something before it is missing."""

    code = "OUT_OF_ORDER_SEQUENCE"


class ProducerFenced(TailraceError):
    """A newer instance of this producer has written; this one must stop."""

    code = "PRODUCER_FENCED"


class UnknownProducer(TailraceError):
    """The log has no state of this producer (expired); it must start anew with a higher epoch."""

    code = "UNKNOWN_PRODUCER"


class LimitReached(TailraceError):
    """A named limit is reached; the call may succeed once others have finished or expired."""

    code = "LIMIT_REACHED"
    retriable = True


class StorageError(TailraceError):
    """The disk said no: the log that meets it stops taking writes until it is opened again."""

    code = "STORAGE_ERROR"


class DamagedLog(TailraceError):
    """Records that were durable are damaged: the replica must be repaired, never served."""

    code = "DAMAGED_LOG"

    def __init__(self, what: str, *, offset: int, recovery_point: int, detail: str) -> None:
        self.offset = offset
        self.recovery_point = recovery_point
        super().__init__(
            f"{what}: offsets {offset} to {recovery_point} were durable and are damaged: {detail}"
        )


class LogClosed(TailraceError):
    """The log was closed, or failed and must be reopened."""

    code = "LOG_CLOSED"


class FolderLocked(TailraceError):
    """Another process has the data folder open."""

    code = "FOLDER_LOCKED"


class FolderMismatch(TailraceError):
    """A data folder belongs to another broker or another cluster."""

    code = "FOLDER_MISMATCH"


class CorruptCheckpoint(TailraceError):
    """A checkpoint, snapshot or metadata file does not hold what its checksum promises."""

    code = "CORRUPT_CHECKPOINT"


class InvalidConfig(TailraceError):
    """A setting has a value that it cannot have."""

    code = "INVALID_CONFIG"
