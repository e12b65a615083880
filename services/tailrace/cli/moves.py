"""What `topics reassign` and `brokers drain` do: plan, ask, move, and show how far it is.

The cluster moves replicas by itself; this only starts it and looks. So it can be left at any time,
and `topics reassign --status` looks again.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from tailrace.cli.asking import INT32_MAX, Asking
from tailrace.cli.formatting import counted, safe, size
from tailrace.cli.output import plain_table, print_json, stdout_console
from tailrace.cli.topics import broker_list
from tailrace.client.admin import AdminCore
from tailrace.client.moving import Move, Progress
from tailrace.errors import InvalidRequest
from tailrace.meta.keys import DEFAULT_CONFIG
from tailrace.model import TopicPartition, topic_name_problem

RATE_SETTING: Final = "leader.replication.throttled.rate"
LOOK_EVERY_S: Final = 1.0
# The rate of the last looks, from which the end is foretold.
RATE_LOOKS: Final = 10
PLAN_BYTES_MAX: Final = 64 * 1024 * 1024

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to move; exactly one of the three ways."""

    plan: dict[TopicPartition, tuple[int, ...]] | None = None
    brokers: tuple[int, ...] = ()
    drain: int | None = None
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How it is done."""

    dry_run: bool = False
    throttle: str | None = None
    wait: bool = True
    yes: bool = False


def read_plan(path: Path) -> dict[TopicPartition, tuple[int, ...]]:
    """A plan in the JSON that Kafka's tools take; InvalidRequest when it is none."""
    try:
        text = sys.stdin.read(PLAN_BYTES_MAX) if str(path) == "-" else path.read_text("utf-8")
        return _plan(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else error
        raise InvalidRequest(
            f'{path} is no plan: {problem}; it should be {{"partitions": [{{"topic": "t", '
            f'"partition": 0, "replicas": [1, 2, 3]}}]}}'
        ) from None


def _plan(found: Any) -> dict[TopicPartition, tuple[int, ...]]:
    """The plan in what a file holds; ValueError, KeyError or TypeError when there is none."""
    if not isinstance(found, dict):
        raise TypeError("it is not a JSON object")
    plan: dict[TopicPartition, tuple[int, ...]] = {}
    for each in found["partitions"]:
        if not isinstance(each, dict):
            raise TypeError("a partition is not a JSON object")
        name = TopicPartition(_name(each["topic"]), _number(each["partition"]))
        if name in plan:
            raise ValueError(f"{name} is there twice")
        plan[name] = tuple(_number(broker) for broker in each["replicas"])
    if not plan:
        raise ValueError("there is no partition in it")
    return plan


def read_brokers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) <= INT32_MAX for part in parts):
        raise InvalidRequest(f"--brokers is {text!r}; numbers with commas between are expected")
    return tuple(map(int, parts))


def read_rate(text: str) -> int:
    """Bytes a second, with K, M or G for powers of 1024; 0: no limit."""
    found = re.fullmatch(r"([0-9]{1,15})([KMG]?)", text.strip().upper())
    if found is None:
        raise InvalidRequest(f"--throttle is {text!r}; bytes a second, as 50M, are expected")
    return int(found[1]) * _UNITS[found[2]]


def require_alone(option: str, others: Mapping[str, object]) -> None:
    """InvalidRequest when one of these is given too: it would be passed over in silence."""
    given = [name for name, value in others.items() if value]
    if given:
        raise InvalidRequest(f"{option} does not go together with {', '.join(given)}")


def reassign(asking: Asking, wanted: Wanted, options: Options) -> None:
    """Show what would move; if that is all right, move it and watch."""
    ways = [wanted.plan is not None, bool(wanted.brokers), wanted.drain is not None]
    if sum(ways) != 1:
        raise InvalidRequest("say what to move: --plan FILE or --brokers ID,…")
    if wanted.plan is not None and wanted.topics:
        raise InvalidRequest("a plan names its topics itself: leave those of the command out")
    rate = None if options.throttle is None else read_rate(options.throttle)
    progress = asking.ask(lambda admin: _planned(admin, wanted))
    if options.dry_run or not progress.moves:
        if wanted.drain is not None and not options.dry_run:
            # It has nothing, and is to get nothing: whoever empties it wants to take it away.
            asking.ask(lambda admin: _cordon(admin, wanted.drain))
        _print_plan(asking, progress)
        return
    if not options.yes and sys.stdin.isatty():
        _print_plan(asking, progress)
        what = counted(len(progress.moves), "partition")
        typer.confirm(f"Move {what}, {size(progress.total_bytes)} to copy?", abort=True)

    async def move(admin: AdminCore) -> None:
        if rate is not None:
            await _set_throttle(admin, rate)
        await _cordon(admin, wanted.drain)
        await _reassign(admin, wanted, validate_only=False)
        if options.wait:
            await _watch(asking, admin, {each.name for each in progress.moves})

    asking.ask(move)
    _print_done(asking, progress, is_waited_for=options.wait)


