"""The producer core against a model cluster that keeps the real rules, in virtual time."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from simulation.model_cluster import Fate, ModelCluster
from tailrace.client.delivery import Delivery
from tailrace.client.partitioner import by_key
from tailrace.client.producer import ProducerCore
from tailrace.errors import (
    BatchTooLarge,
    BufferFull,
    ClientClosed,
    DeliveryTimedOut,
    InvalidRequest,
    NotController,
    OutOfOrderSequence,
    Overloaded,
    ProducerFenced,
    StoreUnavailable,
    UnknownTopic,
    Unreachable,
)
from tailrace.record.view import BatchView

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_record_once_and_in_order_whatever_happens(simulate: Any, seed: int) -> None:
    """Lost and late requests, lost answers, refusals, leader moves, short deadlines, a hang."""

    async def main(world: Any) -> None:
        cluster, rng = world.cluster, world.loop.fork_rng("faults")
        cluster.create("t", 3)
        producer = world.producer(
            delivery_timeout_ms=rng.choice([400, 3_000, 120_000]),
            request_timeout_ms=rng.choice([300, 5_000]),
            batch_size=rng.choice([1_000, 4_000]),
            linger_ms=rng.choice([0, 5]),
            compression_type=rng.choice([None, "lz4"]),
            # With small requests each batch goes alone, so that one can overtake another.
            max_request_size=rng.choice([4_000, 4 << 20]),
        )
        deliveries: dict[int, list[tuple[bytes, Delivery]]] = {0: [], 1: [], 2: []}
        _break_things(cluster, rng)
        breaking = world.processes["client"].spawn("faults", _move_leaders(cluster, rng))
        for number in range(600):
            partition = rng.randrange(3)
            value = b"%d" % number
            deliveries[partition].append(
                (value, await producer.send("t", value, partition=partition))
            )
            if rng.random() < 0.2:
                await asyncio.sleep(rng.expovariate(1 / 0.02))
        breaking.cancel()
        cluster.fate = lambda: Fate.SERVED
        cluster.commit_lag_s = lambda: 0.0
        for each in cluster.partitions.values():
            if each.leader < 0:
                cluster.move(each, 0)
        await producer.flush()
        await asyncio.sleep(3)
        await _send_one_more(producer, deliveries)
        await producer.close()
        for partition, sent in deliveries.items():
            _check(cluster.get("t", partition).records(), sent)

    simulate(main, seed=seed)


def _break_things(cluster: ModelCluster, rng: Random) -> None:
    weights = [rng.choice([0, 1, 4]) for _ in range(5)] + [rng.choice([0, 0, 1])]
    fates = [Fate.LOST, Fate.UNANSWERED, Fate.LATE, Fate.REFUSED, Fate.PARTLY, Fate.IGNORED]

    def fate() -> Fate:
        if rng.random() < 0.6 or not any(weights):
            return Fate.SERVED
        return rng.choices(fates, weights)[0]

    cluster.fate = fate
    cluster.late_s = lambda: rng.expovariate(1 / 0.2)
    for each in cluster.partitions.values():
        each.batch_bytes_max = rng.choice([1 << 30, 1 << 30, 2_000])
    # Longer than the pause before a retry, an answer may come after that to the retry.
    lag_s = rng.choice([0.0, 0.005, 0.1, 1.0])
    cluster.commit_lag_s = lambda: rng.uniform(0, lag_s) if lag_s else 0.0
    cluster.controller.lag_s = lambda: rng.uniform(0, 0.3)


async def _move_leaders(cluster: ModelCluster, rng: Random) -> None:
    while True:
        await asyncio.sleep(rng.expovariate(1 / 0.3))
        partition = cluster.get("t", rng.randrange(3))
        leader = rng.choice([-1, 0, 1, 2])
        cluster.move(partition, leader, lose_tail=rng.random() < 0.5)


async def _send_one_more(
    producer: ProducerCore, deliveries: dict[int, list[tuple[bytes, Delivery]]]
) -> None:
    """Liveness: after everything has healed, what is sent arrives."""
    for partition, sent in deliveries.items():
        delivery = await producer.send("t", b"999999", partition=partition)
        sent.append((b"999999", delivery))
        await delivery


def _check(stored: list[bytes], sent: list[tuple[bytes, Delivery]]) -> None:
    numbers = [int(value) for value in stored]
    assert numbers == sorted(set(numbers)), "written twice, or out of order"
    for value, delivery in sent:
        assert delivery.done()
        if delivery.exception() is None:
            assert stored[delivery.result().offset] == value
        else:
            # A batch in doubt cannot be cut into smaller ones.
            assert isinstance(delivery.exception(), DeliveryTimedOut | BatchTooLarge)


# What a program sees.


def test_records_with_a_key_meet_in_one_partition_others_fill_batches(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 3)
        producer = world.producer()
        for number in range(90):
            await producer.send("t", b"k", key=b"%d" % (number % 9))
        for _ in range(90):
            await producer.send("t", b"free")
        await producer.flush()
        logs = list(world.cluster.partitions.values())
        for key in range(9):
            holders = [
                sum(record.key == b"%d" % key for entry in log.entries for record in _in(entry))
                for log in logs
            ]
            assert sorted(holders) == [0, 0, 10]
        free = [sum(value == b"free" for value in log.records()) for log in logs]
        assert sorted(free) == [0, 0, 90], "they stay together while the batch fills"
        await producer.close()

    simulate(main)


def test_at_low_load_a_record_leaves_at_once_and_partitions_take_turns(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 3)
        producer = world.producer()
        await (await producer.send("t", b"first"))
        for number in range(30):
            before_ms = world.loop.now_ms
            await (await producer.send("t", b"%d" % number))
            assert world.loop.now_ms - before_ms < 10
        assert min(len(each.records()) for each in world.cluster.partitions.values()) > 0
        await producer.close()

    simulate(main)


def test_what_gathers_while_a_request_is_on_its_way_goes_with_the_next(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer()
        await (await producer.send("t", b"first"))
        world.cluster.commit_lag_s = lambda: 0.002
        before = world.cluster.requests
        deliveries = []
        for number in range(200):
            deliveries.append(await producer.send("t", b"%d" % number))
            await asyncio.sleep(0.0001)
        for delivery in deliveries:
            await delivery
        assert world.cluster.requests - before < 30
        await producer.close()

    simulate(main)


def test_a_slow_partition_does_not_hold_up_the_others(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("slow")
        world.cluster.create("fast")
        producer = world.producer()
        await (await producer.send("fast", b"0"))
        world.cluster.commit_lag_s = lambda: 5.0
        slow = await producer.send("slow", b"1")
        await asyncio.sleep(0.05)
        world.cluster.commit_lag_s = lambda: 0.0
        before_ms = world.loop.now_ms
        await (await producer.send("fast", b"2"))
        assert world.loop.now_ms - before_ms < 20
        assert not slow.done()
        await producer.close()

    simulate(main)


def test_a_new_leader_gets_at_once_what_the_old_one_did_not_answer(simulate: Any) -> None:
    """The old leader hangs; its requests would only time out after 30 seconds."""

    async def main(world: Any) -> None:
        cluster = world.cluster
        cluster.create("t")
        producer = world.producer()
        await (await producer.send("t", b"0"))
        cluster.fate = lambda: Fate.IGNORED
        delivery = await producer.send("t", b"1")
        await asyncio.sleep(1)
        cluster.fate = lambda: Fate.SERVED
        cluster.move(cluster.get("t"), 1)
        before_ms = world.loop.now_ms
        assert (await delivery).offset == 1
        assert world.loop.now_ms - before_ms < 100
        assert cluster.get("t").records() == [b"0", b"1"]
        await producer.close()

    simulate(main)


def test_a_broker_that_hangs_and_tells_nothing_is_left_for_another(simulate: Any) -> None:
    """It led the partition and was the one whose metadata the producer followed."""

    async def main(world: Any) -> None:
        cluster = world.cluster
        cluster.create("t")
        producer = world.producer()
        await (await producer.send("t", b"0"))
        for broker in cluster.brokers.values():
            broker.is_deaf = True
        cluster.fate = lambda: Fate.IGNORED
        delivery = await producer.send("t", b"1")
        cluster.move(cluster.get("t"), 1)
        for broker in cluster.brokers.values():
            broker.is_deaf = False
        cluster.fate = lambda: Fate.SERVED
        before_ms = world.loop.now_ms
        await delivery
        assert world.loop.now_ms - before_ms < 5_000
        await producer.close()

    simulate(main)


def test_without_a_new_leader_a_request_is_given_up_and_tried_again(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer(request_timeout_ms=4_000)
        await (await producer.send("t", b"0"))
        world.cluster.fate = lambda: Fate.IGNORED
        delivery = await producer.send("t", b"1")
        await asyncio.sleep(3)
        world.cluster.fate = lambda: Fate.SERVED
        assert not delivery.done()
        await asyncio.sleep(2)
        assert delivery.result().offset == 1
        await producer.close()

    simulate(main)


def test_a_dead_broker_comes_back(simulate: Any) -> None:
    async def main(world: Any) -> None:
        cluster = world.cluster
        cluster.create("t")
        producer = world.producer()
        await (await producer.send("t", b"0"))
        server, address = cluster.brokers[0].server, cluster.brokers[0].address
        await server.stop(grace_ms=0)
        delivery = await producer.send("t", b"1")
        await asyncio.sleep(5)
        assert not delivery.done()
        await cluster.brokers[0].start(server.host, address)
        await asyncio.sleep(2)
        assert delivery.result().offset == 1
        await producer.close()

    simulate(main)


def test_an_unknown_topic_is_waited_for_and_then_an_error(simulate: Any) -> None:
    async def main(world: Any) -> None:
        producer = world.producer(max_block_ms=2_000)
        sending = asyncio.ensure_future(producer.send("t", b"0"))
        await asyncio.sleep(1)
        world.cluster.create("t")
        assert (await (await sending)).offset == 0
        with pytest.raises(UnknownTopic, match="'other'"):
            await producer.send("other", b"1")
        with pytest.raises(InvalidRequest, match="only partition 0, not 1"):
            await producer.send("t", b"1", partition=1)
        await producer.close()

    simulate(main)


def test_a_partition_without_a_leader_is_waited_for_and_named(simulate: Any) -> None:
    async def main(world: Any) -> None:
        cluster = world.cluster
        cluster.create("t")
        cluster.move(cluster.get("t"), -1)
        producer = world.producer(delivery_timeout_ms=1_000)
        delivery = await producer.send("t", b"0")
        with pytest.raises(DeliveryTimedOut, match="t-0 has no leader"):
            await delivery
        delivery = await producer.send("t", b"1")
        cluster.move(cluster.get("t"), 2)
        assert (await delivery).offset == 0
        await producer.close()

    simulate(main)


def test_a_full_buffer_is_waited_for_and_then_an_error(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer(buffer_memory=10_000, batch_size=5_000, max_block_ms=500)
        await (await producer.send("t", b"0"))
        world.cluster.commit_lag_s = lambda: 0.3
        for _ in range(30):
            await producer.send("t", bytes(1_000))
        world.cluster.commit_lag_s = lambda: 60.0

        async def fill() -> None:
            for _ in range(30):
                await producer.send("t", bytes(1_000))

        with pytest.raises(BufferFull, match="max_block_ms=500"):
            await fill()
        await producer.close(timeout_ms=10)

    simulate(main)


def test_each_record_is_told_its_own_place_and_time(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer(linger_ms=20)
        told: list[Any] = []
        deliveries = [
            await producer.send(
                "t",
                b"%d" % number,
                headers=[("h", b"1")],
                timestamp_ms=1_000 + number,
                callback=lambda metadata, error: told.append((metadata, error)),
            )
            for number in range(3)
        ]
        with pytest.raises(asyncio.InvalidStateError):
            deliveries[0].result()
        await producer.flush()
        assert [await each for each in deliveries] == [("t", 0, n, 1_000 + n) for n in range(3)]
        assert told == [(("t", 0, n, 1_000 + n), None) for n in range(3)]
        (entry,) = world.cluster.get("t").entries
        assert [record.headers for record in _in(entry)] == [(("h", b"1"),)] * 3
        await producer.close()

    simulate(main)


def test_who_stops_waiting_disturbs_nobody(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer(linger_ms=500)
        one, two = await producer.send("t", b"1"), await producer.send("t", b"2")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one, 0.1)
        assert (await two).offset == 1
        assert (await one).offset == 0
        await producer.close()

    simulate(main)


@pytest.mark.parametrize("acks", [0, 1])
def test_fewer_acknowledgements_on_request(simulate: Any, acks: int) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer(acks=acks, enable_idempotence=False)
        delivery = await producer.send("t", b"0")
        assert (await delivery).offset == (0 if acks else -1)
        await producer.flush()
        await asyncio.sleep(0.1)
        assert world.cluster.get("t").records() == [b"0"]
        assert world.cluster.controller.next_id == 1, "no id was asked for"
        await producer.close()

    simulate(main)


def test_retries_can_be_limited(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer(retries=2)
        await (await producer.send("t", b"0"))
        world.cluster.fate = lambda: Fate.REFUSED
        before = world.cluster.requests
        with pytest.raises(Overloaded):
            await (await producer.send("t", b"1"))
        assert world.cluster.requests - before == 3
        world.cluster.fate = lambda: Fate.SERVED
        assert (await (await producer.send("t", b"2"))).offset == 1
        await producer.close()

    simulate(main)


def test_a_hint_to_wait_is_honoured(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        world.cluster.fate = lambda: Fate.REFUSED
        world.cluster.retry_after_ms = 10_000
        producer = world.producer(retry_backoff_ms=1, retry_backoff_max_ms=10)
        delivery = await producer.send("t", b"1")
        await asyncio.sleep(9)
        assert world.cluster.requests == 1
        world.cluster.fate = lambda: Fate.SERVED
        await asyncio.sleep(2)
        assert (world.cluster.requests, delivery.result().offset) == (2, 0)
        await producer.close()

    simulate(main)


# Identity.


def test_a_second_instance_of_a_named_producer_fences_the_first(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        first, second = world.producer(name="n"), world.producer(name="n")
        await (await first.send("t", b"1"))
        await (await second.send("t", b"2"))
        refused = await first.send("t", b"3")
        waiting = await first.send("t", b"4")
        for delivery in (refused, waiting):
            with pytest.raises(ProducerFenced):
                await delivery
        with pytest.raises(ProducerFenced):
            await first.send("t", b"5")
        assert world.cluster.get("t").records() == [b"1", b"2"]
        await first.close()
        await second.close()

    simulate(main)


def test_a_log_that_forgot_the_producer_gets_a_new_epoch(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer()
        await (await producer.send("t", b"0"))
        world.cluster.get("t").forget_producers()
        deliveries = [await producer.send("t", b"%d" % n, partition=0) for n in range(1, 4)]
        assert [(await each).offset for each in deliveries] == [1, 2, 3]
        assert (await producer.state())["producer_epoch"] == 1
        await producer.close()

    simulate(main)


def test_acknowledged_records_that_are_lost_are_told_and_work_goes_on(simulate: Any) -> None:
    """The log lost what it had acknowledged: the next batch does not follow. That is an error."""

    async def main(world: Any) -> None:
        world.cluster.create("t")
        log = world.cluster.get("t")
        producer = world.producer()
        for number in range(3):
            await (await producer.send("t", b"%d" % number))
        log.truncate(2)
        with pytest.raises(OutOfOrderSequence):
            await (await producer.send("t", b"3"))
        assert (await (await producer.send("t", b"4"))).offset == 2
        await producer.close()

    simulate(main)


def test_a_topic_that_is_made_anew_is_written_to(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer()
        for number in range(3):
            await (await producer.send("t", b"%d" % number))
        world.cluster.delete("t")
        await asyncio.sleep(0.1)
        world.cluster.create("t", 2)
        assert (await (await producer.send("t", b"3", partition=0))).offset == 0
        assert (await (await producer.send("t", b"4", partition=1))).offset == 0
        await producer.close()

    simulate(main)


def test_no_id_until_there_is_a_controller(simulate: Any) -> None:
    async def main(world: Any) -> None:
        controller = world.cluster.controller
        controller.is_active = False
        controller.errors = [StoreUnavailable("etcd is away"), NotController("not any more")]
        world.cluster.create("t")
        producer = world.producer()
        delivery = await producer.send("t", b"0")
        await asyncio.sleep(2)
        assert not delivery.done()
        controller.is_active = True
        world.cluster.tell()
        assert (await delivery).offset == 0
        await producer.close()

    simulate(main)


def test_a_refused_identity_ends_the_producer(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        world.cluster.controller.errors = [InvalidRequest("no such name")]
        producer = world.producer(name="bad")
        with pytest.raises(InvalidRequest, match="no such name"):
            await (await producer.send("t", b"0"))
        await producer.close()

    simulate(main)


@pytest.mark.parametrize("seed", range(8))
def test_a_copier_that_resumes_writes_nothing_twice(simulate: Any, seed: int) -> None:
    """It saves its position with the producer's state, crashes, and sends again from there."""

    async def main(world: Any) -> None:
        cluster, rng = world.cluster, world.loop.fork_rng("copier")
        cluster.create("t", 2)
        cluster.commit_lag_s = lambda: rng.choice([0.0, 0.01])
        saved: tuple[int, Any] = (0, None)
        while saved[0] < 300:
            producer = world.producer(
                name="copier", linger_ms=rng.choice([0, 3]), batch_size=rng.choice([1_000, 3_000])
            )
            if saved[1] is None:
                saved = (0, await producer.state())
            else:
                producer.resume(saved[1])
            position = saved[0]
            for _ in range(rng.randrange(1, 5)):
                for _ in range(rng.randrange(1, 40)):
                    await producer.send("t", b"%d" % position, partition=position % 2)
                    position += 1
                    if rng.random() < 0.3:
                        await asyncio.sleep(rng.expovariate(1 / 0.002))
                if rng.random() < 0.5:
                    saved = (position, await producer.state())
            # A crash: what is on its way may arrive or not.
            await producer.close(timeout_ms=rng.choice([0, 1, 5]))
        found = [[int(value) for value in cluster.get("t", each).records()] for each in (0, 1)]
        for each in found:
            assert each == list(range(each[0], each[-1] + 1, 2)), "lost or written twice"

    simulate(main, seed=seed)


