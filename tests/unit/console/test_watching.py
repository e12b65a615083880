"""The watcher on a whole simulated cluster: parts come, and come anew when something happens."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tailrace.console.watching import PARTS, Watcher
from unit.client.test_operations import World, simulate


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
