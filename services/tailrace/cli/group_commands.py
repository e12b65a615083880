"""`tailrace groups`: look at consumer groups, move and forget their positions.

Only the command line: arguments, options, help. What the commands do is in `cli.groups`, imported
when one of them runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.asking import CODES, Asking, Yes, asks

app = typer.Typer(
    name="groups", help="List, describe, reset and delete consumer groups.", no_args_is_help=True
)


def complete_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of groups for the shell; none when no cluster answers at once."""
    from tailrace.cli.groups import group_names  # noqa: PLC0415

    return group_names(ctx.params.get("bootstrap"), incomplete)


_Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="Its name.", autocompletion=complete_groups)
]


@app.command("list", epilog=CODES)
@asks
def list_groups(
    *,
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Empty, PreparingRebalance, CompletingRebalance or Stable; may be repeated.",
        ),
    ] = None,
    asking: Asking,
) -> None:
    """List the groups of all coordinators."""
    from tailrace.cli import groups  # noqa: PLC0415

    groups.list_all(asking, states or [])


@app.command("describe", epilog=CODES)
@asks
def describe_groups(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GROUP", help="Their names; all if none.", autocompletion=complete_groups
        ),
    ] = None,
    *,
    members: Annotated[
        bool, typer.Option("--members", help="Show members instead of positions.")
    ] = False,
    asking: Asking,
) -> None:
    """Show positions, lag in records and in time, and who reads what."""
    from tailrace.cli import groups  # noqa: PLC0415

    groups.describe(asking, names or [], members=members)


@app.command("reset", epilog=CODES)
@asks
def reset_group(
    group: _Group,
    *,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC[:0,1…]",
            help="Only this topic, or these partitions; may be repeated. (default: all it has)",
            show_default=False,
        ),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="After the last record.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, help="This offset.", show_default=False)
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", help="So many on, or back if negative.", show_default=False),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            metavar="TIME",
            help="The first record from a time ago (5m, 2h, 7d) or a moment on.",
            show_default=False,
        ),
    ] = None,
    execute: Annotated[
        bool,
        typer.Option("--execute/--dry-run", help="Do it, or only show what would change."),
    ] = False,
    asking: Asking,
) -> None:
    """Move the positions of a group, which must have no members."""
    from tailrace.cli import groups  # noqa: PLC0415
    from tailrace.clock import SystemClock  # noqa: PLC0415

    target = groups.target_of(
        earliest=to_earliest,
        latest=to_latest,
        offset=to_offset,
        shift=shift_by,
        time=to_time,
        now_ms=SystemClock().wall_ms(),
    )
    groups.reset(asking, group, target, topics or [], execute=execute)


@app.command("delete", epilog=CODES)
@asks
def delete_groups(
    names: Annotated[
        list[str],
        typer.Argument(metavar="GROUP", help="Their names.", autocompletion=complete_groups),
    ],
    *,
    yes: Yes = False,
    asking: Asking,
) -> None:
    """Forget groups without members, with their positions."""
    from tailrace.cli import groups  # noqa: PLC0415

    groups.delete(asking, names, yes=yes)
