"""Draws plots: horizontal bars with their range, in panels. Runs in the environment of the peers.

python draw.py plots.json folder
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

OURS, PEER, LINE = "#00796b", "#b0bec5", "#c62828"
WIDTH_IN, BAR_IN, PANEL_IN = 9.0, 0.28, 0.75
DOTS = 110


def main() -> int:
    specification, folder = Path(sys.argv[1]), Path(sys.argv[2])
    for each in json.loads(specification.read_text(encoding="utf-8")):
        draw(each, folder / f"{each['file']}.png")
    return 0


def draw(plot: dict[str, Any], path: Path) -> None:
    panels = plot["panels"]
    heights = [len(panel["bars"]) * BAR_IN + PANEL_IN for panel in panels]
    figure, axes = plt.subplots(
        len(panels),
        1,
        figsize=(WIDTH_IN, sum(heights) + 0.4),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    figure.suptitle(plot["title"])
    # Lengths on a logarithmic axis mean something only beside others that begin at the same place.
    bounds = log_bounds(panels) if plot["log"] else None
    for panel, axis in zip(panels, axes[:, 0], strict=True):
        fill(axis, panel, bounds=bounds, line=plot.get("line"))
    figure.savefig(path, dpi=DOTS, metadata={"Software": None})
    plt.close(figure)


def log_bounds(panels: list[dict[str, Any]]) -> tuple[float, float]:
    figures = [bar[name] for each in panels for bar in each["bars"] for name in ("low", "high")]
    shown = [each for each in figures if each > 0] or [1.0]
    return min(shown) / 2, max(shown) * 3


def fill(
    axis: Any, panel: dict[str, Any], *, bounds: tuple[float, float] | None, line: float | None
) -> None:
    bars = panel["bars"]
    labels = [bar["label"] for bar in bars]
    values = [bar["value"] for bar in bars]
    below = [max(bar["value"] - bar["low"], 0.0) for bar in bars]
    above = [max(bar["high"] - bar["value"], 0.0) for bar in bars]
    colours = [OURS if bar["ours"] else PEER for bar in bars]
    places = range(len(bars))
    axis.barh(places, values, xerr=[below, above], color=colours, error_kw={"elinewidth": 0.8})
    axis.set_yticks(places, labels, fontsize=8)
    axis.invert_yaxis()
    axis.set_title(panel["title"], fontsize=9, loc="left")
    axis.tick_params(axis="x", labelsize=8)
    if bounds is not None:
        axis.set_xscale("log")
        axis.set_xlim(*bounds)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    if line is not None:
        axis.axvline(line, color=LINE, linewidth=1)
    for place, bar in enumerate(bars):
        value = bar["value"]
        axis.annotate(
            f" {value:,.3g}" if value < 1_000 else f" {value:,.0f}",
            # Behind the range, whose line would strike it out.
            (max(value, bar["high"], bounds[0] if bounds else 0), place),
            fontsize=7,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.9},
            va="center",
            xytext=(3, 0),
            textcoords="offset points",
        )
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


if __name__ == "__main__":
    sys.exit(main())
