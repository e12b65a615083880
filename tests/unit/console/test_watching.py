"""The watcher on a whole simulated cluster: parts come, and come anew when something happens."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from tailrace.client.group_admin import GroupDescription, GroupListing
from tailrace.client.metadata import ClusterPicture, PartitionPicture, TopicPicture
from tailrace.console.watching import (
    EXPLAINED,
    GROUPS_FOUND_MAX,
    GROUPS_SHOWN_MAX,
    PARTS,
    Watcher,
)
from tailrace.errors import GroupNotFound, RequestTimedOut
from tailrace.meta.keys import LeaderChange
from unit.client.test_operations import World, simulate
from unit.console.test_story import change


def test_a_failover_is_pushed_and_told_with_its_cause() -> None:
    async def main(world: World) -> None:
        watcher = Watcher(world.admin)
        running = world.process.spawn("watch", watcher.run())
        seen: dict[str, Any] = {}
        told = asyncio.Event()

        async def look() -> None:
            async for name, text in watcher.follow():
                seen[name] = json.loads(text)
                told.set()

        looking = world.process.spawn("look", look())

        async def until(what: str) -> None:
            async with asyncio.timeout(60):
                while not eval(what, {"seen": seen}):
                    told.clear()
                    await told.wait()

        # A new topic is shown first, and who leads it a moment later.
        await until("seen.get('cluster') and seen['cluster']['topics']")
        await until("seen['cluster']['topics'][0]['partitions'][0]['leader'] >= 0")
        assert watcher.partitions_of("t") == 2
        assert watcher.partitions_of("unknown") is None
        leader = seen["cluster"]["topics"][0]["partitions"][0]["leader"]
        world.cluster.brokers[leader].kill()
        await until("seen.get('story')")
        assert f"broker {leader}" in seen["story"][0]["cause"]
        await until(f"{leader} not in [b['id'] for b in seen['cluster']['brokers'] if b['live']]")
        # There is no coordinator, so there are no groups; nothing is wrong with that.
        await until("seen.get('groups') == []")
        assert set(seen) == set(PARTS)
        looking.cancel()
        running.cancel()

    simulate(main)


async def test_who_follows_waits_until_something_has_changed() -> None:
    class Nobody:
        """An administrator whose cluster never answers."""

        async def next_picture(self, _: object) -> object:
            await asyncio.Event().wait()
            return None

    watcher = Watcher(Nobody())  # type: ignore[arg-type]
    follower = watcher.follow()
    assert [(await anext(follower))[0] for _ in PARTS] == list(PARTS)
    waiting = asyncio.ensure_future(anext(follower))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    watcher._put("trouble", "etcd is away")
    assert await waiting == ("trouble", '"etcd is away"')
    await follower.aclose()  # type: ignore[attr-defined]


def test_a_cluster_that_does_not_answer_any_more_is_told() -> None:
    async def main(world: World) -> None:
        watcher = Watcher(world.admin)
        running = world.process.spawn("watch", watcher.run())
        following = watcher.follow()

        async def until(name: str, part: str) -> None:
            async with asyncio.timeout(60):
                while part not in watcher.parts[name]:
                    await anext(following)

        await until("cluster", '"live":true')
        await until("trouble", '""')
        for broker in world.cluster.brokers:
            broker.kill()
        # What is known stays on the page: so it has to be said that it is old.
        await until("trouble", "no broker answers, so what is shown is what was known last")
        running.cancel()

    simulate(main)


PARTITIONS = 3 * EXPLAINED


class Scripted:
    """An administrator of a cluster whose controller is away at first, and of very many groups."""

    def __init__(self) -> None:
        self.pictures: asyncio.Queue[ClusterPicture] = asyncio.Queue()
        self.has_controller = asyncio.Event()

    def lead(self, *, leader: int, epoch: int) -> None:
        each = PartitionPicture(leader, epoch, (1, 2), (1, 2))
        topics = {"t": TopicPicture("id", (each,) * PARTITIONS)}
        coordinators = {1: "nowhere:1"}
        self.pictures.put_nowait(
            ClusterPicture(revision=epoch, topics=topics, coordinators=coordinators)
        )

    async def next_picture(self, _: object) -> ClusterPicture:
        return await self.pictures.get()

    async def explain(self, _: str, __: int, *, timeout_ms: int) -> list[LeaderChange]:
        if not self.has_controller.is_set():
            await asyncio.sleep(timeout_ms / 10_000)
            raise RequestTimedOut("no controller")
        return [change(1)]

    async def list_groups(self, *, timeout_ms: int) -> list[GroupListing]:
        assert timeout_ms
        return [
            GroupListing(
                group=f"g{number}", kind="consumer", state="Empty", members=0, coordinator_id=1
            )
            for number in range(GROUPS_SHOWN_MAX + 7)
        ]

    async def describe_group(self, group: str, *, timeout_ms: int) -> GroupDescription:
        assert timeout_ms
        raise GroupNotFound(group)


async def test_the_map_goes_on_while_nobody_says_why_and_all_is_told_later() -> None:
    admin = Scripted()
    watcher = Watcher(admin)  # type: ignore[arg-type]
    running = asyncio.ensure_future(watcher.run())
    following = watcher.follow()

    async def until(name: str, part: str) -> None:
        async with asyncio.timeout(20):
            while part not in watcher.parts[name]:
                await anext(following)

    admin.lead(leader=1, epoch=0)
    admin.lead(leader=2, epoch=1)
    admin.lead(leader=2, epoch=2)
    await until("cluster", '"revision":2')
    assert '"count"' not in watcher.parts["story"]
    # Groups that are too many to be asked for are counted.
    await until("groups_left_out", "7")
    admin.has_controller.set()
    await until("story", f'"count":{PARTITIONS}')
    running.cancel()


class Crowded(Scripted):
    """Very many groups, of which the last by name has a member, and the seventh is deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = False

    async def list_groups(self, *, timeout_ms: int) -> list[GroupListing]:
        *others, last = await super().list_groups(timeout_ms=timeout_ms)
        return [*others, replace(last, group="z-busy", state="Stable", members=1)]

    async def describe_group(self, group: str, *, timeout_ms: int) -> GroupDescription:
        if self.silent:
            raise RequestTimedOut("no coordinator")
        if group == "g7":
            return await super().describe_group(group, timeout_ms=timeout_ms)
        return GroupDescription(
            group=group,
            state="Empty",
            kind="consumer",
            protocol="",
            generation=1,
            coordinator_id=1,
            members=(),
            positions=(),
        )


async def test_of_too_many_groups_those_in_use_are_shown_and_all_others_can_be_found() -> None:
    admin = Crowded()
    watcher = Watcher(admin)  # type: ignore[arg-type]
    running = asyncio.ensure_future(watcher.run())
    following = watcher.follow()
    admin.lead(leader=1, epoch=0)
    async with asyncio.timeout(20):
        while watcher.parts["groups_left_out"] != "7":
            await anext(following)
    shown = [each["group"] for each in json.loads(watcher.parts["groups"])]
    assert shown[0] == "z-busy"
    last = f"g{GROUPS_SHOWN_MAX + 5}"
    found = await watcher.find_groups(last.upper())
    assert [each["group"] for each in found["groups"]] == [last]
    many = await watcher.find_groups("g")
    # One of the first was deleted meanwhile.
    assert many["left_out"] == GROUPS_SHOWN_MAX + 6 - GROUPS_FOUND_MAX
    assert len(many["groups"]) in {GROUPS_FOUND_MAX, GROUPS_FOUND_MAX - 1}
    assert not (await watcher.find_groups("g7 nobody"))["groups"]
    admin.silent = True
    assert (await watcher.find_groups("g1"))["problem"] == "no coordinator"
    running.cancel()
