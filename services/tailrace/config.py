"""The settings of a log and of a data folder: names, units, limits, defaults.

Settings come as text under Kafka's names; in here they are typed values with their unit in the
field's name. Nothing reads a file or the environment here. Invariant: a LogConfig or FolderConfig
that exists is within its limits, however it was made.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, replace
from enum import StrEnum
from typing import ClassVar, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from tailrace.errors import InvalidConfig

UNLIMITED: Final = -1
LOG_DIRS_MAX: Final = 64
SHOWN_CHARACTERS_MAX: Final = 120
_NEAREST_SHOWN: Final = 3
# Settings of a topic that are no log's: its replicas go by them.
MIN_INSYNC: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.recovery"
LAST_LEADER: Final = "last-leader"
REPLICA_SETTINGS: Final = frozenset({MIN_INSYNC, UNCLEAN})
# The share of produce requests and responses that are traced, where anything is.
SAMPLE_RATIO: Final = 0.01

_TRACES_PATH: Final = "/v1/traces"
_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_GIB: Final = 1024 * _MIB
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_DAY_MS: Final = 24 * _HOUR_MS
_REPLICAS_FOR_TWO_INSYNC: Final = 3
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


def checked_min_insync(config: Mapping[str, str], *, replicas: int) -> int:
    """`min.insync.replicas` of a topic: as set, else 2 where there are 3 replicas, else 1.

    InvalidConfig when a topic of so many replicas cannot have it.
    """
    text = config.get(MIN_INSYNC)
    if text is None:
        return 2 if replicas >= _REPLICAS_FOR_TWO_INSYNC else 1
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= replicas:
        raise InvalidConfig(
            f"the setting {MIN_INSYNC!r} is {text!r}; allowed is a whole number from 1 to "
            f"{replicas}, the number of replicas"
        )
    return int(text)


def min_insync_of(config: Mapping[str, str], *, replicas: int) -> int:
    """`min.insync.replicas` of a topic that is there, whatever is stored: controllers, brokers and
    tools must all see the same number, or what one has committed another may give up.
    """
    text = config.get(MIN_INSYNC, "")
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        return checked_min_insync({}, replicas=replicas)
    return max(1, min(int(text), replicas))


class CleanupPolicy(StrEnum):
    """What happens to old records: dropped by age and size, by key, or both."""

    DELETE = "delete"
    COMPACT = "compact"
    DELETE_AND_COMPACT = "delete,compact"

    @property
    def deletes(self) -> bool:
        return self is not CleanupPolicy.COMPACT

    @property
    def compacts(self) -> bool:
        return self is not CleanupPolicy.DELETE


class Flush(StrEnum):
    """When appended data is forced to the disk: by the page cache, or before it is reported."""

    NONE = "none"
    ACK = "ack"


class TimestampType(StrEnum):
    """Whose time a record bears: that of its producer or that of the log."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class BatchValidation(StrEnum):
    """How far a leader looks into a batch before it takes it.

    `STRUCTURE` checks of a compressed body only what can be seen without decompressing it.
    """

    FULL = "full"
    STRUCTURE = "structure"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How one log keeps its records. -1 (UNLIMITED) in a retention means: never."""

    segment_bytes: int = _GIB
    segment_ms: int = 7 * _DAY_MS
    segment_index_bytes: int = 10 * _MIB
    index_interval_bytes: int = 4 * _KIB
    max_message_bytes: int = 8 * _MIB
    retention_ms: int = 7 * _DAY_MS
    retention_bytes: int = UNLIMITED
    cleanup_policy: CleanupPolicy = CleanupPolicy.DELETE
    delete_retention_ms: int = _DAY_MS
    min_compaction_lag_ms: int = 0
    min_cleanable_dirty_ratio: float = 0.5
    flush: Flush = Flush.NONE
    producer_id_expiration_ms: int = _DAY_MS
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    # How far a producer's time may be from the broker's, in the past and in the future.
    message_timestamp_before_max_ms: int = _INT64_MAX
    message_timestamp_after_max_ms: int = _INT64_MAX
    batch_validation: BatchValidation = BatchValidation.FULL

    def __post_init__(self) -> None:
        _require_allowed(self, _LOG_SETTINGS)

    @classmethod
    def from_settings(
        cls,
        settings: Mapping[str, str],
        base: LogConfig | None = None,
        *,
        others: Iterable[str] = (),
    ) -> LogConfig:
        """Return `base` (the defaults) with `settings` applied; InvalidConfig when one is bad.

        The error names what could have been meant, of `others` too, which somebody else reads.
        A topic's name (`retention.ms`) goes before a broker's (`log.retention.ms`), and a finer
        unit before a coarser one (`.ms`, `.minutes`, `.hours`); all of them must be good.
        """
        return _changed(base or cls(), _read(settings, _LOG_SETTINGS, others))

    def settings(self) -> dict[str, str]:
        """Return all settings under their topic-level names: `from_settings` gives this back."""
        return _written(self, _LOG_SETTINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderConfig:
    """How a broker uses its data folders and what all logs in them share."""

    log_dirs: tuple[str, ...] = ("data",)
    num_recovery_threads_per_data_dir: int = 1
    open_files_max: int = 4_096
    index_cache_bytes: int = 64 * _MIB
    cleaner_dedupe_buffer_bytes: int = 128 * _MIB

    def __post_init__(self) -> None:
        _require_allowed(self, _FOLDER_SETTINGS)

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, str], base: FolderConfig | None = None
    ) -> FolderConfig:
        """Return `base` (the defaults) with `settings` applied; InvalidConfig when one is bad."""
        return _changed(base or cls(), _read(settings, _FOLDER_SETTINGS))

    def settings(self) -> dict[str, str]:
        return _written(self, _FOLDER_SETTINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveConfig:
    """What can be changed at a broker while it runs, besides the defaults of its logs."""

    # Bytes a second that a leader pushes, in all, to replicas that a reassignment adds.
    replication_throttled_rate: int = UNLIMITED

    def __post_init__(self) -> None:
        _require_allowed(self, _LIVE_SETTINGS)

    def settings(self) -> dict[str, str]:
        return _written(self, _LIVE_SETTINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """The quotas of a client: what each broker lets it have. -1 (UNLIMITED): no limit."""

    producer_byte_rate: int = UNLIMITED
    consumer_byte_rate: int = UNLIMITED
    request_rate: int = UNLIMITED

    def __post_init__(self) -> None:
        _require_allowed(self, _CLIENT_SETTINGS)

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, str], base: ClientConfig | None = None
    ) -> ClientConfig:
        """Return `base` (no limits) with `settings` applied; InvalidConfig when one is bad."""
        return _changed(base or cls(), _read(settings, _CLIENT_SETTINGS))

    def settings(self) -> dict[str, str]:
        return _written(self, _CLIENT_SETTINGS)


def live_configs(
    settings: Mapping[str, str], log_base: LogConfig | None = None
) -> tuple[LiveConfig, LogConfig]:
    """Split a broker's live settings into its own and its logs' defaults, applied to the base."""
    values = _read(settings, _LIVE_SETTINGS + _LOG_SETTINGS)
    own = {setting.field for setting in _LIVE_SETTINGS}
    return (
        _changed(LiveConfig(), {name: values[name] for name in values if name in own}),
        _changed(log_base or LogConfig(), {n: values[n] for n in values if n not in own}),
    )


def broker_configs(settings: Mapping[str, str]) -> tuple[FolderConfig, LogConfig]:
    """Split the settings of a broker into those of its folders and its logs' defaults."""
    values = _read(settings, _FOLDER_SETTINGS + _LOG_SETTINGS)
    of_folder = {setting.field for setting in _FOLDER_SETTINGS}
    return (
        _changed(FolderConfig(), {name: values[name] for name in values if name in of_folder}),
        _changed(LogConfig(), {name: values[name] for name in values if name not in of_folder}),
    )


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Where spans go (empty: nowhere, nothing is traced), and how many frames have some."""

    endpoint: str = ""
    ratio: float = SAMPLE_RATIO

    def __post_init__(self) -> None:
        check_endpoint(self.endpoint)
        if not 0 <= self.ratio <= 1:
            raise InvalidConfig(f"the sample ratio of traces is from 0 to 1, not {self.ratio}")

    @property
    def url(self) -> str:
        """Where they are sent: below an address without a path, OTLP has one of its own."""
        has_path = urlsplit(self.endpoint).path.strip("/")
        return self.endpoint if has_path else self.endpoint.rstrip("/") + _TRACES_PATH


def check_endpoint(endpoint: str) -> None:
    """InvalidConfig unless it is empty or the URL of a collector."""
    if not endpoint:
        return
    try:
        parts = urlsplit(endpoint)
        is_good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise InvalidConfig(
            f"traces go to the URL of an OTLP/HTTP collector, such as http://127.0.0.1:4318, not "
            f"to {endpoint!r}"
        )


class SettingFacts(NamedTuple):
    """What people are told of a setting: its names, what it can be, what it is when not given."""

    name: str
    other_names: tuple[str, ...]
    allowed: str
    default: str


def broker_setting_facts() -> tuple[SettingFacts, ...]:
    """All settings that `broker_configs` takes, those of the folders first."""
    defaults = {**FolderConfig().settings(), **LogConfig().settings()}
    return _facts(_FOLDER_SETTINGS + _LOG_SETTINGS, defaults)


def live_setting_facts() -> tuple[SettingFacts, ...]:
    """All settings that `live_configs` takes."""
    return (*_facts(_LIVE_SETTINGS, LiveConfig().settings()), *log_setting_facts())


def client_setting_facts() -> tuple[SettingFacts, ...]:
    """All settings of clients."""
    return _facts(_CLIENT_SETTINGS, ClientConfig().settings())


def log_setting_facts() -> tuple[SettingFacts, ...]:
    """Those of them that a log has."""
    of_logs = {setting.name for setting in _LOG_SETTINGS}
    return tuple(facts for facts in broker_setting_facts() if facts.name in of_logs)


class _Dataclass(Protocol):
    """Any dataclass. Its fields are checked when it is made, by the domains of their settings."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


