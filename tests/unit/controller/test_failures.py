"""Which replicas have failed, and what makes them well again."""

from __future__ import annotations

import pytest

from tailrace.controller.facts import ReplicaFailure
from tailrace.controller.failures import Failures
from tailrace.errors import (
    BatchFault,
    CorruptBatch,
    CorruptCheckpoint,
    DamagedLog,
    InvalidConfig,
    LogClosed,
    StaleBroker,
    StorageError,
    TailraceError,
)
from tailrace.meta.image import LiveBroker
from tailrace.meta.keys import BrokerRegistration
from tailrace.model import BrokerId, TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
B1, B2 = BrokerId(1), BrokerId(2)


def live(broker: BrokerId, epoch: int = 11) -> LiveBroker:
    registration = BrokerRegistration(
        broker_id=broker, host="h", port=1, link_host="h", link_port=2, incarnation="i"
    )
    return LiveBroker(registration, epoch, epoch)


@pytest.mark.parametrize(
    ("error", "damaged"),
    [
        (StorageError("disk full"), False),
        (LogClosed("closed"), False),
        (DamagedLog("t-0", offset=1, recovery_point=2, detail="rot"), True),
        (CorruptBatch(BatchFault.BAD_CRC), True),
        (CorruptCheckpoint("bad"), True),
    ],
)
def test_a_failed_replica_is_away_or_damaged(error: TailraceError, damaged: bool) -> None:
    failures = Failures()
    assert failures.failed(live(B1), T0, error)
    assert failures.replicas == {T0: {B1: ReplicaFailure(str(error), damaged=damaged)}}
    assert not failures.failed(live(B1), T0, error), "it is no news"


@pytest.mark.parametrize("error", [InvalidConfig("x"), StaleBroker("x")])
def test_other_errors_say_nothing_about_a_replica(error: TailraceError) -> None:
    failures = Failures()
    assert not failures.failed(live(B1), T0, error)
    assert failures.replicas == {}


def test_a_replica_that_follows_is_well_again() -> None:
    failures = Failures()
    failures.failed(live(B1), T0, StorageError("x"))
    failures.failed(live(B2), T0, StorageError("x"))
    assert not failures.obeyed(live(B1), T1, B2)
    # That it was told to lead mends nothing.
    assert not failures.obeyed(live(B1), T0, B1)
    assert failures.obeyed(live(B1), T0, B2)
    assert list(failures.replicas[T0]) == [B2]
    # Who obeys while nobody leads has mended its log.
    assert failures.obeyed(live(B2), T0, BrokerId(-1))
    assert failures.replicas == {}


def test_that_a_replica_lost_something_is_news_even_if_it_is_away() -> None:
    failures = Failures()
    assert failures.failed(live(B1), T0, StorageError("x"))
    assert failures.failed(live(B1), T0, CorruptCheckpoint("bad"))
    assert failures.replicas[T0][B1].damaged
    assert not failures.failed(live(B1), T0, StorageError("x"))
    assert failures.replicas[T0][B1].damaged


def test_another_life_starts_without_failures() -> None:
    failures = Failures()
    failures.failed(live(B1), T0, StorageError("x"))
    failures.failed(live(B1), T1, StorageError("x"))
    failures.failed(live(B2), T1, StorageError("x"))
    failures.forget_former_lives({B1: live(B1), B2: live(B2)})
    assert len(failures.replicas) == 2
    failures.forget_former_lives({B1: live(B1, 12), B2: live(B2)})
    assert list(failures.replicas) == [T1]
    failures.forget_former_lives({})
    assert failures.replicas == {}


def test_what_a_person_lets_lead_counts_as_well_again() -> None:
    failures = Failures()
    failures.failed(live(B1), T0, CorruptCheckpoint("bad"))
    failures.failed(live(B2), T0, CorruptCheckpoint("bad"))
    failures.accept(T0, B1)
    failures.accept(T1, B1)
    assert list(failures.replicas[T0]) == [B2]
