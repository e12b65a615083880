"""What a shard of `__consumer_offsets` holds: keys and values of its records, and back. Pure.

Keys and values are JSON, so that any reader of the topic can look into it. A value carries a
version; a reader takes what it knows and leaves the rest. A key of a kind that is not known is
passed over (a later version wrote it); a value that cannot be read is CorruptCheckpoint.

Kinds of keys: `["owner"]` is written first by each new owner of the shard, and fences the one
before; `["group", name]` is a group with its members; `["offset", group, topic, partition]` is a
position. A value of null forgets what the key names.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from json.encoder import encode_basestring_ascii as _quoted
from typing import Final, NamedTuple, TypeAlias, cast

from tailrace.errors import CorruptCheckpoint
from tailrace.model import TopicPartition

FORMAT_VERSION: Final = 1
CONSUMER: Final = "consumer"
READER: Final = "reader"

# The names of a member's fields, and its numbers.
MEMBER_BYTES: Final = 200

_OWNER: Final = "owner"
_GROUP: Final = "group"
_OFFSET: Final = "offset"


class Phase(Enum):
    """Where a group stands; the values are the names that people know from Kafka."""

    EMPTY = "Empty"
    JOINING = "PreparingRebalance"
    SYNCING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a generation. `protocols`: what it can assign by, the preferred first."""

    member_id: str
    instance_id: str = ""
    client_id: str = ""
    host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""

    def metadata(self, protocol: str) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A group as it is stored; `members` in the order in which they came, by id."""

    phase: Phase = Phase.EMPTY
    generation: int = 0
    protocol: str = ""
    leader: str = ""
    members: Mapping[str, Member]
    phase_ms: int = 0


class Position(NamedTuple):
    """A committed position."""

    offset: int
    leader_epoch: int
    topic_id: str
    metadata: str
    commit_ms: int
    kind: str = CONSUMER


class ShardTaken(NamedTuple):
    """An owner begins."""

    owner: int
    epoch: int


class GroupStored(NamedTuple):
    """A group is so from now on; None: it is forgotten (its positions go by themselves)."""

    group: str
    facts: GroupFacts | None


class PositionStored(NamedTuple):
    """A position is so from now on; None: it is forgotten."""

    group: str
    partition: TopicPartition
    position: Position | None


Change: TypeAlias = ShardTaken | GroupStored | PositionStored


class Encoded(NamedTuple):
    key: bytes
    value: bytes | None


def encode(change: Change) -> Encoded:
    """The record that says so."""
    if isinstance(change, PositionStored):
        topic, number = change.partition.topic, change.partition.partition
        # By hand, since there are so many of them: a topic's name needs no quoting.
        key = f'["{_OFFSET}",{_quoted(change.group)},"{topic}",{number}]'.encode()
        return Encoded(key, None if change.position is None else _position_bytes(change.position))
    if isinstance(change, GroupStored):
        value = None if change.facts is None else _json(_group_fields(change.facts))
        return Encoded(_json([_GROUP, change.group]), value)
    fields = {"version": FORMAT_VERSION, "owner": change.owner, "epoch": change.epoch}
    return Encoded(_json([_OWNER]), _json(fields))


def size_of(member: Member) -> int:
    """What a member adds to the record of its group; bytes as they are before they become text."""
    names = (member.member_id, member.instance_id, member.client_id, member.host)
    texts = (*names, *(name for name, _ in member.protocols))
    data = (member.assignment, *(data for _, data in member.protocols))
    return MEMBER_BYTES + sum(len(_quoted(each)) for each in texts) + sum(map(len, data))


def decode(key: bytes | None, value: bytes | None) -> Change | None:
    """What a record says; None when it is of a kind that is not known here."""
    where = f"record {key!r}"
    try:
        parts = json.loads(key or b"null")
        fields = None if value is None else json.loads(value)
        match parts:
            case [str(kind), str(group), str(topic), int(partition)] if kind == _OFFSET:
                position = None if fields is None else _read_position(fields)
                return PositionStored(group, TopicPartition(topic, partition), position)
            case [str(kind), str(group)] if kind == _GROUP:
                return GroupStored(group, None if fields is None else _read_group(fields))
            case [str(kind)] if kind == _OWNER and fields is not None:
                return ShardTaken(int(fields["owner"]), int(fields["epoch"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptCheckpoint(f"{where} in the shard cannot be read: {error!r}") from error
    return None


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _position_bytes(position: Position) -> bytes:
    kind = f',"kind":"{position.kind}"' if position.kind != CONSUMER else ""
    return (
        f'{{"version":{FORMAT_VERSION},"offset":{position.offset},'
        f'"leader_epoch":{position.leader_epoch},"topic_id":{_quoted(position.topic_id)},'
        f'"metadata":{_quoted(position.metadata)},"commit_ms":{position.commit_ms}{kind}}}'
    ).encode()


def _read_position(fields: dict[str, object]) -> Position:
    return Position(
        offset=_integer(fields["offset"]),
        leader_epoch=_integer(fields["leader_epoch"]),
        topic_id=str(fields["topic_id"]),
        metadata=str(fields["metadata"]),
        commit_ms=_integer(fields["commit_ms"]),
        kind=str(fields.get("kind", CONSUMER)),
    )


def _group_fields(facts: GroupFacts) -> dict[str, object]:
    return {
        "version": FORMAT_VERSION,
        "phase": facts.phase.value,
        "generation": facts.generation,
        "protocol": facts.protocol,
        "leader": facts.leader,
        "phase_ms": facts.phase_ms,
        "members": [
            {
                "member_id": each.member_id,
                "instance_id": each.instance_id,
                "client_id": each.client_id,
                "host": each.host,
                "session_timeout_ms": each.session_timeout_ms,
                "rebalance_timeout_ms": each.rebalance_timeout_ms,
                "protocols": [[name, _text(data)] for name, data in each.protocols],
                "assignment": _text(each.assignment),
            }
            for each in facts.members.values()
        ],
    }


def _read_group(fields: dict[str, object]) -> GroupFacts:
    members = [_read_member(each) for each in cast("list[dict[str, object]]", fields["members"])]
    return GroupFacts(
        phase=Phase(fields["phase"]),
        generation=_integer(fields["generation"]),
        protocol=str(fields["protocol"]),
        leader=str(fields["leader"]),
        members={each.member_id: each for each in members},
        phase_ms=_integer(fields["phase_ms"]),
    )


def _read_member(fields: dict[str, object]) -> Member:
    return Member(
        member_id=str(fields["member_id"]),
        instance_id=str(fields["instance_id"]),
        client_id=str(fields["client_id"]),
        host=str(fields["host"]),
        session_timeout_ms=_integer(fields["session_timeout_ms"]),
        rebalance_timeout_ms=_integer(fields["rebalance_timeout_ms"]),
        protocols=tuple(
            (name, base64.b64decode(text, validate=True))
            for name, text in cast("list[tuple[str, str]]", fields["protocols"])
        ),
        assignment=base64.b64decode(str(fields["assignment"]), validate=True),
    )


def _integer(found: object) -> int:
    if type(found) is not int:
        raise TypeError(f"{found!r} is not an integer")
    return found


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
