"""Values as Grafana writes them, for the units that the dashboards use. Pure.

What `getValueFormat` of Grafana 13 gives for these units is in the unit test, value by value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

COUNT_SCALES: Final = ("", "K", "M", "B", "T")
SHORT_SCALES: Final = ("", " K", " Mil", " Bil", " Tri")
BYTE_SCALES: Final = ("B", "KiB", "MiB", "GiB", "TiB")
RATE_SCALES: Final = ("B/s", "kB/s", "MB/s", "GB/s", "TB/s")
# Up to where a unit of time is used, how many seconds it has, its name.
TIMES: Final = (
    (1e-6, 1e-9, "ns"),
    (1e-3, 1e-6, "µs"),
    (1.0, 1e-3, "ms"),
    (60.0, 1.0, "s"),
    (3_600.0, 60.0, "mins"),
    (86_400.0, 3_600.0, "hours"),
    (math.inf, 86_400.0, "days"),
)
COUNT_PREFIX: Final = "count:"
COUNTED: Final = {"cps": "c/s", "reqps": "req/s", "ops": "ops/s"}
# From here on one digit more is told of a number.
NORM_MAX: Final = 2.25
DECIMALS_MAX: Final = 3


def formatted(unit: str, value: float, decimals: int | None = None) -> str:
    """With as many decimals as told, else as many as the size of the number suggests."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Inf"
    if unit == "percentunit":
        return fixed(value * 100, decimals) + "%"
    if unit == "s":
        return _time(value, decimals)
    if unit == "bytes":
        return _scaled(value, 1024, BYTE_SCALES, decimals, " ")
    if unit == "Bps":
        return _scaled(value, 1000, RATE_SCALES, decimals, " ")
    if unit == "short":
        return _scaled(value, 1000, SHORT_SCALES, decimals, "")
    if unit == "none":
        return fixed(value, decimals)
    counted = unit.removeprefix(COUNT_PREFIX) if unit.startswith(COUNT_PREFIX) else COUNTED[unit]
    return _scaled(value, 1000, COUNT_SCALES, decimals, "") + f" {counted}"


def fixed(value: float, decimals: int | None) -> str:
    places = _decimals(value) if decimals is None else decimals
    # Halves go up, as in a browser.
    return f"{math.floor(value * 10**places + 0.5) / 10**places:.{places}f}"


def ticks(unit: str, highest: float, *, count: int) -> list[float]:
    """Round values from 0 to at least the highest, so many steps or fewer."""
    if highest <= 0 or not math.isfinite(highest):
        highest = 1.0
    base = 1024.0 if unit == "bytes" and highest >= 1024 else 1.0
    scale = base ** int(math.log(highest, base)) if base > 1 else 1.0
    step = _round_up(highest / scale / count) * scale
    return [step * number for number in range(math.ceil(highest / step - 1e-9) + 1)]


def tick_text(unit: str, value: float) -> str:
    """With the fewest decimals that tell it as it is."""
    most = 2 if unit == "s" else DECIMALS_MAX
    texts = [formatted(unit, value, decimals) for decimals in range(most + 1)]
    return next(each for each in texts if _number(each) == _number(texts[-1]))


def _number(text: str) -> float:
    return float(text.partition(" ")[0].rstrip("KMBT%"))


def _round_up(step: float) -> float:
    size = 10.0 ** math.floor(math.log10(step))
    return next(each * size for each in (1, 2, 2.5, 5, 10) if each * size >= step * (1 - 1e-9))


def _decimals(value: float) -> int:
    if value == 0 or value % 1 == 0:
        return 0
    decimals = 1 - math.floor(math.log10(abs(value)))
    if abs(value) * 10.0**decimals > NORM_MAX:
        decimals += 1
    return max(0, decimals)


def _scaled(
    value: float, base: float, names: Sequence[str], decimals: int | None, between: str
) -> str:
    at = 0
    while abs(value) >= base and at < len(names) - 1:
        value, at = value / base, at + 1
    return fixed(value, decimals) + between + names[at]


def _time(value: float, decimals: int | None) -> str:
    if value == 0:
        return "0 s"
    size, name = next((size, name) for end, size, name in TIMES if abs(value) < end)
    # Ten digits are more than anybody is shown, and hide what a division leaves.
    return f"{fixed(round(value / size, 10), decimals)} {name}"
