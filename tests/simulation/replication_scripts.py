"""Faults that chance meets too seldom, acted out step by step on the replication model.

Each script is played twice: with the rules as they ship, when everything must hold, and with the
one rule broken that it is about, when the model must notice. Broker 1 leads to begin with.
"""

from __future__ import annotations

from simulation.replication_model import World
from simulation.replication_parts import BROKERS, SETTINGS, Broker, Scenario
from tailrace.replication.events import IsrUnknown, Tick

ONE, TWO, THREE = BROKERS


class Stage:
    """A world in which only what the script says happens."""

    def __init__(self, scenario: Scenario) -> None:
        self.world = World(0, scenario, trace=None)
        self.one, self.two, self.three = self.world.brokers.values()
        self.settle(self.two, self.three)

    def produce(self, leader: Broker, count: int = 1) -> None:
        for _ in range(count):
            self.world.values += 1
            leader.produce(self.world.values, acks_all=True)

    def push(self, leader: Broker, follower: Broker) -> None:
        """The follower gets all that is new, but what it says to that is not heard yet."""
        link = follower.links[leader.id]
        leader.pump(link, 100)
        while link.down:
            follower.take_push(link.down.popleft())

    def hear(self, leader: Broker, follower: Broker) -> None:
        link = follower.links[leader.id]
        while link.up:
            leader.take_report(link, link.up.popleft())

    def settle(self, *followers: Broker) -> None:
        """These are pushed to and heard until there is nothing new, in whatever order it takes."""
        for _ in range(6):
            for follower in followers:
                machine = follower.machine
                if machine is None or machine.leader not in follower.links:
                    continue
                leader = self.world.brokers[machine.leader]
                self.hear(leader, follower)
                self.push(leader, follower)
        self.world.check()

    def order(self, *brokers: Broker) -> None:
        """The controller looks, decides, and these brokers hear of it."""
        self.world.control()
        for broker in brokers:
            broker.obey(*self.world.orders[broker.id][-1])

    def kill(self, broker: Broker, *, left: int | None = None) -> None:
        """The process dies; `left`: the power too, and only so many records are there later."""
        self.world.crash(broker, power_loss=False)
        self.world.store.registrations.pop(broker.id, None)
        if left is not None:
            broker.disk.truncate(left)
            self.world.tainted.add(broker.id)

    def store(self) -> None:
        """All transactions that wait are done, and the answers heard."""
        world = self.world
        requests, world.store_queue = world.store_queue, []
        for request in requests:
            request.broker.handle(world.execute(request))
        world.check()


def late_report_of_a_former_life(scenario: Scenario) -> None:
    """F9: a report that was under way when the follower lost its tail arrives in its new life."""
    stage = Stage(scenario)
    world, one, two, three = stage.world, stage.one, stage.two, stage.three
    stage.produce(one, 3)
    stage.settle(two, three)
    stage.produce(one)
    stage.push(one, three)
    old = three.links[ONE]
    stage.kill(three, left=1)
    stage.order(one, two)
    stage.settle(two)
    assert len(world.committed) == 4
    world.now_ms += SETTINGS.isr_retry_max_ms
    world.start(three)
    stage.order(one, three)
    stage.hear(one, three)
    while old.up:
        one.take_report(old, old.up.popleft())
    stage.store()
    stage.settle(two, three)


def late_report_of_a_former_leadership(scenario: Scenario) -> None:
    """F2, F5: 1 led, then 2, then 1 again; what 3 said to 1 in between is old news."""
    stage = Stage(scenario)
    world, one, two, three = stage.world, stage.one, stage.two, stage.three
    stage.produce(one, 2)
    stage.settle(two, three)
    stage.produce(one, 2)
    stage.push(one, three)
    world.move_leader(TWO)
    stage.order(two, three)
    stage.settle(three)
    assert len(three.disk.records) == 2
    world.move_leader(ONE)
    stage.order(one, two)
    stage.settle(two)
    stage.hear(one, three)
    world.check()
    stage.order(three)
    stage.settle(two, three)
    assert len(world.committed) == 4


def push_of_a_former_leadership(scenario: Scenario) -> None:
    """F2: 1 led, then 2, then 1 again; where 1 had pushed to 2 before is no place to go on."""
    stage = Stage(scenario)
    world, one, two, three = stage.world, stage.one, stage.two, stage.three
    stage.produce(one, 2)
    one.pump(two.links[ONE], 100)
    world.move_leader(TWO)
    stage.order(two)
    stage.produce(two, 2)
    world.move_leader(ONE)
    stage.order(one, three)
    stage.produce(one)
    one.pump(two.links[ONE], 100)
    stage.order(two)
    stage.push(one, two)
    stage.settle(two, three)
    assert len(world.committed) == 3


def _rejoin(stage: Stage) -> None:
    """3 was away and is about to join the ISR: the transaction waits in the store."""
    one, two, three = stage.one, stage.two, stage.three
    stage.produce(one, 2)
    stage.settle(two, three)
    stage.kill(three)
    stage.order(one, two)
    stage.produce(one)
    stage.settle(two)
    stage.world.start(three)
    stage.order(one, three)
    stage.settle(three)
    assert [request.effect.isr for request in stage.world.store_queue] == [BROKERS]


def silent_store(scenario: Scenario) -> None:
    """F11, F18: the store keeps silent about a change, the follower goes, the change is made."""
    stage = Stage(scenario)
    _rejoin(stage)
    world, one, two, three = stage.world, stage.one, stage.two, stage.three
    (request,) = world.store_queue
    one.handle(IsrUnknown(attempt=request.effect.attempt))
    world.break_link(three.links[ONE])
    stage.produce(one)
    stage.settle(two)
    world.now_ms += SETTINGS.isr_retry_ms
    one.handle(Tick())
    stage.settle(two)
    stage.store()
    stage.settle(two)


def joiner_that_died(scenario: Scenario) -> None:
    """F3, F10: between the proposal and the transaction the one who joins dies and comes back."""
    stage = Stage(scenario)
    _rejoin(stage)
    world, one, two, three = stage.world, stage.one, stage.two, stage.three
    stage.kill(three, left=0)
    world.start(three)
    stage.order(one, two)
    stage.store()
    stage.order(three)
    stage.settle(two, three)


def leader_without_the_high_watermark(scenario: Scenario) -> None:
    """F1: a follower restarts before it learns the high watermark, and is elected."""
    stage = Stage(scenario)
    world, one, two, three = stage.world, stage.one, stage.two, stage.three
    stage.produce(one, 2)
    stage.push(one, two)
    stage.hear(one, two)
    stage.push(one, three)
    stage.hear(one, three)
    assert len(world.committed) == 2
    stage.kill(two)
    world.start(two)
    stage.order(two)
    assert two.disk.high_watermark == 0
    stage.kill(one)
    stage.kill(three)
    stage.order(two)
    world.start(one)
    stage.order(one)
    stage.settle(one)
    assert one.disk.records[:2] == two.disk.records[:2] == world.committed
