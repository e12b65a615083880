"""What a client knows of the cluster: pushed by a broker, never polled for.

One stream to one broker is enough; when it breaks, another broker is asked, the bootstrap addresses
again if need be. Hints from refused requests (who leads now) count until a newer picture comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeAlias

from tailrace.errors import InvalidConfig, TailraceError, UnknownTopic, Unreachable, no_topic
from tailrace.model import TopicPartition, shard_of
from tailrace.transport import methods
from tailrace.transport.addresses import join_address, split_address
from tailrace.transport.rpc import Network, Stream
from tailrace.v1 import broker_pb2, common_pb2, controller_pb2

RETRY_MIN_MS: Final = 20
RETRY_MAX_MS: Final = 1_000
FIRST_PICTURE_MS: Final = 3_000
REFRESH_MIN_MS: Final = 1_000
# How long a controller may take to make a topic that somebody writes to.
CREATE_MS: Final = 5_000

_Pushed: TypeAlias = broker_pb2.WatchMetadataResponse


@dataclass(frozen=True, slots=True)
class PartitionPicture:
    """One partition as the last picture showed it."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    # Those of the replicas that a reassignment adds, and those that go when it is done.
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    # What an election may have lost, in words.
    loss: str = ""
    # Why a person has to decide who leads; empty: nobody has to.
    conflict: str = ""


