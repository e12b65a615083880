"""Is a broker or coordinator there? One stream to each, and a closer look when it breaks.

A stream that breaks says little. A connection that is *refused*, twice, says that the process is
gone: its port is closed. Silence says nothing: then only the lease decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from random import Random
from typing import Generic, TypeAlias, TypeVar

from tailrace.clock import Clock
from tailrace.controller.facts import Term
from tailrace.controller.retries import Backoff
from tailrace.controller.settings import ControllerSettings
from tailrace.errors import RequestTimedOut, TailraceError, Unreachable
from tailrace.meta.image import LiveBroker, LiveCoordinator
from tailrace.meta.keys import BrokerRegistration
from tailrace.model import TopicPartition
from tailrace.runtime import Tasks
from tailrace.transport.addresses import join_address
from tailrace.transport.methods import CONTROL_HEALTH
from tailrace.transport.rpc import Channel, Network, Probe, Stream
from tailrace.transport.wire import OrderHeader, error_of, from_partition, to_order_header
from tailrace.v1 import control_pb2 as pb

FolderHealth: TypeAlias = pb.FolderHealth

_HealthStream = Stream[pb.HealthRequest, pb.HealthResponse]

Id = TypeVar("Id", bound=int)
Live = TypeVar("Live", LiveBroker, LiveCoordinator)


class Answer(Enum):
    """What a broker that was asked had to say."""

    THERE = "it answers"
    GONE = "its connection is refused: the process is gone"
    SILENT = "it does not answer"


class HealthWatch(Generic[Id, Live]):
    """One health stream to every registered broker (or coordinator), as long as it is that."""

    def __init__(
        self,
        term: Term,
        settings: ControllerSettings,
        *,
        network: Network,
        clock: Clock,
        rng: Random,
        tasks: Tasks,
        say: Callable[[str], None],
        on_gone: Callable[[Live, int], None],
        on_draining: Callable[[Id, int], None],
        on_offline: Callable[[Live, TopicPartition, TailraceError], None] | None = None,
        on_fitness: Callable[[Id, str], None] = lambda _, __: None,
        what: str = "broker",
    ) -> None:
        """`on_gone`: the process is gone; with the wall time at which the stream broke.

        `on_offline`: it says, now and again, that a replica of it is out of service. `on_fitness`:
        why it should not lead, empty when it may.
        """
        self._term = term
        self._settings = settings
        self._network = network
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._say = say
        self._on_gone: Callable[[Live, int], None] = on_gone
        self._on_draining = on_draining
        self._on_offline: Callable[[Live, TopicPartition, TailraceError], None] | None = on_offline
        self._on_fitness = on_fitness
        # What each said last of its data folders.
        self.folders: dict[Id, tuple[FolderHealth, ...]] = {}
        self._what = what
        self._watched: dict[Id, tuple[int, asyncio.Task[None]]] = {}

    def update(self, brokers: Mapping[Id, Live]) -> None:
        """Watch these lives of these brokers, and no others."""
        for broker, (epoch, task) in list(self._watched.items()):
            live = brokers.get(broker)
            if live is None or live.epoch != epoch:
                task.cancel()
                del self._watched[broker]
        for broker in sorted(brokers):
            if broker not in self._watched:
                live = brokers[broker]
                task = self._tasks.spawn(
                    f"health of {self._what} {broker}", self._watch(broker, live)
                )
                self._watched[broker] = (live.epoch, task)

    async def ask(self, live: Live) -> Answer:
        """Ask a broker once, whether it is registered or not."""
        channel = self._network.channel(control_address(live))
        stream = self._open(channel, live)
        try:
            async with asyncio.timeout(self._settings.health_answer_ms / 1_000):
                await stream.recv()
        except (Unreachable, RequestTimedOut):
            return Answer.GONE if await self._is_refused(live) else Answer.SILENT
        except TimeoutError:
            return Answer.SILENT
        finally:
            stream.cancel()
            await channel.close()
        # A message, or an end in order: either was said by the broker.
        return Answer.THERE

    async def _watch(self, broker: Id, live: Live) -> None:
        backoff = Backoff(self._settings.retry_ms, self._settings.retry_max_ms, self._rng)
        channel = self._network.channel(control_address(live))
        said = False
        try:
            while True:
                why = await self._listen(channel, broker, live, backoff)
                broke_ms = self._clock.wall_ms()
                if await self._is_refused(live):
                    if not said:
                        self._say(f"{self._what} {broker} is gone: connection refused; {why}")
                        said = True
                    self._on_gone(live, broke_ms)
                    # This watch ends with the registration; until that is gone, go on.
                await asyncio.sleep(backoff.next_s())
        finally:
            await channel.close()

    async def _listen(self, channel: Channel, broker: Id, live: Live, backoff: Backoff) -> str:
        """Hear a broker until its stream ends; tells how it ended."""
        stream = self._open(channel, live)
        try:
            while True:
                async with asyncio.timeout(self._settings.health_silence_ms / 1_000):
                    message = await stream.recv()
                if message is None:
                    return "it ended the health stream"
                backoff.reset()
                if message.draining:
                    self._on_draining(broker, live.epoch)
                self.folders[broker] = tuple(message.folders)
                self._on_fitness(broker, message.unfit)
                for each in message.offline:
                    error = error_of(each.error, each.message)
                    if error is not None and self._on_offline is not None:
                        self._on_offline(live, from_partition(each.partition), error)
        except (Unreachable, RequestTimedOut) as error:
            return f"the health stream broke ({error})"
        except TimeoutError:
            return "nothing came on the health stream"
        finally:
            stream.cancel()

    def _open(self, channel: Channel, live: Live) -> _HealthStream:
        header = OrderHeader(
            controller_id=self._term.controller_id,
            controller_epoch=self._term.epoch,
            broker_epoch=live.epoch,
            broker_incarnation=getattr(live.registration, "incarnation", ""),
            term_token=self._term.token,
        )
        request = pb.HealthRequest(header=to_order_header(header))
        return channel.open(CONTROL_HEALTH, request)

    async def _is_refused(self, live: Live) -> bool:
        return await is_refused(self._network, control_address(live), self._settings)


def control_address(live: LiveBroker | LiveCoordinator) -> str:
    """Where it takes orders: a broker on a port of its own, unless it is of an older version."""
    facts = live.registration
    if isinstance(facts, BrokerRegistration) and facts.control_port:
        return join_address(facts.control_host or facts.host, facts.control_port)
    return join_address(facts.host, facts.port)


async def is_refused(network: Network, address: str, settings: ControllerSettings) -> bool:
    """Whether nothing listens there: refused, and refused again a little later."""
    for attempt in range(2):
        if attempt:
            await asyncio.sleep(settings.probe_again_ms / 1_000)
        probe = await network.probe(address, timeout_ms=settings.probe_timeout_ms)
        if probe is not Probe.REFUSED:
            return False
    return True
