"""One term at work: brokers fail, stop, return; topics come and go; the store has its moods."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.controller.ledger import incarnation_key
from tailrace.meta.keys import (
    CONTROLLER,
    BrokerRegistration,
    broker_key,
    decode,
    state_key,
)
from tailrace.meta.store import Delete, Put
from tailrace.model import BrokerId, TopicPartition
from tailrace.transport import methods
from tailrace.v1 import common_pb2
from tailrace.v1 import controller_pb2 as pb
from unit.controller.cluster import Cluster, FakeBroker, simulate

T0 = TopicPartition("t", 0)


async def started(cluster: Cluster, *, brokers: int = 3, **topic: Any) -> None:
    """A cluster with topic `t`, all of whose leaders know that they lead."""
    await cluster.start(brokers=brokers)
    response = await cluster.create("t", **topic)
    assert response.error == 0, response.message


def parts(cluster: Cluster, partition: int = 0) -> tuple[Any, ...]:
    state = cluster.state("t", partition)
    return state.leader, state.leader_epoch, state.isr, state.elr


# ------------------------------------------------------------------------------ brokers that fail


@pytest.mark.parametrize("seed", range(10))
def test_a_killed_leader_is_replaced_within_100_ms(seed: int) -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, partitions=3)
        cluster.brokers[1].kill()
        took_ms = await cluster.until(cluster.brokers[2].leads)
        assert took_ms < 100
        await cluster.until(lambda: cluster.brokers[3].told[T0].leader == 2)
        assert parts(cluster) == (2, 1, (2, 3), ())
        # Those that it only followed lost it too, so that acks=all waits for nobody.
        assert parts(cluster, 1) == (2, 0, (2, 3), ())
        (change, _) = cluster.history().changes
        assert change.cause == "broker 1: connection refused, its process is gone"
        assert change.noticed_ms <= change.decided_ms <= change.noticed_ms + 100

    simulate(main, seed=seed)


def test_a_silent_broker_is_replaced_when_its_lease_ends_not_before() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        cluster.brokers[1].process.pause()
        await asyncio.sleep(3)
        assert parts(cluster) == (1, 0, (1, 2, 3), ())
        took_ms = await cluster.until(cluster.brokers[2].leads)
        assert took_ms < 4_000
        assert cluster.history().changes[0].cause == "broker 1: its lease ended"

    simulate(main)


def test_a_broken_health_stream_alone_fences_nobody() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        for _ in range(20):
            cluster.network.break_connections("c1", "b1")
            await asyncio.sleep(0.3)
        assert parts(cluster) == (1, 0, (1, 2, 3), ())

    simulate(main)


def test_brokers_that_hang_hold_up_nobody_else() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, partitions=6)
        cluster.brokers[3].hangs = True
        cluster.brokers[1].kill()
        took_ms = await cluster.until(cluster.brokers[2].leads)
        assert took_ms < 100
        await cluster.until(
            lambda: any(
                topic.partitions[0].leader == 2 for topic in cluster.brokers[2].pictures[-1].topics
            ),
            within_s=0.5,
        )
        # It gets the newest order when it is back, and only that.
        count = cluster.brokers[3].order_count
        cluster.brokers[3].hangs = False
        await cluster.until(lambda: cluster.brokers[3].order_count > count)
        assert cluster.brokers[3].told[T0].leader == 2

    simulate(main)


@pytest.mark.parametrize("seed", range(5))
def test_f17_a_dead_broker_is_noticed_although_etcd_keeps_electing_leaders(seed: int) -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        cluster.brokers[1].kill()
        before = cluster.loop.time()
        for _ in range(5):
            # Each new leader of etcd gives every lease its whole TTL again.
            cluster.etcd.leader_change(300)
            await asyncio.sleep(1)
        assert cluster.brokers[2].leads()
        told_at = cluster.brokers[2].told[T0].at_ms / 1_000
        assert told_at - before < 3

    simulate(main, seed=seed)


def test_f20_a_loss_that_was_compacted_away_is_not_missed() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        cluster.etcd.cut("c1")
        await asyncio.sleep(0.5)
        broker = cluster.brokers[1]
        broker.renews = False
        cluster.etcd.server.revoke_lease(broker.lease)
        cluster.etcd.server.txn([], [Put("/elsewhere", b"1")])
        cluster.etcd.compact()
        cluster.etcd.heal("c1")
        await cluster.until(cluster.brokers[2].leads)
        assert "compacted away" in cluster.texts()
        assert parts(cluster) == (2, 1, (2, 3), ())

    simulate(main)


def test_a_watch_that_went_deaf_is_noticed() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        # What the watch does not bring: a commit that wakes nobody up.
        server = cluster.etcd.server
        wake, server.wake = server.wake, lambda: None  # type: ignore[method-assign]
        cluster.brokers[1].renews = False
        server.revoke_lease(cluster.brokers[1].lease)
        await cluster.until(lambda: cluster.state().leader == 2, within_s=12)
        assert "the watch brings nothing" in cluster.texts()
        server.wake = wake  # type: ignore[method-assign]

    simulate(main)


# -------------------------------------------------------------------------- brokers that come back


def test_f8_a_broker_that_bounces_gets_no_orders_of_its_former_life() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        first = cluster.brokers[1]
        first.kill()
        again = await cluster.start_broker(1)
        assert again.epoch != first.epoch
        await cluster.until(lambda: again.full_orders == 1 and not cluster.state().elr)
        await asyncio.sleep(1)
        # What came for the former life was refused; it was told everything anew.
        assert again.told[T0].revision == cluster.stored().revision

    simulate(main)


def test_f8_an_order_for_a_former_life_is_refused_and_replaced() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        cluster.brokers[1].kill()
        # The controller cannot see the new registration, and goes on telling the old life.
        cluster.etcd.cut("c1")
        again = await cluster.start_broker(1)
        await asyncio.sleep(1)
        assert again.told == {}
        cluster.etcd.heal("c1")
        await cluster.until(lambda: again.full_orders == 1)
        assert again.told[T0].revision == cluster.stored().revision

    simulate(main)


def test_a_bounce_that_nobody_saw_changes_nothing() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        # The controller dies, the leader bounces, and only then is there a controller again.
        cluster.controllers[1].process.kill()
        cluster.brokers[1].kill()
        await cluster.start_broker(1)
        await cluster.start_controller(1)
        await cluster.until(cluster.brokers[1].leads)
        # Its log is as it was. It was told everything anew.
        assert parts(cluster) == (1, 0, (1, 2, 3), ())
        assert cluster.brokers[1].full_orders == 1

    simulate(main)


@pytest.mark.parametrize("seed", range(5))
def test_a_lost_tail_leaves_every_isr_before_any_order(seed: int) -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, partitions=70)
        cluster.brokers[1].kill()
        await cluster.until(lambda: 1 not in cluster.state().isr)
        stores: list[list[int]] = []

        def watch_orders(broker: FakeBroker) -> None:
            stores.extend(
                [partition.partition for partition, state in cluster.states().items()
                 if 1 in (*state.isr, *state.elr)]
                for _ in broker.told
            )  # fmt: skip

        again = await cluster.start_broker(1, tail_may_be_lost=True)
        await cluster.until(lambda: again.full_orders == 1)
        watch_orders(again)
        assert all(not each for each in stores)
        entry = cluster.etcd.server.get(broker_key(1))
        assert entry is not None
        registration = decode(BrokerRegistration, entry.value)
        assert not registration.tail_may_be_lost
        # It kept its lease, so that it goes when the broker does.
        assert entry.lease == again.lease
        assert entry.create_revision == again.epoch

    simulate(main, seed=seed)


def test_f12_the_last_replica_lost_its_tail_and_returns() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        for broker in (3, 2, 1):
            cluster.brokers[broker].kill()
            await cluster.until(lambda broker=broker: broker not in cluster.state().isr)  # type: ignore[misc]
        assert parts(cluster) == (-1, 1, (), (2, 1))
        # Broker 1 was the last one, but it has lost something: not the one to lead.
        await cluster.start_broker(1, tail_may_be_lost=True)
        await cluster.until(lambda: cluster.brokers[1].full_orders == 1)
        assert parts(cluster) == (-1, 1, (), (2,))
        await cluster.start_broker(2)
        await cluster.until(cluster.brokers[2].leads)
        assert parts(cluster) == (2, 2, (2,), ())

    simulate(main)


def test_f12_where_one_is_enough_the_last_leader_returns_with_a_loss_statement() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, replication_factor=1)
        cluster.brokers[1].kill()
        await cluster.until(lambda: cluster.state().leader == -1)
        await cluster.start_broker(1, tail_may_be_lost=True)
        await cluster.until(cluster.brokers[1].leads)
        assert parts(cluster) == (1, 2, (1,), ())
        assert "epoch 1" in cluster.history().changes[0].loss

    simulate(main)


def test_f23_another_disk_is_in_no_isr_before_it_gets_orders() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        # It comes back so fast that nobody has seen it go.
        cluster.controllers[1].process.kill()
        cluster.brokers[1].kill()
        cluster.brokers[1].replicas = {}
        await cluster.start_broker(1, incarnation="a new volume")
        await cluster.start_controller(1)
        await cluster.until(lambda: cluster.brokers[1].full_orders == 1)
        assert parts(cluster) == (2, 1, (2, 3), ())
        entry = cluster.etcd.server.get(incarnation_key(BrokerId(1)))
        assert entry is not None
        assert entry.value == b"a new volume"

    simulate(main)


# ---------------------------------------------------------------------------- the leader's own ISR


def test_f10_a_fenced_replica_does_not_join_the_isr() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        leader, follower = cluster.brokers[1], cluster.brokers[3]
        assert follower.epoch is not None
        result = await leader.change_isr([1, 2])
        assert result.succeeded
        await cluster.until(lambda: leader.told[T0].isr == (1, 2))
        joining = follower.epoch
        response = await cluster.call(
            methods.CONTROLLER_FENCE_BROKER,
            pb.FenceBrokerRequest(broker_id=3, broker_epoch=joining, reason="the pod is gone"),
        )
        assert response.error == 0
        # The follower had caught up in its former life.
        result = await leader.change_isr([1, 2, 3], added={3: joining})
        assert not result.succeeded
        assert parts(cluster) == (1, 0, (1, 2), ())

    simulate(main)


def test_f10_one_that_joins_in_the_moment_before_it_is_fenced_is_taken_out() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        leader, follower = cluster.brokers[1], cluster.brokers[3]
        await leader.change_isr([1, 2])
        await cluster.until(lambda: leader.told[T0].isr == (1, 2))
        assert follower.epoch is not None
        joins = leader.process.spawn(
            "join", leader.change_isr([1, 2, 3], added={3: follower.epoch})
        )
        follower.kill()
        assert (await joins).succeeded
        assert cluster.state().isr == (1, 2, 3)
        await cluster.until(lambda: cluster.state().isr == (1, 2))
        await cluster.until(lambda: leader.told[T0].revision == cluster.stored().revision)

    simulate(main)


@pytest.mark.parametrize("seed", range(20))
def test_f11_a_shrink_by_the_leader_and_an_election_never_mix(seed: int) -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, partitions=3)
        leader = cluster.brokers[1]
        # The leader takes out 3 in the moment in which it is killed: one of both comes first.
        attempt = leader.process.spawn("shrink", leader.change_isr([1, 2]))
        await asyncio.sleep(cluster.loop.rng.uniform(0, 0.003))
        leader.kill()
        await cluster.until(cluster.brokers[2].leads)
        shrunk = cluster.history().changes[0].old_isr == (1, 2)
        assert parts(cluster) == (2, 1, (2,) if shrunk else (2, 3), (1,) if shrunk else ())
        if attempt.done() and attempt.result().succeeded:
            assert shrunk

    simulate(main, seed=seed)


def test_f11_an_election_from_an_old_state_is_refused_and_decided_again() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        # The controller hears late of what the leader does.
        cluster.etcd.slow(200, "c1")
        result = await cluster.brokers[1].change_isr([1, 3])
        assert result.succeeded
        cluster.brokers[1].kill()
        await cluster.until(cluster.brokers[3].leads)
        assert parts(cluster) == (3, 1, (3,), (1,))

    simulate(main)


# -------------------------------------------------------------------------------------- the damper


@pytest.mark.parametrize("seed", range(5))
def test_f16_when_all_leases_are_revoked_all_keep_their_leaderships(seed: int) -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, partitions=6)
        before = cluster.states()
        # The controller's own lease, too.
        cluster.etcd.revoke_all_leases()
        await asyncio.sleep(0.2)
        assert cluster.states() == before
        await cluster.until(lambda: all(each.full_orders >= 2 for each in cluster.brokers.values()))
        await asyncio.sleep(10)
        assert cluster.states() == before

    simulate(main, seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_f16_brokers_that_answer_keep_what_they_have_until_they_register_anew(seed: int) -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, partitions=6)
        leaders = {partition: state.leader for partition, state in cluster.states().items()}
        for broker in cluster.brokers.values():
            cluster.etcd.server.revoke_lease(broker.lease)
        await cluster.until(lambda: "they keep what they have" in cluster.texts())
        await asyncio.sleep(8)
        assert {p: state.leader for p, state in cluster.states().items()} == leaders
        assert all(len(state.isr) == 3 for state in cluster.states().values())
        assert all(state.leader_epoch == 0 for state in cluster.states().values())
        assert cluster.active().epoch == 1

    simulate(main, seed=seed)


def test_f16_leases_that_end_one_shortly_after_the_other_are_one_hiccup() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, partitions=3)
        before = cluster.states()
        for broker in cluster.brokers.values():
            cluster.etcd.server.revoke_lease(broker.lease)
            await asyncio.sleep(0.03)
        await asyncio.sleep(10)
        assert cluster.states() == before

    simulate(main)


def test_f16_brokers_that_do_not_register_anew_are_given_up() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        for number in (1, 2):
            broker = cluster.brokers[number]
            broker.renews = False
            cluster.etcd.server.revoke_lease(broker.lease)
        took_ms = await cluster.until(lambda: cluster.state().leader == 3)
        assert 4_500 < took_ms < 6_000
        assert "it did not register anew in time" in cluster.history().changes[0].cause

    simulate(main)


def test_f16_brokers_whose_process_is_gone_are_not_waited_for() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        # Nobody can look: the health streams break while etcd loses the leases.
        for number in (1, 2):
            cluster.etcd.server.revoke_lease(cluster.brokers[number].lease)
            cluster.brokers[number].kill()
        took_ms = await cluster.until(cluster.brokers[3].leads)
        assert took_ms < 500

    simulate(main)


def test_f16_brokers_that_are_silent_are_waited_for_a_little() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        for number in (1, 2):
            cluster.brokers[number].process.pause()
            cluster.etcd.server.revoke_lease(cluster.brokers[number].lease)
        took_ms = await cluster.until(cluster.brokers[3].leads)
        assert 1_000 < took_ms < 5_000
        assert "it does not answer" in cluster.history().changes[0].cause

    simulate(main)


@pytest.mark.parametrize("controllers", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_one_whose_lease_ended_while_the_store_hung_keeps_its_leaderships(
    seed: int, controllers: int
) -> None:
    """Also when the controller's own lease ended, and one takes over that only stood by."""

    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=controllers)
        await cluster.create("t", partitions=6, replication_factor=3)
        # One that stands by has seen the brokers.
        await asyncio.sleep(7)
        before = cluster.states()
        cluster.etcd.stop()
        await asyncio.sleep(60)
        cluster.etcd.start()
        holder = cluster.etcd.server.get(CONTROLLER)
        assert holder is not None
        for lease in (cluster.brokers[1].lease, holder.lease):
            cluster.etcd.server.revoke_lease(lease)
        # It registers anew a second later than the next controller looks.
        cluster.etcd.cut("b1")
        await asyncio.sleep(1)
        cluster.etcd.heal("b1")
        await asyncio.sleep(10)
        assert cluster.states() == before
        assert "while the metadata store was in trouble" in cluster.texts()

    simulate(main, seed=seed)


