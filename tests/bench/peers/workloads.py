"""The workloads, as data: who takes part, with which settings, and what Tailrace wants to be. Pure.

Peers are tuned for throughput where a workload is about throughput (batches of a megabyte, 5 ms of
linger); Tailrace runs with its settings as they ship. All topics have three replicas, acks=all, and
nobody syncs a record before it is acknowledged.

Goals compare like with like: the blocking producer with confluent-kafka, kafka-python and the Go
client of NATS, whose calls block, the one for asyncio with aiokafka and nats-py, which are asyncio.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from bench.figures import Better
from bench.peers.system import Fault, Name

KIB: Final = 1 << 10
MIB: Final = 1 << 20
SMALL_BATCH: Final = 16 * KIB
CROWD: Final = 10
"""How many clients at once make many."""

TAILRACE, KAFKA, NATS = Name.TAILRACE, Name.KAFKA, Name.NATS


class Kind(enum.StrEnum):
    """How a workload is run and which figures it gives."""

    PRODUCE = "produce"
    CONSUME = "consume"
    SINGLE = "single"
    ROUND_TRIP = "round trip"
    PACED = "fixed rate"
    BACKLOG = "backlog"
    REBALANCE = "rebalance"
    LOADED = "memory after load"
    FAILOVER = "failover"
    START = "start"
    IDLE = "idle"
    PARTITIONS = "partitions"
    SPARK = "Spark"


@dataclass(frozen=True, slots=True)
class Contender:
    """A client with its settings, or (without a script) a system by itself."""

    name: str
    system: Name
    script: str = ""
    # Of the job: see clients/job.py.
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on the ratio of two contenders' figures."""

    figure: str
    ours: str
    peer: str
    bound: float
    better: Better

    @property
    def sign(self) -> str:
        return "≥" if self.better is Better.MORE else "≤"

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.bound if self.better is Better.MORE else ratio <= self.bound


@dataclass(frozen=True, slots=True)
class Workload:
    """One comparison."""

    name: str
    kind: Kind
    contenders: tuple[Contender, ...]
    goals: tuple[Goal, ...] = ()
    size: int = 0
    fault: Fault | None = None
    # How many of a contender's clients work at once.
    clients: int = 1
    # Records a second.
    rate: int = 0


def at_least(bound: float, figure: str, ours: str, peer: str) -> Goal:
    return Goal(figure, ours, peer, bound, Better.MORE)


def at_most(bound: float, figure: str, ours: str, peer: str) -> Goal:
    return Goal(figure, ours, peer, bound, Better.LESS)


SPEED: Final = "records_per_s"
CPU: Final = "cpu_s_per_gb"
OURS_ASYNC: Final = "tailrace, asyncio"
OURS_BLOCKING: Final = "tailrace, blocking"
CONFLUENT: Final = "confluent-kafka"
CONFLUENT_DEFAULTS: Final = "confluent-kafka, defaults"
JAVA: Final = "Java perf tool"
GO: Final = "NATS, Go client"
NATS_PY: Final = "nats-py"
SPARK_OURS: Final = "tailrace"
SPARK_PEER: Final = "spark-sql-kafka"


def ours(name: str, way: str = "", batch_bytes: int = 0, compression: str = "none") -> Contender:
    options = {"way": way, "batch_bytes": batch_bytes, "compression": compression}
    return Contender(name, TAILRACE, "ours", MappingProxyType(options))


def kafka(
    name: str, script: str, batch_bytes: int = MIB, way: str = "", compression: str = "none"
) -> Contender:
    options = {"way": way, "batch_bytes": batch_bytes, "compression": compression}
    return Contender(name, KAFKA, script, MappingProxyType(options))


_NATS_CLIENTS: Final = (Contender(NATS_PY, NATS, "nats_py"), Contender(GO, NATS, "nats_go"))

