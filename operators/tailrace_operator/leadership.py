"""Holds the Lease of the operator, if it can be had: the shell of `election`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Protocol

from tailrace.clock import Clock
from tailrace_operator.election import RENEW_EVERY_S, Election, Stand
from tailrace_operator.kube import KubeError
from tailrace_operator.manifests import Manifest

LEASES: Final = "coordination.k8s.io/v1"


class Api(Protocol):
    """What is asked of Kubernetes (`kube.Kube`)."""

    async def get(self, api_version: str, kind: str, name: str) -> Manifest | None: ...
    async def patch(self, api_version: str, kind: str, name: str, patch: Manifest) -> None: ...


class Leadership:
    """One operator's part in the election; the Lease itself is the chart's.

    Without the name of a lease there is nobody to share with, and we always lead.
    """

    def __init__(
        self,
        api: Api,
        lease: str,
        me: str,
        *,
        clock: Clock,
        moment: Callable[[int], str],
        say: Callable[[str], None],
    ) -> None:
        self._api = api
        self._lease = lease
        self._election = Election(me)
        self._clock = clock
        self._moment = moment
        self._say = say
        self._said = ""

    def is_mine(self) -> bool:
        return not self._lease or self._election.is_mine(self._clock.monotonic_ms())

    async def run(self, on_change: Callable[[], None]) -> None:
        """For ever; tells when we begin or cease to lead."""
        before = self.is_mine()
        while self._lease:
            await asyncio.sleep(RENEW_EVERY_S)
            await self.round()
            if self.is_mine() != before:
                before = self.is_mine()
                on_change()

    async def round(self) -> None:
        """Renew, take, or stand by."""
        if not self._lease:
            return
        asked_ms = self._clock.monotonic_ms()
        try:
            found = await self._api.get(LEASES, "Lease", self._lease)
            if found is None:
                self._election.lost()
                self._once(f"there is no Lease {self._lease}: this operator does nothing")
                return
            act = self._election.look(found.get("spec") or {}, asked_ms)
            if isinstance(act, Stand):
                self._once(f"standing by: {act.holder} is the operator that acts")
                return
            version = found["metadata"]["resourceVersion"]
            spec = self._election.spec(act, self._moment(self._clock.wall_ms()))
            await self._write({"metadata": {"resourceVersion": version}, "spec": spec})
        except KubeError as error:
            if error.status == HTTPStatus.CONFLICT:
                self._election.lost()
            self._once(str(error))
        else:
            self._election.taken(asked_ms)
            self._once("this is the operator that acts")

    async def release(self) -> None:
        """Let others have it at once."""
        if self._lease and self.is_mine():
            self._election.lost()
            try:
                await self._write({"spec": {"holderIdentity": None}})
            except KubeError as error:
                self._once(str(error))

    async def _write(self, patch: Manifest) -> None:
        await self._api.patch(LEASES, "Lease", self._lease, patch)

    def _once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say(text)
