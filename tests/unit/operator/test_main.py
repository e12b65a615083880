"""What kopf is given to watch."""

from __future__ import annotations

import kopf
import pytest

from tailrace_operator import main


def test_watches_are_opened_anew_before_they_can_go_deaf() -> None:
    assert main.WATCH_S <= 60


def test_the_namespace_comes_from_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_NAMESPACE", "prod")
    assert main.namespace() == "prod"


def test_clusters_topics_and_pods_are_watched() -> None:
    registry = kopf.get_default_registry()
    watched = {str(each.selector) for each in registry._watching.get_all_handlers()}
    assert any("clusters" in each for each in watched)
    assert any("topics" in each for each in watched)
    assert any("pods" in each for each in watched)
