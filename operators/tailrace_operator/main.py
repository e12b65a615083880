"""`tailrace-operator`: kopf watches and wakes; the loop in `operator` does the work."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from datetime import UTC, datetime
from typing import Any, Final

import kopf

from tailrace.clock import SystemClock
from tailrace.runtime import Tasks
from tailrace_operator.kube import Kube
from tailrace_operator.leadership import Leadership
from tailrace_operator.metrics import Metrics
from tailrace_operator.operator import Operator
from tailrace_operator.reconcile import Moments
from tailrace_operator.spec import CLUSTER_LABEL, GROUP, ROLE_LABEL, VERSION

LIVENESS: Final = "http://0.0.0.0:8080/livez"
# A watch that brings nothing is opened anew after this long, whatever the server thinks of it.
WATCH_S: Final = 60

log = logging.getLogger("tailrace.operator")


class _Running:
    """What handlers share in this process."""

    operator: Operator
    leadership: Leadership
    tasks: Tasks


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.watching.server_timeout = WATCH_S
    settings.watching.client_timeout = WATCH_S + 10
    settings.posting.enabled = False
    # The role is of one namespace: to ask for all namespaces would be refused, for a minute.
    settings.scanning.disabled = True
    clock = SystemClock()

    kube = Kube(namespace(), now=lambda: moment(clock.wall_ms()), clock=clock)
    metrics = Metrics()
    _Running.leadership = Leadership(
        kube, lease_name(), identity(), clock=clock, moment=micro_moment, say=log.info
    )
    _Running.operator = Operator(
        kube,
        clock=clock,
        moments=Moments(moment, read_moment),
        say=log.info,
        leading=_Running.leadership.is_mine,
        metrics=metrics,
    )
    metrics.leading.set_function(lambda: float(_Running.leadership.is_mine()))
    metrics.serve()
    _Running.tasks = Tasks(_broken)
    await _Running.leadership.round()
    _Running.tasks.spawn("leadership", _Running.leadership.run(_Running.operator.wake))
    _Running.tasks.spawn("rounds", _Running.operator.run())


@kopf.on.cleanup()
async def stop(**_: Any) -> None:
    await _Running.tasks.close()
    await _Running.operator.close()
    await _Running.leadership.release()


@kopf.on.event(GROUP, VERSION, "clusters")
@kopf.on.event(GROUP, VERSION, "topics")
@kopf.on.event(GROUP, VERSION, "drills")
async def changed(**_: Any) -> None:
    _Running.operator.wake()


@kopf.on.event("pods", labels={CLUSTER_LABEL: kopf.PRESENT, ROLE_LABEL: kopf.PRESENT})
async def pod_changed(event: Any, body: kopf.Body, **_: Any) -> None:
    if event["type"] == "DELETED":
        await _Running.operator.pod_gone(body)
    else:
        _Running.operator.wake()


@kopf.on.probe(id="alive")
def alive(**_: Any) -> bool:
    if not _Running.operator.is_alive:
        # kopf's answer cannot say no: a process that hears nothing ends, and is started anew.
        log.error("no list of resources has succeeded for too long: ending")
        os._exit(1)
    return True


def moment(wall_ms: int) -> str:
    """A moment as Kubernetes writes it."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_moment(wall_ms: int) -> str:
    """A moment as leases have it."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def read_moment(text: str) -> int:
    """What Kubernetes wrote, in ms since 1970."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def lease_name() -> str:
    """The Lease that several operators of one release share; empty: there is only this one."""
    return os.environ.get("TAILRACE_OPERATOR_LEASE", "")


def identity() -> str:
    """Who this is, in the lease: the pod's name, and a life of it."""
    return f"{os.environ.get('HOSTNAME', 'operator')}-{os.getpid()}-{secrets.token_hex(4)}"


def namespace() -> str:
    """The namespace to look after."""
    return os.environ.get("TAILRACE_NAMESPACE", "default")


def _broken(name: str, error: BaseException) -> None:
    log.error("%s ended: %r", name, error)
    os._exit(1)


def main() -> None:
    """Run until SIGTERM."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    # Each watch and each probe would have its line: what the operator does would drown in them.
    for name in ("kopf", "aiohttp.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    asyncio.run(
        kopf.operator(
            standalone=True,
            namespaces=[namespace()],
            liveness_endpoint=LIVENESS,
        )
    )


if __name__ == "__main__":
    main()
