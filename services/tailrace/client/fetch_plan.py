"""What a client reads: where each partition is, what has arrived, who may send how much. Pure.

A partition is read on the stream to its leader, from where it has arrived; a tag tells what was
asked for from what was on its way when the partition was moved or sought. What arrives from all
streams stands in one line, so no partition waits behind another for ever; what belongs to a paused
one is set aside when its turn comes.

Invariant: `bytes_max` is shared by the streams, and what was granted and not yet taken stays within
it, whatever the backlog (a broker may exceed the credit by one batch for each stream).

One thread may take while another one adds what arrives: each counter has one writer, and the line
is a deque. Everything else is called by the loop while nobody takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from tailrace.client.unreadable import may_differ_elsewhere, unreadable_bytes
from tailrace.errors import (
    BatchFault,
    CorruptBatch,
    OffsetOutOfRange,
    TailraceError,
    Truncated,
    UnknownTopic,
    UnknownTopicId,
    UnreadableBatch,
)
from tailrace.model import NO_LEADER_EPOCH, TopicPartition
from tailrace.record.header import BatchHeader, split, verify
from tailrace.record.view import BatchView

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
UNDECIDED: Final = ""
"""Where to begin will be said later."""
NOWHERE: Final = -1
RETRY_MIN_MS: Final = 20
RETRY_MAX_MS: Final = 1_000
DELETED_WAIT_MS: Final = 1_000
# Bytes that arrive damaged are asked for again this often: the next copy may be a good one.
CORRUPT_ATTEMPTS_MAX: Final = 5
# Credit goes back in lumps of this part of a stream's share: a message a batch would cost more.
CREDIT_LUMPS: Final = 4
SHARE_BYTES_MIN: Final = 16 << 10
NEVER_MS: Final = 2**62


class Fetched(NamedTuple):
    """One batch as it is stored; `data` holds exactly its bytes, whose CRC has been checked."""

    header: BatchHeader
    data: bytes | memoryview
    # The view whose body was decoded already, if it was.
    decoded: BatchView | None = None

    @property
    def view(self) -> BatchView:
        return BatchView(self.data) if self.decoded is None else self.decoded


class View(Protocol):
    """What is known of the cluster."""

    def is_known(self) -> bool:
        """Whether anything was heard of it."""

    def topic(self, name: str) -> tuple[str, int] | None:
        """A topic's id and number of partitions."""

    def leader_of(self, partition: TopicPartition) -> tuple[int, int]:
        """Broker and leader epoch; the broker is below 0 when nobody leads or it is away."""


class Account:
    """What one broker may send: a share of the bytes, granted ahead and given back when taken."""

    __slots__ = ("aside", "dropped", "failures", "granted", "is_open", "received", "share", "taken")

    def __init__(self) -> None:
        self.is_open = False
        self.share = 0
        self.granted = 0
        self.received = 0
        # What the program took, and what nobody will: each is counted by one thread.
        self.taken = 0
        self.dropped = 0
        # What paused partitions keep of it.
        self.aside = 0
        self.failures = 0

    @property
    def has_much_aside(self) -> bool:
        """Whether the partitions that go on have less than half of the share left."""
        return self.aside * 2 > self.share

    @property
    def held(self) -> int:
        """Bytes of it that are in memory."""
        return self.received - self.taken - self.dropped

    @property
    def used(self) -> int:
        """Bytes that are in memory or may come at any moment."""
        return (self.granted if self.is_open else self.received) - self.taken - self.dropped

    @property
    def due(self) -> int:
        """Credit that the broker could be given."""
        return self.share + self.taken + self.dropped - self.granted

    @property
    def is_due(self) -> bool:
        due = self.due
        return due > 0 and due * CREDIT_LUMPS >= self.share

    @property
    def is_starved(self) -> bool:
        """Whether all that was granted has come and not been taken."""
        return self.granted <= self.received


