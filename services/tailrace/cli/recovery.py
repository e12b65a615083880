"""What `tailrace cluster recover` does: ask the brokers, show the plan, write it, wait.

Nothing is written without --apply. What the rebuilt store will hold is decided in `meta.recovery`,
and written by `meta.rebuild`; this module finds the brokers and the store, and prints.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import SystemRandom
from typing import Final, NamedTuple

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table

from tailrace.cli.connecting import run
from tailrace.cli.formatting import counted, iso_time, safe
from tailrace.cli.output import console_for, plain_table, print_json, stdout_console, warn
from tailrace.client.metadata import parse_bootstrap
from tailrace.client.recovery_facts import GatheredFacts, gather_facts
from tailrace.clock import SystemClock
from tailrace.errors import (
    InvalidConfig,
    InvalidRequest,
    RequestTimedOut,
    StoreUnavailable,
    Unreachable,
)
from tailrace.meta.image import ClusterImage
from tailrace.meta.keys import NO_BROKER, ROOT
from tailrace.meta.rebuild import adopt, rebuild
from tailrace.meta.recovery import (
    AdoptionPlan,
    Certainty,
    NothingToRecover,
    PartitionReport,
    RecoveryPlan,
    plan_adoption,
    plan_recovery,
    stray_topics,
)
from tailrace.meta.settings import EtcdSettings, open_store
from tailrace.meta.store import MetadataStore, Snapshot
from tailrace.transport.http2.network import Http2Network

LOOK_EVERY_S: Final = 0.5
# How many partitions are shown each on a line of its own, unless all are asked for.
SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverOptions:
    """What was asked for. `control`: whom to ask first; `missing`: brokers that will not answer."""

    control: str
    etcd: EtcdSettings
    missing: frozenset[int] = frozenset()
    # Topics to take back from replicas that were set aside, as NAME or NAME=ID.
    adopt: tuple[str, ...] = ()
    apply: bool = False
    yes: bool = False
    show_all: bool = False
    as_json: bool = False
    timeout_ms: int = 60_000


class _Found(NamedTuple):
    """What brokers and the store say, before anything is changed."""

    gathered: GatheredFacts
    seen: Snapshot


def recover(options: RecoverOptions) -> None:
    """Show what a rebuilt store would hold; with `apply`, write it and wait for the cluster."""
    found = run(_look(options))
    _check_missing(options, found.gathered)
    try:
        plan = plan_recovery(
            found.gathered.facts,
            found.seen,
            store_id=_new_id(),
            now_ms=SystemClock().wall_ms(),
            accept_missing=options.missing,
        )
    except NothingToRecover as error:
        _adopt(options, found, str(error))
        return
    if options.adopt:
        raise InvalidRequest(
            f"the store has to be rebuilt first ({plan.problem or plan.standing.value}), which "
            "takes back what was set aside, too: leave --adopt out"
        )
    _show(plan, found.gathered, options)
    # Asked outside of any loop, so that Ctrl-C ends it at once.
    if _is_confirmed(options, "Rebuild the store at {} from this plan?"):
        run(_apply(options, plan, found.gathered))


def _new_id() -> str:
    return f"{SystemRandom().getrandbits(128):032x}"


async def _look(options: RecoverOptions) -> _Found:
    try:
        addresses = parse_bootstrap(options.control)
    except InvalidConfig as error:
        # What clients call their addresses means nothing here.
        why = str(error).removeprefix("bootstrap_servers: ")
        raise InvalidConfig(f"--control: {why}") from error
    gathered = await gather_facts(Http2Network(), addresses, timeout_ms=options.timeout_ms)
    for address, why in gathered.silent.items():
        warn(f"{address} did not answer: {why}")
    if not gathered.facts:
        raise Unreachable(
            f"no broker answered at {', '.join(addresses)}: start the brokers (they start without "
            "the store), and name their control ports (control.listeners) with --control"
        )
    store = open_store(options.etcd)
    try:
        return _Found(gathered, await store.snapshot(ROOT))
    except StoreUnavailable as error:
        raise StoreUnavailable(
            f"the store at {', '.join(options.etcd.endpoints)} does not answer: {error}. Start an "
            "etcd there, an empty one will do, or name another with --etcd"
        ) from error
    finally:
        await store.close()


def _check_missing(options: RecoverOptions, gathered: GatheredFacts) -> None:
    """A broker that answers is not missing: its number may be a slip of the pen."""
    answered = {int(each.broker_id) for each in gathered.facts}
    for each in sorted(options.missing & answered):
        raise InvalidRequest(f"broker {each} has answered: leave `--missing {each}` out")


def _is_confirmed(options: RecoverOptions, question: str) -> bool:
    if not options.apply:
        _told(options, "Nothing was changed. `--apply` writes this plan.")
        return False
    if not options.yes and sys.stdin.isatty():
        typer.confirm(question.format(", ".join(options.etcd.endpoints)), abort=True)
    return True


# ------------------------------------------------------------------------------------ adopting


def _adopt(options: RecoverOptions, found: _Found, why: str) -> None:
    """The store is right; topics of which only strays are left may be taken back."""
    if not options.adopt:
        _tell_strays(options, stray_topics(found.gathered.facts, found.seen), why)
        return
    for number, wanted in enumerate(options.adopt):
        if number and options.apply:
            # The one before has changed the store.
            found = run(_look(options))
        name, _, topic_id = wanted.partition("=")
        plan = plan_adoption(
            found.gathered.facts,
            found.seen,
            name=name,
            topic_id=topic_id,
            accept_missing=options.missing,
        )
        _show_adoption(options, plan)
        if _is_confirmed(options, f"Take topic {safe(name)} back into the store at {{}}?"):
            run(_take_back(options, plan, found.gathered))


async def _take_back(options: RecoverOptions, plan: AdoptionPlan, gathered: GatheredFacts) -> None:
    store = open_store(options.etcd)
    try:
        added = await adopt(store, plan, store_id=_new_id(), now_ms=SystemClock().wall_ms())
        _told(options, f"Topic {safe(plan.name)} is back: {counted(added, 'partition')}.")
        brokers = {int(each.broker_id) for each in gathered.facts}
        _report(options, added, await _until_led(store, brokers, options.timeout_ms))
    finally:
        await store.close()


def _tell_strays(options: RecoverOptions, strays: dict[str, set[str]], why: str) -> None:
    if options.as_json:
        print_json(
            {
                "type": "plan",
                "needed": False,
                "why": why,
                "set_aside": {name: sorted(ids) for name, ids in sorted(strays.items())},
            }
        )
        return
    typer.echo(f"{why}.")
    for name, ids in sorted(strays.items()):
        for each in sorted(ids):
            typer.echo(
                f"Topic {safe(name)} ({each}) is not in the store, and replicas of it were set "
                f"aside: `--adopt {safe(name)}={each}` takes it back."
            )


def _show_adoption(options: RecoverOptions, plan: AdoptionPlan) -> None:
    if options.as_json:
        print_json(
            {
                "type": "adoption",
                "topic": plan.name,
                "topic_id": plan.record.topic_id,
                "present": plan.present,
                "notes": list(plan.notes),
            }
        )
        for each in plan.partitions:
            print_json({"type": "partition", **each.as_dict()})
        return
    console = stdout_console()
    console.print(f"topic {safe(plan.name)}, id {plan.record.topic_id}", soft_wrap=True)
    for note in plan.notes:
        console.print(f"note: {safe(note)}", soft_wrap=True)
    console.print(_table(plan.partitions))


# ------------------------------------------------------------------------------------ showing


def _show(plan: RecoveryPlan, gathered: GatheredFacts, options: RecoverOptions) -> None:
    if options.as_json:
        print_json(
            {
                "type": "plan",
                "needed": True,
                "cluster_id": plan.record.cluster_id,
                "generation": plan.record.generation,
                "store": plan.problem or plan.standing.value,
                "brokers": sorted(each.broker_id for each in gathered.facts),
                "missing": list(plan.missing),
                "topics": plan.topics,
                "partitions": len(plan.partitions),
                **{each.value: plan.count(each) for each in Certainty},
                "notes": list(plan.notes),
            }
        )
        for each in plan.partitions:
            print_json({"type": "partition", **each.as_dict()})
        return
    console = stdout_console()
    console.print(_summary(plan, gathered), soft_wrap=True)
    for note in plan.notes:
        console.print(f"note: {safe(note)}", soft_wrap=True)
    shown, left = _chosen(plan.partitions, show_all=options.show_all)
    if shown:
        console.print(_table(shown))
    if left:
        console.print(f"{counted(left, 'partition')} more are certain: `--all` shows them.")


def _summary(plan: RecoveryPlan, gathered: GatheredFacts) -> str:
    brokers = ", ".join(str(each.broker_id) for each in sorted(gathered.facts, key=_id))
    base = "no copy" if plan.base is None else f"a copy of revision {plan.base.revision}"
    generation = 0 if plan.base is None else plan.base.generation
    counts = (
        f"{plan.count(Certainty.CERTAIN)} certain, {plan.count(Certainty.INFERRED)} inferred, "
        f"{plan.count(Certainty.WAITS)} that wait for a broker or a person"
    )
    what = f"{counted(plan.topics, 'topic')}, {counted(len(plan.partitions), 'partition')}"
    keys = counted(len(plan.entries), "key")
    lines = [
        f"store: {safe(plan.problem) or plan.standing.value}",
        f"cluster {plan.record.cluster_id}, generation {generation}: brokers {brokers} answered",
        f"base: {base}",
        f"rebuilt, generation {plan.record.generation}: {what}: {counts}; {keys}",
    ]
    if plan.missing:
        lines.append(f"without brokers {list(plan.missing)}, as --missing says")
    return "\n".join(lines)


def _id(facts: object) -> int:
    return int(getattr(facts, "broker_id", -1))


def _chosen(
    reports: Sequence[PartitionReport], *, show_all: bool
) -> tuple[list[PartitionReport], int]:
    """Those that a person has to look at, and some of the others."""
    if show_all:
        return list(reports), 0
    doubtful = [each for each in reports if each.certainty is not Certainty.CERTAIN]
    certain = [each for each in reports if each.certainty is Certainty.CERTAIN]
    room = max(SHOWN_MAX - len(doubtful), 0)
    return doubtful + certain[:room], len(certain) - len(certain[:room])


def _table(shown: Sequence[PartitionReport]) -> Table:
    table = plain_table(
        "partition", "replicas", "isr", "epoch", "log end", "committed", "known", "why"
    )
    for each in shown:
        table.add_row(*_row(each))
    return table


def _row(each: PartitionReport) -> tuple[str, ...]:
    return (
        str(each.partition),
        ",".join(map(str, each.replicas)),
        ",".join(map(str, each.state.isr)) or "-",
        str(each.state.leader_epoch),
        str(each.log_end) if each.log_end >= 0 else "-",
        str(each.high_watermark) if each.high_watermark >= 0 else "-",
        each.certainty.value,
        safe(each.why),
    )


def _told(options: RecoverOptions, text: str) -> None:
    if not options.as_json:
        typer.echo(text)


# ----------------------------------------------------------------------------------- applying


async def _apply(options: RecoverOptions, plan: RecoveryPlan, gathered: GatheredFacts) -> None:
    started = f"`tailrace cluster recover` began at {iso_time(SystemClock().wall_ms())}"
    store = open_store(options.etcd)
    try:
        try:
            with _progress("writing keys") as progress:
                done = await rebuild(store, plan, started=started, progress=progress)
        except BaseException:
            warn(
                "the rebuild was broken off: the store may be half written, and no service "
                "believes it then. Run the same command again"
            )
            raise
        _told(options, f"The store is rebuilt: {counted(done, 'key')} written or removed.")
        wanted = {int(each.broker_id) for each in gathered.facts}
        _report(options, done, await _until_led(store, wanted, options.timeout_ms))
    finally:
        await store.close()


def _report(options: RecoverOptions, done: int, left: Sequence[str]) -> None:
    """Say how it ended; RequestTimedOut while something is missing."""
    if options.as_json:
        print_json({"type": "result", "written": done, "waiting": list(left)})
    elif not left:
        typer.echo("All brokers that answered are registered, and all partitions are led.")
    if left:
        raise RequestTimedOut(
            f"it is written, and after {options.timeout_ms / 1_000:g} s still: "
            f"{'; '.join(left)}. `tailrace doctor` and `tailrace topics describe --unhealthy` "
            "say more"
        )


async def _until_led(store: MetadataStore, brokers: set[int], timeout_ms: int) -> list[str]:
    """Wait until brokers are registered and lead; what is missing when the time is over."""
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + timeout_ms
    with _progress("partitions led") as progress:
        while True:
            image = ClusterImage.from_snapshot(await store.snapshot(ROOT))
            states = [each.state for found in image.states.values() for each in found.values()]
            led = sum(each.leader != NO_BROKER for each in states)
            progress(led, len(states))
            absent = sorted(brokers - set(image.brokers))
            if led == len(states) and not absent and image.controller is not None:
                return []
            if clock.monotonic_ms() >= deadline_ms:
                return _left(image, absent, len(states) - led)
            await asyncio.sleep(LOOK_EVERY_S)


def _left(image: ClusterImage, absent: Sequence[int], leaderless: int) -> list[str]:
    left = []
    if image.controller is None:
        left.append("no controller is active: start one")
    if absent:
        left.append(f"brokers {list(absent)} are not registered")
    if leaderless:
        left.append(f"{counted(leaderless, 'partition')} without a leader")
    return left


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, on stderr; nothing elsewhere."""
    console = console_for(sys.stderr)
    if not console.is_terminal:
        yield lambda _, __: None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
