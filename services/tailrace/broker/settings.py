"""The settings of a broker: addresses, leases, limits. Frozen, validated, units in the names."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.broker.disks import DiskLimits
from tailrace.broker.quotas import NO_LIMIT, Rates
from tailrace.config import SAMPLE_RATIO, FolderConfig, LogConfig, TraceSettings
from tailrace.errors import InvalidConfig

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What one broker is told at its start."""

    broker_id: int
    listen: str = "127.0.0.1:9092"
    link_listen: str = "127.0.0.1:9093"
    control_listen: str = "127.0.0.1:9095"
    # What others are told to connect to; empty: the address listened on.
    advertised: str = ""
    link_advertised: str = ""
    control_advertised: str = ""
    # Orders are taken on the client port too, from controllers that know no other. For upgrades.
    control_on_client_port: bool = False
    # Where /metrics, /livez and /readyz are served; empty: nowhere.
    metrics_listen: str = ""
    # A turn of the event loop that takes longer is named in the log, with its stack.
    loop_stall_warn_ms: int = 250
    # Where traces go (OTLP over HTTP), and the share of frames that have one; empty: nowhere.
    otel_endpoint: str = ""
    otel_sample_ratio: float = SAMPLE_RATIO
    rack: str = ""
    # What this life of the broker runs in, a pod say: whoever sees that end can have it fenced.
    instance: str = ""
    lease_ttl_ms: int = 5_000
    health_interval_ms: int = 1_000
    replica_lag_time_max_ms: int = 10_000
    checkpoint_interval_ms: int = 5_000
    flush_interval_ms: int = 30_000
    controlled_shutdown_timeout_ms: int = 10_000
    # How often logs are looked at for what is too old or too much, and for what is to compact.
    retention_check_interval_ms: int = 30_000
    cleaner_backoff_ms: int = 15_000
    # What a compaction reads and writes.
    cleaner_io_bytes_per_s: int = 64 * _MIB
    # All that is durable is read to find rot, so often, no faster than that.
    scrub_interval_ms: int = 24 * 60 * 60 * 1_000
    scrub_io_bytes_per_s: int = 8 * _MIB
    # A wall clock that has jumped ahead, or was just met, is believed after so long.
    retention_clock_settle_ms: int = 600_000
    # A replica that was set aside is kept for so long; -1: until a person says otherwise.
    stray_retention_ms: int = 7 * 24 * 60 * 60 * 1_000
    # Bytes of produce requests that wait for their replicas, over all connections and in one.
    produce_bytes_max: int = 256 * _MIB
    connection_bytes_max: int = 64 * _MIB
    # The batches of one produce request.
    socket_request_max_bytes: int = 32 * _MIB
    # Connections of clients, in all and from one address, and streams in one of them.
    max_connections: int = 1_000
    max_connections_per_ip: int = 1_000
    max_streams_per_connection: int = 2_000
    # Over all connections: calls and streams at a time, and bytes received and not delivered.
    max_streams: int = 20_000
    queued_max_request_bytes: int = 512 * _MIB
    # A stream on which nothing is said is closed; one whose client takes nothing is cut off.
    connections_max_idle_ms: int = 600_000
    client_stall_timeout_ms: int = 30_000
    link_stall_timeout_ms: int = 30_000
    # One pushed frame of a replica link, and one response of a fetch stream, gather this much.
    link_frame_bytes: int = 1 * _MIB
    fetch_response_bytes: int = 2 * _MIB
    # How much credit a fetching client can have outstanding.
    fetch_credit_bytes_max: int = 256 * _MIB
    # Bytes that were read for clients and not yet taken by them, over all streams.
    fetch_bytes_max: int = 64 * _MIB
    # Reads at a time of what may have to come from the disk: for clients, and for followers.
    fetch_cold_reads_max: int = 4
    link_cold_reads_max: int = 2
    # What a client id may have in a second where nothing is set for it; -1: no limit.
    quota_producer_default: int = NO_LIMIT
    quota_consumer_default: int = NO_LIMIT
    quota_request_default: int = NO_LIMIT
    # Less room than this on the disk of a folder: leaders there refuse records.
    log_dir_min_free_bytes: int = 100 * _MIB
    # How often disks are looked at, and when their syncs count as slow, and as quick again.
    disk_probe_interval_ms: int = 1_000
    disk_slow_ms: int = 2_000
    disk_slow_recovery_ms: int = 30_000
    # For drills: a file that says which disks are slow, full or broken (`log.disk_faults`).
    debug_disk_faults: str = ""
    folders: FolderConfig = field(default_factory=FolderConfig)
    log_defaults: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.broker_id < 2**31:
            raise InvalidConfig(f"broker.id must be from 0 to 2147483647, not {self.broker_id}")
        for name in ("lease_ttl_ms", "health_interval_ms", "replica_lag_time_max_ms"):
            if getattr(self, name) < 100:
                raise InvalidConfig(f"{name.replace('_', '.')} must be at least 100 ms")

    @property
    def tracing(self) -> TraceSettings:
        return TraceSettings(self.otel_endpoint, self.otel_sample_ratio)

    @property
    def disk_limits(self) -> DiskLimits:
        return DiskLimits(
            min_free_bytes=self.log_dir_min_free_bytes,
            slow_ms=self.disk_slow_ms,
            recovery_ms=self.disk_slow_recovery_ms,
        )

    @property
    def quota_defaults(self) -> Rates:
        return Rates(
            self.quota_producer_default, self.quota_consumer_default, self.quota_request_default
        )
