"""One release for all end-to-end tests, made from nothing by the first of them.

The modules run in the order of their numbers; the last one uninstalls. What a run that failed has
left is removed first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from e2e.kube import CommandFailed, until
from e2e.release import Release

NAMESPACE: Final = "tailrace-e2e"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "e2e" in item.path.parts:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def release() -> Iterator[Release]:
    made = Release("demo", NAMESPACE)
    _clear(made)
    made.install()
    yield made
    _clear(made)


def _clear(release: Release) -> None:
    try:
        release.kube.helm("uninstall", release.name, "--ignore-not-found", timeout_s=120)
    except CommandFailed as error:
        print(f"e2e: {error}")
    release.kube.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout_s=180)
    until(
        "the namespace is gone",
        lambda: not release.kube.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found"),
        120,
    )
