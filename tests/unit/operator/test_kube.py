"""The door to the API: when nobody answers behind it, and what it asks; e2e goes through it too."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from tailrace.clock import SystemClock
from tailrace_operator.kube import APPLY_AGAIN_MS, Kube, KubeError, told

# The discard port: nobody listens there.
NOBODY: Final = "http://127.0.0.1:9"
CONFIG_MAPS: Final = {
    "name": "configmaps",
    "singularName": "configmap",
    "namespaced": True,
    "kind": "ConfigMap",
    "verbs": ["get", "patch"],
}
WANTED: Final[dict[str, Any]] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "c"},
    "data": {"key": "value"},
}


class LateClock(SystemClock):
    """One that a test sets on."""

    late_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.late_ms


class Server(ThreadingHTTPServer):
    """An API that knows ConfigMaps alone, and keeps what it was last told of each."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.stored: dict[str, Any] = {}
        self.patches = 0

    def answer(self, path: str) -> Any:
        if path == "/api/v1":
            return {"kind": "APIResourceList", "groupVersion": "v1", "resources": [CONFIG_MAPS]}
        fixed = {
            "/version": {"major": "1"},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "groups": []},
        }
        return fixed.get(path, self.stored.get(path))


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._tell(self.server.answer(self.path.partition("?")[0]))

    def do_PATCH(self) -> None:
        path = self.path.partition("?")[0]
        self.server.patches += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.stored[path] = json.loads(body)
        self._tell(self.server.stored[path])

    def _tell(self, found: Any) -> None:
        body = json.dumps(found or {"kind": "Status", "message": "not found"}).encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nobody wants to read it."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    # What kinds there are is remembered in a file.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "kubeconfig"
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    return tmp_path


def door(folder: Path, address: str) -> tuple[Kube, LateClock]:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": address}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    }
    (folder / "kubeconfig").write_text(json.dumps(config), encoding="utf-8")
    clock = LateClock()
    return Kube("prod", now=lambda: "2026-11-17T10:45:00Z", clock=clock), clock


async def test_an_api_that_does_not_answer_is_told_in_a_sentence(folder: Path) -> None:
    kube, _ = door(folder, NOBODY)
    with pytest.raises(KubeError, match="listing Pods: the Kubernetes API does not answer"):
        await kube.list("v1", "Pod")


async def test_a_kind_that_the_api_does_not_know_is_told_in_a_sentence(
    folder: Path, server: Server
) -> None:
    kube, _ = door(folder, f"http://127.0.0.1:{server.server_port}")
    with pytest.raises(KubeError, match=r"listing Clusters: .*are the CRDs there"):
        await kube.list("tailrace.dev/v1alpha1", "Cluster")


async def test_what_somebody_changed_by_hand_is_put_right_after_a_while(
    folder: Path, server: Server
) -> None:
    kube, clock = door(folder, f"http://127.0.0.1:{server.server_port}")
    assert await kube.apply(WANTED)
    path = "/api/v1/namespaces/prod/configmaps/c"
    server.stored[path]["data"] = {"key": "by hand"}
    assert not await kube.apply(WANTED)
    assert server.patches == 1
    clock.late_ms = APPLY_AGAIN_MS
    # Nothing new is wanted, so nothing is told; it is only put right.
    assert not await kube.apply(WANTED)
    assert server.stored[path]["data"] == {"key": "value"}
    assert not await kube.apply(WANTED)
    assert server.patches == 2
    assert await kube.apply({**WANTED, "data": {}})


def test_what_the_server_says_is_told_and_not_its_json() -> None:
    body = json.dumps({"kind": "Status", "message": "claims cannot shrink", "code": 422})
    assert told(body.encode()) == told(body) == "claims cannot shrink"
    assert told(b"<html>\n<p>502") == "<html>"
    assert told(b"[]") == "[]"
    assert told(None) == ""
