"""Rot is found before it is needed, or by whoever needs it first, and mended from others."""

from __future__ import annotations

import asyncio

from tailrace.broker.hosted import StopOrder
from tailrace.broker.scrubbing import Scrubber
from tailrace.replication.partition import Role
from tailrace.transport.wire import code_name, to_partition
from tailrace.v1 import broker_pb2
from unit.broker.trio import T0, T1, TOPIC_ID, Trio, assign, batch, simulate

SMALL = {"segment.bytes": "1024"}
NEVER_MS = 600_000


async def written(trio: Trio, *, scrub_interval_ms: int = NEVER_MS) -> None:
    """Broker 0 leads a log of several segments, all of it durable on all three."""
    await trio.start(
        flush_interval_ms=300,
        checkpoint_interval_ms=300,
        scrub_interval_ms=scrub_interval_ms,
        cleaner_backoff_ms=NEVER_MS,
    )
    await trio.lead(0, 0, config=SMALL)
    for number in range(30):
        await trio.produce(batch(3, value=b"%d" % number))
    await trio.until(lambda: all(trio.hosted(each).log.recovery_point == 90 for each in (0, 1, 2)))
    assert len(trio.hosted(0).log.segments) > 3


def rot(trio: Trio, broker: int, *, segment: int = 1) -> None:
    """A bit of a closed segment is another from now on."""
    found = trio.hosted(broker).log.segments[segment]
    trio.files[broker].flip_bits(found.path, found.size // 2)


def scrubber(trio: Trio, broker: int) -> Scrubber:
    found = trio.brokers[broker].scrubber
    assert found is not None
    return found


async def fill_anew(trio: Trio, broker: int) -> None:
    """A reassignment takes its replica away; the order that follows brings it back, empty."""
    await assign(trio, [each for each in (0, 1, 2) if each != broker])
    assert await trio.replicas(broker).stop([StopOrder(T0, TOPIC_ID, delete=True)]) == {}


async def mend(trio: Trio, *, leader: int, damaged: int) -> None:
    """What the controller does when it hears of the damage."""
    assert [each.code for each in trio.replicas(damaged).offline.values()] == ["DAMAGED_LOG"]
    others = [each for each in (0, 1, 2) if each != damaged]
    await trio.lead(leader, 1, isr=others, config=SMALL)
    await trio.until(lambda: len({*trio.ends()}) == 1)
    await trio.until(lambda: len(trio.hosted(leader).machine.isr) == 3)
    logs = [trio.hosted(each).log for each in (0, 1, 2)]
    assert len({log.read(0, bytes_max=1 << 20) for log in logs}) == 1


@simulate
async def test_f15_a_round_reads_all_and_finds_what_rotted(trio: Trio) -> None:
    await written(trio)
    before = scrubber(trio, 2).verified_bytes
    await scrubber(trio, 2).scrub_all()
    assert scrubber(trio, 2).verified_bytes - before == trio.hosted(2).log.size_bytes
    rot(trio, 2)
    await scrubber(trio, 2).scrub_all()
    assert trio.heard("damage was found before anybody read it")
    assert [trio.replicas(each).counts.damage_found for each in (0, 1, 2)] == [0, 0, 1]
    await mend(trio, leader=0, damaged=2)


@simulate
async def test_f15_rounds_come_again_by_themselves(trio: Trio) -> None:
    await written(trio, scrub_interval_ms=1_000)
    rot(trio, 1)
    await trio.until(lambda: T0 in trio.replicas(1).offline, within_s=3)
    assert scrubber(trio, 0).rounds >= 1


@simulate
async def test_scrubbing_is_not_faster_than_it_may_be(trio: Trio) -> None:
    await written(trio)
    slow = scrubber(trio, 0)
    slow._pace = type(slow._pace)(1_024)
    before = trio.loop.time()
    await slow.scrub_all()
    assert trio.loop.time() - before >= trio.hosted(0).log.size_bytes / 1_024 - 1


@simulate
async def test_f15_a_leader_pushes_nothing_that_rotted_and_hands_over(trio: Trio) -> None:
    await written(trio)
    rot(trio, 0)
    await fill_anew(trio, 2)
    await trio.lead(0, 0, isr=(0, 1), config=SMALL)
    await trio.until(lambda: T0 in trio.replicas(0).offline)
    await mend(trio, leader=1, damaged=0)


@simulate
async def test_f15_what_a_follower_does_not_take_is_looked_at(trio: Trio) -> None:
    """In the active segment, which is in memory and not read before it is sent."""
    await written(trio)
    active = trio.hosted(0).log.segments[-1]
    trio.files[0].flip_bits(active.path, active.size // 2)
    await fill_anew(trio, 2)
    await trio.lead(0, 0, isr=(0, 1), config=SMALL)
    await trio.until(lambda: T0 in trio.replicas(0).offline)
    assert trio.heard("a push could not be appended")
    await mend(trio, leader=1, damaged=0)


async def fetched(trio: Trio, broker: int) -> list[str]:
    """What a client that reads from the beginning is told, until there is an error."""
    stream = trio.fetching(broker)
    wanted = broker_pb2.FetchPartition(
        partition=to_partition(T0), offset=0, bytes_max=400, leader_epoch=-1, last_epoch=-1
    )
    await stream.send(broker_pb2.FetchRequest(credit_bytes=1 << 20, max_wait_ms=100, add=[wanted]))
    codes: list[str] = []
    async with asyncio.timeout(5):
        while not codes:
            response = await stream.recv()
            assert response is not None
            codes = [code_name(each.error) for each in response.partitions if each.error]
    stream.cancel()
    return codes


@simulate
async def test_f15_a_client_gets_nothing_that_rotted(trio: Trio) -> None:
    await written(trio)
    rot(trio, 0)
    # It is to ask who leads next.
    assert await fetched(trio, 0) == ["NOT_LEADER"]
    await mend(trio, leader=1, damaged=0)


@simulate
async def test_f15_where_nobody_else_has_it_the_rest_is_served_on(trio: Trio) -> None:
    await written(trio)
    for broker in (1, 2):
        await trio.stop_broker(broker)
        del trio.brokers[broker]
    await trio.lead(0, 1, isr=(0,), config={**SMALL, "min.insync.replicas": "1"})
    rot(trio, 0)
    await scrubber(trio, 0).scrub_all()
    assert await fetched(trio, 0) == ["DAMAGED_LOG"]
    assert trio.heard("nobody else holds what is committed")
    assert trio.replicas(0).counts.damage_found >= 1
    assert trio.hosted(0).machine.role is Role.LEADER
    assert not (await trio.produce()).error


@simulate
async def test_logs_that_cannot_be_read_now_do_not_end_the_round(trio: Trio) -> None:
    await written(trio)
    await trio.lead(0, 0, partition=T1, config=SMALL)
    trio.hosted(0).log.abandon("for a test")
    await scrubber(trio, 0).scrub_all()
    assert trio.brokers[0].failure is None
