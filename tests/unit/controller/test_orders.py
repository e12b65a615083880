"""Senders tell the newest, at once, to each broker by itself, until it was heard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from simulation.loop import SimLoop, run
from simulation.network import SimNetwork
from tailrace.controller.facts import Term
from tailrace.controller.orders import PARTITIONS_PER_ORDER, Orders, Replica, Reports
from tailrace.controller.settings import ControllerSettings
from tailrace.meta.image import (
    ClusterImage,
    LiveBroker,
    StoredDeletion,
    StoredState,
    StoredTopic,
)
from tailrace.meta.keys import BrokerRegistration, PartitionState, TopicDeletion, TopicRecord
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition
from tailrace.runtime import Tasks
from tailrace.transport import methods
from tailrace.v1 import common_pb2, control_pb2

B1, B2, B3 = BrokerId(1), BrokerId(2), BrokerId(3)
T0 = TopicPartition("t", 0)
INCARNATIONS = dict.fromkeys((B1, B2, B3), "i")


class Listener:
    """A broker that writes down what it is told."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.orders: list[control_pb2.LeaderAndIsrRequest] = []
        self.stops: list[control_pb2.StopReplicaRequest] = []
        self.pictures: list[common_pb2.ClusterMetadata] = []
        self.error = common_pb2.ERROR_CODE_UNSPECIFIED
        self.delay_s = 0.0
        self.cannot_stop: list[int] = []
        self.finds_no_record_of: list[int] = []
        # By partition: why it cannot do what it is told.
        self.cannot_serve: dict[int, common_pb2.ErrorCode.ValueType] = {}

    async def order(
        self, request: control_pb2.LeaderAndIsrRequest
    ) -> control_pb2.LeaderAndIsrResponse:
        await asyncio.sleep(self.delay_s)
        self.orders.append(request)
        response = control_pb2.LeaderAndIsrResponse(error=self.error, message="so says the test")
        for each in request.partitions:
            if each.partition.partition in self.cannot_serve:
                response.errors.add(
                    partition=each.partition, error=self.cannot_serve[each.partition.partition]
                )
        return response

    def told(self, partition: int) -> int:
        """In how many orders a partition was."""
        return sum(
            any(each.partition.partition == partition for each in order.partitions)
            for order in self.orders
        )

    async def stop(
        self, request: control_pb2.StopReplicaRequest
    ) -> control_pb2.StopReplicaResponse:
        self.stops.append(request)
        response = control_pb2.StopReplicaResponse(error=self.error)
        for each in request.partitions:
            if each.partition.partition in self.cannot_stop:
                response.errors.add(
                    partition=each.partition, error=common_pb2.ERROR_CODE_STORAGE_ERROR
                )
            if each.partition.partition in self.finds_no_record_of:
                response.errors.add(
                    partition=each.partition, error=common_pb2.ERROR_CODE_INVALID_REQUEST
                )
        return response

    async def picture(
        self, request: control_pb2.UpdateMetadataRequest
    ) -> control_pb2.UpdateMetadataResponse:
        self.pictures.append(request.metadata)
        return control_pb2.UpdateMetadataResponse(error=self.error)


