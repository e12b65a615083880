"""Which partition of a topic a record goes to: by its key, by its program's wish, or any.

Pure but for the random choice, whose source is given.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tailrace.client.accumulator import Queue
from tailrace.client.delivery import BatchOutcome
from tailrace.client.metadata import TopicPicture
from tailrace.client.partitioner import Partitioner, by_key, by_murmur2, sticky
from tailrace.errors import InvalidRequest, no_partition
from tailrace.model import TopicPartition


class TopicQueues:
    """The queues of a topic's partitions; `led` are those that have a leader."""

    __slots__ = ("_name", "_partitioner", "_rng", "is_sticky", "led", "queues", "sticky")

    def __init__(self, name: str, partitioner: Partitioner, rng: Random) -> None:
        self._name = name
        self._partitioner = partitioner
        # Its own partitioners need not be asked about records without a key.
        self.is_sticky = partitioner in {by_key, by_murmur2, sticky}
        self._rng = rng
        # Where records go that may go anywhere: the same one while its batch fills.
        self.sticky: Queue[BatchOutcome] | None = None
        self.queues: list[Queue[BatchOutcome]] = []
        self.led: list[Queue[BatchOutcome]] = []

    def learn(
        self, picture: TopicPicture, queue_of: Callable[[TopicPartition], Queue[BatchOutcome]]
    ) -> None:
        """The topic has these partitions now, and these of them have leaders."""
        partitions = range(len(picture.partitions))
        self.queues = [queue_of(TopicPartition(self._name, number)) for number in partitions]
        led = zip(self.queues, picture.partitions, strict=True)
        self.led = [queue for queue, each in led if each.leader >= 0]

    def queue_for(self, key: bytes | None, partition: int | None) -> Queue[BatchOutcome]:
        if partition is None:
            if key is not None or not self.is_sticky:
                partition = self._partitioner(self._name, key, len(self.queues))
            if partition is None:
                return self.sticky or self.choose()
        if not 0 <= partition < len(self.queues):
            raise InvalidRequest(str(no_partition(self._name, len(self.queues), partition)))
        return self.queues[partition]

    def choose(self) -> Queue[BatchOutcome]:
        """Another one from now on: any of those that have a leader."""
        among = self.led or self.queues
        self.sticky = among[self._rng.randrange(len(among))]
        return self.sticky
