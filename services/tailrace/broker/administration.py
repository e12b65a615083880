"""What administrators ask of a broker: delete records, describe replicas, strays and deletions."""

from __future__ import annotations

import asyncio
from typing import Final

from tailrace.broker.hosted import Hosted
from tailrace.broker.replicas import Replicas
from tailrace.errors import (
    InvalidRequest,
    NotLeader,
    OffsetOutOfRange,
    StorageError,
    TailraceError,
)
from tailrace.log.deletions import Deletion
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.log.strays import Stray
from tailrace.model import TopicPartition
from tailrace.replication.partition import Role
from tailrace.runtime import Blocking
from tailrace.transport.wire import error_code, from_partition, to_partition
from tailrace.v1 import broker_pb2 as pb

# Deletions in one answer.
DELETIONS_MAX: Final = 500
NOT_KNOWN: Final = -1
# Each of these makes the start of a log durable.
DELETIONS_PER_TURN: Final = 100


class ReplicaAdmin:
    """Answers for the replicas of one broker."""

    def __init__(
        self,
        replicas: Replicas,
        manager: LogManager,
        blocking: Blocking,
        *,
        stray_retention_ms: int,
    ) -> None:
        self._replicas = replicas
        self._manager = manager
        self._blocking = blocking
        self._stray_retention_ms = stray_retention_ms

    async def delete_records(self, request: pb.DeleteRecordsRequest) -> pb.DeleteRecordsResponse:
        """Move the start of logs that this broker leads; followers move theirs with the next push.

        It is durable here on return. A follower that is cut off before it hears of it, and leads
        next, still has the records: deleting is for space and for forgetting, not a fence.
        """
        response = pb.DeleteRecordsResponse()
        for number, each in enumerate(request.partitions, 1):
            response.partitions.append(self._delete(each))
            if number % DELETIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        return response

    def _delete(self, wanted: pb.RecordDeletion) -> pb.RecordsDeleted:
        answer = pb.RecordsDeleted(partition=wanted.partition, log_start=-1)
        try:
            hosted = self._replicas.find(from_partition(wanted.partition), wanted.topic_id)
            self._replicas.delete_records(hosted, _first_to_stay(hosted, wanted.before_offset))
            answer.log_start = hosted.log.log_start
        except TailraceError as error:
            answer.error, answer.message = error_code(error.code), str(error)
        except OSError as error:
            answer.error, answer.message = error_code(StorageError.code), str(error)
        return answer

    async def describe_replicas(
        self, request: pb.DescribeReplicasRequest
    ) -> pb.DescribeReplicasResponse:
        wanted = {from_partition(each) for each in request.partitions}
        return pb.DescribeReplicasResponse(
            folders=[
                pb.FolderDescription(
                    path=folder.path,
                    replicas=[
                        self._describe(each, log)
                        for each, log in sorted(folder.logs.items(), key=_partition)
                        if not wanted or each in wanted
                    ],
                )
                for folder in self._manager.folders
            ]
        )

    async def describe_strays(self, _: pb.DescribeStraysRequest) -> pb.DescribeStraysResponse:
        """How far each goes is read from its segments, off the loop."""
        return pb.DescribeStraysResponse(
            strays=await self._blocking.run(
                lambda: [self._describe_stray(each) for each in self._manager.strays()]
            )
        )

    def _describe_stray(self, stray: Stray) -> pb.StrayDescription:
        about = pb.StrayDescription(
            folder=stray.folder.path,
            name=stray.name,
            partition=to_partition(stray.partition),
            topic_id=stray.topic_id or "",
            log_end=NOT_KNOWN,
            last_epoch=NOT_KNOWN,
            since_ms=NOT_KNOWN,
            why="its note cannot be read",
        )
        until_ms = stray.kept_until_ms(self._stray_retention_ms)
        about.kept_until_ms = NOT_KNOWN if until_ms is None else until_ms
        if stray.note is not None:
            about.since_ms, about.why = stray.note.since_ms, stray.note.why
            about.log_start = stray.note.log_start
            about.high_watermark = stray.note.high_watermark
        try:
            extent = self._manager.stray_extent(stray)
        except OSError as error:
            about.why += f"; its segments cannot be read: {error}"
        else:
            about.size_bytes, about.log_end, about.last_epoch = extent
        return about

    async def describe_deletions(
        self, request: pb.DescribeDeletionsRequest
    ) -> pb.DescribeDeletionsResponse:
        wanted = [from_partition(each) for each in request.partitions]
        limit = min(request.limit, DELETIONS_MAX) if request.limit > 0 else DELETIONS_MAX
        found = self._manager.deletions(wanted)[-limit:]
        return pb.DescribeDeletionsResponse(deletions=map(_deletion, found))

    def _describe(self, partition: TopicPartition, log: PartitionLog) -> pb.ReplicaDescription:
        about = pb.ReplicaDescription(
            partition=to_partition(partition),
            size_bytes=log.size_bytes,
            log_start=log.log_start,
            log_end=log.log_end,
            last_epoch=log.last_epoch,
            leader_epoch=-1,
        )
        hosted = self._replicas.get(partition)
        if hosted is not None:
            about.topic_id = hosted.topic_id
            about.high_watermark = hosted.machine.high_watermark
            about.leads = hosted.machine.role is Role.LEADER
            about.leader_epoch = hosted.machine.leader_epoch
        return about


def _deletion(line: Deletion) -> pb.DeletionDescription:
    return pb.DeletionDescription(
        at_ms=line.at_ms,
        partition=to_partition(line.partition),
        topic_id=line.topic_id,
        kind=line.kind,
        from_offset=line.from_offset,
        to_offset=line.to_offset,
        evidence=line.evidence,
        why=line.why,
    )


def _first_to_stay(hosted: Hosted, before_offset: int) -> int:
    """The offset that the log is to start at; what cannot be is refused."""
    machine = hosted.machine
    if machine.role is not Role.LEADER:
        raise NotLeader(f"{hosted.partition} is led by {machine.leader}")
    if not hosted.settings.log.cleanup_policy.deletes:
        raise InvalidRequest(
            f"{hosted.partition} is compacted and keeps the last record of every key: "
            "cleanup.policy must include delete for records to be deleted"
        )
    if before_offset == -1:
        return machine.high_watermark
    if not 0 <= before_offset <= machine.high_watermark:
        raise OffsetOutOfRange(
            before_offset, log_start=hosted.log.log_start, log_end=machine.high_watermark
        )
    return before_offset


def _partition(entry: tuple[TopicPartition, PartitionLog]) -> TopicPartition:
    return entry[0]
