"""The ISR of what this broker leads, as it is stored: one guarded transaction for each change.

The machine proposes (`StoreIsr`), the store decides; what came of it goes back as an event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tailrace.broker.hosted import Hosted
from tailrace.errors import StoreUnavailable
from tailrace.meta.keys import (
    BrokerRegistration,
    PartitionState,
    broker_key,
    decode,
    encode,
    state_key,
)
from tailrace.meta.store import CreatedAt, Entry, Guard, MetadataStore, ModifiedAt, Put
from tailrace.model import BrokerId
from tailrace.replication.events import (
    AddedReplica,
    IsrRefused,
    IsrStored,
    IsrUnknown,
    StoredState,
    StoreIsr,
)


class IsrStore:
    """Changes the ISR in the store on behalf of the machines of one broker."""

    def __init__(
        self,
        store: MetadataStore,
        broker_id: BrokerId,
        identity: Callable[[], tuple[str, int | None]],
        *,
        tell: Callable[[Hosted, IsrStored | IsrRefused | IsrUnknown], None],
        say: Callable[[str], None],
    ) -> None:
        self._store = store
        self._broker_id = broker_id
        self._identity = identity
        self._tell = tell
        self._say = say

    async def store(self, hosted: Hosted, effect: StoreIsr) -> None:
        """One guarded transaction; what came of it goes back to the machine."""
        key = state_key(hosted.partition)
        _, own_epoch = self._identity()
        try:
            entry = await self._store.get(key)
            if entry is None or own_epoch is None or entry.mod_revision != effect.expected_revision:
                self._refused(hosted, effect, entry, registered=own_epoch is not None)
                return
            stored = decode(PartitionState, entry.value, key=key)
            changed = replace(stored, isr=effect.isr, elr=effect.elr)
            joining = await self._joining(effect.added)
            if joining is None:
                self._refused(hosted, effect, entry, registered=True)
                return
            guards: list[Guard] = [
                ModifiedAt(key, effect.expected_revision),
                CreatedAt(broker_key(self._broker_id), own_epoch),
                *joining,
            ]
            result = await self._store.txn(guards, [Put(key, encode(changed))])
            if result.succeeded:
                self._say(f"{hosted.partition}: ISR {list(effect.isr)}, ELR {list(effect.elr)}")
                self._tell(hosted, IsrStored(attempt=effect.attempt, revision=result.revision))
                return
            self._refused(hosted, effect, await self._store.get(key), registered=True)
        except StoreUnavailable:
            self._tell(hosted, IsrUnknown(attempt=effect.attempt))

    async def _joining(self, added: Iterable[AddedReplica]) -> list[Guard] | None:
        """Guards that those who join are what they are now; None: one of them may not join.

        One that is shutting down would leave at once, and take with it what only it could vouch
        for; one whose tail may be lost has yet to be taken out everywhere.
        """
        guards: list[Guard] = []
        for broker, epoch in added:
            entry = await self._store.get(broker_key(broker))
            if entry is None or entry.create_revision != epoch:
                return None
            registration = decode(BrokerRegistration, entry.value, key=entry.key)
            if registration.draining or registration.tail_may_be_lost:
                return None
            guards.append(ModifiedAt(entry.key, entry.mod_revision))
        return guards

    def _refused(
        self, hosted: Hosted, effect: StoreIsr, entry: Entry | None, *, registered: bool
    ) -> None:
        if not registered:
            # Without a registration nothing can be stored; it is on its way.
            self._tell(hosted, IsrUnknown(attempt=effect.attempt))
            return
        state = None
        if entry is not None:
            stored = decode(PartitionState, entry.value, key=entry.key)
            state = StoredState(
                leader=stored.leader,
                leader_epoch=stored.leader_epoch,
                isr=stored.isr,
                elr=stored.elr,
                revision=entry.mod_revision,
            )
        self._tell(hosted, IsrRefused(attempt=effect.attempt, state=state))
