"""Replicas whose log has failed: out of service, said so, and mended when nobody counts on them."""

from __future__ import annotations

import asyncio
import threading

from simulation.loop import InlineBlocking, LoopClock, SimLoop, run
from simulation.proofs import deleted
from simulation.storage import SimFiles
from tailrace.broker.hosted import ReplicaOrder, StopOrder, TopicSettings
from tailrace.broker.logs import MAKERS_MAX, ReplicaLogs
from tailrace.clock import SystemClock
from tailrace.config import FolderConfig, LogConfig
from tailrace.log.data_folder import Identity
from tailrace.log.disk_faults import Fault, FaultKind
from tailrace.log.manager import LogManager
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition
from tailrace.replication.events import StoredState
from tailrace.replication.partition import Role
from tailrace.runtime import ThreadBlocking
from tailrace.transport import methods
from tailrace.transport.wire import code_name, to_partition
from tailrace.v1 import broker_pb2
from tailrace.v1 import control_pb2 as pb
from unit.broker.trio import ALL, T0, T1, TOPIC_ID, Trio, mark_deleted, simulate

ACK = {"flush": "ack"}


def refusals(response: pb.LeaderAndIsrResponse) -> list[str]:
    return [code_name(each.error) for each in response.errors]


async def lead_and_fail(trio: Trio, config: dict[str, str], *, readable: bool = False) -> None:
    """Broker 0 leads, has three records on all disks and three more that its disk has not.

    Not `readable`: the system has dropped what it could not write, so that they are gone for good.
    """
    await trio.start(flush_interval_ms=2_000, checkpoint_interval_ms=1_000)
    await trio.lead(0, 0, config=config)
    await trio.produce()
    await trio.until(lambda: trio.hosted(0).log.recovery_point == 3)
    trio.files[0].fail_next_sync(".log")
    await trio.produce()
    log = trio.hosted(0).log
    await trio.until(lambda: T0 in trio.replicas(0).offline)
    if not readable:
        trio.files[0].flip_bits(log.segments[0].path, log.segments[0].size - 1)


@simulate
async def test_a_leader_whose_sync_failed_leads_no_longer_and_says_so_at_once(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0, config=ACK)
    channel = trio.host.channel("b0:9095")
    health = channel.open(methods.CONTROL_HEALTH, pb.HealthRequest(header=trio.header(0)))
    first = await health.recv()
    assert first is not None
    assert not first.offline
    trio.files[0].fail_next_sync(".log")
    began_ms = trio.loop.now_ms
    answer = await trio.produce()
    assert code_name(answer.error) in {"NOT_LEADER", "LOG_CLOSED", "STORAGE_ERROR"}
    second = await health.recv()
    assert second is not None
    assert [code_name(each.error) for each in second.offline] == ["STORAGE_ERROR"]
    assert trio.loop.now_ms - began_ms < 100
    assert trio.hosted(0).machine.role is not Role.LEADER


@simulate
async def test_with_flush_ack_it_mends_by_following(trio: Trio) -> None:
    await lead_and_fail(trio, ACK)
    # It must not lead with a log that takes nothing.
    assert refusals((await trio.lead(0, 1, to=(0,), config=ACK))[0]) == ["STORAGE_ERROR"]
    # It has vouched for nothing that is not on its disk, so it may stay in the ISR.
    for response in await trio.lead(1, 2, config=ACK):
        assert refusals(response) == []
    assert not trio.replicas(0).offline
    answer = await trio.produce(to=1)
    assert not answer.error
    await trio.until(lambda: len(set(trio.ends())) == 1)


@simulate
async def test_one_that_others_count_on_is_not_mended_before_they_do_no_longer(trio: Trio) -> None:
    await lead_and_fail(trio, {})
    # Records 3 to 5 are acknowledged, and gone from broker 0 as soon as its log is opened anew.
    assert trio.hosted(1).machine.high_watermark == 6
    assert refusals((await trio.lead(1, 1))[0]) == ["DAMAGED_LOG"]
    assert trio.hosted(0).log.log_end == 6
    assert refusals((await trio.lead(1, 1, isr=(1, 2)))[0]) == []
    assert not trio.replicas(0).offline
    await trio.until(lambda: trio.ends() == [6, 6, 6])
    await trio.until(lambda: trio.hosted(1).machine.isr == (0, 1, 2))


