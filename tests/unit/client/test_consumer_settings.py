"""Settings of a consumer: defaults that work together, and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.client.consumer_settings import ConsumerSettings
from tailrace.errors import InvalidConfig


def test_defaults() -> None:
    assert not ConsumerSettings().is_auto_commit
    assert ConsumerSettings(group_id="g").is_auto_commit
    assert not ConsumerSettings(group_id="g", enable_auto_commit=False).is_auto_commit
    assert [each.name for each in ConsumerSettings().assignors] == ["cooperative-sticky"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"auto_offset_reset": "middle"}, "earliest, latest, none"),
        ({"enable_auto_commit": True}, "group_id"),
        ({"group_instance_id": "i"}, "group_id"),
        ({"heartbeat_interval_ms": 30_000}, "half of"),
        ({"fetch_max_bytes": 1}, "from 65536"),
        ({"max_poll_records": 0}, "from 1"),
        ({"partition_assignment_strategy": "best"}, "cooperative-sticky"),
        ({"max.poll.records": 5}, "max_poll_records"),
        ({"nonsense": 5}, "no setting nonsense"),
        ({"group_id": 5}, "group_id=5 must be text"),
        ({"client_id": None, "group_id": b"g"}, "group_id=b'g' must be text"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidConfig, match=told):
        ConsumerSettings.of(options)
