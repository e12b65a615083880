"""What a topic may be, and the rules that its settings make for its partitions. Pure.

Settings that the controller acts on stand here (`min.insync.replicas`, `unclean.recovery`, and
`flush` as far as it says what a power loss can take); all others are `tailrace.config`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tailrace.config import (
    REPLICA_SETTINGS,
    UNCLEAN,
    Flush,
    LogConfig,
    checked_min_insync,
    min_insync_of,
)
from tailrace.controller.election import UncleanRecovery
from tailrace.errors import InvalidConfig, InvalidTopic
from tailrace.model import topic_name_problem

PARTITIONS_MAX: Final = 10_000
REPLICAS_MAX: Final = 100

_RULES_CACHED: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """What elections of a topic's partitions go by."""

    min_insync: int
    unclean: UncleanRecovery
    # A replica reports only what is on its disk: a power loss takes nothing acknowledged.
    syncs_first: bool = False

    @classmethod
    def of(cls, config: Mapping[str, str], *, replicas: int) -> TopicRules:
        """The rules of a stored topic; settings that cannot be read count as not given."""
        return _rules(tuple(sorted(config.items())), replicas)


def check_topic(
    name: str,
    config: Mapping[str, str],
    *,
    partitions: int,
    replication_factor: int,
    defaults: LogConfig,
) -> None:
    """InvalidTopic or InvalidConfig when there can be no such topic."""
    problem = topic_name_problem(name)
    if problem is not None:
        raise InvalidTopic(problem)
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidTopic(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}")
    if not 1 <= replication_factor <= REPLICAS_MAX:
        raise InvalidTopic(
            f"a partition has 1 to {REPLICAS_MAX} replicas, not {replication_factor}"
        )
    check_config(config, replication_factor=replication_factor, defaults=defaults)


def check_config(
    config: Mapping[str, str], *, replication_factor: int, defaults: LogConfig
) -> None:
    """InvalidConfig when a topic of so many replicas cannot have these settings."""
    LogConfig.from_settings(_of_the_log(config), defaults, others=REPLICA_SETTINGS)
    checked_min_insync(config, replicas=replication_factor)
    _unclean(config, 1)


def _of_the_log(config: Mapping[str, str]) -> dict[str, str]:
    return {name: config[name] for name in config if name not in REPLICA_SETTINGS}


@lru_cache(maxsize=_RULES_CACHED)
def _rules(settings: tuple[tuple[str, str], ...], replicas: int) -> TopicRules:
    config = dict(settings)
    min_insync = min_insync_of(config, replicas=replicas)
    try:
        unclean = _unclean(config, min_insync)
    except InvalidConfig:
        unclean = UncleanRecovery.REFUSE
    try:
        syncs_first = LogConfig.from_settings(_of_the_log(config)).flush is Flush.ACK
    except InvalidConfig:
        syncs_first = False
    return TopicRules(min_insync=min_insync, unclean=unclean, syncs_first=syncs_first)


def _unclean(config: Mapping[str, str], min_insync: int) -> UncleanRecovery:
    text = config.get(UNCLEAN)
    if text is None:
        return UncleanRecovery.REFUSE if min_insync > 1 else UncleanRecovery.LAST_LEADER
    try:
        return UncleanRecovery(text)
    except ValueError:
        allowed = ", ".join(repr(each.value) for each in UncleanRecovery)
        raise InvalidConfig(
            f"the setting {UNCLEAN!r} is {text!r}; allowed is one of {allowed}"
        ) from None