@dataclass(frozen=True, slots=True)
class TopicPicture:
    topic_id: str
    partitions: tuple[PartitionPicture, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class ClusterPicture:
    """The cluster at one revision; `brokers` maps ids to addresses.

    `generation`: how often the store was rebuilt; revisions begin anew then.
    """

    revision: int = -1
    generation: int = 0
    cluster_id: str = ""
    brokers: Mapping[int, str] = field(default_factory=dict)
    controller: str = ""
    controller_id: int = -1
    topics: Mapping[str, TopicPicture] = field(default_factory=dict)
    racks: Mapping[int, str] = field(default_factory=dict)
    # Addresses of the live coordinators by id, and (owner, epoch) of each shard of groups.
    coordinators: Mapping[int, str] = field(default_factory=dict)
    group_shards: tuple[tuple[int, int], ...] = ()
    # Why the broker that told this does not believe the metadata store, and since when by its
    # clock: nobody writes newer metadata until the right store is back. Empty and 0: it does.
    store_problem: str = ""
    store_problem_since_ms: int = 0

    def coordinator_of(self, group: str) -> str:
        """The address of the coordinator that owns the group, empty while there is none."""
        if not self.group_shards:
            return ""
        owner, _ = self.group_shards[shard_of(group, len(self.group_shards))]
        return self.coordinators.get(owner, "")


def parse_bootstrap(servers: str | Sequence[str]) -> tuple[str, ...]:
    """`host:port` of one or several brokers, as text with commas or as a list."""
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses = tuple(part.strip() for part in parts if part.strip())
    if not addresses:
        raise InvalidConfig("bootstrap_servers names no broker: give host:port of one or more")
    for address in addresses:
        try:
            split_address(address)
        except (TailraceError, ValueError) as error:
            raise InvalidConfig(f"bootstrap_servers: {address!r} is not host:port") from error
    return addresses


class MetadataWatcher:
    """Follows the cluster's metadata: `run` in a task, which is cancelled at the end."""

    def __init__(
        self,
        network: Network,
        bootstrap: Sequence[str],
        rng: Random,
        *,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self._network = network
        self._bootstrap = tuple(bootstrap)
        self._rng = rng
        self._on_change = on_change
        self._changed = asyncio.Event()
        self._hints: dict[TopicPartition, tuple[int, int]] = {}
        self._stream: Stream[broker_pb2.WatchMetadataRequest, _Pushed] | None = None
        self._watched = ""
        self._moved_on_s = float("-inf")
        self.problem = "no broker was reached yet"
        self.picture = ClusterPicture()

    async def run(self) -> None:
        pause_ms = RETRY_MIN_MS
        while True:
            for address in self._candidates():
                if await self._watch(address):
                    pause_ms = RETRY_MIN_MS
            await asyncio.sleep(pause_ms * self._rng.uniform(0.5, 1.0) / 1000)
            pause_ms = min(pause_ms * 2, RETRY_MAX_MS)

    def refresh(self) -> None:
        """What is known seems to be old: follow another broker, at most once in a while.

        A broker that hangs, or that the controller does not reach, tells nothing and breaks
        nothing: only who sees that its requests are not answered can tell.
        """
        now_s = asyncio.get_running_loop().time()
        if self._stream is not None and now_s - self._moved_on_s >= REFRESH_MIN_MS / 1000:
            self._moved_on_s = now_s
            self._stream.cancel()

    def leader_of(self, partition: TopicPartition) -> tuple[int, int]:
        """(broker, leader epoch) of a partition, (-1, -1) when not known."""
        topic = self.picture.topics.get(partition.topic)
        known = (-1, -1)
        if topic is not None and partition.partition < len(topic.partitions):
            found = topic.partitions[partition.partition]
            known = (found.leader, found.leader_epoch)
        hint = self._hints.get(partition)
        if hint is not None and hint[1] > known[1] and hint[0] in self.picture.brokers:
            return hint
        return known

    def hint(self, partition: TopicPartition, leader: int, leader_epoch: int) -> bool:
        """A broker said who leads now; whether that is news."""
        if leader < 0 or leader_epoch <= self.leader_of(partition)[1]:
            return False
        self._hints[partition] = (leader, leader_epoch)
        if leader not in self.picture.brokers:
            # Where that is, somebody else has to tell: to ask again at once would change nothing.
            self.refresh()
            return False
        self._notify()
        return True

    async def topic(
        self, name: str, *, timeout_ms: int, unknown_ms: int | None = None, create: bool = False
    ) -> TopicPicture:
        """The topic, waited for if need be; UnknownTopic or Unreachable when it does not come.

        `unknown_ms`: how long it may be missing from what brokers tell, if not all the time.
        `create`: one that is not there may be made, where the cluster is set to do so.
        """
        try:
            async with asyncio.timeout(timeout_ms / 1000) as limit:
                is_missed = unknown_ms is None
                while True:
                    found = self.picture.topics.get(name)
                    if found is not None and not found.deleting:
                        return found
                    if found is None and create and self.picture.controller:
                        create = False
                        await self._ask_for(name)
                        continue
                    if not is_missed and self.picture.revision >= 0:
                        is_missed = True
                        _end_within(limit, unknown_ms or 0)
                    await self.changed()
        except TimeoutError:
            pass
        if self.picture.revision < 0:
            raise self.nobody_answers(timeout_ms)
        raise UnknownTopic(f"{self.unknown_topic(name)}; create it first")

    def unknown_topic(self, *names: str) -> UnknownTopic:
        """The error for names that are not among the topics, with those that are near."""
        there = [each for each, topic in self.picture.topics.items() if not topic.deleting]
        return no_topic(names, there)

    async def _ask_for(self, name: str) -> None:
        """Ask the controller once to make a topic; whether it does shows in the next picture."""
        channel = self._network.channel(self.picture.controller)
        request = controller_pb2.CreateTopicRequest(name=name, automatic=True)
        try:
            await channel.call(methods.CONTROLLER_CREATE_TOPIC, request, timeout_ms=CREATE_MS)
        except TailraceError:
            # Then it is not made, or somebody else makes it.
            return
        finally:
            await channel.close()

    async def wait_for(
        self, wanted: Callable[[ClusterPicture], bool], *, timeout_ms: int
    ) -> ClusterPicture:
        """The first picture that is as wanted; TimeoutError when none comes in time."""
        async with asyncio.timeout(timeout_ms / 1000):
            while not wanted(self.picture):
                await self.changed()
        return self.picture

    async def changed(self) -> None:
        """Wait for the next picture or hint."""
        await self._changed.wait()

    def nobody_answers(self, timeout_ms: int) -> Unreachable:
        """The error for "no broker told us anything"."""
        return Unreachable(
            f"no broker of {', '.join(self._bootstrap)} answered within {timeout_ms} ms: "
            f"{self.problem}; check the address, and that the cluster runs"
        )

    def _candidates(self) -> list[str]:
        known = [self.picture.brokers[each] for each in sorted(self.picture.brokers)]
        self._rng.shuffle(known)
        found = dict.fromkeys([*known, *self._bootstrap])
        if self._watched in found:
            # Whom we followed last comes last: there was a reason to leave.
            del found[self._watched]
            found[self._watched] = None
        return list(found)

    async def _watch(self, address: str) -> bool:
        """Follow one broker until the stream breaks; whether it told anything of use."""
        channel = self._network.channel(address)
        heard = False
        try:
            stream = channel.open(methods.BROKER_WATCH_METADATA, broker_pb2.WatchMetadataRequest())
            self._stream, self._watched = stream, address
            async with asyncio.timeout(FIRST_PICTURE_MS / 1000):
                while not heard:
                    heard = self._take(address, await stream.recv())
            while (response := await stream.recv()) is not None:
                self._take(address, response)
        except TimeoutError:
            if not self.problem.startswith(address):
                self.problem = f"{address} did not answer"
        except TailraceError as error:
            self.problem = str(error)
        finally:
            if self._stream is not None:
                self._stream.cancel()
                self._stream = None
            await channel.close()
        return heard

    def _take(self, address: str, response: _Pushed | None) -> bool:
        """Keep a picture that is not older than ours; whether it was kept."""
        if response is None:
            raise Unreachable(f"{address} ended the metadata stream")
        metadata = response.metadata
        mine = self.picture
        if metadata.revision < 0:
            self.problem = f"{address} has not heard from a controller yet"
            if response.store_problem:
                self.problem += f", and does not believe the store: {response.store_problem}"
            return False
        if mine.cluster_id and metadata.cluster_id and metadata.cluster_id != mine.cluster_id:
            self.problem = f"{address} belongs to cluster {metadata.cluster_id}, which is another"
            return False
        if (metadata.generation, metadata.revision) < (mine.generation, mine.revision):
            self.problem = f"{address} knows only revision {metadata.revision}"
            return False
        self.picture = _picture(response)
        self._hints = {
            partition: hint
            for partition, hint in self._hints.items()
            if self.leader_of(partition) == hint
        }
        self._notify()
        return True

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if self._on_change is not None:
            self._on_change()


def _end_within(limit: asyncio.Timeout, wait_ms: int) -> None:
    """Let a limit end within this time from now on, if it does not end before."""
    end_s = asyncio.get_running_loop().time() + wait_ms / 1000
    given_s = limit.when()
    limit.reschedule(end_s if given_s is None else min(given_s, end_s))


def topic_picture(topic: common_pb2.TopicMetadata) -> TopicPicture:
    return TopicPicture(
        topic.topic_id,
        tuple(
            PartitionPicture(
                each.leader,
                each.leader_epoch,
                tuple(each.replicas),
                tuple(each.isr),
                tuple(each.elr),
                tuple(each.adding),
                tuple(each.removing),
                each.loss,
                each.conflict,
            )
            for each in topic.partitions
        ),
        dict(topic.config),
        topic.deleting,
    )


def _picture(pushed: _Pushed) -> ClusterPicture:
    metadata = pushed.metadata
    controller = metadata.controller if metadata.HasField("controller") else None
    return ClusterPicture(
        revision=metadata.revision,
        generation=metadata.generation,
        cluster_id=metadata.cluster_id,
        brokers={each.id: join_address(each.host, each.port) for each in metadata.brokers},
        controller=join_address(controller.host, controller.port) if controller else "",
        controller_id=controller.id if controller else -1,
        topics={topic.name: topic_picture(topic) for topic in metadata.topics},
        racks={each.id: each.rack for each in metadata.brokers if each.rack},
        coordinators={
            each.id: join_address(each.host, each.port) for each in metadata.coordinators
        },
        group_shards=tuple((each.owner, each.epoch) for each in metadata.group_shards),
        store_problem=pushed.store_problem,
        store_problem_since_ms=pushed.store_problem_since_ms,
    )
