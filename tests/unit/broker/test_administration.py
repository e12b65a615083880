"""Records deleted, replicas described, settings changed and replicas throttled, on real brokers."""

from __future__ import annotations

import asyncio

from tailrace.model import TopicPartition
from tailrace.transport import methods
from tailrace.transport.wire import code_name, to_partition
from tailrace.v1 import broker_pb2, control_pb2
from unit.broker.trio import T0, TOPIC_ID, Trio, assign, batch, simulate


async def delete(trio: Trio, offset: int, *, to: int = 0) -> broker_pb2.RecordsDeleted:
    wanted = broker_pb2.RecordDeletion(partition=to_partition(T0), before_offset=offset)
    response = await trio.host.channel(f"b{to}:9092").call(
        methods.BROKER_DELETE_RECORDS,
        broker_pb2.DeleteRecordsRequest(partitions=[wanted]),
        timeout_ms=2_000,
    )
    return response.partitions[0]


def starts(trio: Trio) -> list[int]:
    return [trio.hosted(each).log.log_start for each in sorted(trio.brokers)]


@simulate
async def test_deleted_records_are_gone_from_all_replicas_and_stay_gone(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    for _ in range(3):
        await trio.produce(batch(3))
    answer = await delete(trio, 4)
    assert (answer.error, answer.log_start) == (0, 4)
    await trio.until(lambda: starts(trio) == [4, 4, 4])
    # Nothing was appended meanwhile, and what is below the start already is no news.
    assert (await delete(trio, 2)).log_start == 4
    assert (await delete(trio, -1)).log_start == 9
    await trio.until(lambda: starts(trio) == [9, 9, 9])
    await trio.stop_broker(2)
    await trio.start_broker(2)
    await trio.until(lambda: trio.brokers[2].epoch)
    await trio.lead(0, 1)
    assert starts(trio) == [9, 9, 9]
    assert (await trio.produce(batch(1))).batches[0].base_offset == 9


@simulate
async def test_what_cannot_be_deleted_is_refused(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    await trio.produce(batch(3))
    for offset in (4, -2):
        assert code_name((await delete(trio, offset)).error) == "OFFSET_OUT_OF_RANGE"
    assert code_name((await delete(trio, 1, to=1)).error) == "NOT_LEADER"
    await trio.lead(0, 1, config={"cleanup.policy": "compact"})
    assert code_name((await delete(trio, 1)).error) == "INVALID_REQUEST"
    assert starts(trio) == [0, 0, 0]


@simulate
async def test_replicas_are_described_by_folder(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 3)
    await trio.produce(batch(3))
    await trio.until(lambda: trio.hosted(1).machine.high_watermark == 3)
    for broker in (0, 1):
        response = await trio.host.channel(f"b{broker}:9092").call(
            methods.BROKER_DESCRIBE_REPLICAS,
            broker_pb2.DescribeReplicasRequest(),
            timeout_ms=2_000,
        )
        (folder,) = response.folders
        (about,) = folder.replicas
        assert folder.path == "/data"
        assert (about.log_start, about.log_end, about.high_watermark) == (0, 3, 3)
        assert (about.leads, about.leader_epoch, about.last_epoch) == (broker == 0, 3, 3)
        assert (about.topic_id, about.size_bytes) == (TOPIC_ID, trio.hosted(0).log.size_bytes)
    response = await trio.host.channel("b0:9092").call(
        methods.BROKER_DESCRIBE_REPLICAS,
        broker_pb2.DescribeReplicasRequest(partitions=[to_partition(TopicPartition("u", 0))]),
        timeout_ms=2_000,
    )
    assert not response.folders[0].replicas


@simulate
async def test_settings_of_a_topic_change_within_an_epoch(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    await trio.produce(batch(3))
    config = {"retention.ms": "77000", "flush": "ack", "min.insync.replicas": "3"}
    await trio.lead(0, 0, config=config)
    for broker in trio.brokers:
        hosted = trio.hosted(broker)
        assert hosted.log.config.retention_ms == 77_000
        assert hosted.machine.min_insync == 3
        # What was there before is on disk before the replica vouches for it.
        assert hosted.log.recovery_point == 3
    assert not (await trio.produce(batch(3))).error
    assert all(trio.hosted(each).log.recovery_point == 6 for each in trio.brokers)
    await trio.lead(0, 0, config={})
    assert trio.hosted(0).log.config.retention_ms == 604_800_000
    assert not (await trio.produce(batch(3))).error


@simulate
async def test_defaults_of_a_broker_change_what_topics_do_not_say(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0, config={"segment.bytes": "4096"})
    await trio.tell_settings(0, retention__ms="5000", segment__bytes="9999", flush="ack")
    assert trio.hosted(0).log.config.retention_ms == 5_000
    assert trio.hosted(0).log.config.segment_bytes == 4_096
    assert not (await trio.produce(batch(3))).error
    await trio.tell_settings(0)
    assert trio.hosted(0).log.config.retention_ms == 604_800_000


@simulate
async def test_a_replica_that_is_added_is_throttled_until_it_is_in_sync(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0, isr=(0, 1), replicas=(0, 1), to=(0, 1))
    await trio.tell_settings(0, leader__replication__throttled__rate="20480")
    for _ in range(20):
        await trio.produce(batch(10, value=b"x" * 1_000))
    size = trio.hosted(0).log.size_bytes
    before = trio.loop.time()
    await trio.lead(0, 0, isr=(0, 1), adding=(2,), config={"min.insync.replicas": "1"})
    # Those who are in sync already feel nothing of it.
    asked = trio.loop.time()
    assert not (await trio.produce(batch(1))).error
    assert trio.loop.time() - asked < 0.1
    await trio.until(lambda: 2 in trio.hosted(0).machine.isr, within_s=60)
    took_s = trio.loop.time() - before
    assert took_s >= size / 20_480 * 0.8
    # In sync, it is waited for and no longer throttled.
    asked = trio.loop.time()
    for _ in range(5):
        await trio.produce(batch(10, value=b"x" * 1_000))
    assert trio.loop.time() - asked < 0.5
    assert trio.ends()[2] == trio.ends()[0]


@simulate
async def test_defaults_do_not_count_replicas_that_come_and_go(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0, isr=(0,), adding=(1, 2))
    assert trio.hosted(0).machine.min_insync == 1
    assert not (await trio.produce(batch(1))).error
    await trio.until(lambda: len(trio.hosted(0).machine.isr) == 3)


@simulate
async def test_a_stop_that_comes_after_a_later_order_is_void(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    old = trio.hosted(2).machine.revision
    await assign(trio, (0, 1))
    await trio.lead(0, 0)
    await trio.produce(batch(3))

    async def stop(revision: int) -> list[str]:
        request = control_pb2.StopReplicaRequest(
            header=trio.header(2),
            partitions=[
                control_pb2.StopPartition(
                    partition=to_partition(T0), topic_id=TOPIC_ID, delete=True, revision=revision
                )
            ],
        )
        response = await trio.host.channel("b2:9095").call(
            methods.CONTROL_STOP_REPLICA, request, timeout_ms=2_000
        )
        return [code_name(each.error) for each in response.errors]

    assert await stop(old) == []
    await asyncio.sleep(0.1)
    assert trio.hosted(2).log.log_end == 3
    assert trio.heard("not stopped, a later order wants it")
    # One that the store does not know of is none, and the replica is served on.
    await assign(trio, (0, 1, 2))
    assert await stop(trio.hosted(2).machine.revision) == ["INVALID_REQUEST"]
    assert trio.hosted(2).log.log_end == 3
    await assign(trio, (0, 1))
    assert await stop(trio.hosted(2).machine.revision) == []
    assert trio.replicas(2).get(T0) is None
    assert "t-0" not in trio.files[2].list("/data")


@simulate
async def test_a_late_request_deletes_nothing_of_a_topic_that_was_made_anew(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    await trio.produce(batch(3))
    answers = []
    for topic_id in ("id-of-a-former-t", TOPIC_ID):
        deletion = broker_pb2.RecordDeletion(
            partition=to_partition(T0), before_offset=2, topic_id=topic_id
        )
        response = await trio.host.channel("b0:9092").call(
            methods.BROKER_DELETE_RECORDS,
            broker_pb2.DeleteRecordsRequest(partitions=[deletion]),
            timeout_ms=2_000,
        )
        answers.append((code_name(response.partitions[0].error), trio.hosted(0).log.log_start))
    assert answers == [("UNKNOWN_TOPIC_ID", 0), ("", 2)]


async def strays_of(trio: Trio, broker: int) -> list[broker_pb2.StrayDescription]:
    response = await trio.host.channel(f"b{broker}:9092").call(
        methods.BROKER_DESCRIBE_STRAYS, broker_pb2.DescribeStraysRequest(), timeout_ms=2_000
    )
    return list(response.strays)


async def deletions_of(
    trio: Trio, broker: int, *, limit: int = 0
) -> list[broker_pb2.DeletionDescription]:
    response = await trio.host.channel(f"b{broker}:9092").call(
        methods.BROKER_DESCRIBE_DELETIONS,
        broker_pb2.DescribeDeletionsRequest(partitions=[to_partition(T0)], limit=limit),
        timeout_ms=2_000,
    )
    return list(response.deletions)


async def set_aside(trio: Trio, broker: int) -> None:
    wanted = control_pb2.StopPartition(
        partition=to_partition(T0), topic_id=TOPIC_ID, set_aside=True
    )
    response = await trio.host.channel(f"b{broker}:9095").call(
        methods.CONTROL_STOP_REPLICA,
        control_pb2.StopReplicaRequest(header=trio.header(broker), partitions=[wanted]),
        timeout_ms=2_000,
    )
    assert not response.errors


STRAYS_QUICK = {
    "retention_check_interval_ms": 500,
    "retention_clock_settle_ms": 2_000,
    "stray_retention_ms": 20_000,
}


@simulate
async def test_f42_a_stray_is_described_and_goes_when_its_time_is_over(trio: Trio) -> None:
    await trio.start(**STRAYS_QUICK)
    await trio.lead(0, 3)
    await trio.produce(batch(3))
    await trio.until(lambda: trio.hosted(2).machine.high_watermark == 3)
    trio.replicas(2).store_high_watermarks()
    await set_aside(trio, 2)
    (about,) = await strays_of(trio, 2)
    assert (about.topic_id, about.log_start, about.log_end) == (TOPIC_ID, 0, 3)
    assert (about.high_watermark, about.last_epoch) == (3, 3)
    assert about.size_bytes == trio.hosted(0).log.size_bytes
    assert "does not know" in about.why
    (line,) = await deletions_of(trio, 2)
    assert (line.kind, line.evidence, line.topic_id) == ("set-aside", "SetAside", TOPIC_ID)
    await asyncio.sleep(15)
    assert trio.replicas(2).strays.replicas == 1
    (about,) = await strays_of(trio, 2)
    assert about.kept_until_ms > about.since_ms
    await trio.until(lambda: trio.replicas(2).strays.replicas == 0)
    assert trio.clock.wall_ms() >= about.kept_until_ms
    assert await strays_of(trio, 2) == []
    (newest,) = await deletions_of(trio, 2, limit=1)
    assert (newest.kind, newest.evidence) == ("stray", "StrayExpired")
    assert trio.heard("b2: removed /data/t-0.")
    assert trio.replicas(2).counts.strays_removed == 1
    assert trio.replicas(2).counts.replicas_set_aside == 1


@simulate
async def test_f29_a_clock_that_jumps_ahead_makes_no_stray_old(trio: Trio) -> None:
    await trio.start(**STRAYS_QUICK | {"retention_clock_settle_ms": 30_000})
    await trio.lead(0, 0)
    await trio.produce(batch(3))
    await set_aside(trio, 2)
    trio.clock.wall_skew_ms = 365 * 24 * 3_600_000
    await asyncio.sleep(10)
    trio.clock.wall_skew_ms = 0
    await asyncio.sleep(35)
    (about,) = await strays_of(trio, 2)
    assert about.kept_until_ms > 0, "its time has begun, by a clock that is believed"
    trio.clock.wall_skew_ms = 365 * 24 * 3_600_000
    await asyncio.sleep(10)
    assert len(await strays_of(trio, 2)) == 1


@simulate
async def test_cuts_and_moved_log_starts_are_on_record_with_their_evidence(trio: Trio) -> None:
    await trio.start(checkpoint_interval_ms=500)
    await trio.lead(0, 0)
    await trio.produce(batch(3))
    await delete(trio, 2)
    await trio.until(lambda: starts(trio) == [2, 2, 2])
    for broker in (0, 1, 2):
        (line,) = await deletions_of(trio, broker)
        assert (line.kind, line.evidence) == ("log-start", "LogStartMoved")
        assert (line.from_offset, line.to_offset) == (0, 2)
        assert "leader 0 in epoch 0" in line.why
        assert trio.replicas(broker).counts.log_starts_moved == 1
    await asyncio.sleep(1)
    await trio.stop_broker(1)
    await trio.start_broker(1)
    await trio.until(lambda: trio.brokers[1].epoch)
    assert len(await deletions_of(trio, 1)) == 1
