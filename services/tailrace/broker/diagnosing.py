"""How a broker is, as it knows itself: for `tailrace doctor`, which asks every broker."""

from __future__ import annotations

from tailrace import __version__
from tailrace.broker.settings import BrokerSettings
from tailrace.metrics.common import StoreView, lease_trouble
from tailrace.process import OpenFiles, open_files
from tailrace.v1 import broker_pb2 as pb

UNKNOWN = -1


def diagnosis(
    settings: BrokerSettings,
    wall_ms: int,
    store: StoreView,
    not_ready: str,
    files: OpenFiles | None = None,
    *,
    incarnation: str = "",
    process: str = "",
) -> pb.DiagnoseResponse:
    """The answer; how many files are open is looked up unless it is given."""
    found = open_files() if files is None else files
    if not not_ready and store.lease_age_ms is not None:
        not_ready = lease_trouble(store, settings.lease_ttl_ms)
    return pb.DiagnoseResponse(
        broker_id=settings.broker_id,
        version=__version__,
        wall_ms=wall_ms,
        not_ready=not_ready,
        store_silence_ms=UNKNOWN if store.silence_ms is None else store.silence_ms,
        lease_age_ms=UNKNOWN if store.lease_age_ms is None else store.lease_age_ms,
        lease_ttl_ms=settings.lease_ttl_ms,
        open_files=found.now,
        open_files_max=found.max,
        incarnation=incarnation,
        process=process,
    )
