"""The settings of a coordinator: address, lease, limits. Frozen, validated, units in the names."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tailrace.config import TraceSettings
from tailrace.coordinator.group import GroupLimits
from tailrace.coordinator.shard import ShardLimits
from tailrace.errors import InvalidConfig

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """What one coordinator is told at its start."""

    coordinator_id: int
    listen: str = "127.0.0.1:9094"
    # What others are told to connect to; empty: the address listened on.
    advertised: str = ""
    # Where /metrics, /livez and /readyz are served; empty: nowhere.
    metrics_listen: str = ""
    # A turn of the event loop that takes longer is named in the log, with its stack.
    loop_stall_warn_ms: int = 250
    # Where traces go (OTLP over HTTP); empty: nowhere.
    otel_endpoint: str = ""
    lease_ttl_ms: int = 5_000
    health_interval_ms: int = 1_000
    # An answer that waits for its records to be replicated, or for the shard to be read.
    request_timeout_ms: int = 10_000
    loading_wait_ms: int = 1_000
    # Shards that are read at the same time, and what may be on its way from brokers then.
    loads_max: int = 16
    load_bytes_max: int = 32 << 20
    # Answers of one shard that wait for its log.
    parked_max: int = 50_000
    session_timeout_min_ms: int = 1_000
    session_timeout_max_ms: int = 30 * _MINUTE_MS
    group_max_size: int = 1_000
    group_bytes_max: int = 2 << 20
    group_initial_rebalance_delay_ms: int = 100
    groups_max: int = 20_000
    group_joins_max: int = 5_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_minutes: int = 7 * 24 * 60
    offsets_retention_check_interval_ms: int = 10 * _MINUTE_MS
    # A wall clock that has jumped ahead, or was just met, makes no position old for so long.
    offsets_retention_clock_settle_ms: int = 10 * _MINUTE_MS

    def __post_init__(self) -> None:
        if not 0 <= self.coordinator_id < 2**31:
            raise InvalidConfig(
                f"coordinator.id must be from 0 to 2147483647, not {self.coordinator_id}"
            )
        for each in fields(self):
            if each.name in _MAY_BE_ZERO or isinstance(getattr(self, each.name), str):
                continue
            if getattr(self, each.name) < 1:
                raise InvalidConfig(f"{each.name.replace('_', '.')} must be at least 1")
        if self.lease_ttl_ms < 1_000:
            raise InvalidConfig("lease.ttl.ms must be at least 1000 ms")
        if self.session_timeout_min_ms > self.session_timeout_max_ms:
            raise InvalidConfig(
                "group.min.session.timeout.ms must not be above group.max.session.timeout.ms"
            )

    @property
    def tracing(self) -> TraceSettings:
        return TraceSettings(self.otel_endpoint)

    @property
    def limits(self) -> ShardLimits:
        return ShardLimits(
            group=GroupLimits(
                members_max=self.group_max_size,
                bytes_max=self.group_bytes_max,
                initial_delay_ms=self.group_initial_rebalance_delay_ms,
            ),
            groups_max=self.groups_max,
            joins_max=self.group_joins_max,
            session_min_ms=self.session_timeout_min_ms,
            session_max_ms=self.session_timeout_max_ms,
            metadata_bytes_max=self.offset_metadata_max_bytes,
            retention_ms=self.offsets_retention_minutes * _MINUTE_MS,
        )


_MAY_BE_ZERO = {
    "coordinator_id",
    "group_initial_rebalance_delay_ms",
    "offsets_retention_clock_settle_ms",
}
