"""What the integration tests share: a folder in memory, for tests in which no power is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

MEMORY_FOLDER = Path("/dev/shm")
FREE_BYTES_MIN = 256 << 20


@pytest.fixture(scope="module")
def memory_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A real folder, in memory where the machine has room for one.

    ext4 writes to the disk at every rename over a file, which takes thousands of times as long.
    """
    if (
        not os.access(MEMORY_FOLDER, os.W_OK)
        or shutil.disk_usage(MEMORY_FOLDER).free < FREE_BYTES_MIN
    ):
        yield tmp_path_factory.mktemp("memory")
        return
    with TemporaryDirectory(dir=MEMORY_FOLDER, prefix="tailrace-") as path:
        yield Path(path)
