"""How an idempotent producer gets its id and its epochs: from the active controller or a broker.

The controller is asked first. A producer without a name takes an id of any broker when the
controller has none: brokers keep ids in hand for when the store is away. Both are asked again until
one answers or refuses for good: what waits meanwhile has deadlines of its own.
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
from tailrace.v1 import broker_pb2
from tailrace.v1 import controller_pb2 as pb

CALL_TIMEOUT_MS: Final = 10_000
BROKER_CALL_TIMEOUT_MS: Final = 2_000


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
            found = await self._ask_controller(producer_id, producer_epoch)
            if found is None and not self._settings.name:
                found = await self._ask_broker(producer_id, producer_epoch, turn=failures)
            if found is not None:
                self.problem = ""
                return found
            failures += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_ms(failures) / 1000):
                    await self._metadata.changed()

    async def _ask_controller(self, producer_id: int, epoch: int) -> tuple[int, int] | None:
        """None: it has no answer now, and `problem` says why."""
        if not self._metadata.picture.controller:
            self.problem = f"there is no active controller: {self._metadata.problem}"
            return None
        try:
            return await self._ask(producer_id, epoch)
        except TailraceError as error:
            if not error.retriable:
                raise
            self.problem = f"{error.code}: {error}"
            if error.refresh_metadata:
                self._metadata.refresh()
            return None

    async def _ask_broker(
        self, producer_id: int, epoch: int, *, turn: int
    ) -> tuple[int, int] | None:
        """Ask one broker, another one each time. None: it has no id either."""
        brokers = self._metadata.picture.brokers
        if not brokers:
            return None
        address = brokers[sorted(brokers)[turn % len(brokers)]]
        channel = self._network.channel(address)
        request = broker_pb2.AllocateProducerIdRequest(
            producer_id=producer_id, producer_epoch=epoch
        )
        try:
            response = await channel.call(
                methods.BROKER_ALLOCATE_PRODUCER_ID, request, timeout_ms=BROKER_CALL_TIMEOUT_MS
            )
            raise_for(response.error, response.message)
        except TailraceError:
            # What the controller said is the better reason; this broker may be an older release.
            return None
        finally:
            await channel.close()
        return response.producer_id, response.producer_epoch

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
