"""One sync of one log, off the loop; what went wrong comes back as a value."""

from __future__ import annotations

from tailrace.errors import LogClosed, StorageError
from tailrace.log.log import PartitionLog
from tailrace.runtime import Blocking


async def flush(log: PartitionLog, blocking: Blocking) -> StorageError | LogClosed | None:
    """Make what is in the log durable; the error, when it could not be, stops the log."""
    try:
        work = log.begin_flush()
        if work is None:
            return None
        await blocking.run(work.run)
        log.end_flush(work)
    except OSError as error:
        return log.fail_flush(error)
    except (StorageError, LogClosed) as error:
        return error
    return None
