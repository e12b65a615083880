"""Tailrace topics as Spark DataFrames: `tailrace_spark.register(spark)`, then `format("tailrace")`.

Nothing of Spark is imported before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession, *, push_filters: bool = False) -> None:
    """Make `format("tailrace")` known to a session.

    `push_filters` lets filters bound what is read. It is for sessions in which no DataFrame or view
    of a topic is read with more than one set of filters, not even within one query: Spark 4.2 plans
    a Python source once for all its uses, so that those without the filters get the bounds of those
    with them, and silently miss rows.
    """
    from tailrace_spark.source import (  # noqa: PLC0415 - Spark is heavy.
        FilteringSource,
        TailraceSource,
    )

    if push_filters:
        spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(FilteringSource if push_filters else TailraceSource)
