"""Which store answers: the one that this process knows, one that went back, or another.

A process remembers a `Witness`: what the store said of itself when it was last believed. A store is
believed when it continues that witness: same cluster, same store id (or a rebuilt store that names
ours as its predecessor), no lower revision, controller epoch or stamp, and the same terms. A term
carries a random token. So a store that was put back from an older copy is told apart even after new
terms have raised its revision and its epoch above what the witness saw.

The revision alone shows little: leases that end raise it in an older copy, too. The stamp is raised
by active controllers only, within a second or so of any change, and a term says with which stamp it
began. One case is left: a store that lost only what happened since its last stamp, and in which
others wrote past the revision of the witness. Leader epochs show it then: a log is newer than its
order.

This module is pure. It owns no connection; `tailrace.meta.verified` reads and asks it.
Enter at `judge`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from tailrace.errors import CorruptCheckpoint
from tailrace.meta.keys import (
    CLUSTER,
    STAMP,
    TERMS,
    ClusterRecord,
    TermRecord,
    decode,
    decode_counter,
)
from tailrace.meta.store import Snapshot

# Terms that a store keeps. A witness from before the oldest of them is judged by its numbers alone.
TERMS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What a store said of itself when it was last believed.

    `controller_epoch` and `token` are those of the newest term at `revision`.
    """

    cluster_id: str
    store_id: str = ""
    generation: int = 0
    revision: int = 0
    controller_epoch: int = 0
    token: str = ""
    stamp: int = 0


class Standing(Enum):
    """What a look at the store came to."""

    UNFOUNDED = "no cluster was ever founded in this store"
    CONTINUES = "the store continues what is known of it"
    REPLACED = "the store was rebuilt, and succeeds the one that was known"
    EMPTY = "the store is empty"
    OTHER = "the store is another one"
    OLDER = "the store went back"
    RECOVERING = "the store is being rebuilt"
    UNREADABLE = "the store does not say what it is"

    @property
    def is_believed(self) -> bool:
        return self in {Standing.UNFOUNDED, Standing.CONTINUES, Standing.REPLACED}


class Judgement(NamedTuple):
    """`problem`: why the store is not believed; empty when it is. `witness`: what it says now."""

    standing: Standing
    witness: Witness | None = None
    problem: str = ""


def judge(witness: Witness | None, seen: Snapshot, *, floor: int = 0) -> Judgement:
    """Judge the store by a linearizable read of all keys below CLUSTER.

    `floor`: the highest revision that any answer had before this read.
    """
    try:
        record, terms, stamp = _read(seen)
    except CorruptCheckpoint as error:
        return Judgement(Standing.UNREADABLE, problem=str(error))
    if record is None:
        if witness is None:
            return Judgement(Standing.UNFOUNDED)
        why = f"the store is empty: it knows no cluster, and this is {witness.cluster_id}"
        return Judgement(Standing.EMPTY, problem=why)
    if record.recovering:
        return Judgement(
            Standing.RECOVERING, problem=f"the store is being rebuilt: {record.recovering}"
        )
    newest = max(terms, default=0)
    now = Witness(
        cluster_id=record.cluster_id,
        store_id=record.store_id,
        generation=record.generation,
        revision=seen.revision,
        controller_epoch=newest,
        token=terms[newest].token if newest else "",
        stamp=stamp,
    )
    if witness is None:
        return Judgement(Standing.CONTINUES, now)
    found = _compare(witness, now, record, terms)
    if found.standing is Standing.CONTINUES and seen.revision < floor:
        why = f"it is at revision {seen.revision}, and was at {floor}"
        return Judgement(Standing.OLDER, problem=f"the store went back: {why}")
    return found


class _Term(NamedTuple):
    token: str
    revision: int
    stamp: int


def _read(seen: Snapshot) -> tuple[ClusterRecord | None, dict[int, _Term], int]:
    record, terms, stamp = None, {}, 0
    for entry in seen.entries:
        if entry.key == CLUSTER:
            record = decode(ClusterRecord, entry.value, key=CLUSTER)
        elif entry.key == STAMP:
            stamp = decode_counter(entry.value, key=STAMP)
        elif entry.key.startswith(TERMS) and entry.key[len(TERMS) :].isdecimal():
            term = decode(TermRecord, entry.value, key=entry.key)
            terms[int(entry.key[len(TERMS) :])] = _Term(
                term.token, entry.create_revision, term.stamp
            )
    return record, terms, stamp


def _compare(
    known: Witness, now: Witness, record: ClusterRecord, terms: dict[int, _Term]
) -> Judgement:
    is_successor = known.store_id in record.former and now.generation > known.generation
    if known.store_id and is_successor:
        # Of another cluster too: what a controller founded in an empty store is succeeded as well.
        return Judgement(Standing.REPLACED, now)
    if now.cluster_id != known.cluster_id:
        why = f"the store belongs to cluster {now.cluster_id}, and this is {known.cluster_id}"
        return Judgement(Standing.OTHER, problem=why)
    if known.store_id and now.store_id != known.store_id:
        why = (
            f"the store is {now.store_id or 'one without an id'} (generation {now.generation}), "
            f"which does not succeed the known one, {known.store_id} "
            f"(generation {known.generation})"
        )
        return Judgement(Standing.OTHER, problem=why)
    why = _went_back(known, now, terms)
    if why:
        return Judgement(Standing.OLDER, problem=f"the store went back: {why}")
    return Judgement(Standing.CONTINUES, now)


def _went_back(known: Witness, now: Witness, terms: dict[int, _Term]) -> str:
    """Say what shows that the store is older than the witness, or a branch of something older."""
    if now.revision < known.revision:
        return f"it is at revision {now.revision}, and was at {known.revision}"
    if now.controller_epoch < known.controller_epoch:
        return f"its newest term is {now.controller_epoch}, and was {known.controller_epoch}"
    if now.stamp < known.stamp:
        return f"its stamp is {now.stamp}, and was {known.stamp}"
    if not known.token:
        return ""
    term = terms.get(known.controller_epoch)
    if term is None and min(terms) < known.controller_epoch:
        return f"it does not know term {known.controller_epoch} any more"
    if term is not None and term.token != known.token:
        return f"its term {known.controller_epoch} is not the one that was known"
    after = terms.get(known.controller_epoch + 1)
    if after is None:
        return ""
    began = f"its term {known.controller_epoch + 1} began at"
    lasted = f"and term {known.controller_epoch} lasted until"
    if after.revision <= known.revision:
        return f"{began} revision {after.revision}, {lasted} {known.revision} at least"
    if 0 < after.stamp <= known.stamp:
        return f"{began} stamp {after.stamp}, {lasted} {known.stamp} at least"
    return ""
