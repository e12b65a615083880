"""`tailrace broker`, `controller` and `coordinator`: one service in this process.

Only the command line: what the settings mean is in `cli.known_settings`, what runs is in
the `main` of each service; both are imported when a service starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tailrace.cli.settings import Effective, Known

_Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Lines of name=value.", show_default=False),
]
_Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any setting; may be repeated.", show_default=False
    ),
]
_PrintConfig = Annotated[
    bool,
    typer.Option("--print-config", help="Print the settings and where each comes from, and exit."),
]
_Id = Annotated[int | None, typer.Option(min=0, help="Its number.", show_default=False)]
_Etcd = Annotated[
    str | None,
    typer.Option("--etcd-endpoints", metavar="HOST:PORT,…", help="Servers of etcd."),
]


def _address(about: str) -> object:
    return typer.Option(metavar="HOST:PORT", help=about, show_default=False)


def broker(
    *,
    config: _Config = None,
    broker_id: _Id = None,
    listeners: Annotated[str | None, _address("Where clients connect.")] = None,
    link_listeners: Annotated[str | None, _address("Where brokers connect.")] = None,
    advertised_listeners: Annotated[str | None, _address("What clients are told.")] = None,
    advertised_link_listeners: Annotated[str | None, _address("What brokers are told.")] = None,
    broker_rack: Annotated[
        str | None, typer.Option(help="Its rack or zone.", show_default=False)
    ] = None,
    log_dirs: Annotated[
        str | None, typer.Option(metavar="DIR,…", help="Data folders.", show_default=False)
    ] = None,
    etcd_endpoints: _Etcd = None,
    settings: _Set = None,
    print_config: _PrintConfig = False,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C; a second one leaves at once.

    Settings: flags go before variables (TAILRACE_BROKER_ID, TAILRACE_LOG_DIRS, …), variables before
    the file of --config, the file before the defaults.
    """
    from tailrace.cli.known_settings import (  # noqa: PLC0415
        broker_known,
        broker_settings,
        controller_known,
        coordinator_known,
    )

    flags = {
        "broker.id": broker_id,
        "listeners": listeners,
        "link.listeners": link_listeners,
        "advertised.listeners": advertised_listeners,
        "advertised.link.listeners": advertised_link_listeners,
        "broker.rack": broker_rack,
        "log.dirs": log_dirs,
        "etcd.endpoints": etcd_endpoints,
    }
    found, doubts = _gather(
        broker_known(), (*controller_known(), *coordinator_known()), flags, settings, config
    )
    own, etcd = broker_settings(found)
    if print_config:
        _print(found, doubts)
        return
    from tailrace.broker.main import run_broker  # noqa: PLC0415
    from tailrace.process import run  # noqa: PLC0415

    say = _say(f"broker-{own.broker_id}", doubts)
    run(lambda stop: run_broker(own, etcd, stop, say), say)


def controller(
    *,
    config: _Config = None,
    controller_id: _Id = None,
    controller_listeners: Annotated[str | None, _address("Where brokers connect.")] = None,
    controller_advertised_listeners: Annotated[
        str | None, _address("What brokers and clients are told.")
    ] = None,
    etcd_endpoints: _Etcd = None,
    settings: _Set = None,
    print_config: _PrintConfig = False,
) -> None:
    """Run a controller until SIGTERM or Ctrl-C; one is active, the others stand by.

    Settings: flags go before variables (TAILRACE_CONTROLLER_ID, …), variables before the file of
    --config, the file before the defaults.
    """
    from tailrace.cli.known_settings import (  # noqa: PLC0415
        broker_known,
        controller_known,
        controller_settings,
        coordinator_known,
    )

    flags = {
        "controller.id": controller_id,
        "controller.listeners": controller_listeners,
        "controller.advertised.listeners": controller_advertised_listeners,
        "etcd.endpoints": etcd_endpoints,
    }
    found, doubts = _gather(
        controller_known(), (*broker_known(), *coordinator_known()), flags, settings, config
    )
    own, etcd = controller_settings(found)
    if print_config:
        _print(found, doubts)
        return
    from tailrace.controller.main import run_controller  # noqa: PLC0415
    from tailrace.process import run  # noqa: PLC0415

    say = _say(f"controller-{own.controller_id}", doubts)
    run(lambda stop: run_controller(own, etcd, stop, say), say)


def coordinator(
    *,
    config: _Config = None,
    coordinator_id: _Id = None,
    coordinator_listeners: Annotated[str | None, _address("Where clients connect.")] = None,
    coordinator_advertised_listeners: Annotated[
        str | None, _address("What clients are told.")
    ] = None,
    etcd_endpoints: _Etcd = None,
    settings: _Set = None,
    print_config: _PrintConfig = False,
) -> None:
    """Run a coordinator of consumer groups until SIGTERM or Ctrl-C; groups are spread over all.

    Settings: flags go before variables (TAILRACE_COORDINATOR_ID, …), variables before the file of
    --config, the file before the defaults.
    """
    from tailrace.cli.known_settings import (  # noqa: PLC0415
        broker_known,
        controller_known,
        coordinator_known,
        coordinator_settings,
    )

    flags = {
        "coordinator.id": coordinator_id,
        "coordinator.listeners": coordinator_listeners,
        "coordinator.advertised.listeners": coordinator_advertised_listeners,
        "etcd.endpoints": etcd_endpoints,
    }
    found, doubts = _gather(
        coordinator_known(), (*broker_known(), *controller_known()), flags, settings, config
    )
    own, etcd = coordinator_settings(found)
    if print_config:
        _print(found, doubts)
        return
    from tailrace.coordinator.main import run_coordinator  # noqa: PLC0415
    from tailrace.process import run  # noqa: PLC0415

    say = _say(f"coordinator-{own.coordinator_id}", doubts)
    run(lambda stop: run_coordinator(own, etcd, stop, say), say)


def _gather(
    known: tuple[Known, ...],
    elsewhere: tuple[Known, ...],
    flags: Mapping[str, str | int | None],
    assignments: list[str] | None,
    config: Path | None,
) -> tuple[Effective, list[str]]:
    from tailrace.cli import settings as given  # noqa: PLC0415

    from_environment, doubts = given.from_environment(os.environ, known)
    found = given.effective(
        known,
        given.from_flags(flags),
        given.from_assignments(assignments or [], known),
        from_environment,
        given.from_file(config, known, elsewhere) if config is not None else [],
    )
    return found, doubts


def _print(found: Effective, doubts: list[str]) -> None:
    lines = found.lines()
    name_width = max(len(name) for name, _, _ in lines)
    text_width = min(max(len(text) for _, text, _ in lines), 40)
    for name, text, origin in lines:
        typer.echo(f"{name:{name_width}} = {text:{text_width}}  # {origin}")
    for doubt in doubts:
        typer.echo(f"tailrace: {doubt}", err=True)


def _say(who: str, doubts: list[str]) -> Callable[[str], None]:
    from tailrace.clock import SystemClock  # noqa: PLC0415
    from tailrace.loglines import LogLines  # noqa: PLC0415

    lines = LogLines(who, sys.stderr, SystemClock(), as_json=not sys.stderr.isatty())
    lines.capture()
    for doubt in doubts:
        lines.write("warning", doubt)
    return lines
