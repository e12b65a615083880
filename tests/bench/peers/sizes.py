"""How much a run does: how often, how long, how many bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from bench.peers.system import Name
from bench.peers.workloads import Kind

WARM_UPS: Final = {
    # One tells how fast a contender is, one warms it up at that rate.
    Kind.PRODUCE: 2,
    Kind.CONSUME: 2,
    Kind.SINGLE: 1,
    Kind.ROUND_TRIP: 1,
    Kind.PACED: 1,
    Kind.SPARK: 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bounds of a run."""

    rounds: int = 3
    # Whether there are rounds that do not count.
    is_warmed_up: bool = True
    # How long a contender of a throughput workload works in a round, about.
    seconds: float = 4.0
    # What it gets in its first round, and at most.
    # Not too little: what a client does once (it connects, it finds the leaders) would make the
    # fast ones look slow, and the rounds that follow too short to show otherwise.
    probe_bytes: int = 100_000_000
    probe_records: int = 300_000
    run_bytes_max: int = 1_000_000_000
    # What is in the topics that are read; some systems are slow to fill.
    fill_bytes: int = 600_000_000
    fill_records_max: Mapping[Name, int] = field(
        default_factory=lambda: MappingProxyType({Name.NATS: 500_000})
    )
    # What goes in and out of servers on a JVM, once they run, before any throughput is timed.
    jvm_warm_bytes: int = 300_000_000
    # What goes in and out before memory is looked at.
    load_bytes: int = 500_000_000
    # What Spark reads.
    spark_bytes: int = 1_000_000_000
    # Records of those that go one at a time; the first of them are not counted.
    singles: int = 2_200
    partitions: int = 1_000
    # After a start, or a change of a group: what happens once is over by then.
    settle_s: float = 5.0
    idle_s: float = 5.0
    # How long records flow before something is done to the cluster, and afterwards.
    steady_s: float = 1.0

    def warm_ups(self, kind: Kind) -> int:
        """Rounds that do not count."""
        return WARM_UPS.get(kind, 0) * self.is_warmed_up


TRIAL: Final = Sizes(
    rounds=1,
    is_warmed_up=False,
    seconds=0.1,
    probe_bytes=2_000_000,
    probe_records=5_000,
    run_bytes_max=5_000_000,
    fill_bytes=4_000_000,
    load_bytes=4_000_000,
    jvm_warm_bytes=1_000_000,
    spark_bytes=4_000_000,
    singles=300,
    partitions=30,
    settle_s=0.5,
    idle_s=0.5,
    steady_s=0.5,
)
"""Shows that everything runs; its figures mean nothing."""


class Volumes:
    """How many records a contender gets: about as many as it moves in the time that it has."""

    def __init__(self, sizes: Sizes, size: int, clients: int) -> None:
        self._seconds = sizes.seconds
        self._most = sizes.run_bytes_max // size // clients
        self._probe = min(sizes.probe_bytes // size, sizes.probe_records, self._most)
        self._clients = clients
        self._rates: dict[str, float] = {}

    def records(self, contender: str) -> int:
        """For each of its clients."""
        rate = self._rates.get(contender, 0.0)
        return int(min(max(rate * self._seconds / self._clients, self._probe), self._most))

    def note(self, contender: str, records_per_s: float) -> None:
        """The fastest round counts: a few records say less of a speed than many."""
        self._rates[contender] = max(records_per_s, self._rates.get(contender, 0.0))
