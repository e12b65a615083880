"""What grows, in which steps, how much a step may take, and what counts as a cliff. Pure.

The bounds are promises, not wishes: a run that misses one says so and ends with code 1.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

KIB: Final = 1 << 10
MB: Final = 1_000_000
GB: Final = 1_000 * MB

SIZE: Final = KIB
"""Bytes of a record's value."""

STEP_BYTES_MAX: Final = 1 * GB
"""What all clients of a step move together, at most, unless that is too little for each of them; a
backlog has its own size."""

READ_BYTES_MIN: Final = 40 * MB
"""What a consumer reads at least, however many there are.

It reads 32 MiB ahead. Of a hundred that read 10 MB each, most of what brokers sent was never read,
and was counted as what their reading costs.
"""

STEP_S_MAX: Final = 120.0
"""How long a step may take before it counts as failed: many times what it should."""

RUN_S_MAX: Final = 840.0
"""No step begins later than this: the whole takes a quarter of an hour at most."""

WORK_S: Final = 3.0
"""How long clients work in a step, about."""

PROCESSES_MAX: Final = 10
"""Clients beyond this many share processes: two cores cannot start a hundred."""

BROKER_MIB_MAX: Final = 384.0
"""What a broker may hold whatever it serves: at rest, and in queues and buffers."""

PARTITION_MIB_MAX: Final = 0.25
"""What a replica of a partition may add."""

CLIENT_MIB_MAX: Final = 1.0
"""What a connected client may add."""


class Axis(enum.StrEnum):
    """What grows."""

    PARTITIONS = "partitions"
    CLIENTS = "clients"
    BACKLOG = "backlog"


class Flow(enum.StrEnum):
    """What is measured at a step."""

    PRODUCE = "produce"
    KEYED = "produce, keyed"
    CONSUME = "consume"
    FILL = "fill"
    COLD = "cold read"


@dataclass(frozen=True, slots=True)
class Series:
    """One axis: its steps, and what must hold from the smallest to the largest."""

    axis: Axis
    title: str
    unit: str
    steps: tuple[int, ...]
    flows: tuple[Flow, ...]
    # The least share of the best smaller step's throughput that the largest must reach. CPU seconds
    # for a GB may grow by the same factor at most.
    share_min: float
    # What a step adds to the memory that a broker may hold, for each unit.
    mib_a_unit: float = 0.0
    # Smaller steps are no yardstick (too short, or not steady): they are shown, not judged.
    judged_from: int = 0
    rounds: int = 2

    def label(self, step: int) -> str:
        if self.axis is Axis.BACKLOG:
            return f"{step / GB:g} GB" if step >= GB else f"{step / MB:g} MB"
        return f"{step:,} {self.unit if step > 1 else self.unit.removesuffix('s')}"

    def memory_mib_max(self, step: int) -> float:
        return BROKER_MIB_MAX + self.mib_a_unit * step


FULL: Final = (
    Series(
        Axis.PARTITIONS,
        "From 1 to 1,000 partitions",
        "partitions",
        (1, 10, 100, 1_000),
        (Flow.PRODUCE, Flow.KEYED, Flow.CONSUME),
        share_min=0.4,
        mib_a_unit=PARTITION_MIB_MAX,
    ),
    Series(
        Axis.CLIENTS,
        "From 1 to 100 clients",
        "clients",
        (1, 10, 30, 100),
        (Flow.PRODUCE, Flow.CONSUME),
        share_min=0.5,
        mib_a_unit=CLIENT_MIB_MAX,
    ),
    Series(
        Axis.BACKLOG,
        "Backlog from 1 MB to 4 GB, read cold (a stand-in for 100 GB)",
        "bytes",
        (1 * MB, 100 * MB, 1 * GB, 4 * GB),
        (Flow.FILL, Flow.COLD),
        share_min=0.5,
        judged_from=100 * MB,
        rounds=1,
    ),
)

QUICK: Final = (
    Series(
        Axis.PARTITIONS,
        "From 1 to 100 partitions",
        "partitions",
        (1, 100),
        (Flow.PRODUCE, Flow.KEYED, Flow.CONSUME),
        share_min=0.4,
        mib_a_unit=PARTITION_MIB_MAX,
        rounds=1,
    ),
    Series(
        Axis.CLIENTS,
        "From 1 to 10 clients",
        "clients",
        (1, 10),
        (Flow.PRODUCE, Flow.CONSUME),
        share_min=0.5,
        mib_a_unit=CLIENT_MIB_MAX,
        rounds=1,
    ),
    Series(
        Axis.BACKLOG,
        "Backlog from 10 MB to 200 MB, read cold",
        "bytes",
        (10 * MB, 50 * MB, 200 * MB),
        (Flow.FILL, Flow.COLD),
        share_min=0.5,
        judged_from=50 * MB,
        rounds=1,
    ),
)

RUNS: Final = {"full": FULL, "quick": QUICK}
