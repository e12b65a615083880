"""What brokers tell whoever rebuilds their store; also when there is no store at all."""

from __future__ import annotations

import asyncio

from tailrace.client.recovery_facts import gather_facts
from tailrace.errors import StorageError
from tailrace.meta.keys import TopicRecord, encode, topic_key
from tailrace.meta.memory import MemoryEtcd
from tailrace.meta.recovery import LEADER_EPOCH_MARGIN, Certainty, plan_recovery
from tailrace.meta.store import Put
from tailrace.model import BrokerId, TopicId
from unit.broker.trio import ALL, CLUSTER_ID, T0, TOPIC_ID, Trio, batch, simulate


async def with_records(trio: Trio) -> None:
    await trio.start()
    record = TopicRecord(
        topic_id=TopicId(TOPIC_ID), assignment={0: tuple(map(BrokerId, ALL))}, config={}
    )
    await trio.store.txn([], [Put(topic_key("t"), encode(record))])
    await trio.lead(1, 3)
    assert not (await trio.produce(batch(5), to=1)).error
    # Time for the copies of all.
    await asyncio.sleep(10)


def swap_stores(trio: Trio) -> MemoryEtcd:
    empty = MemoryEtcd()
    for each in trio.brokers.values():
        each.verified._store = empty.connect()
    return empty


@simulate
async def test_one_broker_leads_to_all_the_others(trio: Trio) -> None:
    await with_records(trio)
    empty = swap_stores(trio)
    await asyncio.sleep(5)
    found = await gather_facts(trio.host, ["b2:9095"], timeout_ms=2_000)
    assert found.silent == {}
    by_id = {each.broker_id: each for each in found.facts}
    assert set(by_id) == set(ALL)
    leader = by_id[BrokerId(1)]
    assert (leader.cluster_id, leader.incarnation) == (CLUSTER_ID, trio.incarnation(1))
    assert "is empty" in leader.store_problem
    assert leader.replicas[0].led_epoch == 3
    assert [each.replicas[0].led_epoch for each in found.facts].count(-1) == 2
    assert {each.replicas[0].position for each in found.facts} == {(3, 5)}
    assert leader.replicas[0].high_watermark == 5
    seen = await empty.connect().snapshot("/")
    plan = plan_recovery(found.facts, seen, store_id="n", now_ms=1)
    (report,) = plan.partitions
    assert (report.state.isr, report.certainty) == (ALL, Certainty.CERTAIN)


@simulate
async def test_brokers_that_have_started_anew_without_the_store_answer_too(trio: Trio) -> None:
    await with_records(trio)
    for number in ALL:
        await trio.stop_broker(number)
    trio.etcd = MemoryEtcd()
    for number in ALL:
        await trio.start_broker(number)
    found = await gather_facts(trio.host, ["b0:9095"], timeout_ms=2_000)
    assert len(found.facts) == 3
    for each in found.facts:
        assert each.stored.orders[T0].state.isr == ALL
        assert [(one.led_epoch, one.position) for one in each.replicas] == [(-1, (3, 5))]
    seen = await trio.etcd.connect().snapshot("/")
    (report,) = plan_recovery(found.facts, seen, store_id="n", now_ms=1).partitions
    assert (report.state.isr, report.state.leader_epoch) == (ALL, 3 + LEADER_EPOCH_MARGIN)


@simulate
async def test_a_replica_that_is_out_of_service_says_so(trio: Trio) -> None:
    await with_records(trio)
    hosted = trio.hosted(2)
    hosted.log.abandon("its disk failed")
    trio.replicas(2)._logs.gave_up(hosted.log, StorageError("its disk failed"))
    found = await gather_facts(trio.host, ["b2:9095"], timeout_ms=2_000)
    told = {each.broker_id: each.replicas[0] for each in found.facts}
    assert "its disk failed" in told[BrokerId(2)].problem
    assert told[BrokerId(1)].problem == ""


@simulate
async def test_one_that_does_not_answer_is_named(trio: Trio) -> None:
    await with_records(trio)
    await trio.stop_broker(0)
    found = await gather_facts(trio.host, ["b1:9095", "nowhere:1"], timeout_ms=2_000)
    assert sorted(each.broker_id for each in found.facts) == [1, 2]
    assert set(found.silent) == {"b0:9095", "nowhere:1"}
