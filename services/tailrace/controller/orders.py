"""What brokers are told: one sender for each, which tells the newest and waits for no other.

What a broker is to do is a function of the image; a sender holds the part for one life of one
broker, tells all of it once (`full`), then what changed, and tells again until it was heard. Many
changes while a call is under way go out as one. Four loops for each broker, so that neither a slow
deletion nor a large picture holds up a change of leader. What a broker cannot do for one partition
is told again later each time (`replica_retry_max_ms` in the end), and at once when it changes.

Invariant: an order that was replaced by a newer one of the same topic is never sent after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from random import Random
from typing import Final, NamedTuple

from tailrace.controller.facts import Term
from tailrace.controller.failures import is_lasting
from tailrace.controller.health import control_address
from tailrace.controller.messages import Painter, link_address, order_for, settings_for
from tailrace.controller.retries import Backoff, jittered
from tailrace.controller.settings import ControllerSettings
from tailrace.controller.traces import FailoverTraces
from tailrace.controller.views import is_admitted
from tailrace.errors import StaleController, TailraceError
from tailrace.meta.image import ClusterImage, LiveBroker, StoredTopic
from tailrace.meta.keys import NO_BROKER
from tailrace.model import BrokerId, TopicId, TopicPartition
from tailrace.runtime import Tasks
from tailrace.transport.methods import (
    CONTROL_LEADER_AND_ISR,
    CONTROL_STOP_REPLICA,
    CONTROL_UPDATE_METADATA,
    CONTROL_UPDATE_SETTINGS,
)
from tailrace.transport.rpc import Network
from tailrace.transport.wire import (
    OrderHeader,
    PartitionOrder,
    error_of,
    from_partition,
    to_order,
    to_order_header,
    to_partition,
)
from tailrace.v1 import common_pb2, control_pb2

# In one message; a `full` one has all that there are.
PARTITIONS_PER_ORDER: Final = 2_000


class Replica(NamedTuple):
    """A replica on a broker's disk, by the id of its topic.

    With a revision, that of the state in which it is none any more: a later one may want it again.
    """

    partition: TopicPartition
    topic_id: TopicId
    revision: int = 0
    # Nothing on record says that it may go: its broker keeps it under another name.
    set_aside: bool = False


class Reports(NamedTuple):
    """Whom to tell what brokers answer."""

    # With a `full` order: what the broker has and was not named.
    stray: Callable[[LiveBroker, list[Replica]], None]
    # The broker could not obey for this partition, or could (again).
    failed: Callable[[LiveBroker, PartitionOrder, TailraceError], None]
    obeyed: Callable[[LiveBroker, PartitionOrder], None]
    # All replicas that the broker was told to delete are gone.
    stopped: Callable[[], None]
    # A broker knows of a newer controller.
    deposed: Callable[[str], None]


class Orders:
    """The senders to all brokers of one term."""

    def __init__(
        self,
        term: Term,
        settings: ControllerSettings,
        *,
        network: Network,
        rng: Random,
        tasks: Tasks,
        say: Callable[[str], None],
        reports: Reports,
        traces: FailoverTraces | None = None,
    ) -> None:
        self._traces = traces
        self._term = term
        self._settings = settings
        self._network = network
        self._rng = rng
        self._tasks = tasks
        self._say = say
        self._reports = reports
        self._image = ClusterImage()
        self._senders: dict[BrokerId, Sender] = {}
        self._links: dict[BrokerId, str] = {}
        # Leaders that followers were told of without where to find them.
        self._unplaced: set[BrokerId] = set()
        self._spared: Mapping[BrokerId, LiveBroker] = {}
        self._painter = Painter()
        self._painted = ClusterImage()
        self._painted_spared: list[BrokerId] = []
        self._picture: common_pb2.ClusterMetadata | None = None
        self._repaint = asyncio.Event()
        self._allowed = asyncio.Event()
        self._allowed.set()
        tasks.spawn("picture", self._paint())

    def update(
        self,
        image: ClusterImage,
        incarnations: Mapping[BrokerId, str],
        spared: Mapping[BrokerId, LiveBroker],
    ) -> None:
        """Take the newest image: tell whom it concerns what has changed."""
        old, self._image, self._spared = self._image, image, spared
        moved = self._update_links({**spared, **image.brokers})
        new_senders = self._update_senders(image, incarnations)
        if moved or _looks_different(image, old):
            for name in sorted({*old.topics, *image.topics}):
                self._update_topic(name, old, image, moved)
        for sender in new_senders:
            self._fill(sender)
        same_settings = (
            image.broker_configs is old.broker_configs
            and image.client_configs is old.client_configs
        )
        for sender in new_senders if same_settings else self._senders.values():
            sender.configure(settings_for(image, sender.live.registration.broker_id))
        self._repaint.set()

    def pause(self) -> None:
        """Tell nobody anything until `resume`: it is in doubt who the controller is."""
        self._allowed.clear()

    def resume(self) -> None:
        self._allowed.set()

    def repeat(self, broker: BrokerId, partition: TopicPartition) -> None:
        """Tell a broker once more what to do with a partition, until it has done so."""
        sender = self._senders.get(broker)
        if sender is not None:
            sender.repeat(partition)

    @property
    def untold(self) -> int:
        """Orders and deletions that brokers have not heard of yet."""
        return sum(sender.untold for sender in self._senders.values())

    @property
    def is_paused(self) -> bool:
        return not self._allowed.is_set()

    def delete_replicas(self, broker: BrokerId, replicas: Iterable[Replica]) -> None:
        """Have a broker delete replicas of topics that are gone, if it is there."""
        sender = self._senders.get(broker)
        if sender is not None:
            sender.stop(replicas)

    def has_deleted(self, replicas: Iterable[Replica]) -> bool:
        """Whether no broker that is there has still to delete one of these."""
        return not any(
            each in sender.stops for each in replicas for sender in self._senders.values()
        )

    async def settle(self) -> bool:
        """Wait a little until all leaders have heard that they lead; says whether they have."""
        try:
            async with asyncio.timeout(self._settings.settle_ms / 1_000):
                for sender in list(self._senders.values()):
                    await sender.leads.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """The term is over, and all its tasks have ended."""
        for sender in self._senders.values():
            await sender.channel.close()

    # The parts of `update`.

    def _update_links(self, brokers: Mapping[BrokerId, LiveBroker]) -> list[BrokerId]:
        """Learn where leaders' links are; gives the brokers of which followers must be told."""
        links = {each: link_address(brokers[each]) for each in sorted(brokers)}
        moved = [
            each
            for each in links
            if each in self._unplaced or links[each] != self._links.get(each, links[each])
        ]
        self._unplaced.difference_update(links)
        # A broker that is gone keeps its place: its followers may be told of it until it returns.
        self._links.update(links)
        return moved

    def _update_senders(
        self, image: ClusterImage, incarnations: Mapping[BrokerId, str]
    ) -> list[Sender]:
        for broker, sender in list(self._senders.items()):
            live = image.brokers.get(broker)
            if live is None or live.epoch != sender.live.epoch:
                sender.close()
                self._tasks.spawn(f"goodbye to broker {broker}", sender.channel.close())
                del self._senders[broker]
                self._reports.stopped()
        new = []
        for broker in sorted(image.brokers):
            live = image.brokers[broker]
            if broker not in self._senders and is_admitted(live, incarnations):
                self._senders[broker] = sender = self._new_sender(live)
                if self._picture is not None:
                    sender.show(self._picture)
                new.append(sender)
        return new

    def _new_sender(self, live: LiveBroker) -> Sender:
        return Sender(
            live,
            self._term,
            self._settings,
            network=self._network,
            rng=self._rng,
            tasks=self._tasks,
            say=self._say,
            reports=self._reports,
            allowed=self._allowed,
            traces=self._traces,
        )

    def _update_topic(
        self, name: str, old: ClusterImage, new: ClusterImage, moved: list[BrokerId]
    ) -> None:
        topic, states = new.topics.get(name), new.states.get(name, {})
        former, former_states = old.topics.get(name), old.states.get(name, {})
        deleting, was_deleting = name in new.deletions, name in old.deletions
        if former is not None and (topic is None or deleting) and not was_deleting:
            for sender in self._senders.values():
                sender.forget(name)
        if topic is None or deleting:
            return
        # By value: after a full read all is made anew, but little has changed.
        all_of_it = topic != former or was_deleting
        if former is not None and all_of_it and former.record.topic_id == topic.record.topic_id:
            self._remove_former(name, former, topic)
        if not all_of_it and states is former_states and not moved:
            return
        for number in sorted(states):
            stored = states[number]
            if all_of_it or stored != former_states.get(number) or stored.state.leader in moved:
                self._tell(TopicPartition(name, number))

    def _remove_former(self, name: str, former: StoredTopic, topic: StoredTopic) -> None:
        """Replicas that a reassignment has taken away go; who is away is told when it returns."""
        for number, brokers in former.record.assignment.items():
            partition = TopicPartition(name, number)
            stored = self._image.state(partition)
            for broker in brokers:
                sender = self._senders.get(broker)
                if broker in topic.record.assignment.get(number, ()) or sender is None:
                    continue
                revision = 0 if stored is None else stored.revision
                sender.forget_one(partition)
                sender.stop([Replica(partition, topic.record.topic_id, revision)])

    def _tell(self, partition: TopicPartition) -> None:
        order = self._order(partition)
        if order is not None:
            for replica in order.replicas:
                sender = self._senders.get(replica)
                if sender is not None:
                    sender.want(order)

    def _fill(self, sender: Sender) -> None:
        """A new sender starts with all partitions of its broker."""
        broker = sender.live.registration.broker_id
        for partition, replicas in self._image.partitions():
            if broker in replicas and partition.topic not in self._image.deletions:
                order = self._order(partition)
                if order is not None:
                    sender.want(order)

    def _order(self, partition: TopicPartition) -> PartitionOrder | None:
        topic = self._image.topics[partition.topic]
        stored = self._image.state(partition)
        if stored is None or partition.partition not in topic.record.assignment:
            return None
        leader = stored.state.leader
        if leader != NO_BROKER and leader not in self._links:
            self._unplaced.add(leader)
        link = self._links.get(leader, "")
        return order_for(self._image, partition, stored, link)

    # The picture.

    async def _paint(self) -> None:
        """Publish the picture when something in it has changed, and leaders know that they lead."""
        while True:
            await self._repaint.wait()
            await self._hold()
            self._repaint.clear()
            spared = list(self._spared)
            if spared == self._painted_spared and not _looks_different(self._image, self._painted):
                continue
            self._painted, self._painted_spared = self._image, spared
            self._picture = self._painter.paint(self._image, self._spared)
            for sender in self._senders.values():
                sender.show(self._picture)

    async def _hold(self) -> None:
        """Wait a little for the watch to catch up, and for leaders to hear of their partitions."""
        try:
            async with asyncio.timeout(self._settings.picture_hold_ms / 1_000):
                while self._image.ahead:
                    self._repaint.clear()
                    await self._repaint.wait()
                for sender in list(self._senders.values()):
                    await sender.leads.wait()
        except TimeoutError:
            pass


