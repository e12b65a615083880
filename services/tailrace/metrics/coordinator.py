"""What a coordinator shows: its shards, its groups, and how far these are behind. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tailrace.metrics.families import Page, counter, gauge
from tailrace.metrics.lag import PAIRS_SHOWN_MAX, Lag, shown
from tailrace.metrics.values import CoordinatorCounts

_PAIRS: Final = (
    f"{PAIRS_SHOWN_MAX} pairs of a group and a topic, the furthest behind; all others as `(other)`"
)

SHARDS = gauge(
    "coordinator_shards",
    "Shards of groups that this coordinator owns.",
    "state",
    bound="2: loaded, loading",
)
SHARDS_TAKEN = counter("coordinator_shards_taken", "Shards that this coordinator got.")
SHARDS_LOST = counter("coordinator_shards_lost", "Shards that went to another coordinator.")
GROUPS = gauge(
    "groups",
    "Groups by where they stand; named readers (Spark's) have no members and are Empty.",
    "kind",
    "state",
    bound="8: consumer or reader; Empty, PreparingRebalance, CompletingRebalance, Stable",
)
MEMBERS = gauge("group_members", "Members of all groups.")
GENERATIONS = counter("group_rebalances", "Rebalances that were completed: new generations.")
POSITIONS = gauge("group_positions", "Committed positions that are kept.")
PARKED = gauge("coordinator_waiting_answers", "Answers that wait for their records to be stored.")
UNREADABLE = counter(
    "coordinator_unreadable",
    "What was passed over while shards were read, since it could not be: batches, records.",
    "kind",
    bound="2: batch, record",
)
LAG_RECORDS = gauge(
    "group_lag_records",
    "Offsets from the committed positions to the ends of the partitions.",
    "group",
    "kind",
    "topic",
    bound=_PAIRS,
)
LAG_SECONDS = gauge(
    "group_lag_seconds",
    "Age of the oldest record that was not committed; since this coordinator began to look, at "
    "least.",
    "group",
    "kind",
    "topic",
    bound=_PAIRS,
)
LAG_AGE = gauge("group_lag_age_seconds", "How long ago the ends of partitions were last asked for.")
LAG_UNKNOWN = gauge(
    "group_lag_unknown_partitions", "Partitions with positions whose end is not known."
)

COORDINATOR: Final = (
    *(SHARDS, SHARDS_TAKEN, SHARDS_LOST, GROUPS, MEMBERS, GENERATIONS, POSITIONS, PARKED),
    *(UNREADABLE, LAG_RECORDS, LAG_SECONDS, LAG_AGE, LAG_UNKNOWN),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorView:
    """A coordinator at one moment."""

    counts: CoordinatorCounts
    loaded: int = 0
    loading: int = 0
    # How many groups of each kind are in each state.
    groups: Mapping[tuple[str, str], int] = field(default_factory=dict)
    members: int = 0
    positions: int = 0
    parked: int = 0
    batches_skipped: int = 0
    records_skipped: int = 0
    lags: Sequence[Lag] = ()
    lag_unknown: int = 0
    # None: the ends were not asked for yet.
    lag_age_ms: int | None = None


def put_coordinator(page: Page, view: CoordinatorView) -> None:
    """Fill the families of a coordinator."""
    page.put(SHARDS, view.loaded, "loaded")
    page.put(SHARDS, view.loading, "loading")
    page.put(SHARDS_TAKEN, view.counts.shards_taken)
    page.put(SHARDS_LOST, view.counts.shards_lost)
    for (kind, state), number in sorted(view.groups.items()):
        page.put(GROUPS, number, kind, state)
    page.put(MEMBERS, view.members)
    page.put(GENERATIONS, view.counts.generations)
    page.put(POSITIONS, view.positions)
    page.put(PARKED, view.parked)
    page.put(UNREADABLE, view.batches_skipped, "batch")
    page.put(UNREADABLE, view.records_skipped, "record")
    for lag in shown(view.lags):
        page.put(LAG_RECORDS, lag.records, lag.group, lag.kind, lag.topic)
        page.put(LAG_SECONDS, lag.ms / 1_000, lag.group, lag.kind, lag.topic)
    page.put(LAG_UNKNOWN, view.lag_unknown)
    if view.lag_age_ms is not None:
        page.put(LAG_AGE, view.lag_age_ms / 1_000)
