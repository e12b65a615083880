"""What is known of a log besides its own files, when it is opened.

Pure. Each fact comes from a file that may be missing or older than the log: such a file says too
little, never too much, so of several that say where a log begins the highest counts.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tailrace.log.checkpoints import CleanPartition
from tailrace.model import LogStartCause


class LogFacts(NamedTuple):
    """What the checkpoint files of a data folder say of one log.

    `start_is_known`: the stored log start counts. An earlier release moved it after it had removed
    segments, so a first segment above it proved nothing. `high_watermark`: 0 when none is known, or
    when the machine went down and may have lost what was not synced. `anew`: with `accept_loss`, a
    log without its beginning is emptied, to be filled by its leader; otherwise the rest is kept.
    """

    start_cause: LogStartCause | None = None
    start_is_known: bool = True
    high_watermark: int = 0
    anew: bool = False


NO_FACTS: Final = LogFacts()


def known_start(log_start: int, clean: CleanPartition | None, facts: LogFacts) -> int:
    """Where the log begins, by all that says so."""
    by_clean = 0 if clean is None else clean.log_start
    by_cause = 0 if facts.start_cause is None else facts.start_cause.offset
    return max(log_start, by_clean, by_cause)
