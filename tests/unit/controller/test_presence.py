"""Who is there, why somebody is not, and whom the damper spares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tailrace.controller.facts import Cause
from tailrace.controller.presence import Presence
from tailrace.meta.image import ClusterImage, LiveBroker, StoredDeletion, StoredState
from tailrace.meta.keys import BrokerRegistration, PartitionState, TopicDeletion
from tailrace.model import BrokerId, LeaderEpoch, TopicId

WINDOW_MS: Final = 5_000


def live(broker: int, epoch: int, **facts: Any) -> LiveBroker:
    registration = BrokerRegistration(
        broker_id=BrokerId(broker),
        host="h",
        port=1,
        link_host="h",
        link_port=2,
        incarnation="i",
    )
    return LiveBroker(replace(registration, **facts), epoch, epoch)


def image(
    brokers: dict[int, int] | Sequence[LiveBroker], led: Sequence[tuple[int, Sequence[int]]] = ()
) -> ClusterImage:
    """Brokers with their epochs, and partitions with their leaders and ISRs."""
    if isinstance(brokers, dict):
        brokers = [live(broker, epoch) for broker, epoch in brokers.items()]
    states = {
        number: StoredState(
            PartitionState(
                controller_epoch=1,
                leader=BrokerId(leader),
                leader_epoch=LeaderEpoch(1),
                isr=tuple(map(BrokerId, isr)),
            ),
            50,
        )
        for number, (leader, isr) in enumerate(led)
    }
    return ClusterImage(
        revision=100,
        brokers={each.registration.broker_id: each for each in brokers},
        states={"t": states},
    )


def present(
    brokers: dict[int, int] | Sequence[LiveBroker], led: Sequence[tuple[int, Sequence[int]]] = ()
) -> Presence:
    presence = Presence(window_ms=WINDOW_MS)
    presence.take_over(image(brokers, led), now_ms=0, wall_ms=0)
    return presence


def observe(presence: Presence, brokers: Any, now_ms: int) -> list[BrokerId]:
    return presence.observe(image(brokers), now_ms=now_ms, wall_ms=1_000 + now_ms)


ALL: Final = {1: 11, 2: 12, 3: 13}


def test_one_that_vanishes_is_not_spared_and_has_a_cause() -> None:
    presence = present(ALL)
    assert observe(presence, {1: 11, 3: 13}, 10) == []
    assert presence.causes[BrokerId(2)] == Cause("broker 2: its lease ended", 1_010)
    assert presence.registrations[BrokerId(2)].epoch == 12


def test_f16_more_than_half_at_once_are_spared_for_one_lease_period() -> None:
    presence = present(ALL)
    gone = image({3: 13})
    assert presence.looks_like_a_hiccup(gone, now_ms=10)
    assert presence.observe(gone, now_ms=10, wall_ms=10) == [1, 2]
    assert presence.spared == {1: 10 + WINDOW_MS, 2: 10 + WINDOW_MS}


def test_f16_more_than_half_one_after_the_other_are_spared_too() -> None:
    presence = present(ALL)
    assert observe(presence, {2: 12, 3: 13}, 10) == []
    assert not presence.looks_like_a_hiccup(image({2: 12, 3: 13}), now_ms=20)
    assert presence.looks_like_a_hiccup(image({3: 13}), now_ms=WINDOW_MS)
    assert observe(presence, {3: 13}, WINDOW_MS) == [1, 2]


def test_losses_far_apart_are_no_hiccup() -> None:
    presence = present(ALL)
    observe(presence, {2: 12, 3: 13}, 10)
    assert observe(presence, {3: 13}, 11 + WINDOW_MS) == []
    assert presence.spared == {}


def test_one_that_vanishes_while_the_store_is_in_trouble_is_spared() -> None:
    presence = present(ALL)
    gone = image({1: 11, 3: 13})
    assert presence.observe(gone, now_ms=10, wall_ms=10, shaken=True) == [2]
    assert presence.spared == {2: 10 + WINDOW_MS}


def test_one_that_vanished_before_the_trouble_was_replaced_and_stays_so() -> None:
    presence = present({**ALL, 4: 14, 5: 15})
    assert observe(presence, {1: 11, 3: 13, 4: 14, 5: 15}, 10) == []
    gone = image({3: 13, 4: 14, 5: 15})
    assert presence.observe(gone, now_ms=20, wall_ms=20, shaken=True) == [1]


def test_trouble_of_the_store_spares_nobody_who_stopped_or_whose_process_is_gone() -> None:
    presence = present([live(1, 11, draining=True), live(2, 12), live(3, 13)])
    presence.explain(BrokerId(2), 12, Cause("refused", 5))
    assert presence.observe(image({3: 13}), now_ms=10, wall_ms=10, shaken=True) == []
    assert presence.spared == {}


def test_one_that_is_missing_after_trouble_of_the_store_is_spared_by_the_next_controller() -> None:
    presence = Presence(window_ms=WINDOW_MS, remembered={BrokerId(2): live(2, 12)})
    first = image({1: 11, 3: 13}, led=[(1, (1, 2, 3))])
    assert presence.take_over(first, now_ms=7, wall_ms=7, shaken=True) == [2]
    assert presence.spared == {2: 7 + WINDOW_MS}
    assert presence.registrations[BrokerId(2)].epoch == 12


def test_two_brokers_have_no_damper() -> None:
    presence = present({1: 11, 2: 12})
    assert observe(presence, {}, 10) == []
    assert not presence.has_puzzle(image({}))


def test_those_whose_process_is_gone_are_no_hiccup() -> None:
    presence = present(ALL)
    for broker in (1, 2):
        presence.explain(BrokerId(broker), ALL[broker], Cause("refused", 5))
    assert not presence.has_puzzle(image({3: 13}))
    assert not presence.looks_like_a_hiccup(image({3: 13}), now_ms=10)
    assert observe(presence, {3: 13}, 10) == []
    assert presence.causes[BrokerId(1)] == Cause("refused", 5)


def test_an_explanation_is_for_one_life_only() -> None:
    presence = present(ALL)
    presence.explain(BrokerId(1), 11, Cause("refused", 5))
    observe(presence, {1: 21, 2: 12, 3: 13}, 10)
    assert presence.has_puzzle(image({2: 12, 3: 13}))
    observe(presence, {2: 12, 3: 13}, 20)
    assert presence.causes[BrokerId(1)].text == "broker 1: its lease ended"


def test_those_who_stop_in_order_are_no_hiccup() -> None:
    presence = present([live(1, 11, draining=True), live(2, 12), live(3, 13)])
    assert presence.drain(BrokerId(2), 12, 5)
    assert not presence.drain(BrokerId(2), 12, 6)
    assert presence.draining == {1: 11, 2: 12}
    assert presence.causes[BrokerId(2)] == Cause("broker 2 is shutting down", 5)
    assert observe(presence, {3: 13}, 10) == []
    assert presence.causes[BrokerId(1)].text == "broker 1 stopped in order"


def test_draining_is_seen_when_the_registration_says_so_later() -> None:
    presence = present(ALL)
    observe(presence, [live(1, 11, draining=True), live(2, 12), live(3, 13)], 10)
    assert presence.draining == {1: 11}
    assert presence.registrations[BrokerId(1)].registration.draining


def test_who_registers_anew_is_spared_no_longer() -> None:
    presence = present(ALL)
    observe(presence, {3: 13}, 10)
    assert observe(presence, {1: 21, 3: 13}, 20) == []
    assert presence.spared == {2: 10 + WINDOW_MS}
    assert presence.causes[BrokerId(1)].text == "broker 1 registered (epoch 21)"
    # One of three is no hiccup, nor does the one that is back count any more.
    assert observe(presence, {1: 21}, 30) == [3]


def test_who_is_spared_can_be_given_up() -> None:
    presence = present(ALL)
    observe(presence, {3: 13}, 10)
    assert presence.give_up(BrokerId(1), "it does not answer", 7)
    assert presence.causes[BrokerId(1)].text == (
        "broker 1: its lease ended, and it does not answer"
    )
    assert not presence.give_up(BrokerId(1), "it does not answer", 8)
    assert list(presence.spared) == [2]


def test_a_lost_tail_is_told_in_the_cause() -> None:
    presence = present([live(1, 11, tail_may_be_lost=True)])
    assert presence.causes[BrokerId(1)].text == (
        "broker 1 registered (epoch 11) after its machine went down: its tail may be lost"
    )


def test_a_controller_that_takes_over_spares_the_many_it_misses() -> None:
    led = [(1, [1, 2, 3]), (2, [2, 3])]
    presence = Presence(window_ms=WINDOW_MS)
    assert presence.take_over(image({3: 13}, led), now_ms=0, wall_ms=0) == [1, 2]
    assert "took over" in presence.causes[BrokerId(1)].text


def test_a_controller_that_takes_over_does_not_wait_for_one() -> None:
    led = [(1, [1, 2, 3])]
    presence = Presence(window_ms=WINDOW_MS)
    assert presence.take_over(image({2: 12, 3: 13}, led), now_ms=0, wall_ms=0) == []
    # But counts it, when more follow.
    assert observe(presence, {3: 13}, 100) == [1, 2]


def test_those_who_lead_nothing_are_not_missed() -> None:
    presence = Presence(window_ms=WINDOW_MS)
    offline = image({3: 13}, [(-1, [1, 2])])
    assert presence.take_over(offline, now_ms=0, wall_ms=0) == []
    deletion = StoredDeletion(TopicDeletion(topic_id=TopicId("x")), 1)
    deleting = replace(image({3: 13}, [(1, [1, 2])]), deletions={"t": deletion})
    assert Presence(window_ms=WINDOW_MS).take_over(deleting, now_ms=0, wall_ms=0) == []


def test_what_an_earlier_term_remembers_is_where_to_ask() -> None:
    presence = Presence(window_ms=WINDOW_MS, remembered={BrokerId(7): live(7, 5)})
    presence.take_over(image(ALL), now_ms=0, wall_ms=0)
    assert sorted(presence.registrations) == [1, 2, 3, 7]


def test_the_same_image_again_is_no_news() -> None:
    presence = present(ALL)
    same = image({1: 11})
    presence.observe(same, now_ms=10, wall_ms=10)
    assert presence.observe(same, now_ms=10_000, wall_ms=10) == []


def test_a_broker_says_that_it_is_unfit_and_later_that_it_is_not() -> None:
    presence = present({1: 11, 2: 12})
    assert not presence.note_fitness(BrokerId(1), "", 5)
    assert presence.note_fitness(BrokerId(1), "/a is slow", 6)
    assert not presence.note_fitness(BrokerId(1), "/a is slow and full", 7)
    assert presence.unfit == {1: "/a is slow and full"}
    assert presence.causes[BrokerId(1)] == Cause("broker 1 is unfit to lead: /a is slow", 6)
    assert presence.note_fitness(BrokerId(1), "", 8)
    assert presence.unfit == {}
    presence.note_fitness(BrokerId(1), "/a is slow", 9)
    presence.observe(image({1: 21, 2: 12}), now_ms=10, wall_ms=10)
    assert presence.unfit == {}
