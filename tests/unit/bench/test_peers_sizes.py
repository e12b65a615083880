"""How many records a contender gets in its rounds."""

from __future__ import annotations

from bench.peers.sizes import Sizes, Volumes

SIZES = Sizes(seconds=4.0, probe_bytes=1_000_000, probe_records=5_000, run_bytes_max=100_000_000)


def test_the_first_round_is_small_and_those_after_it_take_as_long_as_wanted() -> None:
    volumes = Volumes(SIZES, 1_000, clients=1)
    assert volumes.records("a") == 1_000
    volumes.note("a", 10_000.0)
    assert (volumes.records("a"), volumes.records("b")) == (40_000, 1_000)


def test_a_slow_round_does_not_make_the_next_one_smaller() -> None:
    volumes = Volumes(SIZES, 1_000, clients=1)
    for rate in (10_000.0, 50.0):
        volumes.note("a", rate)
    assert volumes.records("a") == 40_000


def test_a_run_is_bounded_in_bytes_whatever_the_speed_and_the_crowd() -> None:
    for clients in (1, 10):
        volumes = Volumes(SIZES, 100, clients=clients)
        assert volumes.records("a") == 5_000
        volumes.note("a", 1e9)
        assert volumes.records("a") * 100 * clients == SIZES.run_bytes_max
