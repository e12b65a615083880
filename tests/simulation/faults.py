"""Random faults, by seed: what may happen to a cluster, and for how long.

Within the declared tolerance: at most one machine at a time may be without what it had, that is,
between losing power (or files, or all but an older copy) and having everything again. The metadata
store may be another one for a while, empty, founded anew or older, and is put right again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, NamedTuple

from simulation.checkers import is_sound
from simulation.cluster import BrokerNode, CoordinatorNode, Node
from simulation.disk_copies import DATA, Harm, copy_of, harm, paths, put_back
from simulation.etcd import SimEtcd
from simulation.fabric import Weather
from simulation.scenario import TOPIC, Run
from tailrace.broker.hosted import Hosted
from tailrace.broker.metadata_copier import read_folders
from tailrace.meta.keys import CLUSTER
from tailrace.meta.lineage import Standing, judge
from tailrace.meta.memory import MemoryEtcd
from tailrace.meta.store import Put
from tailrace.replication.partition import Role

CLIENTS = ["p0", "p1", "r0", "r1"]
KNOWN_WAIT_S = 6

Fault = Callable[["Nemesis"], Coroutine[Any, Any, None]]


class Rot(NamedTuple):
    """A byte that is not what was written."""

    path: str
    position: int
    byte: int

    def is_in(self, node: BrokerNode) -> bool:
        """Whether it is still there, as far as can be told."""
        files = node.files
        if not files.exists(self.path) or files.size(self.path) <= self.position:
            return False
        return files.read(self.path)[self.position] == self.byte


class Nemesis:
    """Plays faults one after the other and side by side."""

    # How often the next fault waits for the end of this one.
    patience = 0.7

    def __init__(self, run: Run, *, duration_s: float, rng: Random) -> None:
        self.run = run
        self.cluster = run.cluster
        self.rng = rng
        self._until_s = run.loop.time() + duration_s
        self._powerless: BrokerNode | None = None
        # Somebody is about to harm its disk.
        self._in_hands: BrokerNode | None = None
        # How many disks were harmed since the store was last another one.
        self.harmed_meanwhile = 0
        # What the one that is not back yet has of bad bytes, which nobody may have noticed.
        self.rotten: list[Rot] = []

    async def play(self) -> None:
        """Until the time is over; faults that are under way then end with the healing."""
        under_way: list[asyncio.Task[None]] = []
        while self.run.loop.time() < self._until_s:
            faults = self.faults()
            fault = self.rng.choices(list(faults), list(faults.values()))[0]
            self.note(fault.__name__)
            task = self.run.loop.create_task(fault(self))
            under_way.append(task)
            if self.rng.random() < self.patience:
                await task
            await asyncio.sleep(self.rng.expovariate(1 / 0.7))
        for task in under_way:
            task.cancel()

    def faults(self) -> dict[Any, int]:
        """What may happen, and how often compared with the rest."""
        return FAULTS if self.run.administrator is None else FAULTS | ADMINISTRATION

    def note(self, text: str) -> None:
        self.run.loop.note(f"FAULT {text}")

    async def last(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(least_s, most_s))

    def some_broker(self) -> BrokerNode:
        """A leader rather than another, since that is where it hurts."""
        leaders = [
            node
            for node in self.cluster.brokers
            if node.is_up
            and node.broker is not None
            and node.broker.replicas is not None
            and any(h.machine.role is Role.LEADER for h in node.broker.replicas.hosted())
        ]
        if leaders and self.rng.random() < 0.6:
            return self.rng.choice(leaders)
        return self.rng.choice(self.cluster.brokers)

    def some_node(self) -> Node:
        if self.rng.random() < 0.6:
            return self.some_broker()
        return self.rng.choice(self.cluster.controllers)

    def may_lose_power(self, node: BrokerNode) -> bool:
        """Only when no other machine is on its way back from having lost its tail."""
        other = self._powerless
        if other is None or other is node or self._is_back(other):
            if other is not node:
                self.rotten = []
            self._powerless = node
            return True
        return False

    async def take(self, node: BrokerNode) -> bool:
        """End it, to harm its disk then: killed, or stopped in order, as it says then itself."""
        if self._in_hands is not None or not self.may_lose_power(node):
            return False
        if not self.cluster.etcd.is_right and self.harmed_meanwhile:
            # Two who forgot which store is right would be most of three.
            return False
        self.harmed_meanwhile += 1
        self._in_hands = node
        if self.rng.random() < 0.5 and not node.is_paused:
            try:
                async with asyncio.timeout(15):
                    await node.stop()
            except TimeoutError:
                pass
        node.kill()
        return True

    async def give_back(self, node: BrokerNode) -> None:
        """Start it with what is on its disk now."""
        node.is_harmed = True
        self._in_hands = None
        await self.last(0.0, 3.0)
        node.start()

    def _is_back(self, node: BrokerNode) -> bool:
        """In the ISR of everything again, as the leaders know it."""
        if node is self._in_hands:
            return False
        if not node.is_up or node.broker is None or node.broker.replicas is None:
            return False
        hosted = list(node.broker.replicas.hosted())
        if node.broker.replicas.offline or node.files.sync_fault_is_armed:
            return False
        if any(each.is_in(node) for each in self.rotten):
            return False
        for each in hosted:
            leaders = [
                other.broker.replicas.get(each.partition)
                for other in self.cluster.brokers
                if other.is_up and other.broker is not None and other.broker.replicas is not None
            ]
            current = [h for h in leaders if h is not None and h.machine.role is Role.LEADER]
            newest = max(current, key=lambda h: h.machine.leader_epoch, default=None)
            if newest is None or node.number not in newest.machine.isr:
                return False
            if not _has_all_of(each, newest):
                return False
        assignment = self.cluster.assignment(TOPIC)
        wanted = [number for number in assignment if node.number in assignment[number]]
        return len(hosted) >= len(wanted)


def _has_all_of(hosted: Hosted, leader: Hosted) -> bool:
    """Whether a replica has everything that its leader knows to be committed, and can read it."""
    if not hosted.log.is_open:
        return False
    begins = hosted.log.log_start <= leader.log.log_start
    ends = hosted.log.log_end >= leader.machine.high_watermark
    return begins and ends and is_sound(hosted)


async def kill_broker(nemesis: Nemesis) -> None:
    node = nemesis.some_broker()
    node.kill()
    await nemesis.last(0.05, 7.0)
    node.start()


async def bounce_broker(nemesis: Nemesis) -> None:
    """Killed and back before anybody may have noticed."""
    node = nemesis.some_broker()
    node.kill()
    node.start()
    await nemesis.last(0.0, 0.2)


async def power_loss(nemesis: Nemesis) -> None:
    node = nemesis.some_broker()
    if not nemesis.may_lose_power(node):
        return
    node.kill(power_loss=True)
    await nemesis.last(0.5, 7.0)
    node.start()


async def rot(nemesis: Nemesis) -> None:
    """A broker dies, and a bit of one of its logs is another when it comes back."""
    node = nemesis.some_broker()
    if not nemesis.may_lose_power(node):
        return
    node.kill()
    files = node.files
    paths = [
        f"/data/{folder}/{name}"
        for folder in (files.list("/data") if files.exists("/data") else ())
        if files.is_folder(f"/data/{folder}")
        for name in files.list(f"/data/{folder}")
        if name.endswith(".log")
    ]
    sized = [path for path in paths if files.size(path)]
    if sized:
        path = nemesis.rng.choice(sized)
        position = nemesis.rng.randrange(files.size(path))
        files.flip_bits(path, position)
        nemesis.rotten.append(Rot(path, position, files.read(path)[position]))
    await nemesis.last(0.0, 2.0)
    node.start()


async def stop_broker(nemesis: Nemesis) -> None:
    await stop(nemesis, nemesis.some_broker())


async def stop(nemesis: Nemesis, node: BrokerNode | CoordinatorNode) -> None:
    """In order, as far as it can; it comes back after a while."""
    if node.is_paused:
        return
    try:
        async with asyncio.timeout(15):
            await node.stop()
    except TimeoutError:
        node.kill()
    await nemesis.last(0.1, 3.0)
    node.start()


async def pause_node(nemesis: Nemesis) -> None:
    node = nemesis.some_node()
    node.pause()
    await nemesis.last(0.1, 9.0)
    node.resume()


async def kill_controller(nemesis: Nemesis) -> None:
    node = nemesis.rng.choice(nemesis.cluster.controllers)
    node.kill()
    await nemesis.last(0.1, 5.0)
    node.start()


async def kill_leader_and_controller(nemesis: Nemesis) -> None:
    node, controller = nemesis.some_broker(), nemesis.rng.choice(nemesis.cluster.controllers)
    node.kill()
    controller.kill()
    await nemesis.last(0.5, 5.0)
    node.start()
    controller.start()


async def cut_off(nemesis: Nemesis) -> None:
    """One node and all others hear nothing of each other, or only in one direction."""
    node = nemesis.some_node()
    network = nemesis.cluster.network
    others = [each.name for each in nemesis.cluster.nodes if each is not node]
    others += CLIENTS
    way = nemesis.rng.randrange(3)
    if way == 0:
        network.isolate(node.name, others)
    for other in others:
        if way == 1:
            network.block(node.name, other)
        elif way == 2:
            network.block(other, node.name)
    await nemesis.last(0.2, 8.0)
    for other in others:
        network.unblock(node.name, other)
        network.unblock(other, node.name)


async def cut_pair(nemesis: Nemesis) -> None:
    one, other = nemesis.rng.sample([each.name for each in nemesis.cluster.nodes], 2)
    nemesis.cluster.network.block(one, other)
    await nemesis.last(0.2, 6.0)
    nemesis.cluster.network.unblock(one, other)


async def break_connections(nemesis: Nemesis) -> None:
    names = [each.name for each in nemesis.cluster.nodes] + CLIENTS
    one, other = nemesis.rng.sample(names, 2)
    nemesis.cluster.network.break_connections(one, other)


async def bad_weather(nemesis: Nemesis) -> None:
    network = nemesis.cluster.network
    weather = Weather(
        spike_probability=nemesis.rng.choice([0.0, 0.05]),
        loss_probability=nemesis.rng.choice([0.0, 0.01]),
        duplicate_probability=nemesis.rng.choice([0.0, 0.05]),
    )
    pairs = [
        (one.name, other.name)
        for one in nemesis.cluster.nodes
        for other in nemesis.cluster.nodes
        if one is not other and nemesis.rng.random() < 0.4
    ]
    for pair in pairs:
        network.set_weather(*pair, weather)
    await nemesis.last(0.5, 5.0)
    for pair in pairs:
        network.set_weather(*pair, None)


async def etcd_outage(nemesis: Nemesis) -> None:
    nemesis.cluster.etcd.stop()
    await nemesis.last(0.2, 10.0)
    nemesis.cluster.etcd.start()


async def etcd_cut(nemesis: Nemesis) -> None:
    node, etcd = nemesis.some_node(), nemesis.cluster.etcd
    way = nemesis.rng.randrange(4)
    if way == 0:
        etcd.cut(node.name)
    elif way == 1:
        etcd.cut(node.name, replies_only=True)
    elif way == 2:
        etcd.strand(node.name)
    else:
        etcd.depose(node.name)
    await nemesis.last(0.2, 9.0)
    etcd.heal(node.name)


async def etcd_trouble(nemesis: Nemesis) -> None:
    etcd = nemesis.cluster.etcd
    what = nemesis.rng.randrange(4)
    if what == 0:
        etcd.leader_change()
    elif what == 1:
        etcd.compact()
    elif what == 2:
        etcd.slow(nemesis.rng.uniform(20, 800))
        await nemesis.last(0.5, 4.0)
        etcd.slow(0)
    else:
        etcd.revoke_all_leases()


async def store_lost(nemesis: Nemesis) -> None:
    """The store comes back empty, and a controller that starts now founds another cluster in it."""
    await _other_store(nemesis, nemesis.cluster.etcd.empty())


async def store_older(nemesis: Nemesis) -> None:
    """The store comes back as it was a while ago; some of its services start anew with it."""
    etcd = nemesis.cluster.etcd
    if not etcd.is_right:
        return
    older = etcd.right.copy()
    if nemesis.rng.random() < 0.5:
        # Somebody else reigned since.
        node = nemesis.rng.choice(nemesis.cluster.controllers)
        node.kill()
        await nemesis.last(0.0, 1.0)
        node.start()
    else:
        etcd.right.txn([], [Put("/elsewhere", b"1")])
    await nemesis.last(0.2, 6.0)
    for _ in range(KNOWN_WAIT_S):
        if answers_right(etcd) and all(
            knows_better(node, older) for node in nemesis.cluster.brokers
        ):
            await _other_store(nemesis, older)
            return
        await asyncio.sleep(1.0)


def knows_better(node: BrokerNode, older: MemoryEtcd) -> bool:
    """Whether a broker's disk says that a store is older than what the broker has seen.

    One that was away since cannot know; were there many of those, they would go on with the older
    store, and two clusters would have come of one.
    """
    witness, _ = read_folders(node.files, [DATA], lambda _: None)
    seen = older.snapshot(CLUSTER)
    return witness is not None and judge(witness, seen).standing is Standing.OLDER


def is_running(node: BrokerNode) -> bool:
    """Whether it runs in this moment: it may end while one waits."""
    return node.is_up


def is_registered(node: BrokerNode) -> bool:
    """Asked anew each time."""
    return node.is_registered


def answers_right(etcd: SimEtcd) -> bool:
    """Whether the store is the real one in this moment: others change it while one waits."""
    return etcd.is_right


async def _other_store(nemesis: Nemesis, other: MemoryEtcd) -> None:
    etcd = nemesis.cluster.etcd
    if not answers_right(etcd):
        return
    etcd.stop()
    await nemesis.last(0.0, 1.5)
    if not answers_right(etcd):
        return
    nemesis.harmed_meanwhile = 0
    etcd.replace(other)
    for node in [*nemesis.cluster.controllers, *nemesis.cluster.coordinators]:
        if nemesis.rng.random() < 0.4:
            node.kill()
            await nemesis.last(0.0, 0.5)
            node.start()
    await nemesis.last(0.5, 9.0)
    if answers_right(etcd):
        return
    etcd.stop()
    await nemesis.last(0.0, 1.0)
    etcd.make_right()


async def damaged_files(nemesis: Nemesis) -> None:
    """A broker ends, and one or two of its files are gone, cut, flipped or older."""
    rng, node = nemesis.rng, nemesis.some_broker()
    older = copy_of(node.files)
    await nemesis.last(0.1, 3.0)
    if not await nemesis.take(node):
        return
    for _ in range(rng.randint(1, 2)):
        there = paths(node.files)
        if there:
            path, what = rng.choice(there), rng.choice(list(Harm))
            done = harm(node.files, path, what, older=older, rng=rng)
            nemesis.note(f"{node.name} {path} {done or 'stays as it is'}")
    await nemesis.give_back(node)


async def older_folder(nemesis: Nemesis) -> None:
    """A broker ends, and comes back with its data as they were a while ago."""
    node = nemesis.some_broker()
    older = copy_of(node.files)
    await nemesis.last(0.1, 4.0)
    if not older.files or not await nemesis.take(node):
        return
    put_back(node.files, older)
    await nemesis.give_back(node)


async def clone(nemesis: Nemesis) -> None:
    """A copy of a live broker's folder is started beside it: it is refused, the first one stays."""
    node = nemesis.some_broker()
    if node.clone is not None or not node.is_registered:
        return
    node.clone = twin = BrokerNode(nemesis.cluster, node.number, name=f"{node.name}x")
    put_back(twin.files, copy_of(node.files))
    twin.is_harmed = True
    twin.start()
    until_s = nemesis.run.loop.time() + nemesis.rng.uniform(0.5, 4.0)
    # While the first one is there. Without it the copy may take its place, as a restore does.
    while (  # noqa: ASYNC110 - it is virtual time.
        is_running(twin) and is_registered(node) and nemesis.run.loop.time() < until_s
    ):
        await asyncio.sleep(0.02)
    twin.kill()
    node.clone = None


