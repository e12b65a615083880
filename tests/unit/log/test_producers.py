"""What the log says to a batch of an idempotent producer, and the snapshot of what it knows."""

from __future__ import annotations

import struct
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import (
    CorruptCheckpoint,
    InvariantViolation,
    LimitReached,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownProducer,
)
from tailrace.log.producers import (
    BATCHES_PER_PRODUCER,
    PRODUCER_IDLE_MIN_MS,
    PRODUCERS_SLACK,
    SNAPSHOT_BYTES_MAX,
    Duplicate,
    ProducedBatch,
    ProducerStates,
)
from tailrace.record.codec import crc32c

PID: Final = 7
SEQUENCE_MAX: Final = 2**31 - 1
DAY_MS: Final = 86_400_000


def check(states: ProducerStates, sequence: int, count: int = 1, *, epoch: int = 0) -> object:
    return states.check(
        producer_id=PID, producer_epoch=epoch, base_sequence=sequence, record_count=count
    )


def update(
    states: ProducerStates,
    sequence: int,
    count: int = 1,
    *,
    epoch: int = 0,
    offset: int = 0,
    producer_id: int = PID,
    now_ms: int = 0,
) -> None:
    states.update(
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        last_sequence=(sequence + count - 1) % 2**31 if sequence >= 0 else -1,
        base_offset=offset,
        last_offset=offset + count - 1,
        timestamp_ms=1_000 + offset,
        now_ms=now_ms,
    )


def states_after(*batches: tuple[int, int]) -> ProducerStates:
    """The state after batches of (sequence, count), each at ten times its place."""
    states = ProducerStates()
    for place, (sequence, count) in enumerate(batches):
        update(states, sequence, count, offset=10 * place)
    return states


# What `check` says.


def test_an_unknown_producer_starts_with_zero() -> None:
    assert check(ProducerStates(), 0, 10) is None


@pytest.mark.parametrize("sequence", [1, -1, SEQUENCE_MAX])
def test_an_unknown_producer_cannot_start_elsewhere(sequence: int) -> None:
    with pytest.raises(UnknownProducer, match="no state"):
        check(ProducerStates(), sequence)


def test_checking_changes_nothing() -> None:
    states = ProducerStates()
    check(states, 0)
    assert len(states) == 0
    assert PID not in states


def test_the_next_sequence_is_accepted() -> None:
    assert check(states_after((0, 3), (3, 4)), 7, 100) is None


@pytest.mark.parametrize("sequence", [8, 9, 1_000, 7 + 2**30 - 1])
def test_a_gap_is_refused(sequence: int) -> None:
    with pytest.raises(OutOfOrderSequence, match=r"where 7 was due: a gap"):
        check(states_after((0, 3), (3, 4)), sequence)


def test_each_of_the_last_five_batches_is_found_again() -> None:
    states = states_after(*((2 * n, 2) for n in range(8)))
    for n in range(3, 8):
        assert check(states, 2 * n, 2) == Duplicate(10 * n, 10 * n + 1, 1_000 + 10 * n)


@pytest.mark.parametrize(
    ("sequence", "count"),
    [
        (0, 2),  # older than the last five
        (6, 1),  # the same start, another end
        (5, 3),  # another start, the same end
        (8, 4),  # two batches in one
        (6, 0),  # a batch of nothing is no retry
    ],
)
def test_what_overlaps_but_is_not_the_same_batch_is_an_old_duplicate(
    sequence: int, count: int
) -> None:
    states = states_after(*((2 * n, 2) for n in range(8)))
    with pytest.raises(OutOfOrderSequence, match="an old duplicate"):
        check(states, sequence, count)


def test_an_older_epoch_is_fenced() -> None:
    states = ProducerStates()
    update(states, 0, epoch=3)
    with pytest.raises(ProducerFenced, match="epoch 2 was replaced by epoch 3"):
        check(states, 1, epoch=2)
    with pytest.raises(ProducerFenced):
        check(states, 0, epoch=2)


