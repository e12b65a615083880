"""A topic's settings as a broker reads them, and who is told of news in a partition."""

from __future__ import annotations

import pytest

from tailrace.broker.hosted import TopicSettings
from tailrace.config import Flush, LogConfig
from tailrace.errors import InvalidConfig
from tailrace.model import TopicPartition
from unit.broker.trio import T0, Trio, simulate


def parse(config: dict[str, str], *, replicas: int = 3) -> TopicSettings:
    return TopicSettings.parse(config, replicas=replicas, defaults=LogConfig())


@pytest.mark.parametrize(("replicas", "min_insync"), [(1, 1), (2, 1), (3, 2), (5, 2)])
def test_two_of_three_replicas_must_be_in_sync_by_default(replicas: int, min_insync: int) -> None:
    assert parse({}, replicas=replicas).min_insync == min_insync


def test_a_topic_can_set_its_own() -> None:
    assert parse({"min.insync.replicas": "3", "unclean.recovery": "refuse"}).min_insync == 3


def test_the_rest_are_settings_of_the_log() -> None:
    settings = parse({"flush": "ack"})
    assert settings.log.flush is Flush.ACK
    assert settings.syncs_first
    assert not parse({}).syncs_first
    with pytest.raises(InvalidConfig):
        parse({"no.such.setting": "1"})


class _Listener:
    def __init__(self) -> None:
        self.marks: list[TopicPartition] = []

    def mark(self, partition: TopicPartition) -> None:
        self.marks.append(partition)


@simulate
async def test_those_who_read_a_partition_are_told_of_news(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0)
    listener, gone = _Listener(), _Listener()
    hosted = trio.hosted(0)
    hosted.fetchers[listener] = None
    hosted.fetchers[gone] = None
    del hosted.fetchers[gone]
    hosted.mark_fetchers()
    assert listener.marks == [T0]
    assert gone.marks == []
    hosted.mark_followers()
