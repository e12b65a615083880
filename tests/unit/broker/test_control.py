"""Orders of the controller: checked for their epochs, idempotent, answered one by one."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.errors import Unreachable
from tailrace.replication.partition import Role
from tailrace.transport import methods
from tailrace.transport.wire import code_name, to_partition
from tailrace.v1 import control_pb2 as pb
from tailrace.v1.common_pb2 import ClusterMetadata
from unit.broker.trio import T0, T1, TOPIC_ID, Trio, mark_deleted, simulate


async def leader_and_isr(trio: Trio, header: pb.OrderHeader) -> str:
    request = pb.LeaderAndIsrRequest(header=header)
    channel = trio.host.channel("b0:9095")
    response = await channel.call(methods.CONTROL_LEADER_AND_ISR, request, timeout_ms=1_000)
    return code_name(response.error)


async def stop(
    trio: Trio, *stops: pb.StopPartition, header: pb.OrderHeader | None = None
) -> pb.StopReplicaResponse:
    return await trio.host.channel("b0:9095").call(
        methods.CONTROL_STOP_REPLICA,
        pb.StopReplicaRequest(header=header or trio.header(0), partitions=stops),
        timeout_ms=1_000,
    )


def stopping(*, delete: bool, topic_id: str = TOPIC_ID) -> pb.StopPartition:
    return pb.StopPartition(partition=to_partition(T0), topic_id=topic_id, delete=delete)


@simulate
async def test_an_older_controller_is_refused(trio: Trio) -> None:
    await trio.start(0)
    await trio.elect(5)
    assert await leader_and_isr(trio, trio.header(0, controller_epoch=5)) == ""
    old = trio.header(0, controller_epoch=4)
    assert await leader_and_isr(trio, old) == "STALE_CONTROLLER"
    assert code_name((await stop(trio, header=old)).error) == "STALE_CONTROLLER"
    updated = await trio.host.channel("b0:9095").call(
        methods.CONTROL_UPDATE_METADATA, pb.UpdateMetadataRequest(header=old), timeout_ms=1_000
    )
    assert code_name(updated.error) == "STALE_CONTROLLER"
    assert await leader_and_isr(trio, trio.header(0, controller_epoch=5)) == ""


@simulate
async def test_an_order_for_another_life_is_refused(trio: Trio) -> None:
    await trio.start(0)
    header = trio.header(0)
    header.broker_epoch += 1
    assert await leader_and_isr(trio, header) == "STALE_BROKER"
    assert code_name((await stop(trio, header=header)).error) == "STALE_BROKER"


@simulate
async def test_a_stopped_replica_keeps_its_data_unless_it_is_deleted(trio: Trio) -> None:
    await trio.start(0)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))
    await trio.produce()
    assert not (await stop(trio, stopping(delete=False))).errors
    assert trio.replicas(0).get(T0) is None
    await trio.lead(0, 1, isr=(0,), replicas=(0,))
    assert trio.hosted(0).log.log_end == 3
    await mark_deleted(trio, "another")
    # That of a former topic of the name is not meant.
    assert not (await stop(trio, stopping(delete=True, topic_id="another"))).errors
    assert trio.hosted(0).log.log_end == 3
    await mark_deleted(trio, "another", TOPIC_ID)
    assert not (await stop(trio, stopping(delete=True))).errors
    assert not (await stop(trio, stopping(delete=True))).errors
    assert trio.replicas(0).get(T0) is None
    assert trio.replicas(0).counts.replicas_deleted == 1
    await trio.lead(0, 2, isr=(0,), replicas=(0,))
    assert trio.hosted(0).log.log_end == 0


@simulate
async def test_f42_l2_nothing_is_deleted_that_the_store_has_no_record_of(trio: Trio) -> None:
    await trio.start(0)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))
    await trio.produce()
    await mark_deleted(trio, "another")
    for topic_id in (TOPIC_ID, ""):
        (error,) = (await stop(trio, stopping(delete=True, topic_id=topic_id))).errors
        assert code_name(error.error) == "INVALID_REQUEST"
        assert "not deleted" in error.message
    assert trio.hosted(0).log.log_end == 3
    assert not (await trio.produce()).error
    assert trio.replicas(0).counts.replicas_deleted == 0


def setting_aside(topic_id: str = TOPIC_ID) -> pb.StopPartition:
    # Whoever says both means the one that keeps the data.
    return pb.StopPartition(
        partition=to_partition(T0), topic_id=topic_id, delete=True, set_aside=True
    )


@simulate
async def test_f42_l2_what_is_set_aside_is_reported_and_taken_back_as_it_was(trio: Trio) -> None:
    await trio.start(0)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))
    await trio.produce()
    before = trio.hosted(0).log.read(0, bytes_max=1 << 20)
    # Neither that of another topic, nor of one that is not named, nor one that is wanted since.
    late = setting_aside()
    late.revision = trio.hosted(0).machine.revision - 1
    for each in (late, setting_aside("another"), setting_aside("")):
        assert not (await stop(trio, each)).errors
    assert trio.heard("not stopped, a later order wants it")
    assert [each for each in trio.files[0].list("/data") if "-stray" in each] == []
    await trio.lead(0, 1, isr=(0,), replicas=(0,))
    assert not (await stop(trio, setting_aside())).errors
    assert trio.replicas(0).get(T0) is None
    response = await trio.send_order(0, full=True)
    stray = [(each.partition.partition, each.topic_id) for each in response.stray]
    assert stray == [(0, TOPIC_ID)]
    # Told again, as after each of its reports, there is nothing left to do.
    assert not (await stop(trio, setting_aside())).errors
    await trio.lead(0, 2, isr=(0,), replicas=(0,))
    assert trio.hosted(0).log.read(0, bytes_max=1 << 20) == before
    assert trio.hosted(0).machine.high_watermark == 3
    assert trio.heard("is taken back, with 0 to 3")
    assert [each for each in trio.files[0].list("/data") if "-stray" in each] == []


@simulate
async def test_f42_l6_a_replica_that_is_taken_back_never_forgets_what_was_committed(
    trio: Trio,
) -> None:
    """The files of its folder are older than what it knew; its floor must not be theirs."""
    await trio.start()
    await trio.lead(0, 0)
    await trio.produce()
    await trio.until(lambda: trio.hosted(2).machine.high_watermark == 3)
    await trio.host.channel("b2:9095").call(
        methods.CONTROL_STOP_REPLICA,
        pb.StopReplicaRequest(header=trio.header(2), partitions=[setting_aside()]),
        timeout_ms=1_000,
    )
    # Nobody leads: it hears of the high watermark from nobody else.
    await trio.lead(-1, 1, isr=(), to=(2,))
    assert trio.hosted(2).machine.high_watermark == 3


@simulate
async def test_what_cannot_be_set_aside_now_is_told_and_not_lost(trio: Trio) -> None:
    await trio.start(0)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))
    await trio.produce()
    rename = trio.files[0].rename

    def fail(source: str, target: str) -> None:
        raise OSError(5, "Input/output error", source, None, target)

    trio.files[0].rename = fail  # type: ignore[method-assign]
    (error,) = (await stop(trio, setting_aside())).errors
    assert code_name(error.error) == "STORAGE_ERROR"
    trio.files[0].rename = rename  # type: ignore[method-assign]
    assert not (await stop(trio, setting_aside())).errors
    await trio.lead(0, 1, isr=(0,), replicas=(0,))
    assert trio.hosted(0).log.log_end == 3
    assert trio.hosted(0).machine.high_watermark == 3


@simulate
async def test_a_full_order_is_answered_with_what_it_did_not_name(trio: Trio) -> None:
    await trio.start(0)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))
    await trio.lead(0, 0, isr=(0,), replicas=(0,), partition=T1)
    order = pb.PartitionOrder(
        partition=to_partition(T1), topic_id=TOPIC_ID, leader=0, isr=[0], replicas=[0]
    )
    response = await trio.send_order(0, order, full=True)
    stray = [(each.partition.partition, each.topic_id) for each in response.stray]
    assert stray == [(0, TOPIC_ID)]
    assert not (await trio.send_order(0, order)).stray


@simulate
async def test_one_bad_order_does_not_spoil_the_others(trio: Trio) -> None:
    await trio.start(0)
    good = pb.PartitionOrder(
        partition=to_partition(T0), topic_id=TOPIC_ID, leader=0, isr=[0], replicas=[0], revision=1
    )
    bad = pb.PartitionOrder(
        partition=to_partition(T1),
        topic_id=TOPIC_ID,
        leader=0,
        isr=[0],
        replicas=[0],
        revision=1,
        config={"flush": "often"},
    )
    response = await trio.send_order(0, bad, good)
    errors = [(each.partition.partition, code_name(each.error)) for each in response.errors]
    assert errors == [(1, "INVALID_CONFIG")]
    assert trio.hosted(0).machine.role is Role.LEADER


@simulate
async def test_health_is_told_until_a_newer_controller_comes(trio: Trio) -> None:
    await trio.start(0)
    await trio.elect(3)
    request = pb.HealthRequest(header=trio.header(0, controller_epoch=3))
    stream = trio.host.channel("b0:9095").open(methods.CONTROL_HEALTH, request)
    for _ in range(3):
        told = await stream.recv()
        assert told is not None
        assert (told.broker_id, told.broker_epoch) == (0, trio.brokers[0].epoch)
        assert not told.draining
    await trio.elect(4)
    assert await leader_and_isr(trio, trio.header(0, controller_epoch=4)) == ""
    assert await stream.recv() is None
    stale = trio.host.channel("b0:9095").open(methods.CONTROL_HEALTH, request)
    assert await stale.recv() is None


@simulate
async def test_a_controller_that_listens_no_more_ends_its_health_stream(trio: Trio) -> None:
    await trio.start(0)
    request = pb.HealthRequest(header=trio.header(0))
    stream = trio.host.channel("b0:9095").open(methods.CONTROL_HEALTH, request)
    assert await stream.recv() is not None
    stream.cancel()
    with pytest.raises(Unreachable):
        await stream.recv()
    # Long enough for a next word into the broken stream.
    await asyncio.sleep(3)


@simulate
async def test_metadata_is_taken_when_it_is_newer(trio: Trio) -> None:
    await trio.start(0)
    await trio.tell_metadata(0, ClusterMetadata(revision=8))
    await trio.tell_metadata(0, ClusterMetadata(revision=7))
    assert trio.brokers[0].metadata.metadata.revision == 8
