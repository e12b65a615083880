"""What memory costs on this machine: a virtual one may give what lies free back to its host.

Who writes to such a page first pays for a fault of the host (free page reporting does so some
seconds after memory became free). It hits whoever writes most, and differs from turn to turn; the
report tells how dear it is.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
GIB: Final = 1 << 30
DEAR: Final = 3.0
"""From which ratio of fresh to reused memory nothing more is to be found out."""

PROBE_BYTES: Final = 256 * MIB
PROBES_MAX: Final = 6
SETTLE_S: Final = 4.0
"""After which memory that was freed is given back, where it is."""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of a GiB of page cache: in memory that lay free, and that was just freed."""

    fresh_s: float = 0.0
    reused_s: float = math.inf

    @property
    def is_dear(self) -> bool:
        return self.fresh_s >= DEAR * self.reused_s

    def then(self, *, fresh_s: float, reused_s: float) -> Cost:
        """The dearest fresh and the cheapest reused memory count."""
        return Cost(max(fresh_s, self.fresh_s), min(reused_s, self.reused_s))

    def facts(self) -> dict[str, str]:
        """For the table of the machine."""
        return {
            "a fresh GiB of page cache": f"{self.fresh_s:.2f} CPU-s",
            "a reused GiB of page cache": f"{self.reused_s:.2f} CPU-s",
        }


def cost_of_memory(folder: Path) -> Cost:
    """Write to a scratch file, delete it, and write again: after a while, and at once.

    What others freed just now is not given back yet, and looks cheap: that is tried some times.
    """
    path, per_gib = folder / "probe", GIB / PROBE_BYTES
    _written_s(path)
    found = Cost()
    for _ in range(PROBES_MAX):
        time.sleep(SETTLE_S)
        fresh_s, reused_s = _written_s(path) * per_gib, _written_s(path) * per_gib
        found = found.then(fresh_s=fresh_s, reused_s=reused_s)
        if found.is_dear:
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