_BY_RECORD: Final = (ours(OURS_ASYNC), ours(OURS_BLOCKING, "blocking"))
_PRODUCE: Final = (
    Workload(
        "produce 1 KiB",
        Kind.PRODUCE,
        (
            *_BY_RECORD,
            ours("tailrace, columns", "columns"),
            kafka(CONFLUENT, "confluent"),
            kafka(CONFLUENT_DEFAULTS, "confluent", 0),
            kafka(JAVA, "java"),
            kafka("aiokafka", "aio_kafka"),
            kafka("kafka-python", "kafka_py"),
            *_NATS_CLIENTS,
        ),
        # Tuned or not: on some machines the one is faster, on some the other.
        (
            at_least(2.0, SPEED, OURS_BLOCKING, CONFLUENT),
            at_most(0.5, CPU, OURS_BLOCKING, CONFLUENT),
            at_least(2.0, SPEED, OURS_BLOCKING, CONFLUENT_DEFAULTS),
            at_most(0.5, CPU, OURS_BLOCKING, CONFLUENT_DEFAULTS),
            at_least(3.0, SPEED, OURS_ASYNC, "aiokafka"),
            at_least(8.0, SPEED, OURS_BLOCKING, "kafka-python"),
            at_least(5.0, SPEED, OURS_BLOCKING, GO),
        ),
        size=KIB,
    ),
    Workload(
        "produce 100 B",
        Kind.PRODUCE,
        (
            *_BY_RECORD,
            ours("tailrace, columns", "columns"),
            kafka(CONFLUENT, "confluent"),
            kafka(JAVA, "java"),
            kafka("aiokafka", "aio_kafka"),
            kafka("kafka-python", "kafka_py"),
            *_NATS_CLIENTS,
        ),
        (
            at_least(1.0, SPEED, OURS_BLOCKING, CONFLUENT),
            at_least(4.0, SPEED, "tailrace, columns", JAVA),
            at_least(5.0, SPEED, OURS_BLOCKING, GO),
        ),
        size=100,
    ),
    *(
        Workload(
            f"produce {name} in batches of 16 KiB",
            Kind.PRODUCE,
            (
                ours(OURS_ASYNC, batch_bytes=SMALL_BATCH),
                ours(OURS_BLOCKING, "blocking", batch_bytes=SMALL_BATCH),
                kafka(CONFLUENT, "confluent", SMALL_BATCH),
                kafka(JAVA, "java", SMALL_BATCH),
            ),
            (at_least(2.0, SPEED, OURS_BLOCKING, CONFLUENT),),
            size=size,
        )
        for name, size in (("1 KiB", KIB), ("100 B", 100))
    ),
    Workload(
        "produce 10 KiB",
        Kind.PRODUCE,
        (ours(OURS_ASYNC), kafka(CONFLUENT, "confluent"), kafka(JAVA, "java")),
        size=10 * KIB,
    ),
    *(
        Workload(
            f"produce 1 KiB of text, {compression}",
            Kind.PRODUCE,
            (
                ours(OURS_ASYNC, compression=compression),
                kafka(CONFLUENT, "confluent", compression=compression),
            ),
            size=KIB,
        )
        for compression in ("lz4", "zstd")
    ),
)

_READERS: Final = (
    ours("tailrace, Arrow", "arrow"),
    ours("tailrace, Arrow, asyncio", "arrow, asyncio"),
    ours("tailrace, rows", "rows"),
    ours("tailrace, rows, asyncio", "rows, asyncio"),
    kafka(CONFLUENT, "confluent"),
    kafka("confluent-kafka, defaults", "confluent", way="defaults"),
    kafka(JAVA, "java"),
    kafka("aiokafka", "aio_kafka"),
    kafka("kafka-python", "kafka_py"),
    *_NATS_CLIENTS,
)
_CONSUME: Final = (
    Workload(
        "consume 1 KiB",
        Kind.CONSUME,
        _READERS,
        (
            at_least(1.5, SPEED, "tailrace, Arrow", CONFLUENT),
            at_most(0.7, CPU, "tailrace, Arrow", CONFLUENT),
            at_least(5.0, SPEED, "tailrace, rows", GO),
        ),
        size=KIB,
    ),
    Workload(
        "consume 100 B",
        Kind.CONSUME,
        _READERS,
        (
            at_least(1.0, SPEED, "tailrace, rows", CONFLUENT),
            at_least(4.0, SPEED, "tailrace, Arrow", JAVA),
            at_least(5.0, SPEED, "tailrace, rows", GO),
        ),
        size=100,
    ),
)

_LATENCY: Final = (
    Workload(
        "one record at a time, acknowledged, 1 KiB",
        Kind.SINGLE,
        (
            *_BY_RECORD,
            kafka(CONFLUENT, "confluent"),
            Contender(NATS_PY, NATS, "nats_py"),
        ),
        (
            at_most(0.75, "p50_ms", OURS_BLOCKING, CONFLUENT),
            at_most(0.6, "p99_ms", OURS_BLOCKING, CONFLUENT),
            at_most(1.0, "p50_ms", OURS_ASYNC, NATS_PY),
            at_most(0.8, "p99_ms", OURS_ASYNC, NATS_PY),
        ),
        size=KIB,
    ),
    Workload(
        "one record at a time, to a consumer, 1 KiB",
        Kind.ROUND_TRIP,
        (
            *_BY_RECORD,
            kafka(CONFLUENT, "confluent"),
            Contender(NATS_PY, NATS, "nats_py"),
        ),
        (
            at_most(0.85, "p50_ms", OURS_BLOCKING, CONFLUENT),
            at_most(0.7, "p99_ms", OURS_BLOCKING, CONFLUENT),
        ),
        size=KIB,
    ),
    *(
        Workload(
            f"to a consumer at {rate} records a second, 1 KiB",
            Kind.PACED,
            (ours(OURS_ASYNC), kafka(CONFLUENT, "confluent")),
            size=KIB,
            rate=rate,
        )
        for rate in (1_000, 10_000)
    ),
)

