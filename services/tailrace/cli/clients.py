"""`tailrace topics`, `cluster`, `produce`, `consume`, `explain`, `doctor`: what clients do.

Only the command line: arguments, options, help. What the commands do is in `cli.topics`,
`cli.producing` and `cli.consuming`, imported when one of them runs, so that help need not wait.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.asking import CODES, INT32_MAX, Asking, Bootstrap, Json, Yes, asks

topics_app = typer.Typer(
    name="topics", help="Make, list, describe and delete topics.", no_args_is_help=True
)
cluster_app = typer.Typer(
    name="cluster", help="Look at the cluster, rebuild its metadata store.", no_args_is_help=True
)

_Settings = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="A setting of the topic; may be repeated."),
]


_WaitTopic = Annotated[
    float,
    typer.Option(
        "--wait-topic",
        min=0.0,
        metavar="SECONDS",
        help="How long a topic may take to appear that is not there.",
    ),
]


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of topics for the shell; none when no cluster answers at once."""
    from tailrace.cli.topics import topic_names  # noqa: PLC0415

    return topic_names(ctx.params.get("bootstrap"), incomplete)


Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Its name.", autocompletion=complete_topics)
]


@topics_app.command("create", epilog=CODES)
@asks
def create_topic(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Its name.")],
    *,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, max=INT32_MAX, help="How many partitions.")
    ] = 1,
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor",
            "-r",
            min=0,
            max=INT32_MAX,
            help="Replicas; 0: as the controllers are set.",
        ),
    ] = 0,
    config: _Settings = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="One that is there already is fine.")
    ] = False,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Only say whether it could be made.")
    ] = False,
    asking: Asking,
) -> None:
    """Make a topic, and wait until its partitions have leaders."""
    from tailrace.cli import topics  # noqa: PLC0415

    topics.create(
        asking,
        topic,
        partitions=partitions,
        replication_factor=replication_factor,
        config=topics.assignments(config or []),
        if_not_exists=if_not_exists,
        validate_only=validate_only,
    )


@topics_app.command("list", epilog=CODES)
@asks
def list_topics(*, asking: Asking) -> None:
    """List the topics and how they are."""
    from tailrace.cli import topics  # noqa: PLC0415

    topics.list_all(asking)


@topics_app.command("describe", epilog=CODES)
@asks
def describe_topics(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC", help="All, when none is named.", autocompletion=complete_topics
        ),
    ] = None,
    unhealthy: Annotated[
        bool, typer.Option("--unhealthy", help="Only partitions with something wrong.")
    ] = False,
    *,
    asking: Asking,
) -> None:
    """Show leaders, replicas and health of topics.

    Health: offline (no leader), under-replicated (not all replicas in sync), under-min-isr (too few
    in sync for acks=all), leader-not-preferred (not the first replica leads).
    """
    from tailrace.cli import topics  # noqa: PLC0415

    topics.describe(asking, names or [], unhealthy=unhealthy)


@topics_app.command("delete", epilog=CODES)
@asks
def delete_topics(
    names: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC", help="One or several.", autocompletion=complete_topics),
    ],
    yes: Yes = False,
    *,
    asking: Asking,
) -> None:
    """Delete topics and their records. Asks first when a person is at the terminal."""
    from tailrace.cli import topics  # noqa: PLC0415

    topics.delete(asking, names, yes=yes)


@cluster_app.command("describe", epilog=CODES)
@asks
def describe_cluster(*, asking: Asking) -> None:
    """Show brokers, the active controller, and what is wrong with partitions."""
    from tailrace.cli import topics  # noqa: PLC0415

    topics.describe_cluster(asking)


