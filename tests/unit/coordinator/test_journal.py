"""The journal: one batch on its way, the rest gathers; nobody is told too early or twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.coordinator import journal as module
from tailrace.coordinator.journal import Journal
from tailrace.coordinator.records import Encoded
from tailrace.errors import InvariantViolation, NotCoordinator, TailraceError
from tailrace.meta.shard_producers import PRODUCER_EPOCHS, producer_of
from tailrace.record.header import read_header
from tailrace.record.view import BatchView


class Told:
    def __init__(self) -> None:
        self.ready = 0
        self.heard: list[tuple[str, TailraceError | None, int]] = []
        self.journal = Journal(7, 1, 3, on_ready=lambda _: self.submitted())

    def submitted(self) -> None:
        self.ready += 1

    def write(self, name: str, *texts: str) -> None:
        records = [Encoded(text.encode(), b"v") for text in texts]
        self.journal.write(records, lambda e, at: self.heard.append((name, e, at)), now_ms=5)


def keys(data: bytes) -> list[bytes | None]:
    return [record.key for record in BatchView(data).records()]


def test_the_owner_of_an_epoch_writes_in_its_name() -> None:
    assert producer_of(7, 3).producer_epoch == 3
    assert producer_of(7, 3).producer_id == producer_of(7, 4).producer_id
    assert producer_of(7, 3).producer_id != producer_of(8, 3).producer_id
    assert producer_of(7, PRODUCER_EPOCHS).producer_epoch == 0
    assert producer_of(7, PRODUCER_EPOCHS).producer_id != producer_of(7, 0).producer_id


def test_what_gathers_goes_in_the_next_batch() -> None:
    told = Told()
    told.write("a", "1")
    assert told.ready == 1
    first = told.journal.take()
    told.write("b", "2", "3")
    told.write("c", "4")
    told.write("d")
    assert told.ready == 1, "one batch is on its way"
    assert keys(first) == [b"1"]
    assert told.journal.take() == first, "until it is known to be there, it is the same one"
    told.journal.settle(10)
    assert told.heard == [("a", None, 10)]
    assert told.ready == 2
    second = told.journal.take()
    assert keys(second) == [b"2", b"3", b"4"]
    header = read_header(second)
    assert (header.base_sequence, header.producer_epoch) == (1, 3)
    told.journal.settle(11)
    assert told.heard[1:] == [("b", None, 13), ("c", None, 13), ("d", None, 13)]
    assert told.journal.is_idle


def test_with_nothing_on_its_way_nobody_waits() -> None:
    told = Told()
    told.write("a")
    assert told.heard == [("a", None, -1)]
    assert told.ready == 0


def test_a_proof_is_something_that_is_sent_after_it_was_asked_for() -> None:
    told = Told()
    told.write("a", "1")
    told.journal.take()
    told.journal.prove(lambda e, at: told.heard.append(("proof", e, at)), now_ms=6)
    told.journal.settle(0)
    assert told.heard == [("a", None, 0)], "what was on its way already proves nothing"
    assert keys(told.journal.take()) == [b'["owner"]']
    told.write("b", "2")
    told.journal.prove(lambda e, at: told.heard.append(("second", e, at)), now_ms=6)
    told.journal.settle(1)
    assert told.heard[-1] == ("proof", None, 1)
    assert keys(told.journal.take()) == [b"2"], "what waits to be sent is proof enough"
    told.journal.settle(2)
    assert told.heard[-1] == ("second", None, 2)


def test_all_who_wait_are_told_when_the_shard_is_lost() -> None:
    told = Told()
    told.write("a", "1")
    told.journal.take()
    told.write("b", "2")
    error = NotCoordinator("gone")
    told.journal.close(error)
    told.write("c", "3")
    assert told.heard == [("a", error, -1), ("b", error, -1), ("c", error, -1)]
    assert not told.journal.has_work
    told.journal.close(NotCoordinator("again"))
    assert len(told.heard) == 3


def test_a_batch_is_not_larger_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 2_000)
    told = Told()
    told.write("a", *(str(number) * 200 for number in range(9)))
    sizes = []
    offset = 0
    while told.journal.has_work:
        assert told.heard == []
        data = told.journal.take()
        sizes.append(len(data))
        count = len(keys(data))
        told.journal.settle(offset)
        offset += count
    assert len(sizes) > 1
    assert max(sizes) < 3_000
    assert told.heard == [("a", None, 8)]


def test_there_must_be_something_to_send_and_to_settle() -> None:
    told = Told()
    with pytest.raises(InvariantViolation):
        told.journal.take()
    with pytest.raises(InvariantViolation):
        told.journal.settle(0)


@given(st.lists(st.sampled_from(["write", "empty", "prove", "take", "settle"]), max_size=40))
def test_everybody_is_told_once_and_in_order(events: list[str]) -> None:
    told = Told()
    written, log, is_out, batch = 0, list[bytes | None](), False, b""
    for number, event in enumerate(events):
        name = str(number)
        if event == "write":
            told.write(name, f"{written}")
            written += 1
        elif event == "empty":
            told.write(name)
        elif event == "prove":
            told.journal.prove(lambda e, at, n=name: told.heard.append((n, e, at)), now_ms=1)  # type: ignore[misc]
        elif event == "take" and told.journal.has_work:
            batch = told.journal.take()
            is_out = True
        elif event == "settle" and is_out:
            told.journal.settle(len(log))
            log += keys(batch)
            is_out = False
    while told.journal.has_work:
        batch = told.journal.take()
        told.journal.settle(len(log))
        log += keys(batch)
    asked = [str(n) for n, event in enumerate(events) if event in {"write", "empty", "prove"}]
    assert [name for name, _, _ in told.heard] == asked
    assert [key for key in log if key != b'["owner"]'] == [b"%d" % n for n in range(written)]
