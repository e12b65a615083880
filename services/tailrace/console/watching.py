"""What the console knows of a cluster, kept fresh: pushed metadata, groups asked for now and then.

One watcher serves all browsers: the cluster is asked as much for ten of them as for one, and groups
only while somebody looks. Whoever follows it gets each part anew when it has changed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final

from tailrace.client.admin import AdminCore
from tailrace.client.metadata import ClusterPicture
from tailrace.console import showing
from tailrace.console.story import Story, moved
from tailrace.errors import GroupNotFound, TailraceError
from tailrace.model import TopicPartition

GROUPS_MS: Final = 2_000
GROUPS_SHOWN_MAX: Final = 200
# Of how many partitions the past is asked for at the start, and causes after a change.
EXPLAINED_MAX: Final = 200
AT_ONCE: Final = 8
ASK_TIMEOUT_MS: Final = 5_000
PARTS: Final = ("cluster", "groups", "story", "trouble")


class Watcher:
    """Follows a cluster: `run` in a task. `parts` are JSON texts by name."""

    def __init__(self, admin: AdminCore) -> None:
        self._admin = admin
        self._story = Story()
        self._versions = dict.fromkeys(PARTS, 0)
        self._changed = asyncio.Event()
        self._picture = ClusterPicture()
        self._followers = 0
        self._looked_at = asyncio.Event()
        self.parts = dict.fromkeys(PARTS, "null")

    async def run(self) -> None:
        """For ever; what does not answer is shown, and asked again."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_cluster())
            group.create_task(self._follow_groups())

    async def follow(self) -> AsyncIterator[tuple[str, str]]:
        """Every part as it is, and each one again whenever it has changed."""
        seen = dict.fromkeys(PARTS, -1)
        self._followers += 1
        self._looked_at.set()
        try:
            while True:
                changed = self._changed
                for name in PARTS:
                    if seen[name] != self._versions[name]:
                        seen[name] = self._versions[name]
                        yield name, self.parts[name]
                if changed is self._changed:
                    await changed.wait()
        finally:
            self._followers -= 1

    def partitions_of(self, topic: str) -> int | None:
        """How many partitions a topic has; None: there is none of that name."""
        found = self._picture.topics.get(topic)
        return None if found is None or found.deleting else len(found.partitions)

    def _put(self, name: str, value: Any) -> None:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if text != self.parts[name]:
            self.parts[name] = text
            self._versions[name] += 1
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def _follow_cluster(self) -> None:
        while True:
            before = self._picture
            self._picture = after = await self._admin.next_picture(before)
            self._put("cluster", showing.cluster(after))
            if before.revision < 0:
                wanted = [
                    TopicPartition(name, number)
                    for name, topic in sorted(after.topics.items())
                    for number in range(len(topic.partitions))
                ]
            else:
                wanted = moved(before, after)
            if wanted:
                await self._explain(wanted[:EXPLAINED_MAX])

    async def _explain(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask why; a controller that is just being replaced answers a little later."""
        left = list(partitions)

        async def ask() -> None:
            while left:
                each = left.pop()
                with suppress(TailraceError):
                    changes = await self._admin.explain(
                        each.topic, each.partition, timeout_ms=ASK_TIMEOUT_MS
                    )
                    # The first leader of a new partition is no event.
                    self._story.add(each, [one for one in changes if one.leader_epoch > 0])

        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
        self._put("story", [each.as_dict() for each in self._story.chapters()])

    async def _follow_groups(self) -> None:
        while True:
            if not self._followers:
                self._looked_at.clear()
                await self._looked_at.wait()
            await self._shown("groups", self._groups)
            await asyncio.sleep(GROUPS_MS / 1_000)

    async def _shown(self, name: str, ask: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            self._put(name, await ask())
            self._put("trouble", "")
        except TailraceError as error:
            self._put("trouble", str(error))

    async def _groups(self) -> list[dict[str, Any]]:
        if not self._picture.coordinators:
            return []
        listed = await self._admin.list_groups(timeout_ms=ASK_TIMEOUT_MS)
        found: list[dict[str, Any]] = []
        for each in listed[:GROUPS_SHOWN_MAX]:
            # One that is deleted meanwhile is no trouble.
            with suppress(GroupNotFound):
                about = await self._admin.describe_group(each.group, timeout_ms=ASK_TIMEOUT_MS)
                found.append(showing.group(about))
        return found