def test_one_that_died_while_the_store_hung_is_replaced_soon_after() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        cluster.etcd.stop()
        cluster.brokers[1].kill()
        await asyncio.sleep(20)
        cluster.etcd.start()
        cluster.etcd.server.revoke_lease(cluster.brokers[1].lease)
        took_ms = await cluster.until(lambda: cluster.state().leader != 1)
        assert took_ms < 1_500

    simulate(main)


def test_two_of_three_killed_are_no_hiccup() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        cluster.brokers[1].kill()
        cluster.brokers[2].kill()
        took_ms = await cluster.until(cluster.brokers[3].leads)
        assert took_ms < 200
        # Noticed at once, or one after the other: then two were still in sync without the first.
        assert parts(cluster)[2:] in {((3,), (1, 2)), ((3,), (1,)), ((3,), (2,))}

    simulate(main)


# ---------------------------------------------------------------------- brokers that stop in order


async def shut_down(cluster: Cluster, number: int) -> pb.ControlledShutdownResponse:
    response: pb.ControlledShutdownResponse = await cluster.call(
        methods.CONTROLLER_CONTROLLED_SHUTDOWN,
        pb.ControlledShutdownRequest(
            broker_id=number, broker_epoch=cluster.brokers[number].epoch or 0
        ),
    )
    return response


