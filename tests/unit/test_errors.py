"""Each error class has its own code, and the codes are those of the protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tailrace import errors
from tailrace.errors import (
    BatchFault,
    CorruptBatch,
    OffsetOutOfRange,
    TailraceError,
    no_partition,
    no_topic,
)
from tailrace.v1 import common_pb2

PREFIX = "ERROR_CODE_"


def _classes(root: type[TailraceError] = TailraceError) -> Iterator[type[TailraceError]]:
    yield root
    for child in root.__subclasses__():
        yield from _classes(child)


def _ours() -> list[type[TailraceError]]:
    return [each for each in _classes() if each.__module__ == errors.__name__]


def test_the_protocol_has_exactly_our_codes() -> None:
    in_protocol = {name.removeprefix(PREFIX) for name in common_pb2.ErrorCode.keys()}  # noqa: SIM118
    assert in_protocol - {"UNSPECIFIED"} == {each.code for each in _ours()}


def test_no_two_classes_share_a_code() -> None:
    counts = Counter(each.code for each in _ours())
    assert [code for code, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("error", _ours(), ids=lambda error: error.__name__)
def test_the_code_is_the_name_of_the_class(error: type[TailraceError]) -> None:
    if error is TailraceError:
        assert error.code == "UNKNOWN"
    else:
        assert error.code.replace("_", "") == error.__name__.upper()
        assert error.__doc__


def test_a_corrupt_batch_says_what_and_where() -> None:
    assert str(CorruptBatch(BatchFault.BAD_CRC)) == "corrupt batch: CRC does not match"
    error = CorruptBatch(BatchFault.CUT_SHORT, "12 of 88 header bytes")
    assert error.fault is BatchFault.CUT_SHORT
    assert str(error) == "corrupt batch: cut short: 12 of 88 header bytes"


def test_what_is_not_there_is_told_with_what_is_near() -> None:
    known = ["orders", "orders-dlq", "payments"]
    ordres = str(no_topic(["ordres"], known))
    assert ordres == "there is no topic 'ordres' (near it: orders, orders-dlq)"
    assert str(no_topic(["zzz", "payment"], known)) == (
        "there is no topic 'zzz', 'payment' (near it: payments)"
    )
    assert str(no_topic(["zzz"], known)) == "there is no topic 'zzz'"
    # Whoever sends a name of megabytes does not get it back, nor compared with all there are.
    assert len(str(no_topic(["x" * 2_000_000, *["y"] * 10_000], known))) < 1_000
    assert str(no_partition("orders", 3, 7, 9)) == "orders has partitions 0 to 2, not 7, 9"
    assert str(no_partition("orders", 1, 7)) == "orders has only partition 0, not 7"


def test_an_offset_out_of_range_names_the_range() -> None:
    error = OffsetOutOfRange(7, log_start=10, log_end=20)
    assert (error.offset, error.log_start, error.log_end) == (7, 10, 20)
    assert str(error) == "offset 7 is outside the log [10, 20)"
