"""Free memory of a virtual machine whose host takes it back: kept small while something is timed.

Such a host (free page reporting of a virtio balloon) takes what has been free for two seconds, and
whoever writes to it next pays for a fault of the host: a GiB of page cache costs 1 to 2 CPU seconds
instead of 0.2, more or less from turn to turn. A machine that has been up for a day has no such
memory, for the page cache fills it. So a process of ours holds what is free: it lets go of as much
as the others take, and takes what they free before the host does. It ends with us, however we end.
"""

from __future__ import annotations

import mmap
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
SLICE_BYTES: Final = 64 * MIB
FREE_BYTES_MIN: Final = 768 * MIB
"""Above what the kernel keeps free by itself: who writes must not have to look for memory."""
FREE_BYTES_MAX: Final = 1280 * MIB
TICK_S: Final = 0.02
SETTLE_S_MAX: Final = 120.0
"""A host that gives 24 GiB again takes half a minute for it."""
BALLOONS: Final = Path("/sys/bus/virtio/drivers/virtio_balloon")
REPORTING: Final = 5
"""The bit of a balloon's features by which it tells its host what is free (VIRTIO 1.2, 5.5.3)."""
FACT: Final = "free memory"
HELD: Final = "kept at 0.8 to 1.3 GiB, since the host takes back what lies free"
READY: Final = "ready"


def is_taken_back(balloons: Path = BALLOONS) -> bool:
    """Whether the host of this machine takes what lies free."""
    found = [path.read_text(encoding="ascii") for path in balloons.glob("*/features")]
    return any(each[REPORTING : REPORTING + 1] == "1" for each in found)


def slices_due(free: int, held: int, held_max: int) -> int:
    """How many slices to take, or below 0: to let go of."""
    if free < FREE_BYTES_MIN:
        return -min(held, -(-(FREE_BYTES_MIN - free) // SLICE_BYTES))
    return min(max(free - FREE_BYTES_MAX, 0) // SLICE_BYTES, held_max - held)


@contextmanager
def little_free(*, is_wanted: bool) -> Iterator[Mapping[str, str]]:
    """Hold what is free, where that matters and can be done; gives what the report should say."""
    if not is_wanted or not is_taken_back():
        yield {}
        return
    _say("the host takes back what is free: it is held first, half a minute")
    with holding(sys.maxsize) as process:
        if process.poll() is None:
            yield {FACT: HELD}
            if process.poll() is not None:
                _say(f"free memory was no longer held: its process ended with {process.returncode}")
        else:
            _say(f"it cannot be held: its process ended with {process.returncode}; on without it")
            yield {}


@contextmanager
def holding(slices_max: int) -> Iterator[subprocess.Popen[str]]:
    """A process that holds free memory, and does so already, or has ended."""
    with subprocess.Popen(
        [sys.executable, __file__, str(slices_max)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C is ours: memory is held until the last server has ended.
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            is_told, _, _ = select.select([process.stdout], [], [], SETTLE_S_MAX)
            if not is_told or process.stdout.readline().strip() != READY:
                process.kill()
                process.wait()
            yield process
        finally:
            process.kill()


def hold(slices_max: int) -> None:
    """Until the other end of standard input is gone."""
    with suppress(OSError):
        # Should memory run out after all, this is the process that nobody misses.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    held: list[mmap.mmap] = []
    is_ready, is_left = False, False
    while not is_left:
        due = slices_due(free_bytes(), len(held), slices_max)
        for _ in range(-due):
            held.pop().close()
        if due > 0:
            try:
                held.append(_slice())
            except OSError:
                # We may not have more than that.
                slices_max = len(held)
        elif not is_ready:
            is_ready = True
            print(READY, flush=True)
        is_left = bool(select.select([sys.stdin], [], [], 0 if due > 0 else TICK_S)[0])


def free_bytes() -> int:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    return int(text.split("MemFree:")[1].split()[0]) << 10


def _slice() -> mmap.mmap:
    """Memory that is really there: every page of it is written to."""
    memory = mmap.mmap(-1, SLICE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, SLICE_BYTES, mmap.PAGESIZE):
        memory[at] = 1
    return memory


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def main(given: Sequence[str]) -> None:
    hold(int(given[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