class Reading:
    """One partition that is read."""

    __slots__ = (
        *("arrived", "arrived_epoch", "broker", "corrupt_attempts", "end", "failures", "held"),
        *("high_watermark", "is_looking", "is_paused", "leader_epoch", "log_start"),
        *("missing_since_ms", "partition", "position", "position_epoch", "problem"),
        *("retry_ms", "tag", "topic_id", "trouble", "version", "wanted"),
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.topic_id = ""
        # The program wants nothing from there on; 0: there is no such place.
        self.end = 0
        # Up to where the program has read, and the epoch of the last record; -1: not known yet.
        self.position = -1
        self.position_epoch = int(NO_LEADER_EPOCH)
        # Up to where batches have arrived.
        self.arrived = -1
        self.arrived_epoch = int(NO_LEADER_EPOCH)
        self.wanted: int | str = EARLIEST
        # Every seek begins a new version: what belongs to an older one is dropped.
        self.version = 0
        self.tag = 0
        self.broker = NOWHERE
        self.leader_epoch = int(NO_LEADER_EPOCH)
        self.is_paused = False
        self.held: deque[Arrival] = deque()
        self.is_looking = False
        self.high_watermark = -1
        self.log_start = -1
        self.problem: TailraceError | None = None
        """What the reading cannot go on from by itself: it stays until a seek, or until a topic
        that was missing is there."""
        self.trouble = ""
        """Why nothing comes at the moment, for people; empty while all is well."""
        self.failures = 0
        self.retry_ms = 0
        self.corrupt_attempts = 0
        self.missing_since_ms = NEVER_MS


class Arrival:
    """A batch that has arrived, or the problem that stands in its place."""

    __slots__ = ("account", "fetched", "index", "problem", "reading", "rows", "version")

    def __init__(
        self,
        reading: Reading,
        fetched: Fetched | None,
        account: Account | None,
        problem: TailraceError | None = None,
    ) -> None:
        self.reading = reading
        self.version = reading.version
        self.fetched = fetched
        self.account = account
        self.problem = problem
        # For who takes it apart: its rows, and how many of them were handed out.
        self.rows: list[Any] | None = None
        self.index = 0

    @property
    def size(self) -> int:
        return self.fetched.header.length if self.fetched is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a broker is to read a partition."""

    partition: TopicPartition
    topic_id: str
    offset: int
    leader_epoch: int
    last_epoch: int
    tag: int
    # Nothing that begins there or later is wanted; 0: everything is.
    end: int = 0


class FetchPlan:
    """All that is read. `route` decides who reads what; `receive` and `take` move the data."""

    def __init__(
        self, *, bytes_max: int, topic_timeout_ms: int, jitter: Callable[[], float]
    ) -> None:
        self._bytes_max = bytes_max
        self._topic_timeout_ms = topic_timeout_ms
        self._jitter = jitter
        self._tags = 0
        # All that brokers have sent so far, wanted or not.
        self.received_bytes = 0
        # Whether something that is to be read had no leader when it was last routed.
        self.is_leaderless = False
        self._paused: dict[TopicPartition, None] = {}
        self.readings: dict[TopicPartition, Reading] = {}
        self.arrivals: deque[Arrival] = deque()
        self.accounts: dict[int, Account] = {}
        # What each broker has not been told yet: partitions to read (True) or not any more.
        self._changes: dict[int, dict[TopicPartition, bool]] = {}

    # What is read.

    def add(self, partition: TopicPartition) -> Reading:
        return self.readings.setdefault(partition, Reading(partition))

    def remove(self, partition: TopicPartition) -> None:
        reading = self.readings.pop(partition, None)
        if reading is not None:
            self._paused.pop(partition, None)
            self._detach(reading)
            self._drop(reading)

    @property
    def has_paused(self) -> bool:
        return bool(self._paused)

    def seek(
        self,
        reading: Reading,
        wanted: int | str,
        *,
        last_epoch: int = NO_LEADER_EPOCH,
        topic_id: str = "",
    ) -> None:
        """Go on from another offset; what was read ahead is dropped, what was wrong forgotten."""
        self._detach(reading)
        self._drop(reading)
        if topic_id or isinstance(reading.problem, UnknownTopicId | UnknownTopic):
            reading.topic_id = topic_id
        reading.wanted = wanted
        reading.arrived = reading.position = wanted if isinstance(wanted, int) else -1
        reading.arrived_epoch = reading.position_epoch = int(last_epoch)
        reading.problem = None
        reading.corrupt_attempts = reading.failures = reading.retry_ms = 0
        reading.missing_since_ms = NEVER_MS
        reading.is_looking = False

    def pause(self, reading: Reading) -> None:
        if not reading.is_paused:
            reading.is_paused = True
            self._paused[reading.partition] = None
            self._detach(reading)

    def resume(self, reading: Reading) -> None:
        if reading.is_paused:
            reading.is_paused = False
            self._paused.pop(reading.partition, None)
            self.arrivals.extendleft(reversed(self._put_forward(reading)))

    def _drop(self, reading: Reading) -> None:
        """Forget what has arrived."""
        reading.version += 1
        mine = [each for each in self.arrivals if each.reading is reading]
        if mine:
            self.arrivals = deque(each for each in self.arrivals if each.reading is not reading)
        for arrival in [*mine, *self._put_forward(reading)]:
            if arrival.account is not None:
                arrival.account.dropped += arrival.size

    def _put_forward(self, reading: Reading) -> list[Arrival]:
        """What was set aside is not any more."""
        found = list(reading.held)
        reading.held.clear()
        for arrival in found:
            if arrival.account is not None:
                arrival.account.aside -= arrival.size
        return found

    def _drop_aside(self, reading: Reading) -> None:
        """What a paused partition keeps is too much: it is asked for again when it goes on."""
        self._drop(reading)
        reading.arrived, reading.arrived_epoch = reading.position, reading.position_epoch

    # Who reads it.

    def route(self, view: View, *, now_ms: int) -> int:
        """Attach what can be read to its leaders; gives when something else is due."""
        due_ms = NEVER_MS
        self.is_leaderless = False
        for reading in self.readings.values():
            if reading.is_paused or not (reading.problem is None or self._is_back(reading, view)):
                continue
            if reading.retry_ms > now_ms:
                due_ms = min(due_ms, reading.retry_ms)
                continue
            reading.retry_ms = 0
            found = view.topic(reading.partition.topic)
            if found is None:
                due_ms = min(due_ms, self._miss(reading, view, now_ms))
            elif self._is_meant(reading, *found):
                self._follow(reading, view)
        self._share()
        return due_ms

    def hurry(self) -> None:
        """The cluster has changed: what waits to be tried again need not wait any longer."""
        for reading in self.readings.values():
            reading.retry_ms = 0

    def _miss(self, reading: Reading, view: View, now_ms: int) -> int:
        """The topic is not there; when to say so."""
        self._detach(reading)
        if not view.is_known():
            reading.trouble = "no broker was reached yet"
            return NEVER_MS
        name = reading.partition.topic
        reading.trouble = f"there is no topic {name!r}"
        reading.missing_since_ms = min(reading.missing_since_ms, now_ms)
        # A topic that was there and is in the newest picture no longer was deleted.
        wait_ms = DELETED_WAIT_MS if reading.topic_id else self._topic_timeout_ms
        due_ms = reading.missing_since_ms + wait_ms
        if now_ms < due_ms:
            return due_ms
        why = " any more: it was deleted" if reading.topic_id else "; create it first"
        self.stop(reading, UnknownTopic(f"there is no topic {name!r}{why}"))
        return NEVER_MS

    def _is_back(self, reading: Reading, view: View) -> bool:
        """Whether a topic or partition that was missing is there, so that its problem is over.

        What was read of it before decides whether that is the one that was meant. Bytes that came
        damaged from one leader are asked of the next one.
        """
        if may_differ_elsewhere(reading.problem):
            leader, epoch = view.leader_of(reading.partition)
            if leader >= 0 and epoch > reading.leader_epoch:
                reading.problem = None
                reading.corrupt_attempts = 0
            return reading.problem is None
        if not isinstance(reading.problem, UnknownTopic):
            return False
        found = view.topic(reading.partition.topic)
        if found is None or not 0 <= reading.partition.partition < found[1]:
            return False
        reading.problem = None
        return True

    def _is_meant(self, reading: Reading, topic_id: str, partitions: int) -> bool:
        """Make sure that the topic is the one that was meant."""
        reading.missing_since_ms = NEVER_MS
        name, number = reading.partition.topic, reading.partition.partition
        reading.topic_id = reading.topic_id or topic_id
        if topic_id != reading.topic_id:
            self.stop(
                reading,
                UnknownTopicId(
                    f"{name} was deleted and made anew: its id is {topic_id} now, "
                    f"not {reading.topic_id}; seek to read the new one"
                ),
            )
        elif not 0 <= number < partitions:
            self.stop(
                reading,
                UnknownTopic(f"{name} has partitions 0 to {partitions - 1}, not {number}"),
            )
        return reading.problem is None

    def _follow(self, reading: Reading, view: View) -> None:
        leader, epoch = view.leader_of(reading.partition)
        if leader < 0:
            reading.trouble = f"{reading.partition} has no leader"
            self.is_leaderless = True
            self._detach(reading)
        elif reading.arrived >= 0 and (reading.broker != leader or reading.leader_epoch < epoch):
            self._detach(reading)
            self._tags += 1
            reading.tag = self._tags
            reading.broker, reading.leader_epoch = leader, epoch
            self._changes.setdefault(leader, {})[reading.partition] = True

    def _detach(self, reading: Reading) -> None:
        if reading.broker != NOWHERE:
            self._changes.setdefault(reading.broker, {})[reading.partition] = False
            reading.broker = NOWHERE
            reading.tag = 0

    def look_ups(self) -> Iterator[Reading]:
        """What begins at the first or the last offset, which is not known yet."""
        for reading in self.readings.values():
            if (
                reading.arrived < 0
                and reading.wanted in {EARLIEST, LATEST}
                and not (reading.is_looking or reading.problem)
                and reading.retry_ms == 0
                and reading.topic_id
                and reading.missing_since_ms == NEVER_MS
            ):
                yield reading

    def looked_up(self, reading: Reading, version: int, offset: int) -> None:
        if reading.version == version and reading.arrived < 0:
            reading.arrived = reading.position = offset
            reading.failures = 0
            reading.trouble = ""

    # Streams and their credit.

    def brokers(self) -> list[int]:
        """Those that something is read from."""
        return sorted({each.broker for each in self.readings.values() if each.broker != NOWHERE})

    def _share(self) -> None:
        """Divide the bytes among the streams; what those without one still hold is not theirs."""
        leaders = self.brokers()
        for broker in leaders:
            self.accounts.setdefault(broker, Account())
        left = sum(each.held for broker, each in self.accounts.items() if broker not in leaders)
        streams = max(len(leaders), 1)
        # A share that is too small for all would leave the last ones nothing.
        least = min(SHARE_BYTES_MIN, self._bytes_max // streams)
        share = max((self._bytes_max - left) // streams, least)
        for broker in leaders:
            self.accounts[broker].share = share
        for reading in [self.readings[each] for each in self._paused]:
            if any(each.account and each.account.has_much_aside for each in reading.held):
                self._drop_aside(reading)
        for broker in [each for each in self.accounts if each not in leaders]:
            account = self.accounts[broker]
            if not account.is_open and account.held <= 0 and not account.failures:
                del self.accounts[broker]

    def has_too_much(self, broker: int) -> bool:
        """Whether its credit, given when it had a larger share, can only be taken back whole."""
        account = self.accounts[broker]
        return account.granted - account.received > account.share

    def opened(self, broker: int) -> list[Place]:
        """A stream was opened: all that is to be read on it. Its credit is due."""
        account = self.accounts.setdefault(broker, Account())
        account.is_open = True
        account.granted = account.received
        self._changes.pop(broker, None)
        return [self._place(each) for each in self.readings.values() if each.broker == broker]

    def changed(self, broker: int) -> tuple[list[Place], list[TopicPartition]]:
        """What the broker has not been told yet: to read from now on, to read no longer."""
        changes = self._changes.pop(broker, None) or {}
        places = [
            self._place(self.readings[each])
            for each, is_read in changes.items()
            if is_read and each in self.readings and self.readings[each].broker == broker
        ]
        return places, [each for each, is_read in changes.items() if not is_read]

    def is_changed(self, broker: int) -> bool:
        return broker in self._changes or self.accounts[broker].is_due

    def grant(self, broker: int) -> int:
        """Credit to give now."""
        account = self.accounts[broker]
        # When shares have become smaller, others may still have more than theirs.
        room = self._bytes_max - sum(each.used for each in self.accounts.values())
        due = min(account.due, room)
        if due <= 0 or not (due * CREDIT_LUMPS >= account.share or account.is_starved):
            return 0
        account.granted += due
        return due

    def closed(self, broker: int, *, spoke: bool, trouble: str, now_ms: int) -> None:
        """The stream ended; what was read on it is tried again, soon if it had spoken."""
        account = self.accounts[broker]
        account.is_open = False
        account.failures = 0 if spoke else account.failures + 1
        self._changes.pop(broker, None)
        for reading in self.readings.values():
            if reading.broker == broker:
                reading.broker = NOWHERE
                reading.tag = 0
                reading.trouble = trouble or reading.trouble
                reading.retry_ms = now_ms + self._pause_ms(account.failures)

    def _place(self, reading: Reading) -> Place:
        return Place(
            partition=reading.partition,
            topic_id=reading.topic_id,
            offset=reading.arrived,
            leader_epoch=reading.leader_epoch,
            last_epoch=reading.arrived_epoch,
            tag=reading.tag,
            end=reading.end,
        )

    # Data.

    def find(self, partition: TopicPartition, tag: int) -> Reading | None:
        """The reading that a message is for, None when it is for one of the past."""
        reading = self.readings.get(partition)
        return reading if reading is not None and tag and reading.tag == tag else None

    def receive(
        self, broker: int, reading: Reading | None, data: bytes | memoryview, *, now_ms: int
    ) -> None:
        """Check the batches and put them in the line."""
        account = self.accounts[broker]
        account.received += len(data)
        self.received_bytes += len(data)
        if reading is None:
            account.dropped += len(data)
            return
        before = account.received - len(data)
        kept = 0
        try:
            for fetched in _batches(reading, data):
                kept += fetched.header.length
                self.arrivals.append(Arrival(reading, fetched, account))
        except CorruptBatch as error:
            found = unreadable_bytes(reading.partition, reading.arrived, data, error)
            self.refused(reading, found, now_ms=now_ms)
        else:
            reading.corrupt_attempts = 0
        account.dropped += account.received - before - kept
        reading.failures = 0

    def heard(self, reading: Reading, *, high_watermark: int, log_start: int) -> None:
        reading.trouble = ""
        reading.log_start = log_start
        # A new leader may know less than the old one; what was readable stays readable.
        reading.high_watermark = max(reading.high_watermark, high_watermark)

    def refused(self, reading: Reading, error: TailraceError, *, now_ms: int) -> None:
        """The broker (or a look-up, or a check) said no: try again later, or stop."""
        is_corrupt = isinstance(error, CorruptBatch)
        reading.corrupt_attempts += is_corrupt
        if isinstance(error, OffsetOutOfRange | Truncated | UnknownTopicId) or (
            is_corrupt and reading.corrupt_attempts >= CORRUPT_ATTEMPTS_MAX
        ):
            if is_corrupt and not isinstance(error, UnreadableBatch):
                error = unreadable_bytes(reading.partition, reading.arrived, b"", error)
            self.stop(reading, error)
            return
        self._detach(reading)
        reading.trouble = str(error)
        reading.failures += 1
        reading.retry_ms = now_ms + self._pause_ms(reading.failures)

    def stop(self, reading: Reading, error: TailraceError) -> None:
        """Tell the program, after what has arrived."""
        self._detach(reading)
        reading.problem = error
        reading.trouble = str(error)
        self.arrivals.append(Arrival(reading, None, None, error))

    def set_apart(self, reading: Reading, error: TailraceError) -> None:
        """A batch that was taken cannot be used: nothing behind it comes until the program seeks.

        The position stays where it is; the program is told after what has arrived of others.
        """
        self._drop(reading)
        reading.arrived, reading.arrived_epoch = reading.position, reading.position_epoch
        self.stop(reading, error)

    def _pause_ms(self, failures: int) -> int:
        if not failures:
            return 0
        return int(min(RETRY_MIN_MS * 2 ** min(failures - 1, 10), RETRY_MAX_MS) * self._jitter())

    # Taking.

    def take(self) -> Arrival | None:
        """The next in the line (it may be a problem), None when it is empty."""
        while self.arrivals:
            arrival = self.arrivals.popleft()
            reading = arrival.reading
            if arrival.version != reading.version:
                continue
            if arrival.fetched is None and arrival.problem is not reading.problem:
                # It was over, or another one, before anybody was told.
                continue
            if reading.is_paused:
                self.set_aside(arrival)
                continue
            if arrival.account is not None:
                arrival.account.taken += arrival.size
            return arrival
        return None

    def put_back(self, arrival: Arrival) -> None:
        """Give back what was taken and not used up: it comes first when its partition goes on."""
        if arrival.account is not None:
            arrival.account.taken -= arrival.size
        if arrival.version == arrival.reading.version and arrival.reading.is_paused:
            arrival.reading.held.appendleft(arrival)
            if arrival.account is not None:
                arrival.account.aside += arrival.size
        else:
            self.arrivals.appendleft(arrival)

    def set_aside(self, arrival: Arrival) -> None:
        """Keep what belongs to a paused partition, but not more than half of its stream's share."""
        reading, fetched = arrival.reading, arrival.fetched
        if fetched is not None and isinstance(fetched.data, memoryview):
            # A view would keep all that came in the same message, of whatever partition.
            arrival.fetched = fetched._replace(data=bytes(fetched.data))
        reading.held.append(arrival)
        if arrival.account is not None:
            arrival.account.aside += arrival.size
            if arrival.account.has_much_aside:
                self._drop_aside(reading)


def _batches(reading: Reading, data: bytes | memoryview) -> Iterator[Fetched]:
    """The batches that continue what has arrived; CorruptBatch when something is wrong."""
    whole = memoryview(data)
    for position, header in split(data):
        if header.next_offset <= reading.arrived:
            continue
        verify(data, position, header)
        if header.base_offset > reading.arrived:
            raise CorruptBatch(
                BatchFault.BAD_HEADER,
                f"{reading.partition}: offset {header.base_offset} came where {reading.arrived} "
                "was due",
            )
        is_all = header.length == len(data)
        piece = data if is_all else whole[position : position + header.length]
        reading.arrived = header.next_offset
        reading.arrived_epoch = header.leader_epoch
        yield Fetched(header, piece)
