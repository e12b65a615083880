"""The clients of a nemesis: starts a process for each, ends them, puts together what they saw.

It owns the client processes, and reads all partitions itself at the end, from the start. Enter at
`Clients.run`, then `finish`.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from integration.cluster_harness import Cluster
from nemesis.verdict import Seen, Verdict, judge, judge_group
from nemesis.workload import GROUP, Observed, Pause, reader_of
from tailrace.errors import TailraceError
from tailrace.model import TopicPartition

FINAL_READ_S = 240.0
GROUP_WAITS_S = 60.0
ANSWER_S = 400.0
PAUSES_SHOWN = 8
PAUSE_APART_MS = 1_500.0


@dataclass
class Clients:
    """Processes with these names; `command_for` puts each where it belongs."""

    cluster: Cluster
    topic: str
    partitions: int
    names: Sequence[str]
    folder: Path
    command_for: Callable[[str, list[str]], list[str]]
    observed: Observed = field(default_factory=Observed)
    stored: int = 0
    _processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start(self) -> None:
        script = str(Path(__file__).with_name("client.py"))
        for number, name in enumerate(self.names):
            given = {
                "number": number,
                "bootstrap": self.cluster.bootstrap,
                "topic": self.topic,
                "partitions": self.partitions,
                "live": list(range(number, self.partitions, len(self.names))),
                "output": str(self._output(name)),
            }
            with (self.folder / f"{name}.log").open("ab") as log:
                self._processes.append(
                    await asyncio.create_subprocess_exec(
                        *self.command_for(name, [sys.executable, script, json.dumps(given)]),
                        stdin=asyncio.subprocess.PIPE,
                        stdout=asyncio.subprocess.PIPE,
                        stderr=log,
                    )
                )

    async def ended(self) -> str:
        """Wait until one of them ends, which none should."""
        waiting = {
            asyncio.ensure_future(process.wait()): name
            for process, name in zip(self._processes, self.names, strict=True)
        }
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        name = waiting[done.pop()]
        return f"{name} ended: {(self.folder / f'{name}.log').read_text()[-500:]}"

    async def finish(self) -> Verdict:
        """Stop them, read everything from the start, judge."""
        async with asyncio.timeout(ANSWER_S):
            for process in self._processes:
                self._tell(process, {"do": "stop"})
            for process in self._processes:
                assert process.stdout is not None
                await process.stdout.readline()
        final = {each: await self._read_all(each) for each in range(self.partitions)}
        ends = {partition: len(seen) for partition, seen in final.items()}
        committed = await self._until_committed(ends)
        async with asyncio.timeout(ANSWER_S):
            for process in self._processes:
                self._tell(process, {"do": "end", "records": ends})
            for process in self._processes:
                await process.wait()
        self._gather()
        self.stored = sum(ends.values())
        seen = self.observed
        verdict = judge(seen.acked, seen.sent, final, seen.live)
        verdict.group = judge_group(ends, committed, seen.committed, seen.processed)
        return verdict

    async def close(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    def pauses(self, began_ms: float) -> list[Pause]:
        """The longest waits, no two of the same moment; times from the start of the run on."""
        shown: list[Pause] = []
        for each in sorted(self.observed.pauses, key=lambda wait: -wait.ms):
            ends_ms = each.from_ms + each.ms
            if all(abs(other.from_ms + other.ms - ends_ms) > PAUSE_APART_MS for other in shown):
                shown.append(each)
            if len(shown) == PAUSES_SHOWN:
                break
        return [Pause(each.from_ms - began_ms, each.ms, each.partition) for each in shown]

    def _output(self, name: str) -> Path:
        return self.folder / f"{name}.observed"

    @staticmethod
    def _tell(process: asyncio.subprocess.Process, command: dict[str, object]) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(command).encode() + b"\n")

    def _gather(self) -> None:
        """No two clients have a key or a live partition in common; the group's they share."""
        whole = self.observed
        for name in self.names:
            one: Observed = pickle.loads(self._output(name).read_bytes())
            whole.acked |= one.acked
            whole.sent |= one.sent
            whole.live |= one.live
            whole.failures += one.failures
            whole.problems += one.problems
            whole.pauses += one.pauses
            for partition, offsets in one.processed.items():
                whole.processed.setdefault(partition, offsets[:0]).extend(offsets)
            for partition, position in one.committed.items():
                whole.committed[partition] = max(position, whole.committed.get(partition, 0))

    async def _until_committed(self, ends: dict[int, int]) -> dict[int, int]:
        """What the group has committed, once that is everything or the time is over."""
        found: dict[int, int] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(GROUP_WAITS_S):
                while True:
                    with suppress(TailraceError):
                        group = await self.cluster.admin.describe_group(GROUP)
                        found = {each.partition: each.offset for each in group.positions}
                    if all(found.get(each, 0) >= end for each, end in ends.items()):
                        return found
                    await asyncio.sleep(0.2)
        return found

    async def _read_all(self, partition: int) -> list[Seen]:
        seen: list[Seen] = []
        keys: dict[bytes, bytes] = {}
        try:
            found = await self.cluster.admin.list_offsets(self.topic, partitions=[partition])
        except TailraceError as error:
            self.observed.problems.append(f"partition {partition} cannot be read: {error}")
            return seen
        end = found[partition].offset
        if not end:
            return seen
        place = TopicPartition(self.topic, partition)
        async with reader_of(self.cluster.network, self.cluster.bootstrap, place, 0) as reader:
            with suppress(TimeoutError):
                async with asyncio.timeout(FINAL_READ_S):
                    async for record in reader.records():
                        key = keys.setdefault(record.key or b"", record.key or b"")
                        seen.append(Seen(record.offset, key, int(record.value or b"-1")))
                        if record.offset + 1 >= end:
                            return seen
        self.observed.problems.append(
            f"partition {partition} could only be read up to {len(seen)} of {end}"
        )
        return seen
