"""What a command that writes does after Ctrl-C: what is under way has some seconds, no more.

A cluster that does not answer would keep it for as long as a record may take. What is given up then
may be written or not: nobody has said.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from tailrace.cli.output import warn
from tailrace.client.producer import ProducerCore
from tailrace.runtime import Tasks

# How long records that are under way are waited for.
INTERRUPTED_MS: Final = 5_000
NOT_KNOWN: Final = "not known: they may have been written or not"


async def break_off(producer: ProducerCore, *, quiet_ms: int = 0) -> None:
    """Nothing more is sent; what is under way has INTERRUPTED_MS, or until the next Ctrl-C.

    What ends within `quiet_ms` ends without a word.
    """
    # How many are given up is said at the end; the producer would say it of each batch.
    log = logging.getLogger(ProducerCore.__module__)
    level = log.level
    log.setLevel(logging.ERROR)
    tasks = Tasks(lambda _, __: None)
    closing = tasks.spawn("close the producer", producer.close(timeout_ms=INTERRUPTED_MS))
    try:
        ended, _ = await asyncio.wait([closing], timeout=quiet_ms / 1_000)
        if not ended:
            warn(
                f"interrupted: up to {INTERRUPTED_MS // 1_000} s for what is under way; "
                "Ctrl-C once more leaves at once"
            )
            await asyncio.wait([closing])
    finally:
        await tasks.close()
        await producer.close(timeout_ms=0)
        log.setLevel(level)