_Control = Annotated[
    str | None,
    typer.Option(
        "--control",
        metavar="HOST:PORT,…",
        help="Control ports of one or more brokers; their copies name the others. "
        "(default: those of the dev cluster)",
        show_default=False,
    ),
]
_RebuiltEtcd = Annotated[
    str | None,
    typer.Option(
        "--etcd",
        metavar="HOST:PORT,…",
        help="The etcd to rebuild. (default: as --config says, or that of the dev cluster)",
        show_default=False,
    ),
]
_EtcdConfig = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="The config file of a service: how to reach etcd."
    ),
]
_EtcdSet = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of etcd.…; may be repeated."),
]
_Missing = Annotated[
    list[int] | None,
    typer.Option(
        "--missing",
        metavar="BROKER",
        min=0,
        max=INT32_MAX,
        help="Go on without what this broker knows; may be repeated.",
    ),
]
_Adopt = Annotated[
    list[str] | None,
    typer.Option(
        "--adopt",
        metavar="TOPIC[=ID]",
        help="Take back a topic that the store does not know and brokers have set aside; may be "
        "repeated.",
    ),
]
_RecoveryTimeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.1,
        metavar="SECONDS",
        help="How long brokers may take to answer, and then the cluster to be back.",
    ),
]


@cluster_app.command("recover", epilog=CODES)
def recover_cluster(
    *,
    control: _Control = None,
    etcd: _RebuiltEtcd = None,
    config: _EtcdConfig = None,
    settings: _EtcdSet = None,
    missing: _Missing = None,
    adopt: _Adopt = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the plan. Without, it is only shown.")
    ] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show every partition.")] = False,
    yes: Yes = False,
    timeout_s: _RecoveryTimeout = 60.0,
    as_json: Json = False,
) -> None:
    """Rebuild an etcd that is lost, or too old, from what the brokers know.

    Each broker keeps a copy of the metadata. This asks all brokers, shows what the rebuilt store
    will hold, what is certain and what is inferred, and writes it with --apply. Brokers need the
    store neither to run nor to answer. No record is touched, and no newer store is overwritten.

    With a store that is right, --adopt takes topics back of which only replicas are left that
    brokers have set aside (`tailrace brokers strays`).
    """
    from tailrace.cli import recovery  # noqa: PLC0415
    from tailrace.cli.stores import dev_control, etcd_settings_of, is_of_dev  # noqa: PLC0415

    recovery.recover(
        recovery.RecoverOptions(
            control=control or dev_control(),
            etcd=etcd_settings_of(etcd, config, settings or [], is_dev=is_of_dev(control)),
            missing=frozenset(missing or ()),
            adopt=tuple(adopt or ()),
            apply=apply,
            yes=yes,
            show_all=show_all,
            as_json=as_json,
            timeout_ms=round(timeout_s * 1_000),
        )
    )


@asks
def explain(
    topic: Topic,
    partition: Annotated[
        int,
        typer.Argument(metavar="PARTITION", min=0, max=INT32_MAX, help="Its number, from 0 on."),
    ],
    asking: Asking,
) -> None:
    """Tell why the leader of a partition changed: the cause, who could lead, the times."""
    from tailrace.cli import topics  # noqa: PLC0415

    topics.explain(asking, topic, partition)


@asks
def doctor(
    *,
    etcd: Annotated[
        str | None,
        typer.Option(
            "--etcd",
            metavar="HOST:PORT,…",
            help="Ask these etcds how they are, too. (default: that of the dev cluster)",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", metavar="DIR", help="A data folder on this machine; repeatable."),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option("--config", metavar="FILE", help="The config file of a service; repeatable."),
    ] = None,
    asking: Asking,
) -> None:
    """Look at a cluster and at this machine: what is wrong, and what to do about it.

    Looks at etcd, controller, brokers, disks, files, clocks, partitions, leaders, reassignments
    and groups; here at limits, disks, the dev cluster, and what --data and --config name.
    """
    from tailrace.cli.doctor import Wanted  # noqa: PLC0415
    from tailrace.cli.doctor import doctor as look  # noqa: PLC0415

    wanted = Wanted(
        etcd=tuple(part.strip() for part in etcd.split(",") if part.strip()) if etcd else (),
        data=tuple(data or ()),
        configs=tuple(config or ()),
    )
    code = look(asking, wanted)
    if code:
        raise typer.Exit(code)


def console(
    *,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Where browsers find it. It shows every record: think before it is not this host.",
        ),
    ] = "127.0.0.1:8787",
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A name it is called by; repeatable."),
    ] = None,
    drills: Annotated[
        Path | None,
        typer.Option(
            "--drills", metavar="FILE", help="Reports: what `kubectl get drills -o json` gives."
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long to look for it."),
    ] = 15.0,
) -> None:
    """Serve a page that shows the cluster: map, topics, groups, live tail, failovers, drills."""
    from tailrace.cli.console import console as serve  # noqa: PLC0415

    serve(bootstrap, timeout, listen=listen, allow_hosts=tuple(allow_host or ()), drills=drills)


