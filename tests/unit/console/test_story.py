from __future__ import annotations

from dataclasses import replace

from tailrace.client.metadata import ClusterPicture, PartitionPicture, TopicPicture
from tailrace.console.story import CHAPTERS_MAX, Story, had_others, moved
from tailrace.meta.keys import LeaderChange
from tailrace.model import BrokerId, LeaderEpoch, TopicPartition


def change(epoch: int, *, at_ms: int = 1_000, cause: str = "broker 1: gone") -> LeaderChange:
    return LeaderChange(
        decided_ms=at_ms,
        cause=cause,
        noticed_ms=at_ms - 20,
        old_leader=BrokerId(1),
        new_leader=BrokerId(2),
        leader_epoch=LeaderEpoch(epoch),
        old_isr=(BrokerId(1), BrokerId(2)),
        new_isr=(BrokerId(2),),
        candidates=(),
        controller_id=1,
        controller_epoch=1,
    )


def test_one_failover_of_many_partitions_is_one_chapter() -> None:
    story = Story()
    for number in range(20):
        assert story.add(TopicPartition("t", number), [change(1, at_ms=1_000 + number)])
    # Told again, it is no news.
    assert not story.add(TopicPartition("t", 0), [change(1)])
    assert story.add(TopicPartition("t", 0), [change(2, at_ms=9_000)])
    assert story.add(TopicPartition("t", 1), [change(2, at_ms=9_000, cause="another")])
    chapters = [each.as_dict() for each in story.chapters()]
    assert [each["count"] for each in chapters] == [1, 1, 20]
    assert chapters[-1]["took_ms"] == 1_019 - 980
    assert chapters[-1]["moves"][0] == {
        "partition": "t-0",
        "from": 1,
        "to": 2,
        "epoch": 1,
        "loss": "",
    }


def test_old_chapters_are_forgotten() -> None:
    story = Story()
    for number in range(CHAPTERS_MAX + 5):
        story.add(TopicPartition("t", 0), [change(number + 1, at_ms=number * 10_000)])
    assert len(story.chapters()) == CHAPTERS_MAX
    assert story.chapters()[0].decided_ms == (CHAPTERS_MAX + 4) * 10_000


def test_partitions_whose_leader_is_another() -> None:
    def picture(*leaders: tuple[int, int], topic_id: str = "id") -> ClusterPicture:
        partitions = tuple(PartitionPicture(*each, (1, 2), (1, 2)) for each in leaders)
        return ClusterPicture(revision=1, topics={"t": TopicPicture(topic_id, partitions)})

    before = picture((1, 0), (2, 0))
    assert moved(before, before) == []
    assert moved(before, picture((1, 0), (1, 1), (1, 0))) == [TopicPartition("t", 1)]
    # Another topic of the same name, and one that is new, have no past.
    assert moved(before, picture((2, 5), (1, 5), topic_id="other")) == []
    assert moved(ClusterPicture(), replace(before, revision=2)) == []


def test_partitions_that_had_another_leader_before() -> None:
    partitions = tuple(PartitionPicture(1, epoch, (1, 2), (1, 2)) for epoch in (0, 3, 0, 1))
    picture = ClusterPicture(revision=1, topics={"t": TopicPicture("id", partitions)})
    assert had_others(picture) == [TopicPartition("t", 1), TopicPartition("t", 3)]
