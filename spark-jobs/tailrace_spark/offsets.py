"""Where a Spark query is in its topics, and which ranges its tasks read. Pure and picklable.

Offsets carry the ids of their topics: the same name with another id is another topic, and a
position in the one means nothing in the other. What cannot be read as it was promised is a `Loss`,
a value: the caller decides whether it ends the query or is logged and skipped.

The end of the first micro-batch also says where that batch began (`began`). Spark asks a source for
its first position again after a restart and never stores the answer; "latest" would be another one
by then.

Invariants: ranges of one plan never overlap and together hold exactly what lies between the two
positions; a range never goes backwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

VERSION: Final = 1
NO_EPOCH: Final = -1
UNKNOWN_COUNT: Final = -1

_FOREIGN: Final = (
    "checkpointLocation: it has no offsets of a Tailrace source, but those of another one; "
    "begin with a new folder, and say with startingOffsets where"
)


class WrongCheckpoint(ValueError):
    """What a checkpoint holds cannot be where this query is."""


class Position(NamedTuple):
    """The next offset to read, and an epoch that no record before it exceeds (-1: not known)."""

    offset: int
    epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Positions in the partitions of one topic."""

    topic_id: str
    positions: Mapping[int, Position]


@dataclass(frozen=True, slots=True)
class Offsets:
    """Positions in all topics of a query."""

    topics: Mapping[str, TopicOffsets]
    # Where the first micro-batch begins, in the offset that ends it.
    began: Mapping[str, TopicOffsets] = field(default_factory=dict)
    # Whether this is the first position of a query.
    is_initial: bool = False

    def each(self) -> Iterator[tuple[str, int, Position]]:
        for name in sorted(self.topics):
            for number in sorted(self.topics[name].positions):
                yield name, number, self.topics[name].positions[number]

    def position(self, topic: str, partition: int) -> Position | None:
        found = self.topics.get(topic)
        return None if found is None else found.positions.get(partition)

    def to_json(self) -> dict[str, Any]:
        """A dict of primitives, as Spark stores it; equal offsets give equal dicts."""
        made: dict[str, Any] = {"version": VERSION, "topics": _topics_to_json(self.topics)}
        if self.began:
            made["began"] = _topics_to_json(self.began)
        if self.is_initial:
            made["initial"] = True
        return made

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Offsets:
        """WrongCheckpoint when it is not what `to_json` gave, or of a later version."""
        version = stored.get("version")
        if version is None:
            raise WrongCheckpoint(_FOREIGN)
        if version != VERSION:
            raise WrongCheckpoint(
                f"checkpointLocation: it has offsets of version {version!r}, and this program "
                f"knows {VERSION}: was it written by a newer one?"
            )
        return cls(
            _topics_from_json(stored["topics"]),
            _topics_from_json(stored.get("began", {})),
            bool(stored.get("initial", False)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """What one task reads: offsets from `start` up to, not including, `end`."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    # No record before `start` has a later epoch; -1 when nothing is known.
    last_epoch: int = NO_EPOCH

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Records that can no longer be read; `count` -1: nobody can say how many."""

    topic: str
    partition: int | None
    count: int
    why: str

    def __str__(self) -> str:
        where = self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        many = "an unknown number of" if self.count < 0 else str(self.count)
        return f"{where}: {many} records are lost: {self.why}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranges of one read, in order, and what cannot be read."""

    ranges: tuple[ReadRange, ...]
    losses: tuple[Loss, ...] = ()


def plan(start: Offsets, end: Offsets, *, min_partitions: int = 0) -> Plan:
    """What lies between two positions, split so that there are at least so many ranges.

    WrongCheckpoint when the end is before the start in the same topic: that is no loss of the log's
    but a mistake, and to read nothing would hide it.
    """
    if end.began:
        start = Offsets(end.began)
    ranges: list[ReadRange] = []
    losses = [_not_read(name) for name in sorted(start.topics) if name not in end.topics]
    for name in sorted(end.topics):
        wanted, known = end.topics[name], start.topics.get(name)
        if known is not None and known.topic_id != wanted.topic_id:
            losses.append(_made_anew(name, known.topic_id, wanted.topic_id))
            known = None
        begins = {} if known is None else known.positions
        for number in sorted(wanted.positions):
            found = _range(name, wanted, number, begins.get(number, Position(0)))
            if found is not None:
                ranges.append(found)
    return Plan(tuple(split(ranges, min_partitions)), tuple(losses))


def advance(start: Offsets, latest: Offsets, *, rows_max: int | None) -> Offsets:
    """The end of the next micro-batch: the latest positions, or so many rows from the start on.

    Every partition gets its share of the rows, in proportion to what it has waiting. A position
    never goes back: a new leader may know of fewer replicated records than the old one did. When
    nothing is new, what is returned equals `start`.
    """
    topics: dict[str, TopicOffsets] = {}
    for name, found in latest.topics.items():
        known = start.topics.get(name)
        before = {} if known is None or known.topic_id != found.topic_id else known.positions
        positions = {
            number: _later(before.get(number), position)
            for number, position in found.positions.items()
        }
        # Partitions that are not told of now (nobody leads them) stay where they are.
        topics[name] = TopicOffsets(found.topic_id, {**before, **positions})
    end = Offsets(topics)
    if rows_max is not None:
        end = _limited(start, end, rows_max)
    if _same(start.topics, end.topics):
        return start
    return replace(end, began=start.topics) if start.is_initial else end


def differences(start: Offsets, latest: Offsets) -> list[Loss]:
    """What was lost since `start` as far as names and ids tell: topics deleted or made anew."""
    losses = []
    for name in sorted(start.topics):
        known, found = start.topics[name], latest.topics.get(name)
        if found is None:
            losses.append(_not_read(name))
        elif found.topic_id != known.topic_id:
            losses.append(_made_anew(name, known.topic_id, found.topic_id))
    return losses


def split(ranges: Iterable[ReadRange], at_least: int) -> list[ReadRange]:
    """Cut large ranges until there are about so many, each partition by its share of the rows.

    As Spark's Kafka source does: small ranges stay whole, so a few more or less may come out.
    """
    found = [each for each in ranges if each.size > 0]
    total = sum(each.size for each in found)
    if not found or len(found) >= at_least:
        return found
    pieces: list[ReadRange] = []
    left, left_total = at_least, total
    for each in sorted(found, key=lambda one: one.size):
        # Small ones first, so that what they do not use is left to the large ones.
        share = max(round(left * each.size / left_total), 1)
        share = min(share, each.size)
        pieces += _cut(each, share)
        left, left_total = max(left - share, 1), left_total - each.size
    return sorted(pieces, key=lambda one: (one.topic, one.partition, one.start))


def _cut(whole: ReadRange, pieces: int) -> list[ReadRange]:
    edges = [whole.start + whole.size * number // pieces for number in range(pieces + 1)]
    return [
        # Only the first piece follows what was read before.
        replace(whole, start=first, end=last, last_epoch=NO_EPOCH if at else whole.last_epoch)
        for at, (first, last) in enumerate(pairwise(edges))
    ]


def _range(name: str, wanted: TopicOffsets, number: int, begin: Position) -> ReadRange | None:
    end = wanted.positions[number]
    if begin.offset > end.offset:
        raise WrongCheckpoint(
            f"{name}-{number}: the batch ends at offset {end.offset}, before its start at "
            f"{begin.offset}; is the checkpoint one of another query?"
        )
    if begin.offset == end.offset:
        return None
    return ReadRange(
        topic=name,
        topic_id=wanted.topic_id,
        partition=number,
        start=begin.offset,
        end=end.offset,
        last_epoch=begin.epoch,
    )


def _limited(start: Offsets, end: Offsets, rows_max: int) -> Offsets:
    begins: dict[tuple[str, int], int] = {}
    sizes: dict[tuple[str, int], int] = {}
    for name, number, position in end.each():
        known = start.topics.get(name)
        same = known is not None and known.topic_id == end.topics[name].topic_id
        begin = start.position(name, number) if same else None
        begins[name, number] = 0 if begin is None else begin.offset
        sizes[name, number] = position.offset - begins[name, number]
    if sum(sizes.values()) <= rows_max:
        return end
    shares = _shares(sizes, rows_max)
    topics = {
        name: TopicOffsets(
            found.topic_id,
            {
                number: _limited_position(
                    position, begins[name, number] + shares[name, number], start, name, number
                )
                for number, position in found.positions.items()
            },
        )
        for name, found in end.topics.items()
    }
    return Offsets(topics)


def _limited_position(
    position: Position, offset: int, start: Offsets, topic: str, number: int
) -> Position:
    """A position that stands still stays as it was, its epoch too: nothing is new there."""
    before = start.position(topic, number)
    if before is not None and before.offset == offset:
        return before
    return Position(offset, position.epoch)


def _shares(sizes: Mapping[tuple[str, int], int], rows_max: int) -> dict[tuple[str, int], int]:
    """So many rows in all, in proportion; what rounding leaves goes where it took the most.

    So one whose share is always below a row is not passed over for ever: it grows.
    """
    total = sum(sizes.values())
    shares = {key: rows_max * size // total for key, size in sizes.items()}
    left = rows_max - sum(shares.values())
    for key in sorted(sizes, key=lambda each: (-(rows_max * sizes[each] % total), each))[:left]:
        shares[key] += 1
    return shares


def _later(before: Position | None, now: Position) -> Position:
    """Where nothing is new, the position stays as it was stored: equal offsets are equal dicts."""
    return now if before is None or now.offset > before.offset else before


def _same(one: Mapping[str, TopicOffsets], other: Mapping[str, TopicOffsets]) -> bool:
    return _topics_to_json(one) == _topics_to_json(other)


def _not_read(topic: str) -> Loss:
    """Where the query was, and will not be: the options may be others than those before."""
    why = "the topic was deleted, or the query's options no longer choose it"
    return Loss(topic=topic, partition=None, count=UNKNOWN_COUNT, why=why)


def _made_anew(topic: str, old: str, new: str) -> Loss:
    return Loss(
        topic=topic,
        partition=None,
        count=UNKNOWN_COUNT,
        why=f"the topic was deleted and made anew: its id is {new} now, not {old}",
    )


def _topics_to_json(topics: Mapping[str, TopicOffsets]) -> dict[str, Any]:
    return {
        name: {
            "id": topics[name].topic_id,
            "offsets": _numbers(topics[name].positions, 0),
            "epochs": _numbers(topics[name].positions, 1),
        }
        for name in sorted(topics)
    }


def _numbers(positions: Mapping[int, Sequence[int]], index: int) -> dict[str, int]:
    return {str(number): positions[number][index] for number in sorted(positions)}


def _topics_from_json(stored: Mapping[str, Any]) -> dict[str, TopicOffsets]:
    topics: dict[str, TopicOffsets] = {}
    try:
        for name, found in stored.items():
            epochs = found["epochs"]
            topics[name] = TopicOffsets(
                str(found["id"]),
                {
                    int(number): Position(int(offset), int(epochs[number]))
                    for number, offset in found["offsets"].items()
                },
            )
    except (KeyError, TypeError, AttributeError) as error:
        raise WrongCheckpoint(_FOREIGN) from error
    return topics
