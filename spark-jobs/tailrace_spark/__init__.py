"""Tailrace topics as Spark DataFrames: `tailrace_spark.register(spark)`, then `format("tailrace")`.

Nothing of Spark is imported before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make `format("tailrace")` known to a session, with filters pushed down."""
    from tailrace_spark.source import FilteringSource  # noqa: PLC0415 - Spark is heavy.

    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(FilteringSource)
