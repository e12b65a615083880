"""What the tests of the log share: a simulated disk and one partition log on it."""

from __future__ import annotations

import pytest

from simulation.log_bench import LogBench
from simulation.storage import SimFiles
from tailrace.config import LogConfig

SEGMENT_BYTES = 2048
"""Room for a few small batches, so that logs roll early."""


@pytest.fixture
def disk() -> SimFiles:
    return SimFiles(seed=1)


@pytest.fixture
def bench(disk: SimFiles) -> LogBench:
    """A log with one large segment and an index entry for each batch."""
    return LogBench(disk, LogConfig(index_interval_bytes=0))


@pytest.fixture
def small(disk: SimFiles) -> LogBench:
    """A log of small segments and an index that is sparse."""
    return LogBench(disk, LogConfig(segment_bytes=SEGMENT_BYTES, index_interval_bytes=1024))