@simulate
async def test_l8_one_whose_sync_failed_is_written_anew_and_loses_nothing(trio: Trio) -> None:
    await lead_and_fail(trio, {}, readable=True)
    assert [each.code for each in trio.replicas(0).offline.values()] == ["STORAGE_ERROR"]
    # In the epoch in which it failed it leads no longer, whatever an order says.
    assert refusals((await trio.lead(0, 0, to=(0,)))[0]) == ["STORAGE_ERROR"]
    trio.faults[0].set(Fault(FaultKind.UNSYNCED, "/data/t-0"))
    assert refusals((await trio.lead(1, 1))[0]) == ["STORAGE_ERROR"], "the disk still refuses"
    assert not [each for each in trio.files[0].list("/data/t-0") if each.endswith(".tmp")]
    trio.faults[0].set()
    assert refusals((await trio.lead(1, 1))[0]) == []
    assert not trio.replicas(0).offline
    assert trio.heard("b0: t-0: in service again, nothing was lost")
    assert trio.ends() == [6, 6, 6]
    trio.processes[0].kill()
    trio.files[0].crash(power_loss=True)
    await trio.start_broker(0)
    await trio.until(lambda: trio.brokers[0].epoch)
    manager = trio.brokers[0]._manager
    assert manager is not None
    assert manager.logs[T0].log_end == 6, "and it is on the disk now"


@simulate
async def test_l8_of_what_cannot_be_read_any_more_it_says_that_it_is_lost(trio: Trio) -> None:
    await lead_and_fail(trio, {})
    assert [each.code for each in trio.replicas(0).offline.values()] == ["STORAGE_ERROR"]
    assert refusals((await trio.lead(1, 1))[0]) == ["DAMAGED_LOG"]
    assert [each.code for each in trio.replicas(0).offline.values()] == ["DAMAGED_LOG"]
    assert trio.heard("b0: t-0: not all of it can be read after a sync failed")


@simulate
async def test_l8_when_all_replicas_failed_each_is_well_again_with_nobody_leading(
    trio: Trio,
) -> None:
    await trio.start(flush_interval_ms=2_000, checkpoint_interval_ms=1_000)
    await trio.lead(0, 0)
    for _ in range(2):
        await trio.produce()
    for broker in ALL:
        trio.faults[broker].set(Fault(FaultKind.UNSYNCED, "/data/t-0"))
    await trio.until(lambda: all(T0 in trio.replicas(each).offline for each in ALL))
    for broker in ALL:
        trio.faults[broker].set()
    codes = [each.code for n in ALL for each in trio.replicas(n).offline.values()]
    assert codes == ["STORAGE_ERROR"] * 3, "none is damaged, so all keep their place"
    for response in await trio.lead(-1, 1, isr=()):
        assert refusals(response) == []
    assert not any(trio.replicas(each).offline for each in ALL)
    for response in await trio.lead(2, 2):
        assert refusals(response) == []
    await trio.until(lambda: trio.ends() == [6, 6, 6])
    assert not (await trio.produce(to=2)).error


@simulate
async def test_damage_that_is_found_at_the_start_is_not_repaired_while_in_sync(trio: Trio) -> None:
    await trio.start(flush_interval_ms=100, checkpoint_interval_ms=100)
    await trio.lead(0, 0)
    await trio.produce()
    await trio.until(lambda: trio.hosted(2).log.recovery_point == 3)
    await asyncio.sleep(1)
    segment = trio.hosted(2).log.segments[0]
    trio.processes[2].kill()
    trio.files[2].crash(power_loss=False)
    trio.files[2].flip_bits(segment.path, segment.size - 1)
    await trio.start_broker(2)
    await trio.until(lambda: trio.brokers[2].epoch)
    assert refusals((await trio.lead(0, 0, to=(2,)))[0]) == ["DAMAGED_LOG"]
    assert refusals((await trio.lead(2, 1, to=(2,)))[0]) == ["DAMAGED_LOG"]
    assert [each.code for each in trio.replicas(2).offline.values()] == ["DAMAGED_LOG"]
    assert refusals((await trio.lead(0, 2, isr=(0, 1)))[2]) == []
    await trio.until(lambda: trio.ends() == [3, 3, 3])


