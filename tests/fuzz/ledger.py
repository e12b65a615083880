"""What a live fuzzer sent, what became of it, and whether readers saw just that. Pure.

A `Ledger` notes each answer of a leader. `check` then compares what one reader saw of a partition:
every stored batch there, once, in order, and each good record with the value that was sent. Enter
at `Ledger.answered`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

SHOWN_MAX = 5


class Stored(NamedTuple):
    """A batch that a leader said it stored."""

    first: int
    last: int
    kind: str


@dataclass(slots=True)
class Sight:
    """What one reader saw of one partition."""

    records: int = 0
    last: int = -1
    checksum: int = 0
    nulls: int = 0
    # Records that did not come in the order of their offsets, or twice.
    disorder: list[str] = field(default_factory=list)
    # Values at the offsets where good records are.
    good: dict[int, bytes | None] = field(default_factory=dict)

    def saw(self, offset: int, value: bytes | None, good: Mapping[int, bytes]) -> None:
        if offset <= self.last:
            self.disorder.append(f"offset {offset} after {self.last}")
        self.last = offset
        self.records += 1
        if value is None:
            self.nulls += 1
        else:
            self.checksum += crc32(value)
        if offset in good:
            self.good[offset] = value

    @property
    def figures(self) -> tuple[int, int, int, int]:
        return self.records, self.last, self.checksum, self.nulls


@dataclass
class Fate:
    """What became of the batches of one kind."""

    sent: int = 0
    accepted: int = 0
    records: int = 0
    duplicate: int = 0
    unanswered: int = 0
    # Of those that were accepted: how many every reader has read.
    read: int = 0
    refused: Counter[str] = field(default_factory=Counter)


@dataclass
class PartitionLedger:
    """One partition: what is stored in it, by what its leader said."""

    stored: list[Stored] = field(default_factory=list)
    # By offset: the values of records that were good.
    good: dict[int, bytes] = field(default_factory=dict)
    # Requests without an answer: their batches may be there or not.
    unanswered: int = 0

    @property
    def end(self) -> int:
        return max((each.last for each in self.stored), default=-1) + 1

    def gaps(self) -> list[str]:
        """Offsets that no answer told of, or that two did."""
        found, due = [], 0
        for each in sorted(self.stored):
            if each.first != due and not (self.unanswered and each.first > due):
                found.append(f"{each.kind} at {each.first} where {due} was due")
            due = each.last + 1
        return found


class Ledger:
    """All partitions of one round, and all kinds."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[str, int], PartitionLedger] = {}
        self.fates: dict[str, Fate] = {}

    def of(self, topic: str, partition: int) -> PartitionLedger:
        return self.partitions.setdefault((topic, partition), PartitionLedger())

    def sent(self, kind: str) -> None:
        self.fates.setdefault(kind, Fate()).sent += 1

    def refused(self, kind: str, error: str) -> None:
        self.fates[kind].refused[error] += 1

    def unanswered(self, topic: str, partition: int, kind: str) -> None:
        self.fates[kind].unanswered += 1
        self.of(topic, partition).unanswered += 1

    def accepted(
        self, topic: str, partition: int, stored: Stored, values: tuple[bytes, ...] = ()
    ) -> None:
        """`values`: those of its records, where they are known to be good."""
        fate = self.fates[stored.kind]
        fate.accepted += 1
        fate.records += stored.last - stored.first + 1
        known = self.of(topic, partition)
        known.stored.append(stored)
        known.good.update(enumerate(values, stored.first))

    def check(
        self, topic: str, partition: int, sight: Sight, *, is_compacted: bool = False
    ) -> list[str]:
        """What is wrong with what a reader saw of a partition."""
        known = self.of(topic, partition)
        where = f"{topic}-{partition}"
        found = [f"{where}: {each}" for each in (*known.gaps(), *sight.disorder)]
        if not is_compacted and not known.unanswered and sight.records != known.end:
            found.append(f"{where}: {sight.records} records of {known.end} were read")
        for offset, value in known.good.items():
            if offset not in sight.good:
                found.append(f"{where}: the good record at {offset} was not read")
            elif sight.good[offset] != value:
                found.append(f"{where}: {sight.good[offset]!r} at {offset} instead of {value!r}")
        return found[:SHOWN_MAX]

    def all_read(self) -> None:
        """Every reader saw what it should: all that was accepted in this round was read."""
        for fate in self.fates.values():
            fate.read = fate.accepted

    def add_to(self, totals: dict[str, Fate]) -> None:
        for kind, fate in self.fates.items():
            total = totals.setdefault(kind, Fate())
            total.sent += fate.sent
            total.accepted += fate.accepted
            total.records += fate.records
            total.duplicate += fate.duplicate
            total.unanswered += fate.unanswered
            total.read += fate.read
            total.refused += fate.refused


def table(totals: Mapping[str, Fate]) -> list[str]:
    """The results by kind, for people."""
    names = f"{'kind':24} {'sent':>9} {'accepted':>9} {'read':>9} {'records':>9}  refused by"
    found = [names]
    whole = Fate()
    for kind, fate in sorted(totals.items()):
        found.append(_line(kind, fate))
        whole.sent += fate.sent
        whole.accepted += fate.accepted
        whole.read += fate.read
        whole.records += fate.records
        whole.duplicate += fate.duplicate
        whole.unanswered += fate.unanswered
        whole.refused += fate.refused
    return [*found, _line("all", whole)]


def _line(kind: str, fate: Fate) -> str:
    reasons = [f"{count} {name}" for name, count in fate.refused.most_common()]
    reasons += [f"{fate.duplicate} known already"] if fate.duplicate else []
    reasons += [f"{fate.unanswered} NOT ANSWERED"] if fate.unanswered else []
    return (
        f"{kind:24} {fate.sent:9} {fate.accepted:9} {fate.read:9} {fate.records:9}  "
        f"{', '.join(reasons)}"
    )
