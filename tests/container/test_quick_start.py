"""The quick start in a fresh container: the smallest Debian and the packages that the page names.

`make quick-start-container` runs it, as root. The first block of the page (`make setup`) runs with
a network, for packages have to come from somewhere. Then the whole page runs in one bash, from its
first block on, on a machine that has none: so nothing else is fetched, and nothing is there that
the page did not ask for.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

import pytest

from container.fresh_root import FreshRoot
from integration import quick_start_page

ROOT: Final = Path(__file__).resolve().parents[2]
CLONE: Final = "git clone -q -c advice.detachedHead=false tailrace.bundle tailrace\ncd tailrace\n"
# How this machine reaches package registries, where it is not by environment alone.
PIP_FILES: Final = ("/etc/pip.conf",)


@pytest.mark.by_hand
@pytest.mark.timeout(2 * quick_start_page.LIMIT_S)
def test_the_quick_start_works_in_a_fresh_container() -> None:
    shown = ["git", "show", f"HEAD:{quick_start_page.PAGE}"]
    text = subprocess.run(shown, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    # Not among pytest's own folders, which other runs of it clean up.
    with tempfile.TemporaryDirectory(prefix="tailrace-fresh-") as folder:
        _follow(text, FreshRoot(Path(folder) / "root"))


def _follow(text: str, root: FreshRoot) -> None:
    blocks = quick_start_page.blocks(text)
    began = time.perf_counter()
    root.install(quick_start_page.packages(text))
    print(f"== Debian and {quick_start_page.packages(text)}: {time.perf_counter() - began:.0f} s")
    for name in (*PIP_FILES, os.environ.get("PIP_CERT", "")):
        if Path(name).is_file():
            root.adopt(Path(name))
    bundle = root.folder / "root" / "tailrace.bundle"
    subprocess.run(["git", "bundle", "create", "-q", bundle, "HEAD"], cwd=ROOT, check=True)
    setup = CLONE + quick_start_page.script(blocks[:1])
    whole = "cd tailrace\n" + quick_start_page.script(blocks)
    _run(root, "set up", setup, network=True)
    quick_start_page.check(_run(root, "the whole page", whole, network=False))


def _run(root: FreshRoot, what: str, script: str, *, network: bool) -> str:
    began = time.perf_counter()
    # Folders of wheels are this machine's own; a fresh one has none.
    environment = quick_start_page.environment()
    environment.pop("PIP_FIND_LINKS", None)
    run = root.run(
        script,
        network=network,
        environment=environment,
        limit_s=quick_start_page.LIMIT_S,
    )
    print(f"== {what}: {time.perf_counter() - began:.0f} s\n{run.stdout}")
    assert run.returncode == 0, what
    return run.stdout
