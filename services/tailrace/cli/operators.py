"""The commands of operators: change topics, brokers and settings of a cluster that runs.

Only the command line: arguments, options, help. What the commands do is in `cli.operating` and
`cli.moves`, imported when one of them runs. They join `topics` and make `brokers` and `config`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from tailrace.cli.asking import CODES, INT32_MAX, INT64_MAX, Asking, Yes, asks
from tailrace.cli.clients import Topic, complete_topics, topics_app

brokers_app = typer.Typer(
    name="brokers", help="Look at brokers, cordon and empty them.", no_args_is_help=True
)
config_app = typer.Typer(
    name="config", help="Settings of topics, brokers and clients.", no_args_is_help=True
)

_KINDS: Final = ("topics", "brokers", "clients")

_Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TOPIC", help="All, when none is named.", autocompletion=complete_topics
    ),
]
_Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A new value; may be repeated."),
]
_Unset = Annotated[
    list[str] | None,
    typer.Option("--unset", metavar="NAME", help="Back to the default; may be repeated."),
]
_Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Show the progress until it is done.")
]
_Throttle = Annotated[
    str | None,
    typer.Option(
        "--throttle",
        metavar="BYTES",
        help="Bytes a second that each leader pushes to new replicas (as 50M); 0: no limit.",
    ),
]
_Dry = Annotated[bool, typer.Option("--dry-run", help="Only show moves, bytes and the lowest ISR.")]


def complete_brokers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of brokers for the shell; none when no cluster answers at once."""
    from tailrace.cli.operating import broker_ids  # noqa: PLC0415

    return broker_ids(ctx.params.get("bootstrap"), incomplete)


_Broker = Annotated[
    int,
    typer.Argument(
        metavar="BROKER",
        min=0,
        max=INT32_MAX,
        help="Its id.",
        autocompletion=complete_brokers,
    ),
]


def complete_kinds(incomplete: str) -> list[str]:
    return [each for each in _KINDS if each.startswith(incomplete)]


_Kind = Annotated[
    str,
    typer.Argument(
        metavar="topics|brokers|clients", help="Of what.", autocompletion=complete_kinds
    ),
]


@topics_app.command("alter", epilog=CODES)
@asks
def alter_topic(
    topic: Topic,
    *,
    changed: _Set = None,
    unset: _Unset = None,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Only say whether it could be.")
    ] = False,
    yes: Yes = False,
    asking: Asking,
) -> None:
    """Change settings of a topic; brokers take them over at once.

    Asks first where fewer records may be kept, when a person is at the terminal.
    """
    from tailrace.cli import operating  # noqa: PLC0415

    operating.set_config(
        asking,
        "topics",
        topic,
        changed or [],
        unset or [],
        validate_only=validate_only,
        yes=yes,
    )


@topics_app.command("add-partitions", epilog=CODES)
@asks
def add_partitions(
    topic: Topic,
    total: Annotated[
        int, typer.Argument(metavar="TOTAL", min=1, max=INT32_MAX, help="How many in all.")
    ],
    *,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Only say whether it could be.")
    ] = False,
    asking: Asking,
) -> None:
    """Give a topic more partitions. Keys may go to other partitions after that."""
    from tailrace.cli import operating  # noqa: PLC0415

    operating.add_partitions(asking, topic, total, validate_only=validate_only)


@topics_app.command("delete-records", epilog=CODES)
@asks
def delete_records(
    topic: Topic,
    *,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Of all, unless named.")
    ] = None,
    before: Annotated[
        int,
        typer.Option(
            "--before", min=-1, max=INT64_MAX, help="The first offset that stays; -1: none does."
        ),
    ],
    yes: Yes = False,
    asking: Asking,
) -> None:
    """Delete the records below an offset, on all replicas."""
    from tailrace.cli import operating  # noqa: PLC0415

    operating.delete_records(asking, topic, partition or [], before, yes=yes)


@topics_app.command("elect-leaders", epilog=CODES)
@asks
def elect_leaders(
    names: _Names = None,
    *,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Only this one.")
    ] = None,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean", help="Let replicas lead that may lack acknowledged records: they are lost."
        ),
    ] = False,
    yes: Yes = False,
    asking: Asking,
) -> None:
    """Let preferred replicas lead, of all topics unless some are named.

    With --unclean: give partitions that nobody can lead without loss a leader all the same. It
    shows what is known of the loss and asks first; the loss stays in `describe` and `explain`.
    """
    from tailrace.cli import operating  # noqa: PLC0415

    if unclean:
        operating.elect_unclean(asking, names or [], partition, yes=yes)
    else:
        operating.elect_preferred(asking, names or [], partition)


