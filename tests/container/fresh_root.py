"""A machine on which nothing was installed: the smallest Debian that there is, in a folder.

Made by `debootstrap` and entered by `unshare` and `chroot`, so it takes root and no container
engine. Each run has processes, mounts and a name of its own, and all that it started ends with it.
With `network` it shares this machine's, to install packages; without, it has a loopback of its own
and nobody else: its ports are free whatever runs here, and whatever it needs has to be there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SUITE: Final = "bookworm"
NAME: Final = "fresh"
# Of the one who runs things in there.
HOME: Final = "/root"
NEEDED: Final = ("debootstrap", "unshare", "chroot", "mount", "ip")
# What every container engine writes, and debootstrap leaves to an installer.
HOSTS: Final = f"127.0.0.1 localhost {NAME}\n::1 localhost\n"
# Where the private file system is entered; "$1" is its folder, the rest the command.
ENTER: Final = """
mount -t proc proc "$1/proc"
mkdir -p "$1/dev/shm"
mount -t tmpfs tmpfs "$1/dev/shm"
hostname "$2"
test "$3" = yes || ip link set lo up
root="$1"
shift 3
exec chroot "$root" "$@"
"""


class FreshRoot:
    """The root file system of a machine that has these packages and what they depend on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, packages: list[str]) -> None:
        """Make it; everything comes from $MIRROR, else from debootstrap's own."""
        missing = [name for name in NEEDED if shutil.which(name) is None]
        if missing or os.geteuid():
            raise RuntimeError(f"this takes root, and {', '.join(NEEDED)}; missing: {missing}")
        mirror = [os.environ["MIRROR"]] if os.environ.get("MIRROR") else []
        included = f"--include={','.join(packages)}"
        subprocess.run(
            ["debootstrap", "--variant=minbase", included, SUITE, str(self.folder), *mirror],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (self.folder / "etc" / "hosts").write_text(HOSTS, encoding="utf-8")

    def adopt(self, path: Path) -> None:
        """Give it a file of this machine, at the same place."""
        inside = self.folder / path.relative_to("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, inside)

    def run(
        self, script: str, *, network: bool, environment: Mapping[str, str], limit_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a script in bash, as its root, from its home; what was said is one text."""
        path = self.folder / "root" / "script.sh"
        path.write_text(script, encoding="utf-8")
        alone = ["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        return subprocess.run(
            [
                *("unshare", *alone, *([] if network else ["--net"])),
                *("sh", "-ec", ENTER, "enter", str(self.folder), NAME, "yes" if network else "no"),
                *("/usr/bin/env", "-C", HOME, "bash", "script.sh"),
            ],
            env={
                **environment,
                "HOME": HOME,
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
