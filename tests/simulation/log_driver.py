"""Random work on a LogManager over a simulated disk, step by step against `simulation.log_model`.

All chance comes from one seed: the same seed does the same steps, meets the same faults and shows
the same failure. After each step the log must answer as the model does; after each opening all of
it is read back.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Final

from simulation.log_model import Mismatch, Outcomes
from simulation.log_operations import Partition, Trace, World, require
from simulation.log_requests import STEP_MS
from simulation.lost_segments import lose_a_segment
from simulation.proofs import deleted, refilled
from simulation.storage import SimFiles, SimulatedCrash
from tailrace.config import UNLIMITED, CleanupPolicy, FolderConfig, LogConfig, TimestampType
from tailrace.errors import StorageError
from tailrace.log.data_folder import Identity
from tailrace.log.manager import LogManager
from tailrace.log.report import ManagerReport
from tailrace.model import BrokerId, Offset, TopicId, TopicPartition

STEPS_MIN: Final = 25
STEPS_MAX: Final = 50
RESTARTS_AT_THE_END: Final = 2
OPEN_ATTEMPTS_MAX: Final = 30
# How often a segment in the middle of a log is missing, on a copy of the disk, at a restart.
LOST_SEGMENTS: Final = 0.3
IDENTITY: Final = Identity("simulated", BrokerId(1), "incarnation")


class LogSimulation:
    """One sequence of steps; `run` raises Mismatch, or whatever the log raised and must not."""

    def __init__(self, seed: int, trace: Trace = lambda _: None) -> None:
        self.rng = Random(seed)
        # Apart: what is drawn here changes nothing of what a seed does.
        self._chances = Random(seed + 2)
        self.files = SimFiles(Random(seed + 1))
        self.world = World(self.rng, self.files, trace)
        # A sync failed and the process died before it could write that down.
        self.is_hopeless = False
        self._operations_before = 0
        self._sync_may_fail = False
        self._power_was_lost = False
        self._was_closed_cleanly = False
        self._full_until_step = 0
        self._folders = FolderConfig(
            log_dirs=self.rng.choice((("/data",),) * 4 + (("/data", "/more/data"),)),
            open_files_max=16,
            index_cache_bytes=self.rng.choice((1024, 4096, 1 << 20)),
        )
        self.partitions = [
            Partition(self.world, TopicPartition(f"t{number}", number), _random_config(self.rng))
            for number in range(self.rng.choice((1, 1, 2, 3)))
        ]
        self.manager = self._new_manager()

    def run(self) -> None:
        self._open()
        for _ in range(self.rng.randint(STEPS_MIN, STEPS_MAX)):
            if not self.is_hopeless:
                self.step()
        self.files.disk_bytes_max = None
        for _ in range(RESTARTS_AT_THE_END):
            if not self.is_hopeless:
                self._restart()

    def step(self) -> None:
        self.world.step += 1
        self.world.clock_ms += self.rng.randint(0, 2 * STEP_MS)
        self._operations_before = self.files.operations
        if self.world.step >= self._full_until_step:
            self.files.disk_bytes_max = None
        self._maybe_arm_fault()
        self._sync_may_fail = self.files.sync_fault_is_armed
        draw = self.rng.random()
        if draw < 0.07:
            self._restart()
            return
        try:
            self._work(draw)
        except SimulatedCrash:
            self._died()
            self._restart(died=True)

    def _work(self, draw: float) -> None:
        partition = self.rng.choice(self.partitions)
        log = self.manager.logs.get(partition.name)
        if log is None and partition.model.is_there:
            self._reopen(partition)
        elif log is None:
            self._create(partition)
        elif draw < 0.09:
            self._delete(partition)
        elif draw < 0.12:
            self._checkpoint()
        elif log.is_open:
            partition.operate(log, self.manager)
        elif draw < 0.6:
            self._reopen(partition)
        else:
            partition.expect_closed(log)

    # The folder.

    def _create(self, partition: Partition) -> None:
        self._say(f"{partition.name} create")
        model = partition.model
        if model.pending is not None and model.pending.deleted:
            # A deletion failed half-way; only a restart tells whether it happened.
            self._restart()
            return
        model.pending = Outcomes(created=True)
        try:
            topic_id = TopicId(f"id-{self.world.step}")
            log = self.manager.create(partition.name, topic_id)
        except (OSError, StorageError) as error:
            self._say(f"  … fails: {error}")
            return
        partition.created()
        require(self.manager.topic_id(partition.name) == topic_id, "the topic id is lost")
        mark = self.manager.load_high_watermarks().get(partition.name, 0)
        inherited = (mark, self.manager.cleaned_to(partition.name))
        require(inherited == (0, 0), f"a new partition inherited the offsets {inherited}")
        partition.check(log)

    def _delete(self, partition: Partition) -> None:
        self._say(f"{partition.name} delete")
        model = partition.model
        model.pending = model.pending or Outcomes()
        model.pending.deleted = True
        partition.cuts += 1
        try:
            self.manager.delete(partition.name, deleted(self.manager, partition.name))
        except OSError as error:
            self._say(f"  … fails: {error}")
            return
        model.pending = None
        model.exists = False

    def _checkpoint(self) -> None:
        self._say("checkpoint")
        marks = {
            partition.name: Offset(partition.model.log_end)
            for partition in self.partitions
            if partition.name in self.manager.logs
        }
        try:
            self.manager.checkpoint()
            self.manager.store_high_watermarks(marks)
        except OSError as error:
            self._say(f"  … fails: {error}")
            return
        for partition in self.partitions:
            model = partition.model
            if model.exists and model.pending is None:
                model.durable_start = max(model.durable_start, model.log_start)

    def _reopen(self, partition: Partition) -> None:
        """Open one log anew that had to stop, while the others go on."""
        self._say(f"{partition.name} reopen")
        try:
            report = self.manager.reopen(
                partition.name, refilled(self.manager, partition.name), now_ms=self.world.clock_ms
            )
        except (OSError, StorageError) as error:
            self._say(f"  … fails: {error}")
            partition.model.sync_failed = True
            return
        require(not report.clean, "a log that had to stop was opened without a look")
        partition.reopened(self.manager.logs[partition.name], power_lost=False, clean=False)

    # Restarting.

    def _restart(self, *, died: bool = False) -> None:
        """Go down in order or not, and come up again."""
        is_closed = not died and self.rng.random() < 0.4 and self._close()
        if not is_closed or self.rng.random() < 0.2:
            self._crash()
        if not self.is_hopeless and self._chances.random() < LOST_SEGMENTS:
            self._lose_a_segment()
        self._open()

    def _lose_a_segment(self) -> None:
        """On a copy of the disk: that one is missing in the middle is never overlooked."""
        folder = self._chances.choice(self._folders.log_dirs)
        lost = lose_a_segment(self.files, folder, self._chances, self._manager_on)
        if lost is not None:
            self._say(f"{lost.partition} without {lost.base} is damaged, as it should be")

    def _crash(self) -> None:
        power_loss = self.rng.random() < 0.5
        self._say("POWER LOSS" if power_loss else "CRASH")
        self.files.crash(power_loss=power_loss)
        self._sync_may_fail = False
        self._power_was_lost |= power_loss

    def _died(self) -> None:
        """The process died in a call. Had a sync failed in it, that may not have been noted."""
        self._say("  … and dies in the middle")
        if self._sync_may_fail and not self.files.sync_fault_is_armed:
            self._distrust()
        failed = self.files.failed_syncs_since(self._operations_before, ".log")
        if failed:
            self._say("  … right after a failed sync: nothing can be promised any more")
            self.is_hopeless = True

    def _close(self) -> bool:
        """Close in order; say whether the next opening may follow without a crash."""
        self._say("close")
        stopped = [name for name, log in self.manager.logs.items() if not log.is_open]
        try:
            self.manager.close()
        except StorageError as error:
            self._say(f"  … fails: {error}")
            self._distrust()
            require(self.files.open_files == 0, f"{self.files.open_files} files are left open")
            return self.rng.random() < 0.5
        except SimulatedCrash:
            self._died()
            return False
        require(not stopped, f"{stopped} cannot have been closed in order")
        require(self.files.open_files == 0, f"{self.files.open_files} files are left open")
        for partition in self.partitions:
            model = partition.model
            if partition.name in self.manager.logs:
                model.flushed(model.log_end)
                model.durable_start = model.log_start
        self._was_closed_cleanly = self.manager.is_boot_confirmed and all(
            each.model.pending is None and not each.model.sync_failed for each in self.partitions
        )
        return True

    def _open(self) -> None:
        for _ in range(OPEN_ATTEMPTS_MAX):
            if self.is_hopeless or self._try_to_open():
                return
            self._was_closed_cleanly = False
        raise Mismatch("the logs do not open")

    def _try_to_open(self) -> bool:
        self.manager = self._new_manager()
        before = self.files.operations
        try:
            report = self.manager.open(now_ms=self.world.clock_ms)
            self._give_up_if_the_disk_failed(report)
            with suppress(OSError, StorageError):
                # As a broker does with its first order; without, the next opening scans again.
                self.manager.confirm_boot()
        except SimulatedCrash:
            self._say("open …")
            self._died()
            self._crash()
            return False
        except (OSError, StorageError) as error:
            self._say(f"open … fails: {error}")
            self.files.disk_bytes_max = None
            self._distrust()
            if self.files.failed_syncs_since(before, ".log"):
                self._trust_only_what_is_stored()
            require(self.files.open_files == 0, f"{self.files.open_files} files are left open")
            return False
        self._say(f"open {[(str(r.partition), r.clean, r.cut) for r in report.opened]}")
        require(not report.damaged, f"damaged: {report.damaged}")
        if self._was_closed_cleanly:
            scanned = [each for each in report.opened if not each.clean or each.scanned_bytes]
            require(not scanned, f"scanned after a clean shutdown: {scanned}")
        clean = {each.partition for each in report.opened if each.clean}
        for partition in self.partitions:
            self._reopened(partition, clean=partition.name in clean)
        self._power_was_lost = self._was_closed_cleanly = False
        return True

    def _give_up_if_the_disk_failed(self, report: ManagerReport) -> None:
        """One log that the disk kept from opening is enough to begin again, as a new process."""
        for error in report.damaged.values():
            if type(error) is StorageError:
                for folder in self.manager.folders:
                    folder.release()
                self.manager.storage.cache.close()
                raise error

    def _reopened(self, partition: Partition, *, clean: bool) -> None:
        model = partition.model
        log = self.manager.logs.get(partition.name)
        pending = model.pending or Outcomes()
        if log is None:
            require(not model.exists or pending.deleted, f"{partition.name} is gone")
            model.exists, model.pending = False, None
            return
        require(model.exists or pending.created, f"{partition.name} is back")
        if not model.exists:
            partition.created()
        partition.reopened(log, power_lost=self._power_was_lost, clean=clean)

    def _distrust(self) -> None:
        """Some sync failed, in whichever log: what was not durable may be gone."""
        for partition in self.partitions:
            partition.model.sync_failed = True

    def _trust_only_what_is_stored(self) -> None:
        """A sync failed in recovery. It may have had to save again what a flush saved before the
        crash, where the checkpoint does not know of that flush: the log then gives it up."""
        points = {k: v for each in self.manager.folders for k, v in each.recovery_points.items()}
        for partition in self.partitions:
            point = points.get(partition.name, 0)
            partition.model.durable_end = min(partition.model.durable_end, point)

    def _new_manager(self) -> LogManager:
        return self._manager_on(self.files)

    def _manager_on(self, files: SimFiles) -> LogManager:
        configs = {partition.name.topic: partition.config for partition in self.partitions}
        return LogManager(files, self._folders, identity=IDENTITY, log_config=configs.__getitem__)

    # Faults.

    def _maybe_arm_fault(self) -> None:
        files, draw = self.files, self.rng.random()
        is_full = files.disk_bytes_max is not None
        if draw < 0.06:
            files.crash_at_operation(1 + min(30, int(self.rng.expovariate(0.2))))
        elif draw < 0.08:
            files.tear_next_write(self.rng.choice(("", ".log", ".log", ".tmp")))
        elif draw < 0.12 and not is_full:
            # Not on a full disk: the log could not even note that the sync failed.
            files.fail_next_sync(self.rng.choice(("", ".log", ".log", ".tmp")))
        elif draw < 0.14 and not is_full:
            files.fail_next_folder_sync()
        elif draw < 0.16 and not files.sync_fault_is_armed:
            self._full_until_step = self.world.step + self.rng.randint(1, 5)
            files.disk_bytes_max = files.used_bytes + self.rng.randint(0, 2000)
            self._say(f"the disk is full at {files.disk_bytes_max} bytes")

    def _say(self, what: str) -> None:
        self.world.trace(what)


def _random_config(rng: Random) -> LogConfig:
    times = (TimestampType.CREATE_TIME,) * 3 + (TimestampType.LOG_APPEND_TIME,)
    return LogConfig(
        segment_bytes=rng.choice((1024, 1500, 3000, 6000)),
        segment_ms=rng.choice((3 * STEP_MS, 1_000_000)),
        segment_index_bytes=rng.choice((600, 1 << 20, 1 << 20)),
        index_interval_bytes=rng.choice((0, 1, 700, 2000)),
        retention_ms=rng.choice((10 * STEP_MS, 30 * STEP_MS, UNLIMITED)),
        retention_bytes=rng.choice((0, 2000, 8000, UNLIMITED)),
        cleanup_policy=rng.choice(tuple(CleanupPolicy)),
        delete_retention_ms=rng.choice((0, 5 * STEP_MS, 1_000_000)),
        producer_id_expiration_ms=rng.choice((15 * STEP_MS, 1_000_000)),
        message_timestamp_type=rng.choice(times),
    )