def test_a_broker_that_shuts_down_is_relieved_before_it_is_answered() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, partitions=3)
        response = await shut_down(cluster, 1)
        assert (response.error, list(response.remaining)) == (0, [])
        assert cluster.brokers[2].leads(), "the new leader knows before the old one goes"
        assert parts(cluster) == (2, 1, (1, 2, 3), ())
        assert cluster.history().changes[0].cause == "broker 1 is shutting down"
        await cluster.brokers[1].process.spawn("stop", cluster.brokers[1].stop_in_order())
        took_ms = await cluster.until(lambda: cluster.state().isr == (2, 3))
        assert took_ms < 150
        assert cluster.state("t", 2).leader_epoch == 0
        again = await shut_down(cluster, 1)
        assert again.error == common_pb2.ERROR_CODE_STALE_BROKER

    simulate(main)


def test_what_nobody_else_can_lead_remains() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, replication_factor=1, partitions=3)
        response = await shut_down(cluster, 2)
        assert [each.partition for each in response.remaining] == [1]
        await cluster.brokers[2].process.spawn("stop", cluster.brokers[2].stop_in_order())
        await cluster.until(lambda: cluster.state("t", 1).leader == -1)
        assert cluster.history("t", 1).changes[0].cause.endswith("stopped in order")

    simulate(main)


