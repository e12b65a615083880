"""The ISR of what this broker leads, as it is stored: guarded transactions over many partitions.

The machine proposes (`StoreIsr`), the store decides; what came of it goes back as an event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tailrace.broker.hosted import Hosted
from tailrace.errors import (
    CorruptCheckpoint,
    InvariantViolation,
    StoreUnavailable,
    TailraceError,
)
from tailrace.meta.keys import (
    BrokerRegistration,
    PartitionState,
    broker_key,
    decode,
    encode,
    state_key,
)
from tailrace.meta.store import CreatedAt, Entry, Guard, MetadataStore, ModifiedAt, Put
from tailrace.metrics.values import BrokerCounts
from tailrace.model import BrokerId
from tailrace.replication.events import (
    IsrRefused,
    IsrStored,
    IsrUnknown,
    StoredState,
    StoreIsr,
)

# Each has its state as a guard and an operation, and etcd takes 128 of them.
CHANGES_PER_TXN: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class _Wish:
    """A change that a machine wants."""

    hosted: Hosted
    effect: StoreIsr


class _Ready(NamedTuple):
    """A change that may be stored, with its guards, and how large the stored ISR is before it."""

    wish: _Wish
    guards: list[Guard]
    put: Put
    before: int


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
        counts: BrokerCounts | None = None,
    ) -> None:
        self._counts = counts or BrokerCounts()
        self._store = store
        self._broker_id = broker_id
        self._identity = identity
        self._tell = tell
        self._say = say
        self._waiting: deque[_Wish] = deque()
        self._is_storing = False

    async def store(self, hosted: Hosted, effect: StoreIsr) -> None:
        """Have a change stored; what came of it goes back to the machine.

        One at a time asks the store. What gathers meanwhile goes together: when a broker returns,
        its leaders take it in again for all partitions at once, and that must not be a storm.
        """
        self._waiting.append(_Wish(hosted, effect))
        if self._is_storing:
            return
        self._is_storing = True
        try:
            while self._waiting:
                await self._store_some()
        finally:
            self._is_storing = False

    async def _store_some(self) -> None:
        open_: dict[_Wish, None] = {}
        while self._waiting and len(open_) < CHANGES_PER_TXN:
            open_[self._waiting.popleft()] = None
        try:
            await self._commit(await self._checked(open_), open_)
        except InvariantViolation:
            raise
        except TailraceError as error:
            # A leader that hears nothing would never ask again, and its high watermark would rest.
            if isinstance(error, StoreUnavailable):
                open_.update(dict.fromkeys(self._waiting))
                self._waiting.clear()
            else:
                self._say(f"{len(open_)} changes of ISRs could not be stored, again soon: {error}")
            for wish in open_:
                self._tell(wish.hosted, IsrUnknown(attempt=wish.effect.attempt))

    async def _checked(self, open_: dict[_Wish, None]) -> list[_Ready]:
        """Those that may be stored now, with their guards; the others are told."""
        _, own_epoch = self._identity()
        keys = [state_key(wish.hosted.partition) for wish in open_]
        added = sorted({each.broker_id for wish in open_ for each in wish.effect.added})
        found = await self._store.get_many([*keys, *map(broker_key, added)])
        entries, known = found[: len(keys)], dict(zip(added, found[len(keys) :], strict=True))
        ready = []
        for wish, key, entry in zip(list(open_), keys, entries, strict=True):
            effect = wish.effect
            try:
                joining = _joining(effect, entry, known)
                if entry is None or own_epoch is None or joining is None:
                    del open_[wish]
                    self._refused(wish.hosted, effect, entry, registered=own_epoch is not None)
                    continue
                stored = decode(PartitionState, entry.value, key=key)
            except CorruptCheckpoint as error:
                # It is the trouble of this partition: the others must not wait for its end.
                open_.pop(wish, None)
                self._say(f"{wish.hosted.partition}: the ISR cannot be changed: {error}")
                self._tell(wish.hosted, IsrUnknown(attempt=effect.attempt))
                continue
            changed = replace(stored, isr=effect.isr, elr=effect.elr)
            guards: list[Guard] = [
                ModifiedAt(key, effect.expected_revision),
                CreatedAt(broker_key(self._broker_id), own_epoch),
                *joining,
            ]
            ready.append(_Ready(wish, guards, Put(key, encode(changed)), len(stored.isr)))
        return ready

    async def _commit(self, ready: list[_Ready], open_: dict[_Wish, None]) -> None:
        """All in one transaction; when it is refused, each by itself, to know which it was."""
        if not ready:
            return
        guards = dict.fromkeys(guard for each in ready for guard in each.guards)
        result = await self._store.txn(list(guards), [each.put for each in ready])
        if not result.succeeded and len(ready) > 1:
            for each in ready:
                await self._commit([each], open_)
            return
        for wish, _, put, before in ready:
            hosted, effect = wish.hosted, wish.effect
            found = None if result.succeeded else await self._store.get(put.key)
            del open_[wish]
            if result.succeeded:
                # Not what the machine knows: the controller may have told it before etcd answers.
                self._counts.isr_changed(before, len(effect.isr))
                self._say(f"{hosted.partition}: ISR {list(effect.isr)}, ELR {list(effect.elr)}")
                self._tell(hosted, IsrStored(attempt=effect.attempt, revision=result.revision))
            else:
                self._refused(hosted, effect, found, registered=True)

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
                unclean_epoch=stored.unclean_epoch,
            )
        self._tell(hosted, IsrRefused(attempt=effect.attempt, state=state))


def _joining(
    effect: StoreIsr, stored: Entry | None, known: Mapping[BrokerId, Entry | None]
) -> list[Guard] | None:
    """Guards that those who join are what they are now; None: one of them may not join.

    Nor may anybody when the state is not the one that the change was meant for.

    One that is shutting down would leave at once, and take with it what only it could vouch for;
    one whose tail may be lost has yet to be taken out everywhere.
    """
    if stored is None or stored.mod_revision != effect.expected_revision:
        return None
    guards: list[Guard] = []
    for broker, epoch in effect.added:
        entry = known[broker]
        if entry is None or entry.create_revision != epoch:
            return None
        registration = decode(BrokerRegistration, entry.value, key=entry.key)
        if registration.draining or registration.tail_may_be_lost:
            return None
        guards.append(ModifiedAt(entry.key, entry.mod_revision))
    return guards
