"""One sync of one log: what went wrong comes back, and the log is stopped."""

from __future__ import annotations

from simulation.log_bench import NOW_MS, append, batch
from simulation.loop import InlineBlocking, LoopClock, SimLoop, run
from simulation.storage import SimFiles
from tailrace.broker.flushes import TimedBlocking, flush
from tailrace.config import FolderConfig
from tailrace.errors import LogClosed, StorageError
from tailrace.log.data_folder import Identity
from tailrace.log.manager import LogManager
from tailrace.metrics.values import Calls
from tailrace.model import BrokerId, TopicId, TopicPartition


def test_a_log_is_durable_or_stopped() -> None:
    async def main(loop: SimLoop) -> None:
        files, calls = SimFiles(1), Calls()
        blocking = TimedBlocking(InlineBlocking(loop, "b"), LoopClock(loop), calls)
        config = FolderConfig(log_dirs=("/data",))
        manager = LogManager(files, config, identity=Identity("c", BrokerId(1), "i"))
        manager.open(now_ms=NOW_MS)
        log = manager.create(TopicPartition("t", 0), TopicId("t"))
        append(log, batch(b"1"))
        assert await flush(log, blocking) is None
        assert log.recovery_point == log.log_end
        assert await flush(log, blocking) is None
        append(log, batch(b"2"))
        files.fail_next_sync(".log")
        assert isinstance(await flush(log, blocking), StorageError)
        assert not log.is_open
        assert isinstance(await flush(log, blocking), LogClosed)
        assert (calls.times.count, calls.failed) == (1, 1)

    run(main, 1)
