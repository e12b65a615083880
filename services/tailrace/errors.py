"""The errors of Tailrace: one class, one code, and what the caller should do about it.

`retriable` says that the same call may succeed later; `refresh_metadata` that the caller's view of
the cluster is old. Codes are the names in `proto/tailrace/v1/common.proto` and never change.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from difflib import get_close_matches
from enum import Enum
from itertools import islice
from typing import ClassVar, Final

from tailrace.model import TopicPartition


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


class UnreadableBatch(CorruptBatch):
    """A stored batch that a reader cannot decode; the position stays before it until told.

    `last_offset` equals `first_offset` where the bytes do not say how far the batch reaches.
    """

    code = "UNREADABLE_BATCH"
    topic: str = ""
    partition: int = -1
    first_offset: int = -1
    last_offset: int = -1
    reason: str = ""
    fault: BatchFault = BatchFault.BAD_BODY

    def __init__(
        self, topic: str, partition: int, first_offset: int, last_offset: int, reason: str
    ) -> None:
        self.topic, self.partition = topic, partition
        self.first_offset, self.last_offset = first_offset, last_offset
        self.reason = reason
        Exception.__init__(
            self,
            f"{topic}-{partition}: the batch of offsets {first_offset} to {last_offset} cannot be "
            f"read: {reason}. Seek to {last_offset + 1} to go on behind it, or read with "
            'on_corrupt="skip"; `tailrace log verify` and `tailrace log dump` show what is stored',
        )

    def __reduce__(self) -> tuple[object, ...]:
        given = (self.topic, self.partition, self.first_offset, self.last_offset, self.reason)
        return type(self), given, {"fault": self.fault}


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
    # The sequence that the log expected, where it is known: a resumed producer goes on there.
    due_sequence: int = -1
    # Where that is so, as far as a client knows.
    partition: TopicPartition | None = None


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
        # Its beginning is gone: no leader can put that back in front of the rest.
        self.is_headless = False
        self.offset = offset
        self.recovery_point = recovery_point
        super().__init__(
            f"{what}: offsets {offset} to {recovery_point} were durable and are damaged: {detail}"
        )


class HighWatermarkConflict(TailraceError):
    """A replica knows committed records that the leader's log does not have: a person decides."""

    code = "HIGH_WATERMARK_CONFLICT"


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


class NotLeader(TailraceError):
    """This broker does not lead the partition (any more)."""

    code = "NOT_LEADER"
    retriable = True
    refresh_metadata = True


class UnknownTopic(TailraceError):
    """There is no such topic or partition, as far as this broker knows."""

    code = "UNKNOWN_TOPIC"
    retriable = True
    refresh_metadata = True


class UnknownTopicId(TailraceError):
    """The topic of this name is not the one that was meant: it was deleted and made anew."""

    code = "UNKNOWN_TOPIC_ID"
    refresh_metadata = True


class NotEnoughReplicas(TailraceError):
    """Fewer replicas are in sync than `min.insync.replicas` asks for; nothing was appended."""

    code = "NOT_ENOUGH_REPLICAS"
    retriable = True


class NotEnoughReplicasAfterAppend(TailraceError):
    """Appended, but fewer replicas are in sync than `min.insync.replicas` asks for."""

    code = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    retriable = True


class RequestTimedOut(TailraceError):
    """The replicas did not confirm in time; the outcome is not known."""

    code = "REQUEST_TIMED_OUT"
    retriable = True


class FencedEpoch(TailraceError):
    """The leader epoch is older than the one of this replica."""

    code = "FENCED_EPOCH"
    retriable = True
    refresh_metadata = True


class UnknownEpoch(TailraceError):
    """The leader epoch is newer than the one that this broker knows."""

    code = "UNKNOWN_EPOCH"
    retriable = True
    refresh_metadata = True


class Diverged(TailraceError):
    """The follower's log is not the leader's from some offset on: it must truncate."""

    code = "DIVERGED"
    retriable = True


class Truncated(TailraceError):
    """Records that were read are gone: the log was cut below the position."""

    code = "TRUNCATED"
    agreed_offset: int = -1


class StaleController(TailraceError):
    """The order comes from a controller that has been replaced."""

    code = "STALE_CONTROLLER"
    refresh_metadata = True


class StaleBroker(TailraceError):
    """The order or request is for a former life of the broker."""

    code = "STALE_BROKER"
    refresh_metadata = True


