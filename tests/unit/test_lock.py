"""The lock files: one version of each package, with hashes and extras, and no index address.

An extra that the lock file leaves out (`coverage` where something needs `coverage[toml]`) installs
only as long as the pinned version is the newest there is: older versions of pip look for its
own candidates then, and take the newest.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = ROOT / "requirements.lock"
LOCKS: Final = [LOCK, *sorted((ROOT / "deploy" / "docker").glob("*requirements.txt"))]
ENTRY: Final = re.compile(r"^(?P<requirement>[A-Za-z0-9][^\\#]*?)\s*\\?$", re.MULTILINE)


def _pinned(lock: Path) -> dict[str, Requirement]:
    found = (Requirement(match["requirement"]) for match in ENTRY.finditer(lock.read_text()))
    return {canonicalize_name(requirement.name): requirement for requirement in found}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_entry_is_one_version_with_hashes_and_no_address(lock: Path) -> None:
    text = lock.read_text()
    pinned = _pinned(lock)
    assert pinned
    for requirement in pinned.values():
        assert [clause.operator for clause in requirement.specifier] == ["=="], str(requirement)
        assert requirement.url is None
    assert "://" not in text
    assert "--index" not in text
    assert text.count("==") <= text.count("--hash=sha256:")


def test_extras_that_packages_ask_of_one_another_are_locked() -> None:
    pinned = _pinned(LOCK)
    asked: dict[tuple[str, str], str] = {}
    for name in pinned:
        try:
            needs = requires(name) or []
        except PackageNotFoundError:
            # A package of another platform.
            continue
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                asked |= {(canonicalize_name(need.name), extra): name for extra in need.extras}
    assert asked, "nothing asks for an extra any more: this test sees nothing"
    for (name, extra), by in asked.items():
        assert extra in pinned[name].extras, f"{by} needs {name}[{extra}]"