def test_a_state_is_checked(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer()
        with pytest.raises(InvalidRequest, match="not the state"):
            producer.resume({"producer_id": 1})
        empty = await producer.state()
        assert empty == {"producer_id": 1, "producer_epoch": 0, "sequences": {}}
        await producer.send("t", b"0")
        assert (await producer.state())["sequences"] == {"t/0": 1}
        with pytest.raises(InvalidRequest, match="before it is started"):
            producer.resume(empty)
        await producer.close()
        plain = world.producer(enable_idempotence=False)
        with pytest.raises(InvalidRequest, match="idempotent"):
            await plain.state()
        await plain.close()
        world.cluster.controller.is_active = False
        world.cluster.tell()
        lonely = world.producer(max_block_ms=100)
        with pytest.raises(Unreachable, match="no active controller"):
            await lonely.state()
        await lonely.close()

    simulate(main)


# Tables.


def test_tables_are_cut_and_spread_by_key(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 3)
        producer = world.producer(batch_size=4_000, max_request_size=4_000)
        keys = [b"%d" % (number % 7) for number in range(300)]
        values = [b"%d" % number for number in range(300)]
        delivery = await producer.send_batch("t", {"key": keys, "value": values})
        batches = await delivery
        assert delivery.done()
        assert sum(each.records for each in batches) == 300
        assert len(batches) > 3
        await (await producer.send("t", b"300", key=b"6"))
        for each in world.cluster.partitions.values():
            numbers = [int(value) for value in each.records()]
            assert numbers == sorted(numbers)
        stored = [value for each in world.cluster.partitions.values() for value in each.records()]
        assert sorted(stored, key=int) == [*values, b"300"]
        home = {b"%d" % number: by_key("t", b"%d" % (number % 7), 3) for number in range(300)}
        for each in world.cluster.partitions.values():
            homes = {home.get(value, each.partition.partition) for value in each.records()}
            assert homes <= {each.partition.partition}
        assert await (await producer.send_batch("t", {"value": []})) == []
        await producer.close()

    simulate(main)


# Ends.


def test_close_sends_what_is_left_and_says_what_it_could_not(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer(linger_ms=5_000)
        delivery = await producer.send("t", b"0")
        await producer.close()
        assert delivery.result().offset == 0
        await producer.close()
        with pytest.raises(ClientClosed, match="closed"):
            await producer.send("t", b"1")
        world.cluster.fate = lambda: Fate.IGNORED
        stuck = world.producer()
        delivery = await stuck.send("t", b"2")
        await stuck.close(timeout_ms=100)
        with pytest.raises(ClientClosed, match="before the record was acknowledged"):
            await delivery

    simulate(main)


def test_a_callback_that_raises_stops_nothing(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        producer = world.producer()

        def callback(*_: Any) -> None:
            raise ZeroDivisionError

        await (await producer.send("t", b"0", callback=callback))
        await (await producer.send("t", b"1"))
        await producer.close()

    simulate(main)


def _in(entry: Any) -> list[Any]:
    return list(BatchView(entry.data).records())


def test_what_was_sent_and_what_failed_is_counted(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t", 1)
        producer = world.producer(delivery_timeout_ms=2_000, request_timeout_ms=1_000)
        for number in range(30):
            await producer.send("t", b"%d" % number)
        assert producer.metrics()["buffer_bytes"] > 0
        await producer.flush()
        told = producer.metrics()
        assert (told["records"], told["failed_records"], told["retries"]) == (30, 0, 0)
        assert 1 <= told["requests"] <= told["batches"] <= 30
        assert told["buffer_bytes"] == told["requests_in_flight"] == 0
        log = world.cluster.get("t")
        assert told["bytes"] == sum(len(each.data) for each in log.entries)
        world.cluster.move(world.cluster.get("t"), -1)
        failing = await producer.send("t", b"lost")
        with pytest.raises(DeliveryTimedOut):
            await failing
        told = producer.metrics()
        assert (told["records"], told["failed_records"]) == (30, 1)
        assert producer.counts.failed == {"DELIVERY_TIMED_OUT": 1}
        await producer.close()

    simulate(main)
