"""The streams of a broker's clients: when each was last heard of, and which are cut off.

Two kinds of client cost memory for nothing: one that does not take what is sent to it (a stuck
reader, a producer that does not read its answers), and one that has a stream open and never says
anything. Each has a named limit. The streams only note times; one task looks at all of them now and
then, so that nothing is added to the hot path but a few assignments.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from tailrace.clock import Clock
from tailrace.transport.rpc import CALLER, Stream

SWEEPS_PER_LIMIT: Final = 4
SWEEP_MS_MAX: Final = 5_000
NEVER_MS: Final = -1


class ClientStream:
    """One open stream, as its handler notes it."""

    __slots__ = ("_clock", "client_id", "heard_ms", "peer", "sending_ms", "stream", "what")

    def __init__(self, what: str, stream: Stream[Any, Any], clock: Clock) -> None:
        self._clock = clock
        self.what = what
        self.stream = stream
        self.client_id = ""
        # Few programs give themselves a name: the address is what leads to the others.
        self.peer = CALLER.get()()
        self.heard_ms = clock.monotonic_ms()
        # Since when a message waits to be taken by the client.
        self.sending_ms = NEVER_MS

    def heard(self) -> None:
        """The client said something."""
        self.heard_ms = self._clock.monotonic_ms()

    async def send(self, message: object) -> None:
        """Send, and let it be known how long that takes."""
        self.sending_ms = self._clock.monotonic_ms()
        await self.stream.send(message)
        self.sending_ms = NEVER_MS

    def verdict(self, now_ms: int, *, stall_max_ms: int, idle_max_ms: int) -> str:
        """Why it is to be cut off; empty: it is not."""
        who = f"{self.what} stream of {self.client_id or 'a client without a name'}"
        who += f" at {self.peer}" if self.peer else ""
        if self.sending_ms != NEVER_MS:
            if now_ms - self.sending_ms < stall_max_ms:
                return ""
            return f"{who}: cut off, it took nothing for client.stall.timeout.ms={stall_max_ms}"
        if now_ms - self.heard_ms < idle_max_ms:
            return ""
        return f"{who}: closed, it was idle for connections.max.idle.ms={idle_max_ms}"


class ClientStreams:
    """All open streams of clients. `enter` and `leave` for each, `run` in one task."""

    def __init__(
        self,
        clock: Clock,
        *,
        stall_max_ms: int,
        idle_max_ms: int,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._stall_max_ms = stall_max_ms
        self._idle_max_ms = idle_max_ms
        self._say = say
        self._open: dict[ClientStream, None] = {}
        self.cut_off = 0

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, what: str, stream: Stream[Any, Any]) -> ClientStream:
        entered = ClientStream(what, stream, self._clock)
        self._open[entered] = None
        return entered

    def leave(self, stream: ClientStream) -> None:
        self._open.pop(stream, None)

    def kinds(self) -> dict[str, int]:
        """How many are open of each kind."""
        return Counter(each.what for each in self._open)

    async def run(self) -> None:
        shortest_ms = min(self._stall_max_ms, self._idle_max_ms)
        pause_ms = min(shortest_ms // SWEEPS_PER_LIMIT + 1, SWEEP_MS_MAX)
        while True:
            await asyncio.sleep(pause_ms / 1000)
            self.sweep()

    def sweep(self) -> None:
        """Cut off those that have gone beyond a limit."""
        now_ms = self._clock.monotonic_ms()
        for each in list(self._open):
            why = each.verdict(
                now_ms, stall_max_ms=self._stall_max_ms, idle_max_ms=self._idle_max_ms
            )
            if why:
                self.cut_off += 1
                self._say(why)
                self.leave(each)
                each.stream.cancel()
