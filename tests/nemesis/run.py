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
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from integration.cluster_harness import connected, stop
from nemesis.clients import Clients
from nemesis.injector import Injector
from nemesis.machine import Machine, enter_private_namespaces, run_folder
from nemesis.plan import Kind, Processes, Step, plan
from nemesis.verdict import Verdict
from nemesis.workload import Pause
from tailrace.dev.cluster import DevCluster, Plan

BROKERS, CONTROLLERS, COORDINATORS, CLIENTS = 3, 2, 2, 3
PARTITIONS = 4
TOPIC = "nemesis"
# Written to by the nemesis itself, to see that records are acknowledged again.
PROBE = "probe"
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
    processed: int
    pauses: list[Pause]
    calms_s: list[float]
    unasked: list[str]
    problems: list[str]
    # How many of each kind of wrong: lost, twice, disordered and so on.
    wrong: dict[str, int]
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
    if private:
        print(f"nemesis: {private}: no network faults, no full disks", file=sys.stderr)
    with run_folder(arguments.keep) as folder:
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
    processes = Processes(
        brokers=_named("broker", BROKERS),
        controllers=_named("controller", CONTROLLERS),
        coordinators=_named("coordinator", COORDINATORS),
        clients=_named("client", CLIENTS),
    )
    services = [*processes.brokers, *processes.controllers, *processes.coordinators]
    machine = Machine(folder, services, processes.clients, private)
    try:
        kinds = [each for each in machine.kinds if each.value in (arguments.only or list(Kind))]
        steps = plan(arguments.seed, arguments.minutes * 60, processes=processes, kinds=kinds)
        if arguments.plan:
            print("\n".join(planned_line(step) for step in steps))
            return None
        for name in processes.brokers:
            machine.make_disk(folder / "cluster" / name)
        dev = DevCluster(folder / "cluster", hosts=machine.hosts, command_for=machine.command_for)
        asyncio.run(dev.up(_cluster()))
        try:
            return asyncio.run(played(dev, machine, processes, steps, arguments))
        finally:
            stop(dev)
    finally:
        machine.close()


def _named(what: str, count: int) -> list[str]:
    return [f"{what}-{number + 1}" for number in range(count)]


def _cluster() -> Plan:
    lease = {"broker.lease.ttl.ms": str(LEASE_MS)}
    return Plan(
        brokers=BROKERS,
        controllers=CONTROLLERS,
        coordinators=COORDINATORS,
        broker_settings=lease,
        controller_settings=lease,
        etcd_fsync=False,
    )


async def played(
    dev: DevCluster,
    machine: Machine,
    processes: Processes,
    steps: list[Step],
    arguments: argparse.Namespace,
) -> Report:
    async with connected(dev) as cluster:
        for topic, partitions in ((TOPIC, PARTITIONS), (PROBE, PARTITIONS)):
            await cluster.admin.create_topic(topic, partitions=partitions, replication_factor=3)
        clients = Clients(
            cluster, TOPIC, PARTITIONS, processes.clients, dev.folder, machine.command_for
        )
        injector = Injector(cluster, machine, [TOPIC, PROBE])
        await clients.start()
        watching = asyncio.ensure_future(injector.watch())
        acting = asyncio.ensure_future(injector.run(steps))
        ending = asyncio.ensure_future(clients.ended())
        try:
            await asyncio.wait([acting, ending, watching], return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                injector.problems.append(ending.result())
            for task in (acting, watching):
                if task.done():
                    task.result()
            verdict = await clients.finish()
        finally:
            waiting: tuple[asyncio.Future[Any], ...] = (acting, ending, watching)
            for each in waiting:
                each.cancel()
                with suppress(asyncio.CancelledError):
                    await each
            await clients.close()
    return reported(arguments, machine, injector, clients, verdict)


def reported(
    arguments: argparse.Namespace,
    machine: Machine,
    injector: Injector,
    clients: Clients,
    verdict: Verdict,
) -> Report:
    seen = clients.observed
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
        sent=sum(seen.sent.values()),
        acknowledged=len(seen.acked),
        failed=len(seen.failures),
        stored=clients.stored,
        processed=sum(map(len, seen.processed.values())),
        pauses=clients.pauses(injector.began * 1_000),
        calms_s=[round(each, 1) for each in injector.calms_s],
        unasked=injector.unasked,
        problems=[*injector.problems, *seen.problems, *seen.failures[:20]],
        wrong={name: len(found) for name, found in asdict(verdict).items()},
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
        f"{report.stored} stored, {report.processed} processed by the group"
    )
    found.append("longest waits of a producer:")
    found += [
        f"  {pause.ms / 1000:6.2f} s from {pause.from_ms / 1000:.1f} s on, "
        f"partition {pause.partition}"
        for pause in report.pauses
    ]
    found.append("rounds: " + ", ".join(f"well after {each} s" for each in report.calms_s))
    found.append("wrong: " + ", ".join(f"{count} {name}" for name, count in report.wrong.items()))
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
