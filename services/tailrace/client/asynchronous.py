"""What asyncio programs import (as `tailrace.aio`): Producer and Admin on the real ports."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Coroutine, Mapping, Sequence
from random import Random
from typing import Any, Unpack

from tailrace.client.admin import AdminCore
from tailrace.client.arguments import Headers
from tailrace.client.asking import REQUEST_TIMEOUT_MS
from tailrace.client.delivery import BatchDelivery, Callback, Delivery
from tailrace.client.handing import Run
from tailrace.client.metadata import parse_bootstrap
from tailrace.client.partitioner import Partitioner, partitioner_for
from tailrace.client.producer import CLOSE_TIMEOUT_MS, ProducerCore
from tailrace.client.serializers import Serializer, from_bytes_like, serializer_for
from tailrace.client.settings import ProducerOptions, ProducerSettings
from tailrace.client.tables import Columns
from tailrace.clock import SystemClock
from tailrace.metrics.values import ProducerCounts
from tailrace.tracing import open_tracer
from tailrace.transport.http2.network import Http2Network


class Producer:
    """Sends records. Use it as `async with Producer(...)`, or `start` and `close` it.

    `bootstrap_servers` is `host:port` of some brokers, as a list or with commas. Serializers are
    functions or one of "bytes", "str", "int", "json"; the partitioner is a function (topic, key,
    number of partitions) or one of "crc32", "murmur2", "round_robin", "sticky". All other settings
    have Kafka's names with underscores.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        key_serializer: str | Serializer | None = None,
        value_serializer: str | Serializer | None = None,
        partitioner: str | Partitioner | None = None,
        **settings: Unpack[ProducerOptions],
    ) -> None:
        self._key = serializer_for(key_serializer, "key_serializer")
        self._value = serializer_for(value_serializer, "value_serializer")
        self._network = Http2Network()
        self._is_open = False
        made = ProducerSettings.of(dict(settings))
        self.client_id = made.client_id
        self._tracer = open_tracer(
            made.tracing, service="tailrace-producer", instance=made.client_id, rng=Random()
        )
        self._core = ProducerCore(
            parse_bootstrap(bootstrap_servers),
            made,
            network=self._network,
            clock=SystemClock(),
            rng=Random(),
            partitioner=partitioner_for(partitioner),
            tracer=self._tracer,
        )

    async def start(self) -> None:
        """Begin to follow the cluster; the first `send` does it if need be."""
        self._is_open = True
        await self._core.start()

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        *,
        callback: Callback | None = None,
    ) -> Coroutine[Any, Any, Delivery]:
        """Hand over a record; await what is returned to know its `RecordMetadata`.

        Waits only for room in the buffer and for the topic to be known, `max_block_ms` at most.
        Headers are pairs of name and value, or a mapping. A record that can never be sent raises.
        `callback(metadata, error)` is called when its fate is known; it must not take long.
        """
        # Not a coroutine itself: one around the other would cost as much as a record does.
        self._is_open = True
        if type(value) is not bytes or self._value is not from_bytes_like:
            value = self._value(value)
        if key is not None or self._key is not from_bytes_like:
            key = self._key(key)
        return self._core.send(
            topic, value, key, headers, partition, timestamp_ms, callback=callback
        )

    async def send_run(self, run: Run) -> None:
        """For the Producer that blocks: many records at once."""
        self._is_open = True
        await self._core.send_run(run)

    async def send_batch(
        self,
        topic: str,
        columns: Columns,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BatchDelivery:
        """Hand over an Arrow RecordBatch or Table, or a mapping of columns, as it is.

        Columns: `value`, and if wanted `key`, `timestamp` (ms) and `headers`. Await what is
        returned for the list of `BatchMetadata`. Records with keys are spread by key unless a
        partition is given.
        """
        self._is_open = True
        return await self._core.send_batch(
            topic, columns, partition=partition, timestamp_ms=timestamp_ms
        )

    async def flush(self) -> None:
        """Wait until everything handed over so far is acknowledged or has failed."""
        await self._core.flush()

    async def close(self, *, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Send what is left, within the timeout, and end."""
        self._is_open = False
        await self._core.close(timeout_ms=timeout_ms)
        await self._network.close()
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)

    def trouble(self) -> str:
        """Why what was sent is not acknowledged yet, for people; empty: nothing is known."""
        return self._core.trouble()

    def metrics(self) -> dict[str, float]:
        """What was sent so far, how it went, and what is on its way."""
        return self._core.metrics()

    @property
    def counts(self) -> ProducerCounts:
        """What `metrics` is made of: for collectors."""
        return self._core.counts

    async def state(self) -> dict[str, Any]:
        """Flush, then give ids and sequences, to be saved together with the input's position."""
        self._is_open = True
        return await self._core.state()

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, before anything is sent: what is sent again is not twice."""
        self._core.resume(state)

    def __del__(self) -> None:
        if getattr(self, "_is_open", False) and not self._core.is_over:
            warnings.warn("a Producer was not closed", ResourceWarning, source=self, stacklevel=1)


class Admin(AdminCore):
    """Administration. Use it as `async with Admin(...)`, or `close` it at the end."""

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        self._wire = Http2Network()
        super().__init__(
            parse_bootstrap(bootstrap_servers),
            network=self._wire,
            clock=SystemClock(),
            rng=Random(),
            request_timeout_ms=request_timeout_ms,
        )

    async def __aenter__(self) -> Admin:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await super().close()
        await self._wire.close()
