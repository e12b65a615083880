"""Settings are checked when they are made."""

from __future__ import annotations

import pytest

from tailrace.controller.settings import ControllerSettings
from tailrace.errors import InvalidConfig


def test_defaults_are_good() -> None:
    settings = ControllerSettings(controller_id=1)
    assert (settings.lease_ttl_ms, settings.broker_lease_ttl_ms) == (3_000, 5_000)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("controller_id", -1, "controller.id"),
        ("controller_id", 2**31, "controller.id"),
        ("default_replication_factor", 0, "default.replication.factor"),
        ("lease_ttl_ms", 999, "lease.ttl.ms must be at least 1000 ms"),
        ("order_timeout_ms", 0, "order.timeout.ms must be at least 1 ms"),
    ],
)
def test_bad_values_are_refused(field: str, value: int, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        ControllerSettings(**{"controller_id": 1, field: value})  # type: ignore[arg-type]
