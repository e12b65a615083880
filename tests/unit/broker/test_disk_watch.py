"""Full, slow and broken disks of real brokers in virtual time."""

from __future__ import annotations

import asyncio

from simulation.loop import InlineBlocking
from tailrace.broker.disk_watch import PROBE_BYTES
from tailrace.config import FolderConfig
from tailrace.errors import StorageError
from tailrace.log.disk_faults import Fault, FaultKind
from tailrace.model import TopicPartition
from tailrace.transport import methods
from tailrace.transport.wire import code_name, from_partition, to_partition
from tailrace.v1 import broker_pb2, control_pb2
from unit.broker.trio import T0, T1, Trio, batch, simulate

TWO = FolderConfig(log_dirs=("/a", "/b"))
KIB = 1 << 10


async def health(trio: Trio, number: int) -> control_pb2.HealthResponse:
    stream = trio.host.channel(f"b{number}:9095").open(
        methods.CONTROL_HEALTH, control_pb2.HealthRequest(header=trio.header(number))
    )
    told = await stream.recv()
    assert told is not None
    stream.cancel()
    return told


@simulate
async def test_a_full_disk_refuses_records_and_serves_readers(trio: Trio) -> None:
    await trio.start(log_dir_min_free_bytes=100 * KIB)
    await trio.lead(0, 0)
    assert not (await trio.produce()).error
    trio.files[0].disk_bytes_max = trio.files[0].used_bytes + 99 * KIB
    await trio.until(lambda: trio.heard("b0: disk of /data: full"))
    refused = await trio.produce()
    assert code_name(refused.error) == "DISK_FULL"
    assert refused.retry_after_ms > 0
    assert "/data" in refused.message
    stream = trio.fetching()
    wanted = broker_pb2.FetchPartition(partition=to_partition(T0), leader_epoch=-1, last_epoch=-1)
    await stream.send(broker_pb2.FetchRequest(add=[wanted], credit_bytes=KIB * KIB))
    response = await stream.recv()
    assert response is not None
    assert response.partitions[0].batches
    assert "full" in (await health(trio, 0)).unfit
    # Another one leads: this one follows on with what is left.
    await trio.lead(1, 1)
    assert not (await trio.produce(to=1)).error
    assert trio.ends() == [6, 6, 6]
    trio.files[0].disk_bytes_max = None
    await trio.until(lambda: trio.heard("b0: disk of /data: well again"))
    assert (await health(trio, 0)).unfit == ""


@simulate
async def test_a_follower_stops_before_the_disk_is_at_its_end_and_comes_back(trio: Trio) -> None:
    await trio.start(log_dir_min_free_bytes=100 * KIB, replica_lag_time_max_ms=3_000)
    await trio.lead(0, 0)
    trio.files[2].disk_bytes_max = trio.files[2].used_bytes + 40 * KIB
    await trio.until(lambda: trio.heard("b2: disk of /data: full"))
    # The first one waits until broker 2 has left the ISR, the next ones do not.
    assert not (await trio.produce(timeout_ms=10_000)).error
    begun_ms = trio.loop.now_ms
    for _ in range(5):
        assert not (await trio.produce(batch(1, value=bytes(10 * KIB)))).error
    assert trio.loop.now_ms - begun_ms < 1_000
    assert (await trio.stored()).isr == (0, 1)
    assert trio.hosted(2).log.log_end == 0
    trio.files[2].disk_bytes_max = None
    await trio.until(lambda: len(set(trio.ends())) == 1)
    async with asyncio.timeout(30):
        while (await trio.stored()).isr != (0, 1, 2):  # noqa: ASYNC110 - it is virtual time.
            await asyncio.sleep(0.1)


@simulate
async def test_enospc_in_the_middle_of_an_append_is_told_as_a_full_disk(trio: Trio) -> None:
    await trio.start(0, log_dir_min_free_bytes=0, disk_probe_interval_ms=60_000)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))
    await trio.until(lambda: trio.brokers[0].disks is not None)
    await asyncio.sleep(1)
    trio.files[0].disk_bytes_max = trio.files[0].used_bytes + 100
    refused = await trio.produce()
    assert code_name(refused.error) == "DISK_FULL"
    assert trio.hosted(0).log.is_open
    assert trio.hosted(0).log.log_end == 0
    trio.files[0].disk_bytes_max = None
    await asyncio.sleep(61)
    assert not (await trio.produce()).error


