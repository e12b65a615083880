"""Who may lead: every rule by itself, then all of them against a model of logs and crashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.controller.election import (
    NOBODY_LEADS,
    Brokers,
    Outcome,
    UncleanRecovery,
    first_state,
    next_state,
)
from tailrace.meta.keys import NO_BROKER, PartitionState
from tailrace.model import BrokerId, LeaderEpoch

REFUSE: Final = UncleanRecovery.REFUSE
LAST_LEADER: Final = UncleanRecovery.LAST_LEADER


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def state(
    leader: int, isr: Sequence[int], elr: Sequence[int] = (), *, epoch: int = 4, last: int = -1
) -> PartitionState:
    return PartitionState(
        controller_epoch=1,
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        isr=ids(*isr),
        elr=ids(*elr),
        last_leader=BrokerId(leader if leader >= 0 else last),
    )


def decided(
    before: PartitionState,
    live: Sequence[int],
    *,
    min_insync: int = 2,
    unclean: UncleanRecovery = REFUSE,
    replicas: Sequence[int] = (1, 2, 3),
    leader_lost_records: bool = False,
    led: Mapping[BrokerId, int] = NOBODY_LEADS,
    processes: Mapping[int, str] | None = None,
    **brokers: Sequence[int],
) -> Outcome | None:
    view: dict[str, Any] = {name: ids(*each) for name, each in brokers.items()}
    view["processes"] = {BrokerId(each): name for each, name in (processes or {}).items()}
    return next_state(
        before,
        ids(*replicas),
        Brokers(live=ids(*live), **view),
        min_insync=min_insync,
        unclean=unclean,
        controller_epoch=7,
        leader_lost_records=leader_lost_records,
        led=led,
    )


def changed(*args: Any, **kwargs: Any) -> PartitionState:
    outcome = decided(*args, **kwargs)
    assert outcome is not None
    assert outcome.state.controller_epoch == 7
    return outcome.state


def parts(state: PartitionState) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    return state.leader, state.leader_epoch, state.isr, state.elr


# ---------------------------------------------------------------------------- one rule at a time


def test_nothing_changes_while_all_are_there() -> None:
    assert decided(state(1, [1, 2, 3]), [1, 2, 3]) is None
    assert decided(state(1, [1], [2]), [1, 3]) is None


def test_the_first_live_member_of_the_isr_in_replica_order_leads() -> None:
    assert parts(changed(state(1, [3, 2, 1]), [2, 3])) == (2, 5, (3, 2), ())


def test_a_follower_that_is_gone_leaves_the_isr_in_the_same_epoch() -> None:
    assert parts(changed(state(1, [1, 2, 3]), [1, 2])) == (1, 4, (1, 2), ())


def test_who_leaves_an_isr_that_falls_below_min_insync_is_eligible() -> None:
    assert parts(changed(state(1, [1, 2]), [1, 3])) == (1, 4, (1,), (2,))
    assert parts(changed(state(1, [1], [3]), [])) == (-1, 5, (), (3, 1))


def test_the_eligible_are_forgotten_when_enough_are_in_sync() -> None:
    assert parts(changed(state(1, [1, 2], [3]), [1, 2, 3])) == (1, 4, (1, 2), ())


def test_the_eligible_lead_when_no_member_of_the_isr_can() -> None:
    after = changed(state(1, [1], [2, 3]), [3])
    assert parts(after) == (3, 5, (3,), (2, 1))


def test_the_eligible_wait_while_a_member_of_the_isr_can() -> None:
    assert parts(changed(state(1, [1, 2], [3], epoch=1), [2, 3], min_insync=3)) == (
        *(2, 2),
        *((2,), (3, 1)),
    )


def test_the_last_members_stay_in_sync_when_one_is_enough() -> None:
    offline = changed(state(1, [1]), [2, 3], min_insync=1)
    assert parts(offline) == (-1, 5, (1,), ())
    assert offline.last_leader == 1
    both = changed(state(1, [1, 2]), [3], min_insync=1)
    assert parts(both) == (-1, 5, (1, 2), ())
    assert parts(changed(both, [2, 3], min_insync=1)) == (2, 6, (2,), ())


def test_an_offline_partition_gets_a_leader_as_soon_as_one_is_there() -> None:
    assert parts(changed(state(-1, [], [2, 1], last=1), [1])) == (1, 5, (1,), (2,))


def test_an_offline_partition_stays_as_it_is_while_nobody_is_there() -> None:
    assert decided(state(-1, [], [2], last=2), [1, 3]) is None
    assert decided(state(-1, [1], last=1), [2, 3], min_insync=1, unclean=LAST_LEADER) is None


def test_an_offline_partition_that_changes_keeps_its_epoch() -> None:
    after = changed(state(-1, [], [2, 1], last=2), [1, 2], lost_tail=[1, 2])
    assert parts(after) == (-1, 4, (), ())


def test_f12_who_lost_its_tail_is_in_neither_set() -> None:
    assert parts(changed(state(1, [1, 2, 3]), [1, 2, 3], lost_tail=[1])) == (2, 5, (2, 3), ())
    assert parts(changed(state(1, [1], [2]), [1, 2], lost_tail=[2])) == (1, 4, (1,), ())
    assert parts(changed(state(1, [1], [2]), [1, 2], lost_tail=[1])) == (2, 5, (2,), ())
    assert parts(changed(state(-1, [], [1, 2], last=1), [1], lost_tail=[1])) == (-1, 4, (), (2,))


def test_f12_nobody_left_is_refused_where_two_must_be_in_sync() -> None:
    outcome = decided(state(-1, [], [1], last=1), [1, 2], lost_tail=[1])
    assert outcome is not None
    assert parts(outcome.state) == (-1, 4, (), ())
    assert outcome.candidates[-1].endswith("unclean.recovery is refuse")
    assert decided(outcome.state, [1, 2, 3]) is None


def test_f12_nobody_left_brings_back_the_last_leader_with_a_loss_statement() -> None:
    lost = changed(state(-1, [1], last=1), [1, 2], lost_tail=[1], min_insync=1, unclean=LAST_LEADER)
    # While its tail counts as lost it may not lead: first that is forgotten everywhere.
    assert parts(lost) == (-1, 4, (), ())
    outcome = decided(lost, [1, 2], min_insync=1, unclean=LAST_LEADER)
    assert outcome is not None
    assert parts(outcome.state) == (1, 5, (1,), ())
    assert "epoch 4" in outcome.loss
    assert "broker 1" in outcome.loss


def test_unclean_recovery_takes_nobody_but_the_last_leader() -> None:
    assert decided(state(-1, [], last=1), [2, 3], unclean=LAST_LEADER) is None
    assert decided(state(-1, [], last=9), [1, 2, 9], unclean=LAST_LEADER) is None


def test_unclean_recovery_waits_for_one_that_holds_everything() -> None:
    outcome = decided(state(1, [1], [2]), [3], unclean=LAST_LEADER)
    assert outcome is not None
    assert outcome.state.leader == NO_BROKER
    assert outcome.candidates[-1] == "waiting for one that holds everything committed"


def test_a_draining_leader_hands_over_to_one_in_sync() -> None:
    assert parts(changed(state(1, [1, 2, 3]), [1, 2, 3], draining=[1])) == (2, 5, (1, 2, 3), ())
    assert parts(changed(state(1, [1, 2, 3]), [1, 2, 3], draining=[1, 2])) == (
        *(3, 5),
        *((1, 2, 3), ()),
    )


def test_a_draining_leader_stays_while_nobody_in_sync_can_take_over() -> None:
    assert decided(state(2, [2]), [1, 2, 3], draining=[2], min_insync=1) is None
    assert decided(state(2, [1, 2]), [1, 2, 3], draining=[1, 2]) is None
    # The eligible lack what is not committed: they would cut it off while it is still there.
    assert decided(state(1, [1], [2]), [1, 2], draining=[1]) is None
    # It goes on, with what is left of its ISR.
    assert parts(changed(state(1, [1, 2]), [1, 3], draining=[1])) == (1, 4, (1,), (2,))


def test_a_draining_member_is_taken_when_the_leader_is_gone_and_nobody_else_is_in_sync() -> None:
    assert parts(changed(state(1, [1, 2, 3]), [2, 3], draining=[2])) == (3, 5, (2, 3), ())
    assert parts(changed(state(1, [1, 2]), [2, 3], draining=[2])) == (2, 5, (2,), (1,))
    assert parts(changed(state(1, [1], [2, 3]), [2, 3], draining=[2])) == (3, 5, (3,), (2, 1))


def test_the_spared_keep_what_they_have_and_get_nothing_new() -> None:
    assert decided(state(1, [1, 2, 3]), [3], spared=[1, 2]) is None
    assert parts(changed(state(1, [1, 2]), [3], spared=[2])) == (-1, 5, (2,), (1,))
    assert parts(changed(state(1, [1, 2, 3]), [3], spared=[2])) == (3, 5, (2, 3), ())


def test_a_leader_whose_process_started_anew_goes_on_in_a_new_epoch() -> None:
    """Its disk may be an older copy: other records must not have the epoch of those it had."""
    first = changed(state(-1, [], [1]), [1, 2, 3], processes={1: "a"})
    assert (first.leader, first.leader_process) == (1, "a")
    whole = replace(first, isr=ids(1, 2, 3), elr=())
    assert decided(whole, [1, 2, 3], processes={1: "a"}) is None
    again = changed(whole, [1, 2, 3], processes={1: "b"})
    assert (again.leader, again.leader_process, again.isr) == (1, "b", ids(1, 2, 3))
    assert again.leader_epoch == whole.leader_epoch + 1
    # It is not registered, or a broker of an older version: nothing says that it is another.
    assert decided(whole, [1, 2, 3], processes={}) is None
    assert decided(replace(whole, leader_process=""), [1, 2, 3], processes={1: "b"}) is None


def test_a_leader_that_lost_records_of_its_epoch_goes_on_in_a_new_one() -> None:
    after = changed(state(1, [1, 2, 3]), [1, 2, 3], leader_lost_records=True)
    assert parts(after) == (1, 5, (1, 2, 3), ())
    # Who is offline has no leader that could have lost something.
    assert decided(state(-1, [], [2], last=2), [1], leader_lost_records=True) is None


def test_min_insync_beyond_the_number_of_replicas_counts_as_that_number() -> None:
    one = [1]
    assert parts(changed(state(1, one), [], replicas=one)) == (-1, 5, (1,), ())


def test_every_candidate_is_accounted_for() -> None:
    outcome = decided(
        state(1, [1, 2, 3], []), [2, 3, 4, 5], replicas=(1, 2, 3, 4, 5), draining=[2], lost_tail=[5]
    )
    assert outcome is not None
    assert outcome.candidates == (
        "1: in sync, not registered",
        "2: in sync, shutting down",
        "3: in sync, taken",
        "4: not in sync, not taken",
        "5: not in sync, may have lost its tail",
    )


@pytest.mark.parametrize(
    ("live", "min_insync", "expected"),
    [
        ((1, 2, 3), 2, (1, 0, (1, 2, 3), ())),
        ((2, 3), 2, (2, 0, (2, 3), ())),
        ((3,), 2, (3, 0, (3,), (1, 2))),
        ((3,), 1, (3, 0, (3,), ())),
        ((), 1, (-1, 0, (1, 2, 3), ())),
        ((), 2, (-1, 0, (), (1, 2, 3))),
    ],
)
def test_a_new_partition_is_led_by_its_first_live_replica(
    live: tuple[int, ...], min_insync: int, expected: tuple[Any, ...]
) -> None:
    outcome = first_state(
        ids(1, 2, 3), Brokers(live=ids(*live)), min_insync=min_insync, controller_epoch=7
    )
    assert parts(outcome.state) == expected


def test_a_new_partition_does_not_begin_with_those_that_are_shutting_down() -> None:
    brokers = Brokers(live=ids(1, 2, 3), draining=ids(1, 2), cordoned=ids(2))
    outcome = first_state(ids(1, 2, 3), brokers, min_insync=2, controller_epoch=7)
    assert parts(outcome.state) == (3, 0, (2, 3), ())
    # Unless nobody else is there.
    outcome = first_state(ids(1), brokers, min_insync=1, controller_epoch=7)
    assert parts(outcome.state) == (1, 0, (1,), ())


def test_a_new_partition_can_be_led_by_one_that_lost_its_tail_of_others() -> None:
    brokers = Brokers(live=ids(1), lost_tail=ids(1))
    outcome = first_state(ids(1), brokers, min_insync=1, controller_epoch=7)
    assert parts(outcome.state) == (1, 0, (1,), ())


# ------------------------------------------------------------------------------- against a model


# ------------------------------------------------------------------------- who leads the fewest


def test_of_those_in_sync_the_first_replica_leads_else_who_leads_the_fewest() -> None:
    led = {BrokerId(1): 9, BrokerId(2): 5, BrokerId(3): 4}
    # The first one is meant to lead, however much it leads.
    assert changed(state(3, [1, 2, 3]), [1, 2], led=led).leader == 1
    assert changed(state(1, [1, 2, 3]), [2, 3], led=led).leader == 3
    # Of those who lead as many, and where nobody has counted, the next one.
    assert changed(state(1, [1, 2, 3]), [2, 3], led={BrokerId(1): 9}).leader == 2
    assert changed(state(1, [1, 2, 3]), [2, 3]).leader == 2
    # Who shuts down leads only what nobody else can, however little it leads.
    assert changed(state(1, [1, 2, 3]), [2, 3], draining=[3], led=led).leader == 2
    # Nobody who is not in sync leads, however little it leads.
    assert changed(state(1, [1, 2]), [2, 3], led=led).leader == 2


BROKERS: Final = st.lists(st.sampled_from((1, 2, 3, 4, 5)), unique=True)


@given(data=st.data())
def test_how_much_brokers_lead_decides_only_between_those_who_are_as_good(
    data: st.DataObject,
) -> None:
    replicas = data.draw(st.permutations((1, 2, 3, 4, 5)))
    isr = data.draw(BROKERS.filter(bool))
    elr = [each for each in data.draw(BROKERS) if each not in isr]
    before = state(data.draw(st.sampled_from([*isr, -1])), isr, elr)
    min_insync = data.draw(st.integers(1, 5))
    brokers = {name: data.draw(BROKERS) for name in ("draining", "lost_tail", "spared")}
    live = data.draw(BROKERS)
    led = data.draw(st.dictionaries(st.sampled_from(ids(1, 2, 3, 4, 5)), st.integers(0, 9)))
    given_all: dict[str, Any] = {"replicas": replicas, "min_insync": min_insync, **brokers}
    found = decided(before, live, led=led, **given_all)
    assert found == decided(before, live, led=led, **given_all)
    plain = decided(before, live, **given_all)
    if found is None or plain is None:
        assert found is plain
        return
    new, old = found.state, plain.state
    assert (new.leader_epoch, found.loss) == (old.leader_epoch, plain.loss)
    assert (new.leader == -1) is (old.leader == -1)
    assert {*new.isr, *new.elr} == {*old.isr, *old.elr} or new.elr == old.elr == ()
    if new.leader != old.leader:
        # Both may lead, and one of them is not preferred to the other by anything else.
        both = {new.leader, old.leader}
        assert replicas[0] not in both
        assert both <= {*live} - {*brokers["lost_tail"]}
        assert both <= {*isr} or both <= {*elr, *isr}
        assert (new.leader in before.isr) is (old.leader in before.isr)
        assert (new.leader in brokers["draining"]) is (old.leader in brokers["draining"])
        assert led.get(new.leader, 0) < led.get(old.leader, 0)


@dataclass
class Replica:
    """A replica's log, as the epochs of its records, and how much of it is on the disk."""

    log: list[tuple[int, int]] = field(default_factory=list)
    synced: int = 0
    alive: bool = True
    lost_tail: bool = False


