from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from tailrace.metrics.document import document, sections
from tailrace.metrics.families import Family, Kind
from tailrace_operator.metrics import Metrics

PATH: Final = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
OPERATOR: Final = tuple(
    Family(
        name, Kind(kind), f"{about}.", labels, "one for each cluster, step, kind" if labels else ""
    )
    for name, kind, about, labels in Metrics().families
)
OPERATORS: Final = (
    "Operators",
    "What the Kubernetes operator shows, on port 8081 and with buckets of its own.",
    OPERATOR,
)
FAMILIES: Final = [family for _, _, families in sections() for family in families]


def test_the_document_says_what_the_code_does() -> None:
    """TAILRACE_REWRITE=1 writes it anew; look at the difference."""
    if os.environ.get("TAILRACE_REWRITE"):
        PATH.write_text(document(OPERATORS), encoding="utf-8")
    assert PATH.read_text(encoding="utf-8") == document(OPERATORS)


def test_what_the_operator_declares_is_what_it_shows() -> None:
    shown = {each.name for each in Metrics().registry.collect()}
    assert {each.name for each in OPERATOR} == shown


def test_names_follow_the_conventions_of_prometheus() -> None:
    for family in FAMILIES:
        assert re.fullmatch(r"tailrace_[a-z][a-z_]*[a-z]", family.name), family.name
        assert not family.name.endswith(("_total", "_ms", "_count", "_sum", "_bucket")), family.name
        if family.kind is Kind.HISTOGRAM:
            assert family.name.endswith("_seconds"), family.name
        assert family.about.endswith("."), family.name


def test_every_label_says_how_many_series_it_can_make() -> None:
    unbounded = [each.name for each in FAMILIES if each.labels and not each.bound]
    assert unbounded == ["tailrace_build_info"]