def test_a_broker_can_ask_for_it_on_its_health_stream() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        cluster.brokers[1].draining = True
        took_ms = await cluster.until(cluster.brokers[2].leads)
        assert took_ms < 1_100

    simulate(main)


def test_f27_leaderships_leave_a_broker_whose_disk_is_slow_and_do_not_come_back() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        cluster.brokers[1].unfit = "/data is slow"
        took_ms = await cluster.until(cluster.brokers[2].leads)
        assert took_ms < 1_100
        assert parts(cluster) == (2, 1, (1, 2, 3), ())
        assert "/data is slow" in cluster.history().changes[0].cause
        cluster.brokers[1].unfit = ""
        await asyncio.sleep(10)
        assert parts(cluster) == (2, 1, (1, 2, 3), ())

    simulate(main)


# --------------------------------------------------------------------------------------- the store


@pytest.mark.parametrize("seed", range(10))
def test_transactions_whose_outcome_is_not_known_are_looked_up(seed: int) -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, partitions=4)
        cluster.brokers[1].kill()
        await asyncio.sleep(cluster.loop.rng.uniform(0.02, 0.03))
        # Calls on their way may or may not be done; nobody is told.
        cluster.etcd.leader_change(200)
        await cluster.until(cluster.brokers[2].leads)
        await asyncio.sleep(2)
        assert parts(cluster) == (2, 1, (2, 3), ())
        assert [change.new_leader for change in cluster.history().changes] == [2, 1]

    simulate(main, seed=seed)


def test_a_store_that_refuses_for_no_reason_is_not_asked_in_a_loop() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        server = cluster.etcd.server
        real = server.txn
        attempts = []

        def refuse(guards: Any, operations: Any) -> Any:
            if any(each.key == state_key(T0) for each in operations):
                attempts.append(cluster.loop.now_ms)
                return real([*guards, *guards[:0]], operations)._replace(succeeded=False)
            return real(guards, operations)

        server.txn = refuse  # type: ignore[method-assign]
        cluster.etcd.server.txn([], [Delete(broker_key(3))])
        await asyncio.sleep(3)
        assert len(attempts) < 40
        server.txn = real  # type: ignore[method-assign]

    simulate(main)
