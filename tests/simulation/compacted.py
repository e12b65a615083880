"""What must hold where topics are compacted: batches change and records go, those that may go.

A record is never changed, and one that is gone has a later one of its key. In the end all
replicas say the same of every key, whichever records each of them has dropped so far.
"""

from __future__ import annotations

from contextlib import suppress

from simulation.checkers import Violation, Witness, check_order, records_of
from tailrace.broker.hosted import Hosted
from tailrace.errors import CorruptBatch
from tailrace.model import TopicPartition
from tailrace.record.view import BatchView


class CompactedWitness(Witness):
    """As `Witness`, record by record."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._shown: dict[tuple[TopicPartition, str], dict[int, bytes]] = {}

    def read(self, partition: TopicPartition, topic_id: str, view: BatchView, *, to: str) -> None:
        for record in view.records():
            self._show(partition, topic_id, record.offset, record.value or b"", to)

    def check_end(self, records: dict[bytes, list[bytes]]) -> None:
        key_of = {value: key for key, values in records.items() for value in values}
        for partition, acknowledged in self._acknowledged.items():
            replicas = list(self._replicas(partition))
            ends = {(each.machine.high_watermark, each.log.log_end) for each in replicas}
            if len(ends) != 1 or any(each.log.log_start for each in replicas):
                raise Violation(f"I6: {partition} has not settled: {ends}")
            tables = []
            for replica in replicas:
                found = list(records_of(replica))
                check_order(partition, found, records)
                for offset, value in found:
                    self._show(partition, replica.topic_id, offset, value, "a replica")
                last = {key_of[value]: offset for offset, value in found}
                tables.append(last)
                self._check_superseded(partition, acknowledged, dict(found), last, key_of)
            if any(table != tables[0] for table in tables):
                raise Violation(f"I3: the replicas of {partition} differ: {tables}")

    def _check_superseded(
        self,
        partition: TopicPartition,
        acknowledged: dict[int, bytes],
        found: dict[int, bytes],
        last: dict[bytes, int],
        key_of: dict[bytes, bytes],
    ) -> None:
        for offset, value in acknowledged.items():
            if offset not in found and last.get(key_of[value], -1) <= offset:
                raise Violation(
                    f"I1: {partition} offset {offset}: {value!r} was acknowledged and is gone, "
                    "with no later record of its key"
                )

    def _look_at(self, name: str, life: int, hosted: Hosted) -> None:
        partition, epoch = hosted.partition, hosted.machine.leader_epoch
        high_watermark = hosted.machine.high_watermark
        place = (name, life, epoch, partition, hosted.topic_id)
        start = max(self._seen_to.get(place, 0), hosted.log.log_start)
        if start >= high_watermark:
            return
        with suppress(CorruptBatch):
            # What rotted on the disk is shown to nobody: a reader gets it from another replica.
            for offset, value in records_of(hosted, start=start):
                if offset >= high_watermark:
                    break
                self._show(partition, hosted.topic_id, offset, value, f"{name} in epoch {epoch}")
            self._seen_to[place] = high_watermark

    def _show(
        self, partition: TopicPartition, topic_id: str, offset: int, value: bytes, to: str
    ) -> None:
        other = self._shown.setdefault((partition, topic_id), {}).setdefault(offset, value)
        if other != value:
            raise Violation(f"I3/I4: {partition} offset {offset} was {other!r}, {value!r} for {to}")
