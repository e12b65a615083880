"""One term of the active controller: look, decide, write, tell; again when something changes.

All decisions are made by one task, from the newest image, one transaction at a time; between two
transactions it looks whether something more urgent came up (a broker is gone). Brokers are told by
tasks of their own. Whatever a former controller left half done is seen in the image and gone on
with, since nothing is decided from memory that could be decided from the store.

The term is over when `/controller` is not this controller's any more: `run` raises NotController.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Final, NamedTuple

from tailrace.clock import Clock
from tailrace.controller.changes import read_history
from tailrace.controller.decisions import decide
from tailrace.controller.facts import (
    AdminEvent,
    Cause,
    ClusterChanged,
    Decision,
    DeletionRequested,
    ElectionRequested,
    Facts,
    FenceRequested,
    PartitionsRequested,
    ReplicasStopped,
    Term,
    TopicRequested,
    Transaction,
)
from tailrace.controller.failures import Failures
from tailrace.controller.health import Answer, FolderHealth, HealthWatch
from tailrace.controller.ledger import Ledger, incarnation_key
from tailrace.controller.orders import Orders, Reports
from tailrace.controller.presence import Presence
from tailrace.controller.removals import Removals
from tailrace.controller.requests import Requests, Wanted
from tailrace.controller.settings import ControllerSettings
from tailrace.controller.shards import fence_transaction
from tailrace.controller.syncing import Syncing
from tailrace.controller.traces import FailoverTraces
from tailrace.errors import (
    InvariantViolation,
    NotController,
    StaleBroker,
    StoreUnavailable,
    TailraceError,
)
from tailrace.meta.image import ClusterImage, LiveBroker, LiveCoordinator
from tailrace.meta.keys import (
    CONTROLLER,
    NO_BROKER,
    BrokerRegistration,
    PartitionHistory,
    TopicRecord,
    broker_key,
    decode,
    encode,
    history_key,
)
from tailrace.meta.measured import MeasuredStore
from tailrace.meta.store import CreatedAt, ModifiedAt, Operation, Put
from tailrace.metrics.values import ControllerCounts
from tailrace.model import BrokerId, TopicPartition
from tailrace.runtime import Tasks
from tailrace.transport.rpc import Network
from tailrace.transport.wire import PartitionOrder

# After a lease ended unexpectedly in a cluster that has a damper.
LEASE_END_HOLD_MS: Final = 100
# A spared broker is asked this often, and given up after so many silences in a row.
ASK_AGAIN_MS: Final = 500
SILENCES_MAX: Final = 2


class Made(NamedTuple):
    """A topic that was made or got more partitions, and what whoever asked should know."""

    record: TopicRecord
    warnings: tuple[str, ...] = ()


class Reconciler:
    """Decides for the cluster, from `run` until the term is over."""

    def __init__(
        self,
        term: Term,
        settings: ControllerSettings,
        *,
        store: MeasuredStore,
        network: Network,
        clock: Clock,
        rng: Random,
        say: Callable[[str], None],
        remembered: Mapping[BrokerId, LiveBroker] | None = None,
        counts: ControllerCounts | None = None,
        traces: FailoverTraces | None = None,
    ) -> None:
        """`remembered`: where brokers were when this process saw them last, before this term."""
        self.term = term
        self._settings = settings
        self._store = store
        self._clock = clock
        self._say = say
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks = Tasks(self._task_failed)
        self._ledger = Ledger(
            settings,
            store=store,
            clock=clock,
            rng=rng,
            say=say,
            on_change=self._image_changed,
            counts=counts,
            traces=traces,
        )
        self._presence = Presence(window_ms=settings.broker_lease_ttl_ms, remembered=remembered)
        self._orders = Orders(
            term,
            settings,
            network=network,
            rng=rng,
            tasks=self._tasks,
            say=say,
            reports=Reports(
                stray=lambda live, stray: self._removals.stray_found(self.image, live, stray),
                failed=self._replica_failed,
                obeyed=self._order_obeyed,
                stopped=self._wake_up,
                deposed=self._deposed,
            ),
            traces=traces,
        )
        self._health = self._watch_brokers(network, rng)
        self._coordinator_health = self._watch_coordinators(network, rng)
        self._failures = Failures()
        self._syncing = Syncing()
        self._wake = asyncio.Event()
        self._dirty = True
        self._has_taken_over = False
        self._urgent: deque[Callable[[], Awaitable[object]]] = deque()
        self._fencing: dict[BrokerId, int] = {}
        self._requests = Requests(self._wake_up)
        self._removals = Removals(self._orders, say)
        # Set when a broker says that there is a newer controller: look at the store at once.
        self.suspicion = asyncio.Event()

    @property
    def image(self) -> ClusterImage:
        return self._ledger.image

    @property
    def queue(self) -> dict[str, int]:
        """What waits to be decided, and what brokers were not told yet; for those who measure."""
        return {
            "urgent": len(self._urgent) + self._dirty,
            "requests": len(self._requests),
            "orders": self._orders.untold,
        }

    @property
    def trouble(self) -> str:
        """What is wrong with the store; empty: nothing that is known of."""
        return self._ledger.trouble

    def health_of(self, broker: BrokerId) -> tuple[str, Sequence[FolderHealth]]:
        """Why a broker is unfit (empty: it is not), and its folders, as it told last."""
        return self._presence.unfit.get(broker, ""), self._health.folders.get(broker, ())

    @property
    def registrations(self) -> dict[BrokerId, LiveBroker]:
        """Where each broker was last, those that are gone too."""
        return self._presence.registrations

    async def run(self) -> None:
        """Reign. Raises NotController when the term is over, or what made it impossible."""
        try:
            self._tasks.spawn("image", self._ledger.follow())
            self._tasks.spawn("decisions", self._work())
            if self._settings.auto_leader_rebalance_enable:
                self._tasks.spawn("balance of leaders", self._balance_leaders())
            await self._over
        finally:
            await self._tasks.close()
            self._ledger.close()
            self._requests.close()
            await self._orders.close()

    # What is asked of it. All of this waits for the store; callers set a deadline around it.

    async def create_topic(self, event: TopicRequested, *, validate_only: bool = False) -> Made:
        """Make a topic, its partitions included, and give it; or only check that it can be."""
        made = await self._requests.ask(
            lambda check_wanted: self._create(event, validate_only, check_wanted)
        )
        if not validate_only:
            count = len(made.record.assignment)
            await self._ledger.until(lambda: len(self.image.states.get(event.name, {})) >= count)
            await self._orders.settle()
        return made

    async def delete_topic(self, event: DeletionRequested) -> None:
        """Mark a topic for deletion; the rest follows."""
        await self._requests.ask(lambda check_wanted: self._perform(event, check_wanted))

    async def administer(self, event: AdminEvent, *, validate_only: bool = False) -> Decision:
        """Have something changed as an administrator wants it, and give what was decided."""
        return await self._requests.ask(
            lambda check_wanted: self._administer(event, validate_only, check_wanted)
        )

    async def add_partitions(
        self, event: PartitionsRequested, *, validate_only: bool = False
    ) -> Made:
        """Give a topic more partitions, states and leaders included."""
        decision = await self.administer(event, validate_only=validate_only)
        if decision.record is None:
            raise InvariantViolation(f"partitions of {event.name!r} were neither refused nor made")
        if not validate_only:
            count = len(decision.record.assignment)
            await self._ledger.until(lambda: len(self.image.states.get(event.name, {})) >= count)
            await self._orders.settle()
        return Made(decision.record, decision.warnings)

    async def look(self) -> ClusterImage:
        """The image, once there is one that all requests before this one had a part in."""
        await self._requests.ask(_take_turn)
        return self.image

    async def fence(self, event: FenceRequested, reason: str) -> None:
        """Take a broker's registration away: somebody knows that it is gone."""
        cause = Cause(f"broker {event.broker_id} was fenced: {reason}", self._clock.wall_ms())
        await self._requests.ask(lambda check_wanted: self._fence(event, cause, check_wanted))

    async def relieve(self, broker_id: BrokerId, epoch: int) -> list[TopicPartition]:
        """Move a broker's leaderships away, as far as that can be; gives those that stay."""
        await self._requests.ask(_take_turn)
        live = self.image.brokers.get(broker_id)
        if live is None or live.epoch != epoch:
            now = "not registered" if live is None else f"in epoch {live.epoch}"
            raise StaleBroker(f"broker {broker_id} is {now}, not in epoch {epoch}")
        self._asked_to_drain(broker_id, epoch)
        await self._requests.ask(_take_turn)
        await self._orders.settle()
        return [
            partition
            for partition, _ in self.image.partitions()
            if (stored := self.image.state(partition)) is not None
            and stored.state.leader == broker_id
            and partition.topic not in self.image.deletions
        ]

    async def explain(self, partition: TopicPartition) -> PartitionHistory:
        """The last leader changes of a partition, as far as this controller knows of them."""
        if not self.image.revision:
            await self._requests.ask(_take_turn)
        if not self.image.replicas(partition):
            raise self.image.missing(partition)
        key = history_key(partition)
        return read_history(key, self._ledger.histories.get(key))

    def _watch_brokers(self, network: Network, rng: Random) -> HealthWatch[BrokerId, LiveBroker]:
        return HealthWatch(
            self.term,
            self._settings,
            network=network,
            clock=self._clock,
            rng=rng,
            tasks=self._tasks,
            say=self._say,
            on_gone=self._process_gone,
            on_draining=self._asked_to_drain,
            on_offline=self._replica_offline,
            on_fitness=self._fitness_told,
        )

    def _watch_coordinators(
        self, network: Network, rng: Random
    ) -> HealthWatch[int, LiveCoordinator]:
        return HealthWatch(
            self.term,
            self._settings,
            network=network,
            clock=self._clock,
            rng=rng,
            tasks=self._tasks,
            say=self._say,
            on_gone=self._coordinator_gone,
            # One that stops takes its registration away first: there is nothing to relieve it of.
            on_draining=lambda _, __: None,
            what="coordinator",
        )

    # What the keeper of the lease tells.

    def doubt(self) -> None:
        """Nobody can say whether the term goes on: tell brokers nothing until that is known."""
        self._orders.pause()

    def confirm(self, revision: int) -> None:
        """The term went on when the store was at this revision."""
        self._orders.resume()
        if self._ledger.is_deaf(revision):
            self._say("the watch brings nothing, although the store has changed: reading anew")
            self._urgent.append(self._ledger.read_anew)
            self._wake_up()

    # The one task that decides.

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self.image.revision:
                while await self._step():
                    pass

    async def _step(self) -> bool:
        """Do the most urgent thing; False when nothing is left to do."""
        if self._urgent:
            await self._urgent.popleft()()
        elif self._dirty:
            await self._reconcile()
        elif self._requests:
            await self._requests.serve_one()
        elif (event := self._removals.next_stopped(self.image)) is not None:
            await self._perform(event, _always)
        else:
            return False
        return True

    async def _reconcile(self) -> None:
        """Bring the partitions in line with the brokers that are there."""
        if self._presence.has_puzzle(self.image):
            # When leases end, others may end in the same moment: do not begin with the first.
            await asyncio.sleep(LEASE_END_HOLD_MS / 1_000)
        self._dirty = False
        if self._presence.looks_like_a_hiccup(self.image, now_ms=self._clock.monotonic_ms()):
            self._say("more than half of the brokers vanished at once: reading everything anew")
            await self._ledger.read_anew()
        self._observe()
        wall_ms = self._clock.wall_ms()
        decision = decide(self.image, ClusterChanged(), self._facts(), now_ms=wall_ms)
        for transaction in decision.transactions:
            # Whatever happens, look once more: at the least to see that nothing is left to do.
            self._dirty, looked = True, self.image.brokers
            done = await self._ledger.commit(transaction)
            if not done or self._urgent or self.image.brokers is not looked:
                return
        for live in decision.admissions:
            await self._admit(live)
        self._removals.start(self.image)

    def _observe(self) -> None:
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.wall_ms()
        look = self._presence.observe if self._has_taken_over else self._presence.take_over
        self._has_taken_over = True
        shaken = self._store.was_in_trouble(self._settings.broker_lease_ttl_ms)
        spared = look(self.image, now_ms=now_ms, wall_ms=wall_ms, shaken=shaken)
        for broker in spared:
            self._tasks.spawn(f"question to broker {broker}", self._question(broker))
        if spared:
            names = ", ".join(str(each) for each in spared)
            when = "while the metadata store was in trouble" if shaken else "at once"
            self._say(f"brokers {names} vanished {when}: they keep what they have for now")
            self._tell()

    async def _question(self, broker: BrokerId) -> None:
        """Find out whether a spared broker is there, until it is registered or time is up."""
        deadline_ms = self._presence.spared.get(broker)
        live = self._presence.registrations.get(broker)
        silences = 0
        while deadline_ms is not None and self._presence.spared.get(broker) == deadline_ms:
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                self._give_up(broker, "it did not register anew in time")
                return
            if live is not None:
                answer = await self._health.ask(live)
                silences = silences + 1 if answer is Answer.SILENT else 0
                if answer is Answer.GONE or silences >= SILENCES_MAX:
                    self._give_up(broker, answer.value)
                    return
            await asyncio.sleep(min(left_ms, ASK_AGAIN_MS) / 1_000)

    def _give_up(self, broker: BrokerId, why: str) -> None:
        if self._presence.give_up(broker, why, self._clock.wall_ms()):
            self._say(f"broker {broker} is gone after all: {why}")
            self._tell()
            self._look_again()

    def _facts(self) -> Facts:
        return Facts(
            term=self.term,
            group_shards=self._settings.group_shards,
            draining=self._presence.draining,
            unfit=self._presence.unfit,
            spared=list(self._presence.spared),
            failed=self._failures.replicas,
            causes=self._presence.causes,
            incarnations=self._ledger.incarnations,
            histories=self._ledger.histories,
            moves_per_broker_max=self._settings.reassignment_partitions_per_broker,
            synced=self._syncing.done(self.image),
            default_replication_factor=self._settings.default_replication_factor,
        )

    async def _admit(self, live: LiveBroker) -> None:
        """Nothing that the broker may have lost counts any more: it may have orders."""
        broker = live.registration.broker_id
        key = broker_key(broker)
        try:
            entry = await self._ledger.get(key)
        except StoreUnavailable:
            self._dirty = True
            await self._ledger.read_anew()
            return
        if entry is None or entry.create_revision != live.epoch:
            # The watch will bring what became of it.
            return
        registration = decode(BrokerRegistration, entry.value, key=key)
        operations: list[Operation] = [
            Put(incarnation_key(broker), registration.incarnation.encode())
        ]
        if registration.tail_may_be_lost:
            cleared = replace(registration, tail_may_be_lost=False)
            operations.append(Put(key, encode(cleared), entry.lease))
        transaction = Transaction(
            what=f"admit broker {broker} in epoch {live.epoch}",
            guards=(
                CreatedAt(CONTROLLER, self.term.revision),
                CreatedAt(key, live.epoch),
                ModifiedAt(key, entry.mod_revision),
            ),
            operations=tuple(operations),
        )
        self._dirty = True
        await self._ledger.commit(transaction)

    # Requests.

    async def _create(
        self, event: TopicRequested, validate_only: bool, check_wanted: Wanted
    ) -> Made:
        while True:
            check_wanted()
            made = self.image.topics.get(event.name)
            if made is not None and made.record.topic_id == event.topic_id:
                return Made(made.record)
            decision = decide(self.image, event, self._facts(), now_ms=self._clock.wall_ms())
            if decision.error is not None:
                raise decision.error
            if decision.record is None:
                raise InvariantViolation(f"topic {event.name!r} was neither refused nor made")
            if validate_only or await self._ledger.commit(decision.transactions[0]):
                for warning in decision.warnings:
                    self._say(f"topic {event.name!r}: {warning}")
                return Made(decision.record, decision.warnings)

    async def _perform(
        self, event: DeletionRequested | ReplicasStopped, check_wanted: Wanted
    ) -> None:
        """Do all that an event asks for, deciding anew as often as it takes."""
        while True:
            check_wanted()
            decision = decide(self.image, event, self._facts(), now_ms=self._clock.wall_ms())
            if decision.error is not None:
                raise decision.error
            if not decision.transactions:
                return
            for transaction in decision.transactions:
                if not await self._ledger.commit(transaction):
                    break

    async def _administer(
        self, event: AdminEvent, validate_only: bool, check_wanted: Wanted
    ) -> Decision:
        """As `_perform`, but gives the first decision: the later ones find that all is done."""
        first: Decision | None = None
        while True:
            check_wanted()
            decision = decide(self.image, event, self._facts(), now_ms=self._clock.wall_ms())
            if decision.error is not None:
                raise decision.error
            first = first or decision
            if validate_only or not decision.transactions:
                return first
            for transaction in decision.transactions:
                if not await self._ledger.commit(transaction):
                    first = None
                    break
                self._accept_losses(event)

    def _accept_losses(self, event: AdminEvent) -> None:
        """Whom a person let lead was chosen with what is wrong with it: it gets its orders."""
        if not isinstance(event, ElectionRequested) or not event.unclean:
            return
        for partition in list(self._failures.replicas):
            stored = self.image.state(partition)
            if stored is not None and stored.state.leader != NO_BROKER:
                self._failures.accept(partition, stored.state.leader)

    async def _fence(self, event: FenceRequested, cause: Cause, check_wanted: Wanted) -> None:
        while True:
            check_wanted()
            decision = decide(self.image, event, self._facts(), now_ms=self._clock.wall_ms())
            if decision.error is not None:
                raise decision.error
            live = self.image.brokers.get(event.broker_id)
            if live is None or not decision.transactions:
                return
            # Not another life of it, should this one be gone before we come.
            event = replace(event, epoch=live.epoch)
            self._presence.explain(event.broker_id, live.epoch, cause)
            if await self._ledger.commit(decision.transactions[0]):
                self._say(cause.text)
                return

    async def _balance_leaders(self) -> None:
        """Now and then let preferred replicas lead, where brokers lead too little."""
        event = ElectionRequested(
            balance_percent=self._settings.leader_imbalance_per_broker_percentage
        )
        while True:
            await asyncio.sleep(self._settings.leader_imbalance_check_interval_ms / 1_000)
            if self._orders.is_paused:
                continue
            try:
                decision = await self.administer(event)
            except TailraceError as error:
                self._say(f"leaders are not balanced now: {error}")
                continue
            if decision.outcomes:
                self._say(f"{len(decision.outcomes)} partitions got their preferred leaders")

    # What is told from outside. None of this waits.

    def _image_changed(self, old: ClusterImage) -> None:
        new = self.image
        holder = new.controller
        if holder is None or holder.create_revision != self.term.revision:
            who = "nobody" if holder is None else f"controller {holder.record.controller_id}"
            self._end(NotController(f"{who} holds {CONTROLLER} now"))
            return
        if not (
            new.brokers is old.brokers
            and new.topics is old.topics
            and new.deletions is old.deletions
            and new.cordons is old.cordons
            and new.reassignments is old.reassignments
            and (not new.reassignments or new.states is old.states)
            and new.coordinators is old.coordinators
            and new.shards is old.shards
        ):
            self._dirty = True
        if new.coordinators is not old.coordinators:
            self._coordinator_health.update(new.coordinators)
        if new.brokers is not old.brokers:
            self._failures.forget_former_lives(new.brokers)
            self._health.update(new.brokers)
        self._tell()
        self._wake_up()

    def _tell(self) -> None:
        spared = {
            each: self._presence.registrations[each]
            for each in self._presence.spared
            if each in self._presence.registrations
        }
        self._orders.update(self.image, self._ledger.incarnations, spared)

    def _process_gone(self, live: LiveBroker, broke_ms: int) -> None:
        broker, epoch = live.registration.broker_id, live.epoch
        if self._fencing.get(broker) == epoch:
            return
        self._fencing[broker] = epoch
        in_order = self._presence.draining.get(broker) == epoch
        why = "it stopped in order" if in_order else "connection refused, its process is gone"
        cause = Cause(f"broker {broker}: {why}", broke_ms)
        event = FenceRequested(broker_id=broker, epoch=epoch)

        async def fence() -> None:
            try:
                await self._fence(event, cause, _always)
            except StaleBroker as error:
                # It has registered anew meanwhile: this life is over in any case.
                self._say(str(error))
            finally:
                self._fencing.pop(broker, None)

        self._urgent.append(fence)
        self._wake_up()

    def _coordinator_gone(self, live: LiveCoordinator, _: int) -> None:
        """Take its registration away, so that its shards need not wait for the lease to end."""
        number = live.registration.coordinator_id

        async def fence() -> None:
            now = self.image.coordinators.get(number)
            if now is not None and now.epoch == live.epoch:
                guard = CreatedAt(CONTROLLER, self.term.revision)
                await self._ledger.commit(fence_transaction(now, guard))

        self._urgent.append(fence)
        self._wake_up()

    def _asked_to_drain(self, broker: BrokerId, epoch: int) -> None:
        if self._presence.drain(broker, epoch, self._clock.wall_ms()):
            self._say(f"broker {broker} is shutting down: its leaderships move away")
            self._look_again()

    def _replica_failed(
        self, live: LiveBroker, order: PartitionOrder, error: TailraceError
    ) -> None:
        if self._failures.failed(live, order.partition, error):
            self._say(
                f"broker {live.registration.broker_id} cannot serve {order.partition}: {error}"
            )
            self._look_again()

    def _fitness_told(self, broker: BrokerId, unfit: str) -> None:
        if self._presence.note_fitness(broker, unfit, self._clock.wall_ms()):
            self._say(f"broker {broker}: {unfit or 'it may lead again'}")
            self._look_again()

    def _replica_offline(
        self, live: LiveBroker, partition: TopicPartition, error: TailraceError
    ) -> None:
        """As a broker says of itself; it is told again what to do, since that mends it."""
        broker = live.registration.broker_id
        if self._failures.failed(live, partition, error):
            self._say(f"broker {broker} has {partition} out of service: {error}")
            self._orders.repeat(broker, partition)
            self._look_again()

    def _order_obeyed(self, live: LiveBroker, order: PartitionOrder) -> None:
        is_well_again = self._failures.obeyed(live, order.partition, order.leader)
        if self._syncing.obeyed(live, order) or is_well_again:
            self._look_again()

    def _deposed(self, why: str) -> None:
        self._say(why)
        self.suspicion.set()

    def _look_again(self) -> None:
        """Something has changed that decisions are made from."""
        self._dirty = True
        self._wake_up()

    def _wake_up(self) -> None:
        self._wake.set()

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._say(f"{name} failed: {error!r}")
        self._end(error)

    def _end(self, error: BaseException) -> None:
        if not self._over.done():
            self._over.set_exception(error)
            # It is no loss when nobody hears of it: `run` may be ending already.
            self._over.exception()


def _always() -> None:
    """For what must be done, whoever waits for it."""


async def _take_turn(_: Wanted) -> None:
    """A request that only waits for its turn."""