class Sender:
    """Tells one life of one broker what it is to do."""

    def __init__(
        self,
        live: LiveBroker,
        term: Term,
        settings: ControllerSettings,
        *,
        network: Network,
        rng: Random,
        tasks: Tasks,
        say: Callable[[str], None],
        reports: Reports,
        allowed: asyncio.Event,
        traces: FailoverTraces | None = None,
    ) -> None:
        self._traces = traces
        self.live = live
        self._settings = settings
        self._say = say
        self._reports = reports
        self._allowed = allowed
        self._rng = rng
        self._broker = live.registration.broker_id
        self._header = to_order_header(
            OrderHeader(
                controller_id=term.controller_id,
                controller_epoch=term.epoch,
                broker_epoch=live.epoch,
                broker_incarnation=live.registration.incarnation,
                term_token=term.token,
            )
        )
        self.channel = network.channel(control_address(live))
        self._wanted: dict[TopicPartition, PartitionOrder] = {}
        self._untold: dict[TopicPartition, None] = {}
        # What the broker could not do: when it is told again, and how long that wait is.
        self._deferred: dict[TopicPartition, float] = {}
        self._waits_ms: dict[TopicPartition, int] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._is_full = True
        self.stops: dict[Replica, None] = {}
        self._picture: common_pb2.ClusterMetadata | None = None
        # Set while no leadership is to be told.
        self.leads = asyncio.Event()
        self.leads.set()
        self._order_wake = asyncio.Event()
        self._order_wake.set()
        self._stop_wake = asyncio.Event()
        # Set while no order is under way, so that none can undo a deletion that overtook it.
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._picture_wake = asyncio.Event()
        self._told_settings: control_pb2.UpdateSettingsRequest | None = None
        self._settings_now = control_pb2.UpdateSettingsRequest()
        self._settings_wake = asyncio.Event()
        loops = (
            ("orders", self._order_wake, self._tell_orders),
            ("deletions", self._stop_wake, self._tell_stops),
            ("picture", self._picture_wake, self._tell_picture),
            ("settings", self._settings_wake, self._tell_settings),
        )
        self._loops = [
            tasks.spawn(f"{name} for broker {self._broker}", self._loop(name, wake, step))
            for name, wake, step in loops
        ]

    def want(self, order: PartitionOrder) -> None:
        """Have an order told, unless a newer one is known already."""
        known = self._wanted.get(order.partition)
        if (
            known is not None
            and known.topic_id == order.topic_id
            and (order.leader_epoch, order.revision) < (known.leader_epoch, known.revision)
        ):
            return
        if order != known:
            self._waits_ms.pop(order.partition, None)
        self._wanted[order.partition] = order
        self._deferred.pop(order.partition, None)
        self._untold[order.partition] = None
        if self.stops:
            self._want_again(order)
        if order.leader == self._broker:
            self.leads.clear()
        self._order_wake.set()

    @property
    def untold(self) -> int:
        return len(self._untold) + len(self._deferred) + len(self.stops)

    def repeat(self, partition: TopicPartition) -> None:
        if partition in self._wanted:
            self.want(self._wanted[partition])

    def _want_again(self, order: PartitionOrder) -> None:
        """What a reassignment took away is not deleted when another one brings it back."""
        for each in list(self.stops):
            if each.revision and each[:2] == (order.partition, order.topic_id):
                del self.stops[each]

    def forget(self, topic: str) -> None:
        """Say no more of a topic that is being deleted."""
        for partition in [each for each in self._wanted if each.topic == topic]:
            self._drop(partition)
        self._note_told()

    def forget_one(self, partition: TopicPartition) -> None:
        """Say no more of a partition that has its replicas elsewhere."""
        self._drop(partition)
        self._note_told()

    def _drop(self, partition: TopicPartition) -> None:
        self._wanted.pop(partition, None)
        self._untold.pop(partition, None)
        self._deferred.pop(partition, None)
        self._waits_ms.pop(partition, None)

    def stop(self, replicas: Iterable[Replica]) -> None:
        self.stops.update(dict.fromkeys(replicas))
        if self.stops:
            self._stop_wake.set()

    def show(self, picture: common_pb2.ClusterMetadata) -> None:
        self._picture = picture
        self._picture_wake.set()

    def configure(self, settings: control_pb2.UpdateSettingsRequest) -> None:
        """Tell the settings, unless they are those that were told last."""
        self._settings_now = settings
        if settings != self._told_settings:
            self._settings_wake.set()

    def close(self) -> None:
        """This life of the broker is over."""
        for task in self._loops:
            task.cancel()
        if self._retry is not None:
            self._retry.cancel()
        # Who waits for it waits in vain.
        self.leads.set()

    # The loops.

    async def _loop(
        self, name: str, wake: asyncio.Event, step: Callable[[], Awaitable[bool]]
    ) -> None:
        """Take a step whenever there is something to tell; after one that failed, wait longer."""
        backoff = Backoff(self._settings.retry_ms, self._settings.retry_max_ms, self._rng)
        said = ""
        while True:
            await wake.wait()
            await self._allowed.wait()
            wake.clear()
            try:
                done, problem = await step(), ""
            except TailraceError as error:
                done, problem = False, f"{name} for broker {self._broker}: {error}"
                if isinstance(error, StaleController):
                    self._reports.deposed(problem)
            if problem != said and problem:
                self._say(problem)
            said = problem
            if done:
                backoff.reset()
                continue
            try:
                # Something new is worth a try at once.
                async with asyncio.timeout(backoff.next_s()):
                    await wake.wait()
            except TimeoutError:
                wake.set()

    async def _tell_orders(self) -> bool:
        """Tell what is untold; False: some of it must be told again."""
        full = self._is_full
        if not full and not self._untold:
            self._note_told()
            return True
        names = list(self._wanted if full else self._untold)
        if not full:
            del names[PARTITIONS_PER_ORDER:]
        sent = [self._wanted[each] for each in names]
        request = control_pb2.LeaderAndIsrRequest(
            header=self._header, partitions=[to_order(each) for each in sent], full=full
        )
        span = None if self._traces is None else self._traces.tell(self._broker, sent)
        if span is not None:
            request.traceparent = span.context
        problem = "it could not be told"
        self._quiet.clear()
        try:
            response = await self.channel.call(
                CONTROL_LEADER_AND_ISR, request, timeout_ms=self._settings.order_timeout_ms
            )
            problem = response.message
        finally:
            self._quiet.set()
            if span is not None:
                span.end(problem)
        _raise(error_of(response.error, response.message))
        self._is_full = False
        self._acknowledge(sent, response)
        if full:
            self._report_stray(response)
        if self._untold:
            self._order_wake.set()
        self._note_told()
        return True

    def _acknowledge(
        self, sent: list[PartitionOrder], response: control_pb2.LeaderAndIsrResponse
    ) -> None:
        refused: dict[TopicPartition, TailraceError] = {}
        failures = {
            (each.partition.topic, each.partition.partition): error_of(each.error, each.message)
            for each in response.errors
        }
        for order in sent:
            partition = order.partition
            failure = failures.get((partition.topic, partition.partition))
            if failure is not None:
                if self._wanted.get(partition) is order:
                    refused[partition] = failure
                self._reports.failed(self.live, order, failure)
                continue
            if self._wanted.get(partition) is order:
                self._untold.pop(partition, None)
                self._waits_ms.pop(partition, None)
            self._reports.obeyed(self.live, order)
            if self._traces is not None:
                self._traces.obeyed(self._broker, order)
        if refused:
            self._defer(refused)

    def _defer(self, refused: Mapping[TopicPartition, TailraceError]) -> None:
        """Tell these again, each after twice the time of before.

        Those that failed together stay together: however many there are, it is one call.
        """
        share, now_s = jittered(self._rng), asyncio.get_running_loop().time()
        for partition, failure in refused.items():
            settings = self._settings
            max_ms = settings.replica_retry_max_ms if is_lasting(failure) else settings.retry_max_ms
            wait_ms = min(self._waits_ms.get(partition, settings.retry_ms), max_ms)
            self._waits_ms[partition] = wait_ms * 2
            self._untold.pop(partition, None)
            self._deferred[partition] = now_s + wait_ms * share / 1_000
        self._await_first()

    def _await_first(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._deferred:
            first_s = min(self._deferred.values())
            self._retry = asyncio.get_running_loop().call_at(first_s, self._take_due, first_s)

    def _take_due(self, until_s: float) -> None:
        for partition in [each for each, due_s in self._deferred.items() if due_s <= until_s]:
            del self._deferred[partition]
            self._untold[partition] = None
        self._order_wake.set()
        self._await_first()

    def _report_stray(self, response: control_pb2.LeaderAndIsrResponse) -> None:
        stray = [
            Replica(from_partition(each.partition), TopicId(each.topic_id))
            for each in response.stray
        ]
        if stray:
            self._reports.stray(self.live, stray)

    def _note_told(self) -> None:
        waiting = (*self._untold, *self._deferred)
        if not any(self._wanted[each].leader == self._broker for each in waiting):
            self.leads.set()

    async def _tell_stops(self) -> bool:
        await self._quiet.wait()
        batch = list(self.stops)[:PARTITIONS_PER_ORDER]
        if not batch:
            return True
        request = control_pb2.StopReplicaRequest(
            header=self._header,
            partitions=[
                control_pb2.StopPartition(
                    partition=to_partition(each.partition),
                    topic_id=each.topic_id,
                    delete=not each.set_aside,
                    revision=each.revision,
                    set_aside=each.set_aside,
                )
                for each in batch
            ],
        )
        response = await self.channel.call(
            CONTROL_STOP_REPLICA, request, timeout_ms=self._settings.order_timeout_ms
        )
        _raise(error_of(response.error, response.message))
        # A broker that finds nothing on record is not asked again: its next report brings it up.
        failed = {
            (each.partition.topic, each.partition.partition)
            for each in response.errors
            if each.error != common_pb2.ERROR_CODE_INVALID_REQUEST
        }
        for each in batch:
            if (each.partition.topic, each.partition.partition) not in failed:
                self.stops.pop(each, None)
        for error in response.errors:
            self._say(f"broker {self._broker} cannot delete a replica: {error.message}")
        if not self.stops:
            self._reports.stopped()
        elif not failed:
            self._stop_wake.set()
        return not failed

    async def _tell_picture(self) -> bool:
        picture = self._picture
        if picture is None:
            return True
        request = control_pb2.UpdateMetadataRequest(header=self._header, metadata=picture)
        response = await self.channel.call(
            CONTROL_UPDATE_METADATA, request, timeout_ms=self._settings.order_timeout_ms
        )
        _raise(error_of(response.error, response.message))
        if self._picture is picture:
            self._picture = None
        return True

    async def _tell_settings(self) -> bool:
        settings = self._settings_now
        request = control_pb2.UpdateSettingsRequest(
            header=self._header, broker=settings.broker, clients=settings.clients
        )
        response = await self.channel.call(
            CONTROL_UPDATE_SETTINGS, request, timeout_ms=self._settings.order_timeout_ms
        )
        _raise(error_of(response.error, response.message))
        self._told_settings = settings
        return self._settings_now is settings


def _raise(error: TailraceError | None) -> None:
    if error is not None:
        raise error


def _looks_different(new: ClusterImage, old: ClusterImage) -> bool:
    """Whether a client could tell the two images apart."""
    return not (
        new.brokers == old.brokers
        and new.topics == old.topics
        and new.states == old.states
        and new.deletions == old.deletions
        and new.coordinators == old.coordinators
        and new.shards == old.shards
        and new.controller == old.controller
        and new.cluster_id == old.cluster_id
    )
