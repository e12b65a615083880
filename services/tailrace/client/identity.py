"""How an idempotent producer gets its id and its epochs: from the active controller.

Asked again until it is answered or refused for good: what waits meanwhile has deadlines of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from tailrace.client.metadata import MetadataWatcher
from tailrace.client.settings import ProducerSettings
from tailrace.errors import InvalidRequest, TailraceError
from tailrace.model import TopicPartition
from tailrace.transport import methods
from tailrace.transport.rpc import Network
from tailrace.transport.wire import raise_for
from tailrace.v1 import controller_pb2 as pb

CALL_TIMEOUT_MS: Final = 10_000


class Identity:
    """Asks for the ids of one producer."""

    def __init__(
        self,
        settings: ProducerSettings,
        metadata: MetadataWatcher,
        network: Network,
        pause_ms: Callable[[int], int],
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._network = network
        self._pause_ms = pause_ms
        self.problem = ""
        """Why there is no id yet, for people."""

    async def get(self, producer_id: int, producer_epoch: int) -> tuple[int, int]:
        """An id and epoch that nobody has, the caller's own id if it has one; or the error."""
        failures = 0
        while True:
            while not self._metadata.picture.controller:
                self.problem = f"there is no active controller: {self._metadata.problem}"
                await self._metadata.changed()
            try:
                found = await self._ask(producer_id, producer_epoch)
            except TailraceError as error:
                if not error.retriable:
                    raise
                self.problem = f"{error.code}: {error}"
                if error.refresh_metadata:
                    self._metadata.refresh()
            else:
                self.problem = ""
                return found
            failures += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_ms(failures) / 1000):
                    await self._metadata.changed()

    async def _ask(self, producer_id: int, producer_epoch: int) -> tuple[int, int]:
        channel = self._network.channel(self._metadata.picture.controller)
        request = pb.InitProducerRequest(
            name=self._settings.name or "",
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
        try:
            response = await channel.call(
                methods.CONTROLLER_INIT_PRODUCER, request, timeout_ms=CALL_TIMEOUT_MS
            )
        finally:
            await channel.close()
        raise_for(response.error, response.message)
        return response.producer_id, response.producer_epoch


def written_state(
    producer_id: int, epoch: int, sequences: Mapping[TopicPartition, int]
) -> dict[str, Any]:
    """What `read_state` reads; plain values, as JSON has them."""
    named = {f"{each.topic}/{each.partition}": number for each, number in sequences.items()}
    return {"producer_id": producer_id, "producer_epoch": epoch, "sequences": named}


def read_state(state: Mapping[str, Any]) -> tuple[int, int, dict[TopicPartition, int]]:
    """Id, epoch and sequences of a producer's saved state; InvalidRequest when it is none."""
    sequences: dict[TopicPartition, int] = {}
    try:
        producer_id, epoch = int(state["producer_id"]), int(state["producer_epoch"])
        for text, number in dict(state["sequences"]).items():
            topic, _, partition = str(text).rpartition("/")
            sequences[TopicPartition(topic, int(partition))] = int(number)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"not the state of a producer: {error!r}") from error
    return producer_id, epoch, sequences
