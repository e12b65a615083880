"""Times as people say them on a command line. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from tailrace.errors import InvalidRequest

_AGO: Final = re.compile(r"(?P<number>[0-9]{1,15})(?P<unit>ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_moment(text: str, *, option: str, now_ms: int) -> int:
    """A time in ms: so long ago (`5m`, `2h`), or a moment in ISO 8601 (UTC unless it says)."""
    match = _AGO.fullmatch(text)
    if match is not None:
        return now_ms - int(match["number"]) * _UNIT_MS[match["unit"]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"{option} {text!r} is neither a time ago (30s, 5m, 2h, 7d) nor a moment "
            "(2026-01-31T12:00)"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
