"""What happens around a consumer in real life: it is killed, it sleeps, its broker goes away.

Nothing may hang, nothing may be lost, and a member that was away too long commits nothing. How long
others waited is printed (`-s` shows it).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.cluster_harness import eventually
from integration.group_turmoil import Account, Plan, Turmoil
from tailrace.aio import Consumer, Producer
from tailrace.testing import Cluster, running_cluster

PARTITIONS = 6
SESSION_MS = 6_000
# Longer than a session, and than what keeps connections alive.
SLEEP_S = float(os.environ.get("TAILRACE_SLEEP_S", "65"))
AWAY_S = float(os.environ.get("TAILRACE_AWAY_S", "60"))
RECORDS_PER_S = 100
# No single call of a client takes longer, whatever is broken.
CALL_S_MAX = 30.0

pytestmark = [pytest.mark.integration, pytest.mark.by_hand, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def faults_cluster() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        yield cluster


async def _members(cluster: Cluster, topic: str, folder: Path, count: int) -> Turmoil:
    """A topic that records flow into, and a group of so many processes that reads it."""
    await asyncio.to_thread(cluster.create_topic, topic, partitions=PARTITIONS)
    plan = Plan(
        bootstrap=cluster.bootstrap_servers,
        topic=topic,
        folder=folder,
        seconds=10**6,
        records_per_s=RECORDS_PER_S,
        partitions=PARTITIONS,
        session_ms=SESSION_MS,
    )
    turmoil = Turmoil(plan)
    for _ in range(count):
        turmoil.add()
    return turmoil


def _last_ns(path: Path) -> dict[int, int]:
    """When a member processed the last record of each partition."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return {int(each[1]): int(each[4]) for each in lines if each[0] == "P" and len(each) == 5}


async def _share(turmoil: Turmoil, *names: str) -> dict[str, set[int]]:
    """Wait until all partitions are read, by these members only; who reads what."""
    folder = turmoil.plan.folder
    began_ns = time.time_ns()
    found: dict[str, set[int]] = {}

    def is_divided() -> bool:
        for name in names:
            last = _last_ns(folder / name) if (folder / name).exists() else {}
            found[name] = {each for each, at_ns in last.items() if at_ns > began_ns}
        return set().union(*found.values()) == set(range(PARTITIONS)) and all(found.values())

    await eventually(f"{names} read all partitions", is_divided, within_s=90)
    return found


async def test_a_member_that_is_killed_is_replaced_and_one_that_slept_comes_back(
    faults_cluster: Cluster, tmp_path: Path
) -> None:
    """SIGKILL, and a laptop that is closed for longer than a session and opened again."""
    turmoil = await _members(faults_cluster, "sleepers", tmp_path, 3)
    try:
        await _kill_and_sleep(turmoil)
    finally:
        for process in turmoil.running.values():
            process.kill()
            process.wait()


async def _kill_and_sleep(turmoil: Turmoil) -> None:
    producing = asyncio.ensure_future(turmoil.produce())
    try:
        await _share(turmoil, "member-1", "member-2", "member-3")
        killed_ms = time.time_ns() // 1_000_000
        killed = turmoil.running.pop("member-3")
        killed.kill()
        killed.wait()
        await _share(turmoil, "member-1", "member-2")
        took_ms = time.time_ns() // 1_000_000 - killed_ms
        sleeper = turmoil.running["member-1"]
        sleeper.send_signal(signal.SIGSTOP)
        asleep_ns = time.time_ns()
        await asyncio.sleep(SLEEP_S)
        await _share(turmoil, "member-2")
        sleeper.send_signal(signal.SIGCONT)
        turmoil.pauses["member-1"] = [(asleep_ns, time.time_ns())]
        awake_ms = time.time_ns() // 1_000_000
        await _share(turmoil, "member-1", "member-2")
        back_ms = time.time_ns() // 1_000_000 - awake_ms
    finally:
        producing.cancel()
        await asyncio.wait([producing])
    await turmoil.until_read(turmoil.sent)
    await turmoil.end()
    account = Account.of(turmoil.plan.folder, turmoil.pauses)
    print(f"\nkilled: its partitions were read by others after {took_ms} ms (session {SESSION_MS})")
    print(f"slept for {SLEEP_S:.0f} s: reads again {back_ms} ms after; {account.summary()}")
    assert len(account.times) == turmoil.sent
    assert max(account.committed.values()) == 1, "the sleeper committed nothing late"
    assert account.again <= account.uncommitted


@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_a_broker_goes_away_for_a_minute(faults_cluster: Cluster, fault: str) -> None:
    cluster = faults_cluster
    topic = await asyncio.to_thread(cluster.create_topic, f"minute-{fault}", partitions=PARTITIONS)
    victim, sent, longest_s = cluster.brokers[1], 0, 0.0
    seen: set[tuple[int, int]] = set()
    async with (
        Producer(cluster.bootstrap_servers) as producer,
        Consumer(
            topic,
            bootstrap_servers=cluster.bootstrap_servers,
            group_id=f"minute-{fault}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
    ):

        async def go_on(seconds: float) -> float:
            """Write, read and commit; the longest that any call took."""
            nonlocal sent
            longest, end = 0.0, time.monotonic() + seconds
            while time.monotonic() < end:
                began = time.monotonic()
                async with asyncio.timeout(CALL_S_MAX):
                    for number in range(PARTITIONS):
                        await producer.send(topic, b"%d" % sent, partition=number)
                        sent += 1
                    for record in await consumer.poll(0.2):
                        seen.add((record.partition, record.offset))
                    await consumer.commit()
                longest = max(longest, time.monotonic() - began)
                await asyncio.sleep(0.05)
            return longest

        await go_on(2)
        await asyncio.to_thread(cluster.kill if fault == "kill" else cluster.pause, victim)
        longest_s = await go_on(AWAY_S)
        await asyncio.to_thread(cluster.start if fault == "kill" else cluster.resume, victim)
        back_s = await go_on(5)
        async with asyncio.timeout(60):
            while len(seen) < sent:
                seen.update((each.partition, each.offset) for each in await consumer.poll(1))
    print(
        f"\nbroker away for {AWAY_S:.0f} s ({fault}): {sent} records, all read; the longest round "
        f"of write, read and commit {longest_s * 1000:.0f} ms, {back_s * 1000:.0f} ms after"
    )
    assert len(seen) == sent
