"""What must hold in a simulated cluster, by the names of the invariants.

I1 no acknowledged record is lost. I2 no two leaders acknowledge the same offset. I3 replicas are
byte-identical up to the high watermark. I4 what a reader could see never changes or vanishes.
I6 progress again within a stated time after the faults are healed.

`Witness` looks at the machines and logs of all brokers between steps, as no client could: whatever
any leader has ever shown below its high watermark, or any reader has read, is written down and
compared for ever after, and must be there at the end.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulation.cluster import SimCluster
from tailrace.broker.hosted import Hosted
from tailrace.errors import CorruptBatch
from tailrace.meta.keys import BrokerRegistration, PartitionState, decode
from tailrace.model import BrokerId, TopicPartition
from tailrace.record.header import BatchHeader, split, verify
from tailrace.record.view import BatchView
from tailrace.replication.partition import Role

Mark = tuple[int, int, int]
"""Last offset, leader epoch and CRC of a batch."""


class Violation(AssertionError):
    """An invariant does not hold."""


class Witness:
    """Remembers what was committed, and who acknowledged what."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        # By the id of the topic too: one that is made anew begins anew.
        self._committed: dict[tuple[TopicPartition, str], dict[int, Mark]] = {}
        self._controllers: dict[tuple[str, int], int] = {}
        self._seen_to: dict[tuple[str, int, int, TopicPartition, str], int] = {}
        self._acknowledged: dict[TopicPartition, dict[int, bytes]] = {}
        self._at: dict[bytes, tuple[TopicPartition, int]] = {}
        self._heeds = True
        self._states: dict[str, tuple[int, PartitionState]] = {}
        # As of the last look.
        self._registered: set[BrokerId] = set()
        self._leaving: set[BrokerId] = set()
        self._looked_to = 0

    def acknowledged(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        """A producer was told that this record is at this offset."""
        if not self._heeds:
            return
        offsets = self._acknowledged.setdefault(partition, {})
        other = offsets.get(offset)
        if other is not None and other != value:
            raise Violation(
                f"I2: {partition} offset {offset} acknowledged for {other!r}, {value!r}"
            )
        earlier = self._at.get(value)
        if earlier is not None and earlier != (partition, offset):
            raise Violation(f"I2: {value!r} acknowledged at {earlier} and {partition}, {offset}")
        offsets[offset] = value
        self._at[value] = (partition, offset)

    @property
    def acknowledged_count(self) -> int:
        return len(self._at)

    def topic_goes(self) -> None:
        """All that was acknowledged goes with it; until another is there, nobody can say whose."""
        self._acknowledged.clear()
        self._at.clear()
        self._heeds = False

    def topic_is_there(self) -> None:
        """What is acknowledged from now on is in the new topic."""
        self._heeds = True

    def shown(
        self, partition: TopicPartition, topic_id: str, header: BatchHeader, *, to: str
    ) -> None:
        """A leader shows this batch below its high watermark, or a reader has read it."""
        mark = _mark(header)
        other = self._committed.setdefault((partition, topic_id), {}).setdefault(
            header.base_offset, mark
        )
        if other != mark:
            raise Violation(
                f"I3/I4: {partition} offset {header.base_offset} was {other}, {mark} for {to}"
            )

    def read(self, partition: TopicPartition, topic_id: str, view: BatchView, *, to: str) -> None:
        """A reader has read this batch."""
        self.shown(partition, topic_id, view.header, to=to)

    def look(self) -> None:
        """Compare what every leader shows now with what was ever shown."""
        self._look_at_the_store()
        for node in self._cluster.brokers:
            broker = node.broker
            if not node.is_up or broker is None or broker.replicas is None:
                continue
            if broker.control is not None:
                self._look_at_the_controller(
                    node.name, node.lives, broker.control.guard.controller_epoch
                )
            for hosted in broker.replicas.hosted():
                hosted.machine.check_invariants()
                if hosted.machine.role is Role.LEADER:
                    self._look_at(node.name, node.lives, hosted)

    def check_end(self, records: dict[bytes, list[bytes]]) -> None:
        """At the end, healed: everything acknowledged is there once, in order, on all replicas.

        `records` has for each key what its producer sent, in order, acknowledged or not.
        """
        for partition, offsets in self._acknowledged.items():
            replicas = list(self._replicas(partition))
            high = min(hosted.machine.high_watermark for hosted in replicas)
            leader = next(h for h in replicas if h.machine.role is Role.LEADER)
            if high != leader.log.log_end:
                raise Violation(f"I6: {partition} has not settled: {high} of {leader.log.log_end}")
            _check_identical(partition, replicas)
            self._check_nothing_vanished(leader)
            _check_retention(leader)
            records_there = list(records_of(leader))
            found = dict(records_there)
            for offset, value in offsets.items():
                if offset >= leader.log.log_start and found.get(offset) != value:
                    raise Violation(
                        f"I1: {partition} offset {offset}: {value!r} was acknowledged, "
                        f"{found.get(offset)!r} is there"
                    )
            check_order(partition, records_there, records)

    def _look_at_the_store(self) -> None:
        """Who joins an ISR is there and wants to stay; no controller writes after its successor."""
        etcd = self._cluster.etcd.right
        registrations = [
            decode(BrokerRegistration, entry.value, key=entry.key)
            for entry in etcd.snapshot("/brokers/ids/").entries
        ]
        registered = {each.broker_id: each for each in registrations}
        came = self._came_since_the_last_look()
        for entry in etcd.snapshot("/brokers/topics/").entries:
            known = self._states.get(entry.key)
            if not entry.key.endswith("/state") or (known and known[0] == entry.mod_revision):
                continue
            state = decode(PartitionState, entry.value, key=entry.key)
            if known is not None:
                there = {*registered, *self._registered, *came}
                self._check_change(entry.key, known[1], state, there)
            self._states[entry.key] = (entry.mod_revision, state)
        self._registered = set(registered)
        self._leaving = {each for each in registered if registered[each].draining}

    def _came_since_the_last_look(self) -> set[BrokerId]:
        """Brokers that registered meanwhile, though they may be gone again; all: nobody knows."""
        etcd = self._cluster.etcd.right
        batch = etcd.next_batch("/brokers/ids/", from_revision=self._looked_to + 1)
        self._looked_to = etcd.revision
        if batch is None:
            return set()
        if batch.compacted:
            return {BrokerId(node.number) for node in self._cluster.brokers}
        entries = [change.entry for change in batch.changes if change.entry is not None]
        return {decode(BrokerRegistration, each.value, key=each.key).broker_id for each in entries}

    def _check_change(
        self, key: str, old: PartitionState, new: PartitionState, registered: set[BrokerId]
    ) -> None:
        joined = {*new.isr} - {*old.isr} - {new.leader}
        if joined & self._leaving:
            raise Violation(f"I1: {joined} joined the ISR of {key} while shutting down")
        if joined - registered:
            raise Violation(f"I1: {joined} joined the ISR of {key} without being registered")
        if new.controller_epoch < old.controller_epoch:
            raise Violation(f"I2: controller {new.controller_epoch} wrote {key} after its end")

    def _look_at_the_controller(self, name: str, life: int, epoch: int) -> None:
        """Whoever heard of a newer controller does not listen to an older one any more."""
        known = self._controllers.get((name, life), -1)
        if epoch < known:
            raise Violation(f"I2: {name} listens to controller {epoch} after {known}")
        self._controllers[name, life] = epoch

    def _look_at(self, name: str, life: int, hosted: Hosted) -> None:
        partition, epoch = hosted.partition, hosted.machine.leader_epoch
        high_watermark = hosted.machine.high_watermark
        place = (name, life, epoch, partition, hosted.topic_id)
        start = max(self._seen_to.get(place, 0), hosted.log.log_start)
        if start >= high_watermark:
            return
        for header in sound_headers(hosted, start):
            if header.next_offset > high_watermark:
                break
            self.shown(partition, hosted.topic_id, header, to=f"{name} in epoch {epoch}")
        self._seen_to[place] = high_watermark

    def _check_nothing_vanished(self, leader: Hosted) -> None:
        there = {header.base_offset: _mark(header) for header in leader.log.headers(0)}
        for offset, mark in self._committed.get((leader.partition, leader.topic_id), {}).items():
            if offset >= leader.log.log_start and there.get(offset) != mark:
                raise Violation(
                    f"I4: {leader.partition} offset {offset}: {mark} was shown, "
                    f"{there.get(offset)} is there"
                )

    def _replicas(self, partition: TopicPartition) -> Iterator[Hosted]:
        replicas = self._cluster.assignment(partition.topic)[partition.partition]
        for node in self._cluster.brokers:
            hosted = node.hosted(partition)
            if hosted is not None:
                yield hosted
            elif node.number in replicas:
                raise Violation(f"I6: {node.name} does not host {partition}")


def _mark(header: BatchHeader) -> Mark:
    return (header.last_offset, header.leader_epoch, header.crc)


def _check_identical(partition: TopicPartition, replicas: list[Hosted]) -> None:
    start = max(hosted.log.log_start for hosted in replicas)
    chains = [
        [(header.base_offset, *_mark(header)) for header in hosted.log.headers(start)]
        for hosted in replicas
    ]
    if any(chain != chains[0] for chain in chains):
        raise Violation(f"I3: the replicas of {partition} differ")


def _check_retention(leader: Hosted) -> None:
    """What is gone from the front had to go: what is left is as much as shall be kept."""
    log, config = leader.log, leader.log.config
    kept_bytes = config.retention_bytes if config.cleanup_policy.deletes else -1
    if log.log_start == 0:
        return
    # The last look may have been before the end of the log was cut once more.
    if kept_bytes < 0 or log.size_bytes < kept_bytes - config.segment_bytes:
        raise Violation(
            f"I1: {leader.partition} starts at {log.log_start} with {log.size_bytes} bytes left"
        )


def sound_headers(hosted: Hosted, start: int) -> Iterator[BatchHeader]:
    """The headers of batches up to the first one that rotted: nobody is shown what is bad."""
    offset = start
    while offset < hosted.log.log_end:
        try:
            data = hosted.log.read(offset, bytes_max=1 << 20)
            found = list(split(data))
            for position, header in found:
                verify(data, position, header)
        except CorruptBatch:
            return
        for _, header in found:
            yield header
            offset = header.next_offset


def is_sound(hosted: Hosted) -> bool:
    """Whether all of a log is as it was written."""
    log = hosted.log
    end = max((header.next_offset for header in sound_headers(hosted, log.log_start)), default=0)
    return end == log.log_end or log.log_start == log.log_end


def records_of(hosted: Hosted, *, start: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Offset and value of each record, from the batch on that holds `start`."""
    offset = hosted.log.log_start if start is None else start
    while offset < hosted.log.log_end:
        data = hosted.log.read(offset, bytes_max=1 << 20)
        position = 0
        while position < len(data):
            view = BatchView(data, position)
            view.verify()
            for record in view.records():
                yield record.offset, record.value or b""
            position += view.header.length
            offset = view.header.next_offset


def check_order(
    partition: TopicPartition,
    found: list[tuple[int, bytes]],
    records: dict[bytes, list[bytes]],
) -> None:
    """Per key: no duplicate, and in the order in which they were sent."""
    sent_at = {
        value: (key, at) for key, values in records.items() for at, value in enumerate(values)
    }
    last: dict[bytes, int] = {}
    for offset, value in found:
        key, at = sent_at[value]
        if at <= last.get(key, -1):
            raise Violation(
                f"I1: {partition} offset {offset}: {value!r} is there twice or out of order"
            )
        last[key] = at
