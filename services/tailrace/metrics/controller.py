"""What a controller shows: whether it is active, and the cluster as it sees it then. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tailrace.metrics.families import Page, counter, gauge
from tailrace.metrics.values import ControllerCounts

ACTIVE = gauge("controller_active", "1 for the active controller, 0 for those that stand by.")
EPOCH = gauge("controller_epoch", "The epoch of the active controller; only it shows this.")
TERMS = counter("controller_terms", "How often this controller became the active one.")
QUEUE = gauge(
    "controller_queue",
    "What waits for the task that decides.",
    "what",
    bound="3: urgent, requests, orders (partitions that brokers were not told yet)",
)
COMMITS = counter("controller_commits", "Transactions that this controller did in etcd.")
REFUSALS = counter("controller_refused_commits", "Transactions that came to nothing: decided anew.")
LEADER_CHANGES = counter("leader_changes", "Partitions that this controller gave another leader.")
LEADERS_LOST = counter("leaders_lost", "Partitions that lost their leader and got none.")
LOSSES = counter(
    "losses_recorded", "Elections that may have lost records, each with a statement of what."
)
BROKERS = gauge("cluster_brokers", "Brokers that are registered.")
CORDONED = gauge("cluster_brokers_cordoned", "Brokers that get no new replicas.")
COORDINATORS = gauge("cluster_coordinators", "Coordinators that are registered.")
SHARDS_UNOWNED = gauge("cluster_shards_unowned", "Shards of groups without a live coordinator.")
TOPICS = gauge("cluster_topics", "Topics.")
PARTITIONS = gauge("cluster_partitions", "Partitions of all topics.")
OFFLINE = gauge("cluster_offline_partitions", "Partitions without a leader.")
UNDECIDED = gauge(
    "cluster_undecided_partitions",
    "Partitions whose replicas contradict one another about committed records: a person decides.",
)
UNDER_REPLICATED = gauge(
    "cluster_under_replicated_partitions", "Partitions whose ISR lacks a replica."
)
UNDER_MIN_ISR = gauge(
    "cluster_under_min_isr_partitions", "Partitions whose ISR is below min.insync.replicas."
)
NOT_PREFERRED = gauge(
    "cluster_not_preferred_leaders", "Partitions that another replica leads than the first."
)
REASSIGNING = gauge("cluster_reassignments", "Partitions whose replicas are being moved.")
DELETING = gauge("cluster_deletions", "Topics that are being deleted.")
DAMAGED_KEYS = gauge("cluster_unreadable_keys", "Keys in etcd that cannot be read.")

CONTROLLER: Final = (
    *(ACTIVE, EPOCH, TERMS, QUEUE, COMMITS, REFUSALS, LEADER_CHANGES, LEADERS_LOST, LOSSES),
    *(BROKERS, CORDONED, COORDINATORS, SHARDS_UNOWNED, TOPICS, PARTITIONS, OFFLINE),
    *(UNDECIDED, UNDER_REPLICATED, UNDER_MIN_ISR, NOT_PREFERRED, REASSIGNING, DELETING),
    DAMAGED_KEYS,
)


class PartitionTally(NamedTuple):
    """The partitions of a cluster, counted by what is wrong with them."""

    partitions: int = 0
    offline: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    not_preferred: int = 0
    undecided: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The cluster as the active controller sees it."""

    epoch: int
    brokers: int = 0
    cordoned: int = 0
    coordinators: int = 0
    shards_unowned: int = 0
    topics: int = 0
    reassignments: int = 0
    deletions: int = 0
    unreadable: int = 0
    tally: PartitionTally = field(default_factory=PartitionTally)
    queue: Mapping[str, int] = field(default_factory=dict)


def put_controller(page: Page, counts: ControllerCounts, cluster: ClusterView | None) -> None:
    """Fill the families of a controller; `cluster` is None for one that stands by."""
    page.put(ACTIVE, cluster is not None)
    page.put(TERMS, counts.terms)
    page.put(COMMITS, counts.commits)
    page.put(REFUSALS, counts.refusals)
    page.put(LEADER_CHANGES, counts.leader_changes)
    page.put(LEADERS_LOST, counts.leaders_lost)
    page.put(LOSSES, counts.losses)
    if cluster is None:
        return
    page.put(EPOCH, cluster.epoch)
    for what, number in cluster.queue.items():
        page.put(QUEUE, number, what)
    page.put(BROKERS, cluster.brokers)
    page.put(CORDONED, cluster.cordoned)
    page.put(COORDINATORS, cluster.coordinators)
    page.put(SHARDS_UNOWNED, cluster.shards_unowned)
    page.put(TOPICS, cluster.topics)
    page.put(PARTITIONS, cluster.tally.partitions)
    page.put(OFFLINE, cluster.tally.offline)
    page.put(UNDECIDED, cluster.tally.undecided)
    page.put(UNDER_REPLICATED, cluster.tally.under_replicated)
    page.put(UNDER_MIN_ISR, cluster.tally.under_min_isr)
    page.put(NOT_PREFERRED, cluster.tally.not_preferred)
    page.put(REASSIGNING, cluster.reassignments)
    page.put(DELETING, cluster.deletions)
    page.put(DAMAGED_KEYS, cluster.unreadable)
