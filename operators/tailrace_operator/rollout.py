"""The next safe step towards the cluster that is wanted. Pure: observations in, one step out.

Nothing is remembered between two calls: an operator that died anywhere goes on from what it sees.
The rule that all steps obey: by the operator's own hand no partition ever has fewer replicas in
sync than before, save for the one pod that is being replaced, and that one goes only while every
partition is at full strength. Health is what the cluster says, not what its pods look like.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tailrace_operator.manifests import BROKER, CONTROLLER, COORDINATOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    name: str
    role: str
    ordinal: int
    uid: str
    ready: bool
    terminating: bool
    outdated: bool
    # Why it does not run, as Kubernetes or its own last words say; empty: it does, or nobody says.
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What the cluster itself says; `reachable` is False when it says nothing."""

    reachable: bool = False
    brokers: frozenset[int] = frozenset()
    controller: int = -1
    partitions: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    offline: int = 0
    moving: int = 0
    # Brokers that the operator itself lets have no new replicas, since they are to go.
    cordoned: frozenset[int] = frozenset()

    @property
    def is_whole(self) -> bool:
        return self.reachable and not self.under_replicated and not self.offline


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """All that a decision goes by."""

    brokers_wanted: int
    brokers_now: int
    pods: Sequence[Pod]
    health: Health
    # The brokers that replicas were spread over last, and those that hold replicas now, be they
    # registered or away.
    placed_on: frozenset[int] | None = None
    holding: frozenset[int] = frozenset()
    # Brokers that have been away for longer than `failover.replaceAfter`.
    overdue: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Restart:
    """Delete this pod; its workload makes it anew."""

    pod: Pod
    why: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Have so many brokers."""

    brokers: int
    why: str


@dataclass(frozen=True, slots=True)
class Spread:
    """Place replicas by the rule over these brokers; others are cordoned and emptied by it."""

    brokers: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Uncordon:
    """Let these brokers have replicas again, or forget those that went."""

    brokers: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done at the moment; look again soon."""

    why: str


@dataclass(frozen=True, slots=True)
class Settled:
    """All is as wanted."""


Step = Restart | Scale | Spread | Uncordon | Wait | Settled


def next_step(seen: Observed) -> Step:
    """The one thing to do now."""
    if seen.brokers_now < seen.brokers_wanted:
        return Scale(seen.brokers_wanted, f"{seen.brokers_wanted} brokers are wanted")
    rolled = _roll(seen)
    if rolled is not None:
        return rolled
    if seen.brokers_now > seen.brokers_wanted:
        return _shrink(seen)
    return _spread(seen)


# ---------------------------------------------------------------------------------------- rolls


def _roll(seen: Observed) -> Step | None:
    """Replace pods that run something else than what is wanted; None: there are none."""
    outdated = [pod for pod in seen.pods if pod.outdated]
    going = [pod.name for pod in seen.pods if pod.terminating]
    if not outdated:
        return None
    if going:
        return Wait(f"{', '.join(going)} is being replaced")
    for role in (BROKER, COORDINATOR, CONTROLLER):
        mine = [pod for pod in outdated if pod.role == role]
        if mine:
            return _roll_broker(mine, seen) if role == BROKER else _roll_other(mine, seen)
    return None


def _roll_broker(outdated: list[Pod], seen: Observed) -> Step:
    # One that does not run serves nobody: to replace it takes nothing away.
    broken = [pod for pod in outdated if not pod.ready and pod.ordinal not in seen.health.brokers]
    if broken and seen.health.reachable:
        return Restart(broken[0], f"{broken[0].name} does not run, and is not what is wanted")
    problem = _why_not_now(seen)
    if problem:
        return Wait(f"{outdated[0].name} is to be replaced, but {problem}")
    return Restart(outdated[0], f"{outdated[0].name} does not run what is wanted")


