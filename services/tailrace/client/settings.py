"""The settings of a producer: Kafka's names with underscores, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Final, TypedDict

from tailrace.config import SAMPLE_RATIO, TraceSettings
from tailrace.errors import BatchTooLarge, InvalidConfig
from tailrace.record.codec import Compression

IN_FLIGHT_MAX: Final = 5
"""The broker remembers the last five batches of a producer: no more may be on their way."""

BATCH_BYTES: Final = 1024 * 1024
"""Under load a batch costs brokers and clients about the same, whatever its size."""

SMALLEST_LIMIT_BYTES: Final = 1_024
"""Requests and memory below this make no sense."""

RETRIES_MAX: Final = 2**31 - 1
"""As good as no limit: `delivery_timeout_ms` ends the retries."""

REQUEST_BYTES_MAX: Final = 32 * 1024 * 1024
"""No request is larger, with what stands around the batches well below what a broker reads."""

DELIVERY_TIMEOUT_MAX_MS: Final = 10 * 60 * 1000
"""A broker may forget a producer that was silent for 15 minutes; a retry must not come so late."""

UNKNOWN_TOPIC_WAIT_MS: Final = 5_000
"""How long a topic that no broker knows may take to appear: one just made is pushed at once."""

_ACKS: Final = {"0": 0, "1": 1, "all": -1, "-1": -1}
_COMPRESSIONS: Final = {
    "none": Compression.NONE,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}


class ProducerOptions(TypedDict, total=False):
    """What a producer can be told; see `ProducerSettings` for the defaults."""

    acks: int | str
    batch_size: int
    linger_ms: int
    buffer_memory: int
    max_block_ms: int
    unknown_topic_wait_ms: int
    max_request_size: int
    compression_type: str | None
    enable_idempotence: bool
    name: str | None
    delivery_timeout_ms: int
    request_timeout_ms: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    max_in_flight_requests_per_connection: int
    client_id: str
    expect_new: bool
    otel_endpoint: str
    otel_sample_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer gathers, sends and gives up."""

    acks: int | str = "all"
    batch_size: int = BATCH_BYTES
    linger_ms: int = 0
    buffer_memory: int = 64 * 1024 * 1024
    max_block_ms: int = 60_000
    unknown_topic_wait_ms: int = UNKNOWN_TOPIC_WAIT_MS
    max_request_size: int = 4 * 1024 * 1024
    compression_type: str | None = None
    enable_idempotence: bool = True
    name: str | None = None
    delivery_timeout_ms: int = 120_000
    request_timeout_ms: int = 30_000
    retries: int = RETRIES_MAX
    retry_backoff_ms: int = 50
    retry_backoff_max_ms: int = 1_000
    max_in_flight_requests_per_connection: int = IN_FLIGHT_MAX
    client_id: str = ""
    expect_new: bool = False
    # Where traces go (OTLP over HTTP; empty: nowhere), and the share of requests that have one.
    otel_endpoint: str = ""
    otel_sample_ratio: float = SAMPLE_RATIO

    @classmethod
    def of(cls, options: dict[str, Any]) -> ProducerSettings:
        """From what a program gave; InvalidConfig names what is not known.

        Idempotence, on by default, is off by itself when `acks` says that it cannot be.
        """
        known = [each.name for each in fields(cls)]
        for name in options:
            if name not in known:
                close = get_close_matches(name.replace(".", "_"), known, 1)
                meant = f"; do you mean {close[0]}?" if close else ""
                raise InvalidConfig(f"a producer has no setting {name}{meant}")
        if str(options.get("acks", "all")) in {"0", "1"} and not options.get("name"):
            options = {"enable_idempotence": False, **options}
        if "batch_size" not in options:
            # Who asks for small requests or little memory need not know of this one.
            limits = [options.get("max_request_size"), options.get("buffer_memory")]
            known_limits = [each for each in limits if isinstance(each, int)]
            size = max(min([BATCH_BYTES, *known_limits]), SMALLEST_LIMIT_BYTES)
            options = {**options, "batch_size": size}
        return cls(**options)

    def __post_init__(self) -> None:
        if str(self.acks) not in _ACKS:
            raise InvalidConfig(f"acks={self.acks!r} must be 0, 1 or 'all'")
        if (self.compression_type or "none") not in _COMPRESSIONS:
            raise InvalidConfig(
                f"compression_type={self.compression_type!r} must be 'none', 'lz4' or 'zstd'"
            )
        self._check_numbers()
        TraceSettings(self.otel_endpoint, self.otel_sample_ratio)
        if not 1 <= self.max_in_flight_requests_per_connection <= IN_FLIGHT_MAX:
            raise InvalidConfig(
                f"max_in_flight_requests_per_connection must be from 1 to {IN_FLIGHT_MAX}: "
                "the broker remembers no more batches of a producer"
            )
        if self.enable_idempotence and self.acks_number != -1:
            raise InvalidConfig("enable_idempotence needs acks='all'; turn one of them off")
        if self.name is not None and not self.enable_idempotence:
            raise InvalidConfig("a named producer is idempotent: leave enable_idempotence on")
        if self.expect_new and not self.enable_idempotence:
            raise InvalidConfig("expect_new needs the numbers of enable_idempotence")

    def _check_numbers(self) -> None:
        for name, lowest, highest in (
            ("max_request_size", SMALLEST_LIMIT_BYTES, REQUEST_BYTES_MAX),
            ("batch_size", 1, self.max_request_size),
            ("buffer_memory", self.batch_size, 2**40),
            ("linger_ms", 0, 60_000),
            ("max_block_ms", 0, 2**31 - 1),
            ("unknown_topic_wait_ms", 0, 2**31 - 1),
            ("request_timeout_ms", 1, 600_000),
            ("delivery_timeout_ms", 1, self._delivery_timeout_max_ms),
            ("retries", 0, RETRIES_MAX),
            ("retry_backoff_ms", 1, 60_000),
            ("retry_backoff_max_ms", self.retry_backoff_ms, 600_000),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or not lowest <= value <= highest:
                raise InvalidConfig(f"{name}={value!r} must be a number from {lowest} to {highest}")

    @property
    def _delivery_timeout_max_ms(self) -> int:
        return DELIVERY_TIMEOUT_MAX_MS if self.enable_idempotence else 2**31 - 1

    @property
    def acks_number(self) -> int:
        """0, 1 or -1 for all."""
        return _ACKS[str(self.acks)]

    @property
    def tracing(self) -> TraceSettings:
        return TraceSettings(self.otel_endpoint, self.otel_sample_ratio)

    @property
    def compression(self) -> Compression:
        return _COMPRESSIONS[self.compression_type or "none"]


def record_too_large(size: int, settings: ProducerSettings) -> BatchTooLarge:
    """The error for a record that is larger than any request may be, with what can be done."""
    limit = settings.max_request_size
    way = f"raise max_request_size (up to {REQUEST_BYTES_MAX})"
    if limit >= REQUEST_BYTES_MAX:
        way = "no request may be larger: cut it, or keep it elsewhere and send where it is"
    return BatchTooLarge(
        f"a record of {size} bytes is larger than max_request_size={limit}: {way}; "
        "max.message.bytes of its topic has to allow it too"
    )
