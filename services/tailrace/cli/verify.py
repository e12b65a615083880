"""Showing what a verification found: a report for people, or JSON lines for a program.

Knows verdicts and findings, nothing of files. With `--json` there is one object for each finding,
one for each folder and partition, and a summary at the end.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import IO, Final

from rich.console import Console
from rich.text import Text

from tailrace.cli.entries import Json
from tailrace.cli.formatting import counted, number, safe, size
from tailrace.cli.printing import print_indented
from tailrace.log.audit.findings import Finding, Severity, worst
from tailrace.log.audit.partition_check import PartitionVerdict
from tailrace.log.audit.verification import FolderVerdict

EXIT_SOUND: Final = 0
EXIT_DAMAGE: Final = 1
EXIT_MENDS: Final = 3

Verdict = FolderVerdict | PartitionVerdict

_STYLES: Final = {
    Severity.NOTE: "bold cyan",
    Severity.MENDS: "bold yellow",
    Severity.DAMAGE: "bold red",
}
# As wide as the longest severity and a space.
_INDENT: Final = 7
_IN_USE: Final = (
    "A process has this folder open: its tail may be in motion, and what is said about opening "
    "holds for the case that the process dies now."
)


@dataclass(slots=True)
class Tally:
    """What all verdicts come to."""

    severities: Counter[Severity] = field(default_factory=Counter)
    partitions: int = 0
    records: int = 0
    size_bytes: int = 0

    def take(self, verdict: Verdict) -> None:
        self.severities.update(finding.severity for finding in verdict.findings)
        if isinstance(verdict, PartitionVerdict):
            self.partitions += 1
            self.records += verdict.records
            self.size_bytes += verdict.size_bytes

    @property
    def exit_code(self) -> int:
        if self.severities[Severity.DAMAGE]:
            return EXIT_DAMAGE
        return EXIT_MENDS if self.severities[Severity.MENDS] else EXIT_SOUND

    @property
    def result(self) -> str:
        return {EXIT_SOUND: "sound", EXIT_DAMAGE: "damage", EXIT_MENDS: "mends"}[self.exit_code]


class JsonReport:
    """One JSON object a line."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def show(self, verdict: Verdict) -> None:
        for finding in verdict.findings:
            self._write(_finding_json(finding))
        if isinstance(verdict, FolderVerdict):
            self._write(
                {
                    "type": "folder",
                    "path": verdict.path,
                    "partitions": verdict.partitions,
                    "in_use": verdict.in_use,
                    "closed_in_order": verdict.is_clean,
                }
            )
        else:
            self._write(_partition_json(verdict))

    def finish(self, tally: Tally) -> None:
        counts: dict[str, Json] = {
            str(severity): tally.severities[severity] for severity in Severity
        }
        self._write(
            {
                "type": "summary",
                "result": tally.result,
                "exit_code": tally.exit_code,
                "partitions": tally.partitions,
                "records": tally.records,
                "size_bytes": tally.size_bytes,
                "findings": counts,
            }
        )
        self._out.flush()

    def _write(self, line: dict[str, Json]) -> None:
        self._out.write(json.dumps(line, ensure_ascii=False) + "\n")


class TextReport:
    """A report that reads well on a terminal and in a file."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, verdict: Verdict) -> None:
        if isinstance(verdict, FolderVerdict):
            self._folder(verdict)
        else:
            self._partition(verdict)
        for finding in verdict.findings:
            self._finding(finding)
        if isinstance(verdict, PartitionVerdict) and verdict.left_out:
            left_out = counted(verdict.left_out, "more finding")
            self._print(Text(f"{left_out} of the same kinds in the same files", "dim"), _INDENT)

    def finish(self, tally: Tally) -> None:
        text = Text.assemble("\n", _RESULTS[tally.exit_code], " ")
        looked = f"{counted(tally.partitions, 'partition')}, {counted(tally.records, 'record')}"
        text.append(f"{looked}, {size(tally.size_bytes)} read.")
        found = [
            f"{tally.severities[severity]:,} {noun}"
            for severity, noun in _NOUNS.items()
            if tally.severities[severity]
        ]
        if found:
            text.append(f" Found: {', '.join(found)}.")
        self._print(text)

    def _folder(self, verdict: FolderVerdict) -> None:
        state = "closed in order" if verdict.is_clean else "not closed in order"
        if verdict.in_use:
            state = "in use"
        text = Text.assemble((safe(verdict.path), "bold"))
        text.append(f"  data folder, {counted(verdict.partitions, 'partition')}, {state}", "dim")
        self._print(text)
        if verdict.in_use:
            self._print(Text(_IN_USE, style="yellow"))

    def _partition(self, verdict: PartitionVerdict) -> None:
        severity = worst(verdict.findings)
        word, style = severity.value, _STYLES[severity]
        if not verdict.findings:
            word, style = "ok", "bold green"
        self._console.print()
        text = Text.assemble((f"{word:<{_INDENT}}", style), (safe(verdict.name), "bold"))
        self._print(
            text.append(
                f"  {counted(verdict.segments, 'segment')}, {size(verdict.size_bytes)}, "
                f"{counted(verdict.records, 'record')}, offsets {number(verdict.first_offset)} to "
                f"{number(verdict.end_offset)}, flushed to {number(verdict.recovery_point)}"
            )
        )
        self._print(Text(safe(verdict.opening), style="dim"), _INDENT)

    def _finding(self, finding: Finding) -> None:
        text = Text.assemble(
            (f"{finding.severity:<{_INDENT}}", _STYLES[finding.severity]),
            (f"{finding.kind}  ", "bold"),
            safe(finding.path.rpartition("/")[2]),
        )
        if finding.position >= 0:
            text.append(f" at byte {finding.position:,}")
        self._print(text, _INDENT)
        self._print(Text(safe(finding.what)), 2 * _INDENT)
        text = Text.assemble(("opening: ", "dim"), safe(finding.recovery.text))
        self._print(text, 2 * _INDENT)

    def _print(self, text: Text, indent: int = 0) -> None:
        print_indented(self._console, text, indent)


_RESULTS: Final = {
    EXIT_SOUND: ("Sound.", "bold green"),
    EXIT_DAMAGE: ("Damaged.", "bold red"),
    EXIT_MENDS: ("Mends itself when it is opened.", "bold yellow"),
}
_NOUNS: Final = {
    Severity.DAMAGE: "damaged",
    Severity.MENDS: "to be mended",
    Severity.NOTE: "to be noted",
}


def _finding_json(finding: Finding) -> dict[str, Json]:
    recovery = finding.recovery
    return {
        "type": "finding",
        "kind": finding.kind,
        "severity": finding.severity,
        "path": finding.path,
        "position": finding.position,
        "what": finding.what,
        "recovery": {
            "action": recovery.action,
            "text": recovery.text,
            "at_byte": recovery.at_byte,
            "first_lost": recovery.first_lost,
            "last_lost": recovery.last_lost,
        },
    }


def _partition_json(verdict: PartitionVerdict) -> dict[str, Json]:
    return {
        "type": "partition",
        "name": verdict.name,
        "folder": verdict.folder,
        "severity": worst(verdict.findings) if verdict.findings else "ok",
        "segments": verdict.segments,
        "size_bytes": verdict.size_bytes,
        "batches": verdict.batches,
        "records": verdict.records,
        "first_offset": verdict.first_offset,
        "end_offset": verdict.end_offset,
        "recovery_point": verdict.recovery_point,
        "opening": verdict.opening,
        "findings": len(verdict.findings) + verdict.left_out,
    }