def produce(
    topic: Topic,
    *,
    value: Annotated[
        str | None,
        typer.Option("--value", help="One record with this value, and nothing from stdin."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The key of every record.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", metavar="NAME=VALUE", help="A header of every record; repeatable."
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Take lines from here, not from stdin.")
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", help="Lines hold key and value, with this between."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", min=0, help="All to this one. (default: by key, or in turns)"),
    ] = None,
    acks: Annotated[str, typer.Option("--acks", help="0, 1 or all.")] = "all",
    compression: Annotated[str, typer.Option("--compression", help="none, lz4 or zstd.")] = "none",
    name: Annotated[
        str | None, typer.Option("--name", help="A named producer: an older one is fenced.")
    ] = None,
    bootstrap: Bootstrap = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long one record may take."),
    ] = 120.0,
    wait_topic: _WaitTopic = 1.0,
    as_json: Json = False,
) -> None:
    """Write records: one for each line of stdin, of a file, or the one that is given."""
    from tailrace.cli import producing  # noqa: PLC0415

    producing.produce(
        producing.Input(
            topic=topic,
            value=value,
            key=key,
            headers=producing.parse_headers(header or ()),
            file=file,
            key_separator=key_separator,
            partition=partition,
        ),
        bootstrap=bootstrap,
        settings=producing.settings(
            acks=acks,
            compression=compression,
            name=name,
            timeout_s=timeout,
            wait_topic_s=wait_topic,
        ),
        as_json=as_json,
    )


@asks
def consume(
    topic: Topic,
    *,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Read as a member of this group, and commit."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Only this one.")
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option("--from-beginning", help="As --offset earliest, whatever is committed."),
    ] = False,
    offset: Annotated[
        str | None,
        typer.Option("--offset", "-o", help="earliest, latest, or a number. (default: earliest)"),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="From a time ago (5m, 2h, 7d) or a moment."),
    ] = None,
    max_records: Annotated[
        int | None, typer.Option("--max", min=1, help="Stop after so many records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on at the end, and wait for more.")
    ] = False,
    with_keys: Annotated[
        bool, typer.Option("--keys", help="Print the keys too, with a tab after each.")
    ] = False,
    on_corrupt: Annotated[
        str,
        typer.Option(
            "--on-corrupt", metavar="raise|skip", help="At a stored batch that cannot be read."
        ),
    ] = "raise",
    wait_topic: _WaitTopic = 1.0,
    asking: Asking,
) -> None:
    """Read a topic up to its end (or for ever), and print a line for each record.

    On a terminal a line shows time, partition:offset, key, value and headers. Into a pipe or a file
    go the values as they are. With --json each line tells everything; what is no text stands there
    as {"base64": …}. Ctrl-C and SIGTERM leave the group in order.
    """
    from tailrace.cli import consuming  # noqa: PLC0415

    if from_beginning and offset is not None:
        raise typer.BadParameter("give --from-beginning or --offset, not both")
    consuming.consume(
        consuming.Wanted(
            topic=topic,
            group=group,
            partition=partition,
            offset="earliest" if from_beginning else offset,
            since=since,
            max_records=max_records,
            follow=follow,
            with_keys=with_keys,
            on_corrupt=on_corrupt,
            wait_topic_s=wait_topic,
            as_json=asking.as_json,
            pretty=sys.stdout.isatty() and not with_keys,
            colour=not os.environ.get("NO_COLOR"),
        ),
        bootstrap=asking.bootstrap,
        timeout_s=asking.timeout_s,
    )
