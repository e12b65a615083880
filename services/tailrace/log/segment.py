"""One segment of a partition log: a data file of batches and its sparse indexes.

A segment knows nothing of leaders, producers or retention. It is written by one thread (the owner
of its log); reads of what `locate` found may run in any thread, because written bytes never change.

Memory: the index of the active segment is kept by the segment, those of all others in an
`IndexCache` with a limit in bytes. Descriptors: every access goes through the `FileCache`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from tailrace.errors import BatchFault, CorruptBatch, CorruptCheckpoint
from tailrace.log.checkpoints import write_atomically
from tailrace.log.file_cache import FileCache
from tailrace.log.files import Buffer, Files
from tailrace.log.index import NOT_COVERED, TIME_ENTRY_BYTES, SegmentIndex
from tailrace.model import NO_TIMESTAMP_MS
from tailrace.record.header import HEADER_BYTES, BatchHeader, read_header, verify

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
# Follows the name of a data file that is given up and only waits for its removal.
REMOVED_SUFFIX: Final = ".removed"

# A header walk reads this much at a time: many small batches, or the head of a large one.
WALK_CHUNK_BYTES: Final = 64 * 1024
# A verifying scan reads whole batches; a batch larger than this is read in one piece of its own.
SCAN_CHUNK_BYTES: Final = 1024 * 1024
# The index of an active segment is saved again when it has grown by this many entries, so that
# recovery after a crash does not have to walk the whole segment.
INDEX_SAVE_ENTRIES: Final = 65_536
# By how many entries an index may exceed one for each of the smallest possible batches.
INDEX_SLACK_ENTRIES: Final = 64
# How many places of batches a segment remembers from reads: a few readers, two places each.
EDGES_MAX: Final = 16


class IndexCache:
    """The indexes of segments that are no longer written, least recently used first to go."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        # With each the bytes that it was counted with.
        self._by_path: OrderedDict[str, tuple[SegmentIndex, int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def memory_bytes(self) -> int:
        return self._bytes

    def get(self, path: str) -> SegmentIndex | None:
        with self._lock:
            entry = self._by_path.get(path)
            if entry is None:
                return None
            self._by_path.move_to_end(path)
            return entry[0]

    def put(self, path: str, index: SegmentIndex) -> None:
        with self._lock:
            self._discard(path)
            self._by_path[path] = index, index.memory_bytes
            self._bytes += index.memory_bytes
            while self._bytes > self._bytes_max and len(self._by_path) > 1:
                self._discard(next(iter(self._by_path)))

    def drop(self, path: str) -> None:
        with self._lock:
            self._discard(path)

    def _discard(self, path: str) -> None:
        entry = self._by_path.pop(path, None)
        if entry is not None:
            self._bytes -= entry[1]


@dataclass(frozen=True, slots=True)
class Storage:
    """What the logs of one process share: the file system and the bounded caches over it."""

    files: Files
    cache: FileCache
    indexes: IndexCache
    # For the folders of logs with a failed sync, what was durable then; see `flushing`.
    failed_syncs: dict[str, int] = field(default_factory=dict)
    # Gives each file that a compaction writes a name of its own.
    cleaned_numbers: Iterator[int] = field(default_factory=count)
    # Tells the segments of one name apart.
    segment_numbers: Iterator[int] = field(default_factory=count)


class Slice(NamedTuple):
    """Whole batches that stand together in one file: their place, first and following offset."""

    path: str
    position: int
    size: int
    base_offset: int
    next_offset: int


def segment_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


def index_bytes_max(segment_bytes: int) -> int:
    """No index of a segment of this size is larger: whatever is, is not read."""
    return (segment_bytes // HEADER_BYTES + INDEX_SLACK_ENTRIES) * TIME_ENTRY_BYTES


class Segment:
    """One data file with its indexes; `next_offset` and `size` say where the next batch goes."""

    __slots__ = (
        "_bytes_since_entry",
        "_created_ms",
        "_edges",
        "_index",
        "_index_interval_bytes",
        "_index_key",
        "_max_timestamp_ms",
        "_saved_entries",
        "_storage",
        "base_offset",
        "folder",
        "next_offset",
        "path",
        "size",
    )

    def __init__(
        self,
        storage: Storage,
        folder: str,
        base_offset: int,
        *,
        next_offset: int,
        size: int,
        index_interval_bytes: int,
        index: SegmentIndex | None = None,
    ) -> None:
        self._storage = storage
        self._index = index
        self._index_interval_bytes = index_interval_bytes
        # A large value, so that the first batch after opening gets an entry.
        self._bytes_since_entry = index_interval_bytes
        self._max_timestamp_ms = index.max_timestamp_ms if index is not None else None
        self._created_ms: int | None = None
        self._saved_entries = 0
        # Offset → position of batches that reads began or ended at: the next read mostly begins
        # where one ended, and need not walk there from the index entry below.
        self._edges: dict[int, int] = {}
        self.folder = folder
        self.base_offset = base_offset
        self.path = f"{folder}/{segment_name(base_offset, LOG_SUFFIX)}"
        # Not by its path alone: a thread that still reads a segment which was replaced must not
        # leave the old index behind for the new one.
        self._index_key = f"{self.path} {next(storage.segment_numbers)}"
        self.next_offset = next_offset
        self.size = size

    @classmethod
    def create(
        cls, storage: Storage, folder: str, base_offset: int, *, index_interval_bytes: int
    ) -> Segment:
        """Start an empty segment; whatever had its name before is cut to nothing."""
        segment = cls(
            storage,
            folder,
            base_offset,
            next_offset=base_offset,
            size=0,
            index_interval_bytes=index_interval_bytes,
            index=SegmentIndex(),
        )
        segment.forget()
        segment.remove_index_files()
        with storage.cache.use(segment.path, create=True) as file:
            file.truncate(0)
        return segment

    @property
    def index(self) -> SegmentIndex:
        """The index, from memory, from the cache, from its files, or rebuilt from the batches."""
        if self._index is not None:
            return self._index
        index = self._storage.indexes.get(self._index_key)
        if index is None:
            index = self.load_index()
            if index is None or index.covered_bytes != self.size:
                index = self.rebuild_index()
            self._storage.indexes.put(self._index_key, index)
        return index

    @property
    def max_timestamp_ms(self) -> int:
        if self._max_timestamp_ms is None:
            self._max_timestamp_ms = self.index.max_timestamp_ms
        return self._max_timestamp_ms

    @property
    def created_ms(self) -> int:
        """When it got its first batch by the broker's clock; remembered, the index need not be."""
        if self._index is not None:
            return self._index.created_ms
        if self._created_ms is None:
            self._created_ms = self.index.created_ms
        return self._created_ms

    @property
    def is_age_known(self) -> bool:
        """Whether the times of the segment can be told without reading a file."""
        return self._index is not None or None not in (self._created_ms, self._max_timestamp_ms)

    def learn_age(self) -> None:
        """Read what its times are, from any thread, so that others need not wait for that."""
        if not self.is_age_known:
            self._created_ms, self._max_timestamp_ms = self.created_ms, self.max_timestamp_ms

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Write the bytes of whole batches at the end; `added` must follow for each of them.

        A write that fails may leave any part of them behind: `undo_write`, or use it no more.
        """
        with self._storage.cache.use(self.path) as file:
            file.write_at(self.size, buffers)

    def undo_write(self) -> None:
        """Remove what a failed write left at the end; durable on return.

        Not durable, it could come back after a power loss: between what is written here next, or
        at the end of a segment that everybody takes for whole.
        """
        with self._storage.cache.use(self.path) as file:
            file.truncate(self.size)
            file.sync()

    def added(self, header: BatchHeader, *, now_ms: int = NO_TIMESTAMP_MS) -> None:
        """Take note of a batch whose bytes now stand at the end of the file."""
        index = self._index
        if index is None:
            index = self.hold_index()
        relative = header.base_offset - self.base_offset
        max_timestamp_ms = self.max_timestamp_ms
        if self._bytes_since_entry >= self._index_interval_bytes:
            index.add(relative, self.size)
            # Of what is below the entry, so that recovery can go on from it with the right time.
            if relative:
                index.add_time(max_timestamp_ms, relative - 1)
            self._bytes_since_entry = 0
        if header.max_timestamp_ms > max_timestamp_ms:
            self._max_timestamp_ms = header.max_timestamp_ms
        self._bytes_since_entry += header.length
        self.size += header.length
        self.next_offset = header.base_offset + header.last_offset_delta + 1
        if now_ms != NO_TIMESTAMP_MS:
            if index.created_ms == NO_TIMESTAMP_MS:
                index.created_ms = now_ms
            index.appended_ms = now_ms

    def resume_at(self, offset: int) -> int:
        """Forget what is known from the batch that holds `offset` on; return its position.

        Recovery goes on from there with `scan` and `added`.
        """
        index = self.load_index() or SegmentIndex()
        relative, position = index.floor(max(offset - self.base_offset, 0))
        if position and not self._starts_at(position, self.base_offset + relative):
            index, relative, position = SegmentIndex(), 0, 0
        index.truncate_to(position=position, relative_offset=relative)
        self._storage.indexes.drop(self._index_key)
        self._index = index
        self._max_timestamp_ms = index.max_timestamp_ms
        self._bytes_since_entry = self._index_interval_bytes
        self._edges = {}
        self.size, self.next_offset = position, self.base_offset + relative
        return position

    def cut(self, *, again: bool = False) -> None:
        """Cut the file off where the known batches end; durable on return.

        `again`: a sync failed, so the file may be longer on the disk than it looks. Then it is
        lengthened first, because a cut that changes nothing would not be written.
        """
        self.remove_index_files()
        self._saved_entries = 0
        with self._storage.cache.use(self.path) as file:
            if again:
                file.truncate(self.size + 1)
            file.truncate(self.size)
            file.sync()

    def hold_index(self) -> SegmentIndex:
        """Keep the index in the segment itself, as an active segment must."""
        if self._index is None:
            self._index = self.index
            self._created_ms = None
            self._storage.indexes.drop(self._index_key)
        return self._index

    def release_index(self) -> None:
        """Hand the index to the shared cache: the segment is no longer written."""
        if self._index is not None:
            self._created_ms = self._index.created_ms
            self._storage.indexes.put(self._index_key, self._index)
            self._index = None

    def save_index(self, *, final: bool = False) -> None:
        """Write both index files; only when they have grown much, unless it is the last time.

        An index that the segment does not hold has not changed since its files were written.
        """
        index = self._index
        if index is None:
            return
        if not final and len(index.offsets) - self._saved_entries < INDEX_SAVE_ENTRIES:
            return
        if self.next_offset > self.base_offset:
            index.add_time(self.max_timestamp_ms, self.next_offset - 1 - self.base_offset)
        self._saved_entries = len(index.offsets)
        index.covered_bytes = self.size
        files = self._storage.files
        write_atomically(files, self._sibling(INDEX_SUFFIX), index.offset_bytes(), durable=False)
        write_atomically(files, self._sibling(TIME_INDEX_SUFFIX), index.time_bytes(), durable=False)

    def load_index(self) -> SegmentIndex | None:
        """The index as its files have it, or None when they are missing or damaged."""
        files = self._storage.files
        try:
            for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
                if files.size(self._sibling(suffix)) > index_bytes_max(self.size):
                    return None
            offset_data = files.read(self._sibling(INDEX_SUFFIX))
            time_data = files.read(self._sibling(TIME_INDEX_SUFFIX))
            index = SegmentIndex.decode(offset_data, time_data, segment_bytes=max(self.size, 1))
        except (FileNotFoundError, CorruptCheckpoint):
            return None
        return index if index.covered_bytes != NOT_COVERED else None

    def rebuild_index(self) -> SegmentIndex:
        """Walk the batch headers and index them anew."""
        twin = Segment(
            self._storage,
            self.folder,
            self.base_offset,
            next_offset=self.base_offset,
            size=0,
            index_interval_bytes=self._index_interval_bytes,
            index=SegmentIndex(),
        )
        for _, header in self.walk(0):
            twin.added(header)
        index = twin.hold_index()
        if twin.next_offset > twin.base_offset:
            index.add_time(twin.max_timestamp_ms, twin.next_offset - 1 - twin.base_offset)
        return index

    def walk(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """The header of every batch from `position` on; bodies are passed over unread."""
        size = self.size
        with self._storage.cache.use(self.path) as file:
            start, chunk, chunk_bytes = position, b"", WALK_CHUNK_BYTES
            while position < size:
                at = position - start
                if at + HEADER_BYTES > len(chunk):
                    start, chunk, at = position, file.read_at(position, chunk_bytes), 0
                header = read_header(chunk, at)
                if position + header.length > size:
                    raise CorruptBatch(BatchFault.CUT_SHORT, f"{self.path} at {position}")
                yield position, header
                position += header.length
                # Of batches larger than a chunk only the headers are of use.
                is_large = header.length >= WALK_CHUNK_BYTES
                chunk_bytes = HEADER_BYTES if is_large else WALK_CHUNK_BYTES

    def scan(
        self, position: int, size: int, *, given_up: int = 0
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of every batch from `position` up to `size`, checksums verified.

        Of batches that lie wholly below `given_up` only the headers have to be good.
        """
        last_bytes = SCAN_CHUNK_BYTES
        with self._storage.cache.use(self.path) as file:
            while position < size:
                # Batches tend to be of one size: read as many of the last one's as fit.
                chunk_bytes = last_bytes * max(SCAN_CHUNK_BYTES // last_bytes, 1)
                chunk = file.read_at(position, min(chunk_bytes, size - position))
                at = 0
                while len(chunk) - at >= HEADER_BYTES:
                    header = read_header(chunk, at)
                    if header.length > len(chunk) - at:
                        break
                    if header.next_offset > given_up:
                        verify(chunk, at, header)
                    yield position + at, header
                    last_bytes = header.length
                    at += last_bytes
                if at == 0:
                    # The batch is larger than a chunk, or cut short, which `verify` finds.
                    header = read_header(chunk, 0, available=size - position)
                    if header.next_offset > given_up or header.length > size - position:
                        verify(file.read_at(position, header.length), 0, header)
                    yield position, header
                    last_bytes = at = header.length
                position += at

    def position_of(self, offset: int) -> int:
        """Where the batch that holds `offset` starts; the end of the file above the last one."""
        return self._find(offset)[0]

    def batch_start(self, offset: int) -> int:
        """The base offset of the batch that holds `offset`."""
        return self._find(offset)[1]

    def _find(self, offset: int) -> tuple[int, int]:
        """Position and base offset of the batch that holds `offset`, or those of the next one."""
        if offset >= self.next_offset:
            return self.size, self.next_offset
        known = self._edges.get(offset)
        if known is not None:
            return known, offset
        relative = offset - self.base_offset
        found, position = self.index.floor(relative)
        if found == relative:
            return position, offset
        for at, header in self.walk(position):
            if header.next_offset > offset:
                return at, header.base_offset
        return self.size, self.next_offset

    def find(self, offset: int, *, up_to: int, bytes_max: int, min_one: bool) -> Slice | None:
        """As `locate`, None when no batch fits; the file must reach as far as the offset."""
        found = self.locate(offset, up_to=up_to, bytes_max=bytes_max, min_one=min_one)
        if found.size == 0 and found.position >= self.size:
            # Whoever took this for the end of the log would wait here for ever.
            raise CorruptBatch(BatchFault.CUT_SHORT, f"{self.path} ends before {offset}")
        return found if found.size else None

    def locate(self, offset: int, *, up_to: int, bytes_max: int, min_one: bool) -> Slice:
        """The whole batches from `offset` on and below `up_to` that fit into `bytes_max`."""
        start, base = self._find(offset)
        limit, limit_offset = self._find(up_to)
        if limit - start <= bytes_max:
            end, next_offset = max(limit, start), limit_offset
        else:
            end, next_offset = self.index.floor_position(start + bytes_max)
            next_offset += self.base_offset
            if end <= start:
                end, next_offset = self._walk_to(start, bytes_max, offset, min_one=min_one)
        if end > start:
            self._note_edges((base, start), (next_offset, end))
        return Slice(self.path, start, end - start, base, next_offset)

    def _walk_to(
        self, start: int, bytes_max: int, offset: int, *, min_one: bool
    ) -> tuple[int, int]:
        end, next_offset = start, offset
        for position, header in self.walk(start):
            after = position + header.length
            if after - start > bytes_max and not (min_one and end == start):
                break
            end, next_offset = after, header.next_offset
            if end - start >= bytes_max:
                break
        return end, next_offset

    def read(self, position: int, size: int) -> bytes:
        with self._storage.cache.use(self.path) as file:
            return file.read_at(position, size)

    def read_at_once(
        self, offset: int, *, up_to: int, bytes_max: int
    ) -> tuple[Slice, bytearray] | None:
        """Batches from where another reader ended, if nothing has to be waited for; else None.

        They may be fewer than `locate` finds; how many is only as exact as the index.
        """
        start = self._edges.get(offset)
        index = self._index or self._storage.indexes.get(self._index_key)
        if start is None or index is None:
            return None
        end, after = self.size, self.next_offset
        if up_to < after:
            relative, end = index.floor(up_to - self.base_offset)
            after = self.base_offset + relative
        if end - start > bytes_max:
            end, relative = index.floor_position(start + bytes_max)
            after = self.base_offset + relative
        if end <= start:
            return None
        with self._storage.cache.use(self.path) as file:
            data = file.read_at_once(start, end - start)
        if data is None:
            return None
        self._note_edges((offset, start), (after, end))
        return Slice(self.path, start, end - start, offset, after), data

    def _note_edges(self, *edges: tuple[int, int]) -> None:
        if len(self._edges) >= EDGES_MAX:
            self._edges = {}
        self._edges.update(edges)

    def truncate(self, offset: int) -> None:
        """Cut off the batch that holds `offset` and all after it; durable on return."""
        position = self.position_of(offset)
        index = self.hold_index()
        index.truncate_to(position=position, relative_offset=offset - self.base_offset)
        next_offset = self.base_offset
        max_timestamp_ms = index.max_timestamp_ms
        for at, header in self.walk(index.positions[-1] if index.positions else 0):
            if at >= position:
                break
            next_offset = header.next_offset
            max_timestamp_ms = max(max_timestamp_ms, header.max_timestamp_ms)
        self.size, self.next_offset = position, next_offset
        self._edges = {}
        self._max_timestamp_ms = max_timestamp_ms
        self._bytes_since_entry = self._index_interval_bytes
        self.cut()

    def remove_index_files(self) -> None:
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            if self._storage.files.exists(self._sibling(suffix)):
                self._storage.files.remove(self._sibling(suffix))

    def remove(self) -> None:
        """Remove all files of the segment; who still reads one goes on undisturbed."""
        self.remove_index_files()
        self._storage.files.remove(self.path)
        self.forget()

    def put_aside(self) -> str:
        """As `remove`, but the data file stays under a name that nobody looks for; returns it."""
        self.remove_index_files()
        aside = self.path + REMOVED_SUFFIX
        self._storage.files.rename(self.path, aside)
        self.forget()
        return aside

    def forget(self) -> None:
        """Drop what the caches hold of this segment."""
        self._storage.indexes.drop(self._index_key)
        self._storage.cache.forget(self.path)

    def sync(self) -> None:
        with self._storage.cache.use(self.path) as file:
            file.sync()

    def _starts_at(self, position: int, offset: int) -> bool:
        """Whether the batch with this base offset stands at this position."""
        try:
            return read_header(self.read(position, HEADER_BYTES)).base_offset == offset
        except CorruptBatch:
            return False

    def _sibling(self, suffix: str) -> str:
        return f"{self.folder}/{segment_name(self.base_offset, suffix)}"
