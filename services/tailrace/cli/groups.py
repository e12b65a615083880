"""What `tailrace groups` does: ask coordinators, and print the answer.

Tables for people, one JSON object a line for programs. A reset is a plan first: what would change
is printed, and done only with --execute.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import typer
from rich.console import Console
from rich.text import Text

from tailrace.cli.asking import Asking
from tailrace.cli.formatting import NOTHING, counted, number, safe
from tailrace.cli.moments import parse_moment
from tailrace.cli.output import plain_table, print_json, stdout_console, warn
from tailrace.cli.topics import offered
from tailrace.client.admin import AdminCore
from tailrace.client.group_admin import GroupDescription, GroupPosition, PositionReset, ResetTo
from tailrace.errors import InvalidConfig, InvalidRequest, TailraceError

_STATES: Final = {
    "Stable": "green",
    "Empty": "dim",
    "PreparingRebalance": "yellow",
    "CompletingRebalance": "yellow",
}


@dataclass(frozen=True, slots=True)
class Target:
    """Where a reset goes to, as the command line said."""

    to: ResetTo
    value: int = 0


def list_all(asking: Asking, states: Sequence[str]) -> None:
    wanted = [_known_state(each) for each in states]
    found = asking.ask(lambda admin: admin.list_groups(wanted))
    if asking.as_json:
        for each in found:
            print_json(each.as_dict())
        return
    table = plain_table("group", "state", "kind", "members", "coordinator")
    for each in found:
        table.add_row(
            safe(each.group),
            _state(each.state),
            each.kind,
            str(each.members),
            str(each.coordinator_id),
        )
    nothing = "No group is in that state." if states else "There are no groups."
    stdout_console().print(table if found else nothing)


def describe(asking: Asking, names: Sequence[str], *, members: bool) -> None:
    async def ask(admin: AdminCore) -> list[GroupDescription]:
        wanted = names or [each.group for each in await admin.list_groups()]
        return [await admin.describe_group(name) for name in wanted]

    console = stdout_console()
    described = asking.ask(ask)
    for found in described:
        if asking.as_json:
            print_json(found.as_dict())
        else:
            _print_group(console, found, members=members)
    if not described and not asking.as_json:
        console.print("There are no groups.")


def group_names(bootstrap: str | None, incomplete: str) -> list[str]:
    """For the shell's completion."""

    async def names(admin: AdminCore) -> list[str]:
        return [each.group for each in await admin.list_groups()]

    return offered(bootstrap, incomplete, names)


def reset(
    asking: Asking, group: str, target: Target, topics: Sequence[str], *, execute: bool
) -> None:
    wanted = parse_topics(topics) if topics else None
    plan = asking.ask(
        lambda admin: admin.reset_offsets(
            group, target.to, target.value, topics=wanted, dry_run=not execute
        )
    )
    if asking.as_json:
        for each in plan:
            print_json(_reset_dict(group, each, done=execute))
        return
    table = plain_table("topic", "partition", "from", "to", "change")
    for each in plan:
        change = each.new - each.old if each.old >= 0 else None
        table.add_row(
            safe(each.partition.topic),
            str(each.partition.partition),
            number(each.old),
            number(each.new),
            NOTHING if change is None else f"{change:+,}",
        )
    console = stdout_console()
    console.print(table)
    for each in plan:
        if each.asked != each.new:
            end = "ends" if each.asked > each.new else "begins"
            warn(f"{each.partition} {end} at offset {each.new}: {each.asked} is not in its log")
    moved = sum(each.new != each.old for each in plan)
    done = f"{counted(moved, 'position')} of {safe(group)} "
    console.print(f"{done}moved." if execute else f"{done}would move: add --execute to do it.")


def delete(asking: Asking, names: Sequence[str], *, yes: bool) -> None:
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Forget {', '.join(map(safe, names))} and all positions?", abort=True)
    results = asking.ask(lambda admin: admin.delete_groups(names))
    failed: TailraceError | None = None
    for name, error in results.items():
        failed = failed or error
        if asking.as_json:
            print_json({"group": name, "deleted": error is None, "error": _code(error)})
        elif error is None:
            typer.echo(f"{name} deleted")
    if failed is not None:
        raise failed


