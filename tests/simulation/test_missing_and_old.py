"""What is missing or old is a question, never an order: F41 to F44 as scripts under load.

As in `test_cluster_faults`, every scenario ends with the checks of the random runs. Each rule that
these scenarios rest on is broken on purpose in `cluster_mutants`, and one of them must notice it.
"""

from __future__ import annotations

import asyncio

import pytest

from simulation.cluster import BrokerNode
from simulation.disk_copies import DATA, Harm, copy_of, harm, put_back
from simulation.faults import knows_better
from simulation.scenario import TOPIC, Run
from simulation.test_cluster_faults import (
    LAG_S,
    PARTITION,
    SEEDS,
    Script,
    controller,
    followers,
    leader,
    leader_epochs,
    play,
    settled,
)
from tailrace.errors import FolderLocked
from tailrace.log.data_folder import METADATA_COPY_FILES
from tailrace.meta.keys import STAMP, tombstone_key
from tailrace.meta.lineage import Standing
from tailrace.meta.memory import MemoryEtcd
from tailrace.model import TopicPartition
from tailrace.replication.partition import Role

pytestmark = pytest.mark.simulation

SMALL_SEGMENTS = {"segment.bytes": "1024"}
ONE_IS_ENOUGH = {"min.insync.replicas": "1"}
LATE = "late"
LATE_RECORDS = 40


def logs_of(node: BrokerNode, topic: str) -> dict[str, int]:
    """The bytes of each segment that a broker has of a topic, set aside or not."""
    return {
        path: len(data)
        for path, data in copy_of(node.files).files.items()
        if path.startswith(f"{DATA}/{topic}-") and path.endswith(".log")
    }


def standings(run: Run) -> set[Standing]:
    found = [node.broker for node in run.cluster.brokers if node.broker is not None]
    return {each.verified.standing for each in found}


async def replace_store(run: Run, other: MemoryEtcd) -> None:
    run.cluster.etcd.stop()
    await asyncio.sleep(run.rng.uniform(0.0, 1.0))
    run.cluster.etcd.replace(other)


async def put_store_right(run: Run) -> None:
    run.cluster.etcd.stop()
    await asyncio.sleep(run.rng.uniform(0.0, 1.0))
    run.cluster.etcd.make_right()


def restart_controllers(run: Run) -> None:
    for node in run.cluster.controllers:
        node.kill()
        node.start()


async def goes_on(run: Run, *, for_s: float) -> None:
    """Records are acknowledged all the time, and nobody deletes or forgets anything."""
    before = {node.name: logs_of(node, TOPIC) for node in run.cluster.brokers}
    acknowledged = run.witness.acknowledged_count
    await asyncio.sleep(for_s)
    assert run.witness.acknowledged_count > acknowledged + 10 * for_s
    for node in run.cluster.brokers:
        after = logs_of(node, TOPIC)
        lost = [path for path, size in before[node.name].items() if after.get(path, -1) < size]
        assert not lost, f"{node.name} lost {lost}"


async def f41_store_comes_back_empty(run: Run) -> None:
    """L1: nobody obeys an empty store, all is served on, and everybody says so."""
    await settled(run)
    epochs = leader_epochs(run)
    await replace_store(run, run.cluster.etcd.empty())
    await asyncio.sleep(4)
    await goes_on(run, for_s=12)
    assert standings(run) == {Standing.EMPTY}
    for node in run.cluster.brokers:
        assert node.broker is not None
        assert "the store is empty" in node.broker.why_not_ready()
    await put_store_right(run)
    await asyncio.sleep(6)
    assert standings(run) == {Standing.CONTINUES}
    assert leader_epochs(run) == epochs


async def f41_store_is_founded_anew(run: Run) -> None:
    """L1: controllers that start meanwhile found another cluster, and find back by themselves."""
    await settled(run)
    await replace_store(run, run.cluster.etcd.empty())
    restart_controllers(run)
    await asyncio.sleep(6)
    assert standings(run) == {Standing.OTHER}
    await goes_on(run, for_s=10)
    (await leader(run)).kill()
    await asyncio.sleep(1)
    run.cluster.start_all()
    await put_store_right(run)
    # They follow the brokers once those have been registered for longer than leases last.
    await asyncio.sleep(25)
    assert standings(run) == {Standing.CONTINUES}


async def f42_store_goes_back_under_load(run: Run) -> None:
    """L6: an older store, with a controller of its own that was given the same epoch."""
    await settled(run)
    etcd = run.cluster.etcd
    older = etcd.right.copy()
    (await controller(run)).kill()
    await asyncio.sleep(1)
    run.cluster.start_all()
    await settled(run)
    async with asyncio.timeout(15):
        while not all(knows_better(node, older) for node in run.cluster.brokers):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    epochs = leader_epochs(run)
    await replace_store(run, older)
    restart_controllers(run)
    # Leases end in it, so that its revision is above what anybody knows of the right one.
    await goes_on(run, for_s=12)
    assert older.get(STAMP) is not None
    assert standings(run) == {Standing.OLDER}
    assert leader_epochs(run) == epochs
    await put_store_right(run)
    await asyncio.sleep(25)
    assert standings(run) == {Standing.CONTINUES}


