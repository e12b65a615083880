"""The shell around the replica machines: roles, ISR changes, syncs, checkpoints."""

from __future__ import annotations

import asyncio

import pytest

from simulation.loop import InlineBlocking
from tailrace.broker.hosted import StopOrder
from tailrace.errors import UnknownTopic, UnknownTopicId
from tailrace.meta.keys import state_key
from tailrace.meta.store import Delete
from tailrace.model import BrokerId
from tailrace.replication.partition import Role
from tailrace.transport.wire import code_name, to_partition
from tailrace.v1 import broker_pb2, control_pb2
from unit.broker.trio import T0, T1, TOPIC_ID, Trio, batch, mark_deleted, simulate

LAG_MS = 1_000


async def start(trio: Trio, *numbers: int) -> None:
    await trio.start(*numbers, replica_lag_time_max_ms=LAG_MS)


@simulate
async def test_a_partition_is_found_by_name_and_id(trio: Trio) -> None:
    await start(trio)
    await trio.lead(0, 0)
    replicas = trio.replicas(0)
    assert replicas.find(T0, TOPIC_ID) is replicas.get(T0)
    assert list(replicas.hosted()) == [replicas.find(T0)]
    with pytest.raises(UnknownTopic):
        replicas.find(T1)
    with pytest.raises(UnknownTopicId):
        replicas.find(T0, "another")


@simulate
async def test_a_repeated_or_older_order_changes_nothing(trio: Trio) -> None:
    await start(trio)
    await trio.lead(0, 3)
    await trio.produce()
    old = control_pb2.PartitionOrder(
        partition=to_partition(T0),
        topic_id=TOPIC_ID,
        leader=1,
        leader_epoch=2,
        isr=[1],
        replicas=[0, 1, 2],
        revision=1,
        leader_link="b1:9093",
    )
    assert not (await trio.send_order(0, old)).errors
    machine = trio.hosted(0).machine
    assert (machine.role, machine.leader_epoch, machine.isr) == (Role.LEADER, 3, (0, 1, 2))
    assert not (await trio.produce()).error


@simulate
async def test_the_data_of_a_former_topic_is_set_aside_until_its_end_is_on_record(
    trio: Trio,
) -> None:
    await start(trio)
    await trio.lead(0, 0)
    await trio.produce()
    marks = [trio.hosted(each).machine.high_watermark for each in range(3)]
    assert marks[0] == 3
    await trio.lead(0, 0, topic_id="new-id")
    await trio.produce(topic_id="new-id")
    assert trio.ends() == [3, 3, 3]
    assert trio.heard("set aside as t-0.id-of-t-stray: new-id is wanted, and this is id-of-t")
    order = StopOrder(T0, TOPIC_ID, delete=True)
    for number in range(3):
        replicas, names = trio.replicas(number), trio.files[number].list("/data")
        assert [each for each in names if each.startswith("t-")] == ["t-0", "t-0.id-of-t-stray"]
        (stray,) = replicas._manager.strays()
        assert (stray.topic_id, stray.partition) == (TOPIC_ID, T0)
        assert stray.note is not None
        # What was known in memory, not what a file said when it was written last.
        assert stray.note.high_watermark == marks[number]
        assert {*await replicas.stop([order])} == {T0}
        assert replicas._manager.strays() == [stray]
    await mark_deleted(trio)
    for number in range(3):
        assert await trio.replicas(number).stop([order]) == {}
        assert trio.replicas(number)._manager.strays() == []
    assert trio.ends() == [3, 3, 3]


@simulate
async def test_f44_nobody_leads_in_an_epoch_that_a_former_life_was_given(trio: Trio) -> None:
    """What is on the disk may be older: other records would have the same epoch and offsets."""
    await trio.start()
    responses = await trio.lead(0, 1, leader_process="another start of it")
    assert [[code_name(each.error) for each in one.errors] for one in responses] == [
        ["STALE_BROKER"],
        [],
        [],
    ]
    assert trio.brokers[0].replicas is not None
    assert trio.brokers[0].replicas.get(T0) is None
    await trio.lead(0, 2, leader_process=trio.brokers[0]._process)
    assert trio.hosted(0).machine.role is Role.LEADER


@simulate
async def test_a_late_order_for_a_former_topic_deletes_nothing(trio: Trio) -> None:
    await start(trio)
    await trio.lead(0, 0)
    late = control_pb2.PartitionOrder(
        partition=to_partition(T0),
        topic_id=TOPIC_ID,
        leader=0,
        leader_epoch=0,
        isr=[0, 1, 2],
        replicas=[0, 1, 2],
        revision=trio.hosted(0).machine.revision,
        leader_link="b0:9093",
    )
    await trio.lead(0, 0, topic_id="new-id")
    await trio.produce(topic_id="new-id")
    for number in range(3):
        (error,) = (await trio.send_order(number, late)).errors
        assert code_name(error.error) == "UNKNOWN_TOPIC_ID"
    assert trio.ends() == [3, 3, 3]
    assert not (await trio.produce(topic_id="new-id")).error


