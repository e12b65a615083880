"""`tailrace dev`: a cluster on this machine.

Only the command line; what it does is in `tailrace.dev`, imported when a command runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from tailrace.dev.cluster import DevCluster, Plan

app = typer.Typer(
    name="dev",
    help="A cluster on this machine, with all its services, to try things and break them.",
    no_args_is_help=True,
)

LOOK_AFTER_S: Final = 0.5
UP_CODES: Final = (
    "Exit codes: 0 it is up (with --detach), or was stopped in order; 1 failed, 2 wrong usage, "
    "130 after Ctrl-C before it was up."
)

_Dir = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        envvar="TAILRACE_DEV_DIR",
        help="Where the cluster lives. (default: ~/.tailrace/dev)",
        show_default=False,
    ),
]
_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="As `status` shows it: broker-1, controller-2, etcd.")
]


@app.command(epilog=UP_CODES)
def up(
    *,
    brokers: Annotated[
        int | None, typer.Option(min=1, help="How many. (default: 3, or as before)")
    ] = None,
    controllers: Annotated[
        int | None, typer.Option(min=1, help="How many. (default: 2, or as before)")
    ] = None,
    coordinators: Annotated[
        int | None, typer.Option(min=0, help="How many. (default: 1, or as before)")
    ] = None,
    folder: _Dir = None,
    port_base: Annotated[
        int | None, typer.Option(min=1, help="Count ports from here. (default: free ones)")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of any service; repeatable."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when it is up, and leave it running.")
    ] = False,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            min=0.1,
            metavar="SECONDS",
            help="How long etcd, and then the others, may take to be ready.",
        ),
    ] = 60.0,
) -> None:
    """Start a cluster. Without --detach it lives until Ctrl-C. What runs already is left alone.

    With more --brokers than run, the others are added; `topics reassign` gives them replicas.
    """
    from tailrace.dev.cluster import Plan  # noqa: PLC0415

    plan = Plan(
        brokers=brokers,
        controllers=controllers,
        coordinators=coordinators,
        port_base=port_base,
        ready_timeout_ms=round(timeout_s * 1_000),
    )
    if settings:
        plan = _with_settings(plan, settings)
    cluster = _cluster(folder)
    _run(_up(cluster, plan, detach=detach))


@app.command()
def status(
    folder: _Dir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the processes of the cluster."""
    cluster = _cluster(folder)
    found = cluster.status()
    if as_json:
        typer.echo(json.dumps(found))
    else:
        _show(cluster, found)


@app.command()
def kill(
    name: _Name,
    signal_name: Annotated[
        str, typer.Option("--signal", metavar="NAME", help="KILL, TERM, STOP, CONT, …")
    ] = "KILL",
    folder: _Dir = None,
) -> None:
    """Send a signal to one process."""
    number = _signal(signal_name)
    _run(_cluster(folder).signal(name, number))
    typer.echo(f"{name} got {number.name}")


@app.command()
def start(name: _Name, folder: _Dir = None) -> None:
    """Start a process that has ended."""
    _run(_cluster(folder).start(name))
    typer.echo(f"{name} is started")


@app.command()
def pause(name: _Name, folder: _Dir = None) -> None:
    """Let a process stand still (SIGSTOP)."""
    _run(_cluster(folder).signal(name, signal.SIGSTOP))
    typer.echo(f"{name} is paused: `tailrace dev resume {name}` lets it go on")


@app.command()
def resume(name: _Name, folder: _Dir = None) -> None:
    """Let a paused process go on (SIGCONT)."""
    _run(_cluster(folder).signal(name, signal.SIGCONT))
    typer.echo(f"{name} goes on")


@app.command()
def down(
    folder: _Dir = None,
    wipe: Annotated[bool, typer.Option("--wipe", help="Remove its data as well.")] = False,
) -> None:
    """Stop the whole cluster. Its data stays for the next `up`."""
    cluster = _cluster(folder)
    found = cluster.exists() if wipe else cluster.is_running()
    _run(_down(cluster, wipe=wipe))
    again = f"`tailrace dev up{_elsewhere(cluster)}` goes on with its data"
    left = "nothing is left of it" if wipe else again
    if found:
        typer.echo(f"The cluster in {cluster.folder} is stopped; {left}.")
    else:
        typer.echo(f"No cluster runs in {cluster.folder}.")


