"""What the data folders of a broker bear from several threads."""

from __future__ import annotations

from typing import cast

from simulation.log_bench import NOW_MS
from simulation.storage import SimFile, SimFiles
from tailrace.config import FolderConfig, LogConfig
from tailrace.log.data_folder import Identity
from tailrace.log.log import PartitionLog
from tailrace.log.manager import LogManager
from tailrace.model import BrokerId, TopicId, TopicPartition


def test_a_log_is_made_while_checkpoints_are_written() -> None:
    """By another thread: a broker once ended by that, after half an hour of topics that came."""
    manager = manager_of(SimFiles())
    manager.create(TopicPartition("early", 0), TopicId("id-early"))
    late = TopicPartition("late", 0)

    class Slow:
        """A log that is asked while the other thread has its turn."""

        log_start = 0
        start_cause = None

        @property
        def recovery_point(self) -> int:
            manager.create(late, TopicId("id-late"))
            return 0

    logs = manager.folders[0].logs
    logs[TopicPartition("slow", 0)] = cast("PartitionLog", Slow())
    manager.checkpoint()
    assert manager.holds(late)
    del logs[TopicPartition("slow", 0)]
    manager.close()


def test_logs_made_at_once_spread_over_the_folders() -> None:
    """Each counts from the moment at which its folder is chosen, not only when it is done."""

    class Interrupted(SimFiles):
        """Another thread makes the next log while this one makes its folder."""

        def make_folder(self, path: str) -> None:
            super().make_folder(path)
            made = TopicPartition.parse(path.rpartition("/")[2])
            if made is not None and made.partition < 3:
                make(made.partition + 1)

    def make(number: int) -> None:
        manager.create(TopicPartition("many", number), TopicId("id"))

    manager = manager_of(Interrupted(), "/one", "/two")
    make(0)
    assert [len(each.logs) for each in manager.folders] == [2, 2]
    assert not any(each.coming for each in manager.folders)
    manager.close()


class Counting(SimFiles):
    syncs = 0

    def sync_folder(self, path: str) -> None:
        self.syncs += 1
        super().sync_folder(path)

    def _sync(self, file: SimFile) -> None:
        self.syncs += 1
        super()._sync(file)


def test_a_new_log_waits_for_the_disk_three_times_and_survives_a_power_loss() -> None:
    """Its identity, its folder, the folder above; what is in it is synced when there is something.

    A thousand partitions on three brokers took 18 s when each log was synced six times.
    """

    files = Counting()
    manager = manager_of(files)
    before, partition = files.syncs, TopicPartition("new", 0)
    manager.create(partition, TopicId("id-new"))
    assert files.syncs - before == 3
    files.crash(power_loss=True)
    again = manager_of(files)
    assert again.topic_id(partition) == "id-new"
    assert again.logs[partition].log_end == 0
    assert not again.damaged
    again.close()


def manager_of(files: SimFiles, *folders: str) -> LogManager:
    manager = LogManager(
        files,
        FolderConfig(log_dirs=folders or ("/data",)),
        identity=Identity("cluster", BrokerId(1), "incarnation-1"),
        log_config=lambda _: LogConfig(),
    )
    manager.open(now_ms=NOW_MS)
    return manager
