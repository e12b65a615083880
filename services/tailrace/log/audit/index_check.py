"""The index files of one segment, compared with its batches as these go by in a scan.

An offset index is right when every entry names a batch and where it begins; a time index is right
when no record up to the offset of an entry is newer than the entry says. It reports symptoms, and
knows nothing of what opening the log does about them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Final

from tailrace.errors import CorruptCheckpoint
from tailrace.log.audit.findings import Kind, Symptom, Symptoms
from tailrace.log.audit.inspection import Batch, Damage
from tailrace.log.audit.overlay import ReadOnlyFiles, read_small
from tailrace.log.index import SegmentIndex
from tailrace.log.log import PartitionLog
from tailrace.log.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from tailrace.model import NO_TIMESTAMP_MS

# The end of the segment is not known before it was read, so it is compared afterwards.
_ANY_SIZE: Final = 2**63 - 1
# In both files: created_ms, appended_ms, covered_bytes.
_SAVED: Final = Struct("<qqq")
_SAVED_AT: Final = 16


def read_offset_index(data: bytes) -> SegmentIndex:
    """Decode an offset index without the time index beside it; raises CorruptCheckpoint."""
    return SegmentIndex.decode(data, _blank_like(data).time_bytes(), segment_bytes=_ANY_SIZE)


def read_time_index(data: bytes) -> SegmentIndex:
    """Decode a time index without the offset index beside it; raises CorruptCheckpoint."""
    return SegmentIndex.decode(_blank_like(data).offset_bytes(), data, segment_bytes=_ANY_SIZE)


class IndexCheck:
    """Hand it everything that a scan of the segment finds, in order, then call `finish`.

    `is_expected`: the segment was closed in order, so both files should be there and speak for all
    of it. A file that is missing, bad or larger than `bytes_max` counts as empty.
    """

    def __init__(
        self,
        files: ReadOnlyFiles,
        folder: str,
        base: int,
        symptoms: Symptoms,
        *,
        is_expected: bool,
        bytes_max: int,
    ) -> None:
        self._base = base
        self._bytes_max = bytes_max
        self._symptoms = symptoms
        self._is_expected = is_expected
        self._offset_path = f"{folder}/{segment_name(base, INDEX_SUFFIX)}"
        self._time_path = f"{folder}/{segment_name(base, TIME_INDEX_SUFFIX)}"
        self._offsets = SegmentIndex()
        self._times = SegmentIndex()
        self._next_entry = 0
        self._next_time = 0
        self._last_relative = -1
        self._max_timestamp_ms = NO_TIMESTAMP_MS
        self._loaded: set[str] = set()
        self._load(files)

    def take(self, found: Batch) -> None:
        header, position = found.header, found.position
        relative = header.base_offset - self._base
        self._tell_entries_below(position)
        entry = self._entry()
        if entry is not None and entry[1] == position:
            if entry[0] != relative:
                self._tell_entry(*entry, f"where offset {header.base_offset} stands")
            self._next_entry += 1
        # An entry speaks for all records up to its offset: those of the batches before this one.
        self._take_times(relative - 1)
        self._max_timestamp_ms = max(self._max_timestamp_ms, header.max_timestamp_ms)
        self._last_relative = relative + header.last_offset_delta
        self._take_times(self._last_relative)

    def pass_over(self, damage: Damage) -> None:
        """An entry into a damaged stretch may have been right."""
        self._tell_entries_below(damage.position)
        while (entry := self._entry()) is not None and entry[1] < damage.end:
            self._next_entry += 1

    def finish(self, size: int, *, is_whole: bool) -> None:
        """The segment has ended; `is_whole` says that nothing in it is damaged."""
        self._tell_entries_below(size)
        entry = self._entry()
        if entry is not None:
            what = f"it points to byte {entry[1]}, beyond the end of the segment at {size}"
            self._add(Kind.INDEX_STALE, self._offset_path, what)
        if not is_whole:
            return
        if self._is_expected:
            self._check_coverage(size)
        times = self._times
        if self._next_time < len(times.time_offsets):
            at = self._next_time
            what = f"it speaks of offset {self._base + times.time_offsets[at]}, beyond the end"
            self._tell_times(what, partial(self._lacks_time, at))
        elif times.covered_bytes == size and times.timestamps:
            found, newest = times.max_timestamp_ms, self._max_timestamp_ms
            if found != newest:
                what = f"it ends with timestamp {found}, but the newest record has {newest}"
                self._tell_times(what, partial(self._knows_newest, newest))

    def _load(self, files: ReadOnlyFiles) -> None:
        try:
            data = self._read(files, self._offset_path, Kind.INDEX_MISSING)
            if data is not None:
                self._offsets = read_offset_index(data)
                self._loaded.add(self._offset_path)
        except CorruptCheckpoint as error:
            self._add(Kind.INDEX_CORRUPT, self._offset_path, str(error))
        try:
            data = self._read(files, self._time_path, Kind.TIME_INDEX_MISSING)
            if data is not None:
                self._times = read_time_index(data)
                self._loaded.add(self._time_path)
        except CorruptCheckpoint as error:
            self._add(Kind.TIME_INDEX_CORRUPT, self._time_path, str(error))

    def _read(self, files: ReadOnlyFiles, path: str, missing: Kind) -> bytes | None:
        try:
            return read_small(files, path, self._bytes_max)
        except FileNotFoundError:
            if self._is_expected:
                self._add(missing, path, "it is missing, though the segment was closed")
            return None

    def _check_coverage(self, size: int) -> None:
        """Index files are not synced, so a power loss may bring back an older one."""
        both = (
            (Kind.INDEX_STALE, self._offset_path, self._offsets),
            (Kind.TIME_INDEX_STALE, self._time_path, self._times),
        )
        for kind, path, index in both:
            if path in self._loaded and index.covered_bytes != size:
                what = f"it was saved when the segment had {index.covered_bytes} bytes, not {size}"
                self._add(kind, path, what)

    def _take_times(self, relative: int) -> None:
        times = self._times
        while self._next_time < len(times.time_offsets):
            at = self._next_time
            if times.time_offsets[at] > relative:
                return
            self._next_time += 1
            if times.timestamps[at] < self._max_timestamp_ms:
                what = (
                    f"up to offset {self._base + times.time_offsets[at]} nothing is newer than "
                    f"{times.timestamps[at]}, it says, but a record has {self._max_timestamp_ms}"
                )
                self._tell_times(what, partial(self._lacks_time, at))

    def _entry(self) -> tuple[int, int] | None:
        at = self._next_entry
        if at >= len(self._offsets.positions):
            return None
        return self._offsets.offsets[at], self._offsets.positions[at]

    def _tell_entries_below(self, position: int) -> None:
        while (entry := self._entry()) is not None and entry[1] < position:
            self._tell_entry(*entry, "where no batch begins")
            self._next_entry += 1

    def _tell_entry(self, relative: int, position: int, where: str) -> None:
        what = f"its entry for offset {self._base + relative} points to byte {position}, {where}"
        is_mended = partial(self._lacks_entry, (relative, position))
        self._add(Kind.INDEX_WRONG, self._offset_path, what, is_mended)

    def _tell_times(self, what: str, is_mended: Callable[[PartitionLog], bool]) -> None:
        self._add(Kind.TIME_INDEX_WRONG, self._time_path, what, is_mended)

    # How the log, once it is open, uses the index: whether what is wrong in the file is gone.

    def _lacks_entry(self, entry: tuple[int, int], log: PartitionLog) -> bool:
        index = self._opened(log)
        return index is None or entry not in zip(index.offsets, index.positions, strict=True)

    def _lacks_time(self, at: int, log: PartitionLog) -> bool:
        index = self._opened(log)
        entry = self._times.timestamps[at], self._times.time_offsets[at]
        return index is None or entry not in zip(index.timestamps, index.time_offsets, strict=True)

    def _knows_newest(self, newest_ms: int, log: PartitionLog) -> bool:
        index = self._opened(log)
        return index is None or index.max_timestamp_ms == newest_ms

    def _opened(self, log: PartitionLog) -> SegmentIndex | None:
        for segment in log.segments:
            if segment.base_offset == self._base:
                return segment.index
        return None

    def _add(
        self,
        kind: Kind,
        path: str,
        what: str,
        is_mended: Callable[[PartitionLog], bool] | None = None,
    ) -> None:
        self._symptoms.add(Symptom(kind=kind, path=path, what=what, is_mended=is_mended))


def _blank_like(data: bytes) -> SegmentIndex:
    """An empty index that was saved at the same moment as this one."""
    blank = SegmentIndex()
    if len(data) >= _SAVED_AT + _SAVED.size:
        saved = _SAVED.unpack_from(data, _SAVED_AT)
        blank.created_ms, blank.appended_ms, blank.covered_bytes = saved
    return blank
