"""A broker hands out producer ids that it has in hand, also while the store is away."""

from __future__ import annotations

import asyncio

from tailrace.broker.producer_ids import ProducerIdService
from tailrace.meta.keys import NEXT_PRODUCER_ID, broker_key
from tailrace.meta.memory import MemoryEtcd
from tailrace.meta.store import Put
from tailrace.v1 import broker_pb2 as pb
from tailrace.v1 import common_pb2

NEW = pb.AllocateProducerIdRequest(producer_id=-1, producer_epoch=-1)


def test_a_registered_broker_gives_ids_and_raises_epochs() -> None:
    async def scenario() -> None:
        etcd = MemoryEtcd()
        epoch = etcd.txn([], [Put(broker_key(3), b"b")]).revision
        service = ProducerIdService(3, etcd.connect(), lambda: epoch)
        first = await service.allocate(NEW)
        assert (first.error, first.producer_id, first.producer_epoch) == (0, 1, 0)
        again = pb.AllocateProducerIdRequest(producer_id=1, producer_epoch=0)
        second = await service.allocate(again)
        assert (second.producer_id, second.producer_epoch) == (1, 1)
        assert service.in_hand == 999

    asyncio.run(scenario())


def test_a_broker_that_is_not_registered_takes_no_ids() -> None:
    async def scenario() -> None:
        etcd = MemoryEtcd()
        service = ProducerIdService(3, etcd.connect(), lambda: None)
        refused = await service.allocate(NEW)
        assert refused.error == common_pb2.ERROR_CODE_STORE_UNAVAILABLE
        assert "not registered" in refused.message
        stale = ProducerIdService(3, etcd.connect(), lambda: 5)
        assert (await stale.allocate(NEW)).error == common_pb2.ERROR_CODE_STORE_UNAVAILABLE
        assert etcd.get(NEXT_PRODUCER_ID) is None

    asyncio.run(scenario())
