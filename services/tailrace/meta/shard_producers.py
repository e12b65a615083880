"""In whose name the owner of a shard of groups writes to its partition of `__consumer_offsets`.

The shard's epoch is the epoch of its producer: the id is fixed by the shard, so that brokers refuse
whoever owned the shard before as soon as the new owner has written, and can tell by the numbers of
a batch which owner it claims to come from.

After 32,768 owners a shard goes on under another id; the last owner under the old one is then
not refused by the log. It would have to be asleep for that one change of owner to do harm.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Far above all ids that a controller hands out.
PRODUCER_ID_BASE: Final = 1 << 62
PRODUCER_EPOCHS: Final = 1 << 15
IDS_PER_TURN: Final = 1 << 20


class ProducerIdentity(NamedTuple):
    producer_id: int
    producer_epoch: int


def producer_of(shard: int, epoch: int) -> ProducerIdentity:
    """In whose name the owner of this epoch writes."""
    turn, producer_epoch = divmod(epoch, PRODUCER_EPOCHS)
    return ProducerIdentity(PRODUCER_ID_BASE + turn * IDS_PER_TURN + shard, producer_epoch)


def epoch_of(shard: int, producer_id: int, producer_epoch: int) -> int | None:
    """The epoch of the owner that writes so; None where no owner of this shard would."""
    turn, number = divmod(producer_id - PRODUCER_ID_BASE, IDS_PER_TURN)
    if turn < 0 or number != shard or not 0 <= producer_epoch < PRODUCER_EPOCHS:
        return None
    return turn * PRODUCER_EPOCHS + producer_epoch
