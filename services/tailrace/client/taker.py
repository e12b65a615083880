"""Takes what has arrived out of the line, as records or as Arrow batches; keeps positions. Pure.

A batch may be handed out in several polls: a position is always the offset of the first record that
the program has not got. What an iteration took and did not hand out (`unread`) counts as not got.

A problem is raised when its turn comes, and again each time that all has been handed out that had
arrived by then: neither do other partitions wait for it, nor is it hidden by what they bring. A
position moves beyond a batch that cannot be decoded only with `on_skipped`, or by a seek.

One thread takes at a time; it may be another one than that in which data arrives, as long as
nothing is paused and `rows` is asked not to handle problems itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from tailrace.client.fetch_plan import Arrival, FetchPlan, Reading
from tailrace.client.records import ConsumerRecord, rows_of, table_of
from tailrace.client.serializers import Deserializer
from tailrace.client.unreadable import UNDECODABLE, unreadable_body
from tailrace.errors import DeserializationFailed, TailraceError, UnreadableBatch
from tailrace.model import TopicPartition

OnTaken = Callable[[TopicPartition, int, int], None]
OnProblem = Callable[[Reading, TailraceError], bool]
OnSkipped = Callable[[UnreadableBatch], None]


class Resting(Protocol):
    """What rests while rows are made: see resting.py."""

    def begin(self) -> None: ...

    def end(self) -> None:
        """Also when `begin` was not called, or not to its end."""


class Taker:
    """Hands out what a plan has gathered."""

    def __init__(
        self,
        plan: FetchPlan,
        *,
        key: Deserializer | None,
        value: Deserializer | None,
        rest: Resting,
        on_taken: OnTaken,
        on_problem: OnProblem,
        on_skipped: OnSkipped | None = None,
    ) -> None:
        self._plan = plan
        self._rest = rest
        self._key = key
        self._value = value
        self._is_plain = key is None and value is None
        self._on_taken = on_taken
        # Whether a problem was dealt with, so that it need not be raised.
        self._on_problem = on_problem
        # Told of each batch that is passed over; None: such a batch is a problem.
        self._on_skipped = on_skipped
        # The batch that is handed out at the moment.
        self._current: Arrival | None = None
        self._unread: deque[ConsumerRecord] = deque()
        # What `table` gave last, and the position before it.
        self._given: tuple[Arrival, int, int] | None = None

    @property
    def is_simple(self) -> bool:
        """Whether to take needs nothing but the line."""
        return not self._unread and not self._plan.has_paused

    def rows(self, limit: int, *, alone: bool = False) -> list[ConsumerRecord] | None:
        """Up to so many records, None when there are none.

        Raises the problem that has its turn, or gives None when it is not to be dealt with here.
        """
        if self._unread:
            return [self._unread.popleft() for _ in range(min(limit, len(self._unread)))]
        out: list[ConsumerRecord] = []
        try:
            if self._is_plain:
                # Code of the program's own may make much garbage of its own.
                self._rest.begin()
            self._gather(out, limit, alone=alone)
        except BaseException:
            # Ctrl-C: what was taken before comes first next time.
            self.unread(out)
            raise
        finally:
            self._rest.end()
        return out or None

    def _gather(self, out: list[ConsumerRecord], limit: int, *, alone: bool) -> None:
        while len(out) < limit:
            arrival = self._find(alone=alone or bool(out))
            if arrival is None:
                return
            rows = self._opened(arrival)
            if arrival.fetched is not None and isinstance(arrival.problem, UnreadableBatch):
                if self._is_passed(arrival, arrival.problem, alone=alone):
                    continue
                return
            at, end = arrival.index, min(arrival.index + limit - len(out), len(rows))
            out += rows[at:end] if end - at < len(rows) else rows
            arrival.index = end
            if end == at and arrival.problem is not None:
                if self._is_held_up(arrival, alone=alone):
                    return
            else:
                self._stand(arrival, rows)
                self._on_taken(arrival.reading.partition, end - at, 0 if at else arrival.size)

    def table(self, *, headers: bool, alone: bool = False) -> pa.RecordBatch | None:
        """The next batch as columns, None when there is none; raises as `rows` does."""
        while (arrival := self._find(alone=alone)) is not None:
            if arrival.fetched is None:
                self._is_held_up(arrival, alone=False)
                continue
            reading = arrival.reading
            found = self._columns(arrival, headers=headers)
            if isinstance(arrival.problem, UnreadableBatch):
                if self._is_passed(arrival, arrival.problem, alone=alone):
                    continue
                return None
            if found is not None:
                self._given = (arrival, reading.position, reading.position_epoch)
            reading.position = arrival.fetched.header.next_offset
            reading.position_epoch = arrival.fetched.header.leader_epoch
            if found is not None:
                try:
                    self._on_taken(reading.partition, found.num_rows, arrival.size)
                except BaseException:
                    # Ctrl-C: nobody got it.
                    self.unread_table()
                    raise
                return found
        return None

    def unread(self, records: list[ConsumerRecord]) -> None:
        """Give records back that were taken and not handed out: they come first next time."""
        self._unread.extendleft(reversed(records))

    def unread_table(self) -> None:
        """Give the last batch of `table` back, which nobody got: it comes first next time."""
        if self._given is None:
            return
        (arrival, position, epoch), self._given = self._given, None
        reading = arrival.reading
        if arrival.version == reading.version:
            reading.position, reading.position_epoch = position, epoch
            self._plan.put_back(arrival)

    def next_unread(self) -> ConsumerRecord | None:
        """The next of those that were given back."""
        return self._unread.popleft() if self._unread else None

    def positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Offset of the next record, and epoch of the last one, of each partition that has any."""
        found = {
            partition: (reading.position, reading.position_epoch)
            for partition, reading in self._plan.readings.items()
            if reading.position >= 0
        }
        for record in reversed(self._unread):
            partition = TopicPartition(record.topic, record.partition)
            if partition in found:
                found[partition] = (record.offset, found[partition][1])
        return found

    def forget(self, partition: TopicPartition) -> None:
        """The program reads elsewhere: nothing that was taken counts any more."""
        if self._unread:
            self._unread = deque(
                each
                for each in self._unread
                if (each.topic, each.partition) != (partition.topic, partition.partition)
            )

    # One batch.

    def _find(self, *, alone: bool) -> Arrival | None:
        """The batch that is being handed out, or the next one."""
        arrival = self._current
        if arrival is None:
            arrival = self._plan.take()
            if arrival is not None and arrival.fetched is None and alone:
                # A problem: it waits for its turn, or for who may deal with it.
                self._plan.arrivals.appendleft(arrival)
                return None
            return arrival
        self._current = None
        if arrival.version != arrival.reading.version:
            return self._find(alone=alone)
        if arrival.reading.is_paused:
            self._plan.put_back(arrival)
            return self._find(alone=alone)
        return arrival

    def _opened(self, arrival: Arrival) -> list[ConsumerRecord]:
        """The rows of a batch, which are made once; a problem has none."""
        if arrival.rows is None and arrival.fetched is not None:
            reading = arrival.reading
            # Ctrl-C in the middle of it: the batch is the next one again.
            self._current = arrival
            try:
                arrival.rows, arrival.problem = rows_of(
                    arrival.fetched, reading.partition, reading.position, self._key, self._value
                )
            except UNDECODABLE as error:
                header = arrival.fetched.header
                arrival.problem = unreadable_body(reading.partition, header, error)
            self._current = None
        return arrival.rows or []

    def _columns(self, arrival: Arrival, *, headers: bool) -> pa.RecordBatch | None:
        """The rows of a batch that the program has not got, as columns."""
        reading, fetched = arrival.reading, arrival.fetched
        assert fetched is not None
        self._current = arrival
        found = None
        try:
            found = table_of(fetched, reading.partition, reading.position, headers=headers)
        except UNDECODABLE as error:
            arrival.problem = unreadable_body(reading.partition, fetched.header, error)
        self._current = None
        return found

    def _is_passed(self, arrival: Arrival, error: UnreadableBatch, *, alone: bool) -> bool:
        """Whether the line goes on after an unreadable batch: it is skipped, or set apart.

        Another thread may not set it apart: there the batch waits for who may.
        """
        reading, fetched = arrival.reading, arrival.fetched
        assert fetched is not None
        if self._on_skipped is not None:
            reading.position = fetched.header.next_offset
            reading.position_epoch = fetched.header.leader_epoch
            self._on_skipped(error)
        elif alone:
            self._current = arrival
            return False
        else:
            self._plan.set_apart(reading, error)
        return True

    def _is_held_up(self, arrival: Arrival, *, alone: bool) -> bool:
        """There is a problem here, and nothing before it: deal with it, raise it, or wait."""
        if alone:
            self._current = arrival
            return True
        assert arrival.problem is not None
        if arrival.fetched is not None:
            # A record that cannot be read: its partition waits for a seek, the others do not.
            self._plan.set_apart(arrival.reading, arrival.problem)
            return False
        if self._on_problem(arrival.reading, arrival.problem):
            return False
        # It has another turn, behind what has arrived.
        self._plan.arrivals.append(arrival)
        # A traceback would grow with each time that it is raised.
        raise arrival.problem.with_traceback(None)

    def _stand(self, arrival: Arrival, rows: list[ConsumerRecord]) -> None:
        """Note how far the program has got: to a record, to a problem, or behind the batch."""
        reading, fetched = arrival.reading, arrival.fetched
        assert fetched is not None
        reading.position_epoch = fetched.header.leader_epoch
        if arrival.index < len(rows):
            self._current = arrival
            reading.position = rows[arrival.index].offset
        elif isinstance(arrival.problem, DeserializationFailed):
            self._current = arrival
            reading.position = arrival.problem.offset
        else:
            reading.position = fetched.header.next_offset
