"""Settings that change while a broker runs: taken as a whole, told to those who asked."""

from __future__ import annotations

from tailrace.broker.live import LiveSettings
from tailrace.config import UNLIMITED, ClientConfig, LiveConfig, LogConfig


def test_what_is_set_is_in_force_and_what_is_no_longer_set_is_not() -> None:
    live = LiveSettings(LogConfig(retention_ms=5_000))
    assert live.broker == LiveConfig()
    assert live.log_defaults.retention_ms == 5_000
    live.update({"leader.replication.throttled.rate": "2048", "retention.ms": "77000"}, {})
    assert live.broker.replication_throttled_rate == 2_048
    assert live.log_defaults.retention_ms == 77_000
    live.update({}, {})
    assert live.broker.replication_throttled_rate == UNLIMITED
    assert live.log_defaults.retention_ms == 5_000


def test_a_client_has_its_own_settings_over_those_of_all() -> None:
    live = LiveSettings()
    assert live.client("anybody") == ClientConfig()
    live.update(
        {},
        {
            "default": {"producer_byte_rate": "1000", "request_rate": "10"},
            "copier": {"producer_byte_rate": "5000"},
        },
    )
    assert live.client("anybody") == ClientConfig(producer_byte_rate=1_000, request_rate=10)
    assert live.client("copier") == ClientConfig(producer_byte_rate=5_000, request_rate=10)


def test_observers_are_told_of_changes_and_of_nothing_else() -> None:
    live = LiveSettings()
    told: list[int] = []
    live.observe(lambda: told.append(live.broker.replication_throttled_rate))
    live.update({"leader.replication.throttled.rate": "2048"}, {})
    live.update({"leader.replication.throttled.rate": "2048"}, {})
    live.update({"leader.replication.throttled.rate": "4096"}, {})
    assert told == [2_048, 4_096]


def test_what_cannot_be_read_counts_as_not_given_and_the_rest_counts() -> None:
    said: list[str] = []
    live = LiveSettings(say=said.append)
    live.update(
        {"of.a.later.version": "1", "leader.replication.throttled.rate": "2048"},
        {"default": {"request_rate": "many"}},
    )
    assert live.broker.replication_throttled_rate == 2_048
    assert live.client("x") == ClientConfig()
    assert len(said) == 2
