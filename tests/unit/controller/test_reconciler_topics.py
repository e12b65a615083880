"""One term at work on topics: made, deleted, shown, and replicas that cannot be served."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tailrace.meta.keys import (
    TOMBSTONES,
    TopicDeletion,
    TopicRecord,
    deletion_key,
    encode,
    topic_key,
)
from tailrace.meta.store import Delete, Put
from tailrace.model import BrokerId, TopicId, TopicPartition
from tailrace.transport import methods
from tailrace.v1 import common_pb2
from tailrace.v1 import controller_pb2 as pb
from unit.controller.cluster import Cluster, simulate

T0 = TopicPartition("t", 0)


async def started(cluster: Cluster, *, brokers: int = 3, **topic: Any) -> None:
    """A cluster with topic `t`, all of whose leaders know that they lead."""
    await cluster.start(brokers=brokers)
    response = await cluster.create("t", **topic)
    assert response.error == 0, response.message


def parts(cluster: Cluster, partition: int = 0) -> tuple[Any, ...]:
    state = cluster.state("t", partition)
    return state.leader, state.leader_epoch, state.isr, state.elr


# ------------------------------------------------------------------------------------------ topics


def test_a_topic_of_many_partitions_is_made_in_many_transactions() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, partitions=1_000)
        assert len(cluster.states()) == 1_000
        assert all(state.leader >= 0 for state in cluster.states().values())
        assert all(len(broker.told) == 1_000 for broker in cluster.brokers.values())

    simulate(main, request_timeout_ms=20_000)


def test_a_controller_that_dies_while_it_makes_a_topic_leaves_one_that_can_be_finished() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=2)
        asked = cluster.loop.create_task(cluster.create("t", partitions=500))
        await cluster.until(lambda: 0 < len(cluster.states()) < 500)
        cluster.controllers[1].process.kill()
        with pytest.raises(Exception, match="died"):
            await asked
        await cluster.until(lambda: len(cluster.states()) == 500)
        await cluster.until(lambda: len(cluster.brokers[1].told) == 500)
        response = await cluster.create("t")
        assert response.error == common_pb2.ERROR_CODE_TOPIC_EXISTS

    simulate(main)


async def delete(cluster: Cluster, name: str = "t", topic_id: str = "") -> pb.DeleteTopicResponse:
    response: pb.DeleteTopicResponse = await cluster.call(
        methods.CONTROLLER_DELETE_TOPIC, pb.DeleteTopicRequest(name=name, topic_id=topic_id)
    )
    return response


def keys_of_topics(cluster: Cluster) -> list[str]:
    """All of them but the records of deletions: these stay, for brokers that are away."""
    server = cluster.etcd.server
    entries = (*server.snapshot("/brokers/topics/").entries, *server.snapshot("/admin/").entries)
    return [each.key for each in entries if not each.key.startswith(TOMBSTONES)]


def test_a_deleted_topic_leaves_nothing_behind_but_the_record_of_it() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, partitions=100)
        topic_id = cluster.brokers[1].told[T0].topic_id
        assert (await delete(cluster)).error == 0
        await cluster.until(lambda: keys_of_topics(cluster) == [])
        (kept,) = cluster.image().tombstones.items()
        assert (kept[0], kept[1].record.name) == (topic_id, "t")
        assert kept[1].record.controller_epoch == cluster.active().epoch
        assert all(broker.replicas == {} for broker in cluster.brokers.values())
        await cluster.until(
            lambda: all(not each.pictures[-1].topics for each in cluster.brokers.values())
        )
        assert (await delete(cluster)).error == common_pb2.ERROR_CODE_UNKNOWN_TOPIC

    simulate(main)


def test_f34_a_topic_made_anew_is_another_topic() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        first = cluster.brokers[1].told[T0].topic_id
        assert (await delete(cluster, topic_id="another")).error == (
            common_pb2.ERROR_CODE_UNKNOWN_TOPIC_ID
        )
        assert (await delete(cluster, topic_id=first)).error == 0
        await cluster.until(lambda: keys_of_topics(cluster) == [])
        assert (await cluster.create("t")).error == 0
        second = cluster.brokers[1].told[T0].topic_id
        assert second != first
        assert parts(cluster) == (1, 0, (1, 2, 3), ())

    simulate(main)


def test_who_is_away_deletes_its_replicas_when_it_returns() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        await cluster.create("kept")
        cluster.brokers[3].kill()
        await delete(cluster)
        await cluster.until(lambda: "/brokers/topics/t" not in keys_of_topics(cluster))
        again = await cluster.start_broker(3)
        assert T0 in again.replicas
        await cluster.until(lambda: T0 not in again.replicas)
        assert list(again.replicas) == [TopicPartition("kept", 0)]
        assert again.strays == {}

    simulate(main)


def test_f42_l2_replicas_of_a_topic_that_the_store_never_knew_are_set_aside() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        # As when the store was put back from a copy that is older than the topic.
        topic_id = cluster.brokers[3].replicas[T0]
        cluster.brokers[3].kill()
        server = cluster.etcd.server
        keys = [each.key for each in server.snapshot("/brokers/topics/").entries]
        older = server.txn([], [Delete(each) for each in keys]).revision
        again = await cluster.start_broker(3)
        await cluster.until(lambda: again.strays == {T0: topic_id})
        assert "no record of its deletion: it is set aside" in cluster.texts()
        assert [each >= older for each in again.aside_at] == [True]
        assert again.deleted == []
        assert cluster.brokers[1].deleted == []
        # It is reported for as long as it is there, and said once.
        for _ in range(2):
            cluster.brokers[3].kill()
            again = await cluster.start_broker(3)
            await cluster.until(lambda: again.full_orders > 0)  # noqa: B023
            await asyncio.sleep(1)
        assert again.strays == {T0: topic_id}
        assert cluster.texts().count(f"broker 3 has a replica of {T0} of topic {topic_id}") == 1

    simulate(main)


def test_a_broker_that_hangs_holds_up_a_deletion_until_it_is_gone() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        cluster.brokers[3].hangs = True
        await delete(cluster)
        await asyncio.sleep(3)
        assert "/brokers/topics/t" in keys_of_topics(cluster)
        cluster.brokers[3].kill()
        await cluster.until(lambda: keys_of_topics(cluster) == [])

    simulate(main)


def test_a_deletion_goes_on_under_the_next_controller() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start(controllers=2)
        await cluster.create("t", partitions=200)
        cluster.brokers[2].hangs = True
        await delete(cluster)
        cluster.controllers[1].process.kill()
        cluster.brokers[2].hangs = False
        await cluster.until(lambda: keys_of_topics(cluster) == [])
        assert all(broker.replicas == {} for broker in cluster.brokers.values())

    simulate(main)


def test_a_deletion_that_was_half_done_is_finished() -> None:
    async def main(cluster: Cluster) -> None:
        # As a controller leaves it that dies after the partitions' keys went.
        record = TopicRecord(
            topic_id=TopicId("old"),
            assignment={0: (BrokerId(1),), 1: (BrokerId(2),)},
            config={},
        )
        cluster.etcd.server.txn(
            [],
            [
                Put(topic_key("t"), encode(record)),
                Put(deletion_key("t"), encode(TopicDeletion(topic_id=TopicId("old")))),
            ],
        )
        await cluster.start()
        await cluster.until(lambda: keys_of_topics(cluster) == [])

    simulate(main)


def test_strays_of_topics_that_cannot_be_read_are_left_alone() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        cluster.etcd.server.txn([], [Put(topic_key("t"), b"{broken")])
        cluster.brokers[3].kill()
        again = await cluster.start_broker(3)
        await cluster.until(lambda: again.full_orders == 1)
        await asyncio.sleep(1)
        assert T0 in again.replicas
        assert "it is left alone" in cluster.texts()
        assert "cannot be read" in cluster.texts()

    simulate(main)


def test_a_topic_without_a_known_id_is_left_alone() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        cluster.brokers[3].kill()
        cluster.brokers[3].replicas = {TopicPartition("unknown", 0): ""}
        again = await cluster.start_broker(3)
        await cluster.until(lambda: again.full_orders == 1)
        await asyncio.sleep(1)
        assert again.replicas != {}

    simulate(main)


# ------------------------------------------------------------------------- replicas that cannot be


def test_f13_a_leader_whose_disk_fails_is_replaced() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        cluster.brokers[1].failing = {T0: common_pb2.ERROR_CODE_STORAGE_ERROR}
        await cluster.create("t")
        await cluster.until(cluster.brokers[2].leads)
        assert cluster.state().leader == 2
        assert "cannot serve its replica" in cluster.history().changes[0].cause
        # As a follower it obeys, so it may be elected again.
        await cluster.until(lambda: T0 in cluster.brokers[1].told)

    simulate(main)


def test_f13_the_last_replica_is_damaged_and_the_partition_stays_offline() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        cluster.brokers[1].failing = {T0: common_pb2.ERROR_CODE_DAMAGED_LOG}
        await cluster.create("t", replication_factor=1)
        await cluster.until(lambda: cluster.state().leader == -1)
        await asyncio.sleep(5)
        assert parts(cluster) == (-1, 1, (), ())
        # A restart may have mended it; where one replica is enough, it may lead again.
        cluster.brokers[1].kill()
        await cluster.until(lambda: BrokerId(1) not in cluster.image().brokers)
        await cluster.start_broker(1)
        await cluster.until(cluster.brokers[1].leads)
        assert cluster.history().changes[0].loss != ""

    simulate(main)


def test_an_order_that_fails_for_another_reason_is_repeated() -> None:
    async def main(cluster: Cluster) -> None:
        await cluster.start()
        cluster.brokers[1].failing = {T0: common_pb2.ERROR_CODE_INVALID_CONFIG}
        asked = cluster.loop.create_task(cluster.create("t"))
        await asyncio.sleep(2)
        assert cluster.state().leader == 1
        cluster.brokers[1].failing = {}
        await cluster.until(cluster.brokers[1].leads)
        assert (await asked).error == 0

    simulate(main)


# ------------------------------------------------------------------------------------- the picture


def test_every_broker_gets_the_picture_and_every_change_of_it() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster, config={"retention.ms": "77000"})
        await cluster.until(
            lambda: all(
                each.pictures[-1].topics and each.pictures[-1].topics[0].partitions[0].leader == 1
                for each in cluster.brokers.values()
            )
        )
        picture = cluster.brokers[3].pictures[-1]
        assert [each.id for each in picture.brokers] == [1, 2, 3]
        assert (picture.controller.host, picture.controller.port) == ("c1", 9090)
        (topic,) = picture.topics
        assert (topic.name, dict(topic.config)) == ("t", {"retention.ms": "77000"})
        assert topic.partitions[0].leader == 1
        assert topic.partitions[0].revision == cluster.stored().revision
        cluster.brokers[1].kill()
        await cluster.until(
            lambda: cluster.brokers[3].pictures[-1].topics[0].partitions[0].leader == 2
        )
        assert [each.id for each in cluster.brokers[3].pictures[-1].brokers] == [2, 3]
        revisions = [each.revision for each in cluster.brokers[3].pictures]
        assert revisions == sorted(revisions)

    simulate(main)


def test_a_new_leader_knows_before_clients_are_sent_to_it() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        cluster.brokers[1].kill()
        await cluster.until(
            lambda: cluster.brokers[3].pictures[-1].topics[0].partitions[0].leader == 2
        )
        assert cluster.brokers[2].leads()

    simulate(main)


def test_a_broker_that_registers_late_gets_the_picture_too() -> None:
    async def main(cluster: Cluster) -> None:
        await started(cluster)
        late = await cluster.start_broker(4)
        await cluster.until(lambda: late.pictures != [])
        assert late.pictures[-1].topics[0].name == "t"
        await cluster.until(lambda: len(cluster.brokers[1].pictures[-1].brokers) == 4)

    simulate(main)
