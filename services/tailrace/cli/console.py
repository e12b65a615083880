"""`tailrace console`: the page that shows a cluster, served until Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import typer

from tailrace.cli.connecting import Connection, connection, run
from tailrace.console import tailing
from tailrace.console.server import Console
from tailrace.console.watching import Watcher
from tailrace.process import asked_to_stop
from tailrace.runtime import Tasks
from tailrace.transport.addresses import join_address, listening_socket, split_address


def console(
    bootstrap: str | None,
    timeout_s: float,
    *,
    listen: str,
    allow_hosts: tuple[str, ...] = (),
    drills: Path | None = None,
) -> None:
    """Serve it until a signal comes."""
    run(_serve(connection(bootstrap, timeout_s), listen, allow_hosts, drills))


async def _serve(
    reached: Connection, listen: str, allow_hosts: tuple[str, ...], drills: Path | None
) -> None:
    with await listening_socket(listen) as sock:
        await _serve_on(sock, reached, listen, allow_hosts, drills)


async def _serve_on(
    sock: socket.socket,
    reached: Connection,
    listen: str,
    allow_hosts: tuple[str, ...],
    drills: Path | None,
) -> None:
    port = sock.getsockname()[1]
    failures: list[BaseException] = []
    # Asked for when it serves: until then a signal breaks it off.
    stop = asyncio.Event()

    def end(_: str, error: BaseException) -> None:
        failures.append(error)
        stop.set()

    tasks = Tasks(end)
    async with reached.admin() as admin:
        watcher = Watcher(admin)
        page = Console(
            watcher,
            watcher.partitions_of,
            lambda: reached.consumer(tailing.SETTINGS),
            hosts=allowed(listen, port, allow_hosts),
            drills=drills,
        )
        # A cluster that does not answer at all is told here, not in an empty page.
        await admin.picture()
        tasks.spawn("console", watcher.run())
        await page.start(sock)
        host = split_address(listen)[0]
        shown = "127.0.0.1" if host in {"0.0.0.0", "::"} else host  # noqa: S104 - it is compared.
        typer.echo(f"The console is at http://{join_address(shown, port)}/ — Ctrl-C ends it.")
        asked_to_stop(stop)
        try:
            await stop.wait()
        finally:
            await page.stop()
            await tasks.close()
        if failures:
            raise failures[0]


def allowed(listen: str, port: int, more: tuple[str, ...]) -> frozenset[str]:
    """The names that browsers may call it by; a page of elsewhere has another one."""
    host = split_address(listen)[0]
    names = {host, "localhost", "127.0.0.1", "[::1]"}
    own = {f"{name}:{port}" for name in names}
    return frozenset(own | {each for name in more for each in (name, f"{name}:{port}")})
