"""Spark looks for modules named `pyspark_*` and registers what they call `DefaultSource`.

So where Tailrace is installed, `format("tailrace")` works without a line of configuration. Filters
are pushed down only after `tailrace_spark.register(spark, push_filters=True)`.
"""

from __future__ import annotations

from tailrace_spark.source import TailraceSource as DefaultSource

__all__ = ["DefaultSource"]
