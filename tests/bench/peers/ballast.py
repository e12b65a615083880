"""Memory that is surely there, held by the bench and handed out while a turn is timed.

A virtual machine may give memory that is free back to its host (free page reporting, some seconds
after it became free). Who writes to such a page first pays for a fault of the host: writing a GiB
of page cache then costs several times the CPU that it costs in memory that was just freed. That
hits whoever writes most, differs from turn to turn, and says nothing about anybody's software.

So a process of the bench holds memory in pieces. While a turn is timed it lets go of as many as the
free memory of the machine shrinks, and some more: what is free last is used first, so contenders
get pages that are there. Before the next turn it takes the memory again. It is a process of its
own that belongs to no contender, so its CPU seconds are nobody's.

    python -m bench.peers.ballast 4294967296    # a helper process; the bench talks to it

Lines that it is told: `fill` (it answers with what it holds, in bytes), `out`, `in`.
"""

from __future__ import annotations

import math
import mmap
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
GIB: Final = 1 << 30
PIECE_BYTES: Final = 64 * MIB
BALLAST_BYTES: Final = 4 * GIB
"""More than the replicas of a turn take (`run_bytes_max` three times), and the cushion."""

BALLAST_SHARE: Final = 0.25
"""Of the memory that could be had: the systems that are compared need theirs."""

CUSHION_BYTES: Final = 512 * MIB
"""What is handed out in advance: more than anybody writes from one look to the next."""

TICK_S: Final = 0.05
RATIO_MIN: Final = 3.0
"""From which ratio of the cost of fresh memory to that of reused memory a ballast is used."""

PROBE_BYTES: Final = 256 * MIB
PROBES_MAX: Final = 6
SETTLE_S: Final = 4.0
"""After which memory that was freed is given back, where it is."""

FILL_S_MAX: Final = 120.0
TESTS: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of a GiB of page cache: in memory that lay free, and that was just freed."""

    fresh_s: float
    reused_s: float

    @property
    def is_ballast_wanted(self) -> bool:
        return self.fresh_s >= RATIO_MIN * max(self.reused_s, 1e-3)

    def facts(self) -> dict[str, str]:
        """For the table of the machine."""
        held = f"up to {BALLAST_BYTES / GIB:.0f} GiB, handed out while throughput is timed"
        return {
            "a fresh GiB of page cache": f"{self.fresh_s:.2f} CPU-s",
            "a reused GiB of page cache": f"{self.reused_s:.2f} CPU-s",
            "ballast of backed memory": held if self.is_ballast_wanted else "none, none is needed",
        }


def pieces_to_free(*, free_at_start: int, released: int, free_now: int, held: int) -> int:
    """How many of the held pieces to let go of, by the free memory of the machine, in bytes.

    What was used since the start is replaced, and there is always a cushion on top.
    """
    used = max(free_at_start + released - free_now, 0)
    missing = used + CUSHION_BYTES - released
    return min(max(-(-missing // PIECE_BYTES), 0), held)


def pieces_wanted(*, available: int, held: int, most_bytes: int = BALLAST_BYTES) -> int:
    """How many to hold; what is held already could be had too."""
    could_be_had = available + held * PIECE_BYTES
    return min(most_bytes, int(could_be_had * BALLAST_SHARE)) // PIECE_BYTES


def meminfo_bytes(text: str) -> dict[str, int]:
    """/proc/meminfo by name."""
    lines = (line.split() for line in text.splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if len(words) == 3}


def _memory() -> Mapping[str, int]:
    return meminfo_bytes(Path("/proc/meminfo").read_text(encoding="ascii"))


def cost_of_memory(folder: Path) -> Cost:
    """Write to a scratch file, delete it, and write again: after a while, and at once.

    What others freed just now is not given back yet, and looks cheap: that is tried some times.
    """
    path, per_gib = folder / "probe", GIB / PROBE_BYTES
    _written_s(path)
    found = Cost(0.0, math.inf)
    for _ in range(PROBES_MAX):
        time.sleep(SETTLE_S)
        fresh_s, reused_s = _written_s(path) * per_gib, _written_s(path) * per_gib
        found = Cost(max(fresh_s, found.fresh_s), min(reused_s, found.reused_s))
        if found.is_ballast_wanted:
            break
    return found


def _written_s(path: Path) -> float:
    """CPU seconds of one file, which is gone afterwards."""
    some = os.urandom(MIB)
    before_s = time.process_time()
    with path.open("wb", buffering=0) as file:
        for _ in range(PROBE_BYTES // MIB):
            file.write(some)
    spent_s = time.process_time() - before_s
    path.unlink()
    return spent_s


class Ballast:
    """The side of the bench; the process is started when it is first needed, and if it died."""

    def __init__(self, most_bytes: int = BALLAST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Ballast:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def fill(self) -> int:
        """Before a turn, and outside of what is timed: take what was handed out; in bytes."""
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.peers.ballast", str(self._most_bytes)],
                env={**os.environ, "PYTHONPATH": str(TESTS)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        self._say("fill")
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(FILL_S_MAX):
                self._end()
                raise TimeoutError(f"the ballast was not filled within {FILL_S_MAX} s")
        return int(self._process.stdout.readline())

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @contextmanager
    def handed_out(self) -> Iterator[None]:
        """While the block runs, what is used is replaced."""
        self._say("out")
        try:
            yield
        finally:
            # It may have died; then it is started anew for the next turn.
            with suppress(BrokenPipeError):
                self._say("in")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            # Its end is waited for, and the pipes are closed.
            with self._process:
                self._process = None

    def _say(self, what: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()


class Holder:
    """The pieces, in the process that holds them."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._pieces: list[mmap.mmap] = []
        self._free_at_start = 0
        self._released = 0

    def fill(self) -> int:
        """In bytes. Huge pages: files are written in large ones, and only those are given back."""
        available, held = _memory()["MemAvailable"], len(self._pieces)
        wanted = pieces_wanted(available=available, held=held, most_bytes=self._most_bytes)
        for _ in range(wanted - held):
            piece = mmap.mmap(-1, PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):
                piece.madvise(mmap.MADV_HUGEPAGE)
            piece[:: mmap.PAGESIZE] = bytes(PIECE_BYTES // mmap.PAGESIZE)
            self._pieces.append(piece)
        return len(self._pieces) * PIECE_BYTES

    def begin(self) -> None:
        self._free_at_start, self._released = _memory()["MemFree"], 0

    def tick(self) -> None:
        number = pieces_to_free(
            free_at_start=self._free_at_start,
            released=self._released,
            free_now=_memory()["MemFree"],
            held=len(self._pieces),
        )
        for _ in range(number):
            self._pieces.pop().close()
        self._released += number * PIECE_BYTES


def main() -> int:
    """Until standard input ends."""
    holder, is_out = Holder(int(sys.argv[1])), False
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin.buffer, selectors.EVENT_READ)
        while True:
            if selector.select(TICK_S if is_out else None):
                # One line at a time: the other side waits for an answer, or for the end of a turn.
                word = os.read(sys.stdin.fileno(), 100).decode().split()
                if not word:
                    return 0
                if "fill" in word:
                    print(holder.fill(), flush=True)
                if "out" in word:
                    holder.begin()
                is_out = word[-1] == "out"
            if is_out:
                holder.tick()


if __name__ == "__main__":
    sys.exit(main())