@simulate
async def test_a_disk_that_fails_takes_its_replicas_and_no_others(trio: Trio) -> None:
    await trio.start(folders=TWO)
    await trio.lead(0, 0)
    await trio.lead(0, 0, partition=T1)
    homes = {each: trio.hosted(0, each).disk.path for each in (T0, T1)}
    assert set(homes.values()) == {"/a", "/b"}
    lost = next(each for each, path in homes.items() if path == "/a")
    kept = next(each for each, path in homes.items() if path == "/b")
    assert not (await trio.produce(partition=lost)).error
    trio.faults[0].set(Fault(FaultKind.FAIL, "/a"))
    answer = await trio.produce(partition=lost)
    assert code_name(answer.error) == "STORAGE_ERROR"
    await trio.until(lambda: lost in trio.replicas(0).offline)
    assert code_name((await trio.produce(partition=lost)).error) == "NOT_LEADER"
    told = await health(trio, 0)
    assert [from_partition(each.partition) for each in told.offline] == [lost]
    assert [each.trouble.partition(":")[0] for each in told.folders] == ["failed", ""]
    assert not (await trio.produce(partition=kept)).error
    # Orders for what is gone fail, new replicas go to the folder that is left.
    responses = await trio.lead(1, 1, isr=(1, 2), partition=lost)
    assert [code_name(each.error) for each in responses[0].errors] == ["DAMAGED_LOG"]
    assert not (await trio.produce(to=1, partition=lost)).error
    new = TopicPartition("t", 2)
    await trio.lead(0, 0, partition=new)
    assert trio.hosted(0, new).disk.path == "/b"
    assert not (await trio.produce(partition=new)).error


@simulate
async def test_a_folder_that_was_unmounted_fails_though_its_name_is_there(trio: Trio) -> None:
    await trio.start(folders=TWO)
    await trio.lead(0, 0)
    await trio.lead(0, 0, partition=T1)
    lost = next(each for each in (T0, T1) if trio.hosted(0, each).disk.path == "/a")
    kept = next(each for each in (T0, T1) if each != lost)
    trio.files[0].remove("/a/meta.properties")
    await trio.until(lambda: lost in trio.replicas(0).offline)
    assert trio.heard("b0: disk of /a: failed: [Errno 2] the data folder is not there any more")
    assert not (await trio.produce(partition=kept)).error


def test_a_broker_without_a_folder_ends() -> None:
    async def main(trio: Trio) -> None:
        await trio.start(0)
        await trio.lead(0, 0, isr=(0,), replicas=(0,))
        trio.faults[0].set(Fault(FaultKind.FAIL, "/data"))
        await trio.until(trio.brokers[0].failed.is_set)
        assert isinstance(trio.brokers[0].failure, StorageError)
        trio.brokers[0].failure = None

    simulate(main)()


@simulate
async def test_a_slow_disk_is_told_and_well_again_later(trio: Trio) -> None:
    await trio.start(0, disk_slow_ms=500, disk_slow_recovery_ms=5_000)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))
    blocking = trio.brokers[0]._blocking
    assert isinstance(blocking, InlineBlocking)
    assert (await health(trio, 0)).unfit == ""
    blocking.delay_us = (900_000, 900_000)
    await trio.until(lambda: trio.heard("disk of /data: slow"))
    assert "slow" in (await health(trio, 0)).unfit
    blocking.delay_us = (20, 500)
    begun_ms = trio.loop.now_ms
    await trio.until(lambda: trio.heard("disk of /data: well again"))
    assert trio.loop.now_ms - begun_ms >= 4_000


@simulate
async def test_probes_leave_one_small_file(trio: Trio) -> None:
    await trio.start(0)
    await asyncio.sleep(10)
    assert trio.files[0].size("/data/.probe") == len(PROBE_BYTES)
