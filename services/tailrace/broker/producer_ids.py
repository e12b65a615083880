"""Producer ids that a broker hands out to producers without a name.

The active controller is the usual source. A broker keeps a block of its own, so that a producer
that starts while the store or the controller is away gets an id all the same. Blocks are taken
under the guard of the broker's registration; named producers need the store and are not served.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.errors import StoreUnavailable, TailraceError
from tailrace.meta.keys import broker_key
from tailrace.meta.producer_ids import ProducerIdBlocks
from tailrace.meta.store import CreatedAt, MetadataStore
from tailrace.transport.wire import error_code
from tailrace.v1 import broker_pb2 as pb


class ProducerIdService:
    """Answers `AllocateProducerId`; `run` keeps ids in hand."""

    def __init__(
        self, broker_id: int, store: MetadataStore, epoch: Callable[[], int | None]
    ) -> None:
        """`epoch`: the create revision of this broker's registration, None while it has none."""
        self._key = broker_key(broker_id)
        self._epoch = epoch
        self._blocks = ProducerIdBlocks(store, guard=self._guard, lost=_not_registered)

    @property
    def in_hand(self) -> int:
        return self._blocks.in_hand

    async def run(self) -> None:
        await self._blocks.keep_stocked()

    async def allocate(
        self, request: pb.AllocateProducerIdRequest
    ) -> pb.AllocateProducerIdResponse:
        try:
            producer_id, epoch = await self._blocks.renewed(
                request.producer_id, request.producer_epoch
            )
        except TailraceError as error:
            return pb.AllocateProducerIdResponse(error=error_code(error.code), message=str(error))
        return pb.AllocateProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)

    def _guard(self) -> CreatedAt:
        epoch = self._epoch()
        if epoch is None:
            raise _not_registered()
        return CreatedAt(self._key, epoch)


def _not_registered() -> TailraceError:
    return StoreUnavailable("this broker is not registered, and has no producer ids in hand")
