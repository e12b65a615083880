"""What every client process does: import, say that it is ready, wait for the word, work, report.

    python -m bench.peers.clients.confluent produce '{"servers": "...", "topic": "t", ...}'

It prints `ready`, waits for a line on standard input, and prints one JSON object when it is done.
Seconds are from the making of the client to its last record: imports are over by then. Only the
standard library is imported here, for it runs in the environment of the peers too.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

PARTITIONS = 3
DISTINCT_VALUES = 997
SINGLES_LEFT_OUT = 200
POLL_RECORDS = 10_000
POLL_S = 30.0
FLUSH_S = 120.0
STAMP = struct.Struct("<d")
# Records that open all connections before a pace begins.
PACE_WARM = 60
PERCENTILES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}


class Job(NamedTuple):
    """What to do; what a client does not need it leaves alone."""

    servers: str
    topic: str = ""
    records: int = 0
    size: int = 0
    # The most that a batch holds; 0: as the client has it by default.
    batch_bytes: int = 0
    partitions: int = PARTITIONS
    seconds: float = 0.0
    # Of some clients: which way of theirs is meant; where tools are.
    way: str = ""
    tools: str = ""
    group: str = ""
    node: int = -1
    # none, lz4 or zstd: then values are such as can be made smaller.
    compression: str = "none"
    # Records a second, for those that keep to a rate.
    rate: int = 0
    # How many clients share this process; the records are theirs together.
    clients: int = 1


Work = Callable[[Job], Mapping[str, Any] | None]


def main(actions: Mapping[str, Work]) -> int:
    work, job = actions[sys.argv[1]], Job(**json.loads(sys.argv[2]))
    print("ready", flush=True)
    if not sys.stdin.readline():
        return 1
    # A client that takes part in nothing is timed by its caller.
    before, began = cpu_s(), time.monotonic()
    found = work(job) or {}
    ended = time.monotonic()
    told = {"began": began, "ended": ended, "cpu_s": cpu_s() - before, "records": job.records}
    print(json.dumps({**told, **found}), flush=True)
    return 0


def cpu_s() -> float:
    """Of this process and of children that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in both)


def rows_of_a_batch(size: int) -> int:
    """How many values `send_batch` takes as one batch of a megabyte, all that it has included."""
    return (1 << 20) // (size + 24)


def some_values(size: int, compression: str = "none") -> list[bytes]:
    """The same for all clients: noise, or the kind of text that events are made of."""
    rng = random.Random(size)
    if compression == "none":
        return [rng.randbytes(size) for _ in range(DISTINCT_VALUES)]
    return [_text(rng, size) for _ in range(DISTINCT_VALUES)]


def _text(rng: random.Random, size: int) -> bytes:
    text = ""
    while len(text) < size:
        number, word = rng.randrange(10**6), rng.choice(("created", "paid", "sent", "returned"))
        text += f'{{"order": {number}, "status": "{word}", "amount": {rng.randrange(9_999)}}}'
    return text[:size].encode()


class Pace:
    """Records at a fixed rate; each carries the moment at which it was due."""

    def __init__(self, job: Job) -> None:
        self._padding = bytes(job.size - STAMP.size)
        self._interval_s = 1 / job.rate
        self._began = time.monotonic()
        self._sent = 0
        self.times: list[float] = []

    def pause_s(self) -> float:
        """How long until the next one is due."""
        return self._began + self._sent * self._interval_s - time.monotonic()

    def next(self) -> bytes:
        """A wait counts from when it was due: one who comes late does not hide it."""
        due = self._began + self._sent * self._interval_s
        self._sent += 1
        return STAMP.pack(due) + self._padding

    def received(self, value: bytes) -> None:
        self.times.append(time.monotonic() - STAMP.unpack_from(value)[0])


def waits(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in ms, without the first ones, which open connections."""
    counted = sorted(seconds[min(SINGLES_LEFT_OUT, len(seconds) // 2) :])
    last = len(counted) - 1
    return {
        name: counted[min(int(len(counted) * share), last)] * 1_000
        for name, share in PERCENTILES.items()
    }
