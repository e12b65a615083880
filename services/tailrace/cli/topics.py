"""What `tailrace topics`, `cluster describe` and `explain` do: ask, and print the answer.

Tables for people, one JSON object a line for programs. Nothing is known here of how the cluster is
asked: that is `tailrace.client.admin`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import typer
from rich.console import Console
from rich.text import Text

from tailrace.cli.asking import Asking
from tailrace.cli.connecting import connection, run
from tailrace.cli.formatting import counted, iso_time, safe
from tailrace.cli.output import plain_table, print_json, stdout_console, warn
from tailrace.client.admin import AdminCore
from tailrace.client.describing import (
    ClusterDescription,
    Health,
    PartitionDescription,
    TopicDescription,
    with_conditions,
)
from tailrace.client.diagnosing import BrokerCondition, DeletionRecord
from tailrace.errors import InvalidConfig, TailraceError, TopicExists, UnknownTopic
from tailrace.meta.keys import LeaderChange, SettingsChange
from tailrace.model import TopicPartition

COMPLETION_TIMEOUT_S: Final = 1.0
# Of each broker, by `explain`: the newest deletions and cuts of the partition.
DELETIONS_SHOWN: Final = 20

_BAD: Final = {
    Health.OFFLINE: "bold red",
    Health.UNDER_MIN_ISR: "bold red",
    Health.NEEDS_DECISION: "bold red",
    Health.REPLICA_OUT: "bold red",
    Health.UNDER_REPLICATED: "yellow",
    Health.LEADER_NOT_PREFERRED: "dim",
}


def create(
    asking: Asking,
    topic: str,
    *,
    partitions: int,
    replication_factor: int,
    config: dict[str, str],
    if_not_exists: bool,
    validate_only: bool,
) -> None:
    try:
        made = asking.ask(
            lambda admin: admin.create_topic(
                topic,
                partitions=partitions,
                replication_factor=replication_factor,
                config=config,
                validate_only=validate_only,
            )
        )
    except TopicExists as error:
        if not if_not_exists:
            raise
        warn(str(error))
        return
    print_warnings(made)
    if asking.as_json:
        print_json(made.as_dict())
        return
    done = "can be created" if validate_only else "created"
    replicas = max((len(each.replicas) for each in made.partitions), default=0)
    count = len(made.partitions) or partitions
    what = f"{counted(count, 'partition')}, {counted(replicas, 'replica')} each"
    typer.echo(f"{topic} {done}: {what if replicas else counted(count, 'partition')}")


def print_warnings(made: TopicDescription) -> None:
    """What the controller said about a topic that it made or enlarged all the same."""
    for warning in made.warnings:
        warn(f"warning: {safe(warning)}")


def list_all(asking: Asking) -> None:
    found = asking.ask(lambda admin: admin.describe_topics())
    if asking.as_json:
        for each in found:
            print_json(_summary(each))
        return
    table = plain_table("topic", "partitions", "replicas", "health")
    for each in found:
        summary = _summary(each)
        table.add_row(
            Text(safe(each.topic)),
            str(summary["partitions"]),
            str(summary["replication_factor"]),
            _health_counts(summary["health"], deleting=each.deleting),
        )
    stdout_console().print(table if found else "There are no topics.")


def describe(asking: Asking, names: Sequence[str], *, unhealthy: bool) -> None:
    async def ask(admin: AdminCore) -> list[TopicDescription]:
        found = await admin.describe_topics(names or None)
        told = (await admin.diagnose_brokers()).values()
        conditions = [each for each in told if isinstance(each, BrokerCondition)]
        return [with_conditions(each, conditions) for each in found]

    found = asking.ask(ask)
    shown = [(each, _shown(each, unhealthy=unhealthy)) for each in found]
    if asking.as_json:
        for topic, partitions in shown:
            if partitions or not unhealthy:
                print_json(
                    {**topic.as_dict(), "partitions": [each.as_dict() for each in partitions]}
                )
        return
    console = stdout_console()
    if unhealthy and not any(partitions for _, partitions in shown):
        console.print("All partitions are well.")
        return
    for topic, partitions in shown:
        if partitions or not unhealthy:
            print_topic(console, topic, partitions)


def delete(asking: Asking, names: Sequence[str], *, yes: bool) -> None:
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete {', '.join(map(safe, names))} and all records in it?", abort=True)

    async def delete_all(admin: AdminCore) -> None:
        for name in names:
            await admin.delete_topic(name)
            if asking.as_json:
                print_json({"topic": name, "deleted": True})
            else:
                typer.echo(f"{name} deleted")

    asking.ask(delete_all)


def describe_cluster(asking: Asking) -> None:
    found = asking.ask(lambda admin: admin.describe_cluster())
    if asking.as_json:
        print_json(found.as_dict())
        return
    _print_cluster(stdout_console(), found)


def explain(asking: Asking, topic: str, partition: int) -> None:
    async def deletions(admin: AdminCore) -> list[DeletionRecord]:
        wanted = [TopicPartition(topic, partition)]
        went = await admin.describe_deletions(wanted, limit=DELETIONS_SHOWN)
        for broker, told in sorted(went.items()):
            if isinstance(told, TailraceError):
                warn(f"what broker {broker} deleted is not known: {told}")
        found = [each for told in went.values() if isinstance(told, tuple) for each in told]
        return sorted(found, key=lambda each: -each.at_ms)

    async def ask(admin: AdminCore) -> Explanation | list[DeletionRecord]:
        try:
            described = await admin.describe_topic(topic)
            changes = await admin.explain(topic, partition)
        except UnknownTopic:
            # A topic that was deleted is the one of which people want to know where it went.
            found = await deletions(admin)
            if not found:
                raise
            return found
        settings = await admin.explain_settings(topic)
        return Explanation(described, changes, settings, await deletions(admin))

    told = asking.ask(ask)
    if isinstance(told, Explanation):
        _print_explanation(told, topic, partition, as_json=asking.as_json)
    elif asking.as_json:
        line = {"topic": topic, "partition": partition, "gone": True}
        print_json({**line, "deletions": [each.as_dict() for each in told]})
    else:
        stdout_console().print(f"There is no topic {safe(topic)} any more.", markup=False)
        _print_deletions(told)


class Explanation(NamedTuple):
    described: TopicDescription
    changes: list[LeaderChange]
    settings: list[SettingsChange]
    deletions: list[DeletionRecord]


def _print_explanation(told: Explanation, topic: str, partition: int, *, as_json: bool) -> None:
    described, changes, settings, deletions = told
    if as_json:
        print_json(
            {
                **described.partitions[partition].as_dict(),
                "topic": topic,
                "changes": [_change_dict(each) for each in changes],
                "settings": [_settings_dict(each) for each in settings],
                "deletions": [each.as_dict() for each in deletions],
            }
        )
        return
    console = stdout_console()
    _print_now(console, topic, described.partitions[partition])
    for change in changes:
        print_change(console, change)
    if not changes:
        console.print("No change of its leader is recorded.")
    for each in settings:
        what = [f"{name}={value}" for name, value in each.set.items()]
        what += [f"{name} back to its default" for name in each.unset]
        console.print(
            f"{iso_time(each.decided_ms)}  settings of the topic changed: {safe(', '.join(what))} "
            f"(controller {each.controller_id})",
            markup=False,
            soft_wrap=True,
        )
    _print_deletions(deletions)


def _print_deletions(deletions: Iterable[DeletionRecord]) -> None:
    for line in deletions:
        stdout_console().print(_deletion_line(line), markup=False, soft_wrap=True)


def _deletion_line(line: DeletionRecord) -> str:
    what = {
        "replica": "deleted the replica",
        "stray": "removed a replica that was set aside",
        "set-aside": "set the replica aside",
        "log-start": "gave up records",
        "log-end": "cut records off",
        "repair": "gave up what it could not vouch for",
    }.get(line.kind, line.kind)
    span = ""
    if line.from_offset >= 0:
        span = f" from {line.from_offset}"
        span += f" to {line.to_offset - 1}" if line.to_offset > line.from_offset else " on"
    return f"{iso_time(line.at_ms)}  broker {line.broker} {what}{span}: {safe(line.why)}"


def _settings_dict(change: SettingsChange) -> dict[str, Any]:
    return {
        "decided_ms": change.decided_ms,
        "set": dict(change.set),
        "unset": list(change.unset),
        "controller_id": change.controller_id,
    }


def assignments(given: Iterable[str]) -> dict[str, str]:
    """name=value pairs of the command line."""
    found: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise InvalidConfig(f"{each!r} is not NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def topic_names(bootstrap: str | None, incomplete: str) -> list[str]:
    """For the shell's completion."""
    return offered(bootstrap, incomplete, AdminCore.list_topics)


