"""Requests that wait: produces for their replicas, fetches for bytes; each with a deadline.

Pure: waiters are opaque, time is an argument, and whoever is released is returned to the caller.
Nothing polls: a produce is released when the high watermark reaches its offset, a fetch when its
partitions have grown by enough bytes, both when the partition fails them or their time is over.

Every operation costs O(log n) for each request that it parks or releases. A fetch of k partitions
that misses b bytes waits at each of them for b/k: unless one of them grows by its share, the sum
cannot be reached. When one does, the rest is shared out anew, so it is looked at O(k log b) times
however often its partitions grow.

Invariant: a request that is parked is in the deadline queue once, and once in the queue of each of
its partitions; what a queue holds besides is less than half of it, or less than `SLACK`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Final, Generic, NamedTuple, TypeVar

from tailrace.errors import InvariantViolation, Overloaded
from tailrace.model import TopicPartition

PRODUCES_MAX: Final = 200_000
FETCHES_MAX: Final = 100_000
# Queues smaller than this are not tidied up.
SLACK: Final = 64

# The turn of an entry that stays good however often a fetch is shared out.
_ANY: Final = -1

W = TypeVar("W")


class Cause(Enum):
    """Why a request does not wait any longer."""

    REACHED = "what it waited for has happened"
    FAILED = "the partition changed its role, or is gone"
    EXPIRED = "its time is over"


class Ticket(Generic[W]):
    """One parked request. `Purgatory.cancel` takes it back."""

    __slots__ = ("counted", "deadline_ms", "is_parked", "missing", "partitions", "turn", "waiter")

    def __init__(
        self, waiter: W, partitions: tuple[TopicPartition, ...], deadline_ms: int, missing: int
    ) -> None:
        self.waiter = waiter
        self.partitions = partitions
        self.deadline_ms = deadline_ms
        self.is_parked = True
        # Of a fetch: the bytes that it misses, and how far its partitions had grown back then.
        self.missing = missing
        self.counted: tuple[int, ...] = ()
        # Entries of earlier turns are void.
        self.turn = 0


class Released(NamedTuple, Generic[W]):
    """A request that waits no longer; `code` says what failed."""

    waiter: W
    cause: Cause
    code: str = ""


class Purgatory(Generic[W]):
    """All parked requests of one broker."""

    def __init__(self, *, produces_max: int = PRODUCES_MAX, fetches_max: int = FETCHES_MAX) -> None:
        self._produces_max = produces_max
        self._fetches_max = fetches_max
        self._produces = 0
        self._fetches = 0
        self._numbers = 0
        self._offsets: dict[TopicPartition, _Queue[W]] = {}
        self._bytes: dict[TopicPartition, _Queue[W]] = {}
        # How far each partition has grown since somebody began to wait for its bytes.
        self._grown: dict[TopicPartition, int] = {}
        self._deadlines: _Queue[W] = _Queue()

    @property
    def produces(self) -> int:
        return self._produces

    @property
    def fetches(self) -> int:
        return self._fetches

    @property
    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do next; None when nobody waits."""
        return self._deadlines.first_key()

    # Parking.

    def park_produce(
        self, waiter: W, partition: TopicPartition, *, offset: int, deadline_ms: int
    ) -> Ticket[W]:
        """Wait until the high watermark is at `offset` or above."""
        if self._produces >= self._produces_max:
            raise Overloaded(f"{self._produces_max} produces wait for their replicas already")
        ticket = Ticket(waiter, (partition,), deadline_ms, 0)
        self._produces += 1
        self._push(self._offsets.setdefault(partition, _Queue()), offset, ticket)
        self._push(self._deadlines, deadline_ms, ticket)
        return ticket

    def park_fetch(
        self,
        waiter: W,
        partitions: Sequence[TopicPartition],
        *,
        missing_bytes: int,
        deadline_ms: int,
    ) -> Ticket[W]:
        """Wait until these partitions, taken together, have grown by `missing_bytes`."""
        if missing_bytes <= 0 or not partitions or len(set(partitions)) != len(partitions):
            raise InvariantViolation(
                f"a fetch of {len(partitions)} partitions cannot wait for {missing_bytes} bytes"
            )
        if self._fetches >= self._fetches_max:
            raise Overloaded(f"{self._fetches_max} fetches wait already")
        ticket = Ticket(waiter, tuple(partitions), deadline_ms, missing_bytes)
        ticket.counted = tuple(self._grown.setdefault(each, 0) for each in partitions)
        self._fetches += 1
        self._share_out(ticket, missing_bytes)
        self._push(self._deadlines, deadline_ms, ticket)
        return ticket

    # Releasing.

    def moved(self, partition: TopicPartition, high_watermark: int) -> list[Released[W]]:
        """The high watermark moved: the produces up to it are done."""
        queue = self._offsets.get(partition)
        if queue is None:
            return []
        done = queue.pop_up_to(high_watermark)
        return self._release(done, Cause.REACHED, popped=queue)

    def grew(self, partition: TopicPartition, size_bytes: int) -> list[Released[W]]:
        """There is more to read: by a commit, or by an append for those who read up to the end."""
        queue = self._bytes.get(partition)
        if queue is None:
            return []
        self._grown[partition] += size_bytes
        done: list[Ticket[W]] = []
        for ticket in queue.pop_up_to(self._grown[partition]):
            missing = ticket.missing - self._gained(ticket)
            if missing <= 0:
                done.append(ticket)
            else:
                self._void_shares(ticket, popped=queue)
                self._share_out(ticket, missing)
        return self._release(done, Cause.REACHED, popped=queue)

    def fail(
        self, partition: TopicPartition, code: str, *, fetches: bool = True
    ) -> list[Released[W]]:
        """The role changed: all produces of the partition end now, and the fetches if said so."""
        queues = [self._offsets.get(partition), self._bytes.get(partition) if fetches else None]
        failed = [ticket for queue in queues if queue is not None for ticket in queue.live()]
        return self._release(failed, Cause.FAILED, code=code)

    def expire(self, now_ms: int) -> list[Released[W]]:
        """The time of those is over whose deadline is `now_ms` or before."""
        late = self._deadlines.pop_up_to(now_ms)
        return self._release(late, Cause.EXPIRED, popped=self._deadlines)

    def cancel(self, ticket: Ticket[W]) -> None:
        """Nobody waits for the answer any more; fine when it was released already."""
        if ticket.is_parked:
            self._release([ticket], Cause.FAILED)

    # The parts of the above.

    def _push(self, queue: _Queue[W], key: int, ticket: Ticket[W], *, turn: int = _ANY) -> None:
        self._numbers += 1
        queue.push(key, self._numbers, turn, ticket)

    def _share_out(self, ticket: Ticket[W], missing: int) -> None:
        share = -(-missing // len(ticket.partitions))
        for partition in ticket.partitions:
            queue = self._bytes.setdefault(partition, _Queue())
            self._push(queue, self._grown[partition] + share, ticket, turn=ticket.turn)

    def _gained(self, ticket: Ticket[W]) -> int:
        now = sum(self._grown[partition] for partition in ticket.partitions)
        return now - sum(ticket.counted)

    def _release(
        self,
        tickets: Sequence[Ticket[W]],
        cause: Cause,
        *,
        code: str = "",
        popped: _Queue[W] | None = None,
    ) -> list[Released[W]]:
        """Take requests out of all queues but the one that they were popped from."""
        for ticket in tickets:
            ticket.is_parked = False
            if popped is not self._deadlines:
                self._deadlines.void_one()
            if ticket.missing:
                self._fetches -= 1
                self._void_shares(ticket, popped=popped)
            else:
                self._produces -= 1
                queue = self._offsets[ticket.partitions[0]]
                if queue is not popped:
                    queue.void_one()
        for ticket in tickets:
            self._drop_empty(ticket)
        return [Released(ticket.waiter, cause, code) for ticket in tickets]

    def _void_shares(self, ticket: Ticket[W], *, popped: _Queue[W] | None) -> None:
        ticket.turn += 1
        for partition in ticket.partitions:
            queue = self._bytes[partition]
            if queue is not popped:
                queue.void_one()

    def _drop_empty(self, ticket: Ticket[W]) -> None:
        queues = self._bytes if ticket.missing else self._offsets
        for partition in ticket.partitions:
            queue = queues.get(partition)
            if queue is not None and queue.is_empty:
                del queues[partition]
                if ticket.missing:
                    del self._grown[partition]


class _Queue(Generic[W]):
    """Tickets by key, then by age. Entries of tickets that went another way are void."""

    __slots__ = ("_entries", "_void")

    def __init__(self) -> None:
        # (key, number, turn, ticket): no two numbers are equal, so tickets are never compared.
        self._entries: list[tuple[int, int, int, Ticket[W]]] = []
        self._void = 0

    @property
    def is_empty(self) -> bool:
        return len(self._entries) == self._void

    def push(self, key: int, number: int, turn: int, ticket: Ticket[W]) -> None:
        heappush(self._entries, (key, number, turn, ticket))

    def first_key(self) -> int | None:
        entries = self._entries
        while entries and not _counts(entries[0]):
            heappop(entries)
            self._void -= 1
        return entries[0][0] if entries else None

    def pop_up_to(self, key: int) -> list[Ticket[W]]:
        entries = self._entries
        found: list[Ticket[W]] = []
        while entries and entries[0][0] <= key:
            entry = heappop(entries)
            if _counts(entry):
                found.append(entry[3])
            else:
                self._void -= 1
        return found

    def void_one(self) -> None:
        """One more entry does not count; when most do not, they are thrown out."""
        self._void += 1
        if self._void > SLACK and 2 * self._void > len(self._entries):
            self._entries = [entry for entry in self._entries if _counts(entry)]
            heapify(self._entries)
            self._void = 0

    def live(self) -> list[Ticket[W]]:
        """All tickets, the oldest first."""
        by_age = sorted(self._entries, key=lambda entry: entry[1])
        return [entry[3] for entry in by_age if _counts(entry)]


def _counts(entry: tuple[int, int, int, Ticket[W]]) -> bool:
    _, _, turn, ticket = entry
    return ticket.is_parked and turn in (_ANY, ticket.turn)
