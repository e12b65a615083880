"""Rules of the cluster, each broken on purpose, and the named scenario that must notice it.

A mutant replaces one function of the shipped code. It says which fault of the fault table its
scenario is, and a seed that catches it. `make mutants` runs each over many seeds and prints the
table of docs/testing.md; when the simulator draws other things, it tells the new seeds.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from simulation import test_cluster_faults as scenarios
from simulation import test_missing_and_old as old
from simulation.checkers import Violation
from simulation.loop import Unhandled
from simulation.scenario import Run
from tailrace.broker import control, isr, registration
from tailrace.broker.controller_guard import ControllerGuard
from tailrace.broker.hosted import ReplicaOrder, TopicSettings
from tailrace.broker.isr import IsrStore
from tailrace.broker.logs import ReplicaLogs
from tailrace.broker.replicas import Replicas
from tailrace.client.fetch_plan import FetchPlan
from tailrace.controller.election import Brokers
from tailrace.controller.ledger import Ledger
from tailrace.controller.presence import Presence
from tailrace.errors import InvariantViolation, StoreUnavailable
from tailrace.log.checkpoints import TOPIC_IDS
from tailrace.log.data_folder import DataFolder
from tailrace.log.evidence import NeverFinished
from tailrace.log.log import PartitionLog
from tailrace.log.producers import ProducerStates
from tailrace.log.recovery import _Opening
from tailrace.log.report import ManagerReport
from tailrace.meta import lineage, verified
from tailrace.meta.image import ClusterImage
from tailrace.meta.keys import ROOT
from tailrace.meta.lineage import Judgement, Witness, judge
from tailrace.meta.measured import MeasuredStore
from tailrace.meta.registration import OtherLife
from tailrace.meta.store import Snapshot, WatchBatch
from tailrace.meta.verified import VerifiedStore
from tailrace.model import Offset, TopicPartition
from tailrace.replication.events import Effect, IsrStored, TruncateLog
from tailrace.replication.follower import FollowerState, Phase
from tailrace.replication.leader import LeaderState
from tailrace.replication.partition import PartitionReplica

Patch = pytest.MonkeyPatch

CAUGHT: Final = (AssertionError, Violation, InvariantViolation, Unhandled, TimeoutError)
SEEDS_MAX: Final = 15


@dataclass(frozen=True)
class Mutant:
    """One broken rule, the scenario that it shows in, and a seed that catches it."""

    fault: str
    rule: str
    apply: Callable[[Patch], None]
    script: scenarios.Script
    seed: int = 0
    config: dict[str, str] = field(default_factory=dict)

    def play(self, seed: int) -> Run:
        return scenarios.play(seed, self.script, config=self.config or None)


# ------------------------------------------------------------------------- what they do instead


def _cut_at_high_watermark(patch: Patch) -> None:
    def start(self: FollowerState, now_ms: int) -> list[Effect]:
        if self.high_watermark < self.log_end:
            self.phase = Phase.CUTTING
            return [TruncateLog(offset=Offset(self.high_watermark), below_high_watermark=False)]
        return self._ask(now_ms)

    patch.setattr(FollowerState, "start", start)


def _compare_no_epochs(patch: Patch) -> None:
    patch.setattr(LeaderState, "_contradiction", lambda *_: None)


def _let_anybody_join(patch: Patch) -> None:
    patch.setattr(isr, "_joining", lambda *_: [])


def _take_silence_for_yes(patch: Patch) -> None:
    async def store(self: IsrStore, hosted: Any, effect: Any) -> None:
        try:
            await self._store.get("/controller")
        except StoreUnavailable:
            revision = effect.expected_revision + 1
            self._tell(hosted, IsrStored(attempt=effect.attempt, revision=revision))
            return
        await original(self, hosted, effect)

    original = IsrStore.store
    patch.setattr(IsrStore, "store", store)


def _say_nothing_of_a_lost_tail(patch: Patch) -> None:
    patch.setattr(ManagerReport, "tail_may_be_lost", property(lambda _: False))


def _lead_on_with_a_closed_log(patch: Patch) -> None:
    patch.setattr(Replicas, "_give_up", lambda *_: None)


def _report_before_the_sync(patch: Patch) -> None:
    patch.setattr(TopicSettings, "syncs_first", property(lambda _: False))


def _mend_while_in_sync(patch: Patch) -> None:
    patch.setattr(ReplicaLogs, "_is_counted_on", lambda *_: False)


def _believe_every_lease_that_ends(patch: Patch) -> None:
    patch.setattr(Presence, "_spare", lambda *_: [])


def _believe_a_store_that_hung(patch: Patch) -> None:
    patch.setattr(MeasuredStore, "was_in_trouble", lambda *_: False)


def _append_every_retry(patch: Patch) -> None:
    patch.setattr(ProducerStates, "check", lambda *_, **__: None)


def _go_by_the_name(patch: Patch) -> None:
    """Neither reader nor broker asks whether the topic is the one that was meant."""
    find = Replicas.find
    patch.setattr(Replicas, "find", lambda self, partition, topic_id="": find(self, partition))
    patch.setattr(FetchPlan, "_is_meant", lambda *_: True)


def _listen_to_any_controller(patch: Patch) -> None:
    async def problem(self: ControllerGuard, header: Any) -> Any:
        self.controller_epoch = header.controller_epoch
        self._controller_id = header.controller_id
        return await original(self, header)

    original = ControllerGuard.problem
    patch.setattr(ControllerGuard, "problem", problem)


def _go_on_after_a_gap(patch: Patch) -> None:
    """What was compacted away is taken for nothing."""

    def advance(self: ClusterImage, batch: WatchBatch) -> ClusterImage:
        return original(self, batch._replace(compacted=False))

    async def watch(self: Ledger) -> None:
        while True:
            try:
                stream = self._store.watch(ROOT, from_revision=self.image.revision + 1)
                async for batch in stream:
                    self._advance(batch)
            except StoreUnavailable:
                pass
            await asyncio.sleep(0.05)

    original = ClusterImage.advance
    patch.setattr(ClusterImage, "advance", advance)
    patch.setattr(Ledger, "_watch", watch)


def _believe_any_store(patch: Patch) -> None:
    def believe(_: Witness | None, seen: Snapshot, *, floor: int = 0) -> Judgement:
        del floor
        return judge(None, seen)

    patch.setattr(verified, "judge", believe)


def _go_by_the_revision(patch: Patch) -> None:
    def went_back(known: Witness, now: Witness, _: Any) -> str:
        return "its revision is lower" if now.revision < known.revision else ""

    patch.setattr(lineage, "_went_back", went_back)


def _stay_with_the_first_store(patch: Patch) -> None:
    async def ask(*_: Any) -> None: ...

    patch.setattr(VerifiedStore, "_ask_brokers", ask)


def _delete_what_is_not_known(patch: Patch) -> None:
    async def set_aside(self: ReplicaLogs, partition: TopicPartition, why: str) -> None:
        self._manager.delete(partition, NeverFinished(folder=why))

    patch.setattr(ReplicaLogs, "set_aside", set_aside)


def _begin_where_the_files_do(patch: Patch) -> None:
    patch.setattr(_Opening, "check_start", lambda _, segments, *__: segments)
    patch.setattr(FollowerState, "_is_given_up", lambda *_: True)


def _give_up_what_rotted(patch: Patch) -> None:
    """The topic's id is kept once, and where it cannot be read nothing is done about it."""

    async def find(self: ReplicaLogs, order: ReplicaOrder, _: TopicSettings) -> PartitionLog:
        raise self._manager.damaged[order.partition]

    def load(self: DataFolder, kind: Any, *args: Any, **options: Any) -> Any:
        return None if kind is TOPIC_IDS else original(self, kind, *args, **options)

    original = DataFolder._load
    patch.setattr(ReplicaLogs, "_find_unknown", find)
    patch.setattr(DataFolder, "_load", load)


