"""Parked requests: released by what they wait for, by failure, or by their deadline."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import InvariantViolation, Overloaded
from tailrace.model import TopicPartition
from tailrace.replication.purgatory import SLACK, Cause, Purgatory, Released, Ticket

P, Q, R = (TopicPartition("orders", number) for number in range(3))
FAR_MS = 1_000_000


def names(released: list[Released[str]]) -> list[str]:
    return [each.waiter for each in released]


# Produces.


def test_a_produce_is_released_when_the_high_watermark_reaches_it() -> None:
    purgatory: Purgatory[str] = Purgatory()
    purgatory.park_produce("late", P, offset=12, deadline_ms=FAR_MS)
    purgatory.park_produce("early", P, offset=10, deadline_ms=FAR_MS)
    assert purgatory.moved(P, 9) == []
    assert purgatory.moved(Q, 99) == []
    assert purgatory.moved(P, 10) == [Released("early", Cause.REACHED)]
    assert purgatory.moved(P, 15) == [Released("late", Cause.REACHED)]
    assert purgatory.moved(P, 16) == []
    assert (purgatory.produces, purgatory.fetches, purgatory.next_deadline_ms) == (0, 0, None)


def test_produces_of_one_offset_are_released_in_the_order_they_came() -> None:
    purgatory: Purgatory[str] = Purgatory()
    for name in "abc":
        purgatory.park_produce(name, P, offset=5, deadline_ms=FAR_MS)
    assert names(purgatory.moved(P, 5)) == ["a", "b", "c"]


# Fetches.


def test_a_fetch_is_released_when_its_partitions_have_grown_enough() -> None:
    purgatory: Purgatory[str] = Purgatory()
    purgatory.park_fetch("one", [P], missing_bytes=1, deadline_ms=FAR_MS)
    purgatory.park_fetch("many", [P, Q, R], missing_bytes=100, deadline_ms=FAR_MS)
    assert names(purgatory.grew(P, 40)) == ["one"]
    assert purgatory.grew(Q, 30) == []
    assert purgatory.grew(Q, 29) == []
    assert names(purgatory.grew(R, 1)) == ["many"]
    assert purgatory.grew(P, 500) == []
    assert purgatory.fetches == 0


def test_what_grew_before_does_not_count() -> None:
    purgatory: Purgatory[str] = Purgatory()
    purgatory.park_fetch("first", [P], missing_bytes=100, deadline_ms=FAR_MS)
    purgatory.grew(P, 90)
    purgatory.park_fetch("second", [P], missing_bytes=20, deadline_ms=FAR_MS)
    assert names(purgatory.grew(P, 10)) == ["first"]
    assert names(purgatory.grew(P, 10)) == ["second"]


def test_one_growth_may_release_several_fetches() -> None:
    purgatory: Purgatory[str] = Purgatory()
    for name in "abc":
        purgatory.park_fetch(name, [P, Q], missing_bytes=10, deadline_ms=FAR_MS)
    assert names(purgatory.grew(P, 10)) == ["a", "b", "c"]


@pytest.mark.parametrize(("partitions", "missing_bytes"), [([], 1), ([P], 0), ([P, P], 1)])
def test_a_fetch_that_waits_for_nothing_is_a_bug(
    partitions: list[TopicPartition], missing_bytes: int
) -> None:
    purgatory: Purgatory[str] = Purgatory()
    with pytest.raises(InvariantViolation):
        purgatory.park_fetch("x", partitions, missing_bytes=missing_bytes, deadline_ms=FAR_MS)


# Failures, deadlines, limits.


def test_a_change_of_role_ends_all_that_wait_for_the_partition() -> None:
    purgatory: Purgatory[str] = Purgatory()
    purgatory.park_produce("p2", P, offset=20, deadline_ms=FAR_MS)
    purgatory.park_produce("p1", P, offset=10, deadline_ms=FAR_MS)
    purgatory.park_produce("q", Q, offset=10, deadline_ms=FAR_MS)
    purgatory.park_fetch("both", [P, Q], missing_bytes=10, deadline_ms=FAR_MS)
    failed = purgatory.fail(P, "NOT_LEADER")
    assert names(failed) == ["p2", "p1", "both"]
    assert {(each.cause, each.code) for each in failed} == {(Cause.FAILED, "NOT_LEADER")}
    assert purgatory.fail(P, "NOT_LEADER") == []
    assert purgatory.grew(Q, 10) == []
    assert names(purgatory.moved(Q, 10)) == ["q"]


def test_too_few_replicas_end_the_produces_only() -> None:
    purgatory: Purgatory[str] = Purgatory()
    purgatory.park_produce("p", P, offset=20, deadline_ms=FAR_MS)
    purgatory.park_fetch("f", [P], missing_bytes=10, deadline_ms=FAR_MS)
    failed = purgatory.fail(P, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", fetches=False)
    assert names(failed) == ["p"]
    assert purgatory.fetches == 1


def test_at_the_deadline_the_time_is_over() -> None:
    purgatory: Purgatory[str] = Purgatory()
    purgatory.park_produce("p", P, offset=20, deadline_ms=300)
    purgatory.park_fetch("f", [P], missing_bytes=10, deadline_ms=200)
    assert purgatory.next_deadline_ms == 200
    assert purgatory.expire(199) == []
    assert purgatory.expire(200) == [Released("f", Cause.EXPIRED)]
    assert purgatory.next_deadline_ms == 300
    assert purgatory.expire(1_000) == [Released("p", Cause.EXPIRED)]
    assert purgatory.moved(P, 20) == []
    assert purgatory.next_deadline_ms is None


def test_who_went_is_not_released() -> None:
    purgatory: Purgatory[str] = Purgatory()
    gone = purgatory.park_produce("gone", P, offset=20, deadline_ms=300)
    purgatory.park_produce("here", P, offset=20, deadline_ms=400)
    purgatory.cancel(gone)
    purgatory.cancel(gone)
    assert purgatory.next_deadline_ms == 400
    assert names(purgatory.moved(P, 20)) == ["here"]


def test_limits_have_an_error_of_their_own() -> None:
    purgatory: Purgatory[str] = Purgatory(produces_max=1, fetches_max=1)
    purgatory.park_produce("p", P, offset=1, deadline_ms=FAR_MS)
    purgatory.park_fetch("f", [P], missing_bytes=1, deadline_ms=FAR_MS)
    with pytest.raises(Overloaded):
        purgatory.park_produce("p", P, offset=1, deadline_ms=FAR_MS)
    with pytest.raises(Overloaded):
        purgatory.park_fetch("f", [P], missing_bytes=1, deadline_ms=FAR_MS)
    purgatory.moved(P, 1)
    purgatory.park_produce("p", P, offset=1, deadline_ms=FAR_MS)


def test_queues_do_not_grow_with_those_who_went() -> None:
    # The high watermark stands still while producers time out and try again.
    purgatory: Purgatory[str] = Purgatory()
    for at_ms in range(20 * SLACK):
        purgatory.park_produce("p", P, offset=at_ms, deadline_ms=at_ms)
        purgatory.expire(at_ms)
        purgatory.cancel(purgatory.park_fetch("f", [P], missing_bytes=1, deadline_ms=FAR_MS))
    queues = [*purgatory._offsets.values(), *purgatory._bytes.values(), purgatory._deadlines]
    assert all(len(queue._entries) <= 2 * SLACK + 1 for queue in queues)


# Against a model without any cleverness.


@dataclass
class Parked:
    name: int
    partitions: list[TopicPartition]
    offset: int | None
    missing: int
    deadline_ms: int
    ticket: Ticket[int]


@dataclass
class Model:
    parked: list[Parked] = field(default_factory=list)

    def take(self, chosen: list[Parked]) -> set[int]:
        self.parked = [each for each in self.parked if each not in chosen]
        return {each.name for each in chosen}

    def grew(self, partition: TopicPartition, size: int) -> set[int]:
        for each in self.parked:
            if each.offset is None and partition in each.partitions:
                each.missing -= size
        return self.take([e for e in self.parked if e.offset is None and e.missing <= 0])


partitions = st.sampled_from([P, Q, R])
some_partitions = st.lists(partitions, min_size=1, max_size=3, unique=True)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), partitions, st.integers(0, 40), st.integers(0, 300)),
        st.tuples(st.just("fetch"), some_partitions, st.integers(1, 60), st.integers(0, 300)),
        st.tuples(st.just("moved"), partitions, st.integers(0, 40), st.none()),
        st.tuples(st.just("grew"), partitions, st.integers(0, 30), st.none()),
        st.tuples(st.just("fail"), partitions, st.booleans(), st.none()),
        st.tuples(st.just("expire"), st.none(), st.integers(0, 300), st.none()),
        st.tuples(st.just("cancel"), st.none(), st.integers(0, 50), st.none()),
    ),
    max_size=60,
)


@given(steps)
def test_it_releases_whom_the_model_releases(
    actions: list[tuple[str, TopicPartition | list[TopicPartition] | None, int, int | None]],
) -> None:
    purgatory: Purgatory[int] = Purgatory()
    model = Model()
    for name, (action, where, number, deadline_ms) in enumerate(actions):
        released: list[Released[int]] = []
        expected: set[int] = set()
        if isinstance(where, list):
            ticket = purgatory.park_fetch(
                name, where, missing_bytes=number, deadline_ms=deadline_ms or 0
            )
            model.parked.append(Parked(name, where, None, number, deadline_ms or 0, ticket))
        elif action == "produce" and where is not None:
            ticket = purgatory.park_produce(
                name, where, offset=number, deadline_ms=deadline_ms or 0
            )
            model.parked.append(Parked(name, [where], number, 0, deadline_ms or 0, ticket))
        elif action == "moved" and where is not None:
            released = purgatory.moved(where, number)
            reached = [e for e in model.parked if e.offset is not None and e.offset <= number]
            expected = model.take([e for e in reached if where in e.partitions])
        elif action == "grew" and where is not None:
            released = purgatory.grew(where, number)
            expected = model.grew(where, number)
        elif action == "fail" and where is not None:
            released = purgatory.fail(where, "X", fetches=bool(number))
            failed = [e for e in model.parked if where in e.partitions]
            expected = model.take([e for e in failed if e.offset is not None or number])
        elif action == "expire":
            released = purgatory.expire(number)
            expected = model.take([e for e in model.parked if e.deadline_ms <= number])
        elif model.parked:
            chosen = model.parked[number % len(model.parked)]
            purgatory.cancel(chosen.ticket)
            model.take([chosen])
        assert {each.waiter for each in released} == expected
        assert len(released) == len(expected)
        fetches = sum(each.offset is None for each in model.parked)
        assert (purgatory.fetches, purgatory.produces) == (fetches, len(model.parked) - fetches)
        deadlines = [each.deadline_ms for each in model.parked]
        assert purgatory.next_deadline_ms == min(deadlines, default=None)
