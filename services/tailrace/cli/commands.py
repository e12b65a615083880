"""The `tailrace` command: joins the command groups and turns errors into one sentence.

It knows no more of a group than its Typer app. Exit codes: 0 done, 1 failed, 2 wrong usage or
something named that is not there (the same again would fail again), 130 after Ctrl-C, 143 after
SIGTERM; what runs until it is stopped gives 0 for that. A group may add its own and says so in its
help.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Final

import typer
from typer.main import get_command

from tailrace import __version__
from tailrace.cli import clients, dev, group_commands, log, operators, perf, services
from tailrace.cli.asking import CODES
from tailrace.dev.state import DevUsage
from tailrace.errors import (
    GroupNotFound,
    InvalidAssignment,
    InvalidConfig,
    InvalidGroup,
    InvalidRequest,
    InvalidTopic,
    InvariantViolation,
    TailraceError,
    UnknownBroker,
    UnknownTopic,
)

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
# What the base install, the client and the tools, goes without.
SERVER_MODULES: Final = frozenset({"aetcd", "numpy", "prometheus_client", "uvloop"})

DOCTOR_CODES: Final = (
    "Exit codes: 0 nothing is wrong (hints do not count), 1 something is, 2 wrong usage, "
    "130 after Ctrl-C."
)
CONSOLE_CODES: Final = "Exit codes: 0 stopped by Ctrl-C or SIGTERM, 1 failed, 2 wrong usage."

_USAGE: Final = (
    *(InvalidConfig, InvalidRequest, InvalidTopic, InvalidGroup, InvalidAssignment),
    *(UnknownTopic, UnknownBroker, GroupNotFound, DevUsage),
)
"""Errors that are about what was asked for, not about how the cluster is."""

app = typer.Typer(
    name="tailrace",
    help="Tailrace, a replicated log.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(services.broker)
app.command()(services.controller)
app.command()(services.coordinator)
app.add_typer(clients.topics_app)
app.add_typer(operators.brokers_app)
app.add_typer(operators.config_app)
app.add_typer(clients.cluster_app)
app.add_typer(group_commands.app)
app.command(epilog=CODES)(clients.produce)
app.command(epilog=CODES)(clients.consume)
app.command(epilog=CODES)(clients.explain)
app.command(epilog=DOCTOR_CODES)(clients.doctor)
app.command(epilog=CONSOLE_CODES)(clients.console)
app.add_typer(perf.app)
app.add_typer(dev.app)
app.add_typer(log.app)


def run() -> None:
    """Run the command line and exit the process with its code."""
    try:
        plain(get_command(app))()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except InvariantViolation:
        # Our own bug: the traceback is what its report needs.
        raise
    except (TailraceError, OSError) as error:
        typer.echo(f"tailrace: {_sentence(error)}", err=True)
        sys.exit(EXIT_USAGE if isinstance(error, _USAGE) else EXIT_FAILED)
    except ModuleNotFoundError as error:
        if error.name not in SERVER_MODULES:
            raise
        what = f"this command runs a server, and {error.name} is not installed"
        typer.echo(f"tailrace: {what}: pip install 'tailrace[server]'", err=True)
        sys.exit(EXIT_USAGE)


def plain(command: Any) -> Any:
    """The command and all below it, with flags that are shown as such: they take no `<bool>`."""
    for each in command.params:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    for below in getattr(command, "commands", {}).values():
        plain(below)
    return command


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tailrace {__version__}")
        raise typer.Exit


@app.command()
def demo(
    what: Annotated[
        str, typer.Argument(metavar="cluster|log", help="What to see.", show_default=True)
    ] = "cluster",
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder, and say how to look around in it.")
    ] = False,
) -> None:
    """See it at work: a cluster that loses its leader, or (log) a log that crashes and recovers."""
    if what not in {"cluster", "log"}:
        raise typer.BadParameter(f"{what!r} is neither 'cluster' nor 'log'")
    # They run the server's code, which needs more than the base install has.
    from tailrace.cli.demo import demo as demo_log  # noqa: PLC0415
    from tailrace.cli.demo_cluster import demo_cluster  # noqa: PLC0415

    held = demo_log(keep=keep) if what == "log" else demo_cluster(keep=keep)
    raise typer.Exit(0 if held else EXIT_FAILED)


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Tailrace, a replicated log."""


def _sentence(error: TailraceError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror:
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        return ": ".join([*names, error.strerror])
    return str(error) or type(error).__name__