C = TypeVar("C", bound=_Dataclass)


class _Domain(Protocol):
    """The values a setting can have. `parse` raises ValueError; `allows` takes any object."""

    def parse(self, text: str) -> object: ...

    def allows(self, value: object) -> bool: ...

    def __str__(self) -> str:
        """Say which values are allowed."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """A whole number in a range; -1 too where it means that there is no limit."""

    low: int
    high: int
    unlimited: bool = False

    def parse(self, text: str) -> int:
        if re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII) is None:
            raise ValueError
        return int(text)

    def allows(self, value: object) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return self.low <= value <= self.high or (self.unlimited and value == UNLIMITED)

    def __str__(self) -> str:
        allowed = f"a whole number from {self.low} to {self.high}"
        return f"{allowed}, or -1 for no limit" if self.unlimited else allowed

    def counted_in(self, factor: int) -> _Whole:
        """Return the same range in larger units."""
        return _Whole(-(-self.low // factor), self.high // factor, self.unlimited)


@dataclass(frozen=True, slots=True)
class _Share:
    def parse(self, text: str) -> float:
        if re.fullmatch(r"[0-9]*\.?[0-9]+(?:[eE]-?[0-9]{1,3})?", text, re.ASCII) is None:
            raise ValueError
        return float(text)

    def allows(self, value: object) -> bool:
        return isinstance(value, int | float) and 0 <= value <= 1

    def __str__(self) -> str:
        return "a number from 0 to 1"


@dataclass(frozen=True, slots=True)
class _Choice:
    options: type[StrEnum]

    def parse(self, text: str) -> StrEnum:
        return self.options(text)

    def allows(self, value: object) -> bool:
        return isinstance(value, self.options)

    def __str__(self) -> str:
        return "one of " + ", ".join(repr(str(option)) for option in self.options)


@dataclass(frozen=True, slots=True)
class _Policy(_Choice):
    """Like a choice, but the two parts of a combination may come in any order."""

    def parse(self, text: str) -> StrEnum:
        parts = {part.strip() for part in text.split(",")}
        return self.options(",".join(sorted(parts, reverse=True)))


@dataclass(frozen=True, slots=True)
class _Paths:
    """One or more folders, separated by commas."""

    def parse(self, text: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split(","))

    def allows(self, value: object) -> bool:
        return (
            isinstance(value, tuple)
            and 0 < len(value) <= LOG_DIRS_MAX
            and len(set(value)) == len(value)
            and all(_is_path(part) for part in value)
        )

    def __str__(self) -> str:
        return f"1 to {LOG_DIRS_MAX} different folders, separated by commas"


def _is_path(value: object) -> bool:
    return (
        isinstance(value, str)
        and value == value.strip() != ""
        and "," not in value
        and "\0" not in value
    )


@dataclass(frozen=True, slots=True)
class _Alias:
    """Another name of a setting; its number counts in units of `factor`."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    field: str
    domain: _Domain
    aliases: tuple[_Alias, ...] = ()


