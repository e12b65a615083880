"""`tailrace perf`: how fast this cluster takes and gives records. Only the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from tailrace.cli.asking import CODES, Asking, asks
from tailrace.cli.clients import Topic

app = typer.Typer(name="perf", help="Measure how fast records go in and out.", no_args_is_help=True)


@app.command("produce", epilog=CODES)
@asks
def produce(
    topic: Topic,
    *,
    records: Annotated[int, typer.Option("--records", "-n", min=1, help="How many.")] = 1_000_000,
    size: Annotated[int, typer.Option("--size", min=0, help="Bytes of each value.")] = 100,
    rate: Annotated[
        int, typer.Option("--rate", min=0, help="Records a second; 0: as fast as it goes.")
    ] = 0,
    columns: Annotated[
        bool, typer.Option("--columns", help="Hand over Arrow columns, not single records.")
    ] = False,
    keys: Annotated[
        int, typer.Option("--keys", min=0, help="So many different keys; 0: records without.")
    ] = 0,
    acks: Annotated[str, typer.Option("--acks", help="0, 1 or all.")] = "all",
    compression: Annotated[str, typer.Option("--compression", help="none, lz4 or zstd.")] = "none",
    linger_ms: Annotated[
        int, typer.Option("--linger-ms", min=0, help="How long records wait for others.")
    ] = 0,
    asking: Asking,
) -> None:
    """Write made-up records to a topic, and say how fast they were taken."""
    from tailrace.cli import measuring  # noqa: PLC0415

    load = measuring.Load(
        topic=topic, records=records, size=size, rate=rate, columns=columns, keys=keys
    )
    measuring.produce(load, asking, acks=acks, compression=compression, linger_ms=linger_ms)


@app.command("consume", epilog=CODES)
@asks
def consume(
    topic: Topic,
    *,
    records: Annotated[
        int, typer.Option("--records", "-n", min=0, help="How many; 0: all that are there.")
    ] = 0,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Read as a member of this group.")
    ] = None,
    arrow: Annotated[
        bool, typer.Option("--arrow", help="Take Arrow batches, not single records.")
    ] = False,
    asking: Asking,
) -> None:
    """Read a topic from its beginning, print nothing of it, and say how fast that was."""
    from tailrace.cli import measuring  # noqa: PLC0415

    reading = measuring.Reading(topic=topic, records=records, group=group, arrow=arrow)
    measuring.consume(reading, asking)
