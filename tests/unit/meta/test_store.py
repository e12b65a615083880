"""What no etcd would take is refused before it is sent."""

from __future__ import annotations

import pytest

from tailrace.errors import InvariantViolation
from tailrace.meta.store import (
    TXN_BYTES_MAX,
    TXN_OPERATIONS_MAX,
    CreatedAt,
    Delete,
    ModifiedAt,
    Put,
    check_txn,
)


def test_a_transaction_up_to_the_limits() -> None:
    check_txn([], [])
    check_txn(
        [CreatedAt(f"/{number}", 0) for number in range(TXN_OPERATIONS_MAX)],
        [Delete(f"/{number}") for number in range(TXN_OPERATIONS_MAX)],
    )
    check_txn([ModifiedAt("/a", 1), CreatedAt("/a", 1)], [Put("/a", bytes(TXN_BYTES_MAX - 6))])


def test_too_many_guards() -> None:
    guards = [CreatedAt(f"/{number}", 0) for number in range(TXN_OPERATIONS_MAX + 1)]
    with pytest.raises(InvariantViolation, match="129 guards"):
        check_txn(guards, [])


def test_too_many_operations() -> None:
    operations = [Delete(f"/{number}") for number in range(TXN_OPERATIONS_MAX + 1)]
    with pytest.raises(InvariantViolation, match="129 operations"):
        check_txn([], operations)


def test_too_many_bytes() -> None:
    with pytest.raises(InvariantViolation, match="bytes"):
        check_txn([], [Put("/a", bytes(TXN_BYTES_MAX))])


def test_one_key_twice() -> None:
    with pytest.raises(InvariantViolation, match="/a: written twice"):
        check_txn([], [Put("/a", b""), Put("/b", b""), Delete("/a")])
