"""The budget of a process: the sums hold, and who holds most pays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.transport.budget import (
    CHORE_WINDOW_S,
    CONNECTION_CHORES_MIN,
    Account,
    Budget,
    BudgetLimits,
    peer_address,
)


class Stream:
    """What holds bytes, and gives them up when told."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.held = 0
        self.told: list[str] = []

    def shed(self, detail: str) -> None:
        self.told.append(detail)
        self.account.release(self, self.held)


class Running:
    def __init__(self) -> None:
        self.told: list[str] = []

    def shed(self, detail: str) -> None:
        self.told.append(detail)


def test_a7_who_holds_most_gives_up_what_made_no_progress_for_longest() -> None:
    budget = Budget(BudgetLimits(bytes_max=100))
    hostile, honest = budget.account("10.0.0.1", 0), budget.account("10.0.0.2", 0)
    stalled, moving = Stream(hostile), Stream(hostile)
    small = Stream(hostile)
    hostile.hold(small, 0)
    hostile.hold(stalled, 30)
    hostile.hold(moving, 40)
    # The first of the two was given something, so the other made no progress for longer.
    hostile.release(stalled, 1)
    mine = Stream(honest)
    honest.hold(mine, 31)
    assert (stalled.told, mine.told) == ([], [])
    honest.hold(mine, 1)
    assert moving.told == [
        "101 bytes were received and not delivered, the limit is queued.max.request.bytes=100"
    ]
    assert (budget.bytes, hostile.bytes, honest.bytes, mine.told) == (61, 29, 32, [])
    assert budget.shed == 1


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 60), st.booleans()), min_size=1, max_size=80
    )
)
def test_a7_sums_hold_and_no_more_is_held_than_allowed(
    steps: list[tuple[int, int, bool]],
) -> None:
    budget = Budget(BudgetLimits(bytes_max=100))
    accounts = [budget.account(f"10.0.0.{number % 3}", 0) for number in range(6)]
    streams = [Stream(each) for each in accounts]
    for number, size, is_release in steps:
        stream = streams[number]
        if is_release:
            stream.account.release(stream, min(size, stream.held))
        else:
            stream.account.hold(stream, size)
        held = {id(each): each.bytes for each in accounts}
        assert budget.bytes == sum(held.values()) == sum(each.held for each in streams) <= 100
        for account in accounts:
            holds = {each for each in streams if each.account is account and each.held}
            assert set(account.holders) == holds


def test_a7_calls_are_taken_from_the_busiest_connection_of_the_busiest_address() -> None:
    budget = Budget(BudgetLimits(calls_max=10))
    hostile, honest = budget.account("10.0.0.1", 0), budget.account("10.0.0.2", 0)
    floods = [Running() for _ in range(9)]
    for each in floods:
        assert hostile.enter("flood", each) == ""
    quiet = Running()
    assert hostile.enter("quiet", quiet) == ""
    # The flood itself is refused, and nobody pays for it.
    assert "max.streams=10" in hostile.enter("flood", Running())
    assert not any(each.told for each in [*floods, quiet])
    # A neighbour on the same address, and another address, get in at its cost.
    assert hostile.enter("neighbour", Running()) == ""
    assert honest.enter("other", Running()) == ""
    assert [bool(each.told) for each in floods] == [False] * 7 + [True] * 2
    assert not quiet.told
    assert (budget.calls, hostile.calls, honest.calls) == (10, 9, 1)
    # One that was shed has left already.
    hostile.leave("flood", floods[-1])
    assert budget.calls == 10


def test_a8_chores_count_by_address_and_reconnecting_does_not_help() -> None:
    budget = Budget(BudgetLimits(address_chores_max=1_000))
    account = budget.account("10.0.0.1", 0)
    done = cut = refused = 0
    for _ in range(200):
        if not account.opened(1, 0.5):
            refused += 1
            continue
        made = 0
        while made < 900 and account.is_calm(made + 1, 1, 0.5):
            made += 1
        cut += made < 900
        done += made
        account.closed()
    # Each new connection gets less than the one before, and then there is none in this window.
    assert cut >= 3
    assert refused >= 190
    assert done <= 2_500
    # Another address is not concerned, and neither is the next window.
    other = budget.account("10.0.0.2", 0.5)
    assert other.is_calm(900, 900, 0.5)
    assert account.is_calm(900, 900, 0.5 + CHORE_WINDOW_S)


def test_a8_a_quiet_connection_is_not_cut_for_its_noisy_neighbour() -> None:
    budget = Budget(BudgetLimits(address_chores_max=1_000))
    account = budget.account("10.0.0.1", 0)
    for _ in range(20):
        assert account.opened(4, 0)
    made = 0
    while account.is_calm(made + 1, 20, 0):
        made += 1
    assert made >= CONNECTION_CHORES_MIN
    assert account.is_calm(5, 5, 0)


def test_addresses_that_are_gone_are_forgotten() -> None:
    budget = Budget(BudgetLimits())
    for number in range(3_000):
        account = budget.account(f"10.{number >> 8}.{number & 255}.1", float(number))
        account.opened(1, float(number))
        account.closed()
    assert len(budget._accounts) <= 1_024


def test_a_host_of_ipv6_is_its_network() -> None:
    assert peer_address("10.0.0.7") == "10.0.0.7"
    assert peer_address("::ffff:10.0.0.7") == "10.0.0.7"
    assert peer_address("2001:db8::1") == peer_address("2001:db8::ffff") == "2001:db8::/64"
    assert peer_address("fe80::1%eth0") == peer_address("fe80::2")
    assert peer_address("what is this") == "what is this"
