"""kubectl and helm, as the end-to-end tests use them: what users type, each with a limit."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

COMMAND_S: Final = 60
POLL_S: Final = 0.5

T = TypeVar("T")
Object = dict[str, Any]


class CommandFailed(Exception):
    """A command ended with an error; the message holds what it said."""


def run(*command: str, given: str | None = None, timeout_s: float = COMMAND_S) -> str:
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(f"{' '.join(command)}: not done after {timeout_s} s") from error
    if done.returncode:
        raise CommandFailed(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def until(what: str, check: Callable[[], T | None], timeout_s: float) -> T:
    """Wait until the check gives something that holds; what is in the way ends up in the error."""
    end = time.monotonic() + timeout_s
    trouble = ""
    while time.monotonic() < end:
        try:
            found = check()
        except (CommandFailed, KeyError) as error:
            trouble = f": {error}"
        else:
            if found:
                return found
        time.sleep(POLL_S)
    raise AssertionError(f"{what}: not within {timeout_s:.0f} s{trouble}")


class Kube:
    """One namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def kubectl(self, *words: str, given: str | None = None, timeout_s: float = COMMAND_S) -> str:
        return run("kubectl", "-n", self.namespace, *words, given=given, timeout_s=timeout_s)

    def helm(self, *words: str, timeout_s: float = COMMAND_S) -> str:
        return run("helm", "-n", self.namespace, *words, timeout_s=timeout_s)

    def apply(self, *manifests: Object) -> str:
        return self.kubectl(
            "apply", "-f", "-", given="\n---\n".join(json.dumps(each) for each in manifests)
        )

    def get(self, kind: str, name: str) -> Object:
        found: Object = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found

    def list(self, kind: str, selector: str = "") -> list[Object]:
        words = ["get", kind, "-o", "json", *(["-l", selector] if selector else [])]
        found: list[Object] = json.loads(self.kubectl(*words))["items"]
        return found

    def pods(self, selector: str) -> dict[str, Object]:
        return {each["metadata"]["name"]: each for each in self.list("pods", selector)}


def condition(resource: Object, kind: str) -> str:
    found = (resource.get("status") or {}).get("conditions") or []
    return str(next((each["status"] for each in found if each["type"] == kind), ""))
