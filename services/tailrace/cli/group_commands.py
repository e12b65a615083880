"""`tailrace groups`: look at consumer groups, move and forget their positions.

Only the command line: arguments, options, help. What the commands do is in `cli.groups`, imported
when one of them runs.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

app = typer.Typer(
    name="groups", help="List, describe, reset and delete consumer groups.", no_args_is_help=True
)

_CODES: Final = "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 after Ctrl-C."

_Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,…",
        envvar="TAILRACE_BOOTSTRAP",
        help="Brokers to ask first.  [default: the dev cluster, if one runs]",
        show_default=False,
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
_Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Give up after this long.")
]
_Group = Annotated[str, typer.Argument(metavar="GROUP", help="Its name.")]


@app.command("list", epilog=_CODES)
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
    bootstrap: _Bootstrap = None,
    timeout: _Timeout = 15.0,
    as_json: _Json = False,
) -> None:
    """List the groups of all coordinators."""
    from tailrace.cli import groups  # noqa: PLC0415
    from tailrace.cli.topics import Asking  # noqa: PLC0415

    groups.list_all(Asking(bootstrap, timeout, as_json), states or [])


@app.command("describe", epilog=_CODES)
def describe_groups(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]…", help="Their names; all if none.")
    ] = None,
    *,
    members: Annotated[
        bool, typer.Option("--members", help="Show members instead of positions.")
    ] = False,
    bootstrap: _Bootstrap = None,
    timeout: _Timeout = 15.0,
    as_json: _Json = False,
) -> None:
    """Show positions, lag in records and in time, and who reads what."""
    from tailrace.cli import groups  # noqa: PLC0415
    from tailrace.cli.topics import Asking  # noqa: PLC0415

    groups.describe(Asking(bootstrap, timeout, as_json), names or [], members=members)


@app.command("reset", epilog=_CODES)
def reset_group(
    group: _Group,
    *,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC[:0,1…]",
            help="Only this topic, or these partitions; may be repeated.  [default: all it has]",
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
        bool, typer.Option("--execute", help="Do it; without, only show what would change.")
    ] = False,
    bootstrap: _Bootstrap = None,
    timeout: _Timeout = 15.0,
    as_json: _Json = False,
) -> None:
    """Move the positions of a group, which must have no members."""
    from tailrace.cli import groups  # noqa: PLC0415
    from tailrace.cli.topics import Asking  # noqa: PLC0415
    from tailrace.clock import SystemClock  # noqa: PLC0415

    target = groups.target_of(
        earliest=to_earliest,
        latest=to_latest,
        offset=to_offset,
        shift=shift_by,
        time=to_time,
        now_ms=SystemClock().wall_ms(),
    )
    asking = Asking(bootstrap, timeout, as_json)
    groups.reset(asking, group, target, topics or [], execute=execute)


@app.command("delete", epilog=_CODES)
def delete_groups(
    names: Annotated[list[str], typer.Argument(metavar="GROUP…", help="Their names.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: _Bootstrap = None,
    timeout: _Timeout = 15.0,
    as_json: _Json = False,
) -> None:
    """Forget groups without members, with their positions."""
    from tailrace.cli import groups  # noqa: PLC0415
    from tailrace.cli.topics import Asking  # noqa: PLC0415

    groups.delete(Asking(bootstrap, timeout, as_json), names, yes=yes)
