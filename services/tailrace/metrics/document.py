"""docs/metrics.md, made from the declarations of the families: what is not declared is not shown.

`make metrics-doc` writes it anew; a unit test compares.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tailrace.metrics.broker import BROKER
from tailrace.metrics.client import CLIENT
from tailrace.metrics.common import COMMON
from tailrace.metrics.controller import CONTROLLER
from tailrace.metrics.coordinator import COORDINATOR
from tailrace.metrics.families import OTHER, Family
from tailrace.metrics.values import LATENCY_MS, TOPICS_SHOWN_MAX

Section = tuple[str, str, tuple[Family, ...]]

_PROCESS: Final = (
    "`process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_virtual_memory_bytes`, "
    "`process_open_fds`, `process_max_fds`, `process_start_time_seconds`"
)

_TOPICS: Final = (
    f"Per topic, not per partition. With more than {TOPICS_SHOWN_MAX} topics on a broker, those "
    f"that came last are shown together as `{OTHER}`."
)
_CLUSTER: Final = (
    "What begins with `cluster_` is shown by the active controller alone: `max` over all of them "
    "is the cluster's."
)
_LAG: Final = (
    "Lag is that of committed positions: of groups, and of named readers such as Spark queries. "
    "The ends of partitions are asked for every 10 seconds while metrics are served."
)
_CLIENT: Final = (
    "What a program's own producers and consumers show, when it registers a `ClientCollector`: see "
    "[clients.md](clients.md#metrics-of-a-program). Nothing is labelled by partition."
)
_BUCKETS: Final = ", ".join(f"{ms / 1_000:g}" for ms in LATENCY_MS)

_HEAD: Final = f"""\
# Metrics

Made from the code by `make metrics-doc`; a test compares. How to have them served:
`metrics.listeners` in [operations.md](operations.md#metrics-and-health).

Everything is prefixed `tailrace_` and in base units (seconds, bytes). Gauges are read from the
service when it is scraped; counters begin at 0 with the process. Histograms have the buckets
{_BUCKETS} and +Inf seconds,
and count whole milliseconds: what took less than one counts as 0.

Each process also has the usual {_PROCESS}.

"""


def document(*others: Section) -> str:
    """The whole page; `others` are of processes that this package does not know."""
    return _HEAD + "\n".join(_section(*each) for each in (*sections(), *others))


def sections() -> list[Section]:
    """A title, a few words and the families of each part of the page."""
    return [
        ("Every service", "", COMMON),
        ("Brokers", _TOPICS, BROKER),
        ("Controllers", _CLUSTER, CONTROLLER),
        ("Coordinators", _LAG, COORDINATOR),
        ("Clients", _CLIENT, CLIENT),
    ]


def _section(title: str, about: str, families: Iterable[Family]) -> str:
    lines = [f"## {title}\n"]
    if about:
        lines.append(f"{about}\n")
    lines += ["| name | kind | labels | what it is |", "|---|---|---|---|"]
    lines += [_row(each) for each in families]
    return "\n".join(lines) + "\n"


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    if family.bound:
        labels += f" ({family.bound})"
    return f"| `{family.sample_name}` | {family.kind} | {labels} | {family.about} |"
