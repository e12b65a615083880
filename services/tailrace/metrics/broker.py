"""What a broker shows: a view of its state at one moment → families. Pure.

Per topic, not per partition: of each topic the sum, or the worst, over its replicas on this broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tailrace.metrics.families import OTHER, Page, counter, gauge, histogram
from tailrace.metrics.values import TOPICS_SHOWN_MAX, BrokerCounts, Traffic

_TOPICS: Final = f"{TOPICS_SHOWN_MAX} topics and one `{OTHER}` for all others"
_BROKERS: Final = "one for each other broker"
_FOLDERS: Final = "one for each data folder"
_CODES: Final = "one for each error code that was answered"
_ROLES: Final = ("leader", "follower", "offline", "stopped")

BYTES_IN = counter(
    "topic_bytes_in", "Bytes of batches that producers wrote.", "topic", bound=_TOPICS
)
RECORDS_IN = counter("topic_records_in", "Records that producers wrote.", "topic", bound=_TOPICS)
BYTES_OUT = counter(
    "topic_bytes_out", "Bytes of batches that readers were sent.", "topic", bound=_TOPICS
)
RECORDS_OUT = counter(
    "topic_records_out",
    "Offsets that readers were sent; after compaction fewer records than these.",
    "topic",
    bound=_TOPICS,
)
REPLICA_BYTES_IN = counter(
    "topic_replica_bytes_in", "Bytes that leaders pushed to this broker.", "topic", bound=_TOPICS
)
REPLICA_BYTES_OUT = counter(
    "topic_replica_bytes_out", "Bytes pushed to followers from here.", "topic", bound=_TOPICS
)
LOG_BYTES = gauge("topic_log_bytes", "Size of the logs here.", "topic", bound=_TOPICS)
LOG_SEGMENTS = gauge("topic_log_segments", "Segments of the logs here.", "topic", bound=_TOPICS)
TOPIC_REPLICAS = gauge("topic_replicas", "Replicas here.", "topic", bound=_TOPICS)
TOPIC_LEADERS = gauge("topic_leaders", "Partitions led here.", "topic", bound=_TOPICS)
TOPIC_ISR_MIN = gauge(
    "topic_isr_min",
    "The smallest ISR of the partitions led here; not there when none is.",
    "topic",
    bound=_TOPICS,
)
PRODUCER_STATES = gauge(
    "topic_producer_states", "Idempotent producers remembered here.", "topic", bound=_TOPICS
)

REPLICAS = gauge(
    "replicas", "Replicas here by role.", "role", bound=f"{len(_ROLES)}: {', '.join(_ROLES)}"
)
UNDER_REPLICATED = gauge(
    "under_replicated_partitions", "Partitions led here whose ISR lacks a replica."
)
UNDER_MIN_ISR = gauge(
    "under_min_isr_partitions",
    "Partitions led here whose ISR is below min.insync.replicas: acks=all is refused.",
)
AT_MIN_ISR = gauge(
    "at_min_isr_partitions",
    "Partitions led here, of those with more replicas, whose ISR is min.insync.replicas.",
)
OUT_OF_SERVICE = gauge(
    "replicas_out_of_service", "Replicas whose log or disk failed and that serve nothing."
)
UNCOMMITTED = gauge(
    "uncommitted_records_max",
    "Of the partitions led here, the most offsets between high watermark and log end.",
)
LEADER_CHANGES = counter(
    "replica_role_changes", "Orders that made a replica here that.", "role", bound="2"
)
ISR_SHRINKS = counter("isr_shrinks", "Replicas taken out of an ISR by a leader here.")
ISR_EXPANDS = counter("isr_expands", "Replicas taken into an ISR by a leader here.")
FOLLOWER_LAG = gauge(
    "follower_lag_records_max",
    "Of the partitions led here, the most offsets that a follower is behind the log end.",
    "follower",
    bound=_BROKERS,
)
FOLLOWER_BEHIND = gauge(
    "follower_behind_seconds_max",
    "Of the partitions led here, the longest time since a follower had everything.",
    "follower",
    bound=_BROKERS,
)
FOLLOWER_AWAY = gauge(
    "follower_away_partitions",
    "Partitions led here that a follower does not follow at the moment.",
    "follower",
    bound=_BROKERS,
)

PRODUCED = histogram(
    "produce_seconds",
    "Produce requests: from when one was read to when its answer was ready.",
    "acks",
    bound="3: all, leader, none",
)
PRODUCE_REFUSED = counter(
    "produce_refused", "Partitions of produce requests answered by an error.", "code", bound=_CODES
)
FETCHED = counter("fetch_responses", "Responses sent on fetch streams.")
FETCH_REFUSED = counter(
    "fetch_refused", "Partitions of fetch requests answered by an error.", "code", bound=_CODES
)
PRODUCE_WAITING = gauge("produce_waiting", "Produces that wait for their replicas (purgatory).")
PRODUCE_BYTES = gauge("produce_in_flight_bytes", "Bytes of produce requests not answered yet.")
PRODUCE_BYTES_MAX = gauge("produce_in_flight_limit_bytes", "Its limit, produce.bytes.max.")
PRODUCE_OVERLOADS = counter("produce_overloads", "Produce requests refused by that limit.")
FETCH_BYTES = gauge("fetch_in_flight_bytes", "Bytes read for clients and not taken by them yet.")
FETCH_BYTES_MAX = gauge("fetch_in_flight_limit_bytes", "Its limit, fetch.bytes.max.")
FETCH_WAITING = gauge("fetch_waiting", "Fetch streams that wait for room under that limit.")
STREAMS = gauge("client_streams", "Open streams of clients.", "kind", bound="2: produce, fetch")
CUT_OFF = counter("clients_cut_off", "Streams cut off because their client stalled or was idle.")

FLUSHES = histogram("flush_seconds", "Syncs of one log to its disk.")
FLUSH_FAILURES = counter("flush_failures", "Syncs that failed; each takes its log out of service.")
DAMAGE_FOUND = counter(
    "damage_found",
    "Logs in which durable records could not be read: when they were opened, read or scrubbed.",
)
KEPT_RECORDS = counter(
    "kept_records",
    "Times a follower kept records that its leader lacks, because nothing on record explains it.",
)
CONFLICTS = counter(
    "high_watermark_conflicts",
    "Leaders out of service since another replica knows committed records that they do not have.",
)
REPLICAS_DELETED = counter(
    "replicas_deleted",
    "Replicas that were deleted, each because the store has it on record that they may go.",
)
REPLICAS_SET_ASIDE = counter(
    "replicas_set_aside",
    "Replicas that the metadata store does not know, and that were set aside: nothing was deleted.",
)
STRAYS_REMOVED = counter(
    "strays_removed", "Replicas that were set aside and kept for stray.retention.ms: they are gone."
)
STRAYS = gauge("stray_replicas", "Replicas that are set aside (`tailrace brokers strays`).")
STRAY_BYTES = gauge("stray_bytes", "Bytes of replicas that are set aside.")
LOG_STARTS_MOVED = counter(
    "log_starts_moved", "Times that a log gave up records for retention or by request."
)
LOGS_CUT = counter(
    "logs_cut", "Times that a follower cut its log because its leader has another one there."
)
CLEANED = counter("compaction_passes", "Passes of compaction over one log.")
CLEANED_READ = counter("compaction_read_bytes", "Size of logs before they were compacted.")
CLEANED_WRITTEN = counter("compaction_written_bytes", "And after it.")
CLEANING = gauge("compaction_running", "1 while a log is being compacted.")
DISK_FREE = gauge("disk_free_bytes", "Room on the disk of a folder.", "folder", bound=_FOLDERS)
DISK_TOTAL = gauge("disk_size_bytes", "Size of the disk of a folder.", "folder", bound=_FOLDERS)
DISK_UNFIT = gauge(
    "disk_unfit",
    "1 when the disk of a folder is full, slow or has failed.",
    "folder",
    bound=_FOLDERS,
)

BROKER: Final = (
    *(BYTES_IN, RECORDS_IN, BYTES_OUT, RECORDS_OUT, REPLICA_BYTES_IN, REPLICA_BYTES_OUT),
    *(LOG_BYTES, LOG_SEGMENTS, TOPIC_REPLICAS, TOPIC_LEADERS, TOPIC_ISR_MIN, PRODUCER_STATES),
    *(REPLICAS, UNDER_REPLICATED, UNDER_MIN_ISR, AT_MIN_ISR, OUT_OF_SERVICE, UNCOMMITTED),
    *(LEADER_CHANGES, ISR_SHRINKS, ISR_EXPANDS, FOLLOWER_LAG, FOLLOWER_BEHIND, FOLLOWER_AWAY),
    *(PRODUCED, PRODUCE_REFUSED, FETCHED, FETCH_REFUSED, PRODUCE_WAITING, PRODUCE_BYTES),
    *(PRODUCE_BYTES_MAX, PRODUCE_OVERLOADS, FETCH_BYTES, FETCH_BYTES_MAX, FETCH_WAITING),
    *(STREAMS, CUT_OFF, FLUSHES, FLUSH_FAILURES, CLEANED, CLEANED_READ, CLEANED_WRITTEN),
    *(CLEANING, DISK_FREE, DISK_TOTAL, DISK_UNFIT, DAMAGE_FOUND, KEPT_RECORDS, CONFLICTS),
    *(REPLICAS_DELETED, LOGS_CUT, REPLICAS_SET_ASIDE, STRAYS_REMOVED, STRAYS, STRAY_BYTES),
    *(LOG_STARTS_MOVED,),
)


class FollowerFacts(NamedTuple):
    """One follower of one partition; None: not known, it has not reported in this epoch."""

    broker: int
    lag: int | None
    behind_ms: int | None
    connected: bool


class PartitionFacts(NamedTuple):
    """One replica on this broker."""

    topic: str
    role: str
    replicas: int
    isr: int
    min_insync: int
    log_bytes: int
    segments: int
    producers: int
    uncommitted: int = 0
    followers: tuple[FollowerFacts, ...] = ()


class DiskFacts(NamedTuple):
    """One data folder; below 0: not measured yet."""

    path: str
    free_bytes: int
    total_bytes: int
    unfit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """A broker at one moment."""

    counts: BrokerCounts
    partitions: Sequence[PartitionFacts] = ()
    disks: Sequence[DiskFacts] = ()
    streams: Mapping[str, int] = field(default_factory=dict)
    cut_off: int = 0
    out_of_service: int = 0
    produce_waiting: int = 0
    produce_bytes: int = 0
    produce_bytes_max: int = 0
    produce_overloads: int = 0
    fetch_bytes: int = 0
    fetch_bytes_max: int = 0
    fetch_waiting: int = 0
    compaction_passes: int = 0
    compaction_read_bytes: int = 0
    compaction_written_bytes: int = 0
    is_compacting: bool = False
    strays: int = 0
    stray_bytes: int = 0


def put_broker(page: Page, view: BrokerView) -> None:
    """Fill the families of a broker."""
    shown = view.counts.traffic.shown()
    _put_traffic(page, shown, view.counts.traffic.other)
    _put_topics(page, view.partitions, shown)
    _put_replicas(page, view)
    _put_followers(page, view.partitions)
    _put_requests(page, view)
    _put_disks(page, view)


def _put_traffic(page: Page, shown: Mapping[str, Traffic], other: Traffic) -> None:
    # What nobody has written to or read is a line of nothing on every dashboard.
    used = any(getattr(other, each) for each in Traffic.__slots__)
    rest = [(OTHER, other)] if used else []
    for topic, traffic in [*shown.items(), *rest]:
        page.put(BYTES_IN, traffic.bytes_in, topic)
        page.put(RECORDS_IN, traffic.records_in, topic)
        page.put(BYTES_OUT, traffic.bytes_out, topic)
        page.put(RECORDS_OUT, traffic.records_out, topic)
        page.put(REPLICA_BYTES_IN, traffic.replica_bytes_in, topic)
        page.put(REPLICA_BYTES_OUT, traffic.replica_bytes_out, topic)


def _put_topics(
    page: Page, partitions: Sequence[PartitionFacts], shown: Mapping[str, Traffic]
) -> None:
    topics: dict[str, list[PartitionFacts]] = {}
    for each in partitions:
        topics.setdefault(each.topic if each.topic in shown else OTHER, []).append(each)
    for topic, replicas in topics.items():
        led = [each for each in replicas if each.role == "leader"]
        page.put(LOG_BYTES, sum(each.log_bytes for each in replicas), topic)
        page.put(LOG_SEGMENTS, sum(each.segments for each in replicas), topic)
        page.put(TOPIC_REPLICAS, len(replicas), topic)
        page.put(TOPIC_LEADERS, len(led), topic)
        page.put(PRODUCER_STATES, sum(each.producers for each in replicas), topic)
        if led:
            page.put(TOPIC_ISR_MIN, min(each.isr for each in led), topic)


def _put_replicas(page: Page, view: BrokerView) -> None:
    for role in _ROLES:
        page.put(REPLICAS, sum(each.role == role for each in view.partitions), role)
    led = [each for each in view.partitions if each.role == "leader"]
    page.put(UNDER_REPLICATED, sum(each.isr < each.replicas for each in led))
    page.put(UNDER_MIN_ISR, sum(each.isr < each.min_insync for each in led))
    page.put(AT_MIN_ISR, sum(each.isr == each.min_insync < each.replicas for each in led))
    page.put(OUT_OF_SERVICE, view.out_of_service)
    page.put(UNCOMMITTED, max((each.uncommitted for each in led), default=0))
    counts = view.counts
    page.put(LEADER_CHANGES, counts.became_leader, "leader")
    page.put(LEADER_CHANGES, counts.became_follower, "follower")
    page.put(ISR_SHRINKS, counts.isr_shrinks)
    page.put(ISR_EXPANDS, counts.isr_expands)


def _put_followers(page: Page, partitions: Sequence[PartitionFacts]) -> None:
    followers: dict[int, list[FollowerFacts]] = {}
    for partition in partitions:
        for each in partition.followers:
            followers.setdefault(each.broker, []).append(each)
    for broker, all_of_it in sorted(followers.items()):
        lag = max((each.lag or 0 for each in all_of_it), default=0)
        behind_ms = max((each.behind_ms or 0 for each in all_of_it), default=0)
        page.put(FOLLOWER_LAG, lag, str(broker))
        page.put(FOLLOWER_BEHIND, behind_ms / 1_000, str(broker))
        page.put(FOLLOWER_AWAY, sum(not each.connected for each in all_of_it), str(broker))


def _put_requests(page: Page, view: BrokerView) -> None:
    counts = view.counts
    for acks, times in counts.produced.items():
        page.put_times(PRODUCED, times, acks)
    for code, number in sorted(counts.produce_refused.items()):
        page.put(PRODUCE_REFUSED, number, code)
    page.put(FETCHED, counts.fetch_responses)
    for code, number in sorted(counts.fetch_refused.items()):
        page.put(FETCH_REFUSED, number, code)
    page.put(PRODUCE_WAITING, view.produce_waiting)
    page.put(PRODUCE_BYTES, view.produce_bytes)
    page.put(PRODUCE_BYTES_MAX, view.produce_bytes_max)
    page.put(PRODUCE_OVERLOADS, view.produce_overloads)
    page.put(FETCH_BYTES, view.fetch_bytes)
    page.put(FETCH_BYTES_MAX, view.fetch_bytes_max)
    page.put(FETCH_WAITING, view.fetch_waiting)
    for kind, number in sorted(view.streams.items()):
        page.put(STREAMS, number, kind)
    page.put(CUT_OFF, view.cut_off)


def _put_disks(page: Page, view: BrokerView) -> None:
    page.put_times(FLUSHES, view.counts.flushes.times)
    page.put(FLUSH_FAILURES, view.counts.flushes.failed)
    page.put(DAMAGE_FOUND, view.counts.damage_found)
    page.put(KEPT_RECORDS, view.counts.kept_records)
    page.put(CONFLICTS, view.counts.conflicts)
    _put_deletions(page, view)
    page.put(CLEANED, view.compaction_passes)
    page.put(CLEANED_READ, view.compaction_read_bytes)
    page.put(CLEANED_WRITTEN, view.compaction_written_bytes)
    page.put(CLEANING, view.is_compacting)
    for disk in view.disks:
        page.put(DISK_UNFIT, disk.unfit, disk.path)
        if disk.total_bytes >= 0:
            page.put(DISK_FREE, disk.free_bytes, disk.path)
            page.put(DISK_TOTAL, disk.total_bytes, disk.path)


def _put_deletions(page: Page, view: BrokerView) -> None:
    counts = view.counts
    page.put(REPLICAS_DELETED, counts.replicas_deleted)
    page.put(REPLICAS_SET_ASIDE, counts.replicas_set_aside)
    page.put(STRAYS_REMOVED, counts.strays_removed)
    page.put(STRAYS, view.strays)
    page.put(STRAY_BYTES, view.stray_bytes)
    page.put(LOG_STARTS_MOVED, counts.log_starts_moved)
    page.put(LOGS_CUT, counts.logs_cut)
