"""The nemesis: real processes, random mixes of faults, a load that is checked to the last record.

    make nemesis MINUTES=10 SEED=7

The faults of a run come from its seed; what the machine cannot do is said and left out. The report
lists every fault with its time, the longest waits of the producers, and a verdict: nothing that was
acknowledged is lost, nothing is there twice or out of order per key, no reader ever saw a record
that was not there later, and after every round all was well again. The exit code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from integration.cluster_harness import connected, stop
from nemesis.injector import Injector
from nemesis.machine import Machine, enter_private_namespaces
from nemesis.plan import Kind, Step, plan
from nemesis.verdict import Verdict
from nemesis.workload import Pause, Workload
from tailrace.dev.cluster import DevCluster, Plan

BROKERS, CONTROLLERS, PARTITIONS = 3, 2, 4
TOPIC = "nemesis"
LEASE_MS = 3_000


@dataclass(frozen=True)
class Report:
    """All that a run has to say."""

    seed: int
    minutes: float
    missing: dict[str, str]
    faults: list[dict[str, object]]
    sent: int
    acknowledged: int
    failed: int
    stored: int
    pauses: list[Pause]
    calms_s: list[float]
    unasked: list[str]
    problems: list[str]
    violations: list[str]

    @property
    def is_good(self) -> bool:
        return not self.violations and not self.problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=None, help="any number; a new one if not given")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plan", action="store_true", help="only print what would be done")
    parser.add_argument("--only", action="append", help="a kind of fault, again for more")
    parser.add_argument("--keep", default="", help="keep logs and data in this folder")
    arguments = parser.parse_args()
    if arguments.seed is None:
        arguments.seed = random.randrange(1_000_000)
        sys.argv += ["--seed", str(arguments.seed)]
    private = enter_private_namespaces()
    with tempfile.TemporaryDirectory(
        # A report of ten minutes must not be lost to a disk that is busy yet.
        prefix="tailrace-nemesis-",
        ignore_cleanup_errors=True,
    ) as temporary:
        folder = Path(arguments.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        report = prepared(folder, arguments, private)
    if report is None:
        return 0
    if arguments.json:
        json.dump({**asdict(report), "good": report.is_good}, sys.stdout)
        print()
    else:
        print("\n".join(lines(report)))
    return 0 if report.is_good else 1


def prepared(folder: Path, arguments: argparse.Namespace, private: str) -> Report | None:
    """Set everything up, run, take it down."""
    brokers = [f"broker-{number + 1}" for number in range(BROKERS)]
    controllers = [f"controller-{number + 1}" for number in range(CONTROLLERS)]
    machine = Machine(folder, [*brokers, *controllers], private)
    try:
        kinds = [each for each in machine.kinds if each.value in (arguments.only or list(Kind))]
        steps = plan(
            arguments.seed,
            arguments.minutes * 60,
            brokers=brokers,
            controllers=controllers,
            kinds=kinds,
        )
        if arguments.plan:
            print("\n".join(planned_line(step) for step in steps))
            return None
        for name in brokers:
            machine.make_disk(folder / "cluster" / name)
        dev = DevCluster(folder / "cluster", hosts=machine.hosts, command_for=machine.command_for)
        lease = {"broker.lease.ttl.ms": str(LEASE_MS)}
        asyncio.run(
            dev.up(
                Plan(
                    brokers=BROKERS,
                    controllers=CONTROLLERS,
                    broker_settings=lease,
                    controller_settings=lease,
                    etcd_fsync=False,
                )
            )
        )
        try:
            return asyncio.run(played(dev, machine, steps, arguments))
        finally:
            stop(dev)
    finally:
        machine.close()


async def played(
    dev: DevCluster, machine: Machine, steps: list[Step], arguments: argparse.Namespace
) -> Report:
    async with connected(dev) as cluster:
        await cluster.admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        load = Workload(cluster, TOPIC, PARTITIONS)
        injector = Injector(cluster, machine, TOPIC)
        loading = asyncio.ensure_future(load.run())
        watching = asyncio.ensure_future(injector.watch())
        try:
            acting = asyncio.ensure_future(injector.run(steps))
            await asyncio.wait([acting, loading, watching], return_when=asyncio.FIRST_COMPLETED)
            for task in (acting, loading, watching):
                if task.done():
                    task.result()
            verdict, stored = await load.finish()
        finally:
            for task in (loading, watching):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
    return reported(arguments, machine, injector, load, verdict, stored)


def reported(
    arguments: argparse.Namespace,
    machine: Machine,
    injector: Injector,
    load: Workload,
    verdict: Verdict,
    stored: int,
) -> Report:
    return Report(
        seed=arguments.seed,
        minutes=arguments.minutes,
        missing=machine.missing,
        faults=[
            {
                **asdict(each.step),
                "began_s": each.began_s,
                "ended_s": each.ended_s,
                "result": each.result,
            }
            for each in injector.done
        ],
        sent=sum(load.sent.values()),
        acknowledged=len(load.acked),
        failed=len(load.failures),
        stored=stored,
        pauses=load.pauses(),
        calms_s=[round(each, 1) for each in injector.calms_s],
        unasked=injector.unasked,
        problems=[*injector.problems, *load.problems, *load.failures[:20]],
        violations=verdict.lines(),
    )


def lines(report: Report) -> list[str]:
    """The report for people."""
    counts: dict[str, int] = {}
    found = [f"nemesis, seed {report.seed}, {report.minutes:g} minutes"]
    found += [f"  not possible here: {what}: {why}" for what, why in report.missing.items()]
    for each in report.faults:
        found.append(
            f"  {each['began_s']:7.1f} s  {each['kind']:30} {each['target']:24} "
            f"{each['seconds']:5.1f} s  {each['result']}"
        )
        if not str(each["result"]).startswith("skipped"):
            counts[str(each["kind"])] = counts.get(str(each["kind"]), 0) + 1
    found.append("faults: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    found.append(
        f"records: {report.sent} sent, {report.acknowledged} acknowledged, {report.failed} failed, "
        f"{report.stored} stored"
    )
    found.append("longest waits of a producer:")
    found += [
        f"  {pause.ms / 1000:6.2f} s from {pause.at_s:.1f} s on, partition {pause.partition}"
        for pause in report.pauses
    ]
    found += [f"ended unasked: {each}" for each in report.unasked]
    found += [f"PROBLEM: {each}" for each in report.problems]
    found += [f"VIOLATION: {each}" for each in report.violations]
    found.append(
        "verdict: good: nothing lost, twice, out of order, or seen and gone"
        if report.is_good
        else "verdict: NOT GOOD"
    )
    return found


def planned_line(step: Step) -> str:
    return (
        f"{step.at_s:7.1f} s  {step.kind:30} {step.target:24} {step.seconds:5.1f} s {step.amount}"
    )


if __name__ == "__main__":
    sys.exit(main())