async def f42_store_is_older_than_a_topic(run: Run) -> None:
    """L2: brokers that cannot tell that it is older set the topic's replicas aside, whole."""
    await settled(run)
    older = run.cluster.etcd.right.copy()
    await make_late_topic(run)
    for node in run.cluster.brokers:
        node.kill()
    before = {node.name: sum(logs_of(node, LATE).values()) for node in run.cluster.brokers}
    await replace_store(run, older)
    believe_any_store(run)
    restart_controllers(run)
    run.cluster.start_all()
    await settled(run)
    await asyncio.sleep(5)
    for node in run.cluster.brokers:
        assert sum(logs_of(node, LATE).values()) == before[node.name]
        assert any("-stray" in path for path in logs_of(node, LATE)), node.name
    for node in run.cluster.brokers:
        node.kill()
    await put_store_right(run)
    believe_any_store(run)
    restart_controllers(run)
    run.cluster.start_all()
    await settled(run)
    await asyncio.sleep(5)
    late = TopicPartition(LATE, 0)
    ends = [hosted.log.log_end for n in run.cluster.brokers if (hosted := n.hosted(late))]
    assert ends == [LATE_RECORDS] * 3


def believe_any_store(run: Run) -> None:
    """As brokers of an earlier release, which kept no copy of the metadata and no witness."""
    for node in run.cluster.brokers:
        for name in METADATA_COPY_FILES:
            if node.files.exists(f"{DATA}/{name}"):
                node.files.remove(f"{DATA}/{name}")


async def make_late_topic(run: Run) -> None:
    await run.cluster.create_topic(LATE, partitions=1)
    process, make = run.cluster.producer("late")

    async def write() -> None:
        producer = make()
        for number in range(LATE_RECORDS):
            await producer.send(LATE, b"%d" % number)
        await producer.flush()
        await producer.close()

    async with asyncio.timeout(30):
        await process.spawn("write", write())
    assert run.cluster.etcd.right.get(tombstone_key(LATE)) is None
    late = TopicPartition(LATE, 0)
    async with asyncio.timeout(10):
        while True:
            found = [node.hosted(late) for node in run.cluster.brokers]
            if all(each is not None and each.log.log_end == LATE_RECORDS for each in found):
                return
            await asyncio.sleep(0.1)


async def f43_first_segment_is_missing(run: Run) -> None:
    """L3: on one that then leads: its log begins too late, and the others keep all of theirs."""
    await settled(run)
    await asyncio.sleep(6)
    node = (await followers(run))[0]
    await node.stop()
    logs = sorted(each for each in logs_of(node, TOPIC) if f"/{PARTITION}/" in each)
    assert len(logs) > 2
    harm(node.files, logs[0], Harm.REMOVED, older=copy_of(node.files), rng=run.rng)
    node.start()
    await settled(run)
    await let_lead(run, node)
    await asyncio.sleep(3)
    starts = [h.log.log_start for each in run.cluster.brokers if (h := each.hosted(PARTITION))]
    assert starts == [0, 0, 0]


async def let_lead(run: Run, node: BrokerNode) -> None:
    """The others die until it leads, and come back as its followers."""
    others = [each for each in run.cluster.brokers if each is not node]
    for each in others:
        await each.stop()
    await until_leads(node)
    for each in others:
        each.start()


async def until_leads(node: BrokerNode) -> None:
    async with asyncio.timeout(20):
        while True:
            hosted = node.hosted(PARTITION)
            if hosted is not None and hosted.machine.role is Role.LEADER:
                return
            await asyncio.sleep(0.05)


async def f43_side_file_rots(run: Run) -> None:
    """L5: one bit of what says whose log it is; it is mended, and the replica is in sync again."""
    await settled(run)
    for node in await followers(run):
        node.kill()
        path = f"{DATA}/{PARTITION}/partition.metadata"
        node.files.flip_bits(path, run.rng.randrange(node.files.size(path)))
        node.start()
        await settled(run)


