"""Who has synced what it had when a topic got `flush=ack`: brokers that obeyed orders of that time.

A broker obeys an order with `flush=ack` only when all that its log had by then is on its disk. When
everybody who is in sync or eligible has, in the life that it has now, a power loss takes nothing
that is acknowledged. Known only to this controller: the next one tells brokers all their orders
anew.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.meta.image import ClusterImage, LiveBroker
from tailrace.model import BrokerId, TopicPartition
from tailrace.transport.wire import PartitionOrder


class _Done(NamedTuple):
    epoch: int
    revision: int


class Syncing:
    """What brokers obeyed of the topics that are `syncing`."""

    def __init__(self) -> None:
        self._done: dict[TopicPartition, dict[BrokerId, _Done]] = {}

    def obeyed(self, live: LiveBroker, order: PartitionOrder) -> bool:
        """A broker has obeyed; says whether that may be what a topic waits for."""
        if not order.syncing_revision:
            return False
        done = self._done.setdefault(order.partition, {})
        done[live.registration.broker_id] = _Done(live.epoch, order.syncing_revision)
        return True

    def done(self, image: ClusterImage) -> list[str]:
        """The topics that wait for nobody any more; what others have done is forgotten."""
        for partition in list(self._done):
            topic = image.topics.get(partition.topic)
            if topic is None or not topic.record.syncing:
                del self._done[partition]
        names = dict.fromkeys(each.topic for each in self._done)
        return [name for name in names if self._is_done(image, name)]

    def _is_done(self, image: ClusterImage, name: str) -> bool:
        for number, stored in image.states.get(name, {}).items():
            done = self._done.get(TopicPartition(name, number), {})
            for broker in (*stored.state.isr, *stored.state.elr):
                live = image.brokers.get(broker)
                wanted = _Done(live.epoch if live else 0, image.topics[name].revision)
                if live is None or done.get(broker) != wanted:
                    return False
        return True
