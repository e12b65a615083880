"""The simulated wires between processes: delay, loss, partitions, crashes; no protocol yet.

A `Connection` is two `Pipe`s. A pipe keeps the order of what is put into it, as TCP does; different
connections overtake each other freely. What is lost is never one message in the middle: the
connection breaks there. A partition is silent: what is sent waits, and goes on when the partition
heals in time; after the keepalive time both ends notice by themselves. A crash lets some first part
of what was on its way arrive, then breaks; what was on its way to the dead is gone.

Everything here happens outside the processes: a paused process still receives, it just does not
look. Randomness comes from the loop's seed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from simulation.loop import Process, SimLoop, outside
from tailrace.transport.rpc import KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS

# An attempt to connect over a silent path fails after this, as in `tailrace.transport`.
CONNECT_TIMEOUT_MS: Final = 2_000
SILENCE_MS_MAX: Final = KEEPALIVE_MS + KEEPALIVE_TIMEOUT_MS
SILENCE_MS_MIN: Final = KEEPALIVE_TIMEOUT_MS

_US_IN_S: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What a message meets on its way from one host to another. Probabilities are per message."""

    latency_us: tuple[int, int] = (80, 400)
    spike_probability: float = 0.0
    spike_us: tuple[int, int] = (5_000, 200_000)
    # The connection breaks with this message; of a unary call, the request or the response is lost.
    loss_probability: float = 0.0
    # A unary request arrives once more, some time later.
    duplicate_probability: float = 0.0
    bytes_per_s: int = 1_000_000_000


FAIR: Final = Weather()


class End(Protocol):
    """What a pipe leads to. Called outside of all processes."""

    keepalive_by_process: bool
    """Whether the process itself has to answer to keepalives, not just its kernel."""

    def arrived(self, item: Any, size: int) -> None: ...

    def ended(self) -> None:
        """The other side has finished in order."""

    def broke(self, reason: str) -> None: ...

    def room(self) -> None:
        """The other side has taken something: who waits to send may go on."""


@dataclass(slots=True)
class _Item:
    deliver: Callable[..., None]
    args: tuple[Any, ...]


class Pipe:
    """One direction of a connection: what is put in comes out in order, after a while."""

    __slots__ = (
        "_fabric",
        "_in_transit",
        "_last_arrival_us",
        "_missed",
        "ahead_bytes",
        "end",
        "is_shut",
        "source",
        "target",
    )

    def __init__(self, fabric: Fabric, source: str, target: str) -> None:
        self._fabric = fabric
        self.source = source
        self.target = target
        self.end: End | None = None
        self.ahead_bytes = 0
        """Sent, but not taken by the receiver yet."""
        self.is_shut = False
        self._in_transit: deque[_Item] = deque()
        self._last_arrival_us = 0
        # Arrivals that a partition has swallowed and that must be made good when it heals.
        self._missed = 0

    def put(self, size: int, deliver: Callable[..., None], *args: Any) -> None:
        """Let `deliver(*args)` happen at the other end."""
        if self.is_shut:
            return
        self._in_transit.append(_Item(deliver, args))
        self._expect(size)

    def cut(self) -> None:
        """Nothing comes out any more."""
        self.is_shut = True
        self._in_transit.clear()

    def shut(self) -> None:
        """Nothing more goes in; what is on its way arrives."""
        self.is_shut = True

    def crash(self, reason: str) -> None:
        """The sender died: some first part of what is on its way arrives, and then the news."""
        keep = self._fabric.rng.randint(0, len(self._in_transit))
        while len(self._in_transit) > keep:
            self._in_transit.pop()
        self.put(0, self.break_end, reason)
        self.shut()

    def heal(self) -> None:
        """TCP sends again what a partition has swallowed."""
        missed, self._missed = self._missed, 0
        for _ in range(missed):
            self._expect(0)

    @property
    def is_stalled(self) -> bool:
        return self._missed > 0

    def _expect(self, size: int) -> None:
        fabric = self._fabric
        delay_us = fabric.latency_us(self.source, self.target, size)
        arrival_us = max(fabric.loop.now_us + delay_us, self._last_arrival_us)
        self._last_arrival_us = arrival_us
        fabric.loop.call_at(arrival_us / _US_IN_S, self._arrive, context=fabric.context)

    def _arrive(self) -> None:
        if not self._in_transit:
            return
        if self._fabric.is_blocked(self.source, self.target):
            self._missed += 1
            return
        item = self._in_transit.popleft()
        item.deliver(*item.args)

    def break_end(self, reason: str) -> None:
        if self.end is not None:
            self.end.broke(reason)


