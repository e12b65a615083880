"""What commands that ask a cluster have in common: which one, for how long, how to print.

`asks` gives a command the options for it and hands them over as one `Asking`. Nothing heavy is
imported before something is asked, so that help and completion need not wait.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_type_hints

import typer

if TYPE_CHECKING:
    from tailrace.client.admin import AdminCore

TIMEOUT_S: Final = 15.0
# The largest numbers of brokers and partitions, and the largest offset, that messages can carry.
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

CODES: Final = "Exit codes: 0 done, 1 failed, 2 wrong usage or not there, 130 after Ctrl-C."

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="HOST:PORT,…",
        envvar="TAILRACE_BOOTSTRAP",
        help="Brokers to ask first. (default: the dev cluster, if one runs)",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Give up after this long.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asking:
    """Whom to ask, for how long, and how to print the answer."""

    bootstrap: str | None
    timeout_s: float
    as_json: bool

    def ask(self, question: Callable[[AdminCore], Coroutine[Any, Any, T]]) -> T:
        from tailrace.cli.connecting import connection, run  # noqa: PLC0415
        from tailrace.cli.patience import telling_why  # noqa: PLC0415

        async def asked() -> T:
            to = connection(self.bootstrap, self.timeout_s)
            async with to.admin() as admin, telling_why(admin.trouble, to.clock):
                try:
                    return await question(admin)
                finally:
                    _warn_of_stale_metadata(admin)

        return run(asked())


def _warn_of_stale_metadata(admin: AdminCore) -> None:
    """Whatever was answered, or was not: say when it may be stale, and why."""
    from tailrace.cli.formatting import iso_time, safe  # noqa: PLC0415
    from tailrace.cli.output import warn  # noqa: PLC0415

    problem, since_ms = admin.store_problem
    if problem:
        warn(
            f"METADATA MAY BE STALE since {iso_time(since_ms)}: brokers do not believe the "
            f"metadata store: {safe(problem)}. Put the right store back, or rebuild it with "
            "`tailrace cluster recover`"
        )


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """A command with --bootstrap, --timeout and --json, which it gets as its argument `asking`."""
    hints = get_type_hints(command, localns={"Asking": Asking}, include_extras=True)
    own = [
        each.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in inspect.signature(command).parameters.items()
        if name != "asking"
    ]

    def asking_command(
        *, bootstrap: str | None, timeout: float, as_json: bool, **given: Any
    ) -> None:
        command(asking=Asking(bootstrap, timeout, as_json), **given)

    asking_command.__name__ = command.__name__
    asking_command.__doc__ = command.__doc__
    # Typer reads the options from here.
    signature = inspect.Signature([*own, *_COMMON])
    asking_command.__signature__ = signature  # type: ignore[attr-defined]
    asking_command.__annotations__ = {
        name: each.annotation for name, each in signature.parameters.items()
    }
    return asking_command


def _option(name: str, default: object, kind: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


_COMMON: Final = (
    _option("bootstrap", None, Bootstrap),
    _option("timeout", TIMEOUT_S, Timeout),
    _option("as_json", False, Json),
)
