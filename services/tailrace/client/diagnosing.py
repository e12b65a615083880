"""How the brokers of a cluster are, as each one knows itself and as far as it answers here."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from tailrace.client.asking import Asking
from tailrace.client.metadata import ClusterPicture
from tailrace.errors import TailraceError
from tailrace.transport import methods
from tailrace.v1 import broker_pb2

# One broker that is silent must not use up the time of all questions.
DIAGNOSE_MS: Final = 3_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCondition:
    """What one broker told of itself; numbers are -1 where it does not know."""

    broker_id: int
    version: str
    not_ready: str
    # How far its clock is ahead of ours, and how wrong that may be: half of what the answer took.
    clock_ahead_ms: int
    clock_doubt_ms: int
    store_silence_ms: int
    lease_age_ms: int
    lease_ttl_ms: int
    open_files: int
    open_files_max: int


class Diagnosing(Asking):
    """Questions about how a cluster is; part of the administrator's client."""

    async def picture(self, *, timeout_ms: int | None = None) -> ClusterPicture:
        """The cluster as a broker pushed it last: brokers, topics, coordinators, shards."""
        return await self._picture(await self._begin(timeout_ms))

    async def next_picture(self, after: ClusterPicture) -> ClusterPicture:
        """Wait, for as long as it takes, for another picture than this one."""
        await self._begin(None)
        while self._metadata.picture is after:
            await self._metadata.changed()
        return self._metadata.picture

    async def diagnose_brokers(
        self, *, timeout_ms: int | None = None
    ) -> dict[int, BrokerCondition | TailraceError]:
        """Every registered broker is asked, all at once; of one that does not answer, why."""
        picture = await self.picture(timeout_ms=timeout_ms)
        limit_ms = min(self._timeout_ms if timeout_ms is None else timeout_ms, DIAGNOSE_MS)
        asked = [self._diagnose(address, limit_ms) for address in picture.brokers.values()]
        return dict(zip(picture.brokers, await asyncio.gather(*asked), strict=True))

    async def _diagnose(self, address: str, limit_ms: int) -> BrokerCondition | TailraceError:
        channel = self._network.channel(address)
        asked_ms, began_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
        try:
            about = await channel.call(
                methods.BROKER_DIAGNOSE, broker_pb2.DiagnoseRequest(), timeout_ms=limit_ms
            )
        except TailraceError as error:
            return error
        finally:
            await channel.close()
        took_ms = self._clock.monotonic_ms() - began_ms
        return condition_of(about, asked_ms=asked_ms, took_ms=took_ms)


def condition_of(
    about: broker_pb2.DiagnoseResponse, *, asked_ms: int, took_ms: int
) -> BrokerCondition:
    """The broker looked at its clock at some moment of the call: in its middle, give or take."""
    return BrokerCondition(
        broker_id=about.broker_id,
        version=about.version,
        not_ready=about.not_ready,
        clock_ahead_ms=about.wall_ms - (asked_ms + took_ms // 2),
        clock_doubt_ms=took_ms // 2 + 1,
        store_silence_ms=about.store_silence_ms,
        lease_age_ms=about.lease_age_ms,
        lease_ttl_ms=about.lease_ttl_ms,
        open_files=about.open_files,
        open_files_max=about.open_files_max,
    )
