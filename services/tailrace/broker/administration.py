"""What administrators ask of a broker: delete records, describe replicas."""

from __future__ import annotations

from tailrace.broker.hosted import Hosted
from tailrace.broker.replicas import Replicas
from tailrace.errors import (
    InvalidRequest,
    NotLeader,
    OffsetOutOfRange,
    StorageError,
    TailraceError,
)
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.model import TopicPartition
from tailrace.replication.partition import Role
from tailrace.transport.wire import error_code, from_partition, to_partition
from tailrace.v1 import broker_pb2 as pb


class ReplicaAdmin:
    """Answers for the replicas of one broker."""

    def __init__(self, replicas: Replicas, manager: LogManager) -> None:
        self._replicas = replicas
        self._manager = manager

    async def delete_records(self, request: pb.DeleteRecordsRequest) -> pb.DeleteRecordsResponse:
        """Move the start of logs that this broker leads; followers move theirs with the next push.

        It is durable here on return. A follower that is cut off before it hears of it, and leads
        next, still has the records: deleting is for space and for forgetting, not a fence.
        """
        return pb.DeleteRecordsResponse(
            partitions=[self._delete(each) for each in request.partitions]
        )

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