_BOTH: Final = (
    Contender("tailrace", TAILRACE, "ours"),
    Contender(CONFLUENT, KAFKA, "confluent"),
)
_ALL: Final = (
    Contender("tailrace", TAILRACE, "ours"),
    Contender("Kafka", KAFKA, "confluent"),
    Contender("NATS", NATS, "nats_py"),
)

_CROWDS: Final = (
    Workload(
        f"{CROWD} producers at once, 1 KiB",
        Kind.PRODUCE,
        (ours(OURS_ASYNC), kafka(CONFLUENT, "confluent")),
        size=KIB,
        clients=CROWD,
    ),
    Workload(
        f"fan-out to {CROWD} consumers, 1 KiB",
        Kind.CONSUME,
        (
            ours("tailrace, Arrow", "arrow"),
            ours("tailrace, rows", "rows"),
            kafka(CONFLUENT, "confluent"),
        ),
        size=KIB,
        clients=CROWD,
    ),
    Workload(
        "cold backlog read beside single records, 1 KiB",
        Kind.BACKLOG,
        (ours("tailrace", "arrow"), kafka(CONFLUENT, "confluent")),
        size=KIB,
    ),
    Workload(
        "rebalance: a member joins a group of two",
        Kind.REBALANCE,
        (*_BOTH, kafka("confluent-kafka, cooperative", "confluent", way="cooperative-sticky")),
    ),
)

_STATE: Final = (
    Workload(
        "fresh cluster to first acknowledgement",
        Kind.START,
        (Contender("tailrace", TAILRACE), Contender("Kafka", KAFKA)),
        (at_most(0.3, "start_s", "tailrace", "Kafka"),),
    ),
    Workload("idle", Kind.IDLE, _ALL, (at_most(0.35, "resident_mib", "tailrace", "Kafka"),)),
    Workload(
        "memory after load",
        Kind.LOADED,
        _ALL,
        (at_most(0.35, "resident_mib", "tailrace", "Kafka"),),
        size=KIB,
    ),
)

_FAILOVER: Final = tuple(
    Workload(
        fault.value,
        Kind.FAILOVER,
        _BOTH,
        (at_most(0.5 if fault is Fault.SIGTERM else 0.05, "unavailable_s", "tailrace", CONFLUENT),),
        fault=fault,
    )
    for fault in Fault
)

_PARTITIONS: Final = (
    Workload(
        "1000 partitions",
        Kind.PARTITIONS,
        _BOTH,
        (
            at_most(0.25, "all_written_s", "tailrace", CONFLUENT),
            at_most(0.25, "leaders_moved_s", "tailrace", CONFLUENT),
        ),
    ),
)

_SPARK_WAYS: Final = ("", ", AvailableNow", ", AvailableNow without its start")
_SPARK: Final = tuple(
    Workload(
        f"Spark reads {name}",
        Kind.SPARK,
        tuple(
            Contender(f"{who}{how}", system)
            for how in _SPARK_WAYS
            for who, system in ((SPARK_OURS, TAILRACE), (SPARK_PEER, KAFKA))
        ),
        tuple(
            at_least(2.0, SPEED, f"{SPARK_OURS}{how}", f"{SPARK_PEER}{how}") for how in _SPARK_WAYS
        ),
        size=size,
    )
    for name, size in (("1 KiB", KIB), ("100 B", 100))
)

WORKLOADS: Final = (
    *_STATE[:2],
    *_PRODUCE,
    *_CONSUME,
    *_LATENCY,
    *_CROWDS,
    *_STATE[2:],
    *_FAILOVER,
    *_PARTITIONS,
    *_SPARK,
)
"""In the order in which they run: first what wants a fresh machine, last what hurts."""


def chosen(words: str) -> list[Workload]:
    """Those with one of some words (with commas) in their name; all for none."""
    wanted = [each.strip() for each in words.split(",") if each.strip()]
    found = [each for each in WORKLOADS if not wanted or any(word in each.name for word in wanted)]
    if not found:
        names = "; ".join(each.name for each in WORKLOADS)
        raise ValueError(f"no workload has {words!r} in its name; there are: {names}")
    return found
