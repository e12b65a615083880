"""One term at work on replicas and leaders: moved, resumed, given up, balanced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tailrace.meta.keys import ROOT, tombstone_key
from tailrace.model import TopicId, TopicPartition
from tailrace.transport import methods
from tailrace.transport.wire import code_name, to_partition
from tailrace.v1 import controller_pb2 as pb
from unit.controller.cluster import Cluster, simulate

T0 = TopicPartition("t", 0)


async def started(
    cluster: Cluster, *, brokers: int = 5, controllers: int = 1, **topic: Any
) -> None:
    await cluster.start(brokers=3, controllers=controllers)
    assert (await cluster.create("t", **topic)).error == 0
    for number in range(4, brokers + 1):
        await cluster.start_broker(number)
    await cluster.until(lambda: all(each.full_orders for each in cluster.brokers.values()))


async def reassign(cluster: Cluster, **given: Any) -> pb.ReassignResponse:
    if "plan" in given:
        given["plan"] = [
            pb.PartitionReplicas(
                partition=to_partition(TopicPartition("t", number)), replicas=replicas
            )
            for number, replicas in given["plan"].items()
        ]
    response: pb.ReassignResponse = await cluster.call(
        methods.CONTROLLER_REASSIGN, pb.ReassignRequest(**given)
    )
    return response


async def under_way(cluster: Cluster) -> list[pb.Reassignment]:
    response = await cluster.call(
        methods.CONTROLLER_LIST_REASSIGNMENTS, pb.ListReassignmentsRequest()
    )
    assert response.error == 0
    return list(response.reassignments)


async def catch_up(cluster: Cluster, *, partition: int = 0) -> None:
    """The leader takes all replicas that it was told of into the ISR."""
    where = TopicPartition("t", partition)
    leader = cluster.brokers[cluster.state("t", partition).leader]
    await cluster.until(
        lambda: leader.told[where].revision == cluster.stored("t", partition).revision
    )
    added = {
        each: cluster.brokers[each].epoch or 0
        for each in leader.told[where].replicas
        if each not in leader.told[where].isr
    }
    isr = [*leader.told[where].isr, *added]
    result = await leader.change_isr(isr, partition=partition, added=added)
    assert result.succeeded


def replicas(cluster: Cluster, partition: int = 0) -> Sequence[int]:
    return cluster.image().replicas(TopicPartition("t", partition))


def test_a_partition_moves_and_its_old_replicas_are_deleted() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        response = await reassign(cluster, plan={0: [4, 5, 1]})
        assert response.error == 0, response.message
        await cluster.until(lambda: replicas(cluster) == (4, 5, 1, 2, 3))
        (move,) = await under_way(cluster)
        assert (list(move.original), list(move.target)) == ([1, 2, 3], [4, 5, 1])
        assert (move.phase, move.leader) == (pb.REASSIGNMENT_PHASE_COPYING, 1)
        await cluster.until(lambda: T0 in cluster.brokers[4].told)
        assert cluster.brokers[1].told[T0].adding == (4, 5)
        await catch_up(cluster)
        await cluster.until(lambda: replicas(cluster) == (4, 5, 1))
        assert cluster.state().isr == (4, 5, 1)
        await cluster.until(
            lambda: all(T0 not in cluster.brokers[each].replicas for each in (2, 3))
        )
        assert all(T0 in cluster.brokers[each].replicas for each in (1, 4, 5))
        assert await under_way(cluster) == []
        causes = [each.cause for each in cluster.history().changes]
        assert causes[:2] == [
            "reassignment from [1, 2, 3] to [4, 5, 1] done",
            "reassignment from [1, 2, 3] to [4, 5, 1] began",
        ]

    simulate(main)


def test_a_dry_run_moves_nothing_and_says_what_would_move() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, partitions=5)
        response = await reassign(cluster, to_brokers=[1, 2, 3, 4, 5], validate_only=True)
        assert [list(each.target) for each in response.moves] == [
            *([2, 3, 4], [3, 4, 5], [4, 5, 1], [5, 1, 2]),
        ]
        assert await under_way(cluster) == []
        response = await reassign(cluster, plan={0: [1, 9]})
        assert code_name(response.error) == "UNKNOWN_BROKER"
        response = await reassign(cluster, drain=3, validate_only=True)
        assert len(response.moves) == 5

    simulate(main)


def test_the_next_controller_goes_on_with_what_moves() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, controllers=2, partitions=2)
        await reassign(cluster, plan={0: [4, 5, 1], 1: [4, 5, 1]})
        await cluster.until(lambda: replicas(cluster) == (4, 5, 1, 2, 3))
        cluster.controllers[1].process.kill()
        await catch_up(cluster, partition=0)
        await catch_up(cluster, partition=1)
        await cluster.until(lambda: replicas(cluster) == replicas(cluster, 1) == (4, 5, 1))
        await cluster.until(lambda: cluster.brokers[2].replicas == {})
        assert cluster.state("t", 1).leader == 1 or cluster.state("t", 1).leader_epoch > 0

    simulate(main)


def test_who_was_away_when_its_replica_moved_deletes_it_when_it_returns() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        cluster.brokers[3].kill()
        await cluster.until(lambda: cluster.state().isr == (1, 2))
        await reassign(cluster, plan={0: [1, 2, 4]})
        await cluster.until(lambda: replicas(cluster) == (1, 2, 4, 3))
        await cluster.until(lambda: T0 in cluster.brokers[4].told)
        leader = cluster.brokers[1]
        await cluster.until(lambda: leader.told[T0].revision == cluster.stored().revision)
        await leader.change_isr([1, 2, 4], added={4: cluster.brokers[4].epoch or 0})
        await cluster.until(lambda: replicas(cluster) == (1, 2, 4))
        again = await cluster.start_broker(3)
        assert T0 in again.replicas
        await cluster.until(lambda: again.replicas == {})

    simulate(main)


def test_what_is_given_up_goes_back() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        await reassign(cluster, plan={0: [4, 5, 1]})
        await cluster.until(lambda: T0 in cluster.brokers[4].replicas)
        response = await cluster.call(
            methods.CONTROLLER_CANCEL_REASSIGNMENTS, pb.CancelReassignmentsRequest()
        )
        assert [each.topic for each in response.partitions] == ["t"]
        await cluster.until(lambda: replicas(cluster) == (1, 2, 3))
        await cluster.until(lambda: cluster.brokers[4].replicas == {})
        assert cluster.state().isr == (1, 2, 3)
        # And again: the replica that was taken away is wanted once more.
        await reassign(cluster, plan={0: [4, 5, 1]})
        await cluster.until(lambda: T0 in cluster.brokers[4].replicas)
        await asyncio.sleep(2)
        assert T0 in cluster.brokers[4].replicas
        request = pb.CancelReassignmentsRequest(partitions=[to_partition(TopicPartition("t", 9))])
        response = await cluster.call(methods.CONTROLLER_CANCEL_REASSIGNMENTS, request)
        assert code_name(response.error) == "NO_REASSIGNMENT"

    simulate(main)


def test_a_topic_that_moves_can_be_deleted() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, partitions=3)
        await reassign(cluster, to_brokers=[1, 2, 3, 4, 5])
        await cluster.until(lambda: len(cluster.image().reassignments) == 2)
        await cluster.call(methods.CONTROLLER_DELETE_TOPIC, pb.DeleteTopicRequest(name="t"))
        await cluster.until(lambda: "t" not in cluster.image().topics)
        keys = [each.key for each in cluster.etcd.server.snapshot(ROOT).entries]
        left = [each for each in keys if each.startswith(("/admin/", "/brokers/topics/"))]
        assert left == [tombstone_key(TopicId(each)) for each in cluster.image().tombstones]
        await cluster.until(lambda: all(not each.replicas for each in cluster.brokers.values()))

        assert all(not each.strays for each in cluster.brokers.values())

    simulate(main)


# ----------------------------------------------------------------------------------------- leaders


async def elect(cluster: Cluster, **given: Any) -> pb.ElectLeadersResponse:
    response: pb.ElectLeadersResponse = await cluster.call(
        methods.CONTROLLER_ELECT_LEADERS, pb.ElectLeadersRequest(**given)
    )
    return response


async def bounce(cluster: Cluster, number: int) -> None:
    """A broker dies, comes back and is in sync again, but leads nothing."""
    cluster.brokers[number].kill()
    await cluster.until(lambda: all(each.leader != number for each in cluster.states().values()))
    again = await cluster.start_broker(number)
    await cluster.until(lambda: bool(again.full_orders))
    for partition in list(cluster.states()):
        await catch_up(cluster, partition=partition.partition)


def test_preferred_leaders_by_hand() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, brokers=3, partitions=3)
        await bounce(cluster, 1)
        assert cluster.state("t", 0).leader == 2
        response = await elect(cluster)
        (done,) = response.partitions
        assert (done.partition.partition, done.leader, done.error) == (0, 1, 0)
        await cluster.until(lambda: cluster.brokers[1].leads("t", 0))
        wish = pb.LeaderWish(partition=to_partition(T0), leader=-1)
        (refused,) = (await elect(cluster, partitions=[wish])).partitions
        assert code_name(refused.error) == "ELECTION_NOT_NEEDED"
        assert cluster.history().changes[0].cause == "preferred leader, asked for"

    simulate(main)


def test_leaders_are_balanced_by_the_clock() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, brokers=3, partitions=3)
        await bounce(cluster, 1)
        assert cluster.state("t", 0).leader == 2
        await cluster.until(lambda: cluster.state("t", 0).leader == 1, within_s=25)
        assert cluster.history().changes[0].cause == "preferred leader, automatic"

    simulate(main, leader_imbalance_check_interval_ms=20_000)


def test_balance_can_be_switched_off() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, brokers=3, partitions=3)
        await bounce(cluster, 1)
        await asyncio.sleep(60)
        assert cluster.state("t", 0).leader == 2

    simulate(main, leader_imbalance_check_interval_ms=20_000, auto_leader_rebalance_enable=False)


def test_f12_a_person_decides_when_nobody_holds_everything() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, brokers=3, config={"min.insync.replicas": "1"})
        await started_unclean(cluster)
        wish = pb.LeaderWish(partition=to_partition(T0), leader=2, loss="it ends at offset 70")
        assert (await elect(cluster, unclean=True)).error != 0
        (done,) = (await elect(cluster, partitions=[wish], unclean=True)).partitions
        assert (done.leader, done.error) == (2, 0)
        await cluster.until(cluster.brokers[2].leads)
        assert cluster.history().changes[0].loss.endswith("it ends at offset 70")
        assert cluster.state().loss == cluster.history().changes[0].loss
        await cluster.until(
            lambda: bool(cluster.brokers[3].pictures[-1].topics[0].partitions[0].loss)
        )

    async def started_unclean(cluster: Cluster) -> None:
        """Broker 1 alone was in sync, and comes back with another disk."""
        await cluster.call(
            methods.CONTROLLER_ALTER_CONFIG,
            pb.AlterConfigRequest(
                kind=pb.CONFIG_KIND_TOPIC, name="t", set={"unclean.recovery": "refuse"}
            ),
        )
        leader = cluster.brokers[1]
        assert (await leader.change_isr([1])).succeeded
        leader.kill()
        await cluster.until(lambda: cluster.state().leader == -1)
        await cluster.start_broker(1, incarnation="another disk")
        await cluster.until(lambda: cluster.state().isr == ())

    simulate(main)
