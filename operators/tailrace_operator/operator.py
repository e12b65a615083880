"""The loop of the operator: every few seconds, or when something changed, a round for everything.

Watches only wake it: each round lists anew what there is, so a watch that has gone deaf costs some
seconds and nothing else. When no list has succeeded for a while the operator says that it is not
alive, and is started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from tailrace.clock import Clock
from tailrace.errors import TailraceError
from tailrace_operator.clusters import ClusterLink
from tailrace_operator.drill_rounds import DrillRounds
from tailrace_operator.drilling import Drilling
from tailrace_operator.kube import OWN_VERSION, Kube, KubeError
from tailrace_operator.manifests import BROKER, Manifest
from tailrace_operator.metrics import Metrics
from tailrace_operator.reconcile import Conditions, Moments, Outcome, reconcile
from tailrace_operator.rollout import Settled, Wait
from tailrace_operator.spec import CLUSTER_LABEL, ROLE_LABEL, InvalidSpec, read_topic
from tailrace_operator.topic_rounds import TopicRounds

ROUND_EVERY_S: Final = 5.0
ROUND_GAP_S: Final = 0.5
# Without a list that succeeded for this long, the operator wants to be started anew.
DEAF_AFTER_S: Final = 90.0
# A controller that was just replaced is asked in vain; the next one is not.
FENCE_TRIES: Final = 3


class Operator:
    """All clusters and topics of one namespace."""

    def __init__(
        self,
        kube: Kube,
        *,
        clock: Clock,
        moments: Moments,
        say: Callable[[str], None],
        leading: Callable[[], bool] = lambda: True,
        metrics: Metrics | None = None,
        link: Callable[[str], ClusterLink] = ClusterLink,
        drilling: Callable[..., Drilling] = Drilling,
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._moments = moments
        self._say = say
        self._is_leading = leading
        self._metrics = metrics or Metrics()
        self._make_link = link
        self._links: dict[str, ClusterLink] = {}
        self._drills = DrillRounds(
            kube,
            clock=clock,
            moment=moments.write,
            say=say,
            metrics=self._metrics,
            make=drilling,
        )
        self._wake = asyncio.Event()
        self._last_list_ms = clock.monotonic_ms()
        self._said: dict[str, str] = {}

    @property
    def is_alive(self) -> bool:
        return self._clock.monotonic_ms() - self._last_list_ms < DEAF_AFTER_S * 1000

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            self._wake.clear()
            try:
                await (self.round() if self._is_leading() else self.stand_by())
            except KubeError as error:
                self._metrics.errors.labels("api").inc()
                self._once("api", str(error))
            await asyncio.sleep(ROUND_GAP_S)
            try:
                async with asyncio.timeout(ROUND_EVERY_S):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def stand_by(self) -> None:
        """Somebody else acts; we only see to it that we would hear."""
        await self._drills.close()
        await self._listed()

    async def _listed(self) -> tuple[list[Manifest], list[Manifest], list[Manifest]]:
        found = [await self._kube.list(OWN_VERSION, kind) for kind in ("Cluster", "Topic", "Drill")]
        self._last_list_ms = self._clock.monotonic_ms()
        self._metrics.last_list.set(self._clock.wall_ms() / 1000)
        return found[0], found[1], found[2]

    async def round(self) -> None:
        """Look at everything once, and do what is next."""
        began_ms = self._clock.monotonic_ms()
        found, topics, drills = await self._listed()
        # One that is being deleted is left to Kubernetes: what it takes away must not be made anew.
        clusters = [each for each in found if "deletionTimestamp" not in each["metadata"]]
        names = {each["metadata"]["name"] for each in clusters}
        for name in [each for each in self._links if each not in names]:
            await self._links.pop(name).close()
        for resource in clusters:
            if not self._is_leading():
                return
            await self._cluster(resource)
        await self._topics(clusters, topics)
        paused = {_name(each) for each in clusters if (each.get("spec") or {}).get("paused")}
        links = {_name(each): self._link(_name(each)) for each in clusters}
        await self._drills.play(drills, links, frozenset(paused))
        self._metrics.rounds.observe((self._clock.monotonic_ms() - began_ms) / 1000)

    async def pod_gone(self, pod: Mapping[str, Any]) -> None:
        """Kubernetes says that a pod is no more: its broker is fenced at once."""
        labels = pod["metadata"].get("labels") or {}
        cluster, name = labels.get(CLUSTER_LABEL, ""), pod["metadata"]["name"]
        ordinal = name.rpartition("-")[2]
        link = self._links.get(cluster)
        is_broker = labels.get(ROLE_LABEL) == BROKER and ordinal.isdigit()
        if is_broker and link is not None and self._is_leading():
            self._metrics.fences.labels(cluster).inc()
            for _ in range(FENCE_TRIES):
                sure, told = await link.fence(
                    int(ordinal), instance=pod["metadata"]["uid"], reason=f"the pod {name} is gone"
                )
                self._say(f"{cluster}: {told}")
                if sure:
                    break
        self.wake()

    async def close(self) -> None:
        await self._drills.close()
        for link in self._links.values():
            await link.close()
        self._links.clear()

    async def _cluster(self, resource: Manifest) -> None:
        name = resource["metadata"]["name"]
        link = self._link(name)
        try:
            outcome = await reconcile(
                resource,
                api=self._kube,
                link=link,
                moments=self._moments,
                now_ms=self._clock.wall_ms(),
            )
        except KubeError as error:
            self._metrics.errors.labels(name).inc()
            self._once(name, str(error))
            return
        if outcome is None:
            return
        for each in outcome.changed:
            self._say(f"{name}: {each} applied")
        step = outcome.step
        self._measure(name, outcome)
        self._once(name, "all is as wanted" if isinstance(step, Settled) else step.why)
        if not isinstance(step, Wait | Settled):
            self.wake()

    def _measure(self, cluster: str, outcome: Outcome) -> None:
        metrics, health = self._metrics, outcome.health
        if not isinstance(outcome.step, Wait | Settled):
            metrics.steps.labels(cluster, type(outcome.step).__name__).inc()
        metrics.brokers.labels(cluster).set(len(health.brokers))
        metrics.ready.labels(cluster).set(health.is_whole)
        metrics.under_replicated.labels(cluster).set(health.under_replicated)
        metrics.offline.labels(cluster).set(health.offline)

    async def _topics(self, clusters: list[Manifest], topics: list[Manifest]) -> None:
        for cluster in clusters:
            name = cluster["metadata"]["name"]
            mine = []
            for resource in topics:
                try:
                    spec = read_topic(resource["metadata"]["name"], resource.get("spec") or {})
                except InvalidSpec as error:
                    await self._refused(resource, str(error))
                    continue
                if spec.cluster == name:
                    mine.append((spec, resource))
            rounds = TopicRounds(
                self._kube, self._link(name), cluster, self._now(), clock=self._clock
            )
            try:
                await rounds.play(mine)
            except (KubeError, TailraceError) as error:
                self._once(f"topics of {name}", str(error))
        known = {each["metadata"]["name"] for each in clusters}
        for resource in topics:
            wanted = (resource.get("spec") or {}).get("cluster", "")
            if wanted not in known:
                await self._refused(resource, f"there is no Cluster {wanted!r} in this namespace")

    async def _refused(self, resource: Manifest, message: str) -> None:
        if (resource.get("status") or {}).get("message") == message:
            return
        say = Conditions(resource, message, self._now())
        conditions = [say("Ready", holds=False, reason="Refused")]
        status = {"message": message, "conditions": conditions}
        await self._kube.patch_status("Topic", resource["metadata"]["name"], status)

    def _link(self, cluster: str) -> ClusterLink:
        link = self._links.get(cluster)
        if link is None:
            bootstrap = f"{cluster}-bootstrap.{self._kube.namespace}.svc:9092"
            link = self._links[cluster] = self._make_link(bootstrap)
        return link

    def _now(self) -> str:
        return self._moments.write(self._clock.wall_ms())

    def _once(self, about: str, text: str) -> None:
        """Say it when it is news."""
        if self._said.get(about) != text:
            self._said[about] = text
            self._say(f"{about}: {text}")


def _name(resource: Manifest) -> str:
    return str(resource["metadata"]["name"])
