"""Writes a rebuilt metadata store.

First the cluster's record says that the store is being rebuilt: no service believes it from then
on. Then every key goes that the plan does not have, and every key of the plan is written; last, the
record says that the store is whole. Each transaction is guarded by the record, so two rebuilds at
once, or a controller that founds a cluster meanwhile, cannot mix. A rebuild that was broken off
leaves a store that nobody believes; the next one does it again.

Enter at `rebuild`; `adopt` adds a topic to a store that is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tailrace.meta.keys import (
    CLUSTER,
    ROOT,
    ClusterRecord,
    deletion_key,
    encode,
    is_ours,
    tombstone_key,
    topic_key,
)
from tailrace.meta.recovery import (
    FORMER_MAX,
    AdoptionPlan,
    RecoveryPlan,
    RecoveryRefused,
    adoption_entries,
    settled_keys,
)
from tailrace.meta.store import (
    TXN_BYTES_MAX,
    TXN_OPERATIONS_MAX,
    Delete,
    Guard,
    MetadataStore,
    ModifiedAt,
    Operation,
    Put,
)

# Operations of one transaction: well within what etcd takes, so that progress can be shown.
OPERATIONS_MAX: Final = TXN_OPERATIONS_MAX // 2
BYTES_MAX: Final = TXN_BYTES_MAX // 2
# Each has a state and a history, and a guard for both.
PARTITIONS_PER_TXN: Final = 50


async def rebuild(
    store: MetadataStore,
    plan: RecoveryPlan,
    *,
    started: str,
    progress: Callable[[int, int], None],
) -> int:
    """Write the plan; returns how many keys were written or removed.

    `started`: when and by what, for those who find the store half done. `progress` is told how many
    of how many operations are done. RecoveryRefused when somebody else changed the store
    meanwhile, StoreUnavailable when it does not answer: then it can be done again.
    """
    marked = replace(plan.record, recovering=started)
    revision = await _put_record(store, marked, plan.found_revision)
    await _check_unchanged(store, plan, revision)
    done, operations = 0, await _operations(store, plan.entries)
    progress(0, len(operations))
    for batch in _batches(operations):
        result = await store.txn([ModifiedAt(CLUSTER, revision)], batch)
        if not result.succeeded:
            raise _changed()
        done += len(batch)
        progress(done, len(operations))
    await _put_record(store, plan.record, revision)
    return done


async def adopt(store: MetadataStore, plan: AdoptionPlan, *, store_id: str, now_ms: int) -> int:
    """Add a topic to the store that was taken back; returns how many partitions were added.

    First the store gets a new name, so that services start anew: they may hold producer ids in hand
    that the logs of the topic know already.

    Some partitions at a time, as when partitions are added to a topic: the record never names a
    partition whose state is not there, for it would be made anew. RecoveryRefused when somebody
    else changed the store meanwhile; what was added by then stays, and the rest can be added later.
    """
    cluster_revision = await _rename(store, plan, store_id)
    entries = adoption_entries(plan, now_ms)
    key, revision, added = topic_key(plan.name), plan.topic_revision, plan.present
    numbers = sorted(plan.record.assignment)
    for start in range(plan.present, len(numbers), PARTITIONS_PER_TXN):
        part = numbers[: start + PARTITIONS_PER_TXN]
        record = replace(
            plan.record, assignment={each: plan.record.assignment[each] for each in part}
        )
        guards: list[Guard] = [
            ModifiedAt(CLUSTER, cluster_revision),
            ModifiedAt(key, revision),
            ModifiedAt(deletion_key(plan.name), 0),
            ModifiedAt(tombstone_key(plan.record.topic_id), 0),
        ]
        operations: list[Operation] = [Put(key, encode(record))]
        for number in part[start:]:
            for name, value in entries.get(number, {}).items():
                operations.append(Put(name, value))
                guards.append(ModifiedAt(name, 0))
        result = await store.txn(guards, operations)
        if not result.succeeded:
            raise RecoveryRefused(
                f"topic {plan.name}: somebody else changed it meanwhile, after {added} partitions"
            )
        revision, added = result.revision, len(part)
    return added - plan.present


async def _rename(store: MetadataStore, plan: AdoptionPlan, store_id: str) -> int:
    """Raise the numbers of producers and shards, and say that the store is another one now."""
    former = (plan.cluster.store_id, *plan.cluster.former)[:FORMER_MAX]
    record = replace(
        plan.cluster, store_id=store_id, generation=plan.cluster.generation + 1, former=former
    )
    numbers: list[Operation] = [Put(key, value) for key, value in sorted(plan.numbers.items())]
    for batch in _batches(numbers):
        guard = ModifiedAt(CLUSTER, plan.cluster_revision)
        if not (await store.txn([guard], batch)).succeeded:
            raise _changed()
    return await _put_record(store, record, plan.cluster_revision)


async def _check_unchanged(store: MetadataStore, plan: RecoveryPlan, revision: int) -> None:
    """Another store may have taken its place since the plan was made: the right one, perhaps.

    From the mark on nobody else writes. Where something has changed before, the mark is taken away.
    """
    now = settled_keys(await store.snapshot(ROOT))
    if now == plan.seen:
        return
    former: Operation = Delete(CLUSTER)
    if plan.found is not None:
        former = Put(CLUSTER, encode(plan.found))
    await store.txn([ModifiedAt(CLUSTER, revision)], [former])
    raise RecoveryRefused(
        "the store has changed since the plan was made, and was left as it is: look at the plan "
        "again, and repeat"
    )


async def _put_record(store: MetadataStore, record: ClusterRecord, revision: int) -> int:
    result = await store.txn([ModifiedAt(CLUSTER, revision)], [Put(CLUSTER, encode(record))])
    if not result.succeeded:
        raise _changed()
    return result.revision


def _changed() -> RecoveryRefused:
    return RecoveryRefused(
        "somebody else changed the cluster's record meanwhile (another rebuild, or a controller "
        "that founded a cluster): look at the plan again, and repeat"
    )


async def _operations(store: MetadataStore, wanted: Mapping[str, bytes]) -> list[Operation]:
    """What is to be done, the removals first, but for the cluster's record.

    Keys that are not Tailrace's stay: somebody else may use this etcd too.
    """
    there = {each.key: each for each in (await store.snapshot(ROOT)).entries}
    gone = [key for key in there if key not in wanted and key != CLUSTER and is_ours(key)]
    return [
        *(Delete(key) for key in gone),
        *(
            Put(key, value)
            for key, value in sorted(wanted.items())
            if key not in there or there[key].value != value or there[key].lease
        ),
    ]


def _batches(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    batch: list[Operation] = []
    size = 0
    for each in operations:
        needs = len(each.key) + (len(each.value) if isinstance(each, Put) else 0)
        if batch and (len(batch) >= OPERATIONS_MAX or size + needs > BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += needs
    if batch:
        yield batch
