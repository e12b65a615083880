"""How a broker is, as it knows itself: for `tailrace doctor`, which asks every broker."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from tailrace import __version__
from tailrace.broker.settings import BrokerSettings
from tailrace.errors import TailraceError
from tailrace.metrics.common import StoreView, lease_trouble
from tailrace.model import TopicPartition
from tailrace.process import OpenFiles, open_files
from tailrace.transport.wire import error_code, to_partition
from tailrace.v1 import broker_pb2 as pb

UNKNOWN: Final = -1
# Replicas out of service that are named; of all the rest only the number is told.
NAMED_MAX: Final = 1_000
# A reason may name files and offsets: what is longer is of no use to a reader.
REASON_MAX: Final = 500


def diagnosis(
    settings: BrokerSettings,
    wall_ms: int,
    store: StoreView,
    not_ready: str,
    files: OpenFiles | None = None,
    *,
    incarnation: str = "",
    process: str = "",
    distrusted_since_ms: int = 0,
    out_of_service: Mapping[TopicPartition, TailraceError] | None = None,
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
        store_problem=store.distrust,
        store_problem_since_ms=distrusted_since_ms,
        out_of_service_count=len(out_of_service or {}),
        out_of_service=[
            pb.ReplicaOutOfService(
                partition=to_partition(partition),
                error=error_code(error.code),
                reason=str(error)[:REASON_MAX],
            )
            for partition, error in islice((out_of_service or {}).items(), NAMED_MAX)
        ],
    )
