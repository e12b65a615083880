"""What `tailrace brokers`, `config` and the changes of `topics` do: ask, change, print.

Tables for people, one JSON object a line for programs; whatever would lose data asks first when a
person is at the terminal. Nothing is known here of how the cluster is asked: that is
`tailrace.client.operations`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final

import typer
from rich.console import Console
from rich.text import Text

from tailrace.cli.asking import Asking
from tailrace.cli.formatting import counted, iso_time, safe, size
from tailrace.cli.output import plain_table, print_json, stdout_console, warn
from tailrace.cli.settings import variable_of
from tailrace.cli.topics import assignments, offered, print_warnings
from tailrace.client.admin import AdminCore
from tailrace.client.describing import Health, TopicDescription
from tailrace.client.diagnosing import BrokerCondition, OutOfService
from tailrace.client.moving import ReplicaFacts, best_candidate, loss_of
from tailrace.client.operations import (
    CONFIG_KINDS,
    HIGH_WATERMARK,
    BrokerState,
    Elected,
    LeaderChoice,
    broker_states,
    with_condition,
)
from tailrace.config import UNLIMITED, live_setting_facts, log_setting_facts
from tailrace.errors import (
    ElectionNotNeeded,
    InvalidConfig,
    InvalidRequest,
    LeaderNotAvailable,
    NotController,
    RequestTimedOut,
    StoreUnavailable,
    UnknownBroker,
    Unreachable,
    no_partition,
)
from tailrace.meta.keys import DEFAULT_CONFIG
from tailrace.model import TopicPartition

# Settings by which brokers delete records, under all of their names.
_REMOVING: Final = frozenset(
    name
    for facts in log_setting_facts()
    if facts.name in {"retention.ms", "retention.bytes", "cleanup.policy"}
    for name in (facts.name, *facts.other_names)
)

# ---------------------------------------------------------------------------------------- settings


def get_config(asking: Asking, kind: str, name: str) -> None:
    found = asking.ask(lambda admin: admin.describe_configs(_kind(kind), name))
    if asking.as_json:
        for each, config in found.items():
            print_json({"kind": kind, "name": each, "config": config})
        return
    table = plain_table("name", "setting", "value")
    for each, config in found.items():
        for setting, value in config.items():
            table.add_row(Text(safe(each)), safe(setting), safe(value))
    stdout_console().print(table if table.row_count else "Nothing differs from the defaults.")


def set_config(
    asking: Asking,
    kind: str,
    name: str,
    given: Sequence[str],
    unset: Sequence[str],
    *,
    validate_only: bool,
    yes: bool,
) -> None:
    changed = assignments(given)
    if not changed and not unset:
        raise InvalidRequest("nothing to change: give NAME=VALUE, or --unset NAME")
    if _kind(kind) == "brokers":
        refuse_what_is_read_at_start([*changed, *unset])
    if not yes and not validate_only and sys.stdin.isatty() and _REMOVING & {*changed, *unset}:
        stored = asking.ask(lambda admin: admin.describe_configs(kind, name)).get(name, {})
        if fewer := keeping_less(stored, changed, unset):
            told = ", ".join(map(safe, fewer))
            typer.confirm(f"{told}: records may be deleted by it. Change {safe(name)}?", abort=True)

    async def change(admin: AdminCore) -> dict[str, str]:
        before = (await admin.describe_configs(kind, name)).get(name, {}) if unset else {}
        config = await admin.alter_config(
            kind, name, changed, unset=unset, validate_only=validate_only
        )
        for each in unset:
            if each not in before:
                warn(f"{safe(name)} had no {safe(each)} of its own: there was nothing to unset")
        if kind == "brokers" and name != DEFAULT_CONFIG:
            await _tell_if_away(admin, name)
        return config

    config = asking.ask(change)
    if asking.as_json:
        print_json({"kind": kind, "name": name, "config": config})
        return
    done = "would have" if validate_only else "has"
    told = ", ".join(f"{safe(each)}={safe(value)}" for each, value in config.items())
    typer.echo(f"{safe(name)} {done} {told or 'no settings of its own'}")


def refuse_what_is_read_at_start(names: Sequence[str]) -> None:
    """InvalidConfig for settings that a service has, but cannot change while it runs."""
    live = {name for facts in live_setting_facts() for name in (facts.name, *facts.other_names)}
    others = [name for name in names if name not in live]
    if not others:
        return
    from tailrace.cli import known_settings  # noqa: PLC0415 - it knows all services.

    services = {
        "broker": known_settings.broker_known(),
        "controller": known_settings.controller_known(),
        "coordinator": known_settings.coordinator_known(),
    }
    for name in others:
        found = [each for each, known in services.items() if any(name in k.names for k in known)]
        if found:
            raise InvalidConfig(
                f"{name} is read when a {' or '.join(found)} starts: set it in its --config file, "
                f"with --set {name}=… or as {variable_of(name)}, and start it again"
            )


def keeping_less(
    stored: Mapping[str, str], changed: Mapping[str, str], unset: Sequence[str]
) -> list[str]:
    """Which of these changes may delete records; without a value of before, it may be any."""
    return [
        *(f"{each}={changed[each]}" for each in changed if _keeps_less(each, stored, changed)),
        *(f"{each} back to its default" for each in unset if each in _REMOVING & stored.keys()),
    ]


def _keeps_less(setting: str, stored: Mapping[str, str], changed: Mapping[str, str]) -> bool:
    value, before = changed[setting], stored.get(setting, "")
    if setting not in _REMOVING or value in {before, str(UNLIMITED)}:
        return False
    if not (value.isdecimal() and before.isdecimal()):
        return True
    return int(value) < int(before)


async def _tell_if_away(admin: AdminCore, broker: str) -> None:
    """Settings may be there before their broker is; but it may also be a slip of the pen."""
    known = [str(each.broker_id) for each in await admin.describe_brokers()]
    if broker not in known:
        there = ", ".join(known)
        warn(f"there is no broker {broker} (there are {there}): it counts once one has that number")


def _kind(kind: str) -> str:
    if kind not in CONFIG_KINDS:
        raise InvalidRequest(f"settings belong to {', '.join(CONFIG_KINDS)}, not to {kind!r}")
    return kind


# ------------------------------------------------------------------------------------------ topics


def add_partitions(asking: Asking, topic: str, total: int, *, validate_only: bool) -> None:
    made = asking.ask(lambda admin: admin.add_partitions(topic, total, validate_only=validate_only))
    print_warnings(made)
    if asking.as_json:
        print_json(made.as_dict())
        return
    done = "can have" if validate_only else "has"
    typer.echo(f"{safe(topic)} {done} {counted(len(made.partitions), 'partition')}")


def delete_records(
    asking: Asking, topic: str, partitions: Sequence[int], before: int, *, yes: bool
) -> None:
    what = "all records" if before == HIGH_WATERMARK else f"the records below offset {before}"
    where = f"partitions {', '.join(map(str, partitions))}" if partitions else "all partitions"
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {what} in {where} of {safe(topic)}?", abort=True)

    async def delete(admin: AdminCore) -> bool:
        described = await admin.describe_topic(topic)
        numbers = partitions or [each.partition for each in described.partitions]
        _require_partitions(described, numbers)
        wanted = {TopicPartition(topic, each): before for each in numbers}
        failed = False
        for partition, deleted in (await admin.delete_records(wanted)).items():
            failed = failed or deleted.error is not None
            if asking.as_json:
                error = None if deleted.error is None else str(deleted.error)
                found = {"topic": topic, "partition": partition.partition}
                print_json({**found, "log_start": deleted.log_start, "error": error})
            elif deleted.error is not None:
                warn(f"{partition}: {deleted.error}")
            else:
                typer.echo(f"{partition} begins at offset {deleted.log_start}")
        return failed

    if asking.ask(delete):
        raise typer.Exit(1)


def _require_partitions(topic: TopicDescription, wanted: Sequence[int]) -> None:
    """UnknownTopic when a partition is named that is not there: nobody leads that one, ever."""
    missing = [each for each in wanted if each >= len(topic.partitions)]
    if missing:
        raise no_partition(topic.topic, len(topic.partitions), *missing)


def elect_preferred(asking: Asking, names: Sequence[str], partition: int | None) -> None:
    async def elect(admin: AdminCore) -> list[Elected]:
        if not names:
            return await admin.elect_leaders()
        return await admin.elect_leaders(await _partitions(admin, names, partition))

    _print_elected(asking, asking.ask(elect), "All preferred replicas lead that can.")


def elect_unclean(
    asking: Asking, names: Sequence[str], partition: int | None, *, yes: bool
) -> None:
    """Show what is known of the loss, ask, and let somebody lead."""
    choices = asking.ask(lambda admin: _unclean_choices(admin, names, partition))
    if not choices:
        raise LeaderNotAvailable("no partition that was meant is offline with a replica that is up")
    for each in choices:
        words = f"{each.partition}: broker {each.leader} would lead. {each.loss}"
        typer.echo(words, err=True)
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidRequest("acknowledged records may be lost: say --yes if that is meant")
        typer.confirm("Records may be lost for ever. Let these replicas lead?", abort=True)
    elected = asking.ask(lambda admin: admin.elect_unclean(choices))
    _print_elected(asking, elected, "Nothing was elected.")


async def _unclean_choices(
    admin: AdminCore, names: Sequence[str], partition: int | None
) -> list[LeaderChoice]:
    described = await admin.describe_topics(names or None)
    offline = [
        TopicPartition(topic.topic, each.partition)
        for topic in described
        for each in topic.partitions
        if Health.OFFLINE in each.health and partition in {None, each.partition}
    ]
    replicas = await admin.describe_replicas(offline) if offline else {}
    choices = []
    for each in offline:
        best = best_candidate(replicas.get(each, {}))
        if best is not None:
            loss = loss_of(best, replicas[each])
            choices.append(LeaderChoice(each, best.broker, loss))
    return choices


async def _partitions(
    admin: AdminCore, names: Sequence[str], partition: int | None
) -> list[TopicPartition]:
    described = await admin.describe_topics(names)
    if partition is not None:
        for topic in described:
            _require_partitions(topic, [partition])
    return [
        TopicPartition(topic.topic, each.partition)
        for topic in described
        for each in topic.partitions
        if partition in {None, each.partition}
    ]


def _print_elected(asking: Asking, elected: Sequence[Elected], nothing: str) -> None:
    """Exit 1 when one that was meant could not lead; one that leads already is as was asked."""
    for each in elected:
        if asking.as_json:
            print_json(
                {
                    "topic": each.partition.topic,
                    "partition": each.partition.partition,
                    "leader": each.leader,
                    "error": None if each.error is None else each.error.code,
                    "message": "" if each.error is None else str(each.error),
                }
            )
        elif each.error is None:
            typer.echo(f"{each.partition} is led by broker {each.leader}")
        else:
            typer.echo(str(each.error), err=not isinstance(each.error, ElectionNotNeeded))
    if not elected and not asking.as_json:
        typer.echo(nothing)
    errors = [each.error for each in elected if each.error is not None]
    if any(not isinstance(each, ElectionNotNeeded) for each in errors):
        raise typer.Exit(1)


# ----------------------------------------------------------------------------------------- brokers


def list_brokers(asking: Asking) -> None:
    found = asking.ask(_brokers)
    if asking.as_json:
        for each in found:
            print_json(each.as_dict())
        return
    table = plain_table("broker", "address", "rack", "leads", "prefers", "in sync", "state")
    for each in found:
        table.add_row(
            str(each.broker_id),
            each.address or "-",
            safe(each.rack) or "-",
            str(each.leaders),
            str(each.preferred),
            f"{each.in_sync} of {each.replicas}",
            _state(each),
        )
    stdout_console().print(table)


async def _brokers(admin: AdminCore) -> list[BrokerState]:
    """As the controller knows them, or else the metadata, with what each tells of itself."""
    found = await _known_brokers(admin)
    told = await admin.diagnose_brokers()
    return [with_condition(each, told.get(each.broker_id)) for each in found]


async def _known_brokers(admin: AdminCore) -> list[BrokerState]:
    picture = await admin.picture()
    if not picture.store_problem:
        try:
            return await admin.describe_brokers()
        except (Unreachable, RequestTimedOut, NotController, StoreUnavailable) as error:
            warn(f"no controller answers, this is what brokers know: {error}")
    return broker_states(picture)


def describe_broker(asking: Asking, broker: int) -> None:
    async def describe(
        admin: AdminCore,
    ) -> tuple[BrokerState, BrokerCondition | None, dict[TopicPartition, ReplicaFacts]]:
        about = {each.broker_id: each for each in await _known_brokers(admin)}.get(broker)
        if about is None:
            raise UnknownBroker(f"there is no broker {broker}")
        told = (await admin.diagnose_brokers()).get(broker)
        found = await admin.describe_replicas(brokers=[broker])
        replicas = {each: found[each][broker] for each in sorted(found)}
        condition = told if isinstance(told, BrokerCondition) else None
        return with_condition(about, told), condition, replicas

    about, condition, replicas = asking.ask(describe)
    out = () if condition is None else condition.out_of_service
    if asking.as_json:
        print_json(
            {
                **about.as_dict(),
                "folders": {
                    folder: [
                        {"topic": each.topic, "partition": each.partition, **facts._asdict()}
                        for each, facts in replicas.items()
                        if facts.folder == folder
                    ]
                    for folder in sorted({facts.folder for facts in replicas.values()})
                },
                "replicas_out_of_service": [
                    {**each.partition._asdict(), "code": each.error.code, "why": str(each.error)}
                    for each in out
                ],
            }
        )
        return
    console = stdout_console()
    _print_broker(console, about, out)
    table = plain_table("partition", "role", "size", "start", "end", "committed", "folder")
    for partition, facts in replicas.items():
        table.add_row(
            Text(safe(str(partition))),
            "leads" if facts.leads else "follows",
            size(facts.size_bytes),
            str(facts.log_start),
            str(facts.log_end),
            str(facts.high_watermark),
            safe(facts.folder),
        )
    console.print(table if replicas else "It has no replicas, or does not answer.")


def _print_broker(console: Console, about: BrokerState, out: Sequence[OutOfService]) -> None:
    """What is said of a broker above the table of its replicas."""
    console.print(Text(f"broker {about.broker_id} at {about.address or '-'}: ") + _state(about))
    if about.cordoned:
        reason = safe(about.cordon_reason) or "no reason given"
        console.print(f"cordoned since {iso_time(about.cordoned_ms)}: {reason}")
    if about.unfit:
        console.print(f"leads nothing while others can: {safe(about.unfit)}", markup=False)
    for each in out:
        console.print(
            Text(f"out of service: {each.partition}: {safe(str(each.error))}", style="bold red"),
            soft_wrap=True,
        )
    if about.out_of_service > len(out):
        console.print(f"and {about.out_of_service - len(out):,} more replicas out of service")
    if about.disks:
        disks = plain_table("folder", "replicas", "free", "of", "state")
        for disk in about.disks:
            disks.add_row(
                safe(disk.path),
                str(disk.replicas),
                size(disk.free_bytes) if disk.free_bytes >= 0 else "-",
                size(disk.total_bytes) if disk.total_bytes >= 0 else "-",
                Text(safe(disk.trouble), style="bold red") if disk.trouble else Text("well"),
            )
        console.print(disks)


def broker_ids(bootstrap: str | None, incomplete: str) -> list[str]:
    """For the shell's completion."""

    async def ids(admin: AdminCore) -> list[str]:
        return [str(each.broker_id) for each in await admin.describe_brokers()]

    return offered(bootstrap, incomplete, ids)


