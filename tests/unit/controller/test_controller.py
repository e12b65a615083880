"""Standing by, taking over, losing the crown: one effective controller, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from simulation.etcd import SimStore
from simulation.loop import LoopClock
from tailrace.controller.controller import Controller
from tailrace.controller.settings import ControllerSettings
from tailrace.errors import AddressInUse, InvariantViolation, StoreUnavailable
from tailrace.meta.keys import (
    CLUSTER,
    CONTROLLER,
    CONTROLLER_EPOCH,
    STAMP,
    ControllerRecord,
    TermRecord,
    decode,
    decode_counter,
    term_key,
)
from tailrace.meta.store import Delete, Guard, Operation, Put, TxnResult
from tailrace.transport import methods
from tailrace.v1 import common_pb2
from tailrace.v1 import controller_pb2 as pb
from unit.controller.cluster import Cluster, simulate


def test_the_first_controller_makes_the_cluster_and_others_stand_by() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=2)
        assert cluster.active().controller.term is not None
        assert cluster.etcd.server.get(CONTROLLER_EPOCH) is not None
        record = cluster.etcd.server.get(CONTROLLER)
        assert record is not None
        assert decode(ControllerRecord, record.value) == ControllerRecord(
            controller_id=1, epoch=1, host="c1", port=9090
        )
        response = await cluster.call(
            methods.CONTROLLER_CREATE_TOPIC, pb.CreateTopicRequest(name="t"), number=2
        )
        assert response.error == common_pb2.ERROR_CODE_NOT_CONTROLLER
        assert response.message == "controller 1 at c1:9090 is the active one"
        assert cluster.controllers[2].controller.image is None

    simulate(main)


def test_the_cluster_id_is_made_once() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        first = cluster.etcd.server.get(CLUSTER)
        await cluster.active().controller.stop()
        await cluster.start_controller(2)
        await cluster.until(lambda: cluster.controllers[2].epoch == 2)
        assert cluster.etcd.server.get(CLUSTER) == first
        picture = cluster.brokers[1].pictures[-1]
        assert picture.cluster_id == cluster.image().cluster_id != ""

    simulate(main)


def test_the_store_gets_a_stamp_soon_after_each_change_and_none_without() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        server = cluster.etcd.server

        def stamp() -> int:
            entry = server.get(STAMP)
            return 0 if entry is None else decode_counter(entry.value)

        await asyncio.sleep(5)
        before, revision = stamp(), server.revision
        assert before > 0
        await asyncio.sleep(30)
        assert (stamp(), server.revision) == (before, revision)
        server.txn([], [Put("/elsewhere", b"1")])
        await cluster.until(lambda: stamp() == before + 1)
        await cluster.active().controller.stop()
        await cluster.start_controller(2)
        await cluster.until(lambda: cluster.controllers[2].epoch == 2)
        entry = server.get(term_key(2))
        assert entry is not None
        assert decode(TermRecord, entry.value).stamp > before + 1

    simulate(main)


def test_a_controller_that_stops_gives_the_crown_back_at_once() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=2)
        first = cluster.controllers[1]
        await first.process.spawn("stop", first.controller.stop())
        assert first.task is not None
        await first.task
        assert first.controller.term is None
        took_ms = await cluster.until(lambda: cluster.controllers[2].epoch == 2)
        assert took_ms < 100

    simulate(main)


def test_stop_also_ends_one_that_stands_by_or_never_ran() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=2)
        second = cluster.controllers[2]
        await second.controller.stop()
        assert second.task is not None
        await second.task
        assert cluster.holder() is not None
        host = cluster.network.host("c3", cluster.loop.process("c3"))
        idle = Controller(
            ControllerSettings(controller_id=3, listen="c3:9090"),
            store=cluster.etcd.connect("c3"),
            network=host,
            clock=LoopClock(cluster.loop),
            rng=cluster.loop.rng,
            say=cluster.said.append,
        )
        with pytest.raises(InvariantViolation):
            await idle.run()
        await idle.start()
        with pytest.raises(AddressInUse):
            await idle.start()
        await idle.stop()

    simulate(main)


def test_a_killed_controller_is_replaced_long_before_its_lease_ends() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=3)
        cluster.controllers[1].process.kill()
        took_ms = await cluster.until(
            lambda: max(cluster.controllers[each].epoch for each in (2, 3)) == 2
        )
        assert took_ms < 400
        assert "its connection is refused" in cluster.texts()

    simulate(main)


def test_leader_and_controller_killed_at_once_are_replaced_within_a_second() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=2)
        await cluster.create("t")
        assert cluster.state().leader == 1
        cluster.brokers[1].kill()
        cluster.controllers[1].process.kill()
        took_ms = await cluster.until(cluster.brokers[2].leads)
        assert took_ms < 700
        assert cluster.state().isr == (2, 3)

    simulate(main)


def test_a_controller_that_cannot_be_reached_is_replaced_when_its_lease_ends() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=2)
        cluster.network.isolate("c1", ["c2", "b1", "b2", "b3"])
        await asyncio.sleep(5)
        # Silence says nothing, and the lease is kept.
        assert cluster.controllers[1].epoch == 1
        cluster.etcd.cut("c1")
        took_ms = await cluster.until(lambda: cluster.controllers[2].epoch == 2)
        assert 1_000 < took_ms < 4_000

    simulate(main)


def test_a_controller_that_restarts_does_not_wait_for_its_former_life() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        cluster.controllers[1].process.kill()
        again = await cluster.start_controller(1)
        took_ms = await cluster.until(lambda: again.epoch == 2)
        assert took_ms < 100

    simulate(main)


def test_f20_one_that_stands_by_does_not_spin_when_history_is_compacted_away() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=2)
        await cluster.create("t")
        await asyncio.sleep(1)
        before = cluster.loop.steps
        await asyncio.sleep(5)
        usual = cluster.loop.steps - before
        cluster.etcd.compact()
        late = await cluster.start_controller(3)
        before = cluster.loop.steps
        await asyncio.sleep(5)
        assert cluster.loop.steps - before < 2 * usual
        # It still hears of the end of the active one.
        cluster.controllers[2].process.kill()
        await cluster.controllers[1].controller.stop()
        assert await cluster.until(lambda: late.epoch == 2) < 100

    simulate(main)


def test_f6_a_zombie_controller_changes_nothing_and_is_obeyed_by_nobody() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=2)
        await cluster.create("t", partitions=3)
        zombie = cluster.controllers[1]
        zombie.process.pause()
        # It wakes up with this in its queue: broker 1 is gone.
        await cluster.until(lambda: cluster.controllers[2].epoch == 2)
        cluster.brokers[1].kill()
        await cluster.until(lambda: cluster.state().leader == 2)
        await cluster.start_broker(1)
        await cluster.until(lambda: cluster.brokers[1].full_orders > 0)
        await asyncio.sleep(1)
        before = cluster.image()
        zombie.process.resume()
        await asyncio.sleep(5)
        assert cluster.states() == {
            partition: stored.state
            for partition, _ in before.partitions()
            if (stored := before.state(partition)) is not None
        }
        assert zombie.epoch == -1
        assert cluster.controllers[2].epoch == 2
        response = await cluster.call(
            methods.CONTROLLER_CREATE_TOPIC, pb.CreateTopicRequest(name="u"), number=1
        )
        assert response.error == common_pb2.ERROR_CODE_NOT_CONTROLLER

    simulate(main)


def test_f6_a_controller_whose_key_is_gone_knows_at_once() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        cluster.etcd.server.txn([], [Delete(CONTROLLER)])
        assert await cluster.until(lambda: cluster.controllers[1].epoch != 1) < 20
        assert await cluster.until(lambda: cluster.controllers[1].epoch == 2) < 100

    simulate(main)


def test_f6_orders_of_a_zombie_are_refused_and_wake_it_up() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=2)
        await cluster.create("t")
        # The first one hears nothing from etcd, but still reaches the brokers.
        cluster.etcd.cut("c1")
        await cluster.until(lambda: cluster.controllers[2].epoch == 2)
        await cluster.until(lambda: cluster.brokers[1].controller_epoch == 2)
        zombie = cluster.controllers[1]
        assert zombie.epoch == 1, "it cannot know yet"
        revision = cluster.etcd.server.revision
        cluster.etcd.heal("c1")
        took_ms = await cluster.until(lambda: zombie.epoch == -1)
        assert took_ms < 5_000
        assert cluster.controllers[2].epoch == 2
        assert cluster.etcd.server.revision - revision <= 2

    simulate(main)


def test_f6_in_doubt_brokers_are_told_nothing() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        await cluster.create("t")
        cluster.etcd.stop()
        await asyncio.sleep(4)
        assert "telling brokers nothing" in cluster.texts()
        counts = [each.order_count for each in cluster.brokers.values()]
        cluster.brokers[1].hangs = True
        await asyncio.sleep(60)
        assert [each.order_count for each in cluster.brokers.values()] == counts
        before = cluster.states()
        cluster.brokers[1].hangs = False
        cluster.etcd.start()
        await asyncio.sleep(10)
        # F18: nothing was elected without need, and the same controller goes on.
        assert cluster.states() == before
        assert cluster.active().epoch == 1
        assert (await cluster.create("u")).error == 0

    simulate(main)


class LeaseEnds(SimStore):
    """F7: the lease ends between the moment that the key is written and the answer."""

    times = 1

    async def txn(self, guards: Sequence[Guard], operations: Sequence[Operation]) -> TxnResult:
        result = await super().txn(guards, operations)
        if self.times and any(each.key == CONTROLLER for each in operations):
            self.times -= 1
            for lease in self._server.leases():
                self._server.revoke_lease(lease)
        return result


def test_f7_a_lock_that_is_returned_after_its_lease_is_dead_is_no_lock() -> None:
    async def main(cluster: Cluster) -> None:
        process = cluster.loop.process("c1")
        cluster.etcd.connect("c1")
        store = LeaseEnds(cluster.etcd, "c1", 2_000)
        controller = Controller(
            ControllerSettings(controller_id=1, listen="c1:9090"),
            store=store,
            network=cluster.network.host("c1", process),
            clock=LoopClock(cluster.loop),
            rng=cluster.loop.rng,
            say=cluster.said.append,
        )
        await process.spawn("start", controller.start())
        process.spawn("run", controller.run())
        await cluster.until(lambda: store.times == 0)
        await cluster.until(lambda: controller.term is not None)
        term = controller.term
        assert term is not None
        # It tried again with a new lease, in a new epoch.
        assert term.epoch == 2
        assert term.revision == cluster.holder()

    simulate(main)


def test_f7_a_lease_that_ends_while_standing_by_is_not_used() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=3)
        for _ in range(4):
            await asyncio.sleep(8)
            active = cluster.active()
            await active.controller.stop()
            await cluster.until(lambda: cluster.active().epoch > 0)
            number = next(n for n, each in cluster.controllers.items() if each is active)
            active.process.kill()
            await cluster.start_controller(number)
        reigning = [each for each in cluster.controllers.values() if each.epoch > 0]
        assert len(reigning) == 1
        assert reigning[0].epoch == 5

    simulate(main)


def test_a_campaign_whose_outcome_is_not_known_is_looked_up() -> None:
    async def main(cluster: Cluster) -> None:
        # Requests arrive and are done, answers are lost.
        await cluster.start_controller(1)
        cluster.etcd.cut("c1", replies_only=True)
        await cluster.until(lambda: cluster.etcd.server.leases() != [] or True)
        await asyncio.sleep(10)
        cluster.etcd.heal("c1")
        await cluster.until(lambda: cluster.controllers[1].epoch > 0)
        term = cluster.controllers[1].controller.term
        assert term is not None
        assert term.revision == cluster.holder()

    simulate(main)


@pytest.mark.parametrize("seed", range(5))
def test_f16b_a_keep_alive_answered_by_a_deposed_leader_proves_nothing(seed: int) -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=2)
        await cluster.create("t")
        cluster.etcd.depose("c1")
        # The old leader of etcd says yes to every renewal; the new one lets the lease end.
        await cluster.until(lambda: cluster.controllers[2].epoch == 2)
        assert "telling brokers nothing" in cluster.texts()
        await asyncio.sleep(2)
        assert all(each.controller_epoch == 2 for each in cluster.brokers.values())
        for broker in cluster.brokers.values():
            assert "order STALE_CONTROLLER" not in broker.refused
        cluster.etcd.heal("c1")
        await cluster.until(lambda: cluster.controllers[1].epoch == -1)

    simulate(main, seed=seed)


def test_a_key_that_nobody_can_read_is_waited_for() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.etcd.server.txn([], [Put(CONTROLLER, b"what?")])
        await cluster.start_controller(1)
        await asyncio.sleep(3)
        assert cluster.controllers[1].epoch == -1
        cluster.etcd.server.txn([], [Delete(CONTROLLER)])
        assert await cluster.until(lambda: cluster.controllers[1].epoch == 1) < 100

    simulate(main)


def test_controllers_campaign_as_soon_as_the_store_is_there() -> None:
    async def main(cluster: Cluster) -> None:
        cluster.etcd.stop()
        await cluster.start_controller(1)
        response = await cluster.call(
            methods.CONTROLLER_CREATE_TOPIC, pb.CreateTopicRequest(name="t"), number=1
        )
        assert response.error == common_pb2.ERROR_CODE_NOT_CONTROLLER
        assert "no other is known" in response.message
        await asyncio.sleep(10)
        cluster.etcd.start()
        assert await cluster.until(lambda: cluster.controllers[1].epoch == 1) < 2_000

    simulate(main)


def test_a_term_without_a_way_to_resign_ends_all_the_same() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=2)
        cluster.etcd.cut("c1")
        first = cluster.controllers[1]
        await first.process.spawn("stop", first.controller.stop())
        assert "the lease ends by itself" in cluster.texts()
        await cluster.until(lambda: cluster.controllers[2].epoch == 2)
        with pytest.raises(StoreUnavailable):
            await cluster.etcd.connect("c1").get("/x")

    simulate(main)