def offered(
    bootstrap: str | None,
    incomplete: str,
    names: Callable[[AdminCore], Coroutine[Any, Any, Iterable[str]]],
) -> list[str]:
    """What the shell may complete a word to: it must be quick and never complain."""

    async def ask() -> Iterable[str]:
        async with connection(bootstrap, COMPLETION_TIMEOUT_S).admin() as admin:
            return await names(admin)

    with suppress(TailraceError, OSError, TimeoutError, asyncio.CancelledError):
        return [name for name in run(ask()) if name.startswith(incomplete)]
    return []


def _summary(topic: TopicDescription) -> dict[str, Any]:
    counts = {kind.value: sum(kind in each.health for each in topic.partitions) for kind in Health}
    return {
        "topic": topic.topic,
        "topic_id": topic.topic_id,
        "partitions": len(topic.partitions),
        "replication_factor": max((len(each.replicas) for each in topic.partitions), default=0),
        "deleting": topic.deleting,
        "health": counts,
    }


def _shown(topic: TopicDescription, *, unhealthy: bool) -> list[PartitionDescription]:
    return [each for each in topic.partitions if each.health or not unhealthy]


def print_topic(
    console: Console,
    topic: TopicDescription,
    partitions: Sequence[PartitionDescription] | None = None,
) -> None:
    """The topic as a table; all of its partitions unless some are given."""
    title = Text.assemble((safe(topic.topic), "bold"), f"  id {topic.topic_id}")
    title.append(f", min.insync.replicas {topic.min_insync_replicas}", style="dim")
    for name, value in topic.config.items():
        title.append(f", {safe(name)}={safe(value)}", style="dim")
    if topic.deleting:
        title.append("  is being deleted", style="yellow")
    console.print(title, soft_wrap=True)
    table = plain_table("partition", "leader", "epoch", "replicas", "in sync", "eligible", "health")
    for each in topic.partitions if partitions is None else partitions:
        table.add_row(
            str(each.partition),
            _broker(each.leader),
            str(each.leader_epoch),
            broker_list(each.replicas),
            broker_list(each.isr),
            broker_list(each.elr),
            _health(each.health),
        )
    console.print(table)
    for each in topic.partitions if partitions is None else partitions:
        for line in _notes(each):
            console.print(line, soft_wrap=True)


