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
    LogClosed,
    StorageError,
    TailraceError,
)
from tailrace.meta.image import LiveBroker
from tailrace.meta.keys import NO_BROKER
from tailrace.model import BrokerId, TopicPartition

_DAMAGED: Final = (CorruptBatch, CorruptCheckpoint, DamagedLog)
_FAILED: Final = (*_DAMAGED, LogClosed, StorageError)


class Failures:
    """The failed replicas of brokers in the lives that they have now."""

    def __init__(self) -> None:
        self.replicas: dict[TopicPartition, dict[BrokerId, ReplicaFailure]] = {}
        self._epochs: dict[BrokerId, int] = {}

    def failed(self, live: LiveBroker, partition: TopicPartition, error: TailraceError) -> bool:
        """A broker could not obey; says whether its replica has failed, and that is news."""
        broker = live.registration.broker_id
        failed = self.replicas.get(partition, {})
        if not isinstance(error, _FAILED) or broker in failed:
            return False
        failure = ReplicaFailure(str(error), damaged=isinstance(error, _DAMAGED))
        self.replicas[partition] = {**failed, broker: failure}
        self._epochs[broker] = live.epoch
        return True

    def obeyed(self, live: LiveBroker, partition: TopicPartition, leader: BrokerId) -> bool:
        """A broker has obeyed; says whether a failed replica of it is well again.

        One that follows has been mended, or will be, by its leader. That one has no leader, or is
        told to lead, mends nothing.
        """
        broker = live.registration.broker_id
        failed = self.replicas.get(partition)
        if failed is None or broker not in failed or leader in {broker, NO_BROKER}:
            return False
        self._remove(partition, broker)
        return True

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
