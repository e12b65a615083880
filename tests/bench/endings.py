"""How a benchmark ends when somebody ends it: in order, however often it is told to."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def undisturbed_end() -> Iterator[None]:
    """Ctrl-C or SIGTERM: the first ends the work, and the rest are not heard while it is put away.

    They come in pairs: `timeout` passes on what its whole group was sent.
    """
    usual = {each: signal.getsignal(each) for each in SIGNALS}

    def once(number: int, frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        print("\nbroken off: servers are ended, the report is written", file=sys.stderr, flush=True)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit("broken off")

    for each in SIGNALS:
        signal.signal(each, once)
    try:
        yield
    finally:
        # Who was told to end stays deaf: what called this has something to put away, too.
        if signal.getsignal(signal.SIGINT) is once:
            for each, handler in usual.items():
                signal.signal(each, handler)