def status(asking: Asking, names: Sequence[str], *, cancel: bool, wait: bool) -> None:
    """Show what is under way, or give it up."""

    async def look(admin: AdminCore) -> Progress:
        moves = [
            each for each in await admin.list_reassignments() if not names or each.topic in names
        ]
        if cancel and moves:
            await admin.cancel_reassignments([each.name for each in moves])
            if wait:
                await _watch(asking, admin, {each.name for each in moves})
        return await admin.reassignment_progress(moves)

    progress = asking.ask(look)
    if asking.as_json:
        _print_json(progress)
        return
    console = stdout_console()
    if not progress.moves:
        console.print("Nothing is being reassigned.")
        return
    if cancel:
        console.print(f"{counted(len(progress.moves), 'reassignment')} given up.")
        return
    _print_moves(console, progress)
    left = f"{size(progress.copied_bytes)} of {size(progress.total_bytes)} copied"
    console.print(f"{left}, {size(progress.left_bytes)} left")


# -------------------------------------------------------------------------------------- the parts


async def _reassign(admin: AdminCore, wanted: Wanted, *, validate_only: bool) -> list[Move]:
    return await admin.reassign(
        wanted.plan,
        to_brokers=wanted.brokers,
        drain=wanted.drain,
        topics=wanted.topics,
        validate_only=validate_only,
    )


async def _planned(admin: AdminCore, wanted: Wanted) -> Progress:
    moves = await _reassign(admin, wanted, validate_only=True)
    return await admin.reassignment_progress(moves)


async def _cordon(admin: AdminCore, broker: int | None) -> None:
    if broker is not None:
        await admin.cordon_broker(broker, reason="it is being emptied")


async def _set_throttle(admin: AdminCore, rate: int) -> None:
    if rate:
        await admin.alter_config("brokers", DEFAULT_CONFIG, {RATE_SETTING: str(rate)})
    else:
        await admin.alter_config("brokers", DEFAULT_CONFIG, unset=[RATE_SETTING])


async def _watch(asking: Asking, admin: AdminCore, names: set[TopicPartition]) -> None:
    """Look until none of these is under way, with a bar for people."""
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.description}"),
    )
    seen: list[int] = []
    total = 0
    with Bar(
        *columns, console=Console(stderr=True), disable=asking.as_json or not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("", total=None)
        while True:
            moves = [each for each in await admin.list_reassignments() if each.name in names]
            progress = await admin.reassignment_progress(moves)
            total = max(total, progress.total_bytes)
            if not moves:
                bar.update(task, total=1, completed=1, description="done")
                return
            seen = [*seen[-RATE_LOOKS:], progress.left_bytes]
            rate = max(0, seen[0] - seen[-1]) / max(1, len(seen) - 1) / LOOK_EVERY_S
            words = describe_progress(progress, rate)
            done = total - progress.left_bytes
            bar.update(task, total=total or None, completed=done, description=words)
            await asyncio.sleep(LOOK_EVERY_S)


def describe_progress(progress: Progress, bytes_per_s: float) -> str:
    """How far it is, in one line."""
    words = f"{counted(len(progress.moves), 'partition')}, {size(progress.left_bytes)} left"
    left_s = progress.estimate_s(bytes_per_s)
    return words if left_s is None else f"{words}, about {left_s:.0f} s"


def _print_plan(asking: Asking, progress: Progress) -> None:
    if asking.as_json:
        _print_json(progress)
        return
    console = stdout_console()
    if not progress.moves:
        console.print("Nothing has to move.")
        return
    _print_moves(console, progress)
    copies = sum(len(each.adding) for each in progress.moves)
    console.print(
        f"{counted(len(progress.moves), 'partition')}, {counted(copies, 'replica')} to copy, "
        f"{size(progress.total_bytes)}"
    )


def _print_json(progress: Progress) -> None:
    for each in progress.moves:
        print_json(each.as_dict())
    print_json(_totals(progress))


def _print_moves(console: Console, progress: Progress) -> None:
    table = plain_table("partition", "from", "to", "adds", "in sync now", "lowest ISR", "phase")
    for each in progress.moves:
        copying, after = each.lowest_isr
        table.add_row(
            Text(safe(str(each.name))),
            broker_list(each.original),
            broker_list(each.target),
            broker_list(each.adding),
            broker_list(each.isr),
            f"{copying} while copying, {after} after",
            each.phase.value,
        )
    console.print(table)


def _print_done(asking: Asking, progress: Progress, *, is_waited_for: bool) -> None:
    if asking.as_json:
        done: dict[str, object] = {"started": len(progress.moves)}
        if is_waited_for:
            copied = {"copied_bytes": progress.total_bytes, "left_bytes": 0}
            done = {**copied, "moved": len(progress.moves)}
        print_json({**_totals(progress), **done})
        return
    what = counted(len(progress.moves), "partition")
    if is_waited_for:
        typer.echo(f"{what} moved, {size(progress.total_bytes)} copied")
    else:
        typer.echo(f"{what} on the way; `tailrace topics reassign --status` shows how far")


def _totals(progress: Progress) -> dict[str, object]:
    return {
        "partitions": len(progress.moves),
        "total_bytes": progress.total_bytes,
        "copied_bytes": progress.copied_bytes,
        "left_bytes": progress.left_bytes,
    }


def _name(found: object) -> str:
    if not isinstance(found, str) or topic_name_problem(found):
        raise ValueError(f"{found!r} is no topic")
    return found


def _number(found: object) -> int:
    if type(found) is not int or not 0 <= found <= INT32_MAX:
        raise ValueError(f"{found!r} is no number from 0 to {INT32_MAX}")
    return found