def target_of(
    *,
    earliest: bool,
    latest: bool,
    offset: int | None,
    shift: int | None,
    time: str | None,
    now_ms: int,
) -> Target:
    """The one that was given; InvalidConfig when it is not one."""
    found = [
        *([Target(ResetTo.EARLIEST)] if earliest else []),
        *([Target(ResetTo.LATEST)] if latest else []),
        *([Target(ResetTo.OFFSET, offset)] if offset is not None else []),
        *([Target(ResetTo.SHIFT, shift)] if shift is not None else []),
        *(
            [Target(ResetTo.TIME, parse_moment(time, option="--to-time", now_ms=now_ms))]
            if time is not None
            else []
        ),
    ]
    if len(found) != 1:
        raise InvalidConfig(
            "where to? Give one of --to-earliest, --to-latest, --to-offset, --shift-by, --to-time"
        )
    return found[0]


def parse_topics(given: Iterable[str]) -> dict[str, list[int] | None]:
    """`topic` for all of its partitions, `topic:0,3` for some."""
    found: dict[str, list[int] | None] = {}
    for each in given:
        topic, colon, numbers = each.partition(":")
        if not colon:
            found[topic] = None
            continue
        try:
            found[topic] = [int(part) for part in numbers.split(",")]
        except ValueError:
            raise InvalidConfig(f"--topic {each!r} is neither TOPIC nor TOPIC:0,1,2") from None
    return found


def lag_time(lag_ms: int | None) -> str:
    """How far behind in time, for people."""
    if lag_ms is None:
        return NOTHING
    if lag_ms < 10_000:
        return f"{lag_ms / 1_000:.1f} s"
    seconds = lag_ms // 1_000
    if seconds < 600:
        return f"{seconds} s"
    minutes, hours = seconds // 60, seconds // 3_600
    return f"{minutes} min" if minutes < 600 else f"{hours} h"


def _print_group(console: Console, found: GroupDescription, *, members: bool) -> None:
    title = Text.assemble((safe(found.group), "bold"), "  ", _state(found.state))
    title.append(f", {found.kind}, generation {found.generation}", style="dim")
    if found.protocol:
        title.append(f", {safe(found.protocol)}", style="dim")
    title.append(f", coordinator {found.coordinator_id}, ", style="dim")
    title.append(_lag_words(found))
    console.print(title, soft_wrap=True)
    if not (found.members if members else found.positions):
        return
    if members:
        table = plain_table("member", "instance", "client", "host", "partitions")
        for each in found.members:
            shown = "?" if each.partitions is None else " ".join(map(str, each.partitions))
            table.add_row(
                safe(each.member_id),
                safe(each.instance_id) or NOTHING,
                safe(each.client_id) or NOTHING,
                safe(each.host) or NOTHING,
                shown or NOTHING,
            )
        console.print(table)
        return
    table = plain_table("topic", "partition", "position", "end", "lag", "behind", "client", "host")
    for position in found.positions:
        table.add_row(
            safe(position.topic),
            str(position.partition),
            _shown_position(position),
            number(position.log_end),
            number(position.lag),
            lag_time(position.lag_ms),
            safe(position.client_id) or NOTHING,
            safe(position.host) or NOTHING,
        )
    console.print(table)


def _lag_words(found: GroupDescription) -> str:
    """What a group has not committed yet says nothing of how far it has read."""
    unknown = sum(each.lag < 0 for each in found.positions)
    if found.positions and all(each.stale for each in found.positions):
        return "nothing committed but for topics that are gone"
    if unknown == len(found.positions):
        return "nothing committed yet" if found.positions else "nothing committed"
    more = f", and {counted(unknown, 'partition')} without a position" if unknown else ""
    return f"{counted(found.lag, 'record')} behind{more}"


def _shown_position(position: GroupPosition) -> Text:
    text = Text(number(position.offset))
    if position.stale:
        text.append(" of a topic that is gone", style="yellow")
    return text


def _known_state(given: str) -> str:
    """The state as coordinators call it; InvalidRequest when there is none like it."""
    for state in _STATES:
        if given.lower() == state.lower():
            return state
    raise InvalidRequest(f"--state {given!r} is none of {', '.join(_STATES)}")


def _state(state: str) -> Text:
    return Text(state, style=_STATES.get(state, ""))


def _reset_dict(group: str, each: PositionReset, *, done: bool) -> dict[str, Any]:
    return {
        "group": group,
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "old": each.old,
        "new": each.new,
        "asked": each.asked,
        "done": done,
    }


def _code(error: TailraceError | None) -> str | None:
    return None if error is None else error.code
