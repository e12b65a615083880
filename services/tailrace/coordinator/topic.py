"""`__consumer_offsets`: made through the controller when somebody first needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tailrace.client.metadata import MetadataWatcher
from tailrace.errors import TailraceError, TopicExists
from tailrace.model import OFFSETS_TOPIC
from tailrace.transport import methods
from tailrace.transport.rpc import Network
from tailrace.transport.wire import raise_for
from tailrace.v1 import controller_pb2

CALL_TIMEOUT_MS: Final = 10_000
RETRY_MS: Final = 200
# Three replicas, or as many as there are brokers: the controller's default.
CONFIG: Final = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}


class OffsetsTopic:
    """Knows whether the topic is there, and has it made: `run` in a task, `look` at news."""

    def __init__(
        self,
        metadata: MetadataWatcher,
        network: Network,
        *,
        shards: Callable[[], int],
        say: Callable[[str], None],
    ) -> None:
        """`shards`: how many there are, 0 while that is not known."""
        self._metadata = metadata
        self._network = network
        self._shards = shards
        self._say = say
        self._wanted = asyncio.Event()
        self._there = asyncio.Event()

    @property
    def is_there(self) -> bool:
        return self._there.is_set()

    def want(self) -> None:
        """Somebody needs it."""
        self._wanted.set()

    async def until_there(self) -> None:
        await self._there.wait()

    def look(self) -> None:
        """The metadata have changed."""
        if OFFSETS_TOPIC in self._metadata.picture.topics:
            self._there.set()

    async def run(self) -> None:
        """Have it made once it is wanted, unless it is there."""
        await self._wanted.wait()
        while not self.is_there:
            controller = self._metadata.picture.controller
            if controller and self._shards():
                try:
                    await self._create(controller)
                    self._say(f"made {OFFSETS_TOPIC}")
                except TopicExists:
                    pass
                except TailraceError as error:
                    self._say(f"{OFFSETS_TOPIC} cannot be made: {error}; trying again")
            try:
                async with asyncio.timeout(RETRY_MS / 1_000):
                    await self._there.wait()
            except TimeoutError:
                continue

    async def _create(self, controller: str) -> None:
        channel = self._network.channel(controller)
        request = controller_pb2.CreateTopicRequest(
            name=OFFSETS_TOPIC, partitions=self._shards(), config=CONFIG
        )
        try:
            response = await channel.call(
                methods.CONTROLLER_CREATE_TOPIC, request, timeout_ms=CALL_TIMEOUT_MS
            )
        finally:
            await channel.close()
        raise_for(response.error, response.message)
