"""The door to the API, when nobody answers behind it; the e2e suite goes through it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace_operator.kube import Kube, KubeError, told


@pytest.fixture
def kube(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kube:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        # The discard port: nobody listens there.
        "clusters": [{"name": "here", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return Kube("prod", now=lambda: "2026-11-17T10:45:00Z")


async def test_an_api_that_does_not_answer_is_told_in_a_sentence(kube: Kube) -> None:
    with pytest.raises(KubeError, match="listing Pods: the Kubernetes API does not answer"):
        await kube.list("v1", "Pod")


def test_what_the_server_says_is_told_and_not_its_json() -> None:
    body = json.dumps({"kind": "Status", "message": "claims cannot shrink", "code": 422})
    assert told(body.encode()) == told(body) == "claims cannot shrink"
    assert told(b"<html>\n<p>502") == "<html>"
    assert told(b"[]") == "[]"
    assert told(None) == ""
