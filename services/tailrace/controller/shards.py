"""Which coordinator owns which shard of groups: balanced, and moved as little as can be. Pure.

A shard belongs to one life of one coordinator (the create revision of its registration), and its
epoch is raised with every change of that life: coordinators write in the name of the epoch, so
whoever had the shard before is refused by the brokers as soon as the new owner has written. While
no coordinator is live nothing is written; the next one to register gets everything.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.controller.facts import Transaction
from tailrace.meta.image import ClusterImage, LiveCoordinator, StoredShard
from tailrace.meta.keys import ShardOwner, coordinator_key, encode, shard_key
from tailrace.meta.store import CreatedAt, Delete, Guard, ModifiedAt, Put
from tailrace.model import GROUP_SHARDS


def shard_transactions(
    image: ClusterImage, is_controller: Guard, *, shards: int = GROUP_SHARDS
) -> tuple[Transaction, ...]:
    """Give every shard to a live coordinator; nothing when all is well or nobody is there.

    `shards`: how many there are to be in a cluster that has none yet. Their number never changes
    after that: groups would fall into other shards than those that have their positions.
    """
    if not image.coordinators:
        return ()
    wanted = assign(
        image.coordinators, image.shards, count=max(image.shards, default=shards - 1) + 1
    )
    moved = [
        shard
        for shard, owner in wanted.items()
        if not _is_owned(image.shards.get(shard), image.coordinators[owner])
    ]
    if not moved:
        return ()
    owners = sorted({wanted[shard] for shard in moved})
    stored = {shard: image.shards.get(shard) for shard in moved}
    return (
        Transaction(
            what=f"give {len(moved)} shards of groups to coordinators {owners}",
            guards=(
                is_controller,
                *(
                    CreatedAt(coordinator_key(each), image.coordinators[each].epoch)
                    for each in owners
                ),
                *(
                    ModifiedAt(shard_key(shard), 0 if found is None else found.revision)
                    for shard, found in stored.items()
                ),
            ),
            operations=tuple(
                Put(
                    shard_key(shard),
                    encode(
                        ShardOwner(
                            owner=wanted[shard],
                            owner_epoch=image.coordinators[wanted[shard]].epoch,
                            epoch=0 if found is None else found.record.epoch + 1,
                        )
                    ),
                )
                for shard, found in stored.items()
            ),
        ),
    )


def assign(
    coordinators: Mapping[int, LiveCoordinator], shards: Mapping[int, StoredShard], *, count: int
) -> dict[int, int]:
    """The owner of every shard: who has it keeps it, unless it has more than its part."""
    least, more = divmod(count, len(coordinators))
    kept: dict[int, list[int]] = {each: [] for each in sorted(coordinators)}
    free: list[int] = []
    for shard in range(count):
        found = shards.get(shard)
        owner = -1 if found is None else found.record.owner
        kept.get(owner, free).append(shard)
    # Those who have most may have one more than the others, so that the fewest shards move.
    by_size = sorted(kept, key=lambda each: (-len(kept[each]), each))
    room = {each: least + (place < more) for place, each in enumerate(by_size)}
    for each in by_size:
        free += kept[each][room[each] :]
        del kept[each][room[each] :]
    for each in by_size:
        while len(kept[each]) < room[each]:
            kept[each].append(free.pop(0))
    return dict(sorted((shard, owner) for owner, all_ in kept.items() for shard in all_))


def fence_transaction(live: LiveCoordinator, is_controller: Guard) -> Transaction:
    """Take the registration of a coordinator away whose process is gone."""
    key = coordinator_key(live.registration.coordinator_id)
    return Transaction(
        what=f"fence coordinator {live.registration.coordinator_id} in epoch {live.epoch}",
        guards=(is_controller, CreatedAt(key, live.epoch)),
        operations=(Delete(key),),
    )


def _is_owned(found: StoredShard | None, live: LiveCoordinator) -> bool:
    return (
        found is not None
        and found.record.owner == live.registration.coordinator_id
        and found.record.owner_epoch == live.epoch
    )
