"""The one door to the Kubernetes API.

Synchronous calls of the official client, run in threads by `Kube`; each has a deadline. What is
read comes as plain dictionaries, so that all who decide stay free of the client's types.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, TypeVar

import kubernetes
from kubernetes.client import ApiException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import NotFoundError, ResourceNotFoundError
from urllib3.exceptions import HTTPError

from tailrace.clock import Clock
from tailrace_operator.manifests import Manifest, fingerprint
from tailrace_operator.spec import GROUP, VERSION

REQUEST_TIMEOUT_S: Final = 15
FIELD_MANAGER: Final = "tailrace-operator"
APPLIED: Final = f"{GROUP}/applied"
OWN_VERSION: Final = f"{GROUP}/{VERSION}"
EVENT_MESSAGE_MAX: Final = 1_000
# Objects that were applied as they are wanted are applied again after this long: somebody may have
# changed them by hand since, and Kubernetes does nothing where nobody has.
APPLY_AGAIN_MS: Final = 60_000

_LATER: Final = frozenset(
    {
        HTTPStatus.CONFLICT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)

T = TypeVar("T")


class KubeError(Exception):
    """The API did not do what was asked; the message says what and why."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_refusal(self) -> bool:
        """Whether it is no use to ask the same again at once: an answer, and not 'later'.

        A quantity that is none is an internal error to the API.
        """
        return bool(self.status) and self.status not in _LATER