class NotController(TailraceError):
    """This controller is not the active one."""

    code = "NOT_CONTROLLER"
    retriable = True
    refresh_metadata = True


class TopicExists(TailraceError):
    """A topic of this name exists already."""

    code = "TOPIC_EXISTS"


class InvalidTopic(TailraceError):
    """The topic's name, number of partitions or replicas cannot be."""

    code = "INVALID_TOPIC"


class StoreUnavailable(TailraceError):
    """The metadata store (etcd) does not answer."""

    code = "STORE_UNAVAILABLE"
    retriable = True


class LeaseLost(TailraceError):
    """The lease is gone; what was registered under it is too."""

    code = "LEASE_LOST"


class Overloaded(TailraceError):
    """The server has as much in hand as it may; wait and try again."""

    code = "OVERLOADED"
    retriable = True


class ShuttingDown(TailraceError):
    """The server is going away; another one will take over."""

    code = "SHUTTING_DOWN"
    retriable = True
    refresh_metadata = True


class Unreachable(TailraceError):
    """The other side cannot be reached, or the connection broke."""

    code = "UNREACHABLE"
    retriable = True
    refresh_metadata = True


class InvalidRequest(TailraceError):
    """The request makes no sense as it is."""

    code = "INVALID_REQUEST"


class DeliveryTimedOut(TailraceError):
    """The record was not acknowledged within `delivery.timeout.ms`."""

    code = "DELIVERY_TIMED_OUT"


class BufferFull(TailraceError):
    """`buffer.memory` was full for longer than `max.block.ms`."""

    code = "BUFFER_FULL"
    retriable = True


class ClientClosed(TailraceError):
    """The client was closed, or belongs to the process before a fork."""

    code = "CLIENT_CLOSED"


class AddressInUse(TailraceError):
    """Another process listens on the address already."""

    code = "ADDRESS_IN_USE"


class CorruptFrame(Unreachable):
    """The other side of a replica link sent what cannot be a frame; the link is closed."""

    code = "CORRUPT_FRAME"


class RequestTooLarge(BatchTooLarge):
    """The request is larger than `socket.request.max.bytes` of the broker: send less at once."""

    code = "REQUEST_TOO_LARGE"


class TooManyConnections(Unreachable):
    """The server has as many connections as it may have, in all or from one address."""

    code = "TOO_MANY_CONNECTIONS"


class DiskFull(TailraceError):
    """A disk of the broker has too little room to take records; it is there when space is back."""

    code = "DISK_FULL"
    retriable = True


class ReplicaOffline(TailraceError):
    """The disk of this replica has failed: another replica leads, or will."""

    code = "REPLICA_OFFLINE"
    retriable = True
    refresh_metadata = True


class InvalidTimestamp(TailraceError):
    """A record's timestamp is further from the broker's time than its topic allows."""

    code = "INVALID_TIMESTAMP"


class ReassignmentInProgress(TailraceError):
    """The partition is being reassigned already: wait for it, or cancel it."""

    code = "REASSIGNMENT_IN_PROGRESS"


class NoReassignment(TailraceError):
    """The partition is not being reassigned."""

    code = "NO_REASSIGNMENT"


class UnknownBroker(TailraceError):
    """There is no such broker, or it is not there now."""

    code = "UNKNOWN_BROKER"


class InvalidAssignment(TailraceError):
    """The replicas that were asked for cannot be: unknown or doubled brokers, too few, too many."""

    code = "INVALID_ASSIGNMENT"


class ElectionNotNeeded(TailraceError):
    """The partition has the leader that it should have."""

    code = "ELECTION_NOT_NEEDED"


class LeaderNotAvailable(TailraceError):
    """The replica that should lead cannot: it is not in sync, not there, or may not lead."""

    code = "LEADER_NOT_AVAILABLE"
    retriable = True


class NotCoordinator(TailraceError):
    """This coordinator does not own the group's shard (any more)."""

    code = "NOT_COORDINATOR"
    retriable = True
    refresh_metadata = True


class CoordinatorLoading(TailraceError):
    """The coordinator is still reading the group's shard; ask again in a moment."""

    code = "COORDINATOR_LOADING"
    retriable = True


class UnknownMember(TailraceError):
    """The group has no such member: its session ended, or it left. Join as somebody new."""

    code = "UNKNOWN_MEMBER"


