"""Looks after the disks of the data folders: measures, probes, and says what has failed.

One probe for each folder at a time, off the loop: how much room is there, and how long does a small
write with its sync take. What the rest of the broker meets (`met`) makes it look at once. What
follows from it all is decided in `disks`; here it is done and told.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tailrace.broker.disks import Disk, DiskLimits, is_fatal, is_folder_gone
from tailrace.clock import Clock
from tailrace.errors import is_no_room
from tailrace.log.checkpoints import META_PROPERTIES
from tailrace.log.data_folder import DataFolder
from tailrace.log.files import Files
from tailrace.log.manager import LogManager
from tailrace.model import TopicPartition
from tailrace.runtime import Blocking, Tasks

PROBE_FILE: Final = ".probe"
PROBE_BYTES: Final = bytes(512)


class DiskWatch:
    """The disks of one broker. `run` in a task."""

    def __init__(
        self,
        manager: LogManager,
        files: Files,
        limits: DiskLimits,
        *,
        interval_ms: int,
        clock: Clock,
        blocking: Blocking,
        tasks: Tasks,
        say: Callable[[str], None],
    ) -> None:
        self._manager = manager
        self._files = files
        self._interval_ms = interval_ms
        self._clock = clock
        self._blocking = blocking
        self._tasks = tasks
        self._say = say
        self._limits = limits
        self._hurry = asyncio.Event()
        self._since_ms: dict[str, int] = {}
        self._said = ""
        self._told: dict[str, tuple[bool, bool, bool]] = {}
        self._observers: list[Callable[[Disk], None]] = []
        self._nowhere = Disk("", limits)
        self.disks = {each.path: Disk(each.path, limits) for each in manager.folders}
        for folder in manager.folders:
            if folder.failure:
                self.disks[folder.path].failed(folder.failure)

    def observe(self, changed: Callable[[Disk], None]) -> None:
        """Call it whenever a disk has become full, slow or failed, or is well again."""
        self._observers.append(changed)

    def of(self, partition: TopicPartition) -> Disk:
        """The disk that a partition's log is on."""
        folder = self._manager.folder_of(partition)
        return self.disks[folder.path] if folder is not None else self._nowhere

    def met(self, disk: Disk, error: BaseException) -> None:
        """A call met an error: it may say something about its disk.

        One bad place is the trouble of one log. Whether the whole disk has failed is for a probe to
        say, at once.
        """
        if is_no_room(error):
            disk.ran_out()
            self._tell(disk)
        elif is_fatal(error):
            self._hurry.set()

    @property
    def unfit(self) -> str:
        """Why this broker should lead nothing while another can; empty: it may."""
        return "; ".join(
            f"{each.path} is {each.trouble}"
            for each in self.disks.values()
            if each.is_unfit and not each.failure
        )

    def folders(self) -> list[tuple[Disk, int]]:
        """Each disk, and how many replicas it has."""
        return [(self.disks[each.path], len(each.logs)) for each in self._manager.folders]

    async def run(self) -> None:
        while True:
            for folder in self._manager.healthy:
                disk, since_ms = self.disks[folder.path], self._since_ms.get(folder.path)
                if since_ms is None:
                    self._tasks.spawn(f"probe {folder.path}", self._probe(folder, disk))
                else:
                    disk.is_probing(self._clock.monotonic_ms() - since_ms)
                    self._tell(disk)
            self._hurry.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_ms / 1000):
                    await self._hurry.wait()

    async def _probe(self, folder: DataFolder, disk: Disk) -> None:
        # From now on: that nobody has time for the disk is as bad as a disk that has none.
        began_ms = self._since_ms[folder.path] = self._clock.monotonic_ms()
        try:
            await self._blocking.run(lambda: self._look(folder, disk))
            now_ms = self._clock.monotonic_ms()
            disk.probed(now_ms - began_ms, now_ms)
        except OSError as error:
            if is_folder_gone(error):
                disk.failed(str(error))
            elif is_no_room(error):
                disk.ran_out()
            else:
                self._say_once(f"{folder.path} cannot be probed: {error}")
        finally:
            del self._since_ms[folder.path]
        self._tell(disk)

    def _look(self, folder: DataFolder, disk: Disk) -> None:
        note = f"{folder.path}/{META_PROPERTIES.file_name}"
        if folder.meta is not None and not self._files.exists(note):
            # Where the disk was mounted another folder shows: open files are those of the old one.
            raise FileNotFoundError(errno.ENOENT, "the data folder is not there any more", note)
        disk.measured(*self._files.space(folder.path))
        if disk.is_exhausted:
            return
        file = self._files.open(f"{folder.path}/{PROBE_FILE}", create=True)
        try:
            file.write_at(0, [PROBE_BYTES])
            file.sync()
        finally:
            file.close()

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say(text)

    def _tell(self, disk: Disk) -> None:
        """Say what is new, once."""
        now = (bool(disk.failure), disk.is_full, disk.is_slow)
        if self._told.get(disk.path, (False, False, False)) == now:
            return
        self._told[disk.path] = now
        for folder in self._manager.folders:
            if folder.path == disk.path:
                folder.is_full = disk.is_full
        self._say(f"disk of {disk.path}: {disk.trouble or 'well again'}")
        for changed in self._observers:
            changed(disk)
