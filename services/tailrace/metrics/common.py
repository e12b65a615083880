"""What every service shows: who it is, its process, its event loop, its calls to the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tailrace.metrics.families import Page, counter, gauge, histogram
from tailrace.metrics.values import Calls, Histogram

# A controller asks about once a second, whether it is active or stands by.
STORE_SILENCE_MAX_MS: Final = 10_000

BUILD = gauge("build_info", "Always 1: which service this is.", "role", "id", "version")
READY = gauge("ready", "1 when /readyz answers 200, else 0.")
WALL_TIME = gauge("wall_time_seconds", "What time it is, by the clock of this service.")
LOOP_LAG = histogram(
    "loop_lag_seconds", "How late the event loop came to a tick, four times a second."
)
LOOP_LAG_WORST = gauge(
    "loop_lag_worst_seconds", "The latest tick of the last minute (two at most)."
)
LOOP_STALLS = histogram(
    "loop_stall_seconds",
    "Turns of the event loop that were longer than loop.stall.warn.ms; the log has the stacks.",
)
LOOP_STALL_WORST = gauge(
    "loop_stall_worst_seconds", "The longest turn of the event loop since the start that counted."
)
SCRAPES = counter("scrapes", "Scrapes of /metrics that were answered.")
SCRAPE_TIME = gauge(
    "last_scrape_duration_seconds", "How long the scrape before this one took, here."
)
STORE_TIMES = histogram(
    "store_call_seconds",
    "Calls to etcd that were answered.",
    "call",
    bound="7: get, get_many, snapshot, txn, grant_lease, keep_alive, revoke_lease",
)
STORE_FAILED = counter(
    "store_call_failures",
    "Calls to etcd that failed or were not answered in time.",
    "call",
    bound="6, as above",
)
STORE_DISTRUSTED = gauge(
    "store_distrusted",
    "1 while the etcd that answers is empty, older or another than the one that was known.",
)
STORE_SILENCE = gauge("store_silence_seconds", "How long ago etcd last answered anything.")
LEASE_AGE = gauge(
    "lease_age_seconds",
    "How long ago the lease of this process was last renewed; not there without a lease.",
)

CALL_TIMES = histogram(
    "call_seconds",
    "Calls answered by this service; waits that were asked for are part of it.",
    "method",
    bound="one for each call that the service answers, at most 20",
)
CALL_FAILED = counter(
    "call_failures",
    "Calls that ended by an exception, or whose caller went away.",
    "method",
    bound="as above",
)
STREAMS_OPENED = counter(
    "streams_opened",
    "Streams that were opened to this service.",
    "method",
    bound="one for each kind of stream, at most 5",
)
STREAMS_OPEN = gauge("streams_open", "Streams that are open.", "method", bound="as above")
CONNECTIONS = gauge("connections", "Connections of clients with an open call or stream.")
CONNECTIONS_REFUSED = counter("connections_refused", "Connections refused by a limit.")

COMMON: Final = (
    BUILD,
    READY,
    WALL_TIME,
    LOOP_LAG,
    LOOP_LAG_WORST,
    LOOP_STALLS,
    LOOP_STALL_WORST,
    SCRAPES,
    SCRAPE_TIME,
    STORE_TIMES,
    STORE_FAILED,
    STORE_DISTRUSTED,
    STORE_SILENCE,
    LEASE_AGE,
    CALL_TIMES,
    CALL_FAILED,
    STREAMS_OPENED,
    STREAMS_OPEN,
    CONNECTIONS,
    CONNECTIONS_REFUSED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which service a page is of."""

    role: str
    number: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreView:
    """How calls to the store went; None: there was none, or there is no lease."""

    calls: Mapping[str, Calls] = field(default_factory=dict)
    silence_ms: int | None = None
    lease_age_ms: int | None = None
    # Why the store that answers is not believed; empty: it is.
    distrust: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkView:
    """What the servers of a service were asked, by method."""

    calls: Mapping[str, Calls] = field(default_factory=dict)
    opened: Mapping[str, int] = field(default_factory=dict)
    open: Mapping[str, int] = field(default_factory=dict)
    connections: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """The service as its endpoint sees it."""

    is_ready: bool
    wall_ms: int
    lateness: Histogram
    worst_ms: int
    scrapes: int
    last_scrape_ms: int
    stalls: Histogram = field(default_factory=Histogram)
    stall_worst_ms: int = 0


def put_common(
    page: Page, who: Identity, process: ProcessView, store: StoreView, network: NetworkView
) -> None:
    """Fill the families that all services have."""
    page.put(BUILD, 1, who.role, str(who.number), who.version)
    page.put(READY, process.is_ready)
    page.put(WALL_TIME, process.wall_ms / 1_000)
    page.put_times(LOOP_LAG, process.lateness)
    page.put(LOOP_LAG_WORST, process.worst_ms / 1_000)
    page.put_times(LOOP_STALLS, process.stalls)
    page.put(LOOP_STALL_WORST, process.stall_worst_ms / 1_000)
    page.put(SCRAPES, process.scrapes)
    page.put(SCRAPE_TIME, process.last_scrape_ms / 1_000)
    for call, calls in store.calls.items():
        page.put_times(STORE_TIMES, calls.times, call)
        page.put(STORE_FAILED, calls.failed, call)
    page.put(STORE_DISTRUSTED, bool(store.distrust))
    if store.silence_ms is not None:
        page.put(STORE_SILENCE, store.silence_ms / 1_000)
    if store.lease_age_ms is not None:
        page.put(LEASE_AGE, store.lease_age_ms / 1_000)
    for method, calls in sorted(network.calls.items()):
        page.put_times(CALL_TIMES, calls.times, method)
        page.put(CALL_FAILED, calls.failed, method)
    for method, number in sorted(network.opened.items()):
        page.put(STREAMS_OPENED, number, method)
        page.put(STREAMS_OPEN, network.open.get(method, 0), method)
    page.put(CONNECTIONS, network.connections)
    page.put(CONNECTIONS_REFUSED, network.refused)


def lease_trouble(store: StoreView, ttl_ms: int) -> str:
    """Why the lease of a registration cannot be said to live; empty: it does."""
    if store.distrust:
        return f"the metadata store is not believed: {store.distrust}"
    if store.lease_age_ms is None:
        return "it has no lease in etcd"
    if store.lease_age_ms > ttl_ms:
        return f"its lease of {ttl_ms} ms was renewed {store.lease_age_ms} ms ago"
    return ""


def store_trouble(store: StoreView) -> str:
    """Why the store cannot be said to answer; empty: it does."""
    if store.distrust:
        return f"the metadata store is not believed: {store.distrust}"
    if store.silence_ms is None:
        return "etcd has not answered yet"
    if store.silence_ms > STORE_SILENCE_MAX_MS:
        return f"etcd has not answered for {store.silence_ms} ms"
    return ""