@simulate
async def test_new_settings_reach_the_log(trio: Trio) -> None:
    await start(trio, 0)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))
    before = trio.hosted(0)
    await trio.lead(0, 0, isr=(0,), replicas=(0,), config={"retention.ms": "12345"})
    assert trio.hosted(0) is before
    assert before.log.config.retention_ms == 12345


@simulate
async def test_a_follower_that_is_late_leaves_the_isr_and_comes_back(trio: Trio) -> None:
    await start(trio)
    await trio.lead(0, 0)
    trio.network.isolate("b2", ["b0", "b1"])
    began_ms = trio.loop.now_ms
    # It waits for the late one, then goes on without it.
    answer = await trio.produce(timeout_ms=10_000)
    assert not answer.error
    assert LAG_MS <= trio.loop.now_ms - began_ms < 2 * LAG_MS
    assert (await trio.stored()).isr == (0, 1)
    trio.network.heal()
    await trio.until(lambda: trio.hosted(0).machine.isr == (0, 1, 2))
    assert (await trio.stored()).isr == (0, 1, 2)
    assert trio.ends() == [3, 3, 3]


@simulate
async def test_f10_one_that_shuts_down_does_not_join_the_isr(trio: Trio) -> None:
    await trio.start(controlled_shutdown_timeout_ms=60_000)
    await trio.lead(0, 0, isr=(0, 1))
    trio.network.isolate("b2", ["b0", "b1"])
    # Nobody reigns, so that it waits for a long time.
    trio.processes[2].spawn("hand over", trio.brokers[2].hand_over())
    await asyncio.sleep(0.1)
    trio.network.heal()
    await trio.produce()
    await trio.until(lambda: trio.ends() == [3, 3, 3])
    await asyncio.sleep(5)
    assert (await trio.stored()).isr == (0, 1)
    # And nobody waits for it, though it is there.
    assert trio.hosted(0).machine.high_watermark == 3


@simulate
async def test_too_few_in_sync_hold_the_high_watermark(trio: Trio) -> None:
    await start(trio, 0)
    await trio.lead(0, 0)
    answer = await trio.produce(timeout_ms=20_000)
    assert code_name(answer.error) in {
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "REQUEST_TIMED_OUT",
    }
    state = await trio.stored()
    assert state.isr == (0,)
    assert state.elr != ()
    assert trio.hosted(0).machine.high_watermark == 0
    assert code_name((await trio.produce()).error) == "NOT_ENOUGH_REPLICAS"


@simulate
async def test_an_isr_change_waits_for_the_store(trio: Trio) -> None:
    await start(trio, 0, 1)
    await trio.lead(0, 0)
    trio.etcd.stop()
    answer = await trio.produce(timeout_ms=4_000)
    assert code_name(answer.error) == "REQUEST_TIMED_OUT"
    trio.etcd.start()
    await trio.until(lambda: trio.hosted(0).machine.high_watermark == 3)
    assert (await trio.stored()).isr == (0, 1)


@simulate
async def test_a_leader_that_was_deposed_in_the_store_cannot_change_the_isr(trio: Trio) -> None:
    await start(trio, 0, 1)
    await trio.lead(0, 0)
    # Decided, but the order has not come yet.
    await trio.lead(1, 1, isr=(0, 1, 2), to=())
    answer = await trio.produce(timeout_ms=5_000)
    assert code_name(answer.error) in {"REQUEST_TIMED_OUT", "NOT_LEADER"}
    state = await trio.stored()
    assert (state.leader, state.isr) == (1, (0, 1, 2))
    assert trio.hosted(0).machine.high_watermark == 0


@simulate
async def test_a_partition_that_is_gone_from_the_store_keeps_its_isr(trio: Trio) -> None:
    await start(trio, 0, 1)
    await trio.lead(0, 0)
    await trio.store.txn([], [Delete(state_key(T0))])
    answer = await trio.produce(timeout_ms=4_000)
    assert answer.error
    assert trio.etcd.get(state_key(T0)) is None


@simulate
async def test_flush_ack_syncs_before_it_counts(trio: Trio) -> None:
    await start(trio)
    await trio.lead(0, 0, config={"flush": "ack"})
    assert not (await trio.produce()).error
    synced = [trio.hosted(each).log.recovery_point for each in (0, 1, 2)]
    assert synced == [3, 3, 3]


