"""The settings of a consumer: Kafka's names with underscores, checked when they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Final, TypedDict

from tailrace.client.assignors import Assignor, assignors_for
from tailrace.client.fetch_plan import EARLIEST, LATEST
from tailrace.client.settings import UNKNOWN_TOPIC_WAIT_MS
from tailrace.client.unreadable import RAISE, check_on_corrupt
from tailrace.config import TraceSettings
from tailrace.errors import InvalidConfig

NONE: Final = "none"
FETCH_BYTES_MIN: Final = 64 << 10
_RESETS: Final = (EARLIEST, LATEST, NONE)


class ConsumerOptions(TypedDict, total=False):
    """What a consumer can be told; see `ConsumerSettings` for the defaults."""

    group_id: str | None
    group_instance_id: str | None
    client_id: str
    auto_offset_reset: str
    on_corrupt: str
    enable_auto_commit: bool | None
    auto_commit_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    max_poll_records: int
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    max_partition_fetch_bytes: int
    default_api_timeout_ms: int
    unknown_topic_wait_ms: int
    partition_assignment_strategy: str | Assignor | Sequence[str | Assignor]
    otel_endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How a consumer reads, and what it is in its group."""

    group_id: str | None = None
    group_instance_id: str | None = None
    client_id: str = ""
    auto_offset_reset: str = LATEST
    # At a stored batch that cannot be decoded: raise UnreadableBatch, or pass over it.
    on_corrupt: str = RAISE
    # None: on in a group, off without one.
    enable_auto_commit: bool | None = None
    auto_commit_interval_ms: int = 5_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 32 << 20
    fetch_max_wait_ms: int = 500
    max_partition_fetch_bytes: int = 1 << 20
    default_api_timeout_ms: int = 60_000
    unknown_topic_wait_ms: int = UNKNOWN_TOPIC_WAIT_MS
    partition_assignment_strategy: str | Assignor | Sequence[str | Assignor] = "cooperative-sticky"
    # Where traces go (OTLP over HTTP; empty: nowhere). Brokers say what of it is traced.
    otel_endpoint: str = ""

    @classmethod
    def of(cls, options: dict[str, Any]) -> ConsumerSettings:
        """From what a program gave; InvalidConfig names what is not known."""
        known = [each.name for each in fields(cls)]
        for name in options:
            if name not in known:
                close = get_close_matches(name.replace(".", "_"), known, 1)
                meant = f"; do you mean {close[0]}?" if close else ""
                raise InvalidConfig(f"a consumer has no setting {name}{meant}")
        return cls(**options)

    def __post_init__(self) -> None:
        if self.auto_offset_reset not in _RESETS:
            raise InvalidConfig(
                f"auto_offset_reset={self.auto_offset_reset!r} must be one of {', '.join(_RESETS)}"
            )
        check_on_corrupt("on_corrupt", self.on_corrupt)
        if not self.group_id and (self.enable_auto_commit or self.group_instance_id):
            raise InvalidConfig(
                "enable_auto_commit and group_instance_id need a group: give group_id"
            )
        for name in ("group_id", "group_instance_id", "client_id"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise InvalidConfig(f"{name}={value!r} must be text")
        assignors_for(self.partition_assignment_strategy)
        self._check_numbers()
        TraceSettings(self.otel_endpoint)
        if self.heartbeat_interval_ms * 2 > self.session_timeout_ms:
            raise InvalidConfig(
                f"heartbeat_interval_ms={self.heartbeat_interval_ms} must be at most half of "
                f"session_timeout_ms={self.session_timeout_ms}: one lost heartbeat is no death"
            )

    def _check_numbers(self) -> None:
        for name, lowest, highest in (
            ("auto_commit_interval_ms", 1, 2**31 - 1),
            ("session_timeout_ms", 100, 2**31 - 1),
            ("heartbeat_interval_ms", 10, 2**31 - 1),
            ("max_poll_interval_ms", 100, 2**31 - 1),
            ("max_poll_records", 1, 2**31 - 1),
            ("fetch_min_bytes", 1, self.fetch_max_bytes),
            ("fetch_max_bytes", FETCH_BYTES_MIN, 2**40),
            ("fetch_max_wait_ms", 1, 600_000),
            ("max_partition_fetch_bytes", 1, 2**31 - 1),
            ("default_api_timeout_ms", 1, 2**31 - 1),
            ("unknown_topic_wait_ms", 0, 2**31 - 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or not lowest <= value <= highest:
                raise InvalidConfig(f"{name}={value!r} must be a number from {lowest} to {highest}")

    @property
    def is_auto_commit(self) -> bool:
        """Whether positions are committed by themselves."""
        if self.enable_auto_commit is None:
            return bool(self.group_id)
        return self.enable_auto_commit

    @property
    def tracing(self) -> TraceSettings:
        return TraceSettings(self.otel_endpoint)

    @property
    def assignors(self) -> tuple[Assignor, ...]:
        return assignors_for(self.partition_assignment_strategy)
