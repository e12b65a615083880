"""Where a cluster on this machine lives when nobody says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

FOLDER_VARIABLE: Final = "TAILRACE_DEV_DIR"


def default_folder(environment: Mapping[str, str]) -> Path:
    """`$TAILRACE_DEV_DIR`, else `~/.tailrace/dev`: found from every working folder."""
    named = environment.get(FOLDER_VARIABLE)
    return Path(named) if named else Path.home() / ".tailrace" / "dev"
