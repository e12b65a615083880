"""What the console knows of a cluster, kept fresh: pushed metadata, groups asked for now and then.

One watcher serves all browsers: the cluster is asked as much for ten of them as for one, and groups
only while somebody looks. Whoever follows it gets each part anew when it has changed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, Final

from tailrace.client.admin import AdminCore
from tailrace.client.diagnosing import BrokerCondition
from tailrace.client.group_admin import GroupListing
from tailrace.client.metadata import ClusterPicture
from tailrace.console import showing
from tailrace.console.story import Story, had_others, moved
from tailrace.errors import GroupNotFound, TailraceError
from tailrace.model import TopicPartition

GROUPS_MS: Final = 2_000
GROUPS_SHOWN_MAX: Final = 200
# Of how many groups that somebody looks for by name there is an answer.
GROUPS_FOUND_MAX: Final = 50
# Of how many partitions causes are asked for before they are shown; and how many at a time.
EXPLAINED: Final = 64
AT_ONCE: Final = 8
ASK_TIMEOUT_MS: Final = 5_000
PARTS: Final = ("cluster", "groups", "groups_left_out", "story", "trouble")


class Watcher:
    """Follows a cluster: `run` in a task. `parts` are JSON texts by name."""

    def __init__(self, admin: AdminCore) -> None:
        self._admin = admin
        self._story = Story()
        self._versions = dict.fromkeys(PARTS, 0)
        self._changed = asyncio.Event()
        self._picture = ClusterPicture()
        self._conditions: list[BrokerCondition] = []
        self._followers = 0
        self._looked_at = asyncio.Event()
        # Partitions whose leader changed, and nobody was asked why yet.
        self._unexplained: dict[TopicPartition, None] = {}
        self._moved = asyncio.Event()
        # All groups at the last look, and whose turn it is to ask for those that are looked for.
        self._listed: list[GroupListing] = []
        self._finding = asyncio.Lock()
        self.parts = dict.fromkeys(PARTS, "null")

    async def run(self) -> None:
        """For ever; what does not answer is shown, and asked again."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_cluster())
            group.create_task(self._follow_story())
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

    async def find_groups(self, search: str) -> dict[str, Any]:
        """Groups with these words in their names, of all that there were at the last look."""
        wanted = [each for each in self._listed if showing.matches(search, [each.group])]
        try:
            # One after the other: whoever has many pages open makes them wait, not the cluster.
            async with self._finding:
                found, problem = await self._described(wanted[:GROUPS_FOUND_MAX]), ""
        except TailraceError as error:
            found, problem = [], str(error)
        left_out = max(len(wanted) - GROUPS_FOUND_MAX, 0)
        return {"groups": found, "left_out": left_out, "problem": problem}

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
            self._show_cluster()
            wanted = had_others(after) if before.revision < 0 else moved(before, after)
            if wanted:
                self._unexplained |= dict.fromkeys(wanted)
                self._moved.set()

    def _show_cluster(self) -> None:
        self._put("cluster", showing.cluster(self._picture, self._conditions))

    async def _follow_story(self) -> None:
        """Apart from the map, which goes on however long it takes until somebody says why."""
        while True:
            await self._moved.wait()
            self._moved.clear()
            while self._unexplained:
                portion = list(self._unexplained)[:EXPLAINED]
                if not await self._explain(portion):
                    # No controller is there: its successor knows.
                    await asyncio.sleep(GROUPS_MS / 1_000)

    async def _explain(self, partitions: Iterable[TopicPartition]) -> bool:
        """Ask why; whether there was an answer."""
        left = list(partitions)
        answers = 0

        async def ask() -> None:
            nonlocal answers
            while left:
                each = left.pop()
                # First: it may change again before there is an answer.
                self._unexplained.pop(each, None)
                try:
                    changes = await self._admin.explain(
                        each.topic, each.partition, timeout_ms=ASK_TIMEOUT_MS
                    )
                except TailraceError as error:
                    if error.retriable and each.topic in self._picture.topics:
                        self._unexplained[each] = None
                        continue
                    changes = []
                answers += 1
                # The first leader of a new partition is no event.
                self._story.add(each, [one for one in changes if one.leader_epoch > 0])

        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
        self._put("story", [each.as_dict() for each in self._story.chapters()])
        return answers > 0

    async def _follow_groups(self) -> None:
        while True:
            if not self._followers:
                self._looked_at.clear()
                await self._looked_at.wait()
            try:
                trouble = await self._look_at_brokers()
                if not trouble:
                    await self._look_at_groups()
            except TailraceError as error:
                trouble = str(error)
            self._put("trouble", trouble)
            await asyncio.sleep(GROUPS_MS / 1_000)

    async def _look_at_brokers(self) -> str:
        """Ask each how it is, and show which of its replicas are out of service.

        What is shown stays as it was when the last broker goes away: then that is said.
        """
        if not self._picture.brokers:
            return ""
        told = await self._admin.diagnose_brokers(timeout_ms=ASK_TIMEOUT_MS)
        errors = [each for each in told.values() if isinstance(each, TailraceError)]
        self._conditions = [each for each in told.values() if isinstance(each, BrokerCondition)]
        self._show_cluster()
        if len(errors) < len(told):
            return ""
        return f"no broker answers, so what is shown is what was known last: {errors[0]}"

    async def _look_at_groups(self) -> None:
        """Ask for groups and show them; of very many only some, and how many more there are."""
        listed: list[GroupListing] = []
        if self._picture.coordinators:
            listed = await self._admin.list_groups(timeout_ms=ASK_TIMEOUT_MS)
        # Of too many, those that somebody is in are worth more than those that nobody uses.
        self._listed = sorted(listed, key=lambda each: (not each.members, each.group))
        self._put("groups", await self._described(self._listed[:GROUPS_SHOWN_MAX]))
        self._put("groups_left_out", max(len(listed) - GROUPS_SHOWN_MAX, 0))

    async def _described(self, listed: Iterable[GroupListing]) -> list[dict[str, Any]]:
        found = []
        for each in listed:
            # One that is deleted meanwhile is no trouble.
            with suppress(GroupNotFound):
                about = await self._admin.describe_group(each.group, timeout_ms=ASK_TIMEOUT_MS)
                found.append(showing.group(about))
        return found
