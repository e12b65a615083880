"""Consumer groups of real processes: members die, hang, leave and come while records flow."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.group_turmoil import Account, Plan, Turmoil
from tailrace.aio import Admin, Consumer, Producer
from tailrace.testing import Cluster, running_cluster

pytestmark = pytest.mark.integration

# `TAILRACE_TURMOIL_S=300` is the long run: five minutes and 100,000 records.
SECONDS = float(os.environ.get("TAILRACE_TURMOIL_S", "6"))
SESSION_MS = 3_000 if SECONDS < 60 else 6_000
RECORDS_PER_S = 334


@pytest.fixture(scope="module")
def groups_cluster() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.mark.timeout(240 + 3 * SECONDS)
async def test_every_record_is_processed_and_none_twice_but_after_a_crash(
    groups_cluster: Cluster, tmp_path: Path
) -> None:
    topic = await asyncio.to_thread(groups_cluster.create_topic, "turmoil", partitions=30)
    plan = Plan(
        bootstrap=groups_cluster.bootstrap_servers,
        topic=topic,
        folder=tmp_path,
        seconds=SECONDS,
        records_per_s=RECORDS_PER_S,
        session_ms=SESSION_MS,
    )
    turmoil = Turmoil(plan)
    await turmoil.play()
    account = Account.of(tmp_path, turmoil.pauses)
    print(f"\n{dict(turmoil.done)}: {account.summary()}")
    assert len(account.times) == turmoil.sent, "every record was processed"
    assert max(account.committed.values()) == 1, "none was committed by two members"
    assert account.again <= account.uncommitted


@pytest.mark.timeout(120)
async def test_a_broker_and_the_coordinator_go_away_and_nothing_hangs(
    groups_cluster: Cluster,
) -> None:
    cluster = groups_cluster
    topic = await asyncio.to_thread(cluster.create_topic, "away", partitions=6)
    found: list[bytes] = []
    async with (
        Producer(cluster.bootstrap_servers) as producer,
        Consumer(
            topic,
            bootstrap_servers=cluster.bootstrap_servers,
            group_id="away",
            auto_offset_reset="earliest",
            session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
        ) as consumer,
    ):

        async def more(first: int, last: int) -> None:
            for number in range(first, last):
                await producer.send(topic, b"%d" % number, partition=number % 6)
            async with asyncio.timeout(60):
                while len(found) < last:
                    found.extend(each.value for each in await consumer.poll(1))
                await consumer.commit()

        await more(0, 60)
        coordinator = next(each for each in cluster.processes if each.startswith("coordinator"))
        for victim in (cluster.brokers[0], coordinator):
            await asyncio.to_thread(cluster.kill, victim)
            polls = 0
            async with asyncio.timeout(30):
                while polls < 3:
                    found.extend(each.value for each in await consumer.poll(0.2))
                    polls += 1
            await asyncio.to_thread(cluster.start, victim)
            await more(len(found), len(found) + 60)
        assert sorted(map(int, found)) == list(range(180))
        stored = await consumer.committed()
        assert sum(each.offset for each in stored.values()) == 180


async def test_ctrl_c_on_the_command_line_leaves_the_group(groups_cluster: Cluster) -> None:
    """At once: the group is empty when the command has ended, not after a session."""
    cluster = groups_cluster
    topic = await asyncio.to_thread(cluster.create_topic, "watched")
    async with Producer(cluster.bootstrap_servers) as producer:
        await producer.send(topic, b"first")
    command = [sys.executable, "-m", "tailrace.cli.main", "consume", topic]
    process = await asyncio.create_subprocess_exec(
        *command,
        *("--group", "watchers", "--from-beginning", "--follow"),
        *("--bootstrap", cluster.bootstrap_servers),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(60), Admin(cluster.bootstrap_servers) as admin:
        assert await process.stdout.readline() == b"first\n"
        assert len((await admin.describe_group("watchers")).members) == 1
        process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
        assert process.returncode == 130, said
        assert b"Traceback" not in said
        group = await admin.describe_group("watchers")
        assert group.state == "Empty"
        assert [each.offset for each in group.positions if each.offset] == [1]
