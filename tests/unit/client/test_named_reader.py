"""Positions of a reader that is no member of anything."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.client.named_reader import NamedReader, ShownPosition
from tailrace.errors import ClientClosed, RequestTimedOut, UnknownMember
from tailrace.model import TopicPartition

PLACE = {
    TopicPartition("t", 1): ShownPosition(7, "id-t", 3),
    TopicPartition("t", 0): ShownPosition(5),
}


def _reader(world: Any) -> NamedReader:
    return NamedReader(
        world.cluster.bootstrap, "job", network=world.host, clock=world.clock, rng=world.rng
    )


def test_positions_are_stored_under_the_name(simulate: Any) -> None:
    async def main(world: Any) -> None:
        reader = _reader(world)
        await reader.commit(PLACE, timeout_ms=5_000)
        stored = world.cluster.coordinators.groups["job"].offsets
        assert {p: (c.offset, c.topic_id, c.leader_epoch) for p, c in stored.items()} == {
            TopicPartition("t", 0): (5, "", -1),
            TopicPartition("t", 1): (7, "id-t", 3),
        }
        await reader.close()
        with pytest.raises(ClientClosed):
            await reader.commit(PLACE, timeout_ms=5_000)

    simulate(main)


def test_a_group_with_members_keeps_its_positions(simulate: Any) -> None:
    async def main(world: Any) -> None:
        reader = _reader(world)
        await reader.commit(PLACE, timeout_ms=5_000)
        world.cluster.coordinators.groups["job"].members["somebody"] = None
        with pytest.raises(UnknownMember):
            await reader.commit(PLACE, timeout_ms=5_000)
        await reader.close()

    simulate(main)


def test_without_a_coordinator_it_ends_in_time(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.coordinators.owner = -1
        world.cluster.tell()
        reader = _reader(world)
        begun_ms = world.loop.now_ms
        with pytest.raises(RequestTimedOut, match="no coordinator is known for group 'job'"):
            await reader.commit(PLACE, timeout_ms=500)
        assert world.loop.now_ms - begun_ms < 3_000
        await reader.close()

    simulate(main)
