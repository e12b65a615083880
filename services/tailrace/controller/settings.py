"""The settings of a controller: addresses, leases, waits. Frozen, validated, units in the names."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from tailrace.config import LogConfig, TraceSettings
from tailrace.errors import InvalidConfig
from tailrace.model import GROUP_SHARDS

_WAIT_MIN_MS = 1
_LEASE_MIN_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """What one controller is told at its start."""

    controller_id: int
    listen: str = "127.0.0.1:9090"
    # What others are told to connect to; empty: the address listened on.
    advertised: str = ""
    # Where /metrics, /livez and /readyz are served; empty: nowhere.
    metrics_listen: str = ""
    # A turn of the event loop that takes longer is named in the log, with its stack.
    loop_stall_warn_ms: int = 250
    # Where traces go (OTLP over HTTP); empty: nowhere.
    otel_endpoint: str = ""
    lease_ttl_ms: int = 3_000
    # The lease of a broker: the window in which the damper counts, and how long it waits.
    broker_lease_ttl_ms: int = 5_000
    # How often one that stands by looks whether the active controller's process is there.
    standby_probe_ms: int = 200
    # A health stream on which nothing came for this long is opened anew.
    health_silence_ms: int = 5_000
    # One answer of a broker that is asked whether it is there.
    health_answer_ms: int = 1_500
    probe_timeout_ms: int = 500
    # A refused connection counts when it is refused again after this long.
    probe_again_ms: int = 20
    order_timeout_ms: int = 5_000
    retry_ms: int = 50
    retry_max_ms: int = 1_000
    # A replica that is out of service is asked for again after this long, and when it changes.
    replica_retry_max_ms: int = 30_000
    # A request that waits for the store (or for another request) fails after this long.
    request_timeout_ms: int = 5_000
    # How long clients' pictures wait for new leaders to have their orders.
    picture_hold_ms: int = 50
    # How long an answer waits for leaders to have their orders.
    settle_ms: int = 500
    default_replication_factor: int = 3
    # Make topics that producers write to and that are not there, with so many partitions.
    auto_create_topics_enable: bool = False
    num_partitions: int = 1
    # Let preferred replicas lead again where a broker leads too few of those that prefer it.
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_per_broker_percentage: int = 10
    leader_imbalance_check_interval_ms: int = 300_000
    # Partitions that a broker copies at the same time, to itself or from itself.
    reassignment_partitions_per_broker: int = 10
    # Shards of groups, and partitions of `__consumer_offsets`, in a cluster that has none yet.
    group_shards: int = GROUP_SHARDS
    log_defaults: LogConfig = field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.controller_id < 2**31:
            raise InvalidConfig(
                f"controller.id must be from 0 to 2147483647, not {self.controller_id}"
            )
        for what in (
            "default_replication_factor",
            "num_partitions",
            "reassignment_partitions_per_broker",
        ):
            if getattr(self, what) < 1:
                raise InvalidConfig(f"{what.replace('_', '.')} must be at least 1")
        if not 0 <= self.leader_imbalance_per_broker_percentage <= 100:
            raise InvalidConfig("leader.imbalance.per.broker.percentage must be from 0 to 100")
        if not 1 <= self.group_shards <= GROUP_SHARDS:
            raise InvalidConfig(f"offsets.topic.num.partitions must be from 1 to {GROUP_SHARDS}")
        for each in fields(self):
            if not each.name.endswith("_ms"):
                continue
            least = _LEASE_MIN_MS if "lease" in each.name else _WAIT_MIN_MS
            if getattr(self, each.name) < least:
                name = each.name.replace("_", ".")
                raise InvalidConfig(f"{name} must be at least {least} ms")

    @property
    def tracing(self) -> TraceSettings:
        return TraceSettings(self.otel_endpoint)