@topics_app.command("reassign", epilog=CODES)
@asks
def reassign(
    names: _Names = None,
    *,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="FILE",
            help='JSON: {"partitions": [{"topic", "partition", "replicas"}]}; - reads stdin.',
        ),
    ] = None,
    brokers: Annotated[
        str | None,
        typer.Option("--brokers", metavar="ID,…", help="By the rule of placement, over these."),
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="Only show what is under way.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Go back to the replicas from before.")
    ] = False,
    dry_run: _Dry = False,
    throttle: _Throttle = None,
    wait: _Wait = True,
    yes: Yes = False,
    asking: Asking,
) -> None:
    """Move replicas to other brokers: by a plan, or by the rule over a set of brokers.

    New replicas are filled first, old ones go when all new ones are in sync. It goes on when this
    command ends, and when a controller dies; --status shows it, --cancel goes back.
    """
    from tailrace.cli import moves  # noqa: PLC0415

    if status or cancel:
        moves.require_alone(
            "--cancel" if cancel else "--status",
            {
                "--plan": plan,
                "--brokers": brokers,
                "--throttle": throttle,
                "--dry-run": dry_run,
                "--status": status and cancel,
            },
        )
        moves.status(asking, names or [], cancel=cancel, wait=wait)
        return
    wanted = moves.Wanted(
        plan=moves.read_plan(plan) if plan is not None else None,
        brokers=moves.read_brokers(brokers) if brokers is not None else (),
        topics=tuple(names or ()),
    )
    options = moves.Options(dry_run=dry_run, throttle=throttle, wait=wait, yes=yes)
    moves.reassign(asking, wanted, options)


@brokers_app.command("list", epilog=CODES)
@asks
def list_brokers(*, asking: Asking) -> None:
    """List brokers: where they are, what they lead and hold, whether they are cordoned."""
    from tailrace.cli import operating  # noqa: PLC0415

    operating.list_brokers(asking)


@brokers_app.command("describe", epilog=CODES)
@asks
def describe_broker(
    broker: _Broker,
    *,
    asking: Asking,
) -> None:
    """Show a broker and its replicas by folder, with their sizes and offsets."""
    from tailrace.cli import operating  # noqa: PLC0415

    operating.describe_broker(asking, broker)


@brokers_app.command("strays", epilog=CODES)
@asks
def list_strays(
    broker: Annotated[
        int | None,
        typer.Argument(
            metavar="BROKER",
            min=0,
            max=INT32_MAX,
            help="All, unless one is named.",
            autocompletion=complete_brokers,
        ),
    ] = None,
    *,
    asking: Asking,
) -> None:
    """List replicas that were set aside: nobody wants them, and nothing proves that they may go.

    Each is kept for stray.retention.ms. Its topic is one that the metadata store does not know.
    """
    from tailrace.cli import strays  # noqa: PLC0415

    strays.list_strays(asking, broker)


@brokers_app.command("cordon", epilog=CODES)
@asks
def cordon_broker(
    broker: _Broker,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")] = "",
    asking: Asking,
) -> None:
    """Give a broker no new replicas and no leadership."""
    from tailrace.cli import operating  # noqa: PLC0415

    operating.cordon(asking, broker, cordon=True, reason=reason)


@brokers_app.command("uncordon", epilog=CODES)
@asks
def uncordon_broker(
    broker: _Broker,
    *,
    asking: Asking,
) -> None:
    """Let a broker have replicas and leaderships again."""
    from tailrace.cli import operating  # noqa: PLC0415

    operating.cordon(asking, broker, cordon=False, reason="")


@brokers_app.command("drain", epilog=CODES)
@asks
def drain_broker(
    broker: _Broker,
    *,
    dry_run: _Dry = False,
    throttle: _Throttle = None,
    wait: _Wait = True,
    yes: Yes = False,
    asking: Asking,
) -> None:
    """Cordon a broker and move all its replicas to others; then it can be taken away."""
    from tailrace.cli import moves  # noqa: PLC0415

    options = moves.Options(dry_run=dry_run, throttle=throttle, wait=wait, yes=yes)
    moves.reassign(asking, moves.Wanted(drain=broker), options)


@config_app.command("get", epilog=CODES)
@asks
def get_config(
    kind: _Kind,
    name: Annotated[str, typer.Argument(metavar="NAME", help="All, unless named.")] = "",
    *,
    asking: Asking,
) -> None:
    """Show the settings that are stored: what differs from the defaults."""
    from tailrace.cli import operating  # noqa: PLC0415

    operating.get_config(asking, kind, name)


@config_app.command("set", epilog=CODES)
@asks
def set_config(
    kind: _Kind,
    name: Annotated[str, typer.Argument(metavar="NAME", help="`default` stands for all others.")],
    assignments: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="What to set.")
    ] = None,
    *,
    unset: _Unset = None,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Only say whether it could be.")
    ] = False,
    yes: Yes = False,
    asking: Asking,
) -> None:
    """Change settings of a topic, a broker or a client; effective at once.

    Asks first where fewer records may be kept, when a person is at the terminal.

    Quotas of clients: producer_byte_rate, consumer_byte_rate, request_rate, for each broker.
    """
    from tailrace.cli import operating  # noqa: PLC0415

    operating.set_config(
        asking,
        kind,
        name,
        assignments or [],
        unset or [],
        validate_only=validate_only,
        yes=yes,
    )