async def start_with_rot_above_the_recovery_point(trio: Trio, config: dict[str, str]) -> None:
    """Broker 2 is in sync; one of its last batches is bad when it comes back."""
    await trio.start()
    await trio.lead(0, 0, config=config)
    await trio.produce()
    await trio.until(lambda: trio.ends() == [3, 3, 3])
    segment = trio.hosted(2).log.segments[0]
    trio.processes[2].kill()
    trio.files[2].crash(power_loss=False)
    trio.files[2].flip_bits(segment.path, segment.size - 1)
    await trio.start_broker(2)
    await trio.until(lambda: trio.brokers[2].epoch)


@simulate
async def test_f15_one_that_was_cut_at_its_start_may_not_lead_until_it_is_out_of_the_isr(
    trio: Trio,
) -> None:
    await start_with_rot_above_the_recovery_point(trio, {})
    assert refusals((await trio.lead(2, 1, to=(2,)))[0]) == ["DAMAGED_LOG"]
    assert refusals((await trio.lead(0, 2, to=(2,)))[0]) == ["DAMAGED_LOG"]
    assert refusals((await trio.lead(0, 3, isr=(0, 1)))[2]) == []
    await trio.until(lambda: trio.ends() == [3, 3, 3])


@simulate
async def test_f15_one_that_was_cut_and_restarted_before_it_had_orders_still_says_so(
    trio: Trio,
) -> None:
    """The log that its second life finds is whole: only the note tells what the first cut off."""
    await start_with_rot_above_the_recovery_point(trio, {})
    for _ in range(2):
        trio.processes[2].kill()
        trio.files[2].crash(power_loss=False)
        await trio.start_broker(2)
        await trio.until(lambda: trio.brokers[2].epoch)
    assert refusals((await trio.lead(2, 1, to=(2,)))[0]) == ["DAMAGED_LOG"]
    assert refusals((await trio.lead(0, 2, isr=(0, 1)))[2]) == []
    await trio.until(lambda: trio.ends() == [3, 3, 3])
    # Nobody counts on what it had: the next life has nothing to tell.
    trio.processes[2].kill()
    trio.files[2].crash(power_loss=False)
    await trio.start_broker(2)
    await trio.until(lambda: trio.brokers[2].epoch)
    assert refusals((await trio.lead(2, 3, to=(2,)))[0]) == []


@simulate
async def test_f15_one_that_is_taken_back_without_its_tail_says_so(trio: Trio) -> None:
    """Before, it said so only after the next restart: until then the cluster counted on it."""
    await trio.start(0, 2)
    await trio.lead(0, 0, to=(0, 2))
    await trio.produce(acks=broker_pb2.ACKS_LEADER)
    await trio.until(lambda: trio.hosted(2).log.log_end == 3)
    # The third replica is in the ISR and away, so that nothing is known to be committed.
    assert trio.hosted(2).machine.high_watermark == 0
    last = trio.hosted(2).log.segments[0]
    aside = pb.StopPartition(partition=to_partition(T0), topic_id=TOPIC_ID, set_aside=True)
    response = await trio.host.channel("b2:9095").call(
        methods.CONTROL_STOP_REPLICA,
        pb.StopReplicaRequest(header=trio.header(2), partitions=[aside]),
        timeout_ms=1_000,
    )
    assert not response.errors
    (stray,) = trio.replicas(2)._manager.strays()
    trio.files[2].flip_bits(last.path.replace("/t-0/", f"/{stray.name}/"), last.size - 1)
    assert refusals((await trio.lead(0, 1, to=(2,)))[0]) == ["DAMAGED_LOG"]
    assert trio.heard("is taken back, with 0 to 0")
    kept, cut = trio.replicas(2)._manager.deletions([T0])
    assert (kept.kind, cut.kind, cut.from_offset) == ("set-aside", "log-end", 0)
    assert refusals((await trio.lead(0, 2, isr=(0, 1), to=(0, 2)))[1]) == []
    await trio.until(lambda: trio.hosted(2).log.log_end == 3)


