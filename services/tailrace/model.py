"""Ids and small values that every part of Tailrace shares.

Frozen values only: nothing here does I/O, reads a clock or knows another module of Tailrace.
"""

from __future__ import annotations

import re
import zlib
from typing import Final, NamedTuple, NewType

Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
BrokerId = NewType("BrokerId", int)
ProducerId = NewType("ProducerId", int)
TopicId = NewType("TopicId", str)

NO_LEADER_EPOCH: Final = LeaderEpoch(-1)
NO_PRODUCER_ID: Final = ProducerId(-1)
NO_TIMESTAMP_MS: Final = -1
# 0 is what a request has that names no id.
FIRST_PRODUCER_ID: Final = 1
PRODUCER_EPOCH_MAX: Final = 32_767

# Where coordinators keep groups and positions: one partition for each shard of groups.
OFFSETS_TOPIC: Final = "__consumer_offsets"
# Kept by the cluster for itself: nobody can delete them.
INTERNAL_TOPICS: Final = (OFFSETS_TOPIC,)
# What the cluster keeps for itself has a name that begins so.
INTERNAL_PREFIX: Final = "__"
GROUP_SHARDS: Final = 50

TOPIC_NAME_LENGTH_MAX: Final = 200
_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_FOLDER_NAME: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>0|[1-9][0-9]{0,8})")


class TopicPartition(NamedTuple):
    """One partition of one topic; its text form names the partition's folder on disk.

    A tuple, since it is the key of most look-ups: it is hashed and compared without a call.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TopicPartition | None:
        """Return the partition that `<topic>-<partition>` names, or None for any other text."""
        match = _FOLDER_NAME.fullmatch(text)
        if match is None or topic_name_problem(match["topic"]) is not None:
            return None
        return cls(match["topic"], int(match["partition"]))


def is_internal(topic: str) -> bool:
    """Whether the cluster keeps the topic for itself: clients do not write to it."""
    return topic.startswith(INTERNAL_PREFIX)


def topic_name_problem(name: str) -> str | None:
    """Say what is wrong with a topic name, or None when it is a good one."""
    if not name:
        return "a topic name must not be empty"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"a topic name has at most {TOPIC_NAME_LENGTH_MAX} characters, not {len(name)}"
    if name in {".", ".."}:
        return f"{name!r} is not a topic name"
    if _TOPIC_NAME.fullmatch(name) is None:
        return f"{name!r}: a topic name is made of letters, digits, '.', '_' and '-'"
    return None


def shard_of(group: str, shards: int = GROUP_SHARDS) -> int:
    """The shard that a group belongs to: the partition of `__consumer_offsets` that has it."""
    return zlib.crc32(group.encode()) % shards


def settled_count(replicas: int, *, adding: int, removing: int) -> int:
    """How many replicas count for defaults: while some come and go, the smaller set of the two."""
    return max(1, replicas - max(adding, removing))


class LogStartCause(NamedTuple):
    """Why a log begins where it does: the last deliberate move of its log start.

    `kind` is what gave the records up (RETENTION, DELETE_RECORDS), `leader_epoch` the leadership
    that did it, `offset` up to where. It covers every move up to that offset.
    """

    kind: str
    leader_epoch: int
    offset: int


RETENTION: Final = "retention"
DELETE_RECORDS: Final = "delete_records"
LOG_START_KINDS: Final = (RETENTION, DELETE_RECORDS)
