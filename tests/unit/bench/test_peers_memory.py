"""What is told of the cost of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers import memory
from bench.peers.memory import Cost, cost_of_memory


def test_the_dearest_fresh_and_the_cheapest_reused_memory_count() -> None:
    found = Cost().then(fresh_s=0.3, reused_s=0.2)
    assert not found.is_dear
    found = found.then(fresh_s=1.2, reused_s=0.3).then(fresh_s=0.2, reused_s=0.25)
    assert found.is_dear
    assert found.facts() == {
        "a fresh GiB of page cache": "1.20 CPU-s",
        "a reused GiB of page cache": "0.20 CPU-s",
    }


@pytest.mark.parametrize(("costs", "tries"), [((0.1, 0.1), 6), ((0.1, 0.01), 1)])
def test_memory_that_looks_cheap_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, costs: tuple[float, float], tries: int
) -> None:
    did: list[Path] = []

    def written_s(path: Path) -> float:
        did.append(path)
        return costs[(len(did)) % 2]

    monkeypatch.setattr(memory, "_written_s", written_s)
    monkeypatch.setattr(memory, "SETTLE_S", 0.0)
    found = cost_of_memory(tmp_path)
    # One file before all others, then two for each try.
    assert len(did) == 1 + 2 * tries
    assert found == Cost(costs[0] * 4, costs[1] * 4)


def test_a_scratch_file_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PROBE_BYTES", memory.MIB)
    monkeypatch.setattr(memory, "SETTLE_S", 0.0)
    assert cost_of_memory(tmp_path).fresh_s >= 0
    assert list(tmp_path.iterdir()) == []
