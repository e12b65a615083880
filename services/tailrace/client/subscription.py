"""The bytes that members of a group send each other through the coordinator, which passes them on.

Their layout is `proto/tailrace/v1/subscription.proto`. What cannot be read, because another kind of
client wrote it, is InvalidRequest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError

from tailrace.client.assignors import Member
from tailrace.errors import InvalidRequest
from tailrace.model import TopicPartition
from tailrace.v1 import subscription_pb2 as pb

VERSION: Final = 1


def encode_subscription(
    topics: Iterable[str], owned: Iterable[TopicPartition], generation: int
) -> bytes:
    return pb.Subscription(
        version=VERSION, topics=sorted(topics), owned=_grouped(owned), generation=generation
    ).SerializeToString(deterministic=True)


def decode_subscription(member_id: str, instance_id: str, data: bytes) -> Member:
    """The member that the metadata describes."""
    try:
        found = pb.Subscription.FromString(data)
    except DecodeError as error:
        raise InvalidRequest(f"{member_id} has metadata of another kind: {error}") from error
    _check_version(found.version, member_id)
    return Member(
        member_id=member_id,
        instance_id=instance_id,
        topics=frozenset(found.topics),
        owned=frozenset(_flat(found.owned)),
        generation=found.generation,
    )


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    return pb.Assignment(version=VERSION, partitions=_grouped(partitions)).SerializeToString(
        deterministic=True
    )


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """The partitions; none for no bytes, which is what a member gets that the leader left out."""
    if not data:
        return frozenset()
    try:
        found = pb.Assignment.FromString(data)
    except DecodeError as error:
        raise InvalidRequest(f"an assignment of another kind: {error}") from error
    _check_version(found.version, "the leader of the group")
    return frozenset(_flat(found.partitions))


def _check_version(version: int, who: str) -> None:
    if version < 1:
        raise InvalidRequest(f"{who} sent what is no subscription or assignment of Tailrace")


def _grouped(partitions: Iterable[TopicPartition]) -> list[pb.TopicPartitions]:
    by_topic: dict[str, list[int]] = {}
    for each in sorted(partitions):
        by_topic.setdefault(each.topic, []).append(each.partition)
    return [
        pb.TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in by_topic.items()
    ]


def _flat(grouped: Iterable[pb.TopicPartitions]) -> list[TopicPartition]:
    return [TopicPartition(each.topic, number) for each in grouped for number in each.partitions]
