"""Upgrades: a changed setting rolls everything, and an operator that dies goes on."""

from __future__ import annotations

from e2e.kube import until
from e2e.loads import pause_told, under_load
from e2e.release import Release

ROLLED_S = 400.0


def test_f24_an_upgrade_rolls_one_at_a_time_though_the_operator_is_killed(release: Release) -> None:
    before = release.uids("broker")
    seen: dict[str, set[str]] = {name: {uid} for name, uid in before.items()}
    with under_load(release, "upgrade") as load:
        with pause_told(load, "helm upgrade, operator killed in mid-roll"):
            release.upgrade({"cluster.brokers.settings": {"segment.bytes": 67108864}})
            until("the roll is under way", lambda: looked(release, seen) > len(before), 120)
            release.kube.kubectl(
                *("delete", "pod", "-l", "app.kubernetes.io/component=operator"),
                *("--force", "--grace-period=0"),
            )
            until(
                "every broker was replaced",
                lambda: looked(release, seen) == 2 * len(before),
                ROLLED_S,
            )
            release.whole()
        # Each once: nobody begins a roll anew.
        assert looked(release, seen) == 2 * len(before)


def looked(release: Release, seen: dict[str, set[str]]) -> int:
    """How many different pods of brokers there have been."""
    for name, uid in release.uids("broker").items():
        seen.setdefault(name, set()).add(uid)
    return sum(map(len, seen.values()))