@simulate
async def test_f15_with_flush_ack_nothing_above_the_recovery_point_counts(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0, config=ACK)
    await trio.produce()
    path = trio.hosted(2).log.segments[0].path
    trio.processes[2].kill()
    trio.files[2].crash(power_loss=False)
    # As an append that was never finished.
    file = trio.files[2].open(path)
    file.write_at(file.size(), [b"torn"])
    await trio.start_broker(2)
    await trio.until(lambda: trio.brokers[2].epoch)
    assert refusals((await trio.lead(2, 1, config=ACK))[2]) == []
    assert not (await trio.produce(to=2)).error


@simulate
async def test_a_follower_whose_log_fails_is_out_of_service_too(trio: Trio) -> None:
    await trio.start(flush_interval_ms=1_000, checkpoint_interval_ms=500)
    await trio.lead(0, 0)
    trio.files[2].fail_next_sync(".log")
    await trio.produce()
    await trio.until(lambda: T0 in trio.replicas(2).offline)
    assert trio.heard("out of service")
    # Other replicas of the broker and the broker itself go on; a topic made anew starts well.
    await trio.lead(0, 0, topic_id="another")
    assert not trio.replicas(2).offline
    await trio.produce()
    await trio.until(lambda: trio.ends() == [3, 3, 3])


@simulate
async def test_one_that_cannot_be_opened_anew_is_tried_again(trio: Trio) -> None:
    await lead_and_fail(trio, {})
    trio.files[0].disk_bytes_max = 1
    for _ in range(2):
        assert refusals((await trio.lead(1, 1, isr=(1, 2), to=(0,)))[0]) == ["STORAGE_ERROR"]
        assert list(trio.replicas(0).offline) == [T0]
    trio.files[0].disk_bytes_max = None
    assert refusals((await trio.lead(1, 1, isr=(1, 2)))[0]) == []
    await trio.until(lambda: trio.ends() == [6, 6, 6])


@simulate
async def test_one_that_could_not_be_opened_anew_can_be_deleted(trio: Trio) -> None:
    await lead_and_fail(trio, {})
    trio.files[0].disk_bytes_max = 1
    await trio.lead(1, 1, isr=(1, 2), to=(0,))
    trio.files[0].disk_bytes_max = None
    order = StopOrder(T0, TOPIC_ID, delete=True)
    assert {*await trio.replicas(0).stop([order])} == {T0}, "nothing on record says so"
    await mark_deleted(trio)
    assert await trio.replicas(0).stop([order]) == {}
    assert not any("t-0" in name for name in trio.files[0].list("/data"))


@simulate
async def test_a_replica_that_is_deleted_is_not_out_of_service(trio: Trio) -> None:
    await lead_and_fail(trio, {})
    order = StopOrder(T0, TOPIC_ID, delete=True)
    assert {*await trio.replicas(0).stop([order])} == {T0}, "nothing on record says so"
    assert [*trio.replicas(0).offline] == [T0]
    await mark_deleted(trio)
    assert await trio.replicas(0).stop([order]) == {}
    assert not trio.replicas(0).offline
    assert trio.replicas(0).get(T0) is None


@simulate
async def test_replicas_that_are_deleted_together(trio: Trio) -> None:
    """Those that are to go go, the others stay, and what cannot go is told."""
    await trio.start(0)
    kept = TopicPartition("t", 9)
    for each in (T0, T1, kept):
        await trio.lead(0, 0, isr=(0,), replicas=(0,), partition=each)
    replicas = trio.replicas(0)
    await mark_deleted(trio, "another", TOPIC_ID)
    trio.files[0].fail_next_folder_sync()
    orders = [StopOrder(each, TOPIC_ID, delete=True) for each in (T0, T1)]
    failures = await replicas.stop(orders)
    assert {*failures} == {T0, T1}
    assert replicas.get(T0) is None
    assert replicas.counts.replicas_deleted == 0
    others = [StopOrder(kept, "another", delete=True), StopOrder(TopicPartition("x", 0))]
    assert await replicas.stop([*orders, *others]) == {}
    assert replicas.counts.replicas_deleted == 2
    assert {each for each in trio.files[0].list("/data") if each.startswith("t-")} == {"t-9"}
    assert replicas.get(kept) is not None


