"""What a broker's registration says beyond that it lives: that it drains, that a tail may be lost.

Whether a broker whose lease lapsed may go on serving is not decided here: acks=all needs the
replicas, and those follow the newest leader epoch they know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tailrace.meta.keys import BrokerRegistration, broker_key, encode
from tailrace.meta.registration import Registration
from tailrace.meta.store import MetadataStore, ModifiedAt, Put


class RegisteredBroker(Registration[BrokerRegistration]):
    """Keeps one broker registered."""

    def __init__(
        self,
        store: MetadataStore,
        facts: BrokerRegistration,
        *,
        lease_ttl_ms: int,
        on_registered: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(
            store,
            broker_key(facts.broker_id),
            facts,
            who=f"broker {facts.broker_id}",
            # The lock on the data folder proves that a life with the same one is over.
            is_former_life=lambda other: other.incarnation == facts.incarnation,
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
