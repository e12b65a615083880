"""The MetadataStore port: what Tailrace asks of etcd, and nothing more.

Revisions are those of etcd: one counter for the whole store; a key has the revision that made it
(`create_revision`) and the one that changed it last (`mod_revision`); a key that is not there has
0 for both. Reads are linearizable. A transaction happens whole or not at all.

Errors: StoreUnavailable (the outcome of a transaction is then *not known*: read before acting on
it), LeaseLost. Nothing else is raised but cancellation.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from tailrace.errors import InvariantViolation

# What an etcd with default settings takes in one transaction, guards and operations each.
TXN_OPERATIONS_MAX: Final = 128
TXN_BYTES_MAX: Final = 1_500_000
LEASE_TTL_UNIT_MS: Final = 1_000


class Entry(NamedTuple):
    """One key with its value and revisions; `lease` is 0 when it has none."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int


class Snapshot(NamedTuple):
    """All keys below a prefix, sorted, as of one revision of the store."""

    revision: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class CreatedAt:
    """Guard: the key was made by this revision; 0: it is not there."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class ModifiedAt:
    """Guard: the key was last changed by this revision; 0: it is not there."""

    key: str
    revision: int


Guard: TypeAlias = CreatedAt | ModifiedAt


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


Operation: TypeAlias = Put | Delete


class TxnResult(NamedTuple):
    """Whether the guards held (and the operations were done), and the store's revision then."""

    succeeded: bool
    revision: int


class Change(NamedTuple):
    """One change of a key; `entry` is None when it was deleted (or its lease ended)."""

    key: str
    entry: Entry | None
    revision: int


class WatchBatch(NamedTuple):
    """Changes in the order of their revisions, and no revision in part.

    `revision`: every change up to it has now been given, so a new watch begins at the next one.
    `compacted`: some were missed; the watch ends here: take a snapshot and watch from there.
    """

    revision: int
    changes: tuple[Change, ...]
    compacted: bool = False


class MetadataStore(Protocol):
    """One connection to the store. Every call has a deadline of its own (`StoreUnavailable`)."""

    async def get(self, key: str) -> Entry | None: ...

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        """Several keys as of one revision, in one request; TXN_OPERATIONS_MAX at most."""

    async def snapshot(self, prefix: str) -> Snapshot: ...

    async def txn(self, guards: Sequence[Guard], operations: Sequence[Operation]) -> TxnResult:
        """Do all operations if all guards hold, else none. LeaseLost: a put's lease is gone."""

    def watch(self, prefix: str, *, from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """All changes from a revision on: `snapshot.revision + 1` goes on after a snapshot.

        Ends with StoreUnavailable (begin again after the last revision given) or after a batch
        that says `compacted`. Close it (`contextlib.aclosing`) when it is left before its end.
        """

    async def grant_lease(self, ttl_ms: int) -> int:
        """A new lease id. Rounded up to whole seconds; the store has a shortest TTL of its own."""

    async def keep_alive(self, lease: int) -> int:
        """Renew once; the ms that it now has. LeaseLost when it is gone."""

    async def revoke_lease(self, lease: int) -> None:
        """End a lease and all keys under it; fine when it is gone already."""

    async def close(self) -> None: ...


def check_keys(keys: Sequence[str]) -> None:
    """InvariantViolation for more keys than one request may ask for."""
    if len(keys) > TXN_OPERATIONS_MAX:
        raise InvariantViolation(
            f"{len(keys)} keys are more than a request's limit of {TXN_OPERATIONS_MAX}"
        )


def check_txn(guards: Sequence[Guard], operations: Sequence[Operation]) -> None:
    """InvariantViolation for a transaction that no etcd would take: it is our own bug."""
    for what, number in (("guards", len(guards)), ("operations", len(operations))):
        if number > TXN_OPERATIONS_MAX:
            raise InvariantViolation(
                f"{number} {what} are more than a transaction's limit of {TXN_OPERATIONS_MAX}"
            )
    size_bytes = sum(len(each.key) for each in guards)
    keys: set[str] = set()
    for operation in operations:
        if operation.key in keys:
            raise InvariantViolation(f"{operation.key}: written twice in one transaction")
        keys.add(operation.key)
        size_bytes += len(operation.key)
        size_bytes += len(operation.value) if isinstance(operation, Put) else 0
    if size_bytes > TXN_BYTES_MAX:
        raise InvariantViolation(
            f"{size_bytes} bytes are more than a transaction's limit of {TXN_BYTES_MAX}"
        )
