"""How much of the held memory is let go of, and when there is any at all."""

from __future__ import annotations

import os
import signal
import time

import pytest

from bench.peers.ballast import (
    BALLAST_BYTES,
    CUSHION_BYTES,
    GIB,
    PIECE_BYTES,
    Ballast,
    Cost,
    meminfo_bytes,
    pieces_to_free,
    pieces_wanted,
)

CUSHION = CUSHION_BYTES // PIECE_BYTES
ALL = BALLAST_BYTES // PIECE_BYTES


def test_a_turn_begins_with_the_cushion() -> None:
    assert pieces_to_free(free_at_start=GIB, released=0, free_now=GIB, held=ALL) == CUSHION


def test_what_was_used_is_replaced_and_no_more() -> None:
    free_now = GIB + CUSHION_BYTES
    for used, expected in ((0, 0), (1, 1), (PIECE_BYTES, 1), (PIECE_BYTES + 1, 2)):
        found = pieces_to_free(
            free_at_start=GIB, released=CUSHION_BYTES, free_now=free_now - used, held=ALL
        )
        assert found == expected, used


def test_memory_that_others_free_is_no_reason_to_free_more() -> None:
    found = pieces_to_free(free_at_start=GIB, released=CUSHION_BYTES, free_now=9 * GIB, held=ALL)
    assert found == 0
    # The cushion is handed out all the same: what others freed may lie elsewhere.
    assert pieces_to_free(free_at_start=GIB, released=0, free_now=9 * GIB, held=ALL) == CUSHION


def test_nobody_frees_more_than_there_is() -> None:
    for held in (0, 3):
        assert pieces_to_free(free_at_start=9 * GIB, released=0, free_now=0, held=held) == held


def test_a_whole_turn_uses_the_ballast_up_and_no_faster_than_memory_is_used() -> None:
    free, released, held = 2 * GIB, 0, ALL
    for tick in range(1_000):
        number = pieces_to_free(free_at_start=2 * GIB, released=released, free_now=free, held=held)
        released, held = released + number * PIECE_BYTES, held - number
        free += number * PIECE_BYTES
        used = 2 * GIB + released - free
        if held:
            assert CUSHION_BYTES <= released - used < CUSHION_BYTES + PIECE_BYTES, tick
        free -= 10_000_000
        if free < 0:
            break
    assert (held, released) == (0, BALLAST_BYTES)


@pytest.mark.parametrize(
    ("available", "held", "expected"),
    [(100 * GIB, 0, ALL), (8 * GIB, 0, 2 * GIB // PIECE_BYTES), (8 * GIB - 1, 0, 31), (0, 0, 0)],
)
def test_a_small_machine_holds_less(available: int, held: int, expected: int) -> None:
    assert pieces_wanted(available=available, held=held) == expected


def test_what_is_held_does_not_make_the_ballast_smaller() -> None:
    wanted = pieces_wanted(available=8 * GIB, held=0)
    assert pieces_wanted(available=8 * GIB - wanted * PIECE_BYTES, held=wanted) == wanted


def test_a_ballast_is_for_machines_on_which_fresh_memory_is_dear() -> None:
    dear, cheap = Cost(1.2, 0.2), Cost(0.3, 0.2)
    assert dear.is_ballast_wanted
    assert not cheap.is_ballast_wanted
    assert dear.facts() == {
        "a fresh GiB of page cache": "1.20 CPU-s",
        "a reused GiB of page cache": "0.20 CPU-s",
        "ballast of backed memory": "up to 4 GiB, handed out while throughput is timed",
    }
    assert cheap.facts()["ballast of backed memory"].startswith("none")


def test_lines_of_meminfo_are_bytes() -> None:
    text = "MemFree:  8 kB\nMemAvailable: 10 kB\nHugePages_Total: 5\n"
    assert meminfo_bytes(text) == {"MemFree": 8 << 10, "MemAvailable": 10 << 10}


def test_the_process_holds_hands_out_takes_again_and_is_replaced_when_it_dies() -> None:
    most = 2 * PIECE_BYTES
    with Ballast(most) as ballast:
        for _ in range(2):
            assert ballast.fill() == most
            with ballast.handed_out():
                time.sleep(0.2)
        first = ballast.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT) is not None
        assert ballast.fill() == most
        assert ballast.pid != first
    assert ballast.pid is None
