"""The whole rule of how a partition's state changes: who leads, who is in sync, who is eligible.

Pure: the stored state and what is known of the brokers in, the next state and the reasons out.

Theory. A record is committed when every in-sync replica has it, and the high watermark does not
move while fewer than `min_insync` replicas are in sync. So
- every member of the ISR holds everything committed and may lead;
- a replica that left the ISR when it fell below `min_insync` still holds everything committed,
  since nothing was committed after it left: it is kept in the ELR, and may lead when no member of
  the ISR can. It may lack records that are not committed and that a member of the ISR has: so the
  ELR comes after all of the ISR, and never while the leader is still there;
- a replica whose disk may have lost its tail (`lost_tail`) holds nothing for certain and is in
  neither.
The last members of an ISR that go away stay in it when `min_insync` is 1, because they alone may
hold records that were committed with them alone; then nobody leads until one of them is back.

With `flush=ack` a replica keeps its place when its machine went down: nothing that it vouched for
is lost. But records that it had not yet synced are gone from it, and if it leads, its followers may
have them. Were it to append others in their place in the same epoch, nobody could tell them apart.
So such a leader goes on in a new epoch only (`leader_lost_records`). The same goes for any leader
whose process has started anew: its disk may be an older copy, and what it then appends must not
have the epoch of what it had appended before.

Of several in sync the first replica leads, which is meant to; without it, whoever leads the fewest
partitions (`led`): the replicas of a broker that is gone lie in the same order on its neighbours,
and the first of them would get all that it led.

Invariant: a change of leader raises the leader epoch; a leader is a member of its ISR; ISR and ELR
have no member in common; there is an ELR only while the ISR is smaller than `min_insync`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from tailrace.meta.keys import NO_BROKER, PartitionState
from tailrace.model import BrokerId, LeaderEpoch

NOBODY_LEADS: Final[Mapping[BrokerId, int]] = MappingProxyType({})


class UncleanRecovery(Enum):
    """What happens when no replica is left that holds everything committed."""

    REFUSE = "refuse"
    LAST_LEADER = "last-leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """What an election needs to know of the brokers.

    `live`: registered. `draining`: live, and not to lead while another can, because it wants to
    stop, because somebody said so (`cordoned`) or because of its disk (`unfit`). `spared`: not
    registered, but alive as far as can be told: it keeps what it has and is given nothing new.
    `lost_tail`: live, but what it has on its disk is not all that it had. `conflict`: a replica
    knows committed records that the one who led did not have; then nobody is taken by default.
    `processes`: which start of its process each live broker is.
    """

    live: Collection[BrokerId]
    draining: Collection[BrokerId] = ()
    lost_tail: Collection[BrokerId] = ()
    spared: Collection[BrokerId] = ()
    cordoned: Collection[BrokerId] = ()
    unfit: Collection[BrokerId] = ()
    conflict: str = ""
    processes: Mapping[BrokerId, str] = field(default_factory=dict)

    def has_restarted(self, state: PartitionState) -> bool:
        """Whether the leader is another process than the one that was given the epoch."""
        process = self.processes.get(state.leader, "")
        return bool(state.leader_process and process) and process != state.leader_process

    def is_present(self, broker: BrokerId) -> bool:
        return broker in self.live or broker in self.spared

    def is_leaving(self, broker: BrokerId) -> bool:
        """Whether it is shutting down."""
        others = broker in self.cordoned or broker in self.unfit
        return broker in self.draining and not others

    def can_be_elected(self, broker: BrokerId) -> bool:
        return broker in self.live and broker not in self.lost_tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The next state, why each candidate was or was not taken, and what may be lost by it."""

    state: PartitionState
    candidates: tuple[str, ...] = ()
    loss: str = ""


