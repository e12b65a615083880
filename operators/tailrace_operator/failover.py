"""What to do about pods that hang and volumes that are gone or too small. Pure.

A pod that should be gone and is not sits on a node that nobody hears of. It may still run: so its
broker is fenced with the controller first, by the pod's own id, and only then is the pod struck
from the books, which lets Kubernetes make its successor.

A volume is gone for good when Kubernetes says so (`Lost`), or when its pod cannot be placed since
the volume belongs to a node that is no more. Its replicas are elsewhere: the claim goes, a fresh
one comes with the pod, and the broker copies everything anew. By the operator's own hand that is
done to one broker at a time, and never while a partition is offline: the volume may hold the last
of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from tailrace_operator.rollout import Health
from tailrace_operator.spec import InvalidSpec

# How much longer than its grace period a pod may take to go.
STUCK_AFTER_MS: Final = 30_000
# How long a pod must have been without a place before its volume is given up.
UNPLACED_AFTER_MS: Final = 60_000
_CONFLICT: Final = "volume node affinity conflict"
# All that Kubernetes may make of a size: 1.0001Gi comes back in thousandths of a byte.
_QUANTITY: Final = re.compile(r"(\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d+)|([a-zA-Z]{0,2}))")
_UNITS: Final = {
    **{unit: Decimal(1000) ** (power - 3) for power, unit in enumerate(["n", "u", "m", ""])},
    **{unit: Decimal(1000) ** (power + 1) for power, unit in enumerate("kMGTPE")},
    **{f"{unit}i": Decimal(1024) ** (power + 1) for power, unit in enumerate("KMGTPE")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    name: str
    uid: str
    phase: str
    bytes: int
    # The node that its volume was made for, if it says so; whether that node is known to be gone.
    node: str = ""
    node_is_gone: bool = False
    going: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPod:
    """What failover needs to know of a broker's pod; times are of the wall clock."""

    name: str
    ordinal: int
    uid: str
    # When it should be gone, grace period included; None: it is to stay.
    gone_by_ms: int | None = None
    # Why it has no node, and since when; empty: it has one.
    unplaced: str = ""
    unplaced_since_ms: int = 0


@dataclass(frozen=True, slots=True)
class FenceAndForget:
    """Fence the broker of this pod; once that is sure, strike the pod from the books."""

    pod: BrokerPod
    why: str


@dataclass(frozen=True, slots=True)
class GiveUpVolume:
    """Fence, then delete the claim and the pod: both come anew."""

    claim: Claim
    pod: BrokerPod | None
    why: str


@dataclass(frozen=True, slots=True)
class Grow:
    claim: Claim
    size: str


Act = FenceAndForget | GiveUpVolume


def heal(
    pods: Sequence[BrokerPod], claims: Sequence[Claim], health: Health, *, now_ms: int
) -> list[Act]:
    """What to do about pods and volumes that will not come back by themselves."""
    acts: list[Act] = [
        FenceAndForget(pod, f"{pod.name} should have been gone long ago")
        for pod in pods
        if pod.gone_by_ms is not None and now_ms - pod.gone_by_ms >= STUCK_AFTER_MS
    ]
    by_name = {pod.name: pod for pod in pods}
    for claim in claims:
        pod = by_name.get(claim.name.removeprefix("data-"))
        why = _gone_for_good(claim, pod, now_ms)
        # With a partition offline, this volume may be the last that holds its records.
        if why and not claim.going and health.reachable and not health.offline:
            return [*acts, GiveUpVolume(claim, pod, why)]
    return acts


def grow(claims: Sequence[Claim], size: str) -> list[Grow]:
    """The claims that are smaller than wanted; InvalidSpec when one is larger."""
    wanted = read_quantity(size)
    larger = [claim for claim in claims if claim.bytes > wanted]
    if larger:
        raise InvalidSpec(
            f"spec.brokers.storage.size is {size}, but {larger[0].name} is larger already: "
            "volumes can grow, not shrink"
        )
    return [Grow(claim, size) for claim in claims if claim.bytes < wanted and not claim.going]


def read_quantity(text: str) -> int:
    """Bytes of "10Gi", "1500M", "1.5Ti", "1024", "1e9"; a part of a byte is a whole one."""
    found = _QUANTITY.fullmatch(text)
    factor = None if found is None else _UNITS.get(found[3] or "")
    if found is None or factor is None:
        raise InvalidSpec(f"{text!r} is no size: write 500Mi, 10Gi or 1Ti")
    return math.ceil(Decimal(found[1]).scaleb(int(found[2] or 0)) * factor)


def _gone_for_good(claim: Claim, pod: BrokerPod | None, now_ms: int) -> str:
    if claim.phase == "Lost":
        return f"the volume of {claim.name} is lost"
    if pod is None or _CONFLICT not in pod.unplaced or not claim.node_is_gone:
        return ""
    if now_ms - pod.unplaced_since_ms < UNPLACED_AFTER_MS:
        return ""
    return f"the volume of {claim.name} was on {claim.node}, which is gone"
