"""Asks brokers what they hold and what they know of the cluster, to rebuild a lost store.

Brokers answer on their control ports. Those that are not named are found by the copies of those
that are. A broker that does not answer is told of, never passed over in silence.
Enter at `gather_facts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tailrace.errors import CorruptCheckpoint, RequestTimedOut, TailraceError
from tailrace.meta.copies import COPY_BYTES_MAX, StoredMetadata, decode_copy
from tailrace.meta.recovery import BrokerFacts, ReplicaFacts, expected_brokers
from tailrace.model import BrokerId
from tailrace.transport import methods
from tailrace.transport.rpc import Network
from tailrace.transport.wire import from_partition
from tailrace.v1 import control_pb2 as pb

# Brokers that are asked at the same time.
ASKED_MAX: Final = 8


@dataclass(slots=True)
class GatheredFacts:
    """What was heard. `silent`: addresses that gave no answer, and why."""

    facts: list[BrokerFacts] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)


async def gather_facts(
    network: Network, addresses: Iterable[str], *, timeout_ms: int
) -> GatheredFacts:
    """Ask the brokers at these control addresses, and every broker that their copies name."""
    gathered = GatheredFacts()
    asked: set[str] = set()
    waiting = dict.fromkeys(addresses)
    while waiting:
        turn = [each for each in list(waiting)[:ASKED_MAX] if each not in asked]
        waiting = {each: None for each in waiting if each not in turn and each not in asked}
        asked |= set(turn)
        answers = await asyncio.gather(*(_ask(network, each, timeout_ms) for each in turn))
        for address, answer in zip(turn, answers, strict=True):
            if isinstance(answer, BrokerFacts):
                _add(gathered.facts, answer)
            else:
                gathered.silent[address] = str(answer)
        waiting |= dict.fromkeys(_unheard(gathered.facts, asked))
    return gathered


def _add(facts: list[BrokerFacts], answer: BrokerFacts) -> None:
    """One broker may have been reached under two addresses."""
    if all(
        (each.broker_id, each.incarnation) != (answer.broker_id, answer.incarnation)
        for each in facts
    ):
        facts.append(answer)


def _unheard(facts: list[BrokerFacts], asked: set[str]) -> list[str]:
    heard: set[BrokerId] = {each.broker_id for each in facts}
    known: Mapping[BrokerId, str] = expected_brokers(facts)
    return [
        address
        for broker, address in known.items()
        if address and broker not in heard and address not in asked
    ]


async def _ask(network: Network, address: str, timeout_ms: int) -> BrokerFacts | TailraceError:
    channel = network.channel(address)
    stream = channel.open(methods.CONTROL_READ_RECOVERY_FACTS, pb.ReadRecoveryFactsRequest())
    try:
        async with asyncio.timeout(timeout_ms / 1_000):
            about: pb.RecoveryBroker | None = None
            replicas: list[pb.RecoveryReplica] = []
            copy = bytearray()
            while (message := await stream.recv()) is not None:
                if message.HasField("broker"):
                    about = message.broker
                replicas += message.replicas
                copy += message.copy
                if len(copy) > COPY_BYTES_MAX:
                    return CorruptCheckpoint(
                        f"{address}: its copy has more than {COPY_BYTES_MAX} bytes"
                    )
        return _facts(address, about, replicas, bytes(copy))
    except TimeoutError:
        return RequestTimedOut(f"no whole answer within {timeout_ms} ms")
    except TailraceError as error:
        return error
    finally:
        stream.cancel()
        await channel.close()


def _facts(
    address: str,
    about: pb.RecoveryBroker | None,
    replicas: Iterable[pb.RecoveryReplica],
    copy: bytes,
) -> BrokerFacts:
    if about is None:
        raise CorruptCheckpoint(f"{address} did not say which broker it is")
    return BrokerFacts(
        broker_id=BrokerId(about.broker_id),
        cluster_id=about.cluster_id,
        incarnation=about.incarnation,
        stored=decode_copy(copy, where=address) if copy else StoredMetadata(),
        replicas=tuple(map(_replica, replicas)),
        store_problem=about.store_problem,
        producer_id_max=about.producer_id_max,
    )


def _replica(found: pb.RecoveryReplica) -> ReplicaFacts:
    return ReplicaFacts(
        partition=from_partition(found.partition),
        topic_id=found.topic_id,
        led_epoch=found.led_epoch,
        log_start=found.log_start,
        log_end=found.log_end,
        high_watermark=found.high_watermark,
        last_epoch=found.last_epoch,
        problem=found.problem,
        stray=found.stray,
    )
