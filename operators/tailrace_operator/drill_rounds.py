"""The Drill resources of a namespace: which begins now, and what their statuses say.

One drill at a time for each cluster. A drill that a dead operator has left is put right and ended:
nobody knows what its probe has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tailrace.clock import Clock
from tailrace.runtime import Tasks
from tailrace_operator.clusters import ClusterLink
from tailrace_operator.drilling import Drilling, delete_topic
from tailrace_operator.drills import Phase, Report, Verdict, turn
from tailrace_operator.kube import Kube, KubeError
from tailrace_operator.manifests import Manifest
from tailrace_operator.metrics import Metrics
from tailrace_operator.reconcile import Conditions
from tailrace_operator.spec import DrillSpec, InvalidSpec, read_drill
from tailrace_operator.strikes import forget, restore

# How many former runs a status tells of.
RUNS_KEPT: Final = 10
RUNNING: Final = "Running"
PENDING: Final = "Pending"


@dataclass(slots=True)
class _Running:
    uid: str
    drilling: Drilling


class DrillRounds:
    """Lives as long as the operator; `play` is called with everything there is, every round."""

    def __init__(
        self,
        kube: Kube,
        *,
        clock: Clock,
        moment: Callable[[int], str],
        say: Callable[[str], None],
        metrics: Metrics,
        make: Callable[..., Drilling] = Drilling,
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._moment = moment
        self._metrics = metrics
        self._say = say
        self._make = make
        self._running: dict[str, _Running] = {}
        self._tasks = self._new_tasks()

    async def play(
        self, drills: Sequence[Manifest], links: Mapping[str, ClusterLink], paused: frozenset[str]
    ) -> None:
        there = {each["metadata"]["uid"] for each in drills}
        for cluster, each in self._running.items():
            if each.uid not in there:
                each.drilling.stop("the Drill was deleted")
            elif cluster not in links:
                each.drilling.stop(f"the Cluster {cluster} was deleted")
        for resource in sorted(drills, key=lambda each: str(each["metadata"]["name"])):
            name = resource["metadata"]["name"]
            try:
                spec = read_drill(name, resource.get("spec") or {})
                await self._one(spec, resource, links, paused)
            except InvalidSpec as error:
                await self._write(resource, {"phase": "Refused", "message": str(error)})

    async def close(self) -> None:
        """End all drills that run, with everything put right; others may begin later."""
        tasks, self._tasks = self._tasks, self._new_tasks()
        await tasks.close()

    def _new_tasks(self) -> Tasks:
        return Tasks(lambda name, error: self._say(f"{name} failed: {error!r}"))

    def _timestamp(self) -> str:
        return self._moment(self._clock.wall_ms())

    @property
    def running(self) -> int:
        return len(self._running)

    async def _one(
        self,
        spec: DrillSpec,
        resource: Manifest,
        links: Mapping[str, ClusterLink],
        paused: frozenset[str],
    ) -> None:
        status = resource.get("status") or {}
        uid = resource["metadata"]["uid"]
        current = self._running.get(spec.cluster)
        if current is not None and current.uid == uid:
            return
        if status.get("phase") == RUNNING:
            # One of ours may have ended since the list was made.
            now = await self._kube.get(resource["apiVersion"], "Drill", spec.name) or {}
            is_same = (now.get("metadata") or {}).get("uid") == uid
            if is_same and (now.get("status") or {}).get("phase") == RUNNING:
                await self._orphan(spec, now, links.get(spec.cluster))
            return
        if status.get("restore") and not await self._put_right(resource, status):
            return
        now_ms = self._clock.wall_ms()
        ran = status.get("phase") in {each.value for each in Verdict}
        due = turn(spec, ran=ran, next_ms=status.get("nextAtMs"), now_ms=now_ms)
        if not due.now:
            await self._say_when(resource, status, due.next_ms)
            return
        waits_for = _waits_for(spec, links, paused, current is not None)
        if waits_for:
            await self._write(resource, {"phase": PENDING, "message": waits_for})
            return
        await self._begin(spec, resource, links[spec.cluster], due.next_ms)

    async def _begin(
        self, spec: DrillSpec, resource: Manifest, link: ClusterLink, next_ms: int | None
    ) -> None:
        number = int((resource.get("status") or {}).get("run") or 0) + 1
        topic = f"drill-{spec.name}-{number}"
        await self._write(
            resource,
            {
                "phase": RUNNING,
                "step": Phase.CHECKING.value,
                "run": number,
                "topic": topic,
                "startedAt": self._timestamp(),
                "endedAt": None,
                "report": None,
                "message": f"{spec.kind} of {spec.cluster}",
                **self._when(next_ms),
            },
        )
        drilling = self._make(
            self._kube,
            link,
            spec,
            topic=topic,
            clock=self._clock,
            timestamp=self._timestamp,
        )
        self._running[spec.cluster] = _Running(resource["metadata"]["uid"], drilling)
        self._say(f"{spec.cluster}: drill {spec.name} begins: {spec.kind}")
        self._tasks.spawn(f"drill {spec.name}", self._run(spec, resource, drilling))

    async def _run(self, spec: DrillSpec, resource: Manifest, drilling: Drilling) -> None:
        async def stepped(phase: Phase) -> None:
            try:
                await self._kube.patch_status("Drill", spec.name, {"step": phase.value})
            except KubeError:
                # The step is for people who watch; the report at the end is what counts.
                return

        try:
            report = await drilling.run(stepped)
            await self._end(spec, resource, report)
        finally:
            del self._running[spec.cluster]

    async def _end(self, spec: DrillSpec, resource: Manifest, report: Report) -> None:
        self._say(f"{spec.cluster}: drill {spec.name} {report.verdict.value}: {report.message}")
        self._metrics.drills.labels(spec.cluster, spec.kind, report.verdict.value).inc()
        now = await self._kube.get(resource["apiVersion"], "Drill", spec.name)
        if now is None or now["metadata"]["uid"] != resource["metadata"]["uid"]:
            return
        told = report.as_dict()
        run = {
            "run": (now.get("status") or {}).get("run", 0),
            "endedAt": self._timestamp(),
            **{key: value for key, value in told.items() if key not in {"timeline", "message"}},
        }
        before = list((now.get("status") or {}).get("runs") or [])
        await self._write(
            now,
            {
                "phase": report.verdict.value,
                "step": None,
                "endedAt": run["endedAt"],
                "message": report.message,
                "report": told,
                "runs": [run, *before][:RUNS_KEPT],
            },
        )
        await self._kube.event(
            now,
            reason=f"Drill{report.verdict.value}",
            message=report.message,
            warning=report.verdict is not Verdict.PASSED,
        )

    async def _put_right(self, resource: Manifest, status: Mapping[str, Any]) -> bool:
        """One try; what is left is told in the status."""
        try:
            await restore(self._kube, status["restore"], tries=1)
        except KubeError as error:
            what = " ".join(f"{key}={value}" for key, value in status["restore"].items())
            message = f"what was stopped is not put right yet ({what}): {error}"
            await self._write(resource, {**_kept(status), "message": message})
            return False
        await forget(self._kube, resource["metadata"]["name"])
        return True

    async def _orphan(self, spec: DrillSpec, resource: Manifest, link: ClusterLink | None) -> None:
        status = resource["status"]
        if status.get("restore") and not await self._put_right(resource, status):
            return
        if link is not None and status.get("topic") and not spec.keep_topic:
            await delete_topic(link, str(status["topic"]))
        message = "the operator ended in the middle of it; what it had stopped was put right"
        await self._write(
            resource,
            {
                "phase": Verdict.ABORTED.value,
                "step": None,
                "endedAt": self._timestamp(),
                "message": message,
            },
        )
        await self._kube.event(resource, reason="DrillAborted", message=message, warning=True)

    async def _say_when(
        self, resource: Manifest, status: Mapping[str, Any], next_ms: int | None
    ) -> None:
        if status.get("nextAtMs") != next_ms:
            phase = {} if status.get("phase") else {"phase": PENDING}
            await self._write(resource, {**phase, **self._when(next_ms)})

    def _when(self, next_ms: int | None) -> dict[str, Any]:
        return {
            "nextAtMs": next_ms,
            "nextAt": None if next_ms is None else self._moment(next_ms),
        }

    async def _write(self, resource: Manifest, status: dict[str, Any]) -> None:
        before = resource.get("status") or {}
        phase = status.get("phase", before.get("phase", PENDING))
        say = Conditions(resource, str(status.get("message", "")), self._timestamp())
        done = phase == Verdict.PASSED.value
        wanted = {
            **status,
            "observedGeneration": say.generation,
            "conditions": [say("Passed", holds=done, reason=str(phase))],
        }
        if any(before.get(key) != value for key, value in wanted.items()):
            await self._kube.patch_status("Drill", resource["metadata"]["name"], wanted)


def _waits_for(
    spec: DrillSpec, links: Mapping[str, ClusterLink], paused: frozenset[str], is_busy: bool
) -> str:
    """Why it cannot begin yet; empty: it can."""
    if spec.cluster not in links:
        return f"there is no Cluster {spec.cluster!r} in this namespace"
    if spec.cluster in paused:
        return f"{spec.cluster} is paused"
    return "another drill of this cluster is under way" if is_busy else ""


def _kept(status: Mapping[str, Any]) -> dict[str, Any]:
    """The phase stays what it is."""
    return {"phase": status["phase"]} if "phase" in status else {}
