from __future__ import annotations

from dataclasses import replace

from tailrace.controller.counting import count_changes, tally
from tailrace.meta.keys import encode, state_key
from tailrace.meta.store import Delete, Put
from tailrace.metrics.controller import PartitionTally
from tailrace.metrics.values import ControllerCounts
from tailrace.model import TopicPartition
from unit.controller.images import image, live, state

BROKERS = [live(1), live(2), live(3)]


def test_partitions_are_counted_by_what_is_wrong_with_them() -> None:
    states = {
        0: state(1, [1, 2, 3]),
        1: state(2, [2, 3]),
        2: state(1, [1]),
        # Nobody leads: that one of them may lead again makes nobody in sync.
        3: state(-1, [1, 2, 3]),
    }
    assert tally(image(BROKERS, states, partitions=5)) == PartitionTally(
        # The fifth has no state yet.
        partitions=5,
        offline=2,
        under_replicated=4,
        under_min_isr=3,
        not_preferred=1,
    )


def test_what_is_being_deleted_is_not_missed() -> None:
    assert tally(image(BROKERS, {0: state(-1, [1])}, deleting=True)) == PartitionTally()


def test_min_insync_is_that_of_the_topic() -> None:
    found = tally(image(BROKERS, {0: state(1, [1])}, config={"min.insync.replicas": "1"}))
    assert (found.under_min_isr, found.under_replicated) == (0, 1)


def test_leaders_that_change_and_leaders_that_are_lost() -> None:
    counts = ControllerCounts()
    before = {0: state(1, [1, 2]), 1: state(1, [1, 2]), 2: state(1, [1]), 3: state(1, [1])}
    lossy = state(3, [3])
    lossy = lossy._replace(state=replace(lossy.state, loss="offsets from 7 on"))
    after = {0: state(2, [2]), 1: before[1], 2: state(-1, [1]), 3: lossy, 4: state(1, [1])}
    puts = [
        Put(state_key(TopicPartition("t", number)), encode(stored.state))
        for number, stored in after.items()
    ]
    count_changes(counts, image(BROKERS, before), [*puts, Put("/other", b"?"), Delete("/gone")])
    # The fifth partition is new: nobody led it before.
    assert (counts.leader_changes, counts.leaders_lost, counts.losses) == (2, 1, 1)
    assert counts.commits == 1


def test_l4_partitions_that_wait_for_a_person_are_counted() -> None:
    waiting = state(-1, [1, 2])
    waiting = waiting._replace(state=replace(waiting.state, conflict="2 knows more"))
    assert tally(image(BROKERS, {0: waiting, 1: state(1, [1, 2])})).undecided == 1