@simulate
async def test_a_replica_that_is_named_twice_is_deleted_once(trio: Trio) -> None:
    await trio.start(0)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))
    await mark_deleted(trio)
    twice = [StopOrder(T0, TOPIC_ID, delete=True, revision=each) for each in (10**9, 0)]
    assert await trio.replicas(0).stop(twice) == {}
    assert not any("t-0" in name for name in trio.files[0].list("/data"))
    assert trio.replicas(0).counts.replicas_deleted == 1


@simulate
async def test_one_whose_deletion_failed_can_be_wanted_again(trio: Trio) -> None:
    """It was neither there nor gone, and no order of the same request was obeyed any more."""
    await trio.start(0)
    for each in (T0, T1):
        await trio.lead(0, 0, isr=(0,), replicas=(0,), partition=each)
        await trio.produce(partition=each)
    await mark_deleted(trio)
    files, replicas = trio.files[0], trio.replicas(0)
    rename = files.rename

    def fail(source: str, target: str) -> None:
        raise OSError(5, "Input/output error", source, None, target)

    files.rename = fail  # type: ignore[method-assign]
    orders = [StopOrder(T0, TOPIC_ID, delete=True), StopOrder(T1, TOPIC_ID, delete=True)]
    failures = await replicas.stop(orders)
    assert [each.code for each in failures.values()] == ["STORAGE_ERROR"] * 2
    files.rename = rename  # type: ignore[method-assign]
    for each in (T0, T1):
        await trio.lead(0, 1, isr=(0,), replicas=(0,), partition=each)
        hosted = replicas.get(each)
        assert hosted is not None
        assert hosted.log.log_end == 3


async def test_nobody_else_begins_before_a_deletion_that_was_given_up_on_has_ended() -> None:
    """The order was cancelled by its deadline, the thread went on: it renamed the new log."""
    began, may_end = threading.Event(), threading.Event()

    class Slow(SimFiles):
        def sync_folder(self, path: str) -> None:
            if any(name.endswith("-delete") for name in self.list(path)):
                began.set()
                may_end.wait(10)
            super().sync_folder(path)

    files = Slow()
    manager = LogManager(
        files,
        FolderConfig(log_dirs=("/data",)),
        identity=Identity("cluster", BrokerId(0), "incarnation"),
    )
    manager.open(now_ms=1)
    manager.create(T0, TopicId("old"))
    blocking = ThreadBlocking(threads_max=2)
    logs = ReplicaLogs(
        manager,
        BrokerId(0),
        blocking=blocking,
        clock=SystemClock(),
        say=lambda _: None,
        cluster_id=lambda: "cluster",
    )
    stopping = asyncio.ensure_future(
        logs.discard({StopOrder(T0, delete=True): deleted(manager, T0)})
    )
    await asyncio.to_thread(began.wait, 10)
    stopping.cancel()
    await asyncio.sleep(0.05)
    assert not stopping.done()
    may_end.set()
    await asyncio.wait([stopping])
    assert stopping.cancelled()
    assert not manager.holds(T0)
    # What is left of it is not forgotten.
    assert not await logs.remove_discarded()
    assert not any(name.startswith("t-0") for name in files.list("/data"))
    blocking.close()


async def test_what_is_set_aside_is_looked_for_off_the_loop() -> None:
    """Each stray has a note and a topic's id in files: with many the loop would stand."""
    readers: set[threading.Thread] = set()

    class Watched(SimFiles):
        def list(self, folder: str) -> list[str]:
            readers.add(threading.current_thread())
            return super().list(folder)

        def read(self, path: str) -> bytes:
            readers.add(threading.current_thread())
            return super().read(path)

    manager = LogManager(
        Watched(),
        FolderConfig(log_dirs=("/data",)),
        identity=Identity("cluster", BrokerId(0), "incarnation"),
    )
    manager.open(now_ms=1)
    for partition in (T0, T1):
        manager.create(partition, TopicId(TOPIC_ID))
    manager.set_aside(T0, why="a test", now_ms=1)
    blocking = ThreadBlocking(threads_max=2)
    logs = ReplicaLogs(
        manager,
        BrokerId(0),
        blocking=blocking,
        clock=SystemClock(),
        say=lambda _: None,
        cluster_id=lambda: "cluster",
    )
    readers.clear()
    assert await logs.stray(set()) == [(T1, TOPIC_ID), (T0, TOPIC_ID)]
    assert await logs.stray({T1}) == [(T0, TOPIC_ID)]
    assert readers
    assert threading.current_thread() not in readers
    blocking.close()