async def full_disk(nemesis: Nemesis) -> None:
    node = nemesis.some_broker()
    node.files.disk_bytes_max = nemesis.rng.randrange(1, 60_000)
    await nemesis.last(0.2, 3.0)
    node.files.disk_bytes_max = None


async def failing_sync(nemesis: Nemesis) -> None:
    """A sync fails: what was not durable is lost to that disk, though it can be read for now."""
    node = nemesis.some_broker()
    if node.is_up and nemesis.may_lose_power(node):
        node.files.fail_next_sync(".log")


async def administration(nemesis: Nemesis) -> None:
    """Somebody wants something of the controller."""
    if nemesis.run.administrator is not None:
        await nemesis.run.administrator.act()


ADMINISTRATION: dict[Fault, int] = {administration: 30}
FAULTS: dict[Fault, int] = {
    kill_broker: 6,
    bounce_broker: 3,
    power_loss: 4,
    stop_broker: 2,
    pause_node: 4,
    kill_controller: 3,
    kill_leader_and_controller: 2,
    cut_off: 4,
    cut_pair: 3,
    break_connections: 2,
    bad_weather: 2,
    etcd_outage: 2,
    etcd_cut: 3,
    etcd_trouble: 4,
    full_disk: 1,
    failing_sync: 2,
    rot: 2,
    store_lost: 2,
    store_older: 3,
    damaged_files: 4,
    older_folder: 3,
    clone: 1,
}