class Model:
    """One partition: leaders append, followers copy, brokers come and go, the rule decides."""

    def __init__(self, seed: int, *, replicas: int, min_insync: int) -> None:
        self.rng = Random(seed)
        self.replicas = {BrokerId(each): Replica() for each in range(1, replicas + 1)}
        self.min_insync = min_insync
        self.committed: list[tuple[int, int]] = []
        self.next_record = 0
        self.epoch_start = 0
        self.state = first_state(
            ids(*self.replicas), self.brokers(), min_insync=min_insync, controller_epoch=1
        ).state

    def brokers(self) -> Brokers:
        live = [each for each, replica in self.replicas.items() if replica.alive]
        lost = [each for each in live if self.replicas[each].lost_tail]
        return Brokers(live=live, lost_tail=lost)

    def step(self) -> None:
        often = [self.append, self.copy, self.commit, self.start, self.decide, self.expand]
        seldom = [self.shrink, self.sync, self.kill]
        (action,) = self.rng.choices(
            [*often, *seldom, self.power_loss],
            [*([10] * len(often)), *([3] * len(seldom)), 1],
        )
        action()

    @property
    def leader(self) -> Replica | None:
        leader = self.replicas.get(self.state.leader)
        return leader if leader is not None and leader.alive and not leader.lost_tail else None

    def append(self) -> None:
        if self.leader is not None:
            self.next_record += 1
            self.leader.log.append((self.state.leader_epoch, self.next_record))

    def copy(self) -> None:
        """A follower truncates to what it has in common with the leader, and copies some more."""
        if self.leader is None:
            return
        follower = self.replicas[self.rng.choice(list(self.replicas))]
        if follower is self.leader or not follower.alive or follower.lost_tail:
            return
        same = 0
        for mine, theirs in zip(follower.log, self.leader.log, strict=False):
            if mine != theirs:
                break
            same += 1
        upto = self.rng.randint(same, len(self.leader.log))
        follower.log[:] = self.leader.log[:upto]
        follower.synced = min(follower.synced, same)

    def commit(self) -> None:
        """What all in sync have is committed, if enough are in sync."""
        if self.leader is None or len(self.state.isr) < self.min_insync:
            return
        end = min(len(self.replicas[each].log) for each in self.state.isr)
        if all(self.replicas[each].log[:end] == self.leader.log[:end] for each in self.state.isr):
            self.committed = max(self.committed, self.leader.log[:end], key=len)

    def shrink(self) -> None:
        """The leader takes a follower out, which is eligible if too few are left."""
        others = [each for each in self.state.isr if each != self.state.leader]
        if self.leader is None or not others:
            return
        out = self.rng.choice(others)
        isr = tuple(each for each in self.state.isr if each != out)
        elr = (*self.state.elr, out) if len(isr) < self.min_insync else ()
        self.state = self.replaced(isr, elr)

    def expand(self) -> None:
        """The leader takes a follower in that has all that can be committed by now."""
        if self.leader is None:
            return
        for each, replica in self.replicas.items():
            if (
                each not in self.state.isr
                and replica.alive
                and not replica.lost_tail
                and replica.log == self.leader.log[: len(replica.log)]
                and len(replica.log) >= max(len(self.committed), self.epoch_start)
            ):
                isr = (*self.state.isr, each)
                enough = len(isr) >= self.min_insync
                elr = () if enough else tuple(b for b in self.state.elr if b != each)
                self.state = self.replaced(isr, elr)
                return

    def replaced(self, isr: tuple[BrokerId, ...], elr: tuple[BrokerId, ...]) -> PartitionState:
        return PartitionState(
            controller_epoch=1,
            leader=self.state.leader,
            leader_epoch=self.state.leader_epoch,
            isr=isr,
            elr=elr,
            last_leader=self.state.last_leader,
        )

    def sync(self) -> None:
        for replica in self.replicas.values():
            if replica.alive:
                replica.synced = len(replica.log)

    def kill(self) -> None:
        """The process dies: the page cache keeps its log."""
        self.replicas[self.rng.choice(list(self.replicas))].alive = False

    def power_loss(self) -> None:
        """The machine goes down: what was not synced may be gone."""
        replica = self.replicas[self.rng.choice(list(self.replicas))]
        replica.alive = False
        replica.lost_tail = True
        del replica.log[self.rng.randint(min(replica.synced, len(replica.log)), len(replica.log)) :]

    def start(self) -> None:
        self.replicas[self.rng.choice(list(self.replicas))].alive = True

    def decide(self) -> None:
        outcome = next_state(
            self.state,
            ids(*self.replicas),
            self.brokers(),
            min_insync=self.min_insync,
            unclean=REFUSE,
            controller_epoch=1,
            led={each: self.rng.randrange(5) for each in self.replicas},
        )
        if outcome is not None:
            self.check(outcome)
            self.state = outcome.state
            if self.leader is not None:
                self.epoch_start = len(self.leader.log)
        elif not any(each.lost_tail and each.alive for each in self.replicas.values()):
            return
        for replica in self.replicas.values():
            if replica.alive:
                # What it may have lost counts no more.
                replica.lost_tail = False

    def check(self, outcome: Outcome) -> None:
        before, after = self.state, outcome.state
        assert (after.leader == before.leader) == (after.leader_epoch == before.leader_epoch)
        assert not (len(after.isr) >= self.min_insync and after.elr)
        if after.leader == NO_BROKER:
            return
        leader = self.replicas[after.leader]
        assert leader.alive
        assert outcome.loss == ""
        assert leader.log[: len(self.committed)] == self.committed, "acknowledged records are lost"


@pytest.mark.parametrize(
    ("replicas", "min_insync"), [(1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (5, 3)]
)
def test_no_clean_election_loses_what_was_committed(replicas: int, min_insync: int) -> None:
    committed = elections = 0
    for seed in range(150):
        model = Model(seed, replicas=replicas, min_insync=min_insync)
        for _ in range(120):
            model.step()
        committed += len(model.committed)
        elections += model.state.leader_epoch
    # The model does not prove its point by doing nothing.
    assert committed > 100
    assert elections > 100
