"""Records on their way from the threads of a program into the loop of its producer, and their fate.

Records that differ in nothing but value and time (one topic, no key, no wish for a partition)
gather in one `Run` while the loop is busy, and go into the producer's buffer together. Each has a
`DeliveryFuture`, which is two references and a number: what becomes of a record is looked up in its
run when somebody asks. All others are a run of one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from operator import attrgetter
from threading import Lock
from typing import Any, Final, NamedTuple

from tailrace.client.background import Background
from tailrace.client.delivery import (
    BatchOutcome,
    Callback,
    Delivery,
    RecordMetadata,
    call_program,
)
from tailrace.client.trouble import because
from tailrace.errors import TailraceError

RUN_RECORDS_MAX: Final = 16_384
"""So many go into the buffer together before others get their turn."""


class Placed(NamedTuple):
    """Some records of a run that are in a batch, from its record `position` on, or failed."""

    first: int
    records: int
    outcome: BatchOutcome | None
    position: int
    error: BaseException | None = None


_ORDER: Final = count()
_first: Final = attrgetter("first")


class Run:
    """Records that go together. Threads add to it until the loop takes it; then only the loop."""

    __slots__ = ("_asked", "_placed", "_waiting", "callback", "place", "times", "topic", "values")

    def __init__(
        self,
        topic: str,
        *,
        place: tuple[Any, Any, Any, int | None] | None = None,
        callback: Callback | None = None,
    ) -> None:
        self.topic = topic
        self.values: list[bytes] = []
        self.times = array("q")
        # Value, key, headers and partition of a run of one; None when others may join.
        self.place = place
        self.callback = callback
        # One after the other, as they are put into batches.
        self._placed: list[Placed] = []
        # Those who asked before the records were in the producer's buffer, by record: as they come,
        # and in the order of records, which only the loop touches.
        self._asked: deque[tuple[int, Callable[[], object]]] = deque()
        self._waiting: list[tuple[int, int, Callable[[], object]]] = []

    def put(self, first: int, records: int, outcome: BatchOutcome, position: int) -> None:
        """So many of its records are in a batch now."""
        self._note(Placed(first, records, outcome, position))

    def refuse(self, first: int, records: int, error: BaseException) -> None:
        self._note(Placed(first, records, None, 0, error))
        if self.callback is not None and isinstance(error, TailraceError):
            call_program(partial(self.callback, None, error))

    def refuse_rest(self, error: BaseException) -> None:
        """Nothing of it that has no place yet will get one."""
        first = sum(each.records for each in self._placed)
        self.refuse(first, len(self.times) - first, error)

    def find(self, number: int) -> Delivery | BaseException | None:
        """What is known of one record: where to ask, or why it is nowhere."""
        # In the order of their records: there may be one for each, and each is asked about.
        at = bisect_right(self._placed, number, key=_first)
        if not at:
            return None
        first, records, outcome, position, error = self._placed[at - 1]
        if number >= first + records:
            return None
        if outcome is None:
            return error
        return Delivery(outcome, position + number - first, self.times[number])

    def when_placed(self, number: int, told: Callable[[], object]) -> None:
        """Have the loop call it when more is known of a record.

        Who asks from another thread looks again after that: what `_note` has put in its place
        before it looked for those who wait is found then.
        """
        self._asked.append((number, told))

    def _note(self, placed: Placed) -> None:
        self._placed.append(placed)
        while self._asked:
            number, told = self._asked.popleft()
            heappush(self._waiting, (number, next(_ORDER), told))
        while self._waiting and self._waiting[0][0] < placed.first + placed.records:
            call_program(heappop(self._waiting)[2])


class DeliveryFuture:
    """The future of one record, as `concurrent.futures` has them; it cannot be cancelled."""

    __slots__ = ("_number", "_run", "_shared")

    def __init__(self, run: Run, number: int, shared: Shared) -> None:
        self._run = run
        self._number = number
        self._shared = shared

    def done(self) -> bool:
        found = self._run.find(self._number)
        return found.done() if isinstance(found, Delivery) else found is not None

    def cancel(self) -> bool:
        """False: what was handed over cannot be taken back."""
        return False

    def cancelled(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record is, or why it failed; TimeoutError after so many seconds."""
        found = self._known(timeout)
        if not isinstance(found, Delivery):
            raise found
        return found.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        found = self._known(timeout)
        return found.exception() if isinstance(found, Delivery) else found

    def add_done_callback(self, told: Callable[[DeliveryFuture], object]) -> None:
        """Call it in the producer's thread once the fate is known; it must not take long."""
        loop = self._shared.background.loop
        loop.call_soon_threadsafe(self._when_done, lambda: told(self))

    def _when_done(self, told: Callable[[], object]) -> None:
        """In the loop."""
        found = self._run.find(self._number)
        if found is None:
            self._run.when_placed(self._number, lambda: self._when_done(told))
        elif isinstance(found, Delivery) and not found.done():
            found.add_done_callback(lambda _: told())
        else:
            told()

    def _known(self, timeout: float | None) -> Delivery | BaseException:
        if not self.done():
            self._wait(timeout)
        found = self._run.find(self._number)
        assert found is not None
        return found

    def _wait(self, timeout: float | None) -> None:
        background = self._shared.background
        background.check_not_inside()
        # Locked until the fate is known: this is what a future is made of, without the rest of it.
        ended = Lock()
        ended.acquire()

        def tell() -> None:
            if ended.locked():
                ended.release()

        # The loop has yet to take the run, most likely, and calls this when it does. If it has
        # taken it by now it may not have seen this, and is told.
        if self._run.find(self._number) is None:
            self._run.when_placed(self._number, lambda: self._when_done(tell))
        if self._run.find(self._number) is not None:
            background.loop.call_soon_threadsafe(self._when_done, tell)
        if not ended.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            why = because(self._shared.why())
            raise TimeoutError(f"not acknowledged within {timeout} s{why}")


class Shared(NamedTuple):
    """What all futures of a producer need: its loop, and why nothing is acknowledged."""

    background: Background
    why: Callable[[], str]
