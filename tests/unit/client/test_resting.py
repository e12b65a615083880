"""The garbage collector rests, and wakes up whatever happens."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from threading import Thread

import pytest

from tailrace.client.records import _made
from tailrace.client.resting import REST


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)
    gc.enable()


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("was_on", [True, False])
def test_however_many_rest_the_collector_is_as_it_was_when_the_last_has_ended(
    was_on: bool,
) -> None:
    def work(seed: int) -> None:
        for number in range(400):
            try:
                REST.begin()
                for _ in range((number * seed) % 60):
                    pass
            finally:
                REST.end()
            _made([("t", 0, 0, 0, None, b"", ())] * 3)

    (gc.enable if was_on else gc.disable)()
    threads = [Thread(target=work, args=[seed]) for seed in (3, 5, 7, 11)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert gc.isenabled() is was_on


def test_a_rest_that_was_not_ended_ends_with_the_next() -> None:
    REST.begin()
    assert not gc.isenabled()
    # A Ctrl-C came before `end`.
    REST.begin()
    REST.end()
    assert gc.isenabled()


def test_the_child_of_a_fork_does_not_wait_for_threads_that_it_has_not() -> None:
    REST.begin()
    try:
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()
    finally:
        REST.end()
    assert gc.isenabled()
