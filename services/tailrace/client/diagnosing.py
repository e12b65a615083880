"""How the brokers of a cluster are, as each one knows itself and as far as it answers here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, TypeVar

from tailrace.client.asking import Asking
from tailrace.client.metadata import ClusterPicture
from tailrace.errors import HighWatermarkConflict, TailraceError, error_for
from tailrace.model import TopicPartition
from tailrace.transport import methods
from tailrace.transport.rpc import Method
from tailrace.transport.wire import code_name, from_partition, to_partition
from tailrace.v1 import broker_pb2

# One broker that is silent must not use up the time of all questions.
DIAGNOSE_MS: Final = 3_000
# How far strays go is read from their segments.
DESCRIBE_MS: Final = 10_000

R = TypeVar("R")


class OutOfService(NamedTuple):
    """A replica that counts for nothing until it is mended, or until a person has decided."""

    partition: TopicPartition
    error: TailraceError

    @property
    def waits_for_a_person(self) -> bool:
        return isinstance(self.error, HighWatermarkConflict)


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
    # Why it does not believe the metadata store, and since when by its clock; empty: it does.
    store_problem: str = ""
    store_problem_since_ms: int = 0
    # Its replicas that serve nothing: the first of them, and how many there are.
    out_of_service: tuple[OutOfService, ...] = ()
    out_of_service_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StrayReplica:
    """A replica that a broker has set aside; times and offsets are -1 where nobody knows."""

    broker: int
    folder: str
    name: str
    partition: TopicPartition
    topic_id: str
    size_bytes: int
    log_start: int
    log_end: int
    high_watermark: int
    last_epoch: int
    since_ms: int
    kept_until_ms: int
    why: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        topic, number = self.partition
        return {**asdict(self), "topic": topic, "partition": number}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRecord:
    """Something that a broker deleted, cut or set aside, and what proved that it may."""

    broker: int
    at_ms: int
    partition: TopicPartition
    topic_id: str
    kind: str
    from_offset: int
    to_offset: int
    evidence: str
    why: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        topic, number = self.partition
        return {**asdict(self), "topic": topic, "partition": number}


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

    async def describe_strays(
        self, brokers: Iterable[int] | None = None, *, timeout_ms: int | None = None
    ) -> dict[int, tuple[StrayReplica, ...] | TailraceError]:
        """What each broker has set aside; of one that does not answer, why."""
        asked = await self._ask_each(
            methods.BROKER_DESCRIBE_STRAYS, broker_pb2.DescribeStraysRequest(), brokers, timeout_ms
        )
        return {
            broker: answer if isinstance(answer, TailraceError) else _strays(broker, answer)
            for broker, answer in asked.items()
        }

    async def describe_deletions(
        self,
        partitions: Iterable[TopicPartition] = (),
        *,
        limit: int = 0,
        timeout_ms: int | None = None,
    ) -> dict[int, tuple[DeletionRecord, ...] | TailraceError]:
        """What went of these partitions (of all, when none is named) on each broker, and why."""
        request = broker_pb2.DescribeDeletionsRequest(
            partitions=[to_partition(each) for each in partitions], limit=limit
        )
        asked = await self._ask_each(methods.BROKER_DESCRIBE_DELETIONS, request, None, timeout_ms)
        return {
            broker: answer if isinstance(answer, TailraceError) else _deletions(broker, answer)
            for broker, answer in asked.items()
        }

    async def _ask_each(
        self,
        method: Method[Any, R],
        request: Any,
        brokers: Iterable[int] | None,
        timeout_ms: int | None,
    ) -> dict[int, R | TailraceError]:
        """Every registered broker is asked, all at once; of one that does not answer, why."""
        picture = await self.picture(timeout_ms=timeout_ms)
        limit_ms = min(self._timeout_ms if timeout_ms is None else timeout_ms, DESCRIBE_MS)
        named = None if brokers is None else set(brokers)
        wanted = [each for each in picture.brokers if named is None or each in named]

        async def ask(address: str) -> R | TailraceError:
            channel = self._network.channel(address)
            try:
                return await channel.call(method, request, timeout_ms=limit_ms)
            except TailraceError as error:
                return error
            finally:
                await channel.close()

        answers = await asyncio.gather(*(ask(picture.brokers[each]) for each in wanted))
        return dict(zip(wanted, answers, strict=True))

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
        store_problem=about.store_problem,
        store_problem_since_ms=about.store_problem_since_ms,
        out_of_service=tuple(
            OutOfService(
                from_partition(each.partition), error_for(code_name(each.error), each.reason)
            )
            for each in about.out_of_service
        ),
        out_of_service_count=about.out_of_service_count,
    )


def _strays(broker: int, response: broker_pb2.DescribeStraysResponse) -> tuple[StrayReplica, ...]:
    return tuple(
        StrayReplica(
            broker=broker,
            folder=each.folder,
            name=each.name,
            partition=from_partition(each.partition),
            topic_id=each.topic_id,
            size_bytes=each.size_bytes,
            log_start=each.log_start,
            log_end=each.log_end,
            high_watermark=each.high_watermark,
            last_epoch=each.last_epoch,
            since_ms=each.since_ms,
            kept_until_ms=each.kept_until_ms,
            why=each.why,
        )
        for each in response.strays
    )


def _deletions(
    broker: int, response: broker_pb2.DescribeDeletionsResponse
) -> tuple[DeletionRecord, ...]:
    return tuple(
        DeletionRecord(
            broker=broker,
            at_ms=each.at_ms,
            partition=from_partition(each.partition),
            topic_id=each.topic_id,
            kind=each.kind,
            from_offset=each.from_offset,
            to_offset=each.to_offset,
            evidence=each.evidence,
            why=each.why,
        )
        for each in response.deletions
    )
