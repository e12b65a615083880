"""What the quick run prints: figures, then ratios beside those that were stored."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from bench.figures import spread
from bench.quick.comparison import Mark, Verdict
from bench.quick.measured import Flow, Waits

WIDTH = 130
MB = 1e6
_STYLES = {Mark.FELL: "bold red", Mark.ROSE: "green", Mark.NEW: "dim", Mark.SAME: ""}


def show(
    flows: Mapping[str, Sequence[Flow]],
    waits: Mapping[str, Sequence[Waits]],
    verdicts: Sequence[Verdict],
) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(figures_table(flows, waits))
    console.print(ratios_table(verdicts))
    fallen = [each.ratio.name for each in verdicts if each.mark is Mark.FELL]
    console.print(f"fell by more than the noise: {'; '.join(fallen) or 'nothing'}")


def figures_table(
    flows: Mapping[str, Sequence[Flow]], waits: Mapping[str, Sequence[Waits]]
) -> Table:
    table = _table(
        "Figures (waits in ms)",
        "what",
        "MB/s",
        "range",
        "CPU-s/GB brokers",
        "client",
        "p50",
        "p99",
    )
    for name, rounds in flows.items():
        speed = spread([each.bytes_per_s / MB for each in rounds])
        table.add_row(
            name,
            f"{speed.median:.0f}",
            f"{speed.low:.0f}..{speed.high:.0f}",
            f"{spread([each.server_cpu_s_per_gb for each in rounds]).median:.2f}",
            f"{spread([each.client_cpu_s_per_gb for each in rounds]).median:.2f}",
        )
    for name, found in waits.items():
        p50 = spread([each.p50_ms for each in found])
        p99 = spread([each.p99_ms for each in found])
        table.add_row(name, "", "", "", "", f"{p50.median:.2f}", f"{p99.median:.2f}")
    return table


def ratios_table(verdicts: Sequence[Verdict]) -> Table:
    title = "Ratios to the bare ground (gain: how much better than stored)"
    table = _table(title, "what", "measure", "now", "stored", "gain", "noise", "mark")
    for each in verdicts:
        table.add_row(
            each.ratio.workload,
            each.ratio.measure,
            f"{each.ratio.value:.3f}",
            "" if each.stored is None else f"{each.stored:.3f}",
            "" if each.gain is None else f"{each.gain:+.0%}",
            f"{each.noise:.0%}",
            each.mark.value,
            style=_STYLES[each.mark],
        )
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title)
    for heading in headings:
        left = heading in {"what", "measure", "mark"}
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading == "what")
    return table