def test_a_newer_epoch_starts_with_zero() -> None:
    states = states_after((0, 5))
    assert check(states, 0, 5, epoch=1) is None
    with pytest.raises(OutOfOrderSequence, match="started epoch 1"):
        check(states, 5, epoch=1)
    update(states, 0, 2, epoch=1, offset=50)
    assert check(states, 0, 2, epoch=1) == Duplicate(50, 51, 1_050)
    with pytest.raises(OutOfOrderSequence):
        check(states, 0, 5, epoch=1)


def test_sequences_wrap() -> None:
    states = states_after((SEQUENCE_MAX - 1, 1), (SEQUENCE_MAX, 3))
    assert check(states, 2) is None
    assert check(states, SEQUENCE_MAX, 3) == Duplicate(10, 12, 1_010)
    with pytest.raises(OutOfOrderSequence, match="a gap"):
        check(states, 3)
    with pytest.raises(OutOfOrderSequence, match="an old duplicate"):
        check(states, SEQUENCE_MAX - 5)
    exact = states_after((SEQUENCE_MAX, 1))
    assert check(exact, 0) is None


# What `update` does.


def test_a_replay_may_start_in_the_middle() -> None:
    states = states_after((700, 50))
    assert check(states, 750) is None
    assert check(states, 700, 50) == Duplicate(0, 49, 1_000)


def test_a_control_batch_sets_the_epoch_only() -> None:
    states = states_after((0, 5))
    update(states, -1, offset=5)
    assert check(states, 5) is None
    assert check(states, 0, 5) == Duplicate(0, 4, 1_000)
    update(states, -1, epoch=1, offset=6)
    assert check(states, 0, epoch=1) is None
    with pytest.raises(OutOfOrderSequence):
        check(states, 5, epoch=1)
    with pytest.raises(ProducerFenced):
        check(states, 5, epoch=0)


def test_no_producer_is_no_producer() -> None:
    with pytest.raises(InvariantViolation, match="-1 is not the id"):
        update(ProducerStates(), 0, producer_id=-1)


def test_entries_show_all_that_is_known() -> None:
    states = states_after((0, 2), (2, 1))
    update(states, 0, producer_id=9, epoch=4, offset=30, now_ms=77)
    first, second = states.entries()
    assert first.producer_id == PID
    assert first.batches == (ProducedBatch(0, 1, 0, 1, 1_000), ProducedBatch(2, 2, 10, 10, 1_010))
    assert second == (9, 4, 77, (ProducedBatch(0, 0, 30, 30, 1_030),))


# Forgetting.


def test_producers_expire_by_when_they_wrote_not_by_their_timestamps() -> None:
    states = ProducerStates()
    update(states, 0, producer_id=1, now_ms=1_000)
    update(states, 0, producer_id=2, now_ms=5_000)
    assert states.expire(now_ms=11_000, expiration_ms=10_000) == 0
    assert states.expire(now_ms=11_001, expiration_ms=10_000) == 1
    assert 1 not in states
    assert 2 in states
    update(states, 1, producer_id=2, now_ms=20_000)
    assert states.expire(now_ms=30_000, expiration_ms=10_000) == 0
    assert states.expire(now_ms=99_000, expiration_ms=10_000) == 1


def test_the_limit_refuses_new_producers_and_forgets_none() -> None:
    states = ProducerStates(producers_max=4)
    for producer_id in range(100, 104):
        update(states, 0, producer_id=producer_id)
    with pytest.raises(LimitReached, match="4 producers, its limit"):
        check(states, 0)
    for producer_id in range(100, 104):
        assert producer_id in states


def test_room_is_made_of_those_that_cannot_retry_any_more() -> None:
    states = ProducerStates(producers_max=4)
    for producer_id in range(4):
        update(states, 0, producer_id=100 + producer_id, now_ms=producer_id)
    assert states.expire(PRODUCER_IDLE_MIN_MS, DAY_MS) == 0
    assert states.expire(PRODUCER_IDLE_MIN_MS + 1, DAY_MS) == 1
    assert check(states, 0) is None
    # Half full is full enough: the rest stays for its whole time.
    assert states.expire(DAY_MS, DAY_MS) == 1
    assert [entry.producer_id for entry in states.entries()] == [102, 103]
    assert states.expire(DAY_MS + 10, DAY_MS) == 2


