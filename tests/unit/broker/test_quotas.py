"""Quotas keep to a rate over time, whatever the sizes, and fail nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.quotas import (
    BURST_MS,
    NO_LIMIT,
    THROTTLE_MAX_MS,
    Bucket,
    ClientQuota,
    Quotas,
    Rates,
)


def quota(**rates: int) -> ClientQuota:
    made = ClientQuota("c")
    made.set_rates(Rates(**rates), 0)
    return made


@given(
    st.integers(100, 1_000_000),
    st.lists(st.tuples(st.integers(1, 200_000), st.integers(0, 500)), min_size=1, max_size=200),
)
def test_over_time_the_rate_is_kept_to(rate: int, requests: list[tuple[int, int]]) -> None:
    bucket, now_ms, total = Bucket(rate, 0), 0, 0
    capped = False
    for size, pause_ms in requests:
        owed_ms = bucket.owed_ms(now_ms)
        capped = capped or owed_ms == THROTTLE_MAX_MS
        now_ms += owed_ms + pause_ms
        bucket.take(size, now_ms)
        total += size
        largest = max(size for size, _ in requests)
        allowed = rate * (BURST_MS + now_ms) / 1_000 + largest
        assert capped or total <= allowed + 1


def test_a_quiet_client_may_have_a_burst_and_no_more() -> None:
    bucket = Bucket(1_000, 0)
    bucket.take(1_000, 0)
    assert bucket.owed_ms(0) == 0
    bucket.take(500, 0)
    assert bucket.owed_ms(0) == 501
    assert bucket.owed_ms(10**9) == 0
    assert bucket.is_full(10**9)
    bucket.take(1_001, 10**9)
    assert 1 <= bucket.owed_ms(10**9) <= 2


def test_no_single_wait_is_endless() -> None:
    bucket = Bucket(1, 0)
    bucket.take(10**9, 0)
    assert bucket.owed_ms(0) == THROTTLE_MAX_MS


def test_each_kind_has_a_bucket_of_its_own() -> None:
    made = quota(produce_bytes=1_000, fetch_bytes=2_000)
    assert made.is_limited
    assert made.produced(2_000, 0) == 1_001
    assert made.fetched(1_000, 0) == 0
    assert (made.produce_wait_ms(0), made.fetch_wait_ms(0)) == (1_001, 0)
    requests = quota(requests=2)
    assert [requests.produced(10**6, 0), requests.requested(0)] == [0, 0]
    assert requests.requested(0) == 501
    assert requests.produce_wait_ms(0) == requests.fetch_wait_ms(0) == 501


def test_without_rates_nothing_is_limited() -> None:
    made = quota()
    assert not made.is_limited
    assert made.produced(10**9, 0) == made.fetched(10**9, 0) == made.requested(0) == 0
    assert made.produce_wait_ms(0) == made.fetch_wait_ms(0) == 0


def test_streams_of_a_client_share_its_quota() -> None:
    quotas = Quotas(Rates(produce_bytes=1_000))
    one, two = quotas.enter("c", 0), quotas.enter("c", 0)
    assert one is two
    one.produced(3_000, 0)
    assert two.produce_wait_ms(0) > 0
    quotas.leave(one, 0)
    quotas.leave(two, 0)
    # It still owes: to forget it now would pay its debt.
    assert len(quotas) == 1
    again = quotas.enter("c", 100)
    assert again.produce_wait_ms(100) > 0
    quotas.leave(again, 10**6)
    assert len(quotas) == 0


def test_what_is_set_for_a_client_goes_before_the_defaults() -> None:
    settings = {"vip": Rates(produce_bytes=10_000)}
    quotas = Quotas(
        Rates(produce_bytes=100, fetch_bytes=200), lambda name: settings.get(name, Rates())
    )
    assert quotas.enter("vip", 0).produced(10_000, 0) == 0
    assert quotas.enter("other", 0).produced(10_000, 0) > 0
    settings["other"] = Rates(produce_bytes=10_000)
    quotas.refresh(1_000)
    # What it owes is paid at the new rate.
    assert 0 < quotas.enter("other", 1_000).produce_wait_ms(1_000) < 1_000
    assert Rates(requests=1).over(Rates(fetch_bytes=2)) == Rates(NO_LIMIT, 2, 1)
    settings.clear()
    quotas.refresh(2_000)
    assert quotas.enter("vip", 2_000).produced(10_000, 2_000) > 0


def test_too_many_clients_share_one_quota() -> None:
    quotas = Quotas(Rates(requests=1), clients_max=2)
    first = quotas.enter("a", 0)
    quotas.enter("b", 0)
    shared = quotas.enter("c", 0)
    assert shared is quotas.enter("d", 0)
    assert len(quotas) == 2
    first.requested(0)
    quotas.leave(first, 0)
    assert quotas.enter("e", 0) is shared
    # One that is idle makes room.
    assert quotas.enter("e", 10_000) is not shared
    quotas.leave(shared, 10_000)
