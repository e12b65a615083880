"""One round for the Topic resources of one cluster: the acts that `topics` decides."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from tailrace.aio import Admin
from tailrace.client.describing import TopicDescription
from tailrace.clock import Clock
from tailrace.errors import TailraceError, UnknownTopic
from tailrace.model import settled_count
from tailrace_operator.clusters import TIMEOUT_MS, ClusterLink
from tailrace_operator.kube import Kube
from tailrace_operator.manifests import Manifest
from tailrace_operator.reconcile import Conditions
from tailrace_operator.spec import GROUP, VERSION, TopicSpec
from tailrace_operator.topics import (
    Action,
    AddPartitions,
    Configure,
    Create,
    Existing,
    Made,
    Nothing,
    Refuse,
    decide,
    read_made,
    to_delete,
    write_made,
)

DELETIONS_PER_ROUND_MAX: Final = 20
# Requests that run into their time limits add up: clusters must not wait for topics much longer.
ROUND_MAX_MS: Final = 15_000


class TopicRounds:
    """The topics of one cluster, once."""

    def __init__(
        self, kube: Kube, link: ClusterLink, cluster: Manifest, now: str, *, clock: Clock
    ) -> None:
        self._kube = kube
        self._link = link
        self._cluster = cluster
        self._now = now
        self._clock = clock
        self._list_name = f"{cluster['metadata']['name']}-topics"

    async def play(self, wanted: Sequence[tuple[TopicSpec, Manifest]]) -> None:
        ends_ms = self._clock.monotonic_ms() + ROUND_MAX_MS
        made = await self._made()
        uids = frozenset(resource["metadata"]["uid"] for _, resource in wanted)
        gone = to_delete(made, uids)
        if not wanted and not gone:
            return
        admin = await self._link.admin()
        there = {each.topic: each for each in await admin.describe_topics(timeout_ms=TIMEOUT_MS)}
        taken: dict[str, str] = {}
        # Of several that name one topic it belongs to the one that it was made for.
        mine = {topic: each.uid for topic, each in made.items()}
        for spec, resource in sorted(
            wanted, key=lambda each: mine.get(each[0].topic) != each[1]["metadata"]["uid"]
        ):
            if self._clock.monotonic_ms() >= ends_ms:
                # The others have their turn when this one answers again.
                return
            name = resource["metadata"]["name"]
            if taken.setdefault(spec.topic, name) != name:
                await self._say(resource, None, f"Topic {taken[spec.topic]} has this topic already")
                continue
            await self._one(admin, spec, resource, there.get(spec.topic), made)
        # Who deletes a namespace may want it back, with the records that its volumes kept. Asked
        # after the list: resources that go with their namespace go after it was marked.
        if gone and await self._kube.namespace_is_going():
            return
        for topic, each in list(gone.items())[:DELETIONS_PER_ROUND_MAX]:
            if self._clock.monotonic_ms() >= ends_ms:
                return
            await self._delete(admin, topic, each, made)

    async def _one(
        self,
        admin: Admin,
        spec: TopicSpec,
        resource: Manifest,
        found: TopicDescription | None,
        made: dict[str, Made],
    ) -> None:
        now = None if found is None else existing(found)
        action = decide(spec, now)
        try:
            await self._act(admin, spec, resource, action, made)
            if not isinstance(action, Nothing | Refuse):
                now = existing(await admin.describe_topic(spec.topic, timeout_ms=TIMEOUT_MS))
        except TailraceError as error:
            await self._say(resource, now, str(error))
            return
        await self._say(resource, now, action.why if isinstance(action, Refuse) else "")

    async def _act(
        self,
        admin: Admin,
        spec: TopicSpec,
        resource: Manifest,
        action: Action,
        made: dict[str, Made],
    ) -> None:
        match action:
            case Create():
                topic = await admin.create_topic(
                    spec.topic,
                    partitions=spec.partitions,
                    replication_factor=spec.replicas,
                    config=dict(spec.config),
                    timeout_ms=TIMEOUT_MS,
                )
                made[spec.topic] = Made(topic_id=topic.topic_id, uid=resource["metadata"]["uid"])
                await self._remember(made)
            case AddPartitions(total):
                await admin.add_partitions(spec.topic, total, timeout_ms=TIMEOUT_MS)
            case Configure(changed, unset):
                await admin.alter_config(
                    "topics", spec.topic, changed, unset=unset, timeout_ms=TIMEOUT_MS
                )
            case Refuse() | Nothing():
                pass

    async def _delete(self, admin: Admin, topic: str, each: Made, made: dict[str, Made]) -> None:
        """Only the very topic that was made: one of the same name made since has another id."""
        with suppress(UnknownTopic):
            await admin.delete_topic(topic, topic_id=each.topic_id, timeout_ms=TIMEOUT_MS)
        del made[topic]
        await self._remember(made)

    async def _made(self) -> dict[str, Made]:
        found = await self._kube.get("v1", "ConfigMap", self._list_name)
        return read_made((found or {}).get("data"))

    async def _remember(self, made: dict[str, Made]) -> None:
        metadata = self._cluster["metadata"]
        await self._kube.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": self._list_name,
                    "namespace": metadata["namespace"],
                    "ownerReferences": [
                        {
                            "apiVersion": f"{GROUP}/{VERSION}",
                            "kind": "Cluster",
                            "name": metadata["name"],
                            "uid": metadata["uid"],
                        }
                    ],
                },
                "data": write_made(made),
            }
        )

    async def _say(self, resource: Manifest, now: Existing | None, problem: str) -> None:
        before = resource.get("status") or {}
        well = now is not None and not problem and not now.offline
        message = problem or _sentence(now)
        say = Conditions(resource, message, self._now)
        status: dict[str, Any] = {
            "observedGeneration": say.generation,
            "message": message,
            "conditions": [say("Ready", holds=well, reason="AsWanted" if well else "NotAsWanted")],
        }
        if now is not None:
            status |= {
                "topicId": now.topic_id,
                "partitions": now.partitions,
                "replicas": now.replicas,
                "isr": f"{now.in_sync}/{now.partitions * now.replicas}",
            }
        if any(before.get(key) != value for key, value in status.items()):
            await self._kube.patch_status("Topic", resource["metadata"]["name"], status)


def _sentence(now: Existing | None) -> str:
    if now is None:
        return "the topic is not there yet"
    if now.offline:
        return f"{now.offline} partitions are offline"
    if now.in_sync < now.partitions * now.replicas:
        return "not all replicas are in sync"
    return ""


def existing(topic: TopicDescription) -> Existing:
    """What a description of the cluster's comes down to."""
    return Existing(
        topic_id=topic.topic_id,
        partitions=len(topic.partitions),
        # While replicas move there are more of them than the topic will have.
        replicas=max(
            (
                settled_count(
                    len(each.replicas), adding=len(each.adding), removing=len(each.removing)
                )
                for each in topic.partitions
            ),
            default=0,
        ),
        config=topic.config,
        in_sync=sum(
            len({*each.isr} - {*each.adding}) for each in topic.partitions if each.leader >= 0
        ),
        offline=sum(each.leader < 0 for each in topic.partitions),
        deleting=topic.deleting,
    )
