"""What the operator asks of a Tailrace cluster, by its administration client.

A cluster that does not answer is an answer too (`Health.reachable`): nothing here raises for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tailrace.aio import Admin
from tailrace.client.operations import BrokerState
from tailrace.errors import StaleBroker, TailraceError
from tailrace_operator.reconcile import SpreadFailed
from tailrace_operator.rollout import Health

TIMEOUT_MS: Final = 5_000
MOVE_TIMEOUT_MS: Final = 30_000
THROTTLE: Final = "leader.replication.throttled.rate"
# What tells cordons of the operator's from those of people, which it leaves alone.
LEAVING: Final = "the Cluster resource wants fewer brokers"


class ClusterLink:
    """One cluster; made once, closed at the end."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.problem = ""
        self._admin: Admin | None = None

    async def admin(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self.bootstrap, request_timeout_ms=TIMEOUT_MS)
            await self._admin.start()
        return self._admin

    async def health(self) -> tuple[Health, frozenset[int]]:
        """How it is, and which brokers hold replicas: those that are away too."""
        try:
            admin = await self.admin()
            cluster = await admin.describe_cluster(timeout_ms=TIMEOUT_MS)
            moves = await admin.list_reassignments(timeout_ms=TIMEOUT_MS)
            states = await admin.describe_brokers(timeout_ms=TIMEOUT_MS)
        except TailraceError as error:
            self.problem = str(error)
            return Health(), frozenset()
        self.problem = ""
        count = {each.value: number for each, number in cluster.health.items()}
        health = Health(
            reachable=True,
            brokers=frozenset(each.broker_id for each in cluster.brokers),
            controller=cluster.controller_id,
            partitions=cluster.partitions,
            under_replicated=count.get("under-replicated", 0),
            under_min_isr=count.get("under-min-isr", 0),
            offline=count.get("offline", 0),
            moving=len(moves),
            cordoned=frozenset(each.broker_id for each in states if _is_leaving(each)),
        )
        return health, frozenset(each.broker_id for each in states if each.replicas)

    async def spread(self, brokers: Sequence[int], *, throttle_bytes: int) -> str:
        """Move replicas to where the rule wants them over these brokers; says what came of it.

        The other brokers that run get no new ones from then on, so that they stay empty.
        """
        try:
            admin = await self.admin()
            await admin.alter_config(
                "brokers",
                "default",
                {THROTTLE: str(throttle_bytes)} if throttle_bytes else {},
                unset=[] if throttle_bytes else [THROTTLE],
                timeout_ms=TIMEOUT_MS,
            )
            states = await admin.describe_brokers(timeout_ms=TIMEOUT_MS)
            back = [each.broker_id for each in states if _is_leaving(each)]
            await self.uncordon([each for each in back if each in brokers])
            # Asked first: who cannot be emptied is not to be cordoned for ever either.
            await admin.reassign(to_brokers=brokers, validate_only=True, timeout_ms=MOVE_TIMEOUT_MS)
            for each in states:
                if each.live and not each.cordoned and each.broker_id not in brokers:
                    await admin.cordon_broker(each.broker_id, reason=LEAVING, timeout_ms=TIMEOUT_MS)
            moves = await admin.reassign(to_brokers=brokers, timeout_ms=MOVE_TIMEOUT_MS)
        except TailraceError as error:
            raise SpreadFailed(str(error)) from error
        return f"{len(moves)} partitions move"

    async def uncordon(self, brokers: Sequence[int]) -> None:
        """Let brokers that were on their way out have replicas again; TailraceError: not now."""
        admin = await self.admin()
        for each in brokers:
            await admin.cordon_broker(each, cordon=False, timeout_ms=TIMEOUT_MS)

    async def fence(self, broker_id: int, *, instance: str, reason: str) -> tuple[bool, str]:
        """Have the broker that ran in this pod fenced; whether that is sure, and what was said."""
        try:
            admin = await self.admin()
            await admin.fence_broker(
                broker_id, instance=instance, reason=reason, timeout_ms=TIMEOUT_MS
            )
        except StaleBroker as error:
            # Another instance has its place: this one cannot act any more.
            return True, f"broker {broker_id} is not of that pod: {error}"
        except TailraceError as error:
            return False, f"broker {broker_id} was not fenced: {error}"
        return True, f"broker {broker_id} is fenced"

    async def leader(self, topic: str, partition: int) -> int:
        """Who leads a partition; -1: nobody."""
        about = await (await self.admin()).describe_topic(topic, timeout_ms=TIMEOUT_MS)
        return about.partitions[partition].leader

    async def coordinator(self, group: str) -> int:
        """Which coordinator looks after a group."""
        about = await (await self.admin()).describe_group(group, timeout_ms=TIMEOUT_MS)
        return about.coordinator_id

    async def close(self) -> None:
        if self._admin is not None:
            await self._admin.close()
            self._admin = None


def _is_leaving(broker: BrokerState) -> bool:
    return broker.cordoned and broker.cordon_reason == LEAVING
