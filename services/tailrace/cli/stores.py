"""How a command finds the metadata store itself, and the control ports of brokers.

Few commands need them: those that repair what the services keep there. By default both are those of
the cluster that `tailrace dev` runs in its default folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tailrace.cli import settings as given
from tailrace.cli.known_settings import (
    broker_known,
    controller_known,
    coordinator_known,
    etcd_known,
    etcd_settings,
)
from tailrace.cli.machine import dev_state
from tailrace.dev.folder import default_folder
from tailrace.dev.state import ClusterState, Role
from tailrace.errors import InvalidConfig
from tailrace.meta.settings import EtcdSettings

_ENDPOINTS = "etcd.endpoints"


def dev_control() -> str:
    """The control ports of the dev cluster's brokers; InvalidConfig when there is none."""
    state = _dev_state()
    if state is None:
        raise InvalidConfig(
            "which brokers? Give --control HOST:PORT of one or more (their control.listeners); "
            f"no cluster of `tailrace dev` is in {default_folder(os.environ)}"
        )
    return ",".join(state.of(Role.BROKER, lambda each: each.control_address))


def is_of_dev(control: str | None) -> bool:
    """Whether these control ports are the dev cluster's; none stand for its own."""
    state = _dev_state()
    if control is None or state is None:
        return control is None
    own = set(state.of(Role.BROKER, lambda each: each.control_address))
    return {each.strip() for each in control.split(",")} <= own


def etcd_settings_of(
    endpoints: str | None, config: Path | None, assignments: Sequence[str], *, is_dev: bool
) -> EtcdSettings:
    """How to reach etcd: a flag before the environment before a file before the dev cluster.

    InvalidConfig when nothing says where it is: a repair must not guess its store.
    """
    known = etcd_known()
    services = (*broker_known(), *controller_known(), *coordinator_known())
    from_environment, _ = given.from_environment(os.environ, known)
    found = given.effective(
        known,
        given.from_flags({_ENDPOINTS: endpoints}),
        given.from_assignments(assignments, known),
        from_environment,
        given.from_file(config, known, services) if config is not None else [],
        _of_dev_cluster() if is_dev else [],
    )
    if _ENDPOINTS not in found.given:
        raise InvalidConfig(
            "which etcd? Give --etcd HOST:PORT,…, or --config with the config file of a service"
        )
    return etcd_settings(found)


def _of_dev_cluster() -> list[given.Given]:
    state = _dev_state()
    if state is None:
        return []
    addresses = ",".join(state.of(Role.ETCD, lambda each: each.address))
    return [given.Given(_ENDPOINTS, addresses, "the dev cluster")]


def _dev_state() -> ClusterState | None:
    return dev_state(default_folder(os.environ))
