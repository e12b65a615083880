"""Images and facts for tests of decisions, and what is in the transactions that come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tailrace.controller.decisions import decide
from tailrace.controller.facts import (
    ClusterChanged,
    Decision,
    Event,
    Facts,
    Term,
    Transaction,
)
from tailrace.meta.image import (
    ClusterImage,
    LiveBroker,
    LiveController,
    StoredDeletion,
    StoredState,
    StoredTopic,
)
from tailrace.meta.keys import (
    BrokerRegistration,
    ControllerRecord,
    PartitionHistory,
    PartitionState,
    TopicDeletion,
    TopicRecord,
    decode,
    history_key,
    state_key,
)
from tailrace.meta.store import (
    CreatedAt,
    Put,
    check_txn,
)
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition

TERM: Final = Term(controller_id=9, epoch=7, revision=70)
MINE: Final = CreatedAt("/controller", 70)
NOW_MS: Final = 1_000_000
STATE_REVISION: Final = 90


def live(broker: int, *, epoch: int | None = None, **facts: Any) -> LiveBroker:
    registration = BrokerRegistration(
        broker_id=BrokerId(broker),
        host=f"b{broker}",
        port=1,
        link_host=f"b{broker}",
        link_port=2,
        incarnation=f"disk{broker}",
    )
    epoch = 10 + broker if epoch is None else epoch
    return LiveBroker(replace(registration, **facts), epoch, epoch)


def state(leader: int, isr: Sequence[int], elr: Sequence[int] = (), last: int = -1) -> StoredState:
    stored = PartitionState(
        controller_epoch=6,
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(4),
        isr=tuple(map(BrokerId, isr)),
        elr=tuple(map(BrokerId, elr)),
        last_leader=BrokerId(leader if leader >= 0 else last),
    )
    return StoredState(stored, STATE_REVISION)


def image(
    brokers: Sequence[LiveBroker],
    states: dict[int, StoredState] | None = None,
    *,
    replicas: Sequence[int] = (1, 2, 3),
    partitions: int | None = None,
    config: dict[str, str] | None = None,
    deleting: bool = False,
    damaged: Sequence[str] = (),
) -> ClusterImage:
    """A cluster with one topic, `t`."""
    count = len(states or {}) if partitions is None else partitions
    topics = {}
    if count:
        record = TopicRecord(
            topic_id=TopicId("id-t"),
            assignment=dict.fromkeys(range(count), tuple(map(BrokerId, replicas))),
            config=config or {},
        )
        topics["t"] = StoredTopic(record, 80)
    deletion = StoredDeletion(TopicDeletion(topic_id=TopicId("id-t")), 85)
    return ClusterImage(
        revision=100,
        controller=LiveController(
            ControllerRecord(controller_id=9, epoch=7, host="c", port=1), 70, 70
        ),
        controller_epoch=7,
        brokers={each.registration.broker_id: each for each in brokers},
        topics=topics,
        states={"t": states} if states else {},
        deletions={"t": deletion} if deleting else {},
        damaged=dict.fromkeys(damaged, "unreadable"),
    )


def facts(**given: Any) -> Facts:
    known = {BrokerId(each): f"disk{each}" for each in range(10)}
    return Facts(**{"term": TERM, "incarnations": known, **given})


def decided(picture: ClusterImage, event: Event | None = None, **given: Any) -> Decision:
    decision = decide(picture, event or ClusterChanged(), facts(**given), now_ms=NOW_MS)
    for transaction in decision.transactions:
        check_txn(transaction.guards, transaction.operations)
        assert MINE in transaction.guards, "every write is guarded by /controller"
    return decision


def states_in(*transactions: Transaction) -> dict[str, tuple[Any, ...]]:
    """The new states: leader, epoch, ISR, ELR."""
    found = {}
    for transaction in transactions:
        for operation in transaction.operations:
            if operation.key.endswith("/state") and isinstance(operation, Put):
                new = decode(PartitionState, operation.value)
                found[operation.key] = (new.leader, new.leader_epoch, new.isr, new.elr)
    return found


def only_state(decision: Decision) -> tuple[Any, ...]:
    (found,) = states_in(*decision.transactions).values()
    return found


def history_in(transaction: Transaction, partition: int = 0) -> PartitionHistory:
    key = history_key(TopicPartition("t", partition))
    (value,) = [
        each.value for each in transaction.operations if each.key == key and isinstance(each, Put)
    ]
    return decode(PartitionHistory, value)


KEY: Final = state_key(TopicPartition("t", 0))
THREE: Final = (live(1), live(2), live(3))