def _cut_what_is_committed(patch: Patch) -> None:
    patch.setattr(FollowerState, "_is_unclean", lambda _: True)
    patch.setattr(LeaderState, "lacks_committed", lambda *_: "")


def _lead_on_in_an_epoch_of_before(patch: Patch) -> None:
    def order(each: Any) -> ReplicaOrder:
        return replace(original(each), leader_process="")

    original = control._order
    patch.setattr(control, "_order", order)
    patch.setattr(Brokers, "has_restarted", lambda *_: False)


def _call_gone_what_is_not_here(patch: Patch) -> None:
    patch.setattr(PartitionReplica, "is_borne_out", lambda *_, **__: True)


def _take_every_other_process_for_dead(patch: Patch) -> None:
    patch.setattr(registration, "judge_life", lambda *_: OtherLife.GONE)


def _together(*rules: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """Break several rules at once: where a later one covers for the one that is meant."""

    def apply(patch: Patch) -> None:
        for rule in rules:
            rule(patch)

    return apply


MUTANTS: Final = (
    Mutant(
        "F1",
        "a follower cuts its log at its high watermark, not where epochs part",
        _together(_cut_at_high_watermark, _call_gone_what_is_not_here),
        scenarios.f1_follower_restarts_and_leads,
    ),
    Mutant(
        "F2",
        "a leader pushes from wherever a follower is, without comparing epochs",
        _compare_no_epochs,
        scenarios.f2_fast_double_failover,
    ),
    Mutant(
        "F3",
        "an ISR takes in a follower without a guard on its registration",
        _let_anybody_join,
        scenarios.f3_zombie_fetcher,
    ),
    Mutant(
        "F5",
        "a leader takes the store's silence for consent to its smaller ISR",
        _take_silence_for_yes,
        scenarios.f5_stale_leader_keeps_its_producers,
        config={"min.insync.replicas": "1"},
    ),
    Mutant(
        "F6",
        "a broker listens to an older controller again",
        _listen_to_any_controller,
        scenarios.f6_zombie_controller,
    ),
    Mutant(
        "F20",
        "changes that were compacted away are taken for none",
        _go_on_after_a_gap,
        scenarios.f20_history_is_compacted_away,
    ),
    Mutant(
        "F9",
        "a broker that lost its tail with its power does not say so",
        _together(
            _say_nothing_of_a_lost_tail,
            _lead_on_in_an_epoch_of_before,
            _call_gone_what_is_not_here,
        ),
        scenarios.f9_rebooted_follower_joins_on_stale_reports,
        seed=5,
    ),
    Mutant(
        "F10",
        "an ISR takes in a follower that is shutting down",
        _let_anybody_join,
        scenarios.f10_stopping_replica_joins,
    ),
    Mutant(
        "F12",
        "a broker that lost its tail with its power does not say so",
        _say_nothing_of_a_lost_tail,
        scenarios.f12_last_replica_standing,
    ),
    Mutant(
        "F13",
        "a leader whose sync failed stays leader with a closed log",
        _lead_on_with_a_closed_log,
        scenarios.f13_leader_whose_disk_fails,
        config={"flush": "ack"},
    ),
    Mutant(
        "F14",
        "flush=ack: a replica reports records before they are on its disk",
        _report_before_the_sync,
        scenarios.f14_everybody_loses_power,
        config={"flush": "ack"},
    ),
    Mutant(
        "F15",
        "a replica repairs what rotted while an ISR still counts on it",
        _mend_while_in_sync,
        scenarios.f15_bits_rot_on_a_follower,
    ),
    Mutant(
        "F16",
        "brokers are replaced although all leases ended at once",
        _believe_every_lease_that_ends,
        scenarios.f16_all_leases_are_revoked,
    ),
    Mutant(
        "F18",
        "a broker is replaced because a store that hung ended its lease",
        _believe_a_store_that_hung,
        scenarios.f18_etcd_hangs_and_ends_one_lease,
    ),
    Mutant(
        "F32",
        "a batch that is sent again is appended again",
        _append_every_retry,
        scenarios.f32_acknowledgements_are_lost,
        seed=7,
    ),
    Mutant(
        "F34",
        "a topic is known by its name alone",
        _go_by_the_name,
        scenarios.f34_topic_is_made_anew,
    ),
    Mutant(
        "F41",
        "any store that answers is believed",
        _believe_any_store,
        old.f41_store_comes_back_empty,
    ),
    Mutant(
        "F41",
        "a service that began with the wrong store stays with it",
        _stay_with_the_first_store,
        old.f41_store_is_founded_anew,
    ),
    Mutant(
        "F42",
        "what the store does not know is deleted",
        _delete_what_is_not_known,
        old.f42_store_is_older_than_a_topic,
    ),
    Mutant(
        "F42",
        "only a lower revision shows that a store went back",
        _go_by_the_revision,
        old.f42_store_goes_back_under_load,
    ),
    Mutant(
        "F43",
        "a log begins where its files do, and followers go by that",
        _begin_where_the_files_do,
        old.f43_first_segment_is_missing,
        config=old.SMALL_SEGMENTS,
    ),
    Mutant(
        "F43",
        "a side file that rotted is not mended",
        _give_up_what_rotted,
        old.f43_side_file_rots,
    ),
    Mutant(
        "F44",
        "a follower cuts what it knows to be committed",
        _cut_what_is_committed,
        old.f44_last_one_returns_with_an_older_copy,
        config=old.ONE_IS_ENOUGH,
    ),
    Mutant(
        "F44",
        "a leader calls gone what it does not have before it has heard its replicas",
        _call_gone_what_is_not_here,
        old.f44_last_one_returns_with_an_older_copy,
        config=old.ONE_IS_ENOUGH,
    ),
    Mutant(
        "F44",
        "a leader goes on in an epoch that a former life of it was given",
        _lead_on_in_an_epoch_of_before,
        old.f44_leader_returns_with_an_older_copy_unmissed,
        seed=14,
    ),
    Mutant(
        "F44",
        "a process with the same folder is taken for a former life",
        _take_every_other_process_for_dead,
        old.f44_clone_of_a_live_folder,
    ),
)


def outcome(mutant: Mutant, seed: int) -> str | None:
    """What the scenario says to the mutant; None: it noticed nothing."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        try:
            mutant.play(seed)
        except CAUGHT as caught:
            return f"{type(caught).__name__}: {caught}".splitlines()[0]
    return None


def table(mutants: Iterable[Mutant]) -> bool:
    """Print which seeds catch which mutant; whether all are caught by the seed that they name."""
    all_bite = True
    for mutant in mutants:
        caught = [seed for seed in range(SEEDS_MAX) if outcome(mutant, seed) is not None]
        said = outcome(mutant, caught[0]) if caught else "NOT CAUGHT"
        all_bite &= mutant.seed in caught
        sys.stdout.write(
            f"{mutant.fault}: {mutant.rule}: {len(caught)} of {SEEDS_MAX} seeds, "
            f"first {caught[:1]}: {(said or '')[:100]}\n"
        )
        sys.stdout.flush()
    return all_bite


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    wanted = sys.argv[1:]
    sys.exit(not table(each for each in MUTANTS if not wanted or each.fault in wanted))
