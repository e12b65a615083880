"""`tailrace log`: look into the files of a log, and find out whether they are sound.

Only the command line: arguments, options, help. What the commands do is in `cli.log_tools`, which
is imported when one of them runs, so that help and completion need not wait for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="log",
    help="Look into the files of a log, and find out whether they are sound.",
    no_args_is_help=True,
)

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]


@app.command(
    epilog="Exit codes: 0 all was readable, 1 something is damaged, 2 a path could not be read.",
)
def dump(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH",
            help="A segment (.log, .swap, .cleaned), .index, .timeindex, .snapshot, a checkpoint, "
            "partition.metadata, meta.properties, or the folder of a partition or a broker.",
            show_default=False,
        ),
    ],
    records: Annotated[
        bool, typer.Option("--records", help="Decode and print the records of segments.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Print keys and values in full length.")
    ] = False,
    as_json: _Json = False,
    from_offset: Annotated[
        int, typer.Option("--from-offset", min=0, help="Leave out what is below this offset.")
    ] = 0,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Print at most so many lines of each path."),
    ] = None,
) -> None:
    """Print what is in the files of a log. Damaged parts are shown as such. Nothing is written."""
    from tailrace.cli.dump import DumpOptions  # noqa: PLC0415
    from tailrace.cli.log_tools import run_dump  # noqa: PLC0415

    options = DumpOptions(records=records, from_offset=from_offset, limit=limit)
    raise typer.Exit(run_dump(paths, options, as_json=as_json, full=full))


@app.command(
    epilog="Exit codes: 0 sound, 1 damage, 3 only what mends itself when the folder is opened, "
    "2 the folder could not be read.",
)
def verify(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="The data folder of a broker, or the folder of one partition.",
            show_default=False,
        ),
    ],
    deep: Annotated[
        bool, typer.Option("--deep", help="Decode every batch as well: finds unreadable bodies.")
    ] = False,
    as_json: _Json = False,
) -> None:
    """Find all damage in a folder and say what opening it will do. Nothing is written.

    The folder may be in use.
    """
    from tailrace.cli.log_tools import run_verify  # noqa: PLC0415

    raise typer.Exit(run_verify(folder, deep=deep, as_json=as_json))