@simulate
async def test_a_sync_that_fails_takes_the_log_out_of_service(trio: Trio) -> None:
    await start(trio, 0)
    await trio.lead(0, 0, isr=(0,), replicas=(0,), config={"flush": "ack"})
    assert not (await trio.produce()).error
    trio.files[0].fail_next_sync(".log")
    answer = await trio.produce(timeout_ms=1_000)
    assert answer.error
    assert trio.hosted(0).machine.high_watermark == 3
    assert code_name((await trio.produce()).error) == "NOT_LEADER"
    assert trio.replicas(0).offline[T0].code == "STORAGE_ERROR"


@simulate
async def test_without_flush_ack_nothing_is_synced_until_it_is_time(trio: Trio) -> None:
    await start(trio, 0)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))
    await trio.produce()
    assert trio.hosted(0).log.recovery_point == 0
    await trio.processes[0].spawn("flush", trio.replicas(0).flush_all())
    assert trio.hosted(0).log.recovery_point == 3


@simulate
async def test_a_restart_finds_the_records_and_the_high_watermark(trio: Trio) -> None:
    await start(trio)
    await trio.lead(0, 0)
    await trio.produce()
    await trio.stop_broker(0)
    await trio.start_broker(0)
    await trio.until(lambda: trio.brokers[0].epoch)
    assert trio.replicas(0).get(T0) is None
    await trio.lead(1, 1, isr=(1, 2))
    assert trio.hosted(0).log.log_end == 3
    await trio.until(lambda: trio.hosted(0).machine.high_watermark == 3)
    await trio.until(lambda: trio.hosted(1).machine.isr == (0, 1, 2))


@simulate
async def test_a_leader_hands_over_without_losing_what_is_committed(trio: Trio) -> None:
    await start(trio)
    for epoch in range(4):
        leader = epoch % 3
        await trio.lead(leader, epoch)
        assert not (await trio.produce(to=leader)).error
    await trio.until(lambda: trio.ends() == [12, 12, 12])
    assert [trio.hosted(each).machine.role for each in (0, 1, 2)].count(Role.LEADER) == 1


@simulate
async def test_nobody_leads(trio: Trio) -> None:
    await start(trio)
    await trio.lead(0, 0)
    await trio.produce()
    await trio.lead(-1, 1)
    for number in (0, 1, 2):
        assert trio.hosted(number).machine.role is not Role.LEADER
        answer = await trio.produce(to=number, acks=broker_pb2.ACKS_LEADER)
        assert (code_name(answer.error), answer.leader) == ("NOT_LEADER", -1)


@simulate
async def test_stray_partitions_are_those_not_named(trio: Trio) -> None:
    await start(trio, 0)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))
    await trio.lead(0, 0, isr=(0,), replicas=(0,), partition=T1)
    assert await trio.replicas(0).stray({T0}) == [(T1, TOPIC_ID)]
    assert await trio.replicas(0).stray({T0, T1}) == []


@simulate
async def test_those_who_wait_are_told_when_the_broker_ends(trio: Trio) -> None:
    await start(trio, 0)
    await trio.lead(0, 0)
    hosted = trio.hosted(0)
    waiter = trio.replicas(0).waiting.for_offset(T0, 5, 10**9)
    trio.processes[0].run(trio.replicas(0).stop_serving)
    await asyncio.sleep(0)
    assert waiter.done()
    assert waiter.result() is not None
    assert hosted.machine.role is not Role.LEADER


@simulate
async def test_an_order_with_flush_ack_is_obeyed_when_what_was_there_is_on_disk(trio: Trio) -> None:
    await trio.start(flush_interval_ms=600_000)
    await trio.lead(0, 0)
    await trio.produce(batch(3))
    await trio.until(lambda: trio.ends() == [3, 3, 3])
    slow = trio.brokers[1]._blocking
    assert isinstance(slow, InlineBlocking)
    slow.delay_us = (2_000_000, 2_000_000)
    responses = await trio.lead(0, 0, config={"flush": "ack"})
    assert [len(each.errors) for each in responses] == [0, 1, 0]
    assert "still being synced" in responses[1].errors[0].message
    assert trio.hosted(1).log.recovery_point == 0
    # What it has not on its disk it does not report in another epoch either.
    await trio.lead(0, 1, config={"flush": "ack"})
    followers = {each.broker_id: each.log_end for each in trio.hosted(0).machine.followers}
    assert followers[BrokerId(1)] == -1
    await trio.until(lambda: trio.hosted(1).log.recovery_point == 3)
    assert not (await trio.lead(0, 1, config={"flush": "ack"}))[1].errors
    await trio.until(lambda: len(trio.hosted(0).machine.isr) == 3)
