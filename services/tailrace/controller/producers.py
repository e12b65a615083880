"""The ids and epochs of idempotent producers.

Ids come from blocks that are taken from the store ahead of need (`tailrace.meta.producer_ids`). The
epoch of a named producer is raised in the store before it is told.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tailrace.controller.facts import Term
from tailrace.errors import InvalidRequest, NotController, ProducerFenced
from tailrace.meta.keys import (
    CONTROLLER,
    ProducerName,
    decode,
    encode,
    producer_name_key,
)
from tailrace.meta.producer_ids import ProducerIdBlocks
from tailrace.meta.store import CreatedAt, MetadataStore, ModifiedAt, Put
from tailrace.model import FIRST_PRODUCER_ID, PRODUCER_EPOCH_MAX, ProducerId

PRODUCER_NAME_LENGTH_MAX: Final = 200


class ProducerIdentity(NamedTuple):
    producer_id: ProducerId
    epoch: int


class ProducerIds:
    """Hands out identities in one term."""

    def __init__(self, term: Term, store: MetadataStore) -> None:
        self._term = term
        self._store = store
        self._blocks = ProducerIdBlocks(
            store,
            guard=lambda: CreatedAt(CONTROLLER, term.revision),
            lost=lambda: NotController("this controller is no longer active"),
        )

    async def keep_stocked(self) -> None:
        """Keep ids in hand for as long as the term lasts."""
        await self._blocks.keep_stocked()

    async def named(self, name: str, producer_id: int = -1, epoch: int = -1) -> ProducerIdentity:
        """The id of this name, with a higher epoch than anybody had: older instances are fenced.

        An instance that runs already and must start over says who it is: if it is not the newest
        one, it is fenced instead of fencing its successor.
        """
        if len(name) > PRODUCER_NAME_LENGTH_MAX or not name.isprintable():
            raise InvalidRequest(
                f"a producer's name has at most {PRODUCER_NAME_LENGTH_MAX} printable characters"
            )
        key = producer_name_key(name)
        while True:
            entry = await self._store.get(key)
            known = None if entry is None else decode(ProducerName, entry.value, key=key)
            is_newest = known is None or (producer_id, epoch) == (known.producer_id, known.epoch)
            if producer_id >= FIRST_PRODUCER_ID and not is_newest:
                raise ProducerFenced(f"producer {name!r} has been started again")
            if known is None or known.epoch >= PRODUCER_EPOCH_MAX:
                identity = ProducerIdentity(await self._blocks.next_id(), 0)
            else:
                identity = ProducerIdentity(known.producer_id, known.epoch + 1)
            value = ProducerName(producer_id=identity.producer_id, epoch=identity.epoch)
            revision = 0 if entry is None else entry.mod_revision
            if await self._put(key, revision, encode(value)):
                return identity

    async def unnamed(self, producer_id: int, epoch: int) -> ProducerIdentity:
        """A new id; or the caller's own with a higher epoch, when it must start over."""
        return ProducerIdentity(*await self._blocks.renewed(producer_id, epoch))

    async def _put(self, key: str, revision: int, value: bytes) -> bool:
        """Write a key that nobody has changed; False: somebody has. NotController if we may not."""
        result = await self._store.txn(
            [CreatedAt(CONTROLLER, self._term.revision), ModifiedAt(key, revision)],
            [Put(key, value)],
        )
        if result.succeeded:
            return True
        holder = await self._store.get(CONTROLLER)
        if holder is None or holder.create_revision != self._term.revision:
            raise NotController("this controller is no longer active")
        return False
