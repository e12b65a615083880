"""What counting costs of a whole cluster, in machine instructions: exact, however busy the machine.

Three shipped brokers on a simulated network and disks take produce requests one after the other,
once as they are and once compiled without their counting (`uncounted`). Both run under valgrind's
cachegrind, which counts instructions. Of two runs with few and with many requests the difference
is what those requests cost, without the start. Simulated networks and disks are cheaper than real
ones, so the share of counting is rather too large than too small.

python -m bench.metrics_instructions
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from functools import partial
from typing import Final

VALGRIND: Final = (
    "valgrind",
    "--tool=cachegrind",
    "--cache-sim=no",
    "--cachegrind-out-file=/dev/null",
)
FEW: Final = 100
# So many that what differs from start to start, some millions of instructions, does not matter.
MANY: Final = 2_600
# Of one record, and of as much as a batch has when a producer is busy.
VALUES_BYTES: Final = (100, 100_000)
LIMIT_S: Final = 1_200
SEED: Final = 7


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, help="do so many in this process, and end")
    parser.add_argument("--value-bytes", type=int, default=VALUES_BYTES[0])
    parser.add_argument("--uncounted", action="store_true")
    given = parser.parse_args()
    if given.requests is not None:
        work(given.requests, given.value_bytes, uncounted=given.uncounted)
        return 0
    for value_bytes in VALUES_BYTES:
        compare(value_bytes)
    return 0


def compare(value_bytes: int) -> None:
    counted, again, without = (
        cost(value_bytes, uncounted=each) / (MANY - FEW) for each in (False, False, True)
    )
    print(
        f"a produce request with {value_bytes:,} bytes, on all three brokers: {counted:,.0f} "
        f"instructions, {without:,.0f} without counting: {counted / without - 1:+.3%} "
        f"(the same once more: {again / counted - 1:+.3%})",
        flush=True,
    )


def cost(value_bytes: int, *, uncounted: bool) -> int:
    few, many = (instructions(each, value_bytes, uncounted=uncounted) for each in (FEW, MANY))
    return many - few


def instructions(requests: int, value_bytes: int, *, uncounted: bool) -> int:
    command = [
        *(*VALGRIND, sys.executable, "-m", "bench.metrics_instructions"),
        *("--requests", str(requests), "--value-bytes", str(value_bytes)),
        *(["--uncounted"] if uncounted else []),
    ]
    # The order of sets is that of hashes, and so would be what they cost.
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONMALLOC": "malloc"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if done.returncode or found is None:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2_000:]}")
    return int(found[1].replace(",", ""))


def work(requests: int, value_bytes: int, *, uncounted: bool) -> None:
    """The requests, in this process; without counting the modules are loaded anew, so first."""
    if uncounted:
        from bench import uncounted as stripping  # noqa: PLC0415

        left_out = stripping.install()
    else:
        left_out = []
    from simulation.loop import SimLoop, run  # noqa: PLC0415
    from unit.broker.trio import Trio, batch  # noqa: PLC0415

    async def produce(loop: SimLoop) -> None:
        trio = Trio(loop)
        await trio.start()
        await trio.lead(0, 0)
        data = batch(1, value=b"v" * value_bytes)
        for _ in range(requests):
            answer = await trio.produce(data)
            if answer.error:
                raise RuntimeError(answer.message)

    run(partial(produce), SEED)
    print(f"{requests} requests; left out: {left_out}")


if __name__ == "__main__":
    raise SystemExit(main())