class World:
    """Orders on one host, three listeners on others."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.network = SimNetwork(loop)
        self.listeners = {each: Listener(each) for each in (B1, B2, B3)}
        self.said: list[str] = []
        self.deposed: list[str] = []
        self.stopped = 0
        self.failures: list[Any] = []
        self.tasks = Tasks(lambda name, error: self.failures.append((name, error)))
        self.orders = Orders(
            Term(1, 7, 70),
            ControllerSettings(controller_id=1),
            network=self.network.host("c", loop.process("c")),
            rng=loop.rng,
            tasks=self.tasks,
            say=self.said.append,
            reports=Reports(
                stray=lambda *_: None,
                failed=lambda *_: None,
                obeyed=lambda *_: None,
                stopped=self._note_stopped,
                deposed=self.deposed.append,
            ),
        )

    def _note_stopped(self) -> None:
        self.stopped += 1

    async def start(self) -> None:
        for broker, listener in self.listeners.items():
            host = self.network.host(f"b{broker}", self.loop.process(f"b{broker}"))
            await host.serve(
                f"b{broker}:1",
                {
                    methods.CONTROL_LEADER_AND_ISR: listener.order,
                    methods.CONTROL_STOP_REPLICA: listener.stop,
                    methods.CONTROL_UPDATE_METADATA: listener.picture,
                },
            )

    def update(self, image: ClusterImage, spared: dict[BrokerId, LiveBroker] | None = None) -> None:
        self.orders.update(image, INCARNATIONS, spared or {})


def simulate(main: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def start(loop: SimLoop) -> None:
        world = World(loop)
        await world.start()
        await main(world)
        await world.tasks.close()
        await world.orders.close()
        assert world.failures == []

    run(start, 1)


def live(broker: BrokerId, epoch: int = 11, *, link_port: int = 2, **facts: Any) -> LiveBroker:
    registration = BrokerRegistration(
        broker_id=broker,
        host=f"b{broker}",
        port=1,
        link_host=f"b{broker}",
        link_port=link_port,
        incarnation="i",
    )
    return LiveBroker(replace(registration, **facts), epoch, epoch)


def stored(leader: BrokerId, revision: int, epoch: int = 0) -> StoredState:
    state = PartitionState(
        controller_epoch=7,
        leader=leader,
        leader_epoch=LeaderEpoch(epoch),
        isr=(B1, B2, B3),
    )
    return StoredState(state, revision)


def image(
    states: dict[int, StoredState], *brokers: LiveBroker, topic_id: str = "id", revision: int = 100
) -> ClusterImage:
    record = TopicRecord(
        topic_id=TopicId(topic_id), assignment=dict.fromkeys(states, (B1, B2, B3)), config={}
    )
    lives = brokers or (live(B1), live(B2), live(B3))
    return ClusterImage(
        revision=revision,
        brokers={each.registration.broker_id: each for each in lives},
        topics={"t": StoredTopic(record, 20)},
        states={"t": states},
    )


def changed(old: ClusterImage, states: dict[int, StoredState]) -> ClusterImage:
    return replace(old, states={"t": states}, revision=old.revision + 1)


def test_first_everything_then_only_what_changed() -> None:
    async def main(world: World) -> None:
        first = image({0: stored(B1, 30), 1: stored(B2, 30)})
        world.update(first)
        await asyncio.sleep(0.1)
        (full,) = world.listeners[B3].orders
        assert full.full
        assert (full.header.controller_epoch, full.header.broker_epoch) == (7, 11)
        assert [each.partition.partition for each in full.partitions] == [0, 1]
        assert [each.leader_link for each in full.partitions] == ["b1:2", "b2:2"]
        world.update(changed(first, {0: first.states["t"][0], 1: stored(B3, 40, 1)}))
        await asyncio.sleep(0.1)
        more = world.listeners[B3].orders[1]
        assert not more.full
        assert [(each.leader, each.revision) for each in more.partitions] == [(3, 40)]

    simulate(main)


def test_changes_while_a_call_is_under_way_go_out_as_one() -> None:
    async def main(world: World) -> None:
        picture = image({0: stored(B1, 30)})
        world.update(picture)
        await asyncio.sleep(0.1)
        world.listeners[B2].delay_s = 0.5
        for epoch in range(1, 20):
            picture = changed(picture, {0: stored(B1, 30 + epoch, epoch)})
            world.update(picture)
            await asyncio.sleep(0.01)
        await asyncio.sleep(2)
        told = [each.partitions[0].leader_epoch for each in world.listeners[B2].orders]
        assert told == [0, 1, 19]
        assert [each.partitions[0].leader_epoch for each in world.listeners[B1].orders] == [
            *range(20)
        ]

    simulate(main)


def test_an_older_state_is_never_told_after_a_newer_one() -> None:
    async def main(world: World) -> None:
        newer = image({0: stored(B2, 40, 2)})
        world.update(newer)
        await asyncio.sleep(0.1)
        world.update(image({0: stored(B1, 30, 1)}))
        await asyncio.sleep(0.5)
        assert [each.partitions[0].leader_epoch for each in world.listeners[B1].orders] == [2]

    simulate(main)


def test_orders_are_repeated_until_they_are_heard() -> None:
    async def main(world: World) -> None:
        world.network.partition(["c"], ["b2"])
        world.update(image({0: stored(B1, 30)}))
        await asyncio.sleep(60)
        assert world.listeners[B2].orders == []
        assert len(world.listeners[B1].orders) == 1
        world.network.heal()
        await asyncio.sleep(10)
        assert world.listeners[B2].orders[-1].full

    simulate(main)


def test_a_broker_in_another_life_is_told_everything_anew() -> None:
    async def main(world: World) -> None:
        states = {0: stored(B1, 30)}
        world.update(image(states))
        await asyncio.sleep(0.1)
        world.update(image(states, live(B1), live(B2, 35), live(B3)))
        await asyncio.sleep(0.1)
        assert [(each.full, each.header.broker_epoch) for each in world.listeners[B2].orders] == [
            *((True, 11), (True, 35)),
        ]
        assert len(world.listeners[B1].orders) == 1

    simulate(main)


def test_who_is_not_admitted_is_told_nothing() -> None:
    async def main(world: World) -> None:
        risky = live(B1, 35, tail_may_be_lost=True)
        states = {0: stored(B2, 40)}
        world.update(image(states, risky, live(B2), live(B3)))
        world.orders.update(image(states, risky, live(B2), live(B3)), {B2: "i", B3: "another"}, {})
        await asyncio.sleep(1)
        assert world.listeners[B1].orders == []
        assert world.listeners[B1].pictures == []
        world.update(image(states, live(B1, 35), live(B2), live(B3)))
        await asyncio.sleep(0.1)
        assert world.listeners[B1].orders[0].full

    simulate(main)


def test_followers_are_told_where_the_leaders_link_has_moved() -> None:
    async def main(world: World) -> None:
        states = {0: stored(B1, 40), 1: stored(B2, 40)}
        world.update(image(states))
        await asyncio.sleep(0.1)
        world.update(image(states, live(B1, link_port=99), live(B2), live(B3)))
        await asyncio.sleep(0.1)
        more = world.listeners[B3].orders[1]
        assert [each.leader_link for each in more.partitions] == ["b1:99"]

    simulate(main)


def test_followers_of_a_leader_whose_place_was_not_known_are_told_when_it_is() -> None:
    async def main(world: World) -> None:
        # A controller that takes over finds a leader that keeps what it has, but is not registered.
        states = {0: stored(B1, 40), 1: stored(B2, 40)}
        world.update(image(states, live(B2), live(B3)))
        await asyncio.sleep(0.1)
        first = world.listeners[B3].orders[0]
        assert [each.leader_link for each in first.partitions] == ["", "b2:2"]
        world.update(image(states))
        await asyncio.sleep(0.1)
        (more,) = world.listeners[B3].orders[1:]
        assert [each.leader_link for each in more.partitions] == ["b1:2"]

    simulate(main)


def test_a_spared_leader_keeps_its_place_in_orders_and_pictures() -> None:
    async def main(world: World) -> None:
        states = {0: stored(B1, 40)}
        world.update(image(states, live(B2), live(B3)), {B1: live(B1)})
        await asyncio.sleep(0.1)
        assert world.listeners[B2].orders[0].partitions[0].leader_link == "b1:2"
        assert [each.id for each in world.listeners[B2].pictures[-1].brokers] == [1, 2, 3]
        world.update(image(states, live(B2), live(B3)))
        await asyncio.sleep(0.1)
        assert [each.id for each in world.listeners[B2].pictures[-1].brokers] == [2, 3]

    simulate(main)


def test_in_doubt_nothing_is_told() -> None:
    async def main(world: World) -> None:
        picture = image({0: stored(B1, 30)})
        world.update(picture)
        await asyncio.sleep(0.1)
        world.orders.pause()
        world.update(changed(picture, {0: stored(B2, 40, 1)}))
        await asyncio.sleep(5)
        assert len(world.listeners[B1].orders) == 1
        world.orders.resume()
        await asyncio.sleep(0.1)
        assert len(world.listeners[B1].orders) == 2

    simulate(main)


def test_a_broker_that_knows_a_newer_controller_is_believed() -> None:
    async def main(world: World) -> None:
        world.listeners[B1].error = common_pb2.ERROR_CODE_STALE_CONTROLLER
        world.update(image({0: stored(B1, 30)}))
        await asyncio.sleep(0.1)
        assert world.deposed
        assert "so says the test" in world.deposed[0]

    simulate(main)


def test_a_broker_that_says_the_same_again_and_again_is_quoted_once() -> None:
    async def main(world: World) -> None:
        world.listeners[B1].error = common_pb2.ERROR_CODE_STALE_BROKER
        world.update(image({0: stored(B1, 30)}))
        await asyncio.sleep(20)
        assert len([each for each in world.said if each.startswith("orders")]) == 1
        assert 15 < len(world.listeners[B1].orders) < 60

    simulate(main)


def test_many_orders_go_in_several_messages_but_for_the_first() -> None:
    async def main(world: World) -> None:
        count = PARTITIONS_PER_ORDER + 500
        picture = image({each: stored(B1, 30) for each in range(count)})
        world.update(picture)
        await asyncio.sleep(1)
        world.update(changed(picture, {each: stored(B2, 40, 1) for each in range(count)}))
        await asyncio.sleep(1)
        sizes = [len(each.partitions) for each in world.listeners[B1].orders]
        assert sizes == [count, PARTITIONS_PER_ORDER, 500]

    simulate(main)


def test_replicas_are_deleted_and_it_is_known_when() -> None:
    async def main(world: World) -> None:
        first = image({0: stored(B1, 30), 1: stored(B2, 30)})
        world.update(first)
        await asyncio.sleep(0.1)
        replicas = [Replica(TopicPartition("t", each), TopicId("id")) for each in (0, 1)]
        world.listeners[B1].cannot_stop = [1]
        deletion = StoredDeletion(TopicDeletion(topic_id=TopicId("id")), 41)
        deleting = replace(first, deletions={"t": deletion})
        world.update(deleting)
        world.orders.delete_replicas(B1, replicas)
        world.orders.delete_replicas(BrokerId(9), replicas)
        assert not world.orders.has_deleted(replicas)
        await asyncio.sleep(1)
        assert not world.orders.has_deleted(replicas)
        assert [len(each.partitions) for each in world.listeners[B1].stops[:2]] == [2, 1]
        assert all(each.delete for each in world.listeners[B1].stops[0].partitions)
        before = world.stopped
        world.listeners[B1].cannot_stop = []
        await asyncio.sleep(2)
        assert world.orders.has_deleted(replicas)
        assert world.stopped > before
        # A topic that is being deleted is told of no more.
        count = len(world.listeners[B1].orders)
        world.update(replace(deleting, states={"t": {0: stored(B2, 50, 3)}}))
        await asyncio.sleep(0.1)
        assert len(world.listeners[B1].orders) == count

    simulate(main)


def test_a_broker_that_finds_no_record_of_a_deletion_is_not_asked_again_and_again() -> None:
    async def main(world: World) -> None:
        world.update(image({0: stored(B1, 30), 1: stored(B2, 30)}))
        await asyncio.sleep(0.1)
        replicas = [Replica(TopicPartition("t", each), TopicId("id")) for each in (0, 1)]
        world.listeners[B1].finds_no_record_of = [1]
        before = world.stopped
        world.orders.delete_replicas(B1, replicas)
        await asyncio.sleep(5)
        assert len(world.listeners[B1].stops) == 1
        # Others that wait for what can go do not wait for it.
        assert world.orders.has_deleted(replicas)
        assert world.stopped > before

    simulate(main)


def test_what_is_set_aside_is_not_deleted() -> None:
    async def main(world: World) -> None:
        world.update(image({0: stored(B1, 30)}))
        await asyncio.sleep(0.1)
        aside = Replica(T0, TopicId("former"), revision=70, set_aside=True)
        world.orders.delete_replicas(B1, [aside])
        await asyncio.sleep(1)
        (request,) = world.listeners[B1].stops
        (told,) = request.partitions
        assert (told.set_aside, told.delete, told.revision) == (True, False, 70)

    simulate(main)


def test_no_order_that_was_under_way_can_undo_a_deletion() -> None:
    async def main(world: World) -> None:
        first = image({0: stored(B1, 30)})
        world.update(first)
        await asyncio.sleep(0.1)
        world.listeners[B1].delay_s = 2
        world.update(changed(first, {0: stored(B2, 40, 1)}))
        await asyncio.sleep(0.1)
        deletion = StoredDeletion(TopicDeletion(topic_id=TopicId("id")), 41)
        world.update(replace(first, deletions={"t": deletion}))
        world.orders.delete_replicas(B1, [Replica(T0, TopicId("id"))])
        await asyncio.sleep(1)
        assert world.listeners[B1].stops == []
        await asyncio.sleep(2)
        assert len(world.listeners[B1].orders) == 2
        assert len(world.listeners[B1].stops) == 1

    simulate(main)


def test_a_topic_made_anew_is_told_from_its_first_epoch() -> None:
    async def main(world: World) -> None:
        world.update(image({0: stored(B1, 30, 9)}))
        await asyncio.sleep(0.1)
        world.update(image({0: stored(B2, 50, 0)}, topic_id="new"))
        await asyncio.sleep(0.1)
        order = world.listeners[B1].orders[-1].partitions[0]
        assert (order.topic_id, order.leader_epoch) == ("new", 0)

    simulate(main)


def test_pictures_are_published_when_the_watch_has_caught_up_or_a_little_later() -> None:
    async def main(world: World) -> None:
        first = image({0: stored(B1, 30)})
        world.update(first)
        await asyncio.sleep(0.2)
        count = len(world.listeners[B3].pictures)
        ahead = replace(changed(first, {0: stored(B2, 40, 1)}), ahead={"/x": 500})
        world.update(ahead)
        await asyncio.sleep(0.01)
        assert len(world.listeners[B3].pictures) == count
        world.update(replace(ahead, ahead={}, revision=500))
        await asyncio.sleep(0.02)
        assert world.listeners[B3].pictures[-1].revision == 500
        # A watch that does not catch up holds up nobody for long.
        ahead = replace(changed(ahead, {0: stored(B3, 600, 2)}), ahead={"/x": 600}, revision=501)
        world.update(ahead)
        await asyncio.sleep(0.2)
        assert world.listeners[B3].pictures[-1].topics[0].partitions[0].leader == 3

    simulate(main)


def test_what_no_client_can_see_makes_no_picture() -> None:
    async def main(world: World) -> None:
        first = image({0: stored(B1, 30)})
        world.update(first)
        await asyncio.sleep(0.2)
        count = len(world.listeners[B1].pictures)
        world.update(replace(first, revision=200))
        await asyncio.sleep(0.2)
        assert len(world.listeners[B1].pictures) == count

    simulate(main)


def test_settled_means_that_leaders_know() -> None:
    async def main(world: World) -> None:
        first = image({0: stored(B1, 30)})
        world.update(first)
        assert await world.orders.settle()
        assert world.listeners[B1].orders
        world.listeners[B2].delay_s = 3
        world.update(changed(first, {0: stored(B2, 40, 1)}))
        assert not await world.orders.settle()

    simulate(main)


def test_l5_a_replica_that_stays_out_of_service_is_asked_for_less_and_less() -> None:
    """It was 1.5 times a second for as long as the broker lived."""

    async def main(world: World) -> None:
        damaged = world.listeners[B2]
        damaged.cannot_serve = {0: common_pb2.ERROR_CODE_DAMAGED_LOG}
        first = image({0: stored(B1, 30), 1: stored(B1, 30)})
        world.update(first)
        await asyncio.sleep(120)
        early = damaged.told(0)
        await asyncio.sleep(600)
        # Each wait is 15 to 30 s now.
        assert 20 <= damaged.told(0) - early <= 41
        assert early < 20
        assert damaged.told(1) == 1, "what it can do is not told again"
        assert world.orders.untold == 1
        # A new state is told at once, and the next waits are short again.
        before = damaged.told(0)
        world.update(changed(first, {0: stored(B3, 40, 1), 1: first.states["t"][1]}))
        await asyncio.sleep(1)
        assert damaged.told(0) >= before + 4
        damaged.cannot_serve = {}
        await asyncio.sleep(35)
        assert world.orders.untold == 0

    simulate(main)


def test_l5_replicas_that_fail_together_are_told_together_and_hold_up_nothing() -> None:
    async def main(world: World) -> None:
        broken = world.listeners[B2]
        broken.cannot_serve = dict.fromkeys(range(200), common_pb2.ERROR_CODE_REPLICA_OFFLINE)
        states = {number: stored(B1, 30) for number in range(201)}
        first = image(states)
        world.update(first)
        await asyncio.sleep(300)
        # 200 partitions, as many calls as one would need.
        assert len(broken.orders) < 30
        world.update(changed(first, {**states, 200: stored(B3, 40, 1)}))
        await asyncio.sleep(0.1)
        last = broken.orders[-1]
        assert [each.partition.partition for each in last.partitions] == [200]

    simulate(main)


def test_a_replica_that_is_only_late_is_asked_for_again_soon() -> None:
    async def main(world: World) -> None:
        late = world.listeners[B2]
        late.cannot_serve = {0: common_pb2.ERROR_CODE_REQUEST_TIMED_OUT}
        world.update(image({0: stored(B1, 30)}))
        await asyncio.sleep(60)
        told = late.told(0)
        await asyncio.sleep(10)
        assert 9 <= late.told(0) - told <= 21

    simulate(main)
