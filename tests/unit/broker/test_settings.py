"""What a broker may be told at its start."""

from __future__ import annotations

import pytest

from tailrace.broker.settings import BrokerSettings
from tailrace.errors import InvalidConfig


def test_the_defaults_are_those_of_the_design() -> None:
    settings = BrokerSettings(broker_id=0)
    assert settings.lease_ttl_ms == 5_000
    assert settings.health_interval_ms == 1_000
    assert settings.replica_lag_time_max_ms == 10_000


@pytest.mark.parametrize("broker_id", [-1, 2**31])
def test_a_broker_id_is_a_number_of_31_bits(broker_id: int) -> None:
    with pytest.raises(InvalidConfig, match=r"broker\.id"):
        BrokerSettings(broker_id=broker_id)


def test_the_greatest_broker_id_is_taken() -> None:
    assert BrokerSettings(broker_id=2**31 - 1).broker_id == 2**31 - 1


def test_times_that_are_too_short_are_named() -> None:
    with pytest.raises(InvalidConfig, match=r"lease\.ttl\.ms"):
        BrokerSettings(broker_id=1, lease_ttl_ms=99)
    with pytest.raises(InvalidConfig, match=r"health\.interval\.ms"):
        BrokerSettings(broker_id=1, health_interval_ms=0)
    with pytest.raises(InvalidConfig, match=r"replica\.lag\.time\.max\.ms"):
        BrokerSettings(broker_id=1, replica_lag_time_max_ms=1)