def _notes(partition: PartitionDescription) -> list[Text]:
    """What a table has no room for: replicas that move or fail, and what may be lost."""
    notes = []
    if partition.adding or partition.removing:
        words = f"  {partition.partition}: adding {broker_list(partition.adding)}, "
        notes.append(Text(words + f"removing {broker_list(partition.removing)}", style="cyan"))
    for broker, why in partition.out_of_service.items():
        words = f"  {partition.partition}: out of service on broker {broker}: {safe(why)}"
        notes.append(Text(words, style="bold red"))
    if partition.conflict:
        words = f"  {partition.partition}: a person has to decide: {safe(partition.conflict)}"
        notes.append(Text(words, style="bold red"))
    if partition.loss:
        words = f"  {partition.partition}: may have lost: {safe(partition.loss)}"
        notes.append(Text(words, style="bold red"))
    return notes


def _print_cluster(console: Console, found: ClusterDescription) -> None:
    console.print(f"cluster     {found.cluster_id}")
    if found.controller:
        console.print(f"controller  {found.controller_id} at {found.controller}")
    else:
        console.print(Text("controller  none is active", style="bold red"))
    health = {kind.value: number for kind, number in found.health.items()}
    topics = f"{counted(found.topics, 'topic')}, {counted(found.partitions, 'partition')}: "
    console.print(Text(f"topics      {topics}") + _health_counts(health, deleting=False))
    table = plain_table("broker", "address", "rack", "leads", "replicas")
    for each in found.brokers:
        table.add_row(
            str(each.broker_id),
            each.address,
            safe(each.rack) or "-",
            str(each.leaders),
            str(each.replicas),
        )
    console.print(table)


