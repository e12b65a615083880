"""What a query has read, shown to the tools that show groups: committed as a named reader.

Spark's checkpoint is what counts; this is for people and metrics. So nothing here may end or hold
up a query: it happens beside it, the newest positions only, and a failure is said once until it
works again.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Final

from tailrace.client.named_reader import NamedReader, ShownPosition
from tailrace.errors import TailraceError
from tailrace.model import TopicPartition
from tailrace_spark.cluster import Cluster
from tailrace_spark.offsets import Offsets

COMMIT_TIMEOUT_MS: Final = 5_000
CLOSE_TIMEOUT_S: Final = 10.0

_LOG: Final = logging.getLogger(__name__)


class Progress:
    """Commits the positions of one named reader."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._reader: NamedReader = cluster.named_reader(name)
        self._newest: Offsets | None = None
        # What is shown, or on its way.
        self._told: Offsets | None = None
        self._sending: Future[None] | None = None
        self.problem = ""
        """Why the last commit failed; empty when it did not."""

    def commit(self, offsets: Offsets) -> None:
        """Show these positions soon; what was to be shown before is not needed any more."""
        if self._told is None or self._told.topics != offsets.topics or self.problem:
            self._newest = self._told = offsets
        self._begin()

    def _begin(self) -> None:
        if self._newest is not None and (self._sending is None or self._sending.done()):
            self._sending = self._cluster.start(self._send())

    def close(self) -> None:
        """Wait a little for what is on its way."""
        # Twice: the newest may have come when the one before was as good as sent.
        for _ in range(2):
            self._begin()
            if self._sending is not None:
                self._cluster.wait_for(self._sending, CLOSE_TIMEOUT_S)
        self._cluster.run(self._reader.close())

    async def _send(self) -> None:
        while self._newest is not None:
            offsets, self._newest = self._newest, None
            try:
                await self._reader.commit(_shown(offsets), timeout_ms=COMMIT_TIMEOUT_MS)
            except TailraceError as error:
                if not self.problem:
                    _LOG.warning("the progress of %s cannot be shown: %s", self._name, error)
                self.problem = str(error)
            else:
                self.problem = ""


def _shown(offsets: Offsets) -> dict[TopicPartition, ShownPosition]:
    return {
        TopicPartition(name, number): ShownPosition(
            position.offset, offsets.topics[name].topic_id, position.epoch
        )
        for name, number, position in offsets.each()
    }
