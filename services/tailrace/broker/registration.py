"""What a broker's registration says beyond that it lives: that it drains, that a tail may be lost.

A broker that finds its key taken by a registration with its own incarnation is mostly the next life
of a process that was killed. It may also run on a copy of a live broker's folder. The lock of a
folder does not cover copies, so the process at the registered address is asked before its
registration is ended (`judge_life`).

Whether a broker whose lease lapsed may go on serving is not decided here: acks=all needs the
replicas, and those follow the newest leader epoch they know.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from tailrace.meta.keys import BrokerRegistration, broker_key, encode
from tailrace.meta.registration import OtherLife, Registration
from tailrace.meta.store import MetadataStore, ModifiedAt, Put


class Life(NamedTuple):
    """Which process answers at an address. `process` is new for every start."""

    broker_id: int
    incarnation: str
    process: str


class NoAnswer(Enum):
    """Why no process answered."""

    REFUSED = "nothing listens at the address"
    SILENT = "nothing came back, or not what a broker says"


def judge_life(
    other: BrokerRegistration, own: BrokerRegistration, own_process: str, answer: Life | NoAnswer
) -> OtherLife:
    """Say what the answer at the registered address proves about the other registration."""
    if other.incarnation != own.incarnation:
        # Another folder: nothing here proves that its process is gone.
        return OtherLife.UNKNOWN
    if isinstance(answer, Life):
        if answer.process == own_process or answer.broker_id != own.broker_id:
            # The address belongs to this process now, or to another broker.
            return OtherLife.GONE
        if not answer.incarnation:
            # An older release does not tell, or the process has not opened its folder yet.
            return OtherLife.UNKNOWN
        return OtherLife.COPY if answer.incarnation == own.incarnation else OtherLife.UNKNOWN
    is_own_address = (other.host, other.port) == (own.host, own.port)
    if answer is NoAnswer.REFUSED or is_own_address:
        # This process listens at its own address, even if the name does not lead to it yet.
        return OtherLife.GONE
    return OtherLife.UNKNOWN


class RegisteredBroker(Registration[BrokerRegistration]):
    """Keeps one broker registered."""

    def __init__(
        self,
        store: MetadataStore,
        facts: BrokerRegistration,
        *,
        process: str,
        ask: Callable[[BrokerRegistration], Awaitable[Life | NoAnswer]],
        lease_ttl_ms: int,
        on_registered: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        """`process`: what `ask` returns where this process itself answers."""

        async def judge(other: BrokerRegistration) -> OtherLife:
            return judge_life(other, self.facts, process, await ask(other))

        super().__init__(
            store,
            broker_key(facts.broker_id),
            facts,
            who=f"broker {facts.broker_id}",
            judge=judge,
            lease_ttl_ms=lease_ttl_ms,
            on_change=lambda: on_registered() if self.epoch is not None else None,
            say=say,
        )

    async def set_draining(self) -> None:
        """Tell the controller, through the key itself, that the broker wants to be relieved."""
        self.facts = replace(self.facts, draining=True)
        # None: the next registration says it.
        while (entry := await self.entry()) is not None:
            # The controller may have changed other facts in it, and may do so now.
            draining = replace(self.stored(entry), draining=True)
            result = await self._store.txn(
                [ModifiedAt(self._key, entry.mod_revision)],
                [Put(self._key, encode(draining), self._lease)],
            )
            if result.succeeded:
                return

    def seen(self, stored: BrokerRegistration) -> None:
        if self.facts.tail_may_be_lost and not stored.tail_may_be_lost:
            # The controller has drawn its conclusions; the next registration need not repeat it.
            self.facts = replace(self.facts, tail_may_be_lost=False)
