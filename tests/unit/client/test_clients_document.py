"""The examples of docs/clients.md run, and its table of settings is that of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest

from simulation.model_cluster import ModelCluster
from tailrace.client.background import background
from tailrace.client.consumer_settings import ConsumerSettings
from tailrace.client.settings import ProducerSettings
from tailrace.transport.grpc_network import GrpcNetwork

DOCUMENT: Final = Path(__file__).resolve().parents[3] / "docs" / "clients.md"
TEXT: Final = DOCUMENT.read_text(encoding="utf-8")
EXAMPLES: Final = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
ADDRESS: Final = "127.0.0.1:9092"
# What the reader is told to create first.
TOPICS: Final = re.search(r"for topic in (.*?);", TEXT)[1].split()  # type: ignore[index]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ModelCluster]:
    async def start() -> ModelCluster:
        network = GrpcNetwork()
        found = ModelCluster(lambda _: network, address="127.0.0.1:0")
        await found.start()
        for topic in TOPICS:
            found.create(topic, 2)
        return found

    running = background().wait(start())
    yield running
    background().wait(running.stop())


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number: int, cluster: ModelCluster) -> None:
    code = EXAMPLES[number].replace(ADDRESS, ",".join(cluster.bootstrap))
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert (run.returncode, run.stderr) == (0, "")
    if "copier" in code:
        assert cluster.get("copies").records() == [b"one", b"two", b"three"]


def test_examples_do_not_disturb_each_other() -> None:
    """Each has topics and groups of its own: who follows the guide by hand runs all of them."""
    used = [set(re.findall(r'(?:send|send_batch)\("([\w-]+)"', code)) for code in EXAMPLES]
    groups = [set(re.findall(r'group_id="([\w-]+)"', code)) for code in EXAMPLES]
    for each in (used, groups):
        readers = [names for names, code in zip(each, EXAMPLES, strict=True) if "Consumer" in code]
        assert sum(map(len, readers)) == len(set().union(*readers)), readers
    assert set().union(*used) == set(TOPICS)


@pytest.mark.parametrize(
    ("title", "settings"),
    [
        ("## Settings of a producer", ProducerSettings),
        ("## Settings of a consumer", ConsumerSettings),
    ],
)
def test_all_settings_are_described(title: str, settings: Any) -> None:
    described = set(re.findall(r"`(\w+)`", "\n".join(_rows(title))))
    assert {each.name for each in fields(settings)} <= described


def _rows(title: str) -> list[str]:
    table = TEXT.partition(title)[2].partition("\n## ")[0]
    return [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