async def lose_all_that_was_vouched_for(trio: Trio, config: dict[str, str]) -> None:
    """Broker 0 has three records on its disk and three more that are lost to it; nobody leads."""
    await lead_and_fail(trio, config)
    await trio.lead(-1, 1, isr=(), config=config)


@simulate
async def test_what_is_left_is_kept_until_a_person_decides(trio: Trio) -> None:
    await lose_all_that_was_vouched_for(trio, {})
    assert [each.code for each in trio.replicas(0).offline.values()] == ["DAMAGED_LOG"]
    assert trio.hosted(0).log.log_end == 6
    # Somebody lets it lead with what it has: it accepts what is lost, and is followed.
    assert refusals((await trio.lead(0, 2, isr=(0,), unclean_epoch=2))[0]) == []
    assert trio.hosted(0).machine.role is Role.LEADER
    await trio.until(lambda: trio.ends() == [3, 3, 3])


@simulate
async def test_what_is_left_is_given_up_when_another_leads(trio: Trio) -> None:
    await lose_all_that_was_vouched_for(trio, {})
    assert refusals((await trio.lead(1, 2, isr=(1,)))[0]) == []
    await trio.until(lambda: trio.ends() == [6, 6, 6])


@simulate
async def test_an_election_from_before_decides_nothing(trio: Trio) -> None:
    """An order that was under way when the partition lost its leader is no person's word."""
    await lose_all_that_was_vouched_for(trio, {})
    assert refusals((await trio.lead(0, 1, isr=(0,), to=(0,)))[0]) == ["DAMAGED_LOG"]
    assert refusals((await trio.lead(0, 2, isr=(0, 1), to=(0,)))[0]) == ["DAMAGED_LOG"]


@simulate
async def test_where_the_last_leader_may_lead_it_is_mended_without_a_person(trio: Trio) -> None:
    await lose_all_that_was_vouched_for(trio, {"unclean.recovery": "last-leader"})
    assert not trio.replicas(0).offline


def order(number: int) -> ReplicaOrder:
    state = StoredState(
        leader=BrokerId(0), leader_epoch=LeaderEpoch(0), isr=(BrokerId(0),), elr=(), revision=1
    )
    return ReplicaOrder(
        partition=TopicPartition("t", number),
        topic_id=TopicId("t"),
        state=state,
        replicas=(BrokerId(0),),
        leader_link="",
        config={},
    )


def test_new_logs_are_made_several_at_a_time_and_none_twice() -> None:
    """Each waits for the disk: one after the other, a thousand of them took 18 seconds."""

    async def body(loop: SimLoop) -> None:
        manager = LogManager(
            files, FolderConfig(log_dirs=("/data",)), identity=Identity("c", BrokerId(0), "i")
        )
        manager.open(now_ms=0)
        disk = InlineBlocking(loop, "disk", delay_us=(10_000, 10_000))
        logs = ReplicaLogs(
            manager,
            BrokerId(0),
            blocking=disk,
            clock=LoopClock(loop),
            say=lambda _: None,
            cluster_id=lambda: "c",
        )
        orders = [order(number) for number in range(5 * MAKERS_MAX)]
        await logs.make([*orders, orders[0]])
        assert loop.now_ms == 50
        await logs.make(orders)
        assert loop.now_ms == 50
        # One that fails fails no other, and is tried again for its order, which is told.
        files.fail_next_folder_sync()
        late = [order(1_000), order(1_001)]
        await logs.make(late)
        assert sum(manager.holds(each.partition) for each in late) == 1
        topic = TopicSettings.parse({}, replicas=1, defaults=LogConfig())
        assert [(await logs.find(each, topic)).log_end for each in late] == [0, 0]
        manager.close()

    files = SimFiles()
    run(body, 1)
