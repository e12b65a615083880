"""What the data folders of a broker bear from several threads."""

from __future__ import annotations

from typing import cast

from simulation.log_bench import NOW_MS
from simulation.storage import SimFiles
from tailrace.config import FolderConfig, LogConfig
from tailrace.log.log import PartitionLog
from tailrace.log.manager import Identity, LogManager
from tailrace.model import BrokerId, TopicId, TopicPartition


def test_a_log_is_made_while_checkpoints_are_written() -> None:
    """By another thread: a broker once ended by that, after half an hour of topics that came."""
    manager = LogManager(
        SimFiles(),
        FolderConfig(log_dirs=("/data",)),
        identity=Identity("cluster", BrokerId(1), "incarnation-1"),
        log_config=lambda _: LogConfig(),
    )
    manager.open(now_ms=NOW_MS)
    manager.create(TopicPartition("early", 0), TopicId("id-early"), now_ms=NOW_MS)
    late = TopicPartition("late", 0)

    class Slow:
        """A log that is asked while the other thread has its turn."""

        log_start = 0

        @property
        def recovery_point(self) -> int:
            manager.create(late, TopicId("id-late"), now_ms=NOW_MS)
            return 0

    logs = manager.folders[0].logs
    logs[TopicPartition("slow", 0)] = cast("PartitionLog", Slow())
    manager.checkpoint()
    assert manager.holds(late)
    del logs[TopicPartition("slow", 0)]
    manager.close()
