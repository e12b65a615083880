"""Texts of settings: what each kind takes, refuses and says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.cli.setting_kinds import (
    Address,
    Addresses,
    Collector,
    Flag,
    Kind,
    Rate,
    Share,
    Text,
    Whole,
)
from tailrace.errors import TailraceError


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Whole(), "7", 7),
        (Whole(0, 9), "0", 0),
        (Rate(), "-1", -1),
        (Rate(), "5", 5),
        (Share(), "0.25", 0.25),
        (Share(), "1", 1.0),
        (Collector(), "http://otel:4318", "http://otel:4318"),
        (Collector(), "", ""),
        (Flag(), "true", True),
        (Flag(), "false", False),
        (Text(), "x y", "x y"),
        (Address(), "h:1", "h:1"),
        (Address(optional=True), "", ""),
        (Addresses(), "a:1, b:2", ("a:1", "b:2")),
    ],
)
def test_texts_become_values(kind: Kind, text: str, value: Any) -> None:
    assert kind.parse(text) == value
    assert str(kind)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Whole(), "0"),
        (Whole(0, 9), "10"),
        (Whole(), "x"),
        (Whole(), "-1"),
        (Rate(), "0"),
        (Share(), "1.5"),
        (Share(), "-0.5"),
        (Share(), "all"),
        (Collector(), "otel:4318"),
        (Flag(), "yes"),
        (Address(), ""),
        (Address(), "h"),
        (Addresses(), ","),
    ],
)
def test_what_it_cannot_be_is_refused(kind: Kind, text: str) -> None:
    with pytest.raises((ValueError, TailraceError)):
        kind.parse(text)
