"""What happened to the leaders of a cluster, told as few things: one failover, not sixty. Pure.

Leader changes of many partitions that have the same cause and were decided at the same time are one
chapter. Changes are known by partition and epoch, so that a change that is told twice is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tailrace.client.metadata import ClusterPicture
from tailrace.meta.keys import LeaderChange
from tailrace.model import TopicPartition

# Decisions of one cause that lie closer together than this belong together.
TOGETHER_MS: Final = 2_000
CHAPTERS_MAX: Final = 200
PARTITIONS_TOLD_MAX: Final = 200


@dataclass(slots=True)
class Chapter:
    """Changes of one cause; times are wall times of the controller."""

    cause: str
    noticed_ms: int
    decided_ms: int
    controller_id: int
    moves: dict[tuple[TopicPartition, int], LeaderChange] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        changes = list(self.moves.items())
        return {
            "cause": self.cause,
            "noticed_ms": self.noticed_ms,
            "decided_ms": self.decided_ms,
            "took_ms": max(self.decided_ms - self.noticed_ms, 0),
            "controller_id": self.controller_id,
            "count": len(changes),
            "moves": [
                {
                    "partition": str(partition),
                    "from": change.old_leader,
                    "to": change.new_leader,
                    "epoch": epoch,
                    "loss": change.loss,
                }
                for (partition, epoch), change in changes[:PARTITIONS_TOLD_MAX]
            ],
        }


class Story:
    """The chapters, newest first."""

    def __init__(self) -> None:
        self._chapters: list[Chapter] = []
        self._known: set[tuple[TopicPartition, int]] = set()

    def chapters(self) -> list[Chapter]:
        return list(self._chapters)

    def add(self, partition: TopicPartition, changes: Iterable[LeaderChange]) -> bool:
        """Note changes of a partition; whether there was news among them."""
        is_news = False
        for change in changes:
            key = (partition, int(change.leader_epoch))
            if key in self._known:
                continue
            self._known.add(key)
            self._chapter_of(change).moves[key] = change
            is_news = True
        if is_news:
            self._chapters.sort(key=lambda each: -each.decided_ms)
            for each in self._chapters[CHAPTERS_MAX:]:
                self._known -= each.moves.keys()
            del self._chapters[CHAPTERS_MAX:]
        return is_news

    def _chapter_of(self, change: LeaderChange) -> Chapter:
        for each in self._chapters:
            if (
                each.cause == change.cause
                and abs(each.decided_ms - change.decided_ms) <= TOGETHER_MS
            ):
                each.noticed_ms = min(each.noticed_ms, change.noticed_ms)
                each.decided_ms = max(each.decided_ms, change.decided_ms)
                return each
        made = Chapter(
            change.cause, change.noticed_ms, change.decided_ms, int(change.controller_id)
        )
        self._chapters.append(made)
        return made


def had_others(picture: ClusterPicture) -> list[TopicPartition]:
    """Partitions that had another leader before, by their epochs: those that have a story."""
    return [
        TopicPartition(name, number)
        for name, topic in sorted(picture.topics.items())
        for number, each in enumerate(topic.partitions)
        if each.leader_epoch > 0
    ]


def moved(before: ClusterPicture, after: ClusterPicture) -> list[TopicPartition]:
    """Partitions of which the leader or its epoch is another."""
    found: list[TopicPartition] = []
    for name, topic in after.topics.items():
        former = before.topics.get(name)
        if former is None or former.topic_id != topic.topic_id:
            continue
        for number, each in enumerate(topic.partitions[: len(former.partitions)]):
            was = former.partitions[number]
            if (was.leader, was.leader_epoch) != (each.leader, each.leader_epoch):
                found.append(TopicPartition(name, number))
    return found
