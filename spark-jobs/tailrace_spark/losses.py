"""What happens when records that were promised cannot be read any more: an error, or a line."""

from __future__ import annotations

import logging
from typing import Final

from tailrace_spark.offsets import Loss

_LOG: Final = logging.getLogger(__name__)


class DataLost(Exception):
    """Records that were promised cannot be read any more."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(f"{loss}. Set failOnDataLoss=false to go on without them, which is logged")


def tell(loss: Loss, *, fail: bool) -> None:
    """Raise DataLost, or log what is skipped."""
    if fail:
        raise DataLost(loss)
    _LOG.warning("failOnDataLoss=false: %s; skipped", loss)
