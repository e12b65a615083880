from __future__ import annotations

import asyncio

from tailrace.broker.observing import ObservedBroker
from tailrace.broker.settings import BrokerSettings
from tailrace.meta.keys import CLUSTER, ClusterRecord, encode
from tailrace.meta.measured import MeasuredStore
from tailrace.meta.store import Put
from tailrace.metrics.families import Page
from tailrace.transport.measured import MeasuredNetwork
from tailrace.transport.wire import to_partition
from tailrace.v1 import broker_pb2
from unit.broker.trio import ALL, CLUSTER_ID, T0, T1, Trio, batch, simulate

SETTINGS = BrokerSettings(broker_id=0)


@simulate
async def test_ready_says_what_is_missing_from_the_start_to_the_end(trio: Trio) -> None:
    process, broker = trio.make(0)
    store = MeasuredStore(trio.etcd.connect(), trio.clock)
    network = MeasuredNetwork(trio.host, trio.clock)
    observed = ObservedBroker(broker, SETTINGS, store, network, trio.clock)
    assert "the cluster's id" in observed.why_not_ready()
    starting = process.spawn("start", broker.start())
    await asyncio.sleep(1)
    assert "the cluster's id" in observed.why_not_ready()
    await trio.store.txn([], [Put(CLUSTER, encode(ClusterRecord(cluster_id=CLUSTER_ID)))])
    await starting
    await trio.until(lambda: broker.epoch is not None)
    assert observed.why_not_ready() == "it has no lease in etcd"
    lease = await store.grant_lease(SETTINGS.lease_ttl_ms)
    assert observed.why_not_ready() == ""
    await asyncio.sleep(SETTINGS.lease_ttl_ms / 1_000 + 0.1)
    assert "renewed 5100 ms ago" in observed.why_not_ready()
    del lease
    trio.brokers[0], trio.processes[0] = broker, process
    handing = process.spawn("hand over", broker.hand_over())
    await asyncio.sleep(0.01)
    assert "it is stopping" in observed.why_not_ready()
    await handing


@simulate
async def test_a_scrape_shows_what_was_written_read_and_replicated(trio: Trio) -> None:
    await trio.start(replica_lag_time_max_ms=1_000)
    await trio.lead(0, 1, partition=T0)
    await trio.lead(1, 1, partition=T1)
    store = MeasuredStore(trio.etcd.connect(), trio.clock)
    network = MeasuredNetwork(trio.host, trio.clock)
    observed = [
        ObservedBroker(trio.brokers[each], SETTINGS, store, network, trio.clock) for each in ALL
    ]

    async def shown(number: int) -> dict[tuple[str, ...], float]:
        page = Page()
        await observed[number].fill(page)
        return {
            (each.name.removeprefix("tailrace_"), *each.labels.values()): each.value
            for metric in page.metrics()
            for each in metric.samples
        }

    data = batch(5)
    assert not (await trio.produce(data)).error
    refused = await trio.produce(data, to=1)
    assert refused.error
    stream = trio.fetching()
    wanted = broker_pb2.FetchPartition(partition=to_partition(T0), offset=0, leader_epoch=-1)
    wanted.last_epoch = -1
    await stream.send(broker_pb2.FetchRequest(credit_bytes=1 << 20, add=[wanted]))
    assert await stream.recv() is not None
    await asyncio.sleep(0.5)

    leader = await shown(0)
    assert leader[("topic_records_in_total", "t")] == 5
    assert leader[("topic_bytes_in_total", "t")] == len(data)
    assert leader[("topic_records_out_total", "t")] == 5
    assert leader[("topic_bytes_out_total", "t")] == len(data)
    assert leader[("topic_replica_bytes_out_total", "t")] == 2 * len(data)
    assert leader[("produce_seconds_count", "all")] == 1
    assert leader[("fetch_responses_total",)] >= 1
    assert leader[("client_streams", "fetch")] == 1
    assert (leader[("topic_leaders", "t")], leader[("topic_replicas", "t")]) == (1, 2)
    assert (leader[("topic_isr_min", "t")], leader[("under_replicated_partitions",)]) == (3, 0)
    assert leader[("follower_lag_records_max", "1")] == 0
    assert leader[("replica_role_changes_total", "leader")] == 1
    other = await shown(1)
    assert other[("produce_refused_total", "NOT_LEADER")] == 1
    assert other[("topic_replica_bytes_in_total", "t")] == len(data)

    # A follower that is gone: it lags, and leaves the ISR.
    trio.processes[2].kill()
    await trio.produce(data, acks=broker_pb2.ACKS_LEADER)
    await asyncio.sleep(0.6)
    late = await shown(0)
    assert late[("follower_lag_records_max", "2")] == 5
    assert late[("follower_behind_seconds_max", "2")] >= 0.5
    await trio.until(lambda: len(trio.hosted(0).machine.isr) == 2)
    late = await shown(0)
    assert (late[("isr_shrinks_total",)], late[("isr_expands_total",)]) == (1, 0)
    assert late[("under_replicated_partitions",)] == 1
    assert late[("at_min_isr_partitions",)] == 1
    stream.cancel()
