"""A coordinator: its parts put together, started and stopped in order.

All ports come from outside, so that the same class runs in a process of its own and in the
simulator. Start: listen, register, follow the shards. Stop in order: the registration goes first,
so that others take the shards over while what is on its way here is still answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from tailrace.client.metadata import ClusterPicture, MetadataWatcher
from tailrace.clock import Clock
from tailrace.coordinator.appender import Appender
from tailrace.coordinator.journal import Journal
from tailrace.coordinator.loading import Loader
from tailrace.coordinator.offsets import Meant, TopicFacts
from tailrace.coordinator.runtime import Runtime
from tailrace.coordinator.service import GroupService
from tailrace.coordinator.settings import CoordinatorSettings
from tailrace.coordinator.shard_map import ShardMap
from tailrace.coordinator.topic import OffsetsTopic
from tailrace.coordinator.traces import RebalanceTraces
from tailrace.errors import (
    CorruptCheckpoint,
    NotCoordinator,
    ProducerFenced,
    StoreUnavailable,
    TailraceError,
    Unreachable,
)
from tailrace.meta.keys import (
    BROKERS,
    BrokerRegistration,
    CoordinatorRegistration,
    TopicRecord,
    coordinator_key,
    decode,
    tombstone_key,
    topic_key,
)
from tailrace.meta.registration import OtherLife, Registration
from tailrace.meta.store import MetadataStore
from tailrace.meta.verified import FOLLOW_BROKERS_MS, Followed, VerifiedStore
from tailrace.process import StartAnew
from tailrace.runtime import Tasks
from tailrace.transport import methods
from tailrace.transport.addresses import join_address, split_address
from tailrace.transport.rpc import Network, Server, Stream
from tailrace.v1 import control_pb2

STORE_RETRY_MS: Final = 250
STOP_GRACE_MS: Final = 500
# A shard that the log refuses, and that is still ours by then, is given back.
FENCED_WAIT_MS: Final = 2_000


class Coordinator:
    """One coordinator. `failed` is set, with the reason in `failure`, when it cannot go on."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        *,
        store: MetadataStore,
        network: Network,
        clock: Clock,
        rng: Random,
        say: Callable[[str], None],
        traces: RebalanceTraces | None = None,
    ) -> None:
        self._traces = traces
        self._settings = settings
        followed = Followed(lambda: 1, FOLLOW_BROKERS_MS)
        self.verified = VerifiedStore(store, clock, say, followed=followed)
        self._store: MetadataStore = self.verified
        self._network = network
        self._clock = clock
        self._rng = rng
        self._say = say
        self._tasks = Tasks(self._task_failed)
        self._service = GroupService(
            settings.coordinator_id,
            runtime=self._ready_runtime,
            wall_ms=clock.wall_ms,
            tasks=self._tasks,
        )
        self._server: Server | None = None
        self._metadata: MetadataWatcher | None = None
        self._loader: Loader | None = None
        self._registration: Registration[CoordinatorRegistration] | None = None
        self._registering: asyncio.Task[None] | None = None
        self._shards = ShardMap(self._store, on_change=self._shards_changed, say=say)
        self._topic: OffsetsTopic | None = None
        self._topics: tuple[ClusterPicture | None, dict[str, TopicFacts]] = (None, {})
        self.runtime: Runtime | None = None
        self.failed = asyncio.Event()
        self.failure: BaseException | None = None
        self.address = ""

    @property
    def epoch(self) -> int | None:
        return self._registration.epoch if self._registration is not None else None

    @property
    def metadata(self) -> MetadataWatcher | None:
        """What it knows of the cluster; None before it has found a broker."""
        return self._metadata

    async def start(self) -> None:
        """Everything up to listening; registering and reading shards may take longer."""
        handlers = {**self._service.handlers(), methods.CONTROL_HEALTH: self._health}
        self._server = await self._network.serve(self._settings.listen, handlers)
        self.address = self._settings.advertised or self._server.address
        self._tasks.spawn("coordinator", self._run())
        self._tasks.spawn("identity of the store", self.verified.run())
        self._tasks.spawn("a rebuilt store", self._until_replaced())

    async def stop(self) -> None:
        """Give the shards away, then end."""
        if self._registering is not None:
            self._registering.cancel()
            await asyncio.wait([self._registering])
        if self._registration is not None:
            try:
                await self._registration.close()
            except StoreUnavailable as error:
                self._say(f"the registration stays until its lease ends: {error}")
        if self.runtime is not None:
            self.runtime.own({})
        if self._server is not None:
            await self._server.stop(grace_ms=STOP_GRACE_MS)
        await self._tasks.close()

    # Starting.

    async def _until_replaced(self) -> None:
        await self.verified.replaced.wait()
        raise StartAnew("the metadata store is another one")

    async def _run(self) -> None:
        bootstrap = await self._find_brokers()
        self._metadata = metadata = MetadataWatcher(
            self._network, bootstrap, self._rng, on_change=self._metadata_changed
        )
        self._loader = loader = Loader(
            metadata,
            network=self._network,
            clock=self._clock,
            rng=self._rng,
            bytes_max=self._settings.load_bytes_max,
            say=self._say,
        )
        self._topic = topic = OffsetsTopic(
            metadata, self._network, shards=lambda: self._shards.count, say=self._say
        )
        self.runtime = runtime = Runtime(
            self._settings,
            loader=loader,
            clock=self._clock,
            tasks=self._tasks,
            topics=self._known_topics,
            is_gone=self._is_gone,
            topic=topic,
            new_id=self._new_id,
            shards=lambda: self._shards.count,
            announce=self._service.announce,
            say=self._say,
            traces=self._traces,
        )
        runtime.appender = Appender(
            metadata,
            network=self._network,
            clock=self._clock,
            rng=self._rng,
            tasks=self._tasks,
            on_refused=self._refused,
        )
        self._registration = registration = self._make_registration()
        self._tasks.spawn("metadata", metadata.run())
        self._tasks.spawn("fetch shards", loader.fetch())
        self._tasks.spawn("read shards", loader.run())
        self._tasks.spawn("clock", runtime.keep_time())
        self._tasks.spawn("make the topic", topic.run())
        self._tasks.spawn("follow the shards", self._shards.run())
        self._registering = self._tasks.spawn("registration", registration.run())

    def _make_registration(self) -> Registration[CoordinatorRegistration]:
        """The epoch protects nothing by itself: that the log refuses an old owner does."""
        host, port = split_address(self.address)
        number = self._settings.coordinator_id
        facts = CoordinatorRegistration(coordinator_id=number, host=host, port=port)

        async def judge(other: CoordinatorRegistration) -> OtherLife:
            # This process listens at that address, so the other one is gone.
            return OtherLife.GONE if other == facts else OtherLife.UNKNOWN

        return Registration(
            self._store,
            coordinator_key(number),
            facts,
            who=f"coordinator {number}",
            judge=judge,
            lease_ttl_ms=self._settings.lease_ttl_ms,
            on_change=self._shards_changed,
            say=self._say,
        )

    async def _find_brokers(self) -> list[str]:
        """Where brokers are; waits until one is registered."""
        told = False
        while True:
            try:
                found = await self._store.snapshot(BROKERS)
                brokers = [
                    decode(BrokerRegistration, each.value, key=each.key) for each in found.entries
                ]
                if brokers:
                    return [join_address(each.host, each.port) for each in brokers]
                problem = "no broker is registered yet"
            except StoreUnavailable as error:
                problem = f"the metadata store does not answer: {error}"
            if not told:
                self._say(f"waiting: {problem}")
                told = True
            await asyncio.sleep(STORE_RETRY_MS / 1_000)

    def _new_id(self, prefix: str) -> str:
        return f"{prefix or 'member'}-{self._rng.getrandbits(64):016x}"

    # Shards.

    def _ready_runtime(self) -> Runtime:
        if self.runtime is None:
            raise NotCoordinator("this coordinator is still starting")
        return self.runtime

    def _shards_changed(self) -> None:
        if self.runtime is None or self._registration is None:
            return
        epoch = self._registration.epoch
        self.runtime.own(
            {
                number: owner
                for number, owner in self._shards.owners.items()
                if owner.owner == self._settings.coordinator_id and owner.owner_epoch == epoch
            }
        )

    def _refused(self, journal: Journal, error: TailraceError) -> None:
        """The log will not take what we write: somebody else owns the shard, or something broke."""
        owned = self.runtime.refused(journal) if self.runtime is not None else None
        if owned is None or self.runtime is None:
            return
        self._say(f"shard {owned.number} in epoch {owned.owner.epoch}: {error.code}: {error}")
        self.runtime.lose(owned, NotCoordinator(f"shard {owned.number} has another owner: {error}"))
        self._tasks.spawn("after a refusal", self._after_refusal(owned.number, owned.owner, error))

    async def _after_refusal(self, number: int, owner: object, error: TailraceError) -> None:
        """Usually the news of a new owner is on its way. If it is not, begin anew."""
        if isinstance(error, ProducerFenced):
            await asyncio.sleep(FENCED_WAIT_MS / 1_000)
        if self._shards.owners.get(number) == owner and self._registration is not None:
            self._say(f"shard {number} is ours by name only: registering anew")
            self._registration.begin_anew()

    # The metadata.

    def _metadata_changed(self) -> None:
        if self._metadata is None or self.runtime is None or self._loader is None:
            return
        if self._topic is not None:
            self._topic.look()
        if self.runtime.appender is not None:
            self.runtime.appender.metadata_changed()
        self._loader.metadata_changed()

    def _known_topics(self) -> Mapping[str, TopicFacts] | None:
        """The topics as the newest picture shows them; None before the first one."""
        picture = self._metadata.picture if self._metadata is not None else None
        if picture is None or picture.revision < 0:
            return None
        if self._topics[0] is not picture:
            self._topics = (
                picture,
                {
                    name: TopicFacts(topic.topic_id, len(topic.partitions))
                    for name, topic in picture.topics.items()
                    if not topic.deleting
                },
            )
        return self._topics[1]

    async def _is_gone(self, meant: Meant) -> bool:
        """Whether the store has it on record that a topic was deleted.

        That it does not know the topic proves nothing: it may be an older copy of the store.
        """
        keys = [topic_key(meant.topic), tombstone_key(meant.topic_id)]
        try:
            entry, tombstone = await self._store.get_many(keys)
            there = None if entry is None else decode(TopicRecord, entry.value, key=keys[0])
        except (StoreUnavailable, CorruptCheckpoint):
            return False
        return tombstone is not None and (there is None or there.topic_id != meant.topic_id)

    # The controller.

    async def _health(
        self,
        request: control_pb2.HealthRequest,
        stream: Stream[control_pb2.HealthResponse, control_pb2.HealthRequest],
    ) -> None:
        """Say that we live, now and then, as long as the controller means this life of us."""
        try:
            while request.header.broker_epoch == self.epoch:
                await stream.send(
                    control_pb2.HealthResponse(
                        broker_id=self._settings.coordinator_id, broker_epoch=self.epoch or 0
                    )
                )
                await asyncio.sleep(self._settings.health_interval_ms / 1_000)
        except Unreachable:
            return

    def _task_failed(self, name: str, error: BaseException) -> None:
        if not isinstance(error, StartAnew):
            self._say(f"{name} failed: {error!r}")
        self.failure = self.failure or error
        self.failed.set()
