"""Benchmarks that somebody ends."""

from __future__ import annotations

import os
import signal
from itertools import product

import pytest

from bench.endings import SIGNALS, undisturbed_end


@pytest.mark.parametrize(("first", "second"), list(product(SIGNALS, repeat=2)))
def test_the_second_signal_does_not_disturb_the_end_that_the_first_began(
    first: int, second: int
) -> None:
    usual = {each: signal.getsignal(each) for each in SIGNALS}
    ended = []

    def work() -> None:
        try:
            with undisturbed_end():
                try:
                    os.kill(os.getpid(), first)
                finally:
                    os.kill(os.getpid(), second)
                    ended.append("servers")
        finally:
            os.kill(os.getpid(), second)
            ended.append("report")

    try:
        with pytest.raises(KeyboardInterrupt if first == signal.SIGINT else SystemExit):
            work()
    finally:
        for each, handler in usual.items():
            signal.signal(each, handler)
    assert ended == ["servers", "report"]


def test_work_that_ends_by_itself_leaves_signals_as_they_were() -> None:
    usual = [signal.getsignal(each) for each in SIGNALS]
    with undisturbed_end():
        assert signal.getsignal(signal.SIGTERM) is not usual[1]
    assert [signal.getsignal(each) for each in SIGNALS] == usual
