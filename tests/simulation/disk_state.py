"""What a disk knows: for each file and folder what calls see, and what a power loss leaves of it.

The model is meaner than most real disks, but never meaner than the promises of the Files port:

- A file has the bytes that calls see (the page cache) and those that are durable; between the two
  stands the list of changes since the last sync. A sync applies the list to the durable bytes.
- After a power loss each sector is, on its own, as it was after some number of the changes that
  touched it, and the size is any that the file had since the last sync. What was never written
  reads as zeros.
- A sync that fails throws the list away: calls still see the bytes, but no later sync saves them
  (Linux marks such pages clean). Only writing them again does.
- Changes of names wait in one journal. Syncing a folder makes its own durable, not those of the
  folders above or below. After a power loss each folder keeps a prefix of its changes; a move
  between two folders is there as a whole or not at all.

This module decides nothing but fates: errors, faults and handles are those of `simulation.storage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

SECTOR_BYTES = 512

Change = tuple[int, bytes | None]
"""Either (position, bytes) of a write or (size, None) of a truncate."""


class FileNode:
    """The file itself; names and handles refer to it."""

    __slots__ = ("changes", "data", "durable", "handles", "linked")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.changes: list[Change] = []
        self.handles = 0
        self.linked = True

    def change(self, change: Change) -> None:
        _apply(self.data, change)
        self.changes.append(change)

    def sync(self) -> None:
        for change in self.changes:
            _apply(self.durable, change)
        self.changes.clear()

    def fail_sync(self) -> None:
        self.changes.clear()

    def lose_power(self, rng: Random) -> None:
        if self.changes:
            fate = rng.random()
            if fate < 0.2:
                self.changes.clear()
            elif fate < 0.4:
                # A prefix in order.
                del self.changes[rng.randint(1, len(self.changes)) :]
            elif fate < 0.8:
                self.durable = _torn(self.durable, self.changes, rng)
                self.changes.clear()
            self.sync()
        if self.data != self.durable:
            self.data = bytearray(self.durable)

    def flip(self, position: int, mask: int) -> None:
        """Wherever this byte is: seen, waiting, durable."""
        self.data[position] ^= mask
        if position < len(self.durable):
            self.durable[position] ^= mask
        for index, (start, chunk) in enumerate(self.changes):
            if chunk is not None and start <= position < start + len(chunk):
                flipped = bytearray(chunk)
                flipped[position - start] ^= mask
                self.changes[index] = (start, bytes(flipped))

    def cut(self, size: int) -> None:
        """No byte from here on: not seen, not waiting, not durable."""
        del self.data[size:]
        del self.durable[size:]
        self.changes = [
            (min(at, size), None) if chunk is None else (at, chunk[: size - at])
            for at, chunk in self.changes
            if chunk is None or at < size
        ]


class Folder:
    __slots__ = ("durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = FileNode | Folder

NameStep = tuple[Folder, str, Node | None]
"""This name in this folder now stands for this node, or for nothing."""

NameChange = tuple[NameStep, ...]
"""Steps that happen together or not at all."""


class NameJournal:
    """The changes of names that are not durable yet, in the order they were made."""

    __slots__ = ("_changes",)

    def __init__(self) -> None:
        self._changes: list[NameChange] = []

    def change(self, *steps: NameStep) -> None:
        for folder, name, node in steps:
            _set_name(folder.entries, name, node)
        self._changes.append(steps)

    def sync(self, folder: Folder) -> None:
        """A change needs all that came before it in its folders, and a move has two of them."""
        folder_ids = {id(folder)}
        waiting: list[NameChange] = []
        durable: list[NameChange] = []
        for change in reversed(self._changes):
            if any(id(step[0]) in folder_ids for step in change):
                folder_ids.update(id(step[0]) for step in change)
                durable.append(change)
            else:
                waiting.append(change)
        for change in reversed(durable):
            _make_durable(change)
        self._changes = waiting[::-1]

    def lose_power(self, rng: Random) -> None:
        # Dicts, not sets: the order of the draws must not depend on addresses.
        kept: dict[int, int] = {}
        for change in self._changes:
            for folder_id in {id(step[0]): None for step in change}:
                kept[folder_id] = kept.get(folder_id, 0) + 1
        for folder_id, count in kept.items():
            kept[folder_id] = rng.randint(0, count)
        for change in self._changes:
            folder_ids = {id(step[0]) for step in change}
            if all(kept[folder_id] > 0 for folder_id in folder_ids):
                _make_durable(change)
                for folder_id in folder_ids:
                    kept[folder_id] -= 1
            else:
                # What comes after a lost change in the same folder is lost too.
                kept.update(dict.fromkeys(folder_ids, 0))
        self._changes = []


def forget_volatile_names(folder: Folder) -> None:
    folder.entries = dict(folder.durable)
    for node in folder.entries.values():
        if isinstance(node, Folder):
            forget_volatile_names(node)
        else:
            # It may have been removed in what is now forgotten.
            node.linked = True


def files_below(folder: Folder) -> Iterator[FileNode]:
    for node in folder.entries.values():
        if isinstance(node, Folder):
            yield from files_below(node)
        else:
            yield node


def is_below(folder: Folder, node: Folder) -> bool:
    """Whether `node` is `folder` or anywhere in it."""
    return node is folder or any(
        is_below(child, node) for child in folder.entries.values() if isinstance(child, Folder)
    )


def _apply(data: bytearray, change: Change) -> None:
    at, chunk = change
    size = len(data)
    if at > size:
        data.extend(bytes(at - size))
    if chunk is None:
        del data[at:]
    else:
        data[at : at + len(chunk)] = chunk


def _torn(durable: bytearray, changes: Sequence[Change], rng: Random) -> bytearray:
    """Each touched sector after some number of the changes that touched it; any size of these."""
    touched: dict[int, list[Change]] = {}
    sizes = [len(durable)]
    for at, chunk in changes:
        size = sizes[-1]
        end = size if chunk is None else at + len(chunk)
        sizes.append(at if chunk is None else max(size, end))
        for sector in range(at // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            touched.setdefault(sector, []).append((at, chunk))
    image_bytes = -(-max(sizes) // SECTOR_BYTES) * SECTOR_BYTES
    image = durable + bytes(image_bytes - len(durable))
    keep_probability = rng.random()
    for sector, sector_changes in touched.items():
        count = len(sector_changes)
        kept = count if rng.random() < keep_probability else rng.randrange(count)
        for change in sector_changes[:kept]:
            _apply_to_sector(image, sector * SECTOR_BYTES, change)
    del image[rng.choice(sizes) :]
    return image


def _apply_to_sector(image: bytearray, start: int, change: Change) -> None:
    at, chunk = change
    first = max(at, start)
    end = start + SECTOR_BYTES
    if chunk is None:
        image[first:end] = bytes(end - first)
    else:
        end = min(end, at + len(chunk))
        image[first:end] = chunk[first - at : end - at]


def _set_name(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _make_durable(change: NameChange) -> None:
    for folder, name, node in change:
        _set_name(folder.durable, name, node)
