"""Replicas on their way, as an operator reads it: what moves, how much, how far it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from tailrace.model import TopicPartition


class Phase(StrEnum):
    """How far a reassignment is."""

    PLANNED = "planned"
    WAITING = "waiting"
    COPYING = "copying"
    CANCELLING = "cancelling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A partition that is reassigned, or would be."""

    topic: str
    partition: int
    original: tuple[int, ...]
    target: tuple[int, ...]
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    phase: Phase
    started_ms: int = 0

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(each for each in self.target if each not in self.original)

    @property
    def lowest_isr(self) -> tuple[int, int]:
        """The fewest in sync while both sets are there, and once the new one is alone.

        As long as nothing fails: replicas are only taken away when all of the new set are in sync.
        """
        return len(self.isr), len(self.target)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        copying, after = self.lowest_isr
        return {
            "topic": self.topic,
            "partition": self.partition,
            "from": list(self.original),
            "to": list(self.target),
            "replicas": list(self.replicas),
            "isr": list(self.isr),
            "leader": self.leader,
            "phase": self.phase.value,
            "lowest_isr_while_copying": copying,
            "lowest_isr_after": after,
        }


class ReplicaFacts(NamedTuple):
    """A replica as its broker describes it."""

    broker: int
    folder: str
    size_bytes: int
    log_start: int
    log_end: int
    high_watermark: int
    leads: bool
    leader_epoch: int
    last_epoch: int


Replicas = Mapping[TopicPartition, Mapping[int, ReplicaFacts]]


class Progress(NamedTuple):
    """How many bytes have to be copied in all, and how many of them still."""

    moves: tuple[Move, ...]
    total_bytes: int
    left_bytes: int

    @property
    def copied_bytes(self) -> int:
        return self.total_bytes - self.left_bytes

    def estimate_s(self, bytes_per_s: float) -> float | None:
        """Seconds that are left at this rate; None: it cannot be said."""
        return self.left_bytes / bytes_per_s if bytes_per_s > 0 else None


def progress_of(moves: tuple[Move, ...], replicas: Replicas) -> Progress:
    """By the sizes of logs: what a new replica lacks of its leader's log has to be copied."""
    total = left = 0
    for move in moves:
        whole, lacking = bytes_of(move, replicas)
        total += whole
        left += lacking
    return Progress(moves, total, left)


def bytes_of(move: Move, replicas: Replicas) -> tuple[int, int]:
    """Of one partition: the bytes of its new replicas in all, and those that they lack."""
    known = replicas.get(move.name, {})
    leader = known.get(move.leader)
    if leader is None:
        return 0, 0
    whole = lacking = 0
    for broker in move.adding:
        whole += leader.size_bytes
        found = known.get(broker)
        if found is None:
            lacking += leader.size_bytes
        elif found.log_end < leader.high_watermark:
            lacking += max(0, leader.size_bytes - found.size_bytes)
    return whole, lacking


def loss_of(candidate: ReplicaFacts, others: Mapping[int, ReplicaFacts]) -> str:
    """What is known to be lost when this replica leads, in words; for the record."""
    ahead = [each for each in others.values() if each.high_watermark > candidate.log_end]
    known = (
        f"broker {candidate.broker} has offsets {candidate.log_start} to {candidate.log_end - 1}"
    )
    if not ahead:
        return f"{known}; no replica that is there knows of more that was committed"
    most = max(ahead, key=lambda each: each.high_watermark)
    return (
        f"{known}; offsets {candidate.log_end} to {most.high_watermark - 1} were committed, as "
        f"broker {most.broker} knows"
    )


def best_candidate(replicas: Mapping[int, ReplicaFacts]) -> ReplicaFacts | None:
    """The replica that lacks the least: the latest epoch, then the longest log."""
    if not replicas:
        return None
    return max(replicas.values(), key=lambda each: (each.last_epoch, each.log_end, -each.broker))
