"""One partition on three brokers: the shipped replica machines in a world of seeded faults.

Tier one of the simulator: no loop, no bytes, no real log; a disk is a list of records, the network
a few queues, the store a state with guards, the controller the rule of election in forty lines.
So a run costs milliseconds, and thousands of them look into corners that the whole broker reaches
seldom. After every step `World.check` compares what was committed with what the replicas hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from simulation.replication_parts import (
    BROKERS,
    MOODS,
    WEIGHTS,
    Broker,
    Frame,
    Link,
    Record,
    Request,
    Scenario,
    Store,
    Violation,
    scenario_of,
)
from tailrace.errors import InvariantViolation
from tailrace.model import BrokerId, LeaderEpoch
from tailrace.replication.events import (
    NO_LEADER,
    Event,
    FollowerLost,
    IsrUnknown,
    Report,
    StoredState,
    Tick,
)
from tailrace.replication.partition import Role

ORDERS_KEPT = 6
HEAL_ROUNDS_MAX = 400


class World:
    """Everything there is in one run."""

    def __init__(
        self, seed: int, scenario: Scenario, *, trace: Callable[[str], None] | None
    ) -> None:
        self.rng = Random(seed)
        self.scenario = scenario
        self.now_ms = 0
        self.store = Store()
        self.store_queue: list[Request] = []
        self.answers: list[tuple[Request, Event]] = []
        self.links: list[Link] = []
        self.brokers = {broker: Broker(self, broker) for broker in BROKERS}
        self.orders: dict[BrokerId, list[tuple[int, StoredState]]] = {b: [] for b in BROKERS}
        # Lives of brokers whose tails may be gone, and those that the controller has seen.
        self.lost_tail: set[int] = set()
        self.seen_lives: set[int] = set()
        self.tainted: set[BrokerId] = set()
        self.unclean = False
        # An older copy of a disk was put back: conflicts are to be found, and a person decides.
        self.put_back = False
        self.committed: list[Record] = []
        self.acked: list[Record] = []
        self.high_watermarks: dict[tuple[BrokerId, int, int], int] = {}
        self.values = 0
        self._trace = trace
        for broker in self.brokers.values():
            broker.epoch = self.store.register(broker.id)
        self.control()
        for broker in self.brokers.values():
            broker.obey(*self.orders[broker.id][-1])

    def say(self, text: str, *parts: object) -> None:
        """Note a step; the text is only made when somebody reads it."""
        if self._trace is not None:
            self._trace(f"{self.now_ms:>6} {text.format(*parts)}")

    # The network.

    def open_link(self, follower: Broker, leader: Broker, broker_epoch: int) -> Link:
        for former in [link for link in self.links if link.follower is follower]:
            if former.leader is leader and not self.scenario.chaos:
                # The newer link of a follower replaces the older one without a word.
                former.alive = False
                self.links.remove(former)
        link = Link(follower, leader, broker_epoch)
        self.links.append(link)
        return link

    def break_link(self, link: Link) -> None:
        if not link.alive:
            return
        link.alive = False
        self.links.remove(link)
        if link.follower.links.get(link.leader.id) is link:
            del link.follower.links[link.leader.id]
        if link.leader.up:
            link.leader.handle(
                FollowerLost(broker_id=link.follower.id, broker_epoch=link.broker_epoch)
            )

    def deliver(self, link: Link) -> None:
        """Hand over one frame, in either direction."""
        upwards = bool(link.up) and (not link.down or self.rng.random() < 0.5)
        queue: deque[Report] | deque[Frame]
        queue = link.up if upwards else link.down
        if not queue:
            return
        if self.scenario.chaos:
            queue.rotate(-self.rng.randrange(len(queue)))
            if self.rng.random() < 0.05:
                queue.popleft()
                return
        frame = queue[0]
        if not self.scenario.chaos or self.rng.random() > 0.1:
            queue.popleft()
        self.say("{} {} {}: {}", link.follower.id, "->" if upwards else "<-", link.leader.id, frame)
        if isinstance(frame, Report):
            link.leader.take_report(link, frame)
        elif link.follower.up:
            link.follower.take_push(frame)

    # The store.

    def serve_store(self, index: int) -> None:
        """Run one transaction that waits; now and then the answer is lost, or comes too early."""
        request = self.store_queue.pop(index)
        unknown = IsrUnknown(attempt=request.effect.attempt)
        fate = self.rng.random()
        if self.scenario.mood == "slow store":
            fate /= 2
        if fate < 0.15:
            # The client gave up waiting, and the transaction is still to be run, or never is.
            if fate < 0.1:
                self.store_queue.append(request._replace(machine=None))
            self.answers.append((request, unknown))
            return
        answer = self.execute(request)
        self.answers.append((request, unknown if fate < 0.25 else answer))

    def execute(self, request: Request) -> Event:
        """Run a transaction; the answer."""
        answer = self.store.change_isr(
            request.broker.id,
            request.epoch,
            request.effect,
            guards_followers=self.scenario.guards_followers,
        )
        self.say("store: {}", answer)
        return answer

    def _answer_some(self) -> None:
        if self.answers:
            request, answer = self.answers.pop(self.rng.randrange(len(self.answers)))
            if request.machine is not None and request.broker.machine is request.machine:
                self.say("broker {} hears {}", request.broker.id, answer)
                request.broker.handle(answer)

    # The controller.

    def control(self) -> None:
        """Look at the registrations, decide, write, and order."""
        store, state = self.store, self.store.state
        live = store.registrations
        isr = [b for b in state.isr if not self._is_untrusted(b)]
        elr = [b for b in state.elr if not self._is_untrusted(b)]
        gone = [b for b in isr if b not in live]
        staying = [b for b in isr if b in live]
        if not staying and self.scenario.min_insync == 1 and isr:
            # The last ones stay: they alone may have what was committed with them alone.
            staying, elr = isr, []
        elif len(staying) < self.scenario.min_insync:
            elr = [*elr, *(b for b in gone if b not in elr)]
        else:
            elr = []
        # A power loss is forgiven once the life after it was taken out of ISR and ELR.
        self.tainted -= {b for b in self.tainted if self._is_untrusted(b)}
        self.seen_lives.update(live.values())
        self._elect(replace(state, isr=tuple(staying), elr=tuple(elr)))
        for broker, epoch in live.items():
            kept = self.orders[broker]
            if not kept or kept[-1] != (epoch, store.state):
                kept.append((epoch, store.state))
                del kept[:-ORDERS_KEPT]

    def _is_untrusted(self, broker: BrokerId) -> bool:
        life = self.store.registrations.get(broker)
        return life in self.lost_tail and life not in self.seen_lives

    def _elect(self, state: StoredState) -> None:
        store = self.store
        live = store.registrations
        same_life = live.get(state.leader) == store.leader_life
        stays = state.leader in live and state.leader in state.isr
        if stays and (same_life or not self.scenario.new_epoch_for_new_life):
            if (state.isr, state.elr) != (store.state.isr, store.state.elr):
                store.put(state)
            return
        leader = next((b for b in BROKERS if b in state.isr and b in live), NO_LEADER)
        if leader == NO_LEADER:
            leader = next((b for b in BROKERS if b in state.elr and b in live), NO_LEADER)
            if leader != NO_LEADER:
                others = tuple(b for b in (*state.isr, *state.elr) if b != leader)
                state = replace(state, isr=(leader,), elr=others)
        nobody = not state.isr and not state.elr
        if leader == NO_LEADER and nobody and self.store.last_leader in live:
            leader = self._recover_unclean()
            unclean_epoch = state.leader_epoch + 1
            state = replace(state, isr=(leader,), elr=(), unclean_epoch=unclean_epoch)
        if leader == NO_LEADER and (state.leader, state.isr, state.elr) == (
            *(store.state.leader, store.state.isr, store.state.elr),
        ):
            return
        if leader != NO_LEADER:
            store.last_leader = leader
            store.leader_life = live[leader]
        epoch = LeaderEpoch(state.leader_epoch + 1)
        store.put(replace(state, leader=leader, leader_epoch=epoch))
        self.say("controller: {}", store.state)

    def move_leader(self, leader: BrokerId) -> None:
        """Let another member of the ISR lead, as when a broker drains: nobody has failed."""
        state = self.store.state
        if leader in self.store.registrations and leader in state.isr and state.leader != NO_LEADER:
            self.store.last_leader = leader
            self.store.leader_life = self.store.registrations[leader]
            epoch = LeaderEpoch(state.leader_epoch + 1)
            self.store.put(replace(state, leader=leader, leader_epoch=epoch))
            self.say("controller: {}", self.store.state)

    def _recover_unclean(self) -> BrokerId:
        """Nobody holds everything: the last leader leads, and what it lacks is declared lost."""
        leader = self.store.last_leader
        records = self.brokers[leader].disk.records
        agreed = 0
        for mine, theirs in zip(records, self.committed, strict=False):
            if mine != theirs:
                break
            agreed += 1
        self.unclean = True
        del self.committed[agreed:]
        kept = set(self.committed)
        self.acked = [record for record in self.acked if record in kept]
        return leader

    # What is to hold.

    def commit(self, leader: Broker, offset: int) -> None:
        """A leader says that everything below `offset` is committed."""
        records = leader.disk.records[:offset]
        known = self.committed[:offset]
        if records[: len(known)] != known:
            raise Violation(
                f"I2: broker {leader.id} commits {records} where {known} is committed already"
            )
        self.committed += records[len(self.committed) :]

    def check(self) -> None:
        committed = self.committed
        for member in (*self.store.state.isr, *self.store.state.elr):
            disk = self.brokers[member].disk
            end = disk.synced if self.scenario.syncs_first else len(disk.records)
            if member in self.tainted:
                continue
            if end < len(committed) or disk.records[: len(committed)] != committed:
                raise Violation(
                    f"I1: {member} is in {self.store.state} without what is committed: "
                    f"{disk.records[:end]} is not {committed}"
                )
        for broker in self.brokers.values():
            self._check_broker(broker)

    def _check_broker(self, broker: Broker) -> None:
        machine = broker.machine
        if machine is None or self.unclean:
            return
        high_watermark = machine.high_watermark
        if broker.disk.records[:high_watermark] != self.committed[:high_watermark]:
            raise Violation(
                f"I3: broker {broker.id} has {broker.disk.records[:high_watermark]} below its "
                f"high watermark, committed is {self.committed}"
            )
        if machine.role is Role.LEADER:
            key = (broker.id, broker.epoch, int(machine.leader_epoch))
            if self.high_watermarks.get(key, 0) > high_watermark:
                raise Violation(f"I4: the high watermark of broker {broker.id} went back")
            self.high_watermarks[key] = high_watermark

    # What happens.

    def run(self) -> None:
        actions = self._actions()
        weights = {**WEIGHTS, **MOODS[self.scenario.mood]}
        names = self.rng.choices(
            tuple(actions), tuple(weights[name] for name in actions), k=self.scenario.steps
        )
        for name in names:
            actions[name]()
            self.check()
        if not self.scenario.chaos:
            self.heal()

    def _actions(self) -> dict[str, Callable[[], None]]:
        return {
            "deliver": self._deliver_some,
            "pump": self._pump_some,
            "produce": self._produce,
            "order": self._order_some,
            "control": self.control,
            "store": self._store_some,
            "answer": self._answer_some,
            "time": self._pass_time,
            "tick": self._tick_some,
            "sync": self._sync_some,
            "checkpoint": self._checkpoint_some,
            "connect": self._connect_some,
            "break": self._break_some,
            "crash": self._crash_some,
            "start": self._start_some,
            "lease": self._lose_lease,
            "move": self._move_some,
        }

    def _any(self) -> Broker:
        return self.brokers[self.rng.choice(BROKERS)]

    def _deliver_some(self) -> None:
        busy = [link for link in self.links if link.up or link.down]
        if not busy:
            return
        link = self.rng.choice(busy)
        if link.is_current or self.rng.random() < 0.1:
            self.deliver(link)

    def _pump_some(self) -> None:
        if self.links:
            link = self.rng.choice(self.links)
            link.leader.pump(link, self.rng.randint(1, 4))

    def _produce(self) -> None:
        self.values += 1
        leading = [b for b in self.brokers.values() if b.machine and b.machine.role is Role.LEADER]
        if leading:
            self.rng.choice(leading).produce(self.values, acks_all=self.rng.random() < 0.8)

    def _order_some(self) -> None:
        broker = self._any()
        orders = self.orders[broker.id]
        if broker.up and orders:
            index = -1 if self.rng.random() < 0.5 else self.rng.randrange(len(orders))
            self.say("broker {} is ordered {}", broker.id, orders[index])
            broker.obey(*orders[index])

    def _store_some(self) -> None:
        if self.store_queue:
            self.serve_store(self.rng.randrange(len(self.store_queue)))

    def _pass_time(self) -> None:
        self.now_ms += self.rng.choice((10, 60, 200, 600))

    def _tick_some(self) -> None:
        broker = self._any()
        if broker.up:
            broker.handle(Tick())

    def _sync_some(self) -> None:
        broker = self._any()
        if broker.up:
            broker.sync()

    def _checkpoint_some(self) -> None:
        broker = self._any()
        if broker.machine is not None:
            broker.disk.high_watermark = broker.machine.high_watermark

    def _connect_some(self) -> None:
        self._any().connect()

    def _break_some(self) -> None:
        if self.links:
            self.break_link(self.rng.choice(self.links))

    def _crash_some(self) -> None:
        broker = self._any()
        if broker.up:
            self.crash(broker, power_loss=self.rng.random() < 0.3)

    def _start_some(self) -> None:
        for broker in self.brokers.values():
            if not broker.up and self.rng.random() < 0.5:
                self.start(broker)
                return

    def _lose_lease(self) -> None:
        """The registration ends while the process goes on; it will register again."""
        broker = self._any()
        if broker.up:
            self.say("broker {} loses its lease", broker.id)
            self.store.registrations.pop(broker.id, None)
            if self.rng.random() < 0.3:
                self.control()
            broker.up = False
            self.start(broker, restarts=False)

    def _move_some(self) -> None:
        self.move_leader(self._any().id)
        self.control()

    def crash(self, broker: Broker, *, power_loss: bool) -> None:
        self.say("broker {} dies{}", broker.id, ", its power too" if power_loss else "")
        broker.up = False
        broker.machine = None
        broker.links, broker.parked = {}, []
        for link in list(self.links):
            if link.leader is broker:
                self.break_link(link)
            elif link.follower is broker:
                link.down.clear()
        # What it had sent to the store may still arrive there; nobody hears the answer.
        if power_loss:
            disk = broker.disk
            kept = self.rng.randint(disk.synced, len(disk.records))
            disk.truncate(disk.synced if self.scenario.syncs_first else kept)
            disk.high_watermark = min(disk.high_watermark, len(disk.records))
            if not self.scenario.syncs_first:
                self.tainted.add(broker.id)
        if self.rng.random() < 0.7:
            self.store.registrations.pop(broker.id, None)

    def start(self, broker: Broker, *, restarts: bool = True) -> None:
        """The process starts, or registers again: a new life in any case."""
        if restarts:
            broker.machine = None
        for link in list(broker.links.values()):
            # The next one says hello with the new registration.
            self.break_link(link)
        broker.up = True
        self.store.registrations.pop(broker.id, None)
        broker.epoch = self.store.register(broker.id)
        self.say("broker {} registers as {}", broker.id, broker.epoch)
        if not self.scenario.distrusts_lost_tails:
            self.tainted.discard(broker.id)
        elif broker.id in self.tainted:
            self.lost_tail.add(broker.epoch)

    # In the end everything works again, and progress must be made.

    def heal(self) -> None:
        self.say("everything heals")
        for broker in self.brokers.values():
            if not broker.up:
                self.start(broker)
        for _ in range(HEAL_ROUNDS_MAX):
            self._heal_once()
            self.check()
            if self._is_whole():
                break
        else:
            raise Violation(f"I6: no progress: {self.store.state}, {self._positions()}")
        if not set(self.acked) <= set(self.committed):
            raise Violation("I1: acknowledged records are gone")

    def _heal_once(self) -> None:
        self.now_ms += 20
        self.control()
        for broker in self.brokers.values():
            broker.obey(*self.orders[broker.id][-1])
            broker.connect()
            if self.scenario.syncs_first:
                broker.sync()
            due = broker.machine.next_tick_ms if broker.machine else None
            if due is not None and due <= self.now_ms:
                broker.handle(Tick())
        for link in list(self.links):
            link.leader.pump(link, 3)
            while link.alive and (link.up or link.down):
                self.deliver(link)
        for _ in range(len(self.store_queue)):
            request = self.store_queue.pop(0)
            self.answers.append((request, self.execute(request)))
        while self.answers:
            self._answer_some()

    def _is_whole(self) -> bool:
        """All are in sync, equal, and everything is committed."""
        ends = {len(broker.disk.records) for broker in self.brokers.values()}
        return (
            set(self.store.state.isr) == set(BROKERS)
            and self.store.state.leader != NO_LEADER
            and len(ends) == 1
            and all(
                broker.machine is not None and broker.machine.high_watermark in ends
                for broker in self.brokers.values()
            )
        )

    def _positions(self) -> list[tuple[int, int, str]]:
        return [
            (len(b.disk.records), b.machine.high_watermark, b.machine.role.value)
            for b in self.brokers.values()
            if b.machine is not None
        ]


def run_seed(
    seed: int, scenario: Scenario | None = None, *, trace: Callable[[str], None] | None = None
) -> World:
    """One run; raises Violation or InvariantViolation when a rule does not hold."""
    world = World(seed, scenario or scenario_of(seed), trace=trace)
    world.run()
    return world


def first_violation(
    seeds: Sequence[int], scenario: Callable[[int], Scenario]
) -> tuple[int, str] | None:
    """The first seed that breaks something, and what it says."""
    for seed in seeds:
        try:
            run_seed(seed, scenario(seed))
        except (Violation, InvariantViolation) as found:
            return seed, str(found)
    return None
