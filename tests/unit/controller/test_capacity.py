"""New replicas go to brokers that are well, then to those that are not, then to those away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.controller.capacity import candidates, placed
from tailrace.errors import InvalidTopic
from tailrace.meta.image import ClusterImage, StoredCordon
from tailrace.meta.keys import Cordon
from tailrace.model import BrokerId
from unit.controller.images import THREE, facts, image, live, state

FULL = {BrokerId(2): "/data is full"}


def cordoned(found: ClusterImage, *brokers: int) -> ClusterImage:
    cordon = StoredCordon(Cordon(reason="", since_ms=1), 5)
    return replace(found, cordons={BrokerId(each): cordon for each in brokers})


def test_brokers_that_are_well_come_first() -> None:
    found = image(THREE)
    assert placed(found, facts(), partitions=2, replication_factor=2).assignment == {
        0: (1, 2),
        1: (2, 3),
    }
    assert placed(found, facts(unfit=FULL), partitions=2, replication_factor=2) == (
        {0: (1, 3), 1: (3, 1)},
        (),
    )


def test_one_whose_disk_is_not_well_is_used_when_there_are_too_few_and_that_is_said() -> None:
    new = placed(image(THREE), facts(unfit=FULL), partitions=2, replication_factor=3)
    assert new.assignment == {0: (1, 3, 2), 1: (3, 1, 2)}
    (warning,) = new.warnings
    assert "broker 2" in warning
    assert "/data is full" in warning


def test_a_member_that_is_away_counts_and_never_before_one_that_is_there() -> None:
    found = image(THREE[:2], {0: state(1, [1, 2])}, replicas=(1, 2, 3))
    new = placed(found, facts(), partitions=2, replication_factor=3)
    assert new.assignment == {0: (1, 2, 3), 1: (2, 1, 3)}
    assert new.warnings == (
        "broker 3 is away or shutting down: their replicas are out of sync until they are back",
    )


def test_who_is_shutting_down_is_as_good_as_away() -> None:
    found = image([live(1, draining=True), live(2), live(3)])
    assert candidates(found, facts(draining={BrokerId(3): 13})) == ({2: ""}, {}, {1: "", 3: ""})


def test_who_is_cordoned_gets_nothing_there_or_away() -> None:
    found = cordoned(image(THREE[:2], {0: state(1, [1, 2])}), 2, 3)
    assert candidates(found, facts()) == ({1: ""}, {}, {})
    with pytest.raises(InvalidTopic, match="and 1 is live; brokers 2, 3 are cordoned"):
        placed(found, facts(), partitions=1, replication_factor=2)


def test_too_few_brokers_are_told_with_those_that_are_away() -> None:
    found = image(THREE[:2], {0: state(1, [1, 2])}, replicas=(1, 2, 3))
    with pytest.raises(InvalidTopic, match="needs as many brokers, and 2 are live and 1 away"):
        placed(found, facts(), partitions=1, replication_factor=4)


def test_nobody_is_there() -> None:
    assert candidates(image([]), facts()).is_empty