_LOG_SETTINGS: Final = (
    _Setting(
        "segment.bytes", "segment_bytes", _Whole(_KIB, _INT32_MAX), (_Alias("log.segment.bytes"),)
    ),
    _Setting(
        "segment.ms",
        "segment_ms",
        _Whole(1, _INT64_MAX),
        (
            _Alias("log.segment.ms"),
            _Alias("log.roll.ms"),
            _Alias("log.roll.hours", _HOUR_MS),
        ),
    ),
    _Setting(
        "segment.index.bytes",
        "segment_index_bytes",
        _Whole(64, _GIB),
        (_Alias("log.index.size.max.bytes"),),
    ),
    _Setting(
        "index.interval.bytes",
        "index_interval_bytes",
        _Whole(0, _GIB),
        (_Alias("log.index.interval.bytes"),),
    ),
    _Setting(
        "max.message.bytes", "max_message_bytes", _Whole(1, _GIB), (_Alias("message.max.bytes"),)
    ),
    _Setting(
        "retention.ms",
        "retention_ms",
        _Whole(0, _INT64_MAX, unlimited=True),
        (
            _Alias("log.retention.ms"),
            _Alias("log.retention.minutes", _MINUTE_MS),
            _Alias("log.retention.hours", _HOUR_MS),
        ),
    ),
    _Setting(
        "retention.bytes",
        "retention_bytes",
        _Whole(0, _INT64_MAX, unlimited=True),
        (_Alias("log.retention.bytes"),),
    ),
    _Setting(
        "cleanup.policy", "cleanup_policy", _Policy(CleanupPolicy), (_Alias("log.cleanup.policy"),)
    ),
    _Setting(
        "delete.retention.ms",
        "delete_retention_ms",
        _Whole(0, _INT64_MAX),
        (_Alias("log.cleaner.delete.retention.ms"),),
    ),
    _Setting(
        "min.compaction.lag.ms",
        "min_compaction_lag_ms",
        _Whole(0, _INT64_MAX),
        (_Alias("log.cleaner.min.compaction.lag.ms"),),
    ),
    _Setting(
        "min.cleanable.dirty.ratio",
        "min_cleanable_dirty_ratio",
        _Share(),
        (_Alias("log.cleaner.min.cleanable.ratio"),),
    ),
    _Setting("flush", "flush", _Choice(Flush), (_Alias("log.flush"),)),
    _Setting("producer.id.expiration.ms", "producer_id_expiration_ms", _Whole(1, _INT64_MAX)),
    _Setting(
        "message.timestamp.type",
        "message_timestamp_type",
        _Choice(TimestampType),
        (_Alias("log.message.timestamp.type"),),
    ),
    _Setting(
        "message.timestamp.before.max.ms",
        "message_timestamp_before_max_ms",
        _Whole(0, _INT64_MAX),
        (_Alias("log.message.timestamp.before.max.ms"),),
    ),
    _Setting(
        "message.timestamp.after.max.ms",
        "message_timestamp_after_max_ms",
        _Whole(0, _INT64_MAX),
        (_Alias("log.message.timestamp.after.max.ms"),),
    ),
    _Setting(
        "batch.validation",
        "batch_validation",
        _Choice(BatchValidation),
        (_Alias("log.batch.validation"),),
    ),
)

