"""The numbers that the owner of a shard writes under, and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.meta.shard_producers import (
    IDS_PER_TURN,
    PRODUCER_EPOCHS,
    PRODUCER_ID_BASE,
    epoch_of,
    producer_of,
)


@given(st.integers(0, 10_000), st.integers(0, 5 * PRODUCER_EPOCHS))
def test_who_wrote_is_told_by_the_numbers(shard: int, epoch: int) -> None:
    found = producer_of(shard, epoch)
    assert epoch_of(shard, *found) == epoch
    assert epoch_of(shard + 1, *found) is None


def test_others_are_no_owners() -> None:
    for producer_id in (-1, 0, 7, PRODUCER_ID_BASE - 1, PRODUCER_ID_BASE + IDS_PER_TURN - 1):
        assert epoch_of(3, producer_id, 0) is None
    assert epoch_of(3, PRODUCER_ID_BASE + 3, -1) is None
    assert epoch_of(3, PRODUCER_ID_BASE + 3, PRODUCER_EPOCHS) is None
