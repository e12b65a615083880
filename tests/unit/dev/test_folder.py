from __future__ import annotations

from pathlib import Path

from tailrace.dev.folder import default_folder


def test_the_variable_goes_before_the_home() -> None:
    assert default_folder({"TAILRACE_DEV_DIR": "/somewhere"}) == Path("/somewhere")
    assert default_folder({"TAILRACE_DEV_DIR": ""}) == Path.home() / ".tailrace" / "dev"
    assert default_folder({}) == Path.home() / ".tailrace" / "dev"
