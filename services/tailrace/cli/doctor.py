"""`tailrace doctor`: look at a cluster and at this machine, say what is wrong and what to do.

This is the part that asks and prints; what the answers mean is in `cli.diagnosis` and
`cli.machine`. Whatever does not answer is a finding, never an error: who calls a doctor is in
trouble already.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from tailrace.cli.asking import Asking
from tailrace.cli.connecting import connection, run
from tailrace.cli.diagnosis import ClusterFacts, Finding, Look, Severity, examine, worst
from tailrace.cli.formatting import counted, safe
from tailrace.cli.machine import dev_state, examine_machine, look_at_machine
from tailrace.cli.output import print_json, stdout_console
from tailrace.client.admin import AdminCore
from tailrace.client.describing import describe_topic
from tailrace.clock import Clock, SystemClock
from tailrace.dev.folder import default_folder
from tailrace.dev.state import Role
from tailrace.errors import InvalidConfig, TailraceError
from tailrace.transport.addresses import split_address

EXIT_WRONG: Final = 1
# How long reassignments are watched before they are called stuck.
WATCH_MS: Final = 3_000
# How long a controller may take to answer while brokers do not believe the store.
STALE_MS: Final = 2_000
# Whoever does not take a connection within this does not answer.
CONNECT_MS: Final = 2_000
ANSWER_BYTES_MAX: Final = 64 * 1024

_STYLES: Final = {
    Severity.OK: "green",
    Severity.HINT: "cyan",
    Severity.WARNING: "yellow",
    Severity.CRITICAL: "bold red",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What else to look at: etcd, data folders, config files."""

    etcd: tuple[str, ...] = ()
    data: tuple[Path, ...] = ()
    configs: tuple[Path, ...] = ()


def doctor(asking: Asking, wanted: Wanted) -> int:
    """Look at everything and print it; returns the exit code."""
    clock = SystemClock()
    folder = default_folder(os.environ)
    facts = look_at_machine(
        clock, os.environ, dev_folder=folder, data=wanted.data, configs=wanted.configs
    )
    findings = examine_machine(facts)
    findings += _of_cluster(asking, wanted.etcd or _dev_etcd(asking, folder), clock)
    show(findings, as_json=asking.as_json)
    return EXIT_WRONG if worst(findings) >= Severity.WARNING else 0


def show(findings: Sequence[Finding], *, as_json: bool) -> None:
    """The worst first; what is well last, in a line each."""
    ordered = sorted(findings, key=lambda each: -each.severity)
    if as_json:
        for each in ordered:
            print_json(each.as_dict())
        return
    console = stdout_console()
    for each in ordered:
        _show(console, each)
    console.print(summary(findings))


def summary(findings: Sequence[Finding]) -> str:
    """What it comes to, in a line."""
    counts = [
        counted(sum(each.severity is severity for each in findings), noun)
        for severity, noun in (
            (Severity.CRITICAL, "critical finding"),
            (Severity.WARNING, "warning"),
        )
        if any(each.severity is severity for each in findings)
    ]
    return f"{' and '.join(counts)}." if counts else "Nothing is wrong."


def _show(console: Console, finding: Finding) -> None:
    style = _STYLES[finding.severity]
    line = Text.assemble(
        (f"{finding.severity.name.lower():8}", style), f"  {finding.check:13}  {safe(finding.what)}"
    )
    console.print(line, soft_wrap=True)
    if finding.do:
        console.print(Text(f"{'':8}  {'':13}  → {safe(finding.do)}", style="dim"), soft_wrap=True)


def _dev_etcd(asking: Asking, folder: Path) -> tuple[str, ...]:
    """The etcd of the dev cluster, when that is the cluster that is asked."""
    state = None if asking.bootstrap else dev_state(folder)
    return () if state is None else tuple(state.of(Role.ETCD, lambda each: each.address))


