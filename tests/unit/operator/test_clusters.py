"""A cluster that does not answer is an answer too."""

from __future__ import annotations

import pytest

from tailrace_operator import clusters
from tailrace_operator.clusters import ClusterLink
from tailrace_operator.reconcile import SpreadFailed
from tailrace_operator.rollout import Health


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> ClusterLink:
    monkeypatch.setattr(clusters, "TIMEOUT_MS", 300)
    # The discard port: nobody listens there.
    return ClusterLink("127.0.0.1:9")


async def test_a_cluster_that_is_not_there(nobody: ClusterLink) -> None:
    assert await nobody.health() == (Health(), frozenset())
    assert "127.0.0.1:9" in nobody.problem
    sure, told = await nobody.fence(1, instance="pod", reason="it is gone")
    assert not sure
    assert told.startswith("broker 1 was not fenced: ")
    with pytest.raises(SpreadFailed):
        await nobody.spread([0, 1, 2], throttle_bytes=0)
    await nobody.close()
