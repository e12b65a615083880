"""The settings of the services: their names, what they mean, and how they are read.

The tables here and the dataclasses of the services say the same (a test compares them). Texts come
from `cli.settings`; what is bad is refused in one sentence that says where it was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from tailrace.broker.settings import BrokerSettings
from tailrace.cli.setting_kinds import (
    Address,
    Addresses,
    Collector,
    Flag,
    Kind,
    Own,
    Rate,
    Share,
    Text,
    Whole,
)
from tailrace.cli.settings import Effective, Given, Known
from tailrace.config import (
    LogConfig,
    SettingFacts,
    broker_configs,
    broker_setting_facts,
    log_setting_facts,
)
from tailrace.controller.settings import ControllerSettings
from tailrace.coordinator.settings import CoordinatorSettings
from tailrace.errors import InvalidConfig
from tailrace.meta.settings import EtcdSettings
from tailrace.model import GROUP_SHARDS

_INT31_MAX: Final = 2**31 - 1
_KIB: Final = 1 << 10
# A request above the limit is answered as long as it is at most twice as large (transport.rpc).
_REQUEST_BYTES_MAX: Final = 35 << 20
_SHOWN_CHARACTERS_MAX: Final = 120

_ID: Final = Whole(0, _INT31_MAX)
_FILE: Final = Text("the path of a file")

_METRICS: Final = Own(
    "metrics.listeners",
    "metrics_listen",
    Address(optional=True),
    "where /metrics, /livez and /readyz are served; nowhere when it is empty",
)
_STALLS: Final = Own(
    "loop.stall.warn.ms",
    "loop_stall_warn_ms",
    Whole(50),
    "a turn of the event loop that takes longer is named in the log, with its stack",
)
_TRACES: Final = Own(
    "otel.endpoint",
    "otel_endpoint",
    Collector(),
    "where traces go (needs the extra `otel`); nothing is traced when it is empty",
)

_ETCD: Final = (
    Own("etcd.endpoints", "endpoints", Addresses(), "the servers of etcd"),
    Own("etcd.namespace", "namespace", Text("a prefix"), "goes before every key in etcd"),
    Own("etcd.timeout.ms", "timeout_ms", Whole(50), "how long one call to etcd may take"),
    Own("etcd.username", "username", Text(), "who to log in to etcd as"),
    Own("etcd.password", "password", Text(), "with this password", secret=True),
    Own("etcd.password.file", "password_file", _FILE, "or with the password in this file"),
    Own("etcd.ca.file", "ca_file", _FILE, "TLS to etcd: whom to trust (PEM)"),
    Own("etcd.cert.file", "cert_file", _FILE, "TLS to etcd: our certificate (PEM)"),
    Own("etcd.key.file", "key_file", _FILE, "TLS to etcd: our private key (PEM)"),
    Own(
        "etcd.server.name",
        "server_name",
        Text("a host name"),
        "the name in etcd's certificate, where it is not that of the endpoint",
    ),
)

_BROKER: Final = (
    Own("broker.id", "broker_id", _ID, "the number of this broker", required=True),
    Own("listeners", "listen", Address(), "where clients connect"),
    Own("link.listeners", "link_listen", Address(), "where other brokers fetch replicas"),
    Own("control.listeners", "control_listen", Address(), "where controllers connect, only they"),
    Own(
        "advertised.listeners",
        "advertised",
        Address(optional=True),
        "what clients are told instead of `listeners`",
    ),
    Own(
        "advertised.link.listeners",
        "link_advertised",
        Address(optional=True),
        "what brokers are told instead of `link.listeners`",
    ),
    Own(
        "advertised.control.listeners",
        "control_advertised",
        Address(optional=True),
        "what controllers are told instead of `control.listeners`",
    ),
    Own(
        "control.on.client.port",
        "control_on_client_port",
        Flag(),
        "orders are taken on `listeners` too: while controllers of an older version still run",
    ),
    _METRICS,
    _STALLS,
    _TRACES,
    Own(
        "otel.sample.ratio",
        "otel_sample_ratio",
        Share(),
        "the share of requests and responses that are traced when the client does not say",
    ),
    Own("broker.rack", "rack", Text(), "the rack or zone; replicas are spread over racks"),
    Own("broker.instance", "instance", Text(), "what it runs in (a pod's id): names one life"),
    Own(
        "broker.lease.ttl.ms",
        "lease_ttl_ms",
        Whole(1_000),
        "how long a broker that is not heard of stays registered (whole seconds count)",
    ),
    Own("health.interval.ms", "health_interval_ms", Whole(100), "how often it says it is well"),
    Own(
        "replica.lag.time.max.ms",
        "replica_lag_time_max_ms",
        Whole(100),
        "a follower that was not at the end of the log for this long leaves the ISR",
    ),
    Own(
        "checkpoint.interval.ms",
        "checkpoint_interval_ms",
        Whole(),
        "how often high watermarks and recovery points are written down",
    ),
    Own("flush.interval.ms", "flush_interval_ms", Whole(), "how often all logs are synced to disk"),
    Own(
        "controlled.shutdown.timeout.ms",
        "controlled_shutdown_timeout_ms",
        Whole(0),
        "how long SIGTERM waits for leaderships to be handed over",
    ),
    Own(
        "log.retention.check.interval.ms",
        "retention_check_interval_ms",
        Whole(),
        "how often logs are looked at for records that are too old or too many",
    ),
    Own(
        "log.retention.clock.settle.ms",
        "retention_clock_settle_ms",
        Whole(0),
        "a clock that jumped ahead, or was just met, makes nothing old until it is steady so long",
    ),
    Own(
        "stray.retention.ms",
        "stray_retention_ms",
        Whole(-1),
        "how long a replica that was set aside is kept; -1: until a person says otherwise",
    ),
    Own(
        "log.cleaner.backoff.ms",
        "cleaner_backoff_ms",
        Whole(),
        "how long compaction waits when no log is dirty enough",
    ),
    Own(
        "log.cleaner.io.max.bytes.per.second",
        "cleaner_io_bytes_per_s",
        Whole(_KIB),
        "what compaction reads and writes",
    ),
    Own(
        "log.scrub.interval.ms",
        "scrub_interval_ms",
        Whole(1),
        "how often all that is durable is read and verified",
    ),
    Own(
        "log.scrub.io.max.bytes.per.second",
        "scrub_io_bytes_per_s",
        Whole(_KIB),
        "how fast that is done at most",
    ),
    Own(
        "produce.bytes.max",
        "produce_bytes_max",
        Whole(_KIB),
        "bytes of produce requests that wait for replicas, over all connections",
    ),
    Own("connection.bytes.max", "connection_bytes_max", Whole(_KIB), "the same for one connection"),
    Own(
        "socket.request.max.bytes",
        "socket_request_max_bytes",
        Whole(_KIB, _REQUEST_BYTES_MAX),
        "the largest produce request that is taken, in bytes of its batches",
    ),
    Own("max.connections", "max_connections", Whole(), "connections of clients, in all"),
    Own(
        "max.connections.per.ip",
        "max_connections_per_ip",
        Whole(),
        "connections of clients from one address",
    ),
    Own(
        "max.streams.per.connection",
        "max_streams_per_connection",
        Whole(),
        "calls and streams at a time on one connection; more wait at the client",
    ),
    Own(
        "max.streams",
        "max_streams",
        Whole(),
        "the same over all connections; beyond it, who has most is refused",
    ),
    Own(
        "queued.max.request.bytes",
        "queued_max_request_bytes",
        Whole(_REQUEST_BYTES_MAX),
        "bytes that were received and not delivered, over all connections; the same holds",
    ),
    Own(
        "connections.max.idle.ms",
        "connections_max_idle_ms",
        Whole(1_000),
        "a connection, or a stream, on which nothing is said for this long is closed",
    ),
    Own(
        "client.stall.timeout.ms",
        "client_stall_timeout_ms",
        Whole(100),
        "a client that takes nothing of what is sent to it for this long is cut off",
    ),
    Own(
        "link.stall.timeout.ms",
        "link_stall_timeout_ms",
        Whole(100),
        "the same for a follower; it connects again",
    ),
    Own("link.frame.bytes", "link_frame_bytes", Whole(_KIB), "bytes of one frame to a follower"),
    Own(
        "fetch.response.bytes",
        "fetch_response_bytes",
        Whole(_KIB),
        "bytes of one response to a reader",
    ),
    Own(
        "fetch.credit.bytes.max",
        "fetch_credit_bytes_max",
        Whole(_KIB),
        "how far ahead a reader may ask",
    ),
    Own(
        "fetch.bytes.max",
        "fetch_bytes_max",
        Whole(_KIB),
        "bytes that were read for clients and that they have not taken yet, over all connections",
    ),
    Own(
        "fetch.cold.reads.max",
        "fetch_cold_reads_max",
        Whole(),
        "reads at a time, for clients, of what may have to come from the disk",
    ),
    Own("link.cold.reads.max", "link_cold_reads_max", Whole(), "the same for followers"),
    Own(
        "quota.producer.default",
        "quota_producer_default",
        Rate(),
        "bytes a second that a client id may write to this broker where nothing is set for it",
    ),
    Own("quota.consumer.default", "quota_consumer_default", Rate(), "the same for reading"),
    Own(
        "quota.request.default",
        "quota_request_default",
        Rate(),
        "requests a second of a client id where nothing is set for it",
    ),
    Own(
        "log.dir.min.free.bytes",
        "log_dir_min_free_bytes",
        Whole(0),
        "with less room on the disk of a data folder, leaders on it refuse records; with half "
        "of that, followers on it stop",
    ),
    Own("disk.probe.interval.ms", "disk_probe_interval_ms", Whole(10), "how often disks are tried"),
    Own(
        "disk.slow.ms",
        "disk_slow_ms",
        Whole(),
        "a disk whose syncs take this long, three times in a row, is one to lead nothing on",
    ),
    Own(
        "disk.slow.recovery.ms",
        "disk_slow_recovery_ms",
        Whole(0),
        "until all of them were quicker for this long",
    ),
    Own(
        "debug.disk.faults",
        "debug_disk_faults",
        _FILE,
        "for drills: lines of `slow FOLDER MS`, `full FOLDER`, `fail FOLDER` in this file "
        "make a disk so",
    ),
)

_CONTROLLER: Final = (
    Own("controller.id", "controller_id", _ID, "the number of this controller", required=True),
    Own("controller.listeners", "listen", Address(), "where brokers and clients connect"),
    Own(
        "controller.advertised.listeners",
        "advertised",
        Address(optional=True),
        "what they are told instead of `controller.listeners`",
    ),
    _METRICS,
    _STALLS,
    _TRACES,
    Own(
        "controller.lease.ttl.ms",
        "lease_ttl_ms",
        Whole(1_000),
        "how long a controller that is not heard of stays the active one (whole seconds count)",
    ),
    Own(
        "broker.lease.ttl.ms",
        "broker_lease_ttl_ms",
        Whole(1_000),
        "what the brokers have: the time over which a mass failure is looked at twice",
    ),
    Own(
        "standby.probe.ms",
        "standby_probe_ms",
        Whole(),
        "how often one that stands by looks after the active one",
    ),
    Own(
        "health.silence.ms",
        "health_silence_ms",
        Whole(),
        "a health stream that says nothing for this long is opened anew",
    ),
    Own(
        "health.answer.ms",
        "health_answer_ms",
        Whole(),
        "how long a broker has to answer whether it is there",
    ),
    Own("probe.timeout.ms", "probe_timeout_ms", Whole(), "how long one try to connect may take"),
    Own(
        "probe.again.ms",
        "probe_again_ms",
        Whole(),
        "a refused connection counts when it is refused again after this long",
    ),
    Own("order.timeout.ms", "order_timeout_ms", Whole(), "how long one order to a broker may take"),
    Own("retry.backoff.ms", "retry_ms", Whole(), "the first pause before something is repeated"),
    Own("retry.backoff.max.ms", "retry_max_ms", Whole(), "the longest such pause"),
    Own(
        "replica.retry.backoff.max.ms",
        "replica_retry_max_ms",
        Whole(),
        "the longest pause before a broker is told again what to do with a failed replica",
    ),
    Own(
        "request.timeout.ms",
        "request_timeout_ms",
        Whole(),
        "a request that waits for etcd fails after this long",
    ),
    Own(
        "picture.hold.ms",
        "picture_hold_ms",
        Whole(),
        "how long news for clients waits for new leaders to have their orders",
    ),
    Own("settle.ms", "settle_ms", Whole(), "how long an answer waits for leaders to have orders"),
    Own(
        "offsets.topic.num.partitions",
        "group_shards",
        Whole(1, GROUP_SHARDS),
        "shards of consumer groups, chosen when the first coordinator comes and never changed",
    ),
    Own(
        "default.replication.factor",
        "default_replication_factor",
        Whole(1, 100),
        "replicas of a topic that does not say",
    ),
    Own(
        "auto.create.topics.enable",
        "auto_create_topics_enable",
        Flag(),
        "make topics that producers write to and that are not there",
    ),
    Own(
        "num.partitions",
        "num_partitions",
        Whole(1, 10_000),
        "partitions of a topic that is made so",
    ),
    Own(
        "auto.leader.rebalance.enable",
        "auto_leader_rebalance_enable",
        Flag(),
        "let preferred replicas lead again where a broker leads too few of those that prefer it",
    ),
    Own(
        "leader.imbalance.per.broker.percentage",
        "leader_imbalance_per_broker_percentage",
        Whole(0, 100),
        "how many of these, in percent, it may not lead",
    ),
    Own(
        "leader.imbalance.check.interval.ms",
        "leader_imbalance_check_interval_ms",
        Whole(),
        "how often that is looked at",
    ),
    Own(
        "reassignment.partitions.per.broker",
        "reassignment_partitions_per_broker",
        Whole(1, 10_000),
        "partitions that a broker copies at the same time when replicas move",
    ),
)

_COORDINATOR: Final = (
    Own(
        "coordinator.id",
        "coordinator_id",
        Whole(0, _INT31_MAX),
        "the coordinator's number",
        required=True,
    ),
    Own("coordinator.listeners", "listen", Address(), "where clients connect"),
    Own(
        "coordinator.advertised.listeners",
        "advertised",
        Address(optional=True),
        "what clients are told to connect to",
    ),
    _METRICS,
    _STALLS,
    _TRACES,
    Own("coordinator.lease.ms", "lease_ttl_ms", Whole(1_000), "its lease in etcd"),
    Own(
        "coordinator.health.interval.ms",
        "health_interval_ms",
        Whole(),
        "how often it tells the controller that it is there",
    ),
    Own(
        "coordinator.request.timeout.ms",
        "request_timeout_ms",
        Whole(),
        "how long an answer waits for its records to be on all replicas",
    ),
    Own(
        "coordinator.loading.wait.ms",
        "loading_wait_ms",
        Whole(),
        "how long a request waits for its shard to be read",
    ),
    Own("coordinator.loads.max", "loads_max", Whole(1, 50), "shards read at the same time"),
    Own(
        "coordinator.load.bytes.max",
        "load_bytes_max",
        Whole(64 * _KIB),
        "what may be on its way from brokers while shards are read",
    ),
    Own(
        "coordinator.parked.max",
        "parked_max",
        Whole(),
        "answers of one shard that wait for its log",
    ),
    Own(
        "group.min.session.timeout.ms",
        "session_timeout_min_ms",
        Whole(),
        "the shortest session that a member may ask for",
    ),
    Own(
        "group.max.session.timeout.ms",
        "session_timeout_max_ms",
        Whole(),
        "the longest session that a member may ask for",
    ),
    Own("group.max.size", "group_max_size", Whole(), "members of one group"),
    Own(
        "group.bytes.max",
        "group_bytes_max",
        Whole(1, 2 << 20),
        "metadata, and assignments, of all members of a group",
    ),
    Own(
        "group.initial.rebalance.delay.ms",
        "group_initial_rebalance_delay_ms",
        Whole(0),
        "how long an empty group waits for more members",
    ),
    Own("groups.max", "groups_max", Whole(), "groups in one shard, of which there are 50"),
    Own("group.joins.max", "group_joins_max", Whole(), "members of one group that wait to join"),
    Own(
        "offset.metadata.max.bytes",
        "offset_metadata_max_bytes",
        Whole(),
        "words that a client may store with a position",
    ),
    Own(
        "offsets.retention.minutes",
        "offsets_retention_minutes",
        Whole(),
        "how long positions of a group without members are kept",
    ),
    Own(
        "offsets.retention.check.interval.ms",
        "offsets_retention_check_interval_ms",
        Whole(),
        "how often old positions are looked for",
    ),
    Own(
        "offsets.retention.clock.settle.ms",
        "offsets_retention_clock_settle_ms",
        Whole(0),
        "a clock that jumped ahead, or was just met, makes no position old until steady so long",
    ),
)

_ABOUT: Final = {
    "log.dirs": "the data folders, with commas between",
    "num.recovery.threads.per.data.dir": "threads that recover logs after a crash",
    "open.files.max": "how many files of logs are held open (at most half of `ulimit -n`)",
    "index.cache.bytes": "memory for indexes",
    "log.cleaner.dedupe.buffer.size": "memory for compaction",
    "segment.bytes": "a segment that has grown to this is closed",
    "segment.ms": "or one that is this old",
    "segment.index.bytes": "or one whose index has grown to this",
    "index.interval.bytes": "bytes between two entries of an index",
    "max.message.bytes": "the largest batch that is taken",
    "retention.ms": "records older than this may go",
    "retention.bytes": "what a partition holds beyond this may go",
    "cleanup.policy": "what happens to old records",
    "delete.retention.ms": "how long compaction keeps tombstones",
    "min.compaction.lag.ms": "compaction leaves younger records alone",
    "min.cleanable.dirty.ratio": "compact when this share of a log is new",
    "flush": "`ack`: a replica reports only what is synced to its disk",
    "producer.id.expiration.ms": "how long an idle producer is remembered",
    "message.timestamp.type": "whose time records bear",
    "message.timestamp.before.max.ms": "records whose time is further in the past are refused",
    "message.timestamp.after.max.ms": "records whose time is further in the future are refused",
    "batch.validation": "how far the leader looks into batches: `structure` does not decompress",
}

BROKER_FLAGS: Final = (
    "broker.id",
    "listeners",
    "link.listeners",
    "advertised.listeners",
    "advertised.link.listeners",
    "broker.rack",
    "log.dirs",
    "etcd.endpoints",
)
CONTROLLER_FLAGS: Final = (
    "controller.id",
    "controller.listeners",
    "controller.advertised.listeners",
    "etcd.endpoints",
)

COORDINATOR_FLAGS: Final = (
    "coordinator.id",
    "coordinator.listeners",
    "coordinator.advertised.listeners",
    "etcd.endpoints",
)


def broker_known() -> tuple[Known, ...]:
    """Every setting of a broker."""
    return (
        *_known(_BROKER, _BROKER_DEFAULTS),
        *_etcd_known(),
        *_logs_known(broker_setting_facts()),
    )


def controller_known() -> tuple[Known, ...]:
    """Every setting of a controller; those of logs are what topics have that say nothing else."""
    own = _known(_CONTROLLER, _CONTROLLER_DEFAULTS)
    return (*own, *_etcd_known(), *_logs_known(log_setting_facts()))


def coordinator_known() -> tuple[Known, ...]:
    """Every setting of a coordinator."""
    return (*_known(_COORDINATOR, _COORDINATOR_DEFAULTS), *_etcd_known())


def broker_settings(settings: Effective) -> tuple[BrokerSettings, EtcdSettings]:
    """What the texts mean; InvalidConfig for the first one that is bad."""
    _require_all(settings)
    folders, log_defaults = _log_configs(settings, broker_setting_facts())
    own = _fields(settings, _BROKER)
    made = BrokerSettings(**own, folders=folders, log_defaults=log_defaults)
    return made, EtcdSettings(**_fields(settings, _ETCD))


def controller_settings(settings: Effective) -> tuple[ControllerSettings, EtcdSettings]:
    """What the texts mean; InvalidConfig for the first one that is bad."""
    _require_all(settings)
    _, log_defaults = _log_configs(settings, log_setting_facts())
    made = ControllerSettings(**_fields(settings, _CONTROLLER), log_defaults=log_defaults)
    return made, EtcdSettings(**_fields(settings, _ETCD))


def coordinator_settings(settings: Effective) -> tuple[CoordinatorSettings, EtcdSettings]:
    """What the texts mean; InvalidConfig for the first one that is bad."""
    _require_all(settings)
    made = CoordinatorSettings(**_fields(settings, _COORDINATOR))
    return made, EtcdSettings(**_fields(settings, _ETCD))


def etcd_known() -> tuple[Known, ...]:
    """Every setting that says how etcd is reached."""
    return _etcd_known()


def etcd_settings(settings: Effective) -> EtcdSettings:
    """What the texts mean; InvalidConfig for the first one that is bad."""
    return EtcdSettings(**_fields(settings, _ETCD))


def settings_table(known: tuple[Known, ...]) -> str:
    """The settings as a table for a document."""
    rows = ["| name | default | allowed | what it is |", "|---|---|---|---|"]
    for each in known:
        names = ", ".join(f"`{name}`" for name in each.names)
        default = "must be given" if each.required else f"`{each.default}`" if each.default else ""
        rows.append(f"| {names} | {default} | {each.allowed} | {each.about} |")
    return "\n".join(rows) + "\n"


def _defaults(kind: type[Any]) -> dict[str, object]:
    return {each.name: each.default for each in fields(kind)}


_BROKER_DEFAULTS: Final = _defaults(BrokerSettings)
_CONTROLLER_DEFAULTS: Final = _defaults(ControllerSettings)
_COORDINATOR_DEFAULTS: Final = _defaults(CoordinatorSettings)
_ETCD_DEFAULTS: Final = _defaults(EtcdSettings)


def _known(table: tuple[Own, ...], defaults: Mapping[str, object]) -> tuple[Known, ...]:
    return tuple(
        Known(
            name=own.name,
            about=own.about,
            allowed=str(own.kind),
            default="" if own.required else _text(defaults[own.field]),
            secret=own.secret,
            required=own.required,
        )
        for own in table
    )


def _etcd_known() -> tuple[Known, ...]:
    return _known(_ETCD, _ETCD_DEFAULTS)


def _logs_known(facts: tuple[SettingFacts, ...]) -> tuple[Known, ...]:
    return tuple(
        Known(
            name=each.name,
            about=_ABOUT[each.name],
            allowed=each.allowed,
            default=each.default,
            other_names=each.other_names,
        )
        for each in facts
    )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _require_all(settings: Effective) -> None:
    for known in settings.known:
        if known.required and known.name not in settings.given:
            raise InvalidConfig(
                f"{known.name} is not set, and there is no default for it: give the flag "
                f"--{known.name.replace('.', '-')}, a variable, or a line in a --config file"
            )


def _fields(settings: Effective, table: tuple[Own, ...]) -> dict[str, Any]:
    """The fields that were given a value."""
    return {
        own.field: _parse(own.kind, given)
        for own in table
        for given in settings.given.get(own.name, [])
    }


def _parse(kind: Kind, given: Given) -> object:
    try:
        return kind.parse(given.text)
    except (ValueError, InvalidConfig):
        shown = repr(given.text)
        if len(shown) > _SHOWN_CHARACTERS_MAX:
            shown = shown[:_SHOWN_CHARACTERS_MAX] + "…"
        raise InvalidConfig(
            f"{given.origin}: the setting {given.name!r} is {shown}; allowed is {kind}"
        ) from None


def _log_configs(settings: Effective, facts: tuple[SettingFacts, ...]) -> tuple[Any, LogConfig]:
    texts: dict[str, str] = {}
    for each in facts:
        for given in settings.given.get(each.name, []):
            try:
                broker_configs({given.name: given.text})
            except InvalidConfig as error:
                raise InvalidConfig(f"{given.origin}: {error}") from None
            texts[given.name] = given.text
    return broker_configs(texts)