class Connection:
    """Two pipes, and the news that they are no more. `a` has opened it."""

    __slots__ = ("_fabric", "a", "a_open", "b", "b_open", "back", "number", "there")

    def __init__(self, fabric: Fabric, number: int, a: Process, a_name: str, b_name: str) -> None:
        self._fabric = fabric
        self.number = number
        self.a = a
        self.b: Process | None = None
        self.there = Pipe(fabric, a_name, b_name)
        self.back = Pipe(fabric, b_name, a_name)
        self.a_open = True
        self.b_open = True

    def joins(self, name: str, other: str) -> bool:
        return {self.there.source, self.there.target} == {name, other}

    def lose(self, pipe: Pipe, reason: str) -> None:
        """A message on this pipe is lost, and the connection with it: both ends get to know."""
        other = self.back if pipe is self.there else self.there
        pipe.put(0, pipe.break_end, reason)
        other.put(0, other.break_end, reason)

    def fall_silent(self) -> None:
        """Each end finds out by itself that nothing comes from the other."""
        for pipe in (self.there, self.back):
            pipe.cut()
            if pipe.end is not None:
                pipe.end.broke("no answer to keepalive")
        self._fabric.connections.pop(self.number, None)

    def close_end(self, pipe_out: Pipe) -> None:
        """One end is done; when both are, the connection is forgotten."""
        if pipe_out is self.there:
            self.a_open = False
        else:
            self.b_open = False
        if not (self.a_open or self.b_open):
            self._fabric.connections.pop(self.number, None)


