"""F41, F42 (L1, L2, L6): the store comes back empty or older, under load; then it is rebuilt.

`TAILRACE_ROUNDS=10` does the drill of `cluster recover` ten times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.cluster_harness import ROUNDS, Cluster, Load, connected, eventually, now_ms
from integration.cluster_harness import start as start_cluster
from integration.cluster_harness import stop as stop_cluster
from integration.store_faults import (
    empty,
    keep_copy,
    logs_on_disk,
    put_back,
    recover,
    tailrace,
)
from tailrace.aio import Consumer, Producer
from tailrace.dev.cluster import DevCluster
from tailrace.dev.state import Role

LEASE_MS = 2_000
# Long enough for leases to be over and for controllers to have been elected and to have acted.
SETTLED_S = 3 * LEASE_MS / 1_000
YOUNG_RECORDS = 50

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120 + 60 * ROUNDS)]


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[DevCluster]:
    running = start_cluster(tmp_path / "c", coordinators=1, broker_lease_ttl_ms=str(LEASE_MS))
    yield running
    stop_cluster(running)


async def _commit(cluster: Cluster, group: str, topic: str, records: int) -> None:
    """Read so many records of a topic as a group, and commit."""
    async with Consumer(
        topic,
        bootstrap_servers=cluster.dev.state.bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=records,
    ) as consumer:
        seen = 0
        async with asyncio.timeout(40):
            while seen < records:
                seen += len(await consumer.poll(1.0, max_records=records - seen))
        await consumer.commit()


async def _committed(cluster: Cluster, group: str) -> dict[str, int]:
    described = await cluster.admin.describe_group(group)
    return {
        f"{each.topic}-{each.partition}": each.offset
        for each in described.positions
        if each.offset >= 0
    }


async def _write(cluster: Cluster, topic: str, count: int) -> None:
    async with Producer(cluster.dev.state.bootstrap) as producer:
        for number in range(count):
            await (await producer.send(topic, b"%d" % number))


async def _doubting(cluster: Cluster) -> None:
    """Every broker says that it does not believe the store."""

    def all_do() -> bool:
        return all(
            "NOT BELIEVED" in cluster.dev.log_path(f"broker-{number}").read_text()
            for number in (1, 2, 3)
        )

    await eventually("all brokers doubt the store", all_do)


async def test_f41_l1_a_store_that_comes_back_empty_is_rebuilt_under_load(
    dev: DevCluster,
) -> None:
    async with connected(dev) as cluster:
        await cluster.admin.create_topic("before", partitions=2)
        await cluster.admin.create_topic("small", config={"retention.ms": "86400000"})
        await _write(cluster, "small", 20)
        await _commit(cluster, "g", "small", 12)
        committed = await _committed(cluster, "g")
        assert committed == {"small-0": 12}
        await cluster.until_well("before")
        load = Load(cluster, "before", 2)
        async with load.running():
            await load.flowing(since_ms=now_ms())
            for number in range(ROUNDS):
                before = logs_on_disk(cluster)
                await empty(cluster)
                emptied_ms = now_ms()
                await asyncio.sleep(SETTLED_S)
                # What is led is served on, and not a file is gone.
                after = logs_on_disk(cluster)
                assert {name for name in before if after.get(name, -1) < before[name]} == set()
                await _doubting(cluster)
                await load.flowing(since_ms=emptied_ms)
                told = await recover(cluster)
                assert (told[0]["inferred"], told[0]["waits"]) == (0, 0), told
                assert told[0]["generation"] == number + 1
                assert told[-1]["waiting"] == []
                await load.flowing(since_ms=now_ms())
                await cluster.until_well("before")
        assert await _committed(cluster, "g") == committed
        described = await cluster.admin.describe_topic("small")
        assert described.config["retention.ms"] == "86400000"
        # The cluster can do again what needs the store.
        await cluster.admin.create_topic("after")
        await _write(cluster, "after", 3)
        await _commit(cluster, "g2", "after", 3)
        code, out, _ = await tailrace(cluster, "explain", "before", "0", "--json")
        assert code == 0
        assert "the metadata store was rebuilt" in out
        code, out, _ = await tailrace(cluster, "cluster", "recover")
        assert (code, "nothing to rebuild" in out) == (0, True)


async def _young_topic_and_older_store(dev: DevCluster, tmp_path: Path) -> None:
    """A topic that is younger than the store is in the end; all services are stopped."""
    async with connected(dev) as cluster:
        await cluster.admin.create_topic("old")
        await keep_copy(cluster, tmp_path / "copy")
        await cluster.admin.create_topic("young", partitions=2)
        await _write(cluster, "young", YOUNG_RECORDS)
        # A copy of the metadata is written within a moment.
        await asyncio.sleep(4)
    await dev.down()
    etcd = dev.folder / "etcd" / "data"
    etcd.rename(tmp_path / "right")
    (tmp_path / "copy").rename(etcd)


async def _start_again(dev: DevCluster) -> None:
    for member in sorted(dev.state.members, key=lambda each: each.role is not Role.ETCD):
        await dev.start(member.name)


async def _read_young(dev: DevCluster) -> list[bytes | None]:
    seen: list[bytes | None] = []
    async with Consumer(
        "young", bootstrap_servers=dev.state.bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(40):
            while len(seen) < YOUNG_RECORDS:
                seen += [each.value for each in await consumer.poll(1.0)]
    return seen


def _all_of_young() -> set[bytes]:
    return {b"%d" % number for number in range(YOUNG_RECORDS)}


async def test_f42_l2_a_store_older_than_a_topic_deletes_nothing(
    dev: DevCluster, tmp_path: Path
) -> None:
    await _young_topic_and_older_store(dev, tmp_path)
    logs = {path: path.stat().st_size for path in dev.folder.glob("broker-*/data/young-*/*.log")}
    assert len(logs) == 6
    await _start_again(dev)
    async with connected(dev) as cluster:
        await asyncio.sleep(SETTLED_S)
        kept = {path: path.stat().st_size for path in logs if path.exists()}
        assert kept == logs
        await _doubting(cluster)
        told = await recover(cluster)
        assert "went back" in told[0]["store"]
        await cluster.until_well("young")
        seen = await _read_young(dev)
        assert (len(seen), set(seen)) == (YOUNG_RECORDS, _all_of_young())


async def test_f42_l2_what_the_store_does_not_know_is_set_aside_and_taken_back(
    dev: DevCluster, tmp_path: Path
) -> None:
    """Brokers that have no copy of the metadata cannot tell that the store went back."""
    await _young_topic_and_older_store(dev, tmp_path)
    for name in ("metadata-copy", "store-witness"):
        for path in dev.folder.glob(f"broker-*/data/{name}"):
            path.unlink()
    await _start_again(dev)
    async with connected(dev) as cluster:
        strays = [dev.folder / f"broker-{number}" / "data" for number in (1, 2, 3)]

        def all_aside() -> bool:
            return all(len(list(each.glob("young-*-stray"))) == 2 for each in strays)

        await eventually("all replicas are set aside", all_aside)
        code, out, err = await tailrace(cluster, "cluster", "recover")
        assert code == 0, err
        assert "nothing to rebuild" in out
        assert "`--adopt young=" in out
        code, out, err = await tailrace(cluster, "cluster", "recover", "--adopt", "young")
        assert code == 0, err
        assert "Nothing was changed" in out
        code, _, err = await tailrace(cluster, "cluster", "recover", "--adopt", "yuong")
        assert code == 1
        assert "of these there are: young" in err
        told = await recover(cluster, "--adopt", "young")
        assert told[-1]["waiting"] == []
        await cluster.until_well("young")
        seen = await _read_young(dev)
        assert (len(seen), set(seen)) == (YOUNG_RECORDS, _all_of_young())
        assert list(dev.folder.glob("broker-*/data/*-stray")) == []
        await _write(cluster, "young", 3)


async def test_f42_l6_a_store_that_goes_back_under_brokers_and_is_made_right_again(
    dev: DevCluster, tmp_path: Path
) -> None:
    async with connected(dev) as cluster:
        await cluster.admin.create_topic("t", partitions=2)
        await cluster.until_well("t")
        await keep_copy(cluster, tmp_path / "older")
        await cluster.admin.create_topic("young")
        load = Load(cluster, "t", 2)
        async with load.running():
            await load.flowing(since_ms=now_ms())
            # Copies, and what the services saw of the store, are newer than the copy now.
            await asyncio.sleep(4)
            await keep_copy(cluster, tmp_path / "right")
            await put_back(cluster, tmp_path / "older")
            await _doubting(cluster)
            back_ms = now_ms()
            await asyncio.sleep(SETTLED_S)
            await load.flowing(since_ms=back_ms)
            assert len(list(cluster.dev.folder.glob("broker-*/data/young-0"))) == 3
            await put_back(cluster, tmp_path / "right")
            right_ms = now_ms()
            await load.flowing(since_ms=right_ms)
            await cluster.until_well("t")
            # By itself: nobody was asked.
            await cluster.admin.create_topic("again")
        await _write(cluster, "young", 3)