def test_a_short_expiration_is_not_made_longer() -> None:
    states = ProducerStates(producers_max=1)
    update(states, 0, now_ms=0)
    assert states.expire(60_001, 60_000) == 1


def test_a_replay_beyond_the_limit_keeps_the_most_recent() -> None:
    states = ProducerStates(producers_max=2)
    for producer_id in range(PRODUCERS_SLACK + 2):
        update(states, 0, producer_id=producer_id)
    update(states, 1, producer_id=0)
    update(states, 0, producer_id=10**6)
    assert len(states) == PRODUCERS_SLACK + 2
    assert 0 in states
    assert 1 not in states
    _, loaded = ProducerStates.from_bytes(states.to_bytes(5), producers_max=1)
    assert len(loaded) == PRODUCERS_SLACK + 1
    assert 2 not in loaded
    assert 10**6 in loaded


# The snapshot.

i31 = st.integers(0, SEQUENCE_MAX)
i63 = st.integers(0, 2**63 - 1)


@st.composite
def any_states(draw: st.DrawFn) -> ProducerStates:
    states = ProducerStates()
    for producer_id in draw(st.lists(st.integers(0, 2**63 - 1), max_size=6)):
        for _ in range(draw(st.integers(1, 7))):
            first, last = sorted((draw(i63), draw(i63)))
            states.update(
                producer_id=producer_id,
                producer_epoch=draw(st.integers(0, 2)),
                base_sequence=draw(st.integers(-1, SEQUENCE_MAX)),
                last_sequence=draw(i31),
                base_offset=first,
                last_offset=last,
                timestamp_ms=draw(st.integers(-(2**63), 2**63 - 1)),
                now_ms=draw(i63),
            )
    return states


@given(states=any_states(), offset=i63)
def test_a_snapshot_gives_everything_back(states: ProducerStates, offset: int) -> None:
    data = states.to_bytes(offset)
    assert len(data) <= SNAPSHOT_BYTES_MAX
    loaded_offset, loaded = ProducerStates.from_bytes(data)
    assert loaded_offset == offset
    assert loaded == states
    assert loaded.to_bytes(offset) == data
    for entry in states.entries():
        after = entry.batches[-1].last_sequence + 1 if entry.batches else 0
        verdict = loaded.check(
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            base_sequence=after % 2**31,
            record_count=1,
        )
        assert verdict is None


def test_equality_is_about_content() -> None:
    assert states_after((0, 1)) == states_after((0, 1))
    assert states_after((0, 1)) != states_after((0, 2))
    assert states_after((0, 1)) != "something else"