def next_state(
    state: PartitionState,
    replicas: Sequence[BrokerId],
    brokers: Brokers,
    *,
    min_insync: int,
    unclean: UncleanRecovery,
    controller_epoch: int,
    leader_lost_records: bool = False,
    led: Mapping[BrokerId, int] = NOBODY_LEADS,
) -> Outcome | None:
    """What the partition should become now that the brokers are as they are; None: as it is.

    Removes members that are gone or lost their tail, moves leadership away from leaders that are
    gone or draining, and gives an offline partition a leader as soon as one is eligible.
    `leader_lost_records`: of its epoch, though none that are committed: it needs a new one.
    `led`: how many partitions each broker leads by now.
    """
    standing = _standing(state, brokers, min(min_insync, len(replicas)))
    choice = _choose(state, replicas, standing, brokers, unclean, led)
    isr, elr = standing
    if choice.leader != NO_BROKER and choice.leader not in isr:
        # From the ELR, or by unclean recovery: it alone is in sync with itself.
        elr = tuple(each for each in (*isr, *elr) if each != choice.leader)
        isr = (choice.leader,)
        if len(isr) >= min(min_insync, len(replicas)):
            elr = ()
    needs_epoch = leader_lost_records or brokers.has_restarted(state)
    if choice.leader == state.leader and not (needs_epoch and choice.leader != NO_BROKER):
        if (isr, elr, choice.conflict) == (state.isr, state.elr, state.conflict):
            return None
        kept = replace(
            state, isr=isr, elr=elr, controller_epoch=controller_epoch, conflict=choice.conflict
        )
        return Outcome(state=kept, candidates=choice.candidates)
    changed = PartitionState(
        controller_epoch=controller_epoch,
        leader=choice.leader,
        leader_epoch=LeaderEpoch(state.leader_epoch + 1),
        isr=isr,
        elr=elr,
        last_leader=choice.leader if choice.leader != NO_BROKER else _last_leader(state),
        loss=choice.loss or state.loss,
        unclean_epoch=state.leader_epoch + 1 if choice.loss else state.unclean_epoch,
        conflict=choice.conflict,
        leader_process=brokers.processes.get(choice.leader, ""),
    )
    return Outcome(state=changed, candidates=choice.candidates, loss=choice.loss)


def preferred_state(
    state: PartitionState,
    replicas: Sequence[BrokerId],
    brokers: Brokers,
    *,
    controller_epoch: int,
) -> Outcome | None:
    """The first replica leads, in sync as it must be; None: it leads already, or cannot."""
    first = replicas[0]
    if first == state.leader or first in brokers.draining:
        return None
    if first not in state.isr or not brokers.can_be_elected(first):
        return None
    return led_by(first, state, replicas, brokers, controller_epoch=controller_epoch)


def led_by(
    leader: BrokerId,
    state: PartitionState,
    replicas: Sequence[BrokerId],
    brokers: Brokers,
    *,
    controller_epoch: int,
) -> Outcome:
    """The same partition, led by another member of its ISR."""
    changed = replace(
        state,
        controller_epoch=controller_epoch,
        leader=leader,
        leader_epoch=LeaderEpoch(state.leader_epoch + 1),
        last_leader=leader,
        leader_process=brokers.processes.get(leader, ""),
    )
    return Outcome(state=changed, candidates=_notes(leader, state, replicas, brokers))


def unclean_state(
    leader: BrokerId,
    state: PartitionState,
    replicas: Sequence[BrokerId],
    brokers: Brokers,
    *,
    loss: str,
    controller_epoch: int,
) -> Outcome:
    """A person has decided who leads, although it may lack what was acknowledged."""
    words = (
        f"a person let broker {leader} lead: acknowledged records of leader epoch "
        f"{state.leader_epoch} and before that it does not have are gone"
    )
    words += f"; {loss}" if loss else ""
    changed = PartitionState(
        controller_epoch=controller_epoch,
        leader=leader,
        leader_epoch=LeaderEpoch(state.leader_epoch + 1),
        isr=(leader,),
        last_leader=leader,
        loss=words,
        unclean_epoch=state.leader_epoch + 1,
        leader_process=brokers.processes.get(leader, ""),
    )
    notes = _notes(leader, state, replicas, brokers)
    return Outcome(state=changed, candidates=notes, loss=words)


def first_state(
    replicas: Sequence[BrokerId],
    brokers: Brokers,
    *,
    min_insync: int,
    controller_epoch: int,
    led: Mapping[BrokerId, int] = NOBODY_LEADS,
) -> Outcome:
    """The state of a partition that was just made: all replicas hold all there is, nothing.

    Whoever is shutting down is not taken into an ISR, not into this one either, while others are.
    """
    staying = [each for each in replicas if not brokers.is_leaving(each)]
    new = PartitionState(
        controller_epoch=controller_epoch,
        leader=NO_BROKER,
        leader_epoch=LeaderEpoch(0),
        isr=tuple(staying if any(each in brokers.live for each in staying) else replicas),
    )
    outcome = next_state(
        new,
        replicas,
        # Whoever lost its tail lost nothing of this partition.
        replace(brokers, lost_tail=()),
        min_insync=min_insync,
        unclean=UncleanRecovery.REFUSE,
        controller_epoch=controller_epoch,
        led=led,
    )
    if outcome is None:
        return Outcome(state=new)
    return replace(outcome, state=replace(outcome.state, leader_epoch=LeaderEpoch(0)))


class _Standing(NamedTuple):
    """ISR and ELR without those that are gone or can no longer vouch for what they have."""

    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]


class _Choice(NamedTuple):
    leader: BrokerId
    candidates: tuple[str, ...] = ()
    loss: str = ""
    conflict: str = ""