def _roll_other(outdated: list[Pod], seen: Observed) -> Step:
    role = outdated[0].role
    unready = [pod for pod in seen.pods if pod.role == role and not pod.ready]
    stuck = [pod for pod in outdated if not pod.ready]
    if stuck:
        return Restart(stuck[0], f"{stuck[0].name} is not ready, and not what is wanted")
    if unready:
        why = f"{unready[0].name} is not ready{_because(seen, role, unready[0].ordinal)}"
        return Wait(f"{outdated[0].name} is to be replaced, but {why}")
    # The active controller last: one change of the active one, however many are replaced.
    ordered = sorted(
        outdated,
        key=lambda pod: (role == CONTROLLER and pod.ordinal == seen.health.controller, pod.ordinal),
    )
    return Restart(ordered[0], f"{ordered[0].name} does not run what is wanted")


def _why_not_now(seen: Observed) -> str:
    """Why no broker may be taken away at the moment; empty: it may."""
    health = seen.health
    if not health.reachable:
        return "the cluster does not say how it is"
    missing = sorted(_ordinals(seen) - health.brokers)
    if missing:
        return f"broker {missing[0]} is not registered{_because(seen, BROKER, missing[0])}"
    if health.offline:
        return f"{health.offline} partitions are offline"
    if health.under_replicated:
        return f"{health.under_replicated} partitions are under-replicated"
    unready = [pod for pod in seen.pods if pod.role == BROKER and not pod.ready]
    if unready:
        return f"{unready[0].name} is not ready{_because(seen, BROKER, unready[0].ordinal)}"
    return ""


# ------------------------------------------------------------------------------- more and fewer


def _shrink(seen: Observed) -> Step:
    leaving = set(range(seen.brokers_wanted, seen.brokers_now))
    staying = tuple(range(seen.brokers_wanted))
    if not seen.health.reachable:
        return Wait("brokers are to go, but the cluster does not say what they hold")
    held = sorted(leaving & seen.holding)
    # One that may still get replicas is never removed: a topic could be made meanwhile.
    if not held and not leaving & seen.health.brokers - seen.health.cordoned:
        return Scale(seen.brokers_wanted, f"brokers {_shown(leaving)} hold nothing any more")
    if held and seen.health.moving:
        return Wait(f"{seen.health.moving} partitions are moving off brokers {_shown(held)}")
    return Spread(staying, f"brokers {_shown(leaving)} are to go")


def _spread(seen: Observed) -> Step:
    away = seen.overdue & frozenset(range(seen.brokers_wanted))
    wanted = tuple(each for each in range(seen.brokers_wanted) if each not in away)
    free = sorted(
        each
        for each in seen.health.cordoned
        if each < seen.brokers_wanted or each not in seen.health.brokers
    )
    if free:
        return Uncordon(tuple(free), f"brokers {_shown(free)} are not on their way out any more")
    if seen.health.moving:
        return Wait(f"{seen.health.moving} partitions are moving")
    if seen.placed_on is None or seen.placed_on == frozenset(wanted):
        if away:
            return Wait(f"brokers {_shown(away)} are away, and others hold their replicas")
        return Settled()
    missing = sorted(set(wanted) - seen.health.brokers)
    if missing:
        because = _because(seen, BROKER, missing[0])
        return Wait(f"broker {missing[0]} is not registered yet{because}")
    if away:
        return Spread(wanted, f"brokers {_shown(away)} have been away for too long")
    if not seen.health.is_whole:
        return Wait("replicas are to be spread anew, when every partition is at full strength")
    return Spread(wanted, f"replicas are on brokers {_shown(seen.placed_on)}")


def _ordinals(seen: Observed) -> set[int]:
    return set(range(min(seen.brokers_now, seen.brokers_wanted)))


def _because(seen: Observed, role: str, ordinal: int) -> str:
    told = [pod.problem for pod in seen.pods if (pod.role, pod.ordinal) == (role, ordinal)]
    return f": {told[0]}" if told and told[0] else ""


def _shown(brokers: Iterable[int]) -> str:
    return ", ".join(str(each) for each in sorted(brokers))
