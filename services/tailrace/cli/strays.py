"""What `tailrace brokers strays` does: ask the brokers what they have set aside, and print it."""

from __future__ import annotations

from rich.text import Text

from tailrace.cli.asking import Asking
from tailrace.cli.formatting import NOTHING, iso_time, number, safe, size
from tailrace.cli.output import plain_table, print_json, stdout_console, warn
from tailrace.client.admin import AdminCore
from tailrace.client.diagnosing import StrayReplica
from tailrace.errors import TailraceError, UnknownBroker

FOR_A_PERSON = "a person decides"
NOT_BEGUN = "its time has not begun"


def list_strays(asking: Asking, broker: int | None) -> None:
    """Those of one broker, or of all that answer; who does not answer is told."""

    async def ask(admin: AdminCore) -> dict[int, tuple[StrayReplica, ...] | TailraceError]:
        return await admin.describe_strays(None if broker is None else [broker])

    answers = asking.ask(ask)
    if broker is not None and broker not in answers:
        raise UnknownBroker(f"there is no broker {broker}, or it is not registered")
    found: list[StrayReplica] = []
    for number_, answer in sorted(answers.items()):
        if isinstance(answer, TailraceError):
            warn(f"broker {number_} does not answer: {answer}")
        else:
            found += answer
    if asking.as_json:
        for each in found:
            print_json(each.as_dict())
        return
    _print(found)


def _print(found: list[StrayReplica]) -> None:
    console = stdout_console()
    if not found:
        console.print("No replica is set aside.")
        return
    table = plain_table(
        "broker", "partition", "topic id", "size", "start", "end", "committed", "epoch"
    )
    for title in ("since", "kept until", "folder", "why"):
        table.add_column(title, no_wrap=title != "why")
    for each in found:
        table.add_row(
            str(each.broker),
            Text(safe(str(each.partition))),
            safe(each.topic_id) or NOTHING,
            size(each.size_bytes),
            number(each.log_start),
            number(each.log_end),
            number(each.high_watermark),
            number(each.last_epoch),
            iso_time(each.since_ms),
            kept_until(each),
            safe(f"{each.folder}/{each.name}"),
            safe(each.why),
        )
    console.print(table)


def kept_until(stray: StrayReplica) -> str:
    """When it goes, in words where no time is known."""
    if stray.kept_until_ms >= 0:
        return iso_time(stray.kept_until_ms)
    return FOR_A_PERSON if stray.since_ms < 0 else NOT_BEGUN
