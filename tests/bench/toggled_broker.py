"""A broker that counts in one slice of time and does not in the next, and notes what each cost.

It is run in the place of `tailrace.cli.main`, with the path of its notes in front. A line of them:
whether it counted, CPU seconds of the process, records appended to its replicas.
"""

from __future__ import annotations

import gc
import sys
import time
from importlib import import_module
from itertools import cycle
from pathlib import Path
from threading import Thread
from typing import Final

from bench.uncounted import MODULES, Switch
from tailrace.broker.replicas import Replicas
from tailrace.cli.main import main

SLICE_S: Final = 0.05
# In this order what grows or falls steadily weighs on both alike.
ORDER: Final = (True, False, False, True)


def toggle(notes: Path) -> None:
    switch = Switch(map(import_module, MODULES))
    replicas = None
    while replicas is None:
        time.sleep(SLICE_S)
        found = (each for each in gc.get_objects() if isinstance(each, Replicas))
        replicas = next(found, None)
    with notes.open("w", buffering=1) as file:
        for counting in cycle(ORDER):
            switch.to(counting=counting)
            before = time.process_time(), _records(replicas)
            time.sleep(SLICE_S)
            after = time.process_time(), _records(replicas)
            file.write(f"{counting:d} {after[0] - before[0]:.9f} {after[1] - before[1]}\n")


def _records(replicas: Replicas) -> int:
    return sum(int(each.log.log_end) for each in replicas.hosted())


if __name__ == "__main__":
    path = Path(sys.argv.pop(1))
    Thread(target=toggle, args=(path,), daemon=True).start()
    main()