class Fabric:
    """All wires of one simulation, and the faults that happen to them."""

    def __init__(self, loop: SimLoop, *, weather: Weather = FAIR, strict: bool = True) -> None:
        self.loop = loop
        self.weather = weather
        """Where no other was set for a pair of hosts. May be changed at any time."""
        self.strict = strict
        """Messages are encoded and decoded on their way, so that nobody shares them."""
        self.rng = loop.fork_rng("fabric")
        self.context = outside()
        self.connections: dict[int, Connection] = {}
        self.handler_failures: list[str] = []
        """What handlers raised: the server's own bugs, mostly."""
        self._weathers: dict[tuple[str, str], Weather] = {}
        self._blocked: dict[tuple[str, str], int] = {}
        self._blocks = 0
        self._count = 0

    # Faults.

    def set_weather(self, source: str, target: str, weather: Weather | None) -> None:
        """From one host to another, this way only; None for the weather of all."""
        if weather is None:
            self._weathers.pop((source, target), None)
        else:
            self._weathers[source, target] = weather

    def block(self, source: str, target: str) -> None:
        """Nothing comes through from `source` to `target`, without a word."""
        if (source, target) in self._blocked:
            return
        self.loop.note(f"block {source}>{target}")
        self._blocks += 1
        self._blocked[source, target] = self._blocks
        for connection in list(self.connections.values()):
            if connection.joins(source, target):
                self._watch_silence(connection, SILENCE_MS_MIN)

    def partition(self, left: list[str], right: list[str]) -> None:
        """Both ways, between each of these and each of those."""
        for one in left:
            for other in right:
                self.block(one, other)
                self.block(other, one)

    def isolate(self, name: str, others: list[str]) -> None:
        self.partition([name], [other for other in others if other != name])

    def unblock(self, source: str, target: str) -> None:
        if self._blocked.pop((source, target), None) is None:
            return
        self.loop.note(f"unblock {source}>{target}")
        for connection in list(self.connections.values()):
            for pipe in (connection.there, connection.back):
                if (pipe.source, pipe.target) == (source, target):
                    pipe.heal()

    def heal(self) -> None:
        """End all partitions and make the weather fair."""
        for source, target in list(self._blocked):
            self.unblock(source, target)
        self._weathers.clear()
        self.weather = FAIR

    def break_connections(self, one: str, other: str) -> None:
        """Reset all connections between two hosts, as a middle box may do."""
        self.loop.note(f"reset {one}-{other}")
        for connection in list(self.connections.values()):
            if connection.joins(one, other):
                connection.lose(connection.there, "connection reset")

    def is_blocked(self, source: str, target: str) -> bool:
        return bool(self._blocked) and (source, target) in self._blocked

    # For the ports.

    def connect(self, process: Process, source: str, target: str) -> Connection:
        self._count += 1
        connection = Connection(self, self._count, process, source, target)
        self.connections[self._count] = connection
        if self._is_silent(connection):
            self._watch_silence(connection, CONNECT_TIMEOUT_MS)
        return connection

    def latency_us(self, source: str, target: str, size: int) -> int:
        weather = self.weather_between(source, target)
        rng = self.rng
        low, high = weather.latency_us
        delay_us = low + int(rng.random() * (high - low))
        if weather.spike_probability and rng.random() < weather.spike_probability:
            low, high = weather.spike_us
            delay_us += low + int(rng.random() * (high - low))
        return delay_us + size * _US_IN_S // weather.bytes_per_s

    def weather_between(self, source: str, target: str) -> Weather:
        if self._weathers:
            return self._weathers.get((source, target), self.weather)
        return self.weather

    def loses(self, pipe: Pipe) -> bool:
        loss = self.weather_between(pipe.source, pipe.target).loss_probability
        return loss > 0 and self.rng.random() < loss

    def crash(self, process: Process, reason: str) -> None:
        """A process is gone: what it had open breaks."""
        for connection in list(self.connections.values()):
            if connection.a is process:
                mine, theirs = connection.there, connection.back
            elif connection.b is process:
                mine, theirs = connection.back, connection.there
            else:
                continue
            theirs.cut()
            mine.crash(reason)
            connection.close_end(mine)

    def paused(self, process: Process) -> None:
        """Its kernel answers for it, but nobody answers to the keepalives of gRPC."""
        for connection in list(self.connections.values()):
            if process is connection.a or process is connection.b:
                self.watch_pause(connection, process)

    def watch_pause(self, connection: Connection, process: Process) -> None:
        silence_ms = self.rng.randint(SILENCE_MS_MIN, SILENCE_MS_MAX)
        self._later(silence_ms, self._end_if_paused, connection, process, process.pauses)

    def _end_if_paused(self, connection: Connection, process: Process, pauses: int) -> None:
        if not (process.is_paused and process.pauses == pauses and self._is_open(connection)):
            return
        ends = (connection.there.end, connection.back.end)
        if any(end is not None and end.keepalive_by_process for end in ends):
            connection.fall_silent()

    def _watch_silence(self, connection: Connection, from_ms: int) -> None:
        blocks = self._blocks_of(connection)
        self._later(
            self.rng.randint(from_ms, SILENCE_MS_MAX), self._end_if_silent, connection, blocks
        )

    def _end_if_silent(self, connection: Connection, blocks: list[int]) -> None:
        still = self._blocks_of(connection)
        if self._is_open(connection) and any(block in still for block in blocks):
            connection.fall_silent()

    def _blocks_of(self, connection: Connection) -> list[int]:
        one, other = connection.there.source, connection.there.target
        found = (self._blocked.get((one, other)), self._blocked.get((other, one)))
        return [block for block in found if block is not None]

    def _is_silent(self, connection: Connection) -> bool:
        return bool(self._blocked) and bool(self._blocks_of(connection))

    def _is_open(self, connection: Connection) -> bool:
        return connection.number in self.connections

    def _later(self, ms: int, work: Callable[..., None], *args: Any) -> None:
        self.loop.call_later(ms / 1_000, work, *args, context=self.context)
