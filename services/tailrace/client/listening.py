"""What a program can be told: of its partitions, and of what is handed out and committed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from tailrace.client.commits import Offsets
from tailrace.model import TopicPartition

_LOG: Final = logging.getLogger(__name__)


class RebalanceListener(Protocol):
    """What a program wants to know of its partitions; each is called inside `poll`."""

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        """They are given up; positions can still be committed."""

    async def on_assigned(self, partitions: list[TopicPartition]) -> None:
        """They are read from now on; the program may seek."""

    async def on_lost(self, partitions: list[TopicPartition]) -> None:
        """They are gone already; others may have gone on with them."""


_COUNTED: Final = ("polls", "records", "bytes", "resets", "skipped_batches", "commits")


class Interceptor(Protocol):
    """Sees what a consumer hands out and commits: for metrics and traces. It changes nothing."""

    def on_consume(self, partition: TopicPartition, records: int, size: int) -> None:
        """So many records (and bytes, as they are stored) of a partition were handed out."""

    def on_commit(self, offsets: Offsets) -> None:
        """These positions were committed."""


class Interceptors:
    """The interceptors of a consumer, and its own counts."""

    def __init__(self, interceptors: Sequence[Interceptor]) -> None:
        self._all = tuple(interceptors)
        self.counts = dict.fromkeys(_COUNTED, 0)

    def consumed(self, partition: TopicPartition, records: int, size: int) -> None:
        self.counts["records"] += records
        self.counts["bytes"] += size
        for each in self._all:
            _tell(each.on_consume, partition, records, size)

    def committed(self, offsets: Offsets) -> None:
        self.counts["commits"] += 1
        for each in self._all:
            _tell(each.on_commit, offsets)


def _tell(told: Callable[..., None], *what: Any) -> None:
    """Tell an interceptor, whose errors are no business of the program's."""
    try:
        told(*what)
    except Exception:  # noqa: BLE001 - it is told, and the program goes on.
        _LOG.exception("an interceptor failed")