def test_every_cut_and_every_flipped_bit_is_found() -> None:
    states = states_after((0, 3), (3, 1))
    update(states, 0, producer_id=8)
    data = states.to_bytes(42)
    for size in range(len(data)):
        with pytest.raises(CorruptCheckpoint):
            ProducerStates.from_bytes(data[:size])
    for position in range(len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[position] ^= 1 << bit
            with pytest.raises(CorruptCheckpoint):
                ProducerStates.from_bytes(bytes(bad))
    with pytest.raises(CorruptCheckpoint):
        ProducerStates.from_bytes(data + b"\0")


def snapshot(
    *entries: bytes,
    magic: bytes = b"TRPS",
    version: int = 1,
    reserved: int = 0,
    count: int | None = None,
    offset: int = 0,
) -> bytes:
    """A snapshot whose CRC is right, whatever it says."""
    promised = len(entries) if count is None else count
    body = struct.pack("<4sHHIq", magic, version, reserved, promised, offset) + b"".join(entries)
    return body + struct.pack("<I", crc32c(body))


def entry(
    producer_id: int = 1,
    *,
    epoch: int = 0,
    count: int | None = None,
    reserved: int = 0,
    batches: tuple[tuple[int, int, int, int, int], ...] = (),
) -> bytes:
    promised = len(batches) if count is None else count
    head = struct.pack("<qqhBB", producer_id, 0, epoch, promised, reserved)
    return head + b"".join(struct.pack("<iiqqq", *batch) for batch in batches)


GOOD: Final = (0, 1, 0, 1, 5)


def test_a_snapshot_made_by_hand_is_read() -> None:
    offset, states = ProducerStates.from_bytes(snapshot(entry(batches=(GOOD,)), offset=9))
    assert offset == 9
    assert list(states.entries()) == [(1, 0, 0, (GOOD,))]


@pytest.mark.parametrize(
    "data",
    [
        snapshot(magic=b"NOPE"),
        snapshot(version=2),
        snapshot(reserved=1),
        snapshot(offset=-1),
        snapshot(count=1),
        snapshot(count=2**32 - 1),
        snapshot(entry(), count=0),
        snapshot(entry(count=1)),
        snapshot(entry(batches=(GOOD,) * (BATCHES_PER_PRODUCER + 1))),
        snapshot(entry(reserved=1)),
        snapshot(entry(-1)),
        snapshot(entry(epoch=-1)),
        snapshot(entry(3), entry(3)),
        snapshot(entry(batches=((-1, 1, 0, 1, 5),))),
        snapshot(entry(batches=((0, -1, 0, 1, 5),))),
        snapshot(entry(batches=((0, 1, -1, 1, 5),))),
        snapshot(entry(batches=((0, 1, 2, 1, 5),))),
    ],
)
def test_a_snapshot_that_contradicts_itself_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match="producer snapshot"):
        ProducerStates.from_bytes(data)


@given(data=st.binary(max_size=300))
def test_any_bytes_end_in_one_error(data: bytes) -> None:
    for attempt in (data, data + struct.pack("<I", crc32c(data))):
        with pytest.raises(CorruptCheckpoint):
            ProducerStates.from_bytes(attempt)


@given(tail=st.binary(max_size=300), count=st.integers(0, 5))
def test_any_body_ends_in_a_state_or_one_error(tail: bytes, count: int) -> None:
    data = snapshot(tail, count=count)
    try:
        offset, states = ProducerStates.from_bytes(data)
    except CorruptCheckpoint:
        return
    assert states.to_bytes(offset) == data


# A producer that retries, against a log that remembers everything.


@given(data=st.data())
def test_retries_never_make_a_duplicate(data: st.DataObject) -> None:
    """At most five in flight, answers get lost, and the broker restarts from its snapshot."""
    states = ProducerStates()
    start = data.draw(st.sampled_from([0, SEQUENCE_MAX - 20]))
    stored: list[tuple[int, int]] = []
    if start:
        update(states, start - 1, 1)
    in_flight: list[tuple[int, int]] = []
    next_sequence = start
    for _ in range(30):
        action = data.draw(st.sampled_from(["send", "retry", "answer", "restart"]))
        if action == "send" and len(in_flight) < BATCHES_PER_PRODUCER:
            count = data.draw(st.integers(1, 5))
            in_flight.append((next_sequence, count))
            next_sequence = (next_sequence + count) % 2**31
        elif action == "answer" and in_flight and in_flight[0] in stored:
            in_flight.pop(0)
        elif action == "restart":
            states = ProducerStates.from_bytes(states.to_bytes(0))[1]
        elif action == "retry" and in_flight:
            sequence, count = batch = data.draw(st.sampled_from(in_flight))
            try:
                verdict = check(states, sequence, count)
            except (OutOfOrderSequence, UnknownProducer):
                # Refused only because something before it is missing.
                assert batch not in stored
                assert in_flight[0] != batch
                assert (
                    in_flight[0] not in stored
                    or in_flight[in_flight.index(batch) - 1] not in stored
                )
                continue
            if verdict is None:
                assert batch not in stored
                stored.append(batch)
                update(states, sequence, count, offset=10 * len(stored))
            else:
                assert isinstance(verdict, Duplicate)
                assert verdict.base_offset == 10 * (stored.index(batch) + 1)
    expected = start
    for sequence, count in stored:
        assert sequence == expected
        expected = (expected + count) % 2**31
