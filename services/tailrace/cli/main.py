"""Where the process of `tailrace` begins: its signals first, then everything else.

Imports take a moment, and whoever presses Ctrl-C in it wants no traceback: until a command runs,
signals end the process at once and without a word. So nothing heavy is imported here before they
are dealt with. From then on they are exceptions, and whatever a command has begun ends in order.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Final, NoReturn

SIGNAL_EXIT: Final = 128
"""A process that a signal has ended exits with this and the number of the signal, as shells say."""


def main() -> None:
    """Run the command line and exit the process with its code."""
    _leave_at_once()
    from tailrace.cli.commands import run  # noqa: PLC0415 - see above.

    for number, handler in _IN_ORDER.items():
        # Who told us to ignore one (nohup does, a shell for what runs behind it) meant it.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
    try:
        run()
    finally:
        # Nothing is left to be ended in order.
        _leave_at_once()


def _leave_at_once() -> None:
    for number in _IN_ORDER:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    # What was printed before, by a command that is at its end, still goes out.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, RuntimeError, AttributeError):
            continue
    os._exit(SIGNAL_EXIT + number)


def _end_in_order(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(SIGNAL_EXIT + number)


_IN_ORDER: Final = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: _end_in_order,
    signal.SIGHUP: _end_in_order,
}

if __name__ == "__main__":
    main()
