"""Keeps a broker's own copy of the cluster's metadata, in every data folder.

After orders, and now and then, it looks who the store is. When the store has changed since the last
copy, or an order changed what this broker knows of its replicas, a new copy is written off the loop
and replaces the old one atomically. A store that is not believed never gets into a copy.
The copy is what `tailrace cluster recover` rebuilds a lost store from; its witness is what the next
start of this broker knows the right store by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tailrace.clock import Clock
from tailrace.errors import CorruptCheckpoint, StoreUnavailable, TailraceError
from tailrace.log.checkpoints import META_PROPERTIES, read_or_none, write_atomically
from tailrace.log.files import Files
from tailrace.meta.copies import (
    COPY_BYTES_MAX,
    FILE_NAME,
    FORMER_NAME,
    WITNESS_NAME,
    CopiedEntry,
    MetadataCopy,
    ReplicaOrderRecord,
    StoredMetadata,
    decode_copy,
    encode_copy,
)
from tailrace.meta.keys import ROOT, Kind, is_ours, place_of
from tailrace.meta.lineage import Witness
from tailrace.meta.verified import LOOK_INTERVAL_MS, VerifiedStore
from tailrace.model import TopicPartition
from tailrace.runtime import Blocking

# What comes within so long goes into one copy.
GATHER_MS: Final = 200
# A copy that took long is followed by a pause of so many times that: it must not become a load. The
# witness is a small file of its own, and is written without such a pause.
PAUSE_FACTOR: Final = 20
PAUSE_MAX_MS: Final = 10_000


def read_folders(
    files: Files, folders: Sequence[str], say: Callable[[str], None]
) -> tuple[Witness | None, StoredMetadata]:
    """Return what the data folders know of the cluster: its witness, and the newest copy.

    None: the folders belong to no cluster yet. A copy that cannot be read is not used.
    """
    cluster_id, newest = "", StoredMetadata()
    for folder in folders:
        try:
            meta = read_or_none(files, f"{folder}/{META_PROPERTIES.file_name}", META_PROPERTIES)
        except (CorruptCheckpoint, OSError):
            # Opening the folder tells what is wrong with it.
            meta = None
        cluster_id = cluster_id or ("" if meta is None else meta.cluster_id)
    for folder in folders:
        found = _read_copy(files, f"{folder}/{FILE_NAME}", say)
        is_first = newest.copy is None and not newest.orders
        if _age(found) > _age(newest) or is_first:
            newest = found
    witnesses = [_read_copy(files, f"{folder}/{WITNESS_NAME}", say) for folder in folders]
    if not cluster_id and newest.copy is not None:
        # The file that says so is gone or cannot be read; the copy knows it as well.
        cluster_id = newest.copy.witness.cluster_id
    if not cluster_id:
        return None, StoredMetadata()
    if newest.copy is not None and newest.copy.witness.cluster_id != cluster_id:
        say(f"the copy of the metadata is of cluster {newest.copy.witness.cluster_id}: not used")
        newest = StoredMetadata()
    known = [
        each.copy.witness
        for each in (newest, *witnesses)
        if each.copy is not None and each.copy.witness.cluster_id == cluster_id
    ]
    latest = max(known, key=lambda it: (it.generation, it.revision), default=None)
    return latest or Witness(cluster_id=cluster_id), newest


class MetadataCopier:
    """Writes the copy of one broker. `stored` is what it has written last, or found."""

    def __init__(
        self,
        store: VerifiedStore,
        files: Files,
        *,
        folders: Callable[[], list[str]],
        orders: Callable[[], Mapping[TopicPartition, ReplicaOrderRecord]],
        holds: Callable[[TopicPartition], bool],
        found: StoredMetadata,
        clock: Clock,
        blocking: Blocking,
        say: Callable[[str], None],
    ) -> None:
        """`folders`: those that are used now. `orders`: what is known of hosted replicas.

        `holds`: whether there is a log of a partition.
        """
        self._store = store
        self._files = files
        self._folders = folders
        self._orders = orders
        self._holds = holds
        self._clock = clock
        self._blocking = blocking
        self._say = say
        self._failure = ""
        self._ordered = asyncio.Event()
        # What the file of the witness says.
        self._noted: Witness | None = None
        # What is on disk stays as it is from now on.
        self._is_ending = False
        self.stored = found

    async def run(self) -> None:
        """Keep the witness up to date, and the copy as far as that is no load."""
        next_ms = self._clock.monotonic_ms()
        while True:
            try:
                await self.note_witness()
                began_ms = self._clock.monotonic_ms()
                if began_ms >= next_ms:
                    await self.copy()
                    now_ms = self._clock.monotonic_ms()
                    next_ms = now_ms + min(PAUSE_FACTOR * (now_ms - began_ms), PAUSE_MAX_MS)
                self._failure = ""
            except (TailraceError, OSError) as error:
                if self._failure != str(error):
                    self._failure = str(error)
                    self._say(f"the copy of the metadata is not written: {error}")
            await asyncio.sleep(GATHER_MS / 1_000)
            try:
                async with asyncio.timeout(LOOK_INTERVAL_MS / 1_000):
                    await self._ordered.wait()
            except TimeoutError:
                pass
            self._ordered.clear()

    def ordered(self) -> None:
        """An order has come, so the store has something new: it is copied soon."""
        self._ordered.set()

    def current(self) -> StoredMetadata:
        """What is known in this moment: the last copy, and the newest orders."""
        # Orders of before this start count as long as their logs are here.
        former = {each: told for each, told in self.stored.orders.items() if self._holds(each)}
        return StoredMetadata(copy=self.stored.copy, orders={**former, **self._orders()})

    async def note_witness(self) -> None:
        """Write down who the store is, so that the next start tells it from an older one."""
        try:
            witness = await self._store.look()
        except StoreUnavailable:
            return
        if witness is None or witness == self._noted or self._is_ending:
            return
        alone = MetadataCopy(
            witness=witness, revision=witness.revision, taken_ms=self._clock.wall_ms(), entries=()
        )
        data = encode_copy(StoredMetadata(copy=alone))
        await self._blocking.run(lambda: self._write(data, WITNESS_NAME))
        self._noted = witness

    async def copy(self) -> None:
        """Write a new copy if there is anything new to write."""
        copy = self.stored.copy
        # Without the store, what orders told is worth keeping all the same.
        with suppress(StoreUnavailable):
            copy = await self._copied(copy)
        fresh = replace(self.current(), copy=copy)
        if fresh != self.stored and not self._is_ending:
            data = await self._blocking.run(lambda: encode_copy(fresh))
            await self._blocking.run(lambda: self._write(data))
            self.stored = fresh

    async def forget_witness(self) -> None:
        """Have the next start believe the store that answers then, if it is of this cluster.

        The copy that was newer stays beside the one that follows: it may be the only one.
        """
        self._is_ending = True
        former, fresh = encode_copy(self.stored), replace(self.stored, copy=None)
        try:
            await self._blocking.run(lambda: self._write(former, FORMER_NAME))
            await self._blocking.run(lambda: self._write(encode_copy(fresh)))
            await self._blocking.run(lambda: self._write(encode_copy(fresh), WITNESS_NAME))
            self.stored = fresh
        except OSError as error:
            self._say(f"the copy of the metadata is not written: {error}")

    async def _copied(self, last: MetadataCopy | None) -> MetadataCopy | None:
        witness = await self._store.look()
        if witness is None:
            return last
        if last is not None and last.witness == witness:
            return last
        if last is not None and last.revision == witness.revision:
            return replace(last, witness=witness)
        snapshot = await self._store.snapshot(ROOT)
        entries = tuple(
            CopiedEntry(each.key, each.value, each.create_revision, each.mod_revision)
            for each in snapshot.entries
            if _is_kept(each.key)
        )
        return MetadataCopy(
            witness=witness,
            revision=snapshot.revision,
            taken_ms=self._clock.wall_ms(),
            entries=entries,
        )

    def _write(self, data: bytes, name: str = FILE_NAME) -> None:
        for folder in self._folders():
            write_atomically(self._files, f"{folder}/{name}", data, durable=True)


def _is_kept(key: str) -> bool:
    place = place_of(key)
    return is_ours(key) and (place is None or place.kind is not Kind.HISTORY)


def _age(stored: StoredMetadata) -> tuple[int, int]:
    copy = stored.copy
    return (-1, -1) if copy is None else (copy.witness.generation, copy.revision)


def _read_copy(files: Files, path: str, say: Callable[[str], None]) -> StoredMetadata:
    try:
        size = files.size(path)
        return decode_copy(files.read(path) if size <= COPY_BYTES_MAX else b"", where=path)
    except FileNotFoundError:
        return StoredMetadata()
    except (CorruptCheckpoint, OSError) as error:
        say(f"the copy of the metadata is not used: {error}")
        return StoredMetadata()