_FOLDER_SETTINGS: Final = (
    _Setting("log.dirs", "log_dirs", _Paths(), (_Alias("log.dir"),)),
    _Setting(
        "num.recovery.threads.per.data.dir", "num_recovery_threads_per_data_dir", _Whole(1, 64)
    ),
    _Setting("open.files.max", "open_files_max", _Whole(16, 1_000_000)),
    _Setting("index.cache.bytes", "index_cache_bytes", _Whole(_KIB, 64 * _GIB)),
    _Setting(
        "log.cleaner.dedupe.buffer.size", "cleaner_dedupe_buffer_bytes", _Whole(_KIB, 64 * _GIB)
    ),
)


_LIVE_SETTINGS: Final = (
    _Setting(
        "leader.replication.throttled.rate",
        "replication_throttled_rate",
        _Whole(_KIB, _INT64_MAX, unlimited=True),
    ),
)

_CLIENT_SETTINGS: Final = (
    _Setting("producer_byte_rate", "producer_byte_rate", _Whole(1, _INT64_MAX, unlimited=True)),
    _Setting("consumer_byte_rate", "consumer_byte_rate", _Whole(1, _INT64_MAX, unlimited=True)),
    _Setting("request_rate", "request_rate", _Whole(1, _INT64_MAX, unlimited=True)),
)