def cordon(asking: Asking, broker: int, *, cordon: bool, reason: str) -> None:
    if not cordon:
        # To the controller a broker without a cordon is as it should be, whether it is there or
        # not; a person who named one that is not there meant another.
        known = [each.broker_id for each in asking.ask(lambda admin: admin.describe_brokers())]
        if broker not in known:
            there = ", ".join(map(str, known))
            raise UnknownBroker(f"there is no broker {broker} (there are {there})")
    asking.ask(lambda admin: admin.cordon_broker(broker, cordon=cordon, reason=reason))
    if asking.as_json:
        print_json({"broker_id": broker, "cordoned": cordon})
    else:
        typer.echo(f"broker {broker} is {'cordoned' if cordon else 'not cordoned'}")


def _state(broker: BrokerState) -> Text:
    # What is said of a disk begins with the kind of it: full, slow, failed.
    troubles = sorted({safe(disk.trouble.partition(":")[0]) for disk in broker.disks} - {""})
    words = [
        *([] if broker.live else [Text("away", style="bold red")]),
        *([Text("cordoned", style="yellow")] if broker.cordoned else []),
        *([Text("shutting down", style="yellow")] if broker.draining else []),
        *(Text(f"disk {kind}", style="bold red") for kind in troubles),
        *(
            [Text(f"{counted(broker.out_of_service, 'replica')} out of service", style="bold red")]
            if broker.out_of_service
            else []
        ),
        *([Text("store not believed", style="bold red")] if broker.store_problem else []),
    ]
    return Text(", ").join(words) if words else Text("ok", style="green")