class Kube:
    """The API of one namespace."""

    def __init__(self, namespace: str, *, now: Callable[[], str], clock: Clock) -> None:
        try:
            kubernetes.config.load_incluster_config()  # type: ignore[no-untyped-call]
        except kubernetes.config.ConfigException:
            kubernetes.config.load_kube_config()  # type: ignore[no-untyped-call]
        self.namespace = namespace
        self._now = now
        self._clock = clock
        self._applied_ms: dict[tuple[str, str], int] = {}
        self._api: DynamicClient | None = None

    async def list(self, api_version: str, kind: str, selector: str = "") -> list[Manifest]:
        def ask() -> list[Manifest]:
            found = self._kind(api_version, kind).get(
                namespace=self.namespace,
                label_selector=selector or None,
                _request_timeout=REQUEST_TIMEOUT_S,
            )
            return list(found.to_dict().get("items") or [])

        return await self._do(f"listing {kind}s", ask)

    async def get(self, api_version: str, kind: str, name: str) -> Manifest | None:
        def ask() -> Manifest | None:
            try:
                found = self._kind(api_version, kind).get(
                    name=name, namespace=self.namespace, _request_timeout=REQUEST_TIMEOUT_S
                )
            except NotFoundError:
                return None
            return dict(found.to_dict())

        return await self._do(f"reading {kind} {name}", ask)

    async def apply(self, manifest: Manifest) -> bool:
        """Make or change an object, by server-side apply; whether something new is wanted."""
        mark = fingerprint(manifest)
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        now = await self.get(manifest["apiVersion"], kind, name)
        marks = ((now or {}).get("metadata") or {}).get("annotations") or {}
        is_new, asked_ms = marks.get(APPLIED) != mark, self._clock.monotonic_ms()
        last_ms = self._applied_ms.get((kind, name))
        if not is_new and last_ms is not None and asked_ms - last_ms < APPLY_AGAIN_MS:
            return False
        metadata = dict(manifest["metadata"])
        metadata["annotations"] = {**(metadata.get("annotations") or {}), APPLIED: mark}

        def ask() -> None:
            self._kind(manifest["apiVersion"], kind).server_side_apply(
                body={**manifest, "metadata": metadata},
                namespace=self.namespace,
                name=name,
                field_manager=FIELD_MANAGER,
                force_conflicts=True,
                _request_timeout=REQUEST_TIMEOUT_S,
            )

        await self._do(f"applying {kind} {name}", ask)
        self._applied_ms[kind, name] = asked_ms
        return is_new

    async def patch(self, api_version: str, kind: str, name: str, patch: Manifest) -> None:
        def ask() -> None:
            self._kind(api_version, kind).patch(
                body=patch,
                name=name,
                namespace=self.namespace,
                content_type="application/merge-patch+json",
                _request_timeout=REQUEST_TIMEOUT_S,
            )

        await self._do(f"changing {kind} {name}", ask)

    async def patch_status(self, kind: str, name: str, status: Manifest) -> None:
        def ask() -> None:
            resource = self._kind(OWN_VERSION, kind)
            resource.status.patch(
                body={"status": status},
                name=name,
                namespace=self.namespace,
                content_type="application/merge-patch+json",
                _request_timeout=REQUEST_TIMEOUT_S,
            )

        await self._do(f"writing the status of {kind} {name}", ask)

    async def delete(
        self, api_version: str, kind: str, name: str, *, uid: str, grace_s: int | None = None
    ) -> None:
        """Delete just this object: not one of the same name that was made since."""
        body: Manifest = {"preconditions": {"uid": uid}}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s

        def ask() -> None:
            try:
                self._kind(api_version, kind).delete(
                    name=name,
                    namespace=self.namespace,
                    body=body,
                    _request_timeout=REQUEST_TIMEOUT_S,
                )
            except NotFoundError:
                return

        await self._do(f"deleting {kind} {name}", ask)

    async def event(self, about: Manifest, *, reason: str, message: str, warning: bool) -> None:
        """Tell people, at the object itself."""
        now = self._now()
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{about['metadata']['name']}-"},
            "involvedObject": {
                "apiVersion": about.get("apiVersion", OWN_VERSION),
                "kind": about.get("kind", "Cluster"),
                "name": about["metadata"]["name"],
                "namespace": self.namespace,
                "uid": about["metadata"]["uid"],
            },
            "reason": reason,
            "message": message[:EVENT_MESSAGE_MAX],
            "type": "Warning" if warning else "Normal",
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            # Without these `kubectl get events` does not know what came last.
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }

        def ask() -> None:
            self._kind("v1", "Event").create(
                body=body, namespace=self.namespace, _request_timeout=REQUEST_TIMEOUT_S
            )

        await self._do("telling of an event", ask)

    async def evict(self, pod: str) -> bool:
        """Ask for a pod to go, as `kubectl drain` does; False: its disruption budget says no."""

        def ask() -> bool:
            try:
                self._core().create_namespaced_pod_eviction(
                    pod,
                    self.namespace,
                    {
                        "apiVersion": "policy/v1",
                        "kind": "Eviction",
                        "metadata": {"name": pod, "namespace": self.namespace},
                    },
                    _request_timeout=REQUEST_TIMEOUT_S,
                )
            except ApiException as error:
                if error.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.NOT_FOUND):
                    return False
                raise
            return True

        return await self._do(f"evicting {pod}", ask)

    async def cordon(self, node: str, *, on: bool) -> None:
        """Let no more pods come to a node, or let them come again."""

        def ask() -> None:
            self._core().patch_node(
                node, {"spec": {"unschedulable": on or None}}, _request_timeout=REQUEST_TIMEOUT_S
            )

        await self._do(f"{'cordoning' if on else 'uncordoning'} {node}", ask)

    async def is_cordoned(self, node: str) -> bool:
        """Whether no more pods come to a node already."""

        def ask() -> bool:
            found = self._core().read_node(node, _request_timeout=REQUEST_TIMEOUT_S)
            return bool(found.spec.unschedulable)

        return await self._do(f"reading node {node}", ask)

    async def node_is_gone(self, node: str) -> bool:
        """Whether Kubernetes knows no such node; False too when we may not ask."""

        def ask() -> bool:
            try:
                self._core().read_node(node, _request_timeout=REQUEST_TIMEOUT_S)
            except ApiException as error:
                if error.status in (HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED):
                    return False
                if error.status == HTTPStatus.NOT_FOUND:
                    return True
                raise
            return False

        return await self._do(f"reading node {node}", ask)

    async def namespace_is_going(self) -> bool:
        """Whether the namespace is being deleted, with all that is in it."""

        def ask() -> bool:
            found = self._core().read_namespace(self.namespace, _request_timeout=REQUEST_TIMEOUT_S)
            return found.metadata.deletion_timestamp is not None

        return await self._do(f"reading namespace {self.namespace}", ask)

    def _core(self) -> Any:
        return kubernetes.client.CoreV1Api()

    def _kind(self, api_version: str, kind: str) -> Any:
        if self._api is None:
            self._api = DynamicClient(  # type: ignore[no-untyped-call]
                kubernetes.client.ApiClient()
            )
        return self._api.resources.get(api_version=api_version, kind=kind)

    @staticmethod
    async def _do(what: str, ask: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(ask)
        except ResourceNotFoundError as error:
            raise KubeError(f"{what}: the API has no such kind; are the CRDs there?") from error
        except ApiException as error:
            detail = error.reason or error.status
            raise KubeError(f"{what}: {detail}: {told(error.body)}", error.status) from error
        except (HTTPError, OSError) as error:
            raise KubeError(f"{what}: the Kubernetes API does not answer: {error}") from error


def told(body: object) -> str:
    """What the server says, for people: the message of its Status, else the first line."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    with suppress(ValueError, KeyError, TypeError):
        text = str(json.loads(text)["message"])
    return text.strip().splitlines()[0][:300] if text.strip() else ""
