"""A whole broker: started, registered, relieved, stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tailrace.meta.keys import (
    CLUSTER,
    CONTROLLER,
    BrokerRegistration,
    ClusterRecord,
    ControllerRecord,
    broker_key,
    decode,
    encode,
)
from tailrace.meta.store import Put
from tailrace.model import TopicPartition
from tailrace.transport import methods
from tailrace.transport.wire import error_code, to_partition
from tailrace.v1 import controller_pb2 as pb
from tailrace.v1.common_pb2 import ClusterMetadata, Endpoint
from unit.broker.trio import CLUSTER_ID, T0, Trio, batch, simulate


async def play_controller(
    trio: Trio, answer: Callable[[int], pb.ControlledShutdownResponse]
) -> list[pb.ControlledShutdownRequest]:
    """Answer controlled shutdowns at ctl:9191; gives the list of what was asked."""
    asked: list[pb.ControlledShutdownRequest] = []

    async def controlled_shutdown(
        request: pb.ControlledShutdownRequest,
    ) -> pb.ControlledShutdownResponse:
        asked.append(request)
        return answer(len(asked))

    await trio.host.serve("ctl:9191", {methods.CONTROLLER_CONTROLLED_SHUTDOWN: controlled_shutdown})
    record = ControllerRecord(controller_id=9, epoch=1, host="ctl", port=9191)
    await trio.store.txn([], [Put(CONTROLLER, encode(record))])
    return asked


def remaining(count: int) -> pb.ControlledShutdownResponse:
    return pb.ControlledShutdownResponse(remaining=[to_partition(T0)] * count)


async def hand_over(trio: Trio) -> int:
    """How many milliseconds it took."""
    began_ms = trio.loop.now_ms
    await trio.processes[0].spawn("hand over", trio.brokers[0].hand_over())
    return trio.loop.now_ms - began_ms


async def know_others(trio: Trio) -> None:
    brokers = [Endpoint(id=0), Endpoint(id=1)]
    await trio.tell_metadata(0, ClusterMetadata(revision=1, brokers=brokers))


@simulate
async def test_a_broker_waits_until_there_is_a_cluster(trio: Trio) -> None:
    process, broker = trio.make(0)
    starting = process.spawn("start", broker.start())
    await asyncio.sleep(10)
    assert not starting.done()
    assert trio.said == ["b0: waiting: no controller has started in this cluster yet"]
    await trio.store.txn([], [Put(CLUSTER, encode(ClusterRecord(cluster_id=CLUSTER_ID)))])
    await starting
    await trio.until(lambda: broker.epoch is not None)


@simulate
async def test_a_broker_waits_for_a_store_that_is_down(trio: Trio) -> None:
    trio.etcd.stop()
    process, broker = trio.make(0)
    starting = process.spawn("start", broker.start())
    await asyncio.sleep(10)
    assert trio.heard("waiting: the metadata store does not answer")
    trio.etcd.start()
    await trio.store.txn([], [Put(CLUSTER, encode(ClusterRecord(cluster_id=CLUSTER_ID)))])
    await starting


@simulate
async def test_it_registers_what_others_need_to_know(trio: Trio) -> None:
    await trio.start(1, rack="r7", advertised="public:1", link_advertised="private:2")
    entry = trio.etcd.get(broker_key(1))
    assert entry is not None
    assert entry.create_revision == trio.brokers[1].epoch
    stored = decode(BrokerRegistration, entry.value)
    assert (stored.host, stored.port) == ("public", 1)
    assert (stored.link_host, stored.link_port) == ("private", 2)
    assert (stored.rack, stored.incarnation) == ("r7", "incarnation-1")
    assert not stored.tail_may_be_lost
    assert not stored.draining


@simulate
async def test_a_stop_in_order_is_clean(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    await trio.produce()
    await trio.stop_broker(0)
    assert trio.etcd.get(broker_key(0)) is None
    process, broker = trio.make(0)
    report = await process.spawn("start", broker.start())
    assert not report.tail_may_be_lost
    assert trio.etcd.get(broker_key(1)) is not None


@simulate
async def test_a_power_loss_is_told_in_the_next_registration(trio: Trio) -> None:
    await trio.start(0)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))
    await trio.produce()
    trio.processes[0].kill()
    trio.files[0].crash(power_loss=True)
    await trio.start_broker(0)
    await trio.until(lambda: trio.brokers[0].epoch)
    entry = trio.etcd.get(broker_key(0))
    assert entry is not None
    assert decode(BrokerRegistration, entry.value).tail_may_be_lost


@simulate
async def test_a_stop_without_a_store_leaves_the_key_to_its_lease(trio: Trio) -> None:
    await trio.start(0)
    trio.etcd.stop()
    await trio.stop_broker(0)
    assert trio.heard("the registration stays until its lease ends")


@simulate
async def test_leaderships_are_handed_over_until_none_is_left(trio: Trio) -> None:
    await trio.start(0)
    await know_others(trio)
    asked = await play_controller(trio, lambda times: remaining(max(0, 3 - times)))
    assert await hand_over(trio) < 1_000
    assert len(asked) == 3
    assert (asked[0].broker_id, asked[0].broker_epoch) == (0, trio.brokers[0].epoch)


@simulate
async def test_a_hand_over_that_does_not_go_on_is_given_up(trio: Trio) -> None:
    await trio.start(0)
    await know_others(trio)
    await play_controller(trio, lambda _: remaining(2))
    assert 3_000 <= await hand_over(trio) < 4_000
    assert trio.heard("nobody can take over 2 partitions")


@simulate
async def test_a_broker_that_is_alone_does_not_wait(trio: Trio) -> None:
    await trio.start(0)
    asked = await play_controller(trio, lambda _: remaining(1))
    await hand_over(trio)
    assert len(asked) == 1


@simulate
async def test_a_hand_over_without_a_controller_ends_in_time(trio: Trio) -> None:
    await trio.start(0, controlled_shutdown_timeout_ms=2_000)
    assert 2_000 <= await hand_over(trio) < 2_100
    assert trio.heard("could not be handed over in time")


@simulate
async def test_a_controller_that_refuses_or_is_away_is_asked_again(trio: Trio) -> None:
    await trio.start(0)
    await know_others(trio)
    record = ControllerRecord(controller_id=8, epoch=1, host="ctl", port=9999)
    await trio.store.txn([], [Put(CONTROLLER, encode(record))])
    handing = trio.loop.create_task(hand_over(trio), name="hand over")
    await asyncio.sleep(1)
    assert trio.heard("handing over leaderships")

    def answer(times: int) -> pb.ControlledShutdownResponse:
        if times > 1:
            return remaining(0)
        return pb.ControlledShutdownResponse(error=error_code("NOT_CONTROLLER"), message="not me")

    asked = await play_controller(trio, answer)
    assert await handing < 3_000
    assert len(asked) == 2
    assert trio.heard("handing over leaderships: not me")


@simulate
async def test_checkpoints_are_written_now_and_then(trio: Trio) -> None:
    await trio.start(0, checkpoint_interval_ms=1_000, flush_interval_ms=2_000)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))
    await trio.produce()
    await asyncio.sleep(4)
    assert trio.hosted(0).log.recovery_point == 3
    trio.processes[0].kill()
    trio.files[0].crash(power_loss=True)
    await trio.start_broker(0)
    await trio.until(lambda: trio.brokers[0].epoch)
    await trio.lead(0, 1, isr=(0,), replicas=(0,))
    assert trio.hosted(0).log.log_end == 3


@simulate
async def test_a_checkpoint_that_fails_does_not_end_the_broker(trio: Trio) -> None:
    await trio.start(0, checkpoint_interval_ms=1_000)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))
    await trio.produce()
    # The copy of the metadata is written by then.
    await asyncio.sleep(0.7)
    trio.files[0].fail_next_folder_sync()
    await asyncio.sleep(3)
    assert trio.heard("checkpoints were not written")
    assert not (await trio.produce()).error


async def come_back_on_a_full_disk(
    trio: Trio, *, disk_bytes_max: int | None = None, power_loss: bool = False
) -> None:
    """Broker 2 dies, its disk fills up, it is started, and there is room again after a while."""
    files = trio.files[2]
    trio.processes[2].kill()
    files.crash(power_loss=power_loss)
    files.disk_bytes_max = files.used_bytes if disk_bytes_max is None else disk_bytes_max
    process, broker = trio.make(2, checkpoint_interval_ms=1_000)
    trio.brokers[2], trio.processes[2] = broker, process
    starting = process.spawn("start", broker.start())
    await asyncio.sleep(5)
    files.disk_bytes_max = None
    await starting
    await trio.until(lambda: trio.brokers[2].epoch)


@simulate
async def test_f26_a_broker_starts_on_a_full_disk_when_there_is_room_at_the_latest(
    trio: Trio,
) -> None:
    await trio.start(checkpoint_interval_ms=1_000, flush_interval_ms=3_000)
    await trio.lead(0, 0, config={"segment.bytes": "1024"})
    for _ in range(20):
        await trio.produce()
    for full, power_loss in ((1, False), (None, False), (1, True), (None, True)):
        await come_back_on_a_full_disk(trio, disk_bytes_max=full, power_loss=power_loss)
        assert trio.replicas(2).offline == {}
        await trio.lead(0, 0, isr=(0, 1), config={"segment.bytes": "1024"}, to=(2,))
        await trio.produce()
        await trio.until(lambda: len({*trio.ends()}) == 1)
    assert trio.heard("without room on disk")


@simulate
async def test_f26_no_moment_of_a_full_disk_ends_a_broker(trio: Trio) -> None:
    """Appends, rolls, checkpoints, compaction, retention, new logs: all meet a full disk."""
    config = {
        "segment.bytes": "1024",
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0.1",
        "retention.bytes": "8192",
    }
    fast = {
        "checkpoint_interval_ms": 300,
        "flush_interval_ms": 700,
        "retention_check_interval_ms": 400,
        "cleaner_backoff_ms": 300,
        "retention_clock_settle_ms": 100,
        "disk_probe_interval_ms": 500,
    }
    await trio.start(**fast)
    await trio.lead(0, 0, config=config)
    for number in range(21):
        for broker, files in trio.files.items():
            files.disk_bytes_max = None
            if (number + broker) % 3:
                files.disk_bytes_max = files.used_bytes + 131 * (number % 7) * (number % 3)
        stamp = TopicPartition("t", 1 + number)
        await trio.lead(number % 3, 0, partition=stamp, config=config)
        await trio.produce(batch(10, value=b"%d" % number), timeout_ms=300)
        await trio.produce(partition=stamp, to=number % 3, timeout_ms=300)
        if number % 10 == 9:
            await trio.lead(number % 3, number, config=config)
        await asyncio.sleep(0.2)
    for files in trio.files.values():
        files.disk_bytes_max = None
    await asyncio.sleep(5)
    assert [each.failure for each in trio.brokers.values()] == [None] * 3
