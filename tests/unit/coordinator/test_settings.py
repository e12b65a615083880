"""Settings of a coordinator: what cannot be is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.coordinator.settings import CoordinatorSettings
from tailrace.errors import InvalidConfig


def test_limits_are_those_that_were_set() -> None:
    limits = CoordinatorSettings(
        coordinator_id=0, group_max_size=7, offsets_retention_minutes=2, groups_max=9
    ).limits
    assert (limits.group.members_max, limits.retention_ms, limits.groups_max) == (7, 120_000, 9)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"coordinator_id": -1}, "coordinator.id"),
        ({"lease_ttl_ms": 999}, "lease.ttl.ms"),
        ({"group_max_size": 0}, "group.max.size"),
        ({"session_timeout_min_ms": 9, "session_timeout_max_ms": 8}, "group.min.session.timeout"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        CoordinatorSettings(**{"coordinator_id": 1, **given})
