"""What a topic may be, and the rules that its settings make."""

from __future__ import annotations

import pytest

from tailrace.config import LogConfig
from tailrace.controller.election import UncleanRecovery
from tailrace.controller.topics import PARTITIONS_MAX, TopicRules, check_topic
from tailrace.errors import InvalidConfig, InvalidTopic, TailraceError


def check(name: str = "t", *, partitions: int = 1, factor: int = 3, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    check_topic(
        name,
        settings,
        partitions=partitions,
        replication_factor=factor,
        defaults=LogConfig(),
    )


def test_good_topics_pass() -> None:
    check()
    check("a.b-c_D9", partitions=PARTITIONS_MAX, factor=1)
    check(min_insync_replicas="3", unclean_recovery="last-leader", retention_ms="1000")


@pytest.mark.parametrize(
    ("kind", "message", "arguments"),
    [
        (InvalidTopic, "must not be empty", {"name": ""}),
        (InvalidTopic, "letters, digits", {"name": "a/b"}),
        (InvalidTopic, "1 to 10000 partitions, not 0", {"partitions": 0}),
        (InvalidTopic, "not 10001", {"partitions": PARTITIONS_MAX + 1}),
        (InvalidTopic, "1 to 100 replicas, not 0", {"factor": 0}),
        (InvalidTopic, "not 101", {"factor": 101}),
        (InvalidConfig, "from 1 to 3, the number of replicas", {"min_insync_replicas": "4"}),
        (InvalidConfig, "'min.insync.replicas' is '0'", {"min_insync_replicas": "0"}),
        (InvalidConfig, "is 'two'", {"min_insync_replicas": "two"}),
        (InvalidConfig, "is '²'", {"min_insync_replicas": "²"}),
        (InvalidConfig, "'refuse', 'last-leader'", {"unclean_recovery": "yes"}),
        (InvalidConfig, "retention.ms", {"retention_ms": "soon"}),
        (InvalidConfig, "no setting 'retention.weeks'", {"retention_weeks": "1"}),
        (InvalidConfig, "did you mean 'min.insync.replicas'", {"min_insync_replica": "1"}),
    ],
)
def test_bad_topics_are_refused_with_the_reason(
    kind: type[TailraceError], message: str, arguments: dict[str, object]
) -> None:
    with pytest.raises(kind, match=message):
        check(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("replicas", "config", "expected"),
    [
        (3, {}, (2, UncleanRecovery.REFUSE, False)),
        (2, {}, (1, UncleanRecovery.LAST_LEADER, False)),
        (1, {"flush": "ack"}, (1, UncleanRecovery.LAST_LEADER, True)),
        (3, {"min.insync.replicas": "1"}, (1, UncleanRecovery.LAST_LEADER, False)),
        (3, {"unclean.recovery": "last-leader"}, (2, UncleanRecovery.LAST_LEADER, False)),
        # What another version has stored and this one cannot read counts as not given.
        (3, {"min.insync.replicas": "some"}, (2, UncleanRecovery.REFUSE, False)),
        (3, {"min.insync.replicas": "9"}, (3, UncleanRecovery.REFUSE, False)),
        (2, {"unclean.recovery": "maybe"}, (1, UncleanRecovery.REFUSE, False)),
        (3, {"flush": "often"}, (2, UncleanRecovery.REFUSE, False)),
    ],
)
def test_rules_come_from_settings_and_defaults(
    replicas: int, config: dict[str, str], expected: tuple[int, UncleanRecovery, bool]
) -> None:
    rules = TopicRules.of(config, replicas=replicas)
    assert (rules.min_insync, rules.unclean, rules.syncs_first) == expected
