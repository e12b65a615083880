"""Records that are lost end a query, or are a line in the log."""

from __future__ import annotations

import pytest

from tailrace_spark.losses import DataLost, tell
from tailrace_spark.offsets import Loss

LOSS = Loss(topic="orders", partition=3, count=7, why="the log starts at 9 now")


def test_a_loss_is_an_error_that_says_how_to_go_on() -> None:
    with pytest.raises(DataLost, match=r"orders.*7.*starts at 9.*failOnDataLoss=false"):
        tell(LOSS, fail=True)


def test_or_a_line_with_the_count(caplog: pytest.LogCaptureFixture) -> None:
    tell(LOSS, fail=False)
    assert "7" in caplog.text
    assert "skipped" in caplog.text
