"""One release for all end-to-end tests, made from nothing by the first of them.

The modules run in the order of their numbers; the last one uninstalls. What a run that failed has
left is removed first.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Final

import pytest

from e2e.kube import CommandFailed, until
from e2e.release import Release

NAMESPACE: Final = "tailrace-e2e"
LINES_SHOWN: Final = 60


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What a machine cannot do is left out, and said."""
    left_out = []
    for item in items:
        if "e2e" not in item.path.parts:
            continue
        item.add_marker(pytest.mark.e2e)
        item.add_marker(pytest.mark.timeout(900))
        needs = [name for mark in item.iter_markers("needs") for name in mark.args]
        missing = [name for name in needs if not os.environ.get(name)]
        if missing:
            print(f"e2e: NOT done: {item.name}, since {', '.join(missing)} is not set")
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [each for each in items if each not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What fails is shown with the cluster as it was then: afterwards all of it is gone."""
    report = yield
    if report.failed and "e2e" in item.path.parts:
        report.sections.append(("the namespace", _picture()))
    return report


def _picture() -> str:
    kube = Release("demo", NAMESPACE).kube
    shown = []
    for words in (
        [
            "get",
            "pods,pvc,clusters.tailrace.dev,topics.tailrace.dev,drills.tailrace.dev",
            "-o=wide",
        ],
        ["logs", "deployment/demo-operator", "--tail=60"],
        ["get", "events", "--sort-by=.lastTimestamp"],
    ):
        try:
            shown.append("\n".join(kube.kubectl(*words).splitlines()[-LINES_SHOWN:]))
        except CommandFailed as error:
            shown.append(str(error))
    return "\n\n".join(shown)


@pytest.fixture(scope="session")
def release() -> Iterator[Release]:
    made = Release("demo", NAMESPACE)
    # E2E_KEEP leaves everything there, for people who want to look; E2E_REUSE goes on with that.
    if not os.environ.get("E2E_REUSE"):
        _clear(made)
        made.install()
    yield made
    if not os.environ.get("E2E_KEEP"):
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