def _of_cluster(asking: Asking, etcd: Sequence[str], clock: Clock) -> list[Finding]:
    try:
        reached = connection(asking.bootstrap, asking.timeout_s)
    except InvalidConfig as error:
        if asking.bootstrap:
            raise
        return [Finding("cluster", Severity.HINT, "no cluster was looked at", str(error))]

    async def look() -> list[Finding]:
        silent, health = await asyncio.gather(
            _unreachable(reached.bootstrap), _etcd_health(etcd) if etcd else _nothing()
        )
        async with reached.admin() as admin:
            try:
                facts = await _facts(admin, clock, silent, health)
            except TailraceError as error:
                return _nobody(error, health)
        return examine(facts)

    return run(look())


def _nobody(error: TailraceError, etcd: Mapping[str, str] | None) -> list[Finding]:
    found = [
        Finding("etcd", Severity.CRITICAL, f"etcd at {address} is not well: {wrong}")
        for address, wrong in (etcd or {}).items()
        if wrong
    ]
    do = "start the brokers (`tailrace dev up` here), or give --bootstrap of a cluster that runs"
    return [Finding("cluster", Severity.CRITICAL, str(error), do), *found]


async def _facts(
    admin: AdminCore,
    clock: Clock,
    silent: Mapping[str, str],
    etcd: Mapping[str, str] | None,
) -> ClusterFacts:
    picture = await admin.picture()
    conditions = await admin.diagnose_brokers()
    strays = await admin.describe_strays()
    brokers, moves, problem = None, None, ""
    # Where no controller can be active there is no use in waiting for one.
    limit_ms = STALE_MS if picture.store_problem else None
    try:
        brokers = await admin.describe_brokers(timeout_ms=limit_ms)
        moves = await _moves(admin, clock)
    except TailraceError as error:
        problem = str(error)
    waiting = await _unreachable(tuple(picture.coordinators.values()))
    return ClusterFacts(
        now_ms=clock.wall_ms(),
        picture=picture,
        topics=tuple(
            describe_topic(name, topic)
            for name, topic in sorted(picture.topics.items())
            if not topic.deleting
        ),
        conditions=conditions,
        strays=strays,
        brokers=brokers,
        problem=problem,
        moves=moves,
        silent=silent,
        etcd=etcd,
        silent_coordinators={
            number: waiting[address]
            for number, address in picture.coordinators.items()
            if address in waiting
        },
    )


async def _moves(admin: AdminCore, clock: Clock) -> tuple[Look, Look] | None:
    """Two looks at what is moved; one is enough when nothing is."""
    first = Look(clock.monotonic_ms(), await admin.reassignment_progress())
    if not first.progress.moves:
        return None
    await asyncio.sleep(WATCH_MS / 1_000)
    return first, Look(clock.monotonic_ms(), await admin.reassignment_progress())


async def _nothing() -> None:
    return None


async def _unreachable(addresses: Sequence[str]) -> dict[str, str]:
    """Those that take no connection, and why."""
    troubles = await asyncio.gather(*(_connect_trouble(each) for each in addresses))
    return {each: trouble for each, trouble in zip(addresses, troubles, strict=True) if trouble}


async def _connect_trouble(address: str) -> str:
    host, port = split_address(address)
    try:
        async with asyncio.timeout(CONNECT_MS / 1_000):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no connection within {CONNECT_MS} ms"
    except OSError as error:
        return error.strerror or str(error)
    writer.close()
    return ""


async def _etcd_health(addresses: Sequence[str]) -> dict[str, str]:
    asked = (asyncio.to_thread(etcd_trouble, each) for each in addresses)
    return dict(zip(addresses, await asyncio.gather(*asked), strict=True))


def etcd_trouble(address: str) -> str:
    """What etcd says of itself at /health; empty when it is well."""
    host, port = split_address(address)
    asked = http.client.HTTPConnection(host, port, timeout=CONNECT_MS / 1_000)
    try:
        asked.request("GET", "/health")
        answer = asked.getresponse()
        told = json.loads(answer.read(ANSWER_BYTES_MAX))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"it does not answer: {error}"
    finally:
        asked.close()
    if answer.status == http.client.OK and str(told.get("health")).lower() == "true":
        return ""
    return f"it says {told.get('reason') or told.get('health')!r}"