class IllegalGeneration(TailraceError):
    """The request is of another generation of the group: join again."""

    code = "ILLEGAL_GENERATION"


class RebalanceInProgress(TailraceError):
    """The group is rebalancing: join again."""

    code = "REBALANCE_IN_PROGRESS"


class FencedInstance(TailraceError):
    """Another process took over the place of this static member: this one must stop."""

    code = "FENCED_INSTANCE"


class InconsistentProtocol(TailraceError):
    """The member shares no assignor with the rest of the group."""

    code = "INCONSISTENT_PROTOCOL"


class GroupNotEmpty(TailraceError):
    """The group has members, and what was asked needs one without."""

    code = "GROUP_NOT_EMPTY"


class GroupNotFound(TailraceError):
    """There is no such group."""

    code = "GROUP_NOT_FOUND"


class GroupFull(TailraceError):
    """The group has as many members as the coordinator allows."""

    code = "GROUP_FULL"


class OffsetMetadataTooLarge(TailraceError):
    """The words that came with a position are longer than the coordinator stores."""

    code = "OFFSET_METADATA_TOO_LARGE"


class InvalidGroup(TailraceError):
    """The group's name cannot be."""

    code = "INVALID_GROUP"


class InvalidSessionTimeout(TailraceError):
    """The session timeout is outside what the coordinator allows."""

    code = "INVALID_SESSION_TIMEOUT"


class DeserializationFailed(TailraceError):
    """A consumer's deserializer raised; the position stays before the record until a seek."""

    code = "DESERIALIZATION_FAILED"

    def __init__(self, message: str, *, offset: int) -> None:
        self.offset = offset
        super().__init__(message)


class NoOffset(TailraceError):
    """The group has no committed offset for a partition, and `auto_offset_reset` is "none"."""

    code = "NO_OFFSET"


class WokenUp(TailraceError):
    """Another thread called `wakeup`: the poll under way ends without records."""

    code = "WOKEN_UP"
    retriable = True


class CommitFailed(TailraceError):
    """The member's partitions may have been given to others: nothing was committed."""

    code = "COMMIT_FAILED"


def error_for(code: str, message: str) -> TailraceError:
    """The error that a code from the wire stands for, with the message that came along."""
    kind = _BY_CODE.get(code, TailraceError)
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    return error


def no_topic(names: Iterable[str], known: Iterable[str]) -> UnknownTopic:
    """The error for names that no topic has, with those of topics that are near."""
    wanted = [each[:_NAME_SHOWN] for each in islice(names, _NAMES_SHOWN)]
    there = [each for each in sorted(known)[:_NEAR_AMONG] if len(each) <= _NEAR_LENGTH]
    near = [
        close
        for name in wanted
        if len(name) <= _NEAR_LENGTH
        for close in get_close_matches(name, there, _NEAR_NAMES)
    ]
    meant = f" (near it: {', '.join(dict.fromkeys(near))})" if near else ""
    return UnknownTopic(f"there is no topic {', '.join(map(repr, wanted))}{meant}")


def no_partition(topic: str, count: int, *numbers: int) -> UnknownTopic:
    """The error for partitions that a topic does not have."""
    has = f"has partitions 0 to {count - 1}" if count > 1 else "has only partition 0"
    return UnknownTopic(f"{topic} {has}, not {', '.join(map(str, numbers))}")


def _all_kinds(kind: type[TailraceError]) -> list[type[TailraceError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in _all_kinds(child))]


_BY_CODE: dict[str, type[TailraceError]] = {kind.code: kind for kind in _all_kinds(TailraceError)}


_NEAR_NAMES: Final = 3
# To compare a name with very many takes longer than the help is worth.
_NEAR_AMONG: Final = 2_000
_NEAR_LENGTH: Final = 64
# Of names that somebody sent, as much as a person needs to know them again.
_NAME_SHOWN: Final = 255
_NAMES_SHOWN: Final = 20
_NO_ROOM: Final = {errno.ENOSPC, errno.EDQUOT}


def is_no_room(error: BaseException) -> bool:
    """Whether a full disk is what is wrong, as far as an error and what caused it say."""
    return errno_of(error) in _NO_ROOM


def errno_of(error: BaseException) -> int | None:
    """The number that the operating system gave, in an error or in what caused it."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.errno is not None:
            return found.errno
        found = found.__cause__
    return None
