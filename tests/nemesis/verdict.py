"""What a run proves: compares what was acknowledged with what was read. Pure.

Keys are written by one producer each, numbered from 0. The last reading is of the whole log, from
its start, after everything has healed; live readings ran all along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

SHOWN_MAX = 20
UNKNOWN_OFFSET = -1


class Seen(NamedTuple):
    """One record, as it was read."""

    offset: int
    key: bytes
    number: int


class Acked(NamedTuple):
    """Where the producer was told that its record is."""

    partition: int
    offset: int


@dataclass
class Verdict:
    """What is wrong, kind by kind; all empty: nothing is."""

    lost: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    unsent: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    live: list[str] = field(default_factory=list)
    group: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not any(vars(self).values())

    def lines(self) -> list[str]:
        return [
            f"{name}: {each}" for name, found in vars(self).items() for each in found[:SHOWN_MAX]
        ]


def judge(
    acked: Mapping[tuple[bytes, int], Acked],
    sent: Mapping[bytes, int],
    final: Mapping[int, Sequence[Seen]],
    live: Mapping[int, Sequence[Seen]],
) -> Verdict:
    """`sent` is how many records each key has, acknowledged or not."""
    verdict = Verdict()
    for partition, seen in final.items():
        _judge_partition(verdict, partition, seen, sent)
        _judge_live(verdict, partition, seen, live.get(partition, ()))
    places = {
        (each.key, each.number): (partition, each.offset)
        for partition, seen in final.items()
        for each in seen
    }
    for (key, number), told in acked.items():
        place = places.get((key, number))
        if place is None:
            verdict.lost.append(f"{key!r} {number}, acknowledged at {tuple(told)}")
        elif place[0] != told.partition or told.offset not in {place[1], UNKNOWN_OFFSET}:
            verdict.moved.append(f"{key!r} {number}: told {tuple(told)}, read at {place}")
    return verdict


def _judge_partition(
    verdict: Verdict, partition: int, seen: Sequence[Seen], sent: Mapping[bytes, int]
) -> None:
    last: dict[bytes, int] = {}
    known: set[tuple[bytes, int]] = set()
    due = seen[0].offset if seen else 0
    for each in seen:
        where = f"partition {partition} offset {each.offset}: {each.key!r} {each.number}"
        if each.offset != due:
            verdict.gaps.append(f"{where} where offset {due} was due")
        due = each.offset + 1
        if not 0 <= each.number < sent.get(each.key, 0):
            verdict.unsent.append(where)
        elif (each.key, each.number) in known:
            verdict.twice.append(where)
        elif each.number < last.get(each.key, -1):
            verdict.disordered.append(f"{where} after {last[each.key]}")
        known.add((each.key, each.number))
        last[each.key] = max(each.number, last.get(each.key, -1))


def _judge_live(
    verdict: Verdict, partition: int, final: Sequence[Seen], live: Sequence[Seen]
) -> None:
    """What was shown once stays: a live reader saw the same log, from its start, without a gap."""
    for at, each in enumerate(live):
        if at >= len(final) or final[at] != each:
            now = final[at] if at < len(final) else "nothing"
            verdict.live.append(f"partition {partition}: {each} was read live, now there is {now}")
            return


def judge_group(
    ends: Mapping[int, int],
    committed: Mapping[int, int],
    told: Mapping[int, int],
    processed: Mapping[int, Sequence[int]],
) -> list[str]:
    """What is wrong with a group whose members process each record before they commit.

    `told` are the highest positions whose commit was acknowledged. The group got through all there
    is, no acknowledged position was forgotten, and no record was passed over.
    """
    found: list[str] = []
    for partition, end in ends.items():
        position = committed.get(partition, 0)
        if position < told.get(partition, 0):
            found.append(f"partition {partition}: back at {position}, told {told[partition]}")
        if position < end:
            found.append(f"partition {partition}: stands at {position} of {end}")
        if position > end:
            found.append(f"partition {partition}: stands at {position}, beyond the end {end}")
        missed = sorted(set(range(min(position, end))) - set(processed.get(partition, ())))
        if missed:
            found.append(
                f"partition {partition}: {len(missed)} records were passed over, the first at "
                f"{missed[0]}"
            )
    return found
