"""Which controller this broker believes: the one that the store names, never one that only says so.

An order names the epoch of its controller. A higher epoch than the one known is believed after a
linearizable read of the store has shown it: a stranger that claims 2^62 must not depose the real
controller. Before that read the broker looks whether the store is the right one, so that whoever it
obeys reigns in the store that it knows. The answer is kept, so that orders of a known controller
cost no read: they name the token of its term, which no other branch of the store has. While the
store is away the last confirmed controller goes on, and no other: without it none is elected.

A refusal never names an epoch: it would tell the caller what to claim. What was refused is said
here, in this broker's own log, and not more often than `SAY_INTERVAL_MS`.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from typing import Final

from tailrace.clock import Clock
from tailrace.errors import (
    NotController,
    StaleBroker,
    StaleController,
    StoreUnavailable,
    TailraceError,
)
from tailrace.meta.keys import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    ControllerRecord,
    TermRecord,
    decode,
    decode_counter,
    term_key,
)
from tailrace.meta.lineage import Witness
from tailrace.meta.store import MetadataStore
from tailrace.v1 import control_pb2 as pb

# After a claim that the store did not bear out, it is not asked about another one for so long.
DOUBT_MS: Final = 100
SAY_INTERVAL_MS: Final = 1_000


class ControllerGuard:
    """Says of each order whether its header is to be believed."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        say: Callable[[str], None],
        *,
        look: Callable[[], Awaitable[Witness | None]],
        epoch: Callable[[], int | None],
        incarnation: Callable[[], str],
        proof_needed: bool = True,
    ) -> None:
        """`look`: what the store says of itself now; StoreUnavailable when it is the wrong one.

        `epoch`, `incarnation`: of this broker's registration.

        `proof_needed`: an order must name the incarnation, which only who reads the store knows.
        Without, one that names none passes: controllers of older versions do not.
        """
        self._store = store
        self._clock = clock
        self._say = say
        self._look = look
        self._epoch = epoch
        self._incarnation = incarnation
        self._proof_needed = proof_needed
        self._asking = asyncio.Lock()
        self._controller_id = -1
        self._token = ""
        self._doubted_ms: int | None = None
        self._said_ms: int | None = None
        self.controller_epoch = -1
        self.refused = 0

    async def problem(self, header: pb.OrderHeader) -> TailraceError | None:
        """Why an order with this header must not be obeyed."""
        problem = self._stale(header) or self._wrong_life(header)
        if problem is None and header.controller_epoch > self.controller_epoch:
            problem = await self._confirm(header)
        return problem

    def _stale(self, header: pb.OrderHeader) -> TailraceError | None:
        known = (self.controller_epoch, self._controller_id, self._token)
        claimed = (header.controller_epoch, header.controller_id, header.term_token)
        if header.controller_epoch > self.controller_epoch or claimed == known:
            return None
        self._refuse(f"an order of controller {claimed[1]} with epoch {claimed[0]}: {known[0]} is")
        return StaleController("another controller has taken over since, as the store says")

    def _wrong_life(self, header: pb.OrderHeader) -> TailraceError | None:
        epoch, named = self._epoch(), header.broker_incarnation
        is_unnamed = not named and not self._proof_needed
        is_ours = is_unnamed or hmac.compare_digest(named.encode(), self._incarnation().encode())
        if epoch is not None and header.broker_epoch == epoch and is_ours:
            return None
        what = "another incarnation" if header.broker_epoch == epoch else "another epoch"
        self._refuse(f"an order for {what} of this broker ({header.broker_epoch}): {epoch} is")
        return StaleBroker("the order is for another life of this broker than the one that runs")

    async def _confirm(self, header: pb.OrderHeader) -> TailraceError | None:
        async with self._asking:
            if header.controller_epoch > self.controller_epoch:
                if self._is_doubting():
                    return NotController("the store was asked a moment ago and names another")
                try:
                    await self._ask()
                except StoreUnavailable as error:
                    return StoreUnavailable(f"a new controller cannot be confirmed: {error}")
        if header.controller_epoch > self.controller_epoch:
            self._doubted_ms = self._clock.monotonic_ms()
            self._refuse(
                f"controller {header.controller_id} claims epoch {header.controller_epoch}, the "
                f"store knows {self.controller_epoch}: that"
            )
            return NotController("the store does not name this controller, or not in this epoch")
        return self._stale(header)

    async def _ask(self) -> None:
        """Take over what the store says; nothing while nobody is the controller."""
        witness = await self._look()
        known = 0 if witness is None else witness.controller_epoch
        keys = [CONTROLLER, CONTROLLER_EPOCH, term_key(known)]
        record, counter, term = await self._store.get_many(keys)
        if record is None or counter is None:
            return
        active = decode(ControllerRecord, record.value, key=CONTROLLER)
        newest = decode_counter(counter.value, key=CONTROLLER_EPOCH)
        token = "" if term is None else decode(TermRecord, term.value, key=term.key).token
        if witness is not None and token != witness.token:
            # Another store has taken the place of the one that was looked at.
            return
        if active.epoch != known:
            if await self._store.get(term_key(active.epoch)) is not None:
                # It has begun since the look.
                return
            # A controller of an older version leaves no record of its term.
            token = ""
        if active.epoch == newest and active.epoch > self.controller_epoch:
            self.controller_epoch, self._controller_id = active.epoch, active.controller_id
            self._token = token

    def _is_doubting(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        return self._doubted_ms is not None and now_ms - self._doubted_ms < DOUBT_MS

    def _refuse(self, what: str) -> None:
        self.refused += 1
        now_ms = self._clock.monotonic_ms()
        if self._said_ms is None or now_ms - self._said_ms >= SAY_INTERVAL_MS:
            self._said_ms = now_ms
            self._say(f"refused: {what} what counts here ({self.refused} refused so far)")
