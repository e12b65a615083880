"""Ids and epochs from the controller."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tailrace.client.identity import Identity, read_state, written_state
from tailrace.client.metadata import MetadataWatcher
from tailrace.client.settings import ProducerSettings
from tailrace.errors import InvalidRequest, NotController, ProducerFenced, StoreUnavailable
from tailrace.model import TopicPartition


def _identity(world: Any, **settings: Any) -> Identity:
    metadata = MetadataWatcher(world.host, world.cluster.bootstrap, world.rng)
    world.processes["client"].spawn("watch", metadata.run())
    return Identity(ProducerSettings(**settings), metadata, world.host, lambda attempts: 50)


def test_a_new_id_or_the_next_epoch_of_the_own_one(simulate: Any) -> None:
    async def main(world: Any) -> None:
        assert await _identity(world).get(-1, -1) == (1, 0)
        assert await _identity(world).get(-1, -1) == (2, 0)
        assert await _identity(world).get(2, 0) == (2, 1)

    simulate(main)


def test_a_name_has_one_id_and_a_newer_instance_wins(simulate: Any) -> None:
    async def main(world: Any) -> None:
        assert await _identity(world, name="n").get(-1, -1) == (1, 0)
        assert await _identity(world, name="n").get(-1, -1) == (1, 1)
        with pytest.raises(ProducerFenced):
            await _identity(world, name="n").get(1, 0)

    simulate(main)


def test_it_is_asked_for_again_until_it_is_answered(simulate: Any) -> None:
    async def main(world: Any) -> None:
        controller = world.cluster.controller
        controller.is_active = False
        identity = _identity(world)
        asking = asyncio.ensure_future(identity.get(-1, -1))
        await asyncio.sleep(1)
        assert "no active controller" in identity.problem
        controller.errors = [NotController("no"), *[StoreUnavailable("etcd is away")] * 50]
        controller.is_active = True
        world.cluster.tell()
        await asyncio.sleep(0.5)
        assert identity.problem == "STORE_UNAVAILABLE: etcd is away"
        assert await asking == (1, 0)
        assert identity.problem == ""
        controller.errors = [InvalidRequest("never")]
        with pytest.raises(InvalidRequest):
            await identity.get(-1, -1)

    simulate(main)


def test_a_state_is_read_as_it_was_written() -> None:
    sequences = {TopicPartition("a/b", 3): 7, TopicPartition("t", 0): 0}
    assert read_state(json.loads(json.dumps(written_state(5, 2, sequences)))) == (5, 2, sequences)
    for broken in ({}, {**written_state(5, 2, {}), "sequences": {"t": 1}}):
        with pytest.raises(InvalidRequest, match="not the state"):
            read_state(broken)
