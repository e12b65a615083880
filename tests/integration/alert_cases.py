"""The faults of the integration suite, and the alerts that notice them: a table.

`docs/testing.md` has the same table for people (a test compares them). Faults are named by the test
that shows how the cluster takes them.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, NamedTuple

from integration.watched_cluster import GROUP, SESSION_MS, TOPIC, WatchedCluster
from tailrace.client.sync import Producer
from tailrace.client.sync_consumer import Consumer
from tailrace.dev.state import Role
from tailrace.errors import InvalidTimestamp

HOUR_MS: Final = 3_600_000
COLD_MS: Final = 500
BACKLOG_BYTES: Final = 256 << 10
SEGMENTS: Final = 8
RESTARTS: Final = 5


class Case(NamedTuple):
    """A fault, and the alerts that must fire; of those that wake somebody no other may.

    `does` returns when the fault has had its effect, unless an alert is to tell that. `also`: those
    that wake somebody and may come along, by chance.
    """

    does: Callable[[WatchedCluster], object]
    fires: frozenset[str] = frozenset()
    also: frozenset[str] = frozenset()


def _case(
    does: Callable[[WatchedCluster], object], *fires: str, also: tuple[str, ...] = ()
) -> Case:
    prefixed = frozenset(f"Tailrace{each}" for each in fires)
    return Case(does, prefixed, frozenset(f"Tailrace{each}" for each in also))


def _only_replica_goes(cluster: WatchedCluster) -> None:
    cluster.create("single", "--replication-factor", "1")
    cluster.kill(cluster.leader("single"))


def _disk(cluster: WatchedCluster, fault: str, *names: str) -> None:
    cluster.disturb(*(fault.format(cluster.data(each)) for each in names))


def _clocks_jump(cluster: WatchedCluster, step_ms: int) -> None:
    for name in (cluster.leader(), cluster.controller()):
        cluster.set_clock(name, step_ms)


def _bytes_rot(cluster: WatchedCluster) -> None:
    """Of a replica that others can mend: a byte in the middle of what is durable."""
    folder = cluster.data(cluster.follower()) / f"{TOPIC}-0"
    path = min(folder.glob("*.log"))
    cluster.until("there is something to rot", lambda: path.stat().st_size > 4_096)
    with path.open("r+b") as file:
        file.seek(2_048)
        byte = file.read(1)
        file.seek(2_048)
        file.write(bytes((byte[0] ^ 0xFF,)))


def _crash_loop(cluster: WatchedCluster) -> None:
    name = cluster.follower()
    cluster.kill(name)
    for _ in range(RESTARTS):
        cluster.start(name)
        cluster.until(f"{name} shows metrics", lambda: cluster.shows_metrics(name))
        # So that it is scraped at least once.
        time.sleep(1.5)
        cluster.kill(name)
    cluster.start(name)


def _member_dies(cluster: WatchedCluster) -> None:
    cluster.join(GROUP)
    member = cluster.join(GROUP)
    member.kill()
    member.wait()
    # Its session ends, and the others divide what it had.
    time.sleep(2 * SESSION_MS / 1_000)


def _member_sleeps(cluster: WatchedCluster) -> None:
    cluster.join(GROUP)
    member = cluster.join(GROUP)
    member.send_signal(signal.SIGSTOP)
    time.sleep(2 * SESSION_MS / 1_000)
    member.send_signal(signal.SIGCONT)


def _backlog_is_read_cold(cluster: WatchedCluster) -> None:
    bootstrap = cluster.dev.state.bootstrap
    cluster.create("backlog", "--partitions", "1", "--config", f"segment.bytes={BACKLOG_BYTES}")
    with Producer(bootstrap) as producer:
        for _ in range(SEGMENTS):
            producer.send("backlog", random.Random(1).randbytes(BACKLOG_BYTES)).result(timeout=20)
    name = cluster.leader("backlog")
    cluster.disturb(f"cold {cluster.data(name)}/backlog-0 {COLD_MS}")
    time.sleep(0.3)
    began, read = time.monotonic(), 0
    with Consumer("backlog", bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        while read < SEGMENTS // 2:
            read += len(consumer.poll(timeout=1.0))
    assert time.monotonic() - began > timedelta(milliseconds=COLD_MS).total_seconds()


def _times_far_off(cluster: WatchedCluster) -> None:
    strict = f"message.timestamp.after.max.ms={HOUR_MS}"
    cluster.create("strict", "--partitions", "1", "--config", strict)
    refused = 0
    with Producer(cluster.dev.state.bootstrap) as producer:
        for _ in range(20):
            late_ms = int(time.time() * 1_000) + 2 * HOUR_MS
            try:
                producer.send("strict", b"x", timestamp_ms=late_ms).result(timeout=10)
            except InvalidTimestamp:
                refused += 1
    assert refused == 20


_ONE_AWAY: Final = ("ServiceDown", "UnderReplicated")
_ETCD_AWAY: Final = ("EtcdSilent", "EtcdOutOfReach", "NotReady")

CASES: Final[dict[str, Case]] = {
    # test_cluster.py
    "kill -9 of a leader": _case(lambda on: on.kill(on.leader()), *_ONE_AWAY),
    "kill -9 of a follower": _case(lambda on: on.kill(on.follower()), *_ONE_AWAY),
    "kill -9 of the active controller": _case(lambda on: on.kill(on.controller()), "ServiceDown"),
    "kill -9 of leader and controller at once": _case(
        lambda on: on.kill(on.leader(), on.controller()), *_ONE_AWAY
    ),
    "SIGTERM of a leader": _case(lambda on: on.terminate(on.leader()), *_ONE_AWAY),
    "a leader is paused beyond its lease": _case(lambda on: on.pause(on.leader()), *_ONE_AWAY),
    "etcd is killed": _case(lambda on: on.kill("etcd"), *_ETCD_AWAY),
    "etcd is paused": _case(lambda on: on.pause("etcd"), *_ETCD_AWAY),
    # More than the suite's own: all of a kind are away.
    "two brokers are killed": _case(
        lambda on: on.kill(on.leader(), on.follower()), *_ONE_AWAY, "UnderMinIsr"
    ),
    "the only replica of a topic is away": _case(
        _only_replica_goes, "PartitionsOffline", "ServiceDown"
    ),
    "both controllers are killed": _case(
        lambda on: on.kill(*on.names(Role.CONTROLLER)), "NoController", "ServiceDown"
    ),
    # test_groups.py, test_group_turmoil.py
    "kill -9 of a coordinator": _case(lambda on: on.kill("coordinator-1"), "ServiceDown"),
    "a coordinator is paused beyond its lease": _case(
        lambda on: on.pause("coordinator-1"), "ServiceDown"
    ),
    "a broker and a coordinator are killed": _case(
        lambda on: on.kill(on.leader(), "coordinator-1"), *_ONE_AWAY
    ),
    "both coordinators are killed": _case(
        lambda on: on.kill(*on.names(Role.COORDINATOR)), "ShardsUnowned", "ServiceDown"
    ),
    # test_consumer_faults.py
    "kill -9 of a member of a group": _case(_member_dies),
    "a member sleeps beyond its session": _case(_member_sleeps),
    # test_faults_disk.py
    "F26 the disk of one broker is full": _case(
        lambda on: _disk(on, "full {}", on.leader()), "DiskUnfit"
    ),
    "F26 the disks of all brokers are full": _case(
        # What leaders took before they were full, followers that are full cannot: then they leave
        # the ISR.
        lambda on: _disk(on, "full {}", *on.names(Role.BROKER)),
        "DiskUnfit",
        also=("UnderMinIsr",),
    ),
    "F27 a disk is slow": _case(lambda on: _disk(on, "slow {} 2000", on.leader()), "DiskUnfit"),
    "F27 a disk fails": _case(lambda on: _disk(on, "fail {}", on.leader()), *_ONE_AWAY),
    "F39 a backlog is read cold": _case(_backlog_is_read_cold),
    # test_faults_clock.py
    "F29 clocks jump ahead by an hour": _case(lambda on: _clocks_jump(on, HOUR_MS), "ClockOff"),
    "F29 clocks jump back by an hour": _case(lambda on: _clocks_jump(on, -HOUR_MS), "ClockOff"),
    "F29 records with times far off are refused": _case(_times_far_off),
    # test_damage.py
    "F15 bytes of a replica rot": _case(_bytes_rot, "DamageFound"),
    # test_faults_recovery.py
    "F40 a broker is killed again and again": _case(_crash_loop, "ServiceUnsteady"),
}