async def _up(cluster: DevCluster, plan: Plan, *, detach: bool) -> None:
    # Signals cancel this while things are started; what was started is then stopped again.
    started = await cluster.up(plan)
    if not started:
        typer.echo(f"The cluster in {cluster.folder} runs already.")
    _show(cluster, cluster.status())
    if detach:
        typer.echo(f"`tailrace dev down{_elsewhere(cluster)}` stops it.")
        return
    if not started:
        return
    typer.echo("Ctrl-C stops it.")
    from tailrace.process import asked_to_stop  # noqa: PLC0415

    await _look_after(cluster, asked_to_stop(asyncio.Event()))
    typer.echo("Stopping.")
    await _down(cluster, wipe=False)


async def _down(cluster: DevCluster, *, wipe: bool) -> None:
    try:
        killed = await cluster.down(wipe=wipe)
    except asyncio.CancelledError:
        again = f"`tailrace dev down{_elsewhere(cluster)}` goes on"
        typer.echo(f"tailrace: not all is stopped yet: {again}", err=True)
        raise
    for name in killed:
        typer.echo(f"tailrace: {name} did not stop in time and was killed", err=True)


async def _look_after(cluster: DevCluster, stop: asyncio.Event) -> None:
    """Wait for the end, and tell of processes that come and go meanwhile."""
    states: dict[str, str] = {}
    while not stop.is_set():
        for each in cluster.status()["processes"]:
            before = states.get(each["name"])
            states[each["name"]] = each["state"]
            if before not in {None, each["state"]}:
                typer.echo(f"{each['name']} is {each['state']} now")
        if all(state == "exited" for state in states.values()):
            return
        try:
            async with asyncio.timeout(LOOK_AFTER_S):
                await stop.wait()
        except TimeoutError:
            continue


def _cluster(folder: Path | None) -> DevCluster:
    from tailrace.dev.cluster import DevCluster  # noqa: PLC0415
    from tailrace.dev.folder import default_folder  # noqa: PLC0415

    return DevCluster(folder or default_folder(os.environ), say=typer.echo)


def _run(work: Coroutine[Any, Any, None]) -> None:
    from tailrace.process import run_command  # noqa: PLC0415

    run_command(work)


def _signal(name: str) -> signal.Signals:
    try:
        return signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"]
    except KeyError:
        raise typer.BadParameter(f"there is no signal {name!r}", param_hint="--signal") from None


def _with_settings(plan: Plan, assignments: list[str]) -> Plan:
    """Give each setting to whom it belongs; refused when it is nobody's."""
    from dataclasses import replace  # noqa: PLC0415

    from tailrace.cli.known_settings import (  # noqa: PLC0415
        broker_known,
        controller_known,
        coordinator_known,
    )
    from tailrace.cli.settings import from_assignments  # noqa: PLC0415

    tables = (broker_known(), controller_known(), coordinator_known())
    given = from_assignments(assignments, [known for table in tables for known in table])
    mine = []
    for table in tables:
        names = {name for known in table for name in known.names}
        mine.append({each.name: each.text for each in given if each.name in names})
    return replace(
        plan, broker_settings=mine[0], controller_settings=mine[1], coordinator_settings=mine[2]
    )


def _show(cluster: DevCluster, found: dict[str, Any]) -> None:
    from rich.text import Text  # noqa: PLC0415

    from tailrace.cli.output import plain_table, stdout_console  # noqa: PLC0415

    console = stdout_console()
    table = plain_table("name", "state", "pid", "address")
    for each in found["processes"]:
        style = "green" if each["state"] == "running" else "red"
        pid = "-" if each["pid"] is None else str(each["pid"])
        table.add_row(each["name"], Text(each["state"], style=style), pid, each["address"])
    console.print(table)
    console.print(f"bootstrap  {found['bootstrap']}", soft_wrap=True)
    console.print(f"logs       {cluster.log_path('broker-1').parent}", soft_wrap=True)
    if _elsewhere(cluster):
        # Commands find the cluster of the default folder by themselves, and no other.
        console.print(f"export TAILRACE_BOOTSTRAP={found['bootstrap']}", soft_wrap=True)


def _elsewhere(cluster: DevCluster) -> str:
    """What a command has to be given for a cluster that is not in the default folder."""
    from tailrace.dev.folder import default_folder  # noqa: PLC0415

    if cluster.folder == default_folder(os.environ).absolute():
        return ""
    return f" --dir {shlex.quote(str(cluster.folder))}"