def _standing(state: PartitionState, brokers: Brokers, min_insync: int) -> _Standing:
    vouching = [each for each in state.isr if each not in brokers.lost_tail]
    isr = [each for each in vouching if brokers.is_present(each)]
    left = [each for each in vouching if not brokers.is_present(each)]
    elr = [each for each in state.elr if each not in brokers.lost_tail]
    if len(isr) >= min_insync:
        return _Standing(tuple(isr), ())
    if not isr and left and min_insync <= 1:
        # They alone may hold what was committed last: nobody may take their place.
        return _Standing(tuple(left), ())
    return _Standing(tuple(isr), (*elr, *left))


def _choose(
    state: PartitionState,
    replicas: Sequence[BrokerId],
    standing: _Standing,
    brokers: Brokers,
    unclean: UncleanRecovery,
    led: Mapping[BrokerId, int],
) -> _Choice:
    present = state.leader in standing.isr and brokers.is_present(state.leader)
    draining = state.leader in brokers.draining
    if present and not draining:
        return _Choice(state.leader)
    isr = _electable(replicas, standing.isr, brokers)
    if present and (not isr or isr[0] in brokers.draining):
        # It wants to stop, and nobody in sync can take over: it stays while it is there.
        return _Choice(state.leader, _notes(state.leader, state, replicas, brokers))
    eligible = isr or _electable(replicas, standing.elr, brokers)
    if eligible:
        leader = _least_loaded(eligible, replicas, brokers, led)
        return _Choice(leader, _notes(leader, state, replicas, brokers))
    return _choose_unclean(state, replicas, standing, brokers, unclean)


def _electable(
    replicas: Sequence[BrokerId], members: Collection[BrokerId], brokers: Brokers
) -> list[BrokerId]:
    """Those who can lead, in the order of replicas, but those that drain at the end."""
    able = [each for each in replicas if each in members and brokers.can_be_elected(each)]
    return sorted(able, key=lambda each: each in brokers.draining)


def _least_loaded(
    eligible: Sequence[BrokerId],
    replicas: Sequence[BrokerId],
    brokers: Brokers,
    led: Mapping[BrokerId, int],
) -> BrokerId:
    """The first replica if it is the best there is, else who leads least of those as good."""
    best = eligible[0]
    if best == replicas[0]:
        return best
    drains = best in brokers.draining
    equals = [each for each in eligible if (each in brokers.draining) is drains]
    # Of those who lead as many, the first in the order of replicas.
    return min(equals, key=lambda each: led.get(each, 0))


def _choose_unclean(
    state: PartitionState,
    replicas: Sequence[BrokerId],
    standing: _Standing,
    brokers: Brokers,
    unclean: UncleanRecovery,
) -> _Choice:
    notes = _notes(NO_BROKER, state, replicas, brokers)
    conflict = brokers.conflict or state.conflict
    if standing.isr or standing.elr:
        why = "waiting for one that holds everything committed"
        return _Choice(NO_BROKER, (*notes, why), conflict=conflict)
    if conflict:
        return _Choice(NO_BROKER, (*notes, f"a person has to decide: {conflict}"), "", conflict)
    if unclean is UncleanRecovery.REFUSE:
        why = "nobody holds everything committed, and unclean.recovery is refuse"
        return _Choice(NO_BROKER, (*notes, why))
    last = _last_leader(state)
    if last not in replicas or not brokers.can_be_elected(last):
        why = f"nobody holds everything committed; unclean.recovery waits for last leader {last}"
        return _Choice(NO_BROKER, (*notes, why))
    loss = (
        f"acknowledged records of leader epoch {state.leader_epoch} and before that broker {last} "
        "had not yet on its disk when its machine went down"
    )
    return _Choice(last, (*notes, f"{last}: taken, unclean.recovery is last-leader"), loss)


def _last_leader(state: PartitionState) -> BrokerId:
    return state.leader if state.leader != NO_BROKER else state.last_leader


def _notes(
    chosen: BrokerId, state: PartitionState, replicas: Sequence[BrokerId], brokers: Brokers
) -> tuple[str, ...]:
    """Each replica, what it was, and why it was or was not taken, in order."""
    return tuple(
        f"{each}: {_place(each, state)}, {_verdict(each, chosen, brokers)}" for each in replicas
    )


def _place(broker: BrokerId, state: PartitionState) -> str:
    if broker in state.isr:
        return "in sync"
    return "eligible (ELR)" if broker in state.elr else "not in sync"


def _verdict(broker: BrokerId, chosen: BrokerId, brokers: Brokers) -> str:
    if broker == chosen:
        return "taken"
    if broker in brokers.lost_tail:
        return "may have lost its tail"
    if broker in brokers.spared:
        return "answers, but is not registered"
    if broker not in brokers.live:
        return "not registered"
    if broker in brokers.cordoned:
        return "cordoned"
    if broker in brokers.unfit:
        return "its disk is slow or full"
    if broker in brokers.draining:
        return "shutting down"
    return "not taken"
