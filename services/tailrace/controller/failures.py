"""Replicas that brokers said they cannot serve: away, or damaged, until they follow again.

Known only to this controller; the next one learns of them when it tells brokers all their orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tailrace.controller.facts import ReplicaFailure
from tailrace.errors import (
    CorruptBatch,
    CorruptCheckpoint,
    DamagedLog,
    HighWatermarkConflict,
    LogClosed,
    ReplicaOffline,
    StorageError,
    TailraceError,
)
from tailrace.meta.image import LiveBroker
from tailrace.model import BrokerId, TopicPartition

_DAMAGED: Final = (CorruptBatch, CorruptCheckpoint, DamagedLog, HighWatermarkConflict)
_FAILED: Final = (*_DAMAGED, LogClosed, ReplicaOffline, StorageError)


def is_lasting(error: TailraceError) -> bool:
    """Whether a replica is out of service, rather than late: to ask again soon mends nothing."""
    return isinstance(error, _FAILED)


class Failures:
    """The failed replicas of brokers in the lives that they have now."""

    def __init__(self) -> None:
        self.replicas: dict[TopicPartition, dict[BrokerId, ReplicaFailure]] = {}
        self._epochs: dict[BrokerId, int] = {}

    def failed(self, live: LiveBroker, partition: TopicPartition, error: TailraceError) -> bool:
        """A broker cannot serve a replica; says whether that is news."""
        broker = live.registration.broker_id
        failed = self.replicas.get(partition, {})
        if not isinstance(error, _FAILED):
            return False
        failure = ReplicaFailure(
            str(error),
            damaged=isinstance(error, _DAMAGED),
            conflicts=isinstance(error, HighWatermarkConflict),
        )
        known = failed.get(broker)
        if known is not None and (known.damaged, known.conflicts) >= (
            failure.damaged,
            failure.conflicts,
        ):
            return False
        self.replicas[partition] = {**failed, broker: failure}
        self._epochs[broker] = live.epoch
        return True

    def obeyed(self, live: LiveBroker, partition: TopicPartition, leader: BrokerId) -> bool:
        """A broker has obeyed; says whether a failed replica of it is well again.

        A broker mends what has failed with the first order that does not need what may be lost
        of it, and refuses all before. That it is told to lead mends nothing.
        """
        broker = live.registration.broker_id
        failed = self.replicas.get(partition)
        if failed is None or broker not in failed or leader == broker:
            return False
        self._remove(partition, broker)
        return True

    def accept(self, partition: TopicPartition, broker: BrokerId) -> None:
        """A person lets a broker lead with what it has left: what it lost counts no more."""
        if broker in self.replicas.get(partition, {}):
            self._remove(partition, broker)

    def forget_former_lives(self, brokers: Mapping[BrokerId, LiveBroker]) -> None:
        """What failed in a former life of a broker says nothing about this one."""
        for broker, epoch in list(self._epochs.items()):
            live = brokers.get(broker)
            if live is not None and live.epoch == epoch:
                continue
            del self._epochs[broker]
            for partition in [each for each in self.replicas if broker in self.replicas[each]]:
                self._remove(partition, broker)

    def _remove(self, partition: TopicPartition, broker: BrokerId) -> None:
        left = {each: why for each, why in self.replicas[partition].items() if each != broker}
        if left:
            self.replicas[partition] = left
        else:
            del self.replicas[partition]
