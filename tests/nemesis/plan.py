"""Which faults a run does, when, to whom and for how long: drawn from a seed, and from that alone.

Nothing is done here. Times are seconds from the start. Faults overlap; between rounds of them there
is a calm in which everything is healed and must become well again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Kind(StrEnum):
    """What is done. `target` of a step is a process, or two with a dash between them."""

    KILL = "kill -9"
    TERM = "SIGTERM, restart"
    STOP = "SIGSTOP"
    STORM = "restart storm"
    BOTH = "kill -9 leader and controller"
    ETCD_KILL = "etcd kill -9"
    ETCD_STOP = "etcd SIGSTOP"
    ETCD_LOST = "etcd comes back empty"
    ETCD_OLD = "etcd comes back older"
    WIPE = "wipe the disk"
    FILE = "damage a file"
    OLD_FOLDER = "an older copy of the folder"
    CLONE = "a clone of a live folder"
    SYNC_ERROR = "syncs fail"
    STUTTER = "SIGSTOP in bursts"
    CUT = "network cut"
    CUT_ONE_WAY = "network cut one way"
    CUT_STORE = "network cut from etcd"
    LOSS = "packet loss"
    FLAP = "network flaps"
    DISK_FULL = "disk full"
    DISK_SLOW = "slow disk"
    CLOCK = "clock step"
    CALM = "calm"


# How often each is drawn, and the shortest and longest time that it lasts, in seconds.
WEIGHTS: dict[Kind, tuple[int, float, float]] = {
    Kind.KILL: (6, 0.1, 8.0),
    Kind.TERM: (3, 0.1, 4.0),
    Kind.STOP: (4, 0.3, 9.0),
    Kind.STORM: (1, 0.2, 1.5),
    Kind.BOTH: (2, 0.5, 5.0),
    Kind.ETCD_KILL: (2, 0.5, 15.0),
    Kind.ETCD_STOP: (2, 0.5, 12.0),
    Kind.ETCD_LOST: (4, 3.0, 15.0),
    Kind.ETCD_OLD: (4, 3.0, 15.0),
    Kind.WIPE: (2, 0.2, 4.0),
    Kind.FILE: (4, 0.5, 4.0),
    Kind.OLD_FOLDER: (2, 1.0, 6.0),
    Kind.CLONE: (1, 2.0, 6.0),
    Kind.SYNC_ERROR: (2, 1.0, 5.0),
    Kind.STUTTER: (2, 2.0, 8.0),
    Kind.CUT: (4, 0.5, 14.0),
    Kind.CUT_ONE_WAY: (4, 0.5, 14.0),
    Kind.CUT_STORE: (2, 0.5, 12.0),
    Kind.LOSS: (2, 2.0, 12.0),
    Kind.FLAP: (2, 2.0, 8.0),
    Kind.DISK_FULL: (2, 1.0, 8.0),
    Kind.DISK_SLOW: (2, 2.0, 10.0),
    Kind.CLOCK: (2, 1.0, 10.0),
}
NETWORK = frozenset({Kind.CUT, Kind.CUT_ONE_WAY, Kind.CUT_STORE, Kind.LOSS, Kind.FLAP})
SHIMMED = frozenset({Kind.DISK_SLOW, Kind.CLOCK, Kind.SYNC_ERROR})
OF_ETCD = frozenset({Kind.ETCD_KILL, Kind.ETCD_STOP, Kind.ETCD_LOST, Kind.ETCD_OLD})
OF_BROKERS = frozenset(
    {
        *(Kind.TERM, Kind.WIPE, Kind.STUTTER, Kind.DISK_FULL, Kind.DISK_SLOW, Kind.STORM),
        *(Kind.CUT_STORE, Kind.FILE, Kind.OLD_FOLDER, Kind.CLONE, Kind.SYNC_ERROR),
    }
)
ETCD = "etcd"
# How many of the faults that could hit any service hit a broker.
BROKER_SHARE = 0.75
GAP_S = 3.0
ROUND_S = 45.0
CLOCK_STEP_MAX_MS = 2 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Step:
    """One fault."""

    at_s: float
    kind: Kind
    target: str
    seconds: float
    # Of a clock: by how many ms. Of loss: in percent. Of a slow disk: ms for each sync. Of a file:
    # the seed of which one, and what is done to it.
    amount: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The names of all processes that a plan may hurt; clients only lose their network."""

    brokers: Sequence[str]
    controllers: Sequence[str]
    coordinators: Sequence[str] = ()
    clients: Sequence[str] = ()


def plan(seed: int, seconds: float, *, processes: Processes, kinds: Sequence[Kind]) -> list[Step]:
    """The steps of a run, in order; the last one is a calm."""
    rng = Random(f"nemesis {seed}")
    weights = [WEIGHTS[kind][0] for kind in kinds]
    steps: list[Step] = []
    now_s, calm_s = 0.0, ROUND_S
    while True:
        now_s += rng.expovariate(1 / GAP_S)
        if now_s >= seconds:
            break
        if now_s >= calm_s:
            steps.append(Step(round(now_s, 2), Kind.CALM, "", 0.0))
            calm_s = now_s + ROUND_S
            continue
        kind = rng.choices(kinds, weights)[0]
        _, shortest, longest = WEIGHTS[kind]
        # Most are short, some last beyond every lease.
        lasts_s = shortest + (longest - shortest) * rng.random() ** 2
        target = _target(kind, processes, rng)
        steps.append(
            Step(round(now_s, 2), kind, target, round(lasts_s, 2), amount=_amount(kind, rng))
        )
    steps.append(Step(round(seconds, 2), Kind.CALM, "", 0.0))
    return steps


def _target(kind: Kind, processes: Processes, rng: Random) -> str:
    if kind in OF_ETCD:
        return ETCD
    if kind is Kind.BOTH:
        return "leader of partition 0"
    if kind in NETWORK and kind is not Kind.CUT_STORE:
        return "|".join(_pair(processes, rng))
    if kind in OF_BROKERS or rng.random() < BROKER_SHARE:
        return rng.choice(processes.brokers)
    return rng.choice([*processes.controllers, *processes.coordinators])


def _pair(processes: Processes, rng: Random) -> list[str]:
    """Any two that talk to each other; what goes on between brokers matters most."""
    others = [*processes.controllers, *processes.coordinators, *processes.clients, ETCD]
    if rng.random() < BROKER_SHARE:
        one = rng.choice(processes.brokers)
        rest = [each for each in (*processes.brokers, *others, *processes.brokers) if each != one]
        pair = [one, rng.choice(rest)]
    else:
        services = [each for each in others if each not in processes.clients]
        one = rng.choice(services)
        pair = [one, rng.choice([each for each in others if each != one])]
    # Of a one-way cut the first one hears nothing: either may be it.
    rng.shuffle(pair)
    return pair


def _amount(kind: Kind, rng: Random) -> int:
    if kind is Kind.CLOCK:
        return rng.randint(-CLOCK_STEP_MAX_MS, CLOCK_STEP_MAX_MS)
    if kind is Kind.LOSS:
        return rng.choice([5, 20, 50])
    if kind is Kind.DISK_SLOW:
        return rng.choice([50, 500, 3_000])
    if kind is Kind.FILE:
        return rng.randrange(1_000_000)
    return 0