def _print_now(console: Console, topic: str, now: PartitionDescription) -> None:
    leader = "has no leader" if now.leader < 0 else f"is led by broker {now.leader}"
    text = Text.assemble((f"{safe(topic)}-{now.partition}", "bold"), f" {leader}")
    text.append(f" in epoch {now.leader_epoch}; in sync: {broker_list(now.isr)}; ")
    console.print(text + _health(now.health), soft_wrap=True)


def print_change(console: Console, change: LeaderChange) -> None:
    """One change of a leader, as a story."""
    who = f"{_broker(change.old_leader)} → {_broker(change.new_leader)}"
    console.print()
    console.print(
        Text.assemble(
            (iso_time(change.decided_ms), "cyan"),
            (f"  leader {who}", "bold"),
            f"  epoch {change.leader_epoch}",
        )
    )
    took_ms = change.decided_ms - change.noticed_ms
    by = f"controller {change.controller_id} in epoch {change.controller_epoch}"
    lines = [
        f"why         {safe(change.cause)}",
        f"decided     {took_ms} ms after it was noticed, by {by}",
        f"in sync     {broker_list(change.old_isr)} → {broker_list(change.new_isr)}",
        *(f"candidate   {safe(each)}" for each in change.candidates),
    ]
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)
    if change.loss:
        console.print(Text(f"  loss        {safe(change.loss)}", style="bold red"), soft_wrap=True)


def _change_dict(change: LeaderChange) -> dict[str, Any]:
    return {
        "decided_ms": change.decided_ms,
        "noticed_ms": change.noticed_ms,
        "cause": change.cause,
        "old_leader": change.old_leader,
        "new_leader": change.new_leader,
        "leader_epoch": change.leader_epoch,
        "old_isr": list(change.old_isr),
        "new_isr": list(change.new_isr),
        "candidates": list(change.candidates),
        "controller_id": change.controller_id,
        "controller_epoch": change.controller_epoch,
        "loss": change.loss,
    }


def _health(kinds: Sequence[Health]) -> Text:
    if not kinds:
        return Text("ok", style="green")
    return Text(", ").join(Text(kind.value, style=_BAD[kind]) for kind in kinds)


def _health_counts(counts: dict[str, int], *, deleting: bool) -> Text:
    if deleting:
        return Text("being deleted", style="yellow")
    wrong = [
        Text(f"{counts[kind.value]} {kind.value}", style=_BAD[kind])
        for kind in Health
        if counts[kind.value]
    ]
    return Text(", ").join(wrong) if wrong else Text("ok", style="green")


def _broker(number: int) -> str:
    return "none" if number < 0 else str(number)


def broker_list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "-"
