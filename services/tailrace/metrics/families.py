"""Families of metrics: declared once, with their help and labels, and filled at scrape time.

A `Page` is what one scrape shows. It takes values only for declared families, so that the document
made from the declarations (`metrics.document`) names all there is. Names follow Prometheus: base
units (seconds, bytes), counters end in `_total`, one prefix.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from prometheus_client.metrics_core import Metric

from tailrace.errors import InvariantViolation
from tailrace.metrics.values import Histogram

PREFIX: Final = "tailrace_"
# What shares one series when there are more topics (or groups) than are shown; none is named so.
OTHER: Final = "(other)"

_MS: Final = 1_000


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    """One name, its kind, its help and its labels; `bound` says how many series there can be."""

    name: str
    kind: Kind
    about: str
    labels: tuple[str, ...] = ()
    bound: str = ""

    @property
    def sample_name(self) -> str:
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


def counter(name: str, about: str, *labels: str, bound: str = "") -> Family:
    """A number that only grows; `name` is without prefix and `_total`."""
    return Family(PREFIX + name, Kind.COUNTER, about, labels, bound)


def gauge(name: str, about: str, *labels: str, bound: str = "") -> Family:
    return Family(PREFIX + name, Kind.GAUGE, about, labels, bound)


def histogram(name: str, about: str, *labels: str, bound: str = "") -> Family:
    return Family(PREFIX + name, Kind.HISTOGRAM, about, labels, bound)


class Page:
    """The metrics of one scrape, in the order in which families are first filled."""

    def __init__(self) -> None:
        self._metrics: dict[Family, Metric] = {}

    def metrics(self) -> list[Metric]:
        return list(self._metrics.values())

    def put(self, family: Family, value: float, *labels: str) -> None:
        """One sample of a counter or a gauge."""
        if family.kind is Kind.HISTOGRAM:
            raise InvariantViolation(f"{family.name} takes histograms, not numbers")
        metric = self._metric(family, labels)
        metric.add_sample(family.sample_name, _named(family, labels), value)

    def put_times(self, family: Family, times: Histogram, *labels: str) -> None:
        """The samples of a histogram, in seconds."""
        metric = self._metric(family, labels)
        named = _named(family, labels)
        below = 0
        for bound_ms, count in zip(times.bounds_ms, times.counts, strict=False):
            below += count
            metric.add_sample(
                f"{family.name}_bucket", {**named, "le": f"{bound_ms / _MS:g}"}, below
            )
        total = below + times.counts[-1]
        metric.add_sample(f"{family.name}_bucket", {**named, "le": "+Inf"}, total)
        metric.add_sample(f"{family.name}_sum", named, times.sum_ms / _MS)
        metric.add_sample(f"{family.name}_count", named, total)

    def _metric(self, family: Family, labels: tuple[str, ...]) -> Metric:
        if len(labels) != len(family.labels):
            raise InvariantViolation(f"{family.name} has the labels {family.labels}, not {labels}")
        metric = self._metrics.get(family)
        if metric is None:
            metric = Metric(family.name, family.about, family.kind.value)
            self._metrics[family] = metric
        return metric


def _named(family: Family, labels: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(family.labels, labels, strict=True))
