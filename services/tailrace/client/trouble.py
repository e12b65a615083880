"""Why records of a producer wait: the last thing that went wrong, or whose silence it is.

For people: in errors after a time is over, and for whoever asks meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace.client.accumulator import Accumulator, Queue
from tailrace.client.delivery import BatchOutcome
from tailrace.client.identity import Identity
from tailrace.client.metadata import MetadataWatcher
from tailrace.client.sender import Sender


class Trouble:
    """Looks at the parts of one producer, and changes nothing."""

    def __init__(
        self,
        accumulator: Accumulator[BatchOutcome],
        metadata: MetadataWatcher,
        identity: Identity,
        senders: Mapping[int, Sender],
    ) -> None:
        self._accumulator = accumulator
        self._metadata = metadata
        self._identity = identity
        self._senders = senders

    def now(self) -> str:
        """Why something waits, as far as it is known; of several reasons one is enough."""
        if self._metadata.picture.revision < 0:
            return self._metadata.problem
        busy = self._accumulator.busy()
        for queue in busy:
            error = queue.batches[0].last_error
            if error is not None:
                return f"{error.code}: {error}"
        return next(filter(None, map(self.silence, busy)), "")

    def silence(self, queue: Queue[BatchOutcome]) -> str:
        """Why a partition waits although nobody has refused anything."""
        if self._accumulator.needs_epoch and self._identity.problem:
            return f"the producer has no id: {self._identity.problem}"
        sender = self._senders.get(self._metadata.leader_of(queue.partition)[0])
        return "" if sender is None else sender.silence()


def because(trouble: str) -> str:
    """The end of a sentence: what is the matter, as far as that is known."""
    return f" ({trouble})" if trouble else ""