def _facts(known: tuple[_Setting, ...], defaults: Mapping[str, str]) -> tuple[SettingFacts, ...]:
    return tuple(
        SettingFacts(
            setting.name,
            tuple(alias.name for alias in setting.aliases),
            str(setting.domain),
            defaults[setting.name],
        )
        for setting in known
    )


def _read(
    settings: Mapping[str, str], known: tuple[_Setting, ...], others: Iterable[str] = ()
) -> dict[str, object]:
    """Return the values of the fields that `settings` names."""
    names = {
        alias.name: (setting, alias)
        for setting in known
        for alias in (_Alias(setting.name), *setting.aliases)
    }
    parsed: dict[str, object] = {}
    for name, text in settings.items():
        if name not in names:
            raise InvalidConfig(_unknown(name, [*names, *others]))
        parsed[name] = _parse(*names[name], text)
    values: dict[str, object] = {}
    # `names` lists the names of each setting from the strongest to the weakest.
    for name, (setting, _) in names.items():
        if name in parsed:
            values.setdefault(setting.field, parsed[name])
    return values


def _parse(setting: _Setting, alias: _Alias, text: str) -> object:
    domain = setting.domain
    if isinstance(domain, _Whole):
        domain = domain.counted_in(alias.factor)
    try:
        value = domain.parse(text.strip())
    except ValueError:
        raise InvalidConfig(_refusal(alias.name, text, domain)) from None
    if not domain.allows(value):
        raise InvalidConfig(_refusal(alias.name, text, domain))
    return value * alias.factor if isinstance(value, int) and value != UNLIMITED else value


def _changed(config: C, values: Mapping[str, object]) -> C:
    return replace(config, **values)


def _require_allowed(config: _Dataclass, known: tuple[_Setting, ...]) -> None:
    for setting in known:
        value = getattr(config, setting.field)
        if not setting.domain.allows(value):
            raise InvalidConfig(_refusal(setting.name, value, setting.domain))


def _written(config: _Dataclass, known: tuple[_Setting, ...]) -> dict[str, str]:
    return {setting.name: _text(getattr(config, setting.field)) for setting in known}


def _text(value: object) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _refusal(name: str, value: object, domain: _Domain) -> str:
    shown = repr(value)
    if len(shown) > SHOWN_CHARACTERS_MAX:
        shown = shown[:SHOWN_CHARACTERS_MAX] + "…"
    return f"the setting {name!r} is {shown}; allowed is {domain}"


def _unknown(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"there is no setting {name!r}; did you mean {near[0]!r}?"
    # A list of all would bury the one that was meant.
    nearest = difflib.get_close_matches(name, names, n=_NEAREST_SHOWN, cutoff=0.0)
    rest = f", and {len(names) - len(nearest)} more" if len(names) > len(nearest) else ""
    shown = ", ".join(map(repr, nearest))
    return f"there is no setting {name!r}; the nearest are {shown}{rest} (docs/operations.md)"
