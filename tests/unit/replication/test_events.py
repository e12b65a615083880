"""Events and effects are values: frozen, compared by what they hold, and all in their union."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest

from tailrace.model import Offset
from tailrace.replication import events

EVENTS = get_args(events.Event)
EFFECTS = get_args(events.Effect)


@pytest.mark.parametrize("kind", [*EVENTS, *EFFECTS], ids=lambda kind: kind.__name__)
def test_they_are_frozen_values_with_named_fields(kind: type) -> None:
    assert dataclasses.is_dataclass(kind)
    assert "__slots__" in vars(kind)
    assert all(each.kw_only for each in dataclasses.fields(kind))
    assert (kind.__doc__ or "").strip()


def test_every_value_is_either_an_event_or_an_effect() -> None:
    values = {each for each in vars(events).values() if dataclasses.is_dataclass(each)}
    assert values - {events.StoredState} == {*EVENTS, *EFFECTS}
    assert not {*EVENTS} & {*EFFECTS}


def test_they_do_not_change() -> None:
    moved = events.MoveHighWatermark(offset=Offset(3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        moved.offset = Offset(4)  # type: ignore[misc]
    assert moved == events.MoveHighWatermark(offset=Offset(3))
