"""What a broker tells of itself."""

from __future__ import annotations

from tailrace.broker.diagnosing import NAMED_MAX, REASON_MAX, UNKNOWN, diagnosis
from tailrace.broker.settings import BrokerSettings
from tailrace.config import FolderConfig
from tailrace.errors import ReplicaOffline
from tailrace.metrics.common import StoreView
from tailrace.model import TopicPartition
from tailrace.process import OpenFiles
from tailrace.transport import methods
from tailrace.v1 import broker_pb2
from unit.broker.trio import Trio, simulate

SETTINGS = BrokerSettings(broker_id=3, folders=FolderConfig(log_dirs=("/data",)))


def test_everything_that_is_known_is_told() -> None:
    store = StoreView(silence_ms=40, lease_age_ms=30)
    told = diagnosis(SETTINGS, 77, store, "", OpenFiles(5, 1_024))
    assert (told.broker_id, told.wall_ms, told.not_ready) == (3, 77, "")
    assert (told.store_silence_ms, told.lease_age_ms) == (40, 30)
    assert (told.open_files, told.open_files_max) == (5, 1_024)
    assert told.version


def test_a_lease_that_was_not_renewed_in_time_and_what_is_not_known() -> None:
    late = diagnosis(SETTINGS, 0, StoreView(lease_age_ms=SETTINGS.lease_ttl_ms + 1), "")
    assert "was renewed" in late.not_ready
    assert late.open_files_max > 0
    told = diagnosis(SETTINGS, 0, StoreView(), "its logs are being recovered")
    assert told.not_ready == "its logs are being recovered"
    assert told.store_silence_ms == told.lease_age_ms == UNKNOWN


def test_l1_l5_what_is_wrong_with_the_store_and_with_replicas_is_told() -> None:
    out = {
        TopicPartition("t", number): ReplicaOffline("x" * 2 * REASON_MAX)
        for number in range(NAMED_MAX + 1)
    }
    store = StoreView(silence_ms=40, distrust="it is empty")
    told = diagnosis(SETTINGS, 77, store, "", distrusted_since_ms=50, out_of_service=out)
    assert (told.store_problem, told.store_problem_since_ms) == ("it is empty", 50)
    assert told.out_of_service_count == NAMED_MAX + 1
    assert len(told.out_of_service) == NAMED_MAX
    assert len(told.out_of_service[0].reason) == REASON_MAX


@simulate
async def test_a_broker_answers(trio: Trio) -> None:
    await trio.start()
    told = await trio.host.channel("b1:9092").call(
        methods.BROKER_DIAGNOSE, broker_pb2.DiagnoseRequest(), timeout_ms=1_000
    )
    assert told.broker_id == 1