async def f44_last_one_returns_with_an_older_copy(run: Run) -> None:
    """L4: it leads alone, and others know more: the partition waits for a person, nobody cuts."""
    await settled(run)
    last, others = await leader(run), await followers(run)
    copy = copy_of(last.files)
    await asyncio.sleep(LAG_S)
    await settled(run)
    # What it alone acknowledges with an older log would be lost, and on record: nobody may ask it.
    for client in ("p0", "p1"):
        run.cluster.network.isolate(client, [last.name])
    await asyncio.sleep(2)
    for node in run.cluster.brokers:
        node.kill()
    put_back(last.files, copy)
    last.start()
    # It leads, and nothing that readers had is called gone before the others had time to come.
    await until_leads(last)
    await asyncio.sleep(LAG_S / 2)
    for node in others:
        node.start()
    async with asyncio.timeout(20):
        while "is committed" not in conflict(run):  # noqa: ASYNC110 - virtual time.
            await asyncio.sleep(0.1)
    await asyncio.sleep(5)
    state = run.person.state(PARTITION)
    assert state is not None
    assert state.leader == -1
    for node in others:
        hosted = node.hosted(PARTITION)
        assert hosted is None or hosted.log.log_end > 0


def conflict(run: Run) -> str:
    state = run.person.state(PARTITION)
    return "" if state is None else state.conflict


async def f44_leader_returns_with_an_older_copy_unmissed(run: Run) -> None:
    """L4: before anybody noticed, and to a follower that has less than the copy."""
    await settled(run)
    old, (slow, good) = await leader(run), await followers(run)
    slow.kill()
    await asyncio.sleep(1)
    copy = copy_of(old.files)
    await asyncio.sleep(2)
    run.cluster.etcd.stop()
    await asyncio.sleep(0.1)
    old.kill()
    put_back(old.files, copy)
    run.cluster.network.isolate(good.name, [old.name])
    old.start()
    run.cluster.etcd.start()
    slow.start()
    await asyncio.sleep(run.rng.uniform(1.0, 2.5))
    run.cluster.network.heal()
    await asyncio.sleep(5)


async def f44_clone_of_a_live_folder(run: Run) -> None:
    """L7: the copy is refused and told why, the first one keeps its registration."""
    await settled(run)
    node = await leader(run)
    assert node.broker is not None
    epoch, epochs = node.broker.epoch, leader_epochs(run)
    twin = BrokerNode(run.cluster, node.number, name=f"{node.name}x")
    put_back(twin.files, copy_of(node.files))
    twin.is_harmed = True
    twin.start()
    async with asyncio.timeout(10):
        while twin.is_up:  # noqa: ASYNC110 - virtual time.
            await asyncio.sleep(0.05)
    assert isinstance(twin.refusal, FolderLocked)
    assert "the same data folder or a copy of it" in str(twin.refusal)
    await asyncio.sleep(8)
    assert node.broker.epoch == epoch
    assert leader_epochs(run) == epochs


def check(seed: int, script: Script, config: dict[str, str] | None = None) -> Run:
    run = play(seed, script, config=config)
    assert run.witness.acknowledged_count > 0
    return run


@pytest.mark.parametrize("seed", SEEDS)
def test_f41_l1_a_store_that_comes_back_empty(seed: int) -> None:
    check(seed, f41_store_comes_back_empty)


@pytest.mark.parametrize("seed", SEEDS)
def test_f41_l1_a_store_that_is_founded_anew(seed: int) -> None:
    check(seed, f41_store_is_founded_anew)


@pytest.mark.parametrize("seed", SEEDS)
def test_f42_l2_a_store_that_is_older_than_a_topic(seed: int) -> None:
    check(seed, f42_store_is_older_than_a_topic)


@pytest.mark.parametrize("seed", SEEDS)
def test_f42_l6_a_store_that_goes_back_under_running_brokers(seed: int) -> None:
    check(seed, f42_store_goes_back_under_load)


@pytest.mark.parametrize("seed", SEEDS)
def test_f43_l3_the_first_segment_is_missing(seed: int) -> None:
    check(seed, f43_first_segment_is_missing, SMALL_SEGMENTS)


@pytest.mark.parametrize("seed", SEEDS)
def test_f43_l5_a_side_file_rots(seed: int) -> None:
    check(seed, f43_side_file_rots)


@pytest.mark.parametrize("seed", SEEDS)
def test_f44_l4_the_last_one_returns_with_an_older_copy(seed: int) -> None:
    run = check(seed, f44_last_one_returns_with_an_older_copy, ONE_IS_ENOUGH)
    assert run.person.decisions
    state = run.person.state(PARTITION)
    assert state is not None
    assert "a person let broker" in state.loss


@pytest.mark.parametrize("seed", SEEDS)
def test_f44_l4_a_leader_returns_with_an_older_copy_unmissed(seed: int) -> None:
    check(seed, f44_leader_returns_with_an_older_copy_unmissed)


@pytest.mark.parametrize("seed", SEEDS)
def test_f44_l7_a_clone_of_a_live_folder(seed: int) -> None:
    check(seed, f44_clone_of_a_live_folder)
