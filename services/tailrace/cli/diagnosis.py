"""What is wrong with a cluster and what to do about it: facts in, findings out. Pure.

One function for each thing that is looked at. Each gives findings that say what is so and what to
do; none at all means that this is well. `Severity.CRITICAL`: clients are refused, or one more
failure may cost records; `WARNING`: it works, and should be looked at today; `HINT`: it may be
meant so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from statistics import median_low
from typing import Any, Final, NamedTuple

from tailrace.cli.formatting import counted, iso_time, size
from tailrace.client.describing import Health, PartitionDescription, TopicDescription
from tailrace.client.diagnosing import BrokerCondition, StrayReplica
from tailrace.client.metadata import ClusterPicture
from tailrace.client.moving import Phase, Progress
from tailrace.client.operations import BrokerState
from tailrace.errors import TailraceError

# Names of partitions, brokers and so on that a sentence tells before it says "and so many more".
NAMED_MAX: Final = 5
SILENCE_MAX_MS: Final = 10_000
# Retention, lag in time and what people read in timestamps are wrong by as much as clocks are.
CLOCK_MAX_MS: Final = 1_000
CLOCK_WRONG_MS: Final = 60_000
DISK_LOW: Final = 0.10
DISK_FULL: Final = 0.03
FILES_HIGH: Final = 0.80
FILES_FEW: Final = 4_096
# A reassignment that copies nothing between two looks is stuck only if it had time to begin.
MOVE_BEGINS_MS: Final = 30_000
# Brokers that lead more than this times their share, and by so many partitions at least.
SKEW: Final = 1.5
SKEW_MIN: Final = 3
NOT_PREFERRED: Final = 0.2


class Severity(IntEnum):
    OK = 0
    HINT = 1
    WARNING = 2
    CRITICAL = 3


class Finding(NamedTuple):
    """One thing that is so, and what to do about it."""

    check: str
    severity: Severity
    what: str
    do: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "check": self.check,
            "severity": self.severity.name.lower(),
            "what": self.what,
            "do": self.do,
        }


class Look(NamedTuple):
    """How far reassignments were at one moment."""

    at_ms: int
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """A cluster as it was found; what could not be asked for is None, and `problem` says why."""

    now_ms: int
    picture: ClusterPicture
    topics: tuple[TopicDescription, ...] = ()
    conditions: Mapping[int, BrokerCondition | TailraceError] = field(default_factory=dict)
    # As the controller knows them.
    brokers: Sequence[BrokerState] | None = None
    problem: str = ""
    # Two looks, some seconds apart; None: nothing is moved, or the controller did not answer.
    moves: tuple[Look, Look] | None = None
    # Addresses that were given, and why they did not answer.
    silent: Mapping[str, str] = field(default_factory=dict)
    # By address of etcd: what is wrong with it, empty when it is well. None: not looked at.
    etcd: Mapping[str, str] | None = None
    # Coordinators that are registered and did not answer here.
    silent_coordinators: Mapping[int, str] = field(default_factory=dict)
    # By broker: what it has set aside, or why it does not answer.
    strays: Mapping[int, tuple[StrayReplica, ...] | TailraceError] = field(default_factory=dict)


Check = Callable[[ClusterFacts], Iterator[Finding]]


def examine(facts: ClusterFacts) -> list[Finding]:
    """Everything that was found, in the order in which it is looked at; what is well says so."""
    return [finding for check, look in CHECKS for finding in _or_well(check, look(facts))]


def _or_well(check: str, found: Iterable[Finding]) -> list[Finding]:
    wrong = list(found)
    return wrong or [Finding(check, Severity.OK, WELL[check])]


def worst(findings: Iterable[Finding]) -> Severity:
    return max((each.severity for each in findings), default=Severity.OK)


def named(names: Iterable[object]) -> str:
    """Some names, and how many more there are."""
    texts = [str(each) for each in names]
    if len(texts) <= NAMED_MAX:
        return ", ".join(texts)
    return f"{', '.join(texts[:NAMED_MAX])} and {len(texts) - NAMED_MAX} more"


def _bootstrap(facts: ClusterFacts) -> Iterator[Finding]:
    for address, why in facts.silent.items():
        yield Finding(
            "bootstrap",
            Severity.WARNING,
            f"{address} was given to find the cluster, and does not answer: {why}",
            "clients that have only this address cannot start: give them several, of brokers that "
            "there are",
        )


def _controller(facts: ClusterFacts) -> Iterator[Finding]:
    if not facts.picture.controller:
        yield Finding(
            "controller",
            Severity.CRITICAL,
            "no controller is active: leaders go on, nobody can be replaced",
            "look whether controllers run and whether they reach etcd: their logs and /readyz say",
        )
    elif facts.brokers is None:
        yield Finding(
            "controller",
            Severity.CRITICAL,
            f"controller {facts.picture.controller_id} at {facts.picture.controller} does not "
            f"answer here: {facts.problem}",
            "start it if it has ended: until one is active, nobody can be replaced. If it runs, "
            "clients must reach what it advertises (controller.advertised.listeners)",
        )


def _conditions(facts: ClusterFacts) -> list[BrokerCondition]:
    """What those brokers told that answered."""
    return [each for each in facts.conditions.values() if isinstance(each, BrokerCondition)]


def _store(facts: ClusterFacts) -> Iterator[Finding]:
    """Whether the metadata store is the one that the services know, by what each of them sees."""
    seen: dict[str, list[BrokerCondition]] = {}
    for each in _conditions(facts):
        if each.store_problem:
            seen.setdefault(each.store_problem, []).append(each)
    for problem, told in seen.items():
        since_ms = min(each.store_problem_since_ms for each in told)
        who = named(f"broker {each.broker_id}" for each in told)
        yield Finding(
            "store",
            Severity.CRITICAL,
            f"since {iso_time(since_ms)} {who} {'does' if len(told) == 1 else 'do'} not believe "
            f"the metadata store: {problem}. Nothing is deleted, leaders go on, nobody can be "
            "replaced, and metadata may be stale",
            "put the right store back: services see it within 2 s and go on by themselves. If it "
            "is lost for good, rebuild it from the brokers: `tailrace cluster recover` "
            "(docs/runbooks/TailraceStoreNotBelieved.md)",
        )


def _replicas(facts: ClusterFacts) -> Iterator[Finding]:
    """Replicas that count for nothing: damaged, or kept back until a person has decided."""
    for told in _conditions(facts):
        waiting = [each for each in told.out_of_service if each.waits_for_a_person]
        failed = [each for each in told.out_of_service if not each.waits_for_a_person]
        unnamed = told.out_of_service_count - len(told.out_of_service)
        if waiting:
            yield Finding(
                "replicas",
                Severity.CRITICAL,
                f"broker {told.broker_id} keeps {counted(len(waiting), 'replica')} back until a "
                f"person decides: {named(each.partition for each in waiting)}: {waiting[0].error}",
                "bring the other replicas back first: one of them may hold the records. Then "
                "`tailrace topics describe TOPIC` shows who holds what, and `tailrace topics "
                "elect-leaders --unclean` decides, and records what is lost",
            )
        if failed:
            yield Finding(
                "replicas",
                Severity.WARNING,
                f"broker {told.broker_id} has {counted(len(failed) + unnamed, 'replica')} out of "
                f"service: {named(each.partition for each in failed)}: {failed[0].error}",
                "they are filled anew from their leaders once nobody counts on them; if they stay, "
                f"`tailrace brokers describe {told.broker_id}` says why for each "
                "(docs/runbooks/TailraceReplicasOutOfService.md)",
            )


def _etcd(facts: ClusterFacts) -> Iterator[Finding]:
    for address, wrong in (facts.etcd or {}).items():
        if wrong:
            yield Finding(
                "etcd",
                Severity.WARNING,
                f"etcd at {address} is not well: {wrong}",
                f"look at its log; `etcdctl --endpoints {address} endpoint status` and "
                "`alarm list` say more",
            )
    told = _conditions(facts)
    away = [each for each in told if each.store_silence_ms > SILENCE_MAX_MS]
    if not away:
        return
    seconds = max(each.store_silence_ms for each in away) // 1_000
    names = named(f"broker {each.broker_id}" for each in away)
    if len(away) == len(told):
        yield Finding(
            "etcd",
            Severity.CRITICAL,
            f"etcd has answered no broker for {seconds} s: leaders go on, nobody can be replaced",
            "start etcd again; if it runs, look at its disk, its alarms and its quorum",
        )
    else:
        yield Finding(
            "etcd",
            Severity.WARNING,
            f"etcd has not answered {names} for {seconds} s, and has answered others",
            "look at the network between these brokers and etcd; when their leases end they lose "
            "their leaderships",
        )


def _brokers(facts: ClusterFacts) -> Iterator[Finding]:
    for broker, told in facts.conditions.items():
        if isinstance(told, TailraceError):
            yield Finding(
                "brokers",
                Severity.CRITICAL,
                f"broker {broker} is registered at {facts.picture.brokers[broker]} and does not "
                f"answer here: {told}",
                "if it runs, clients do not reach what it advertises (advertised.listeners), or it "
                "hangs: look at its log and its /livez",
            )
        elif told.not_ready:
            yield Finding(
                "brokers",
                Severity.WARNING,
                f"broker {broker} is not ready: {told.not_ready}",
                "it may only take a while; if it stays so, look at its log",
            )
    for state in facts.brokers or ():
        yield from _of_state(state)
    versions = {
        each.version for each in facts.conditions.values() if isinstance(each, BrokerCondition)
    }
    if len(versions) > 1:
        yield Finding(
            "brokers",
            Severity.HINT,
            f"brokers run {len(versions)} versions: {named(sorted(versions))}",
            "finish the upgrade: two versions are fine for a while, not for good",
        )


def _of_state(state: BrokerState) -> Iterator[Finding]:
    who = f"broker {state.broker_id}"
    if not state.live and state.replicas:
        yield Finding(
            "brokers",
            Severity.WARNING,
            f"{who} is away, and has {counted(state.replicas, 'replica')}",
            f"start it; if it is gone for good, move them: `tailrace brokers drain "
            f"{state.broker_id}`",
        )
    if state.unfit:
        yield Finding(
            "brokers",
            Severity.WARNING,
            f"{who} says that it should lead nothing: {state.unfit}",
            f"`tailrace brokers describe {state.broker_id}` shows its disks",
        )
    if state.cordoned:
        why = f" ({state.cordon_reason})" if state.cordon_reason else ""
        yield Finding(
            "brokers",
            Severity.HINT,
            f"{who} is cordoned{why}: it gets no new replicas and no leadership",
            f"`tailrace brokers uncordon {state.broker_id}` when that is no longer meant",
        )


def _disks(facts: ClusterFacts) -> Iterator[Finding]:
    for state in facts.brokers or ():
        for disk in state.disks:
            where = f"{disk.path} of broker {state.broker_id}"
            if disk.trouble:
                yield Finding(
                    "disks",
                    Severity.CRITICAL,
                    f"{where}: {disk.trouble}",
                    "docs/runbooks/TailraceDiskUnfit.md says what each of these needs",
                )
            elif disk.total_bytes > 0 and disk.free_bytes / disk.total_bytes < DISK_LOW:
                share = disk.free_bytes / disk.total_bytes
                yield Finding(
                    "disks",
                    Severity.CRITICAL if share < DISK_FULL else Severity.WARNING,
                    f"{where} has {size(disk.free_bytes)} left of {size(disk.total_bytes)} "
                    f"({share:.0%})",
                    "make retention of large topics shorter (`tailrace topics alter`), move "
                    f"replicas away (`tailrace brokers drain {state.broker_id}`), or give it a "
                    "larger disk",
                )


def _files(facts: ClusterFacts) -> Iterator[Finding]:
    for broker, told in facts.conditions.items():
        if not isinstance(told, BrokerCondition) or told.open_files_max <= 0:
            continue
        if told.open_files / told.open_files_max > FILES_HIGH:
            yield Finding(
                "files",
                Severity.CRITICAL,
                f"broker {broker} has {told.open_files:,} files and connections open and may have "
                f"{told.open_files_max:,}",
                "raise its limit (ulimit -n, LimitNOFILE) before it can open no more",
            )
        elif told.open_files_max < FILES_FEW:
            yield Finding(
                "files",
                Severity.WARNING,
                f"broker {broker} may have {told.open_files_max:,} files and connections open, "
                "which is few",
                f"raise its limit (ulimit -n, LimitNOFILE) to {FILES_FEW:,} or more",
            )


class _Clock(NamedTuple):
    """A clock, and how far it is ahead of ours at least and at most; `broker` is None for ours."""

    broker: int | None
    ahead_ms: int
    doubt_ms: int

    @property
    def name(self) -> str:
        return "this machine" if self.broker is None else f"broker {self.broker}"

    def may_be(self, ahead_ms: float) -> bool:
        """Whether it may show this time; two clocks may differ by CLOCK_MAX_MS."""
        return abs(self.ahead_ms - ahead_ms) <= self.doubt_ms + CLOCK_MAX_MS / 2


def _clocks(facts: ClusterFacts) -> Iterator[Finding]:
    """Whose clock is off, by what is sure of it: more than half must agree on what is right."""
    told = [each for each in facts.conditions.values() if isinstance(each, BrokerCondition)]
    clocks = [_Clock(each.broker_id, each.clock_ahead_ms, each.clock_doubt_ms) for each in told]
    clocks.append(_Clock(None, 0, 0))
    # The most that agree do so at the earliest time that one of them may show.
    agreeing = {
        frozenset(each for each in clocks if each.may_be(start))
        for start in (each.ahead_ms - each.doubt_ms - CLOCK_MAX_MS / 2 for each in clocks)
    }
    most = max(map(len, agreeing))
    right, *others = [each for each in agreeing if len(each) == most]
    if others or 2 * most <= len(clocks):
        yield _clocks_apart(clocks)
        return
    right_ms = median_low(each.ahead_ms for each in right)
    for clock in clocks:
        if clock not in right:
            yield _clock_off(
                clock, clock.ahead_ms - right_ms, [each for each in clocks if each in right]
            )


def _clock_off(clock: _Clock, ahead_ms: int, right: Sequence[_Clock]) -> Finding:
    """One whose clock more than half of all say is off."""
    off_ms, which = abs(ahead_ms), "ahead of" if ahead_ms > 0 else "behind"
    what = (
        f"the clock of {clock.name} is {off_ms / 1_000:,.1f} s {which} those of "
        f"{named(each.name for each in right)}, which agree"
    )
    if clock.broker is None:
        do = (
            "have NTP (chrony, timesyncd) run here: producers on this machine give records the "
            "wrong time"
        )
        return Finding("clocks", Severity.WARNING, what, do)
    severity = Severity.CRITICAL if off_ms > CLOCK_WRONG_MS else Severity.WARNING
    do = (
        "have NTP (chrony, timesyncd) run on its machine, `timedatectl` there says whether it "
        "does: times of records, retention and lag in seconds are wrong by as much"
    )
    return Finding("clocks", severity, what, do)


def _clocks_apart(clocks: Sequence[_Clock]) -> Finding:
    """Clocks of which nobody can say which one is right."""
    first = min(clocks, key=lambda each: each.ahead_ms)
    last = max(clocks, key=lambda each: each.ahead_ms)
    apart_ms = last.ahead_ms - first.ahead_ms
    return Finding(
        "clocks",
        Severity.CRITICAL if apart_ms > CLOCK_WRONG_MS else Severity.WARNING,
        f"the clock of {last.name} is {apart_ms / 1_000:,.1f} s ahead of that of {first.name}, and "
        f"of {len(clocks)} clocks too few agree to say which is right",
        "`timedatectl` on both machines says whose is not kept by NTP: have it (chrony, "
        "timesyncd) run there; times of records, retention and lag are wrong by as much",
    )


class _Trouble(NamedTuple):
    """What can be wrong with a partition; of several only the first one is told."""

    severity: Severity
    what: str
    do: str


_AT_RISK: Final = "at-risk"
_LOSS: Final = "loss"
_TROUBLES: Final[Mapping[str, _Trouble]] = {
    Health.NEEDS_DECISION: _Trouble(
        Severity.CRITICAL,
        "replicas contradict one another about committed records, and a person has to decide, in",
        "`tailrace topics describe TOPIC` says which replica holds what; bring the brokers back "
        "that are away, for one of them may hold all; `tailrace topics elect-leaders --unclean` "
        "decides, and records what is lost",
    ),
    Health.OFFLINE: _Trouble(
        Severity.CRITICAL,
        "nobody leads",
        "start the brokers of their replicas; `tailrace explain TOPIC PARTITION` says why, and "
        "`tailrace topics elect-leaders --unclean` is the last resort",
    ),
    Health.UNDER_MIN_ISR: _Trouble(
        Severity.CRITICAL,
        "too few replicas are in sync for acks=all (min.insync.replicas) in",
        "start the brokers that are away; `tailrace topics describe --unhealthy` shows which",
    ),
    _AT_RISK: _Trouble(
        Severity.WARNING,
        "min ISR is at risk, one more replica away and acks=all is refused, in",
        "bring the missing replicas back before anything is restarted",
    ),
    Health.UNDER_REPLICATED: _Trouble(
        Severity.WARNING,
        "not every replica is in sync in",
        "look whether their brokers are away, or behind (tailrace_follower_behind_seconds_max)",
    ),
    _LOSS: _Trouble(
        Severity.WARNING,
        "an election may have lost records of",
        "`tailrace explain TOPIC PARTITION` tells what and when",
    ),
}


def _troubles(topic: TopicDescription, partition: PartitionDescription) -> Iterator[str]:
    if partition.loss:
        yield _LOSS
    if Health.NEEDS_DECISION in partition.health:
        yield Health.NEEDS_DECISION
        return
    if Health.UNDER_REPLICATED not in partition.health:
        return
    for health in (Health.OFFLINE, Health.UNDER_MIN_ISR):
        if health in partition.health:
            yield health
            return
    is_at_risk = len(partition.isr) == topic.min_insync_replicas < len(partition.replicas)
    yield _AT_RISK if is_at_risk else Health.UNDER_REPLICATED


def _partitions(facts: ClusterFacts) -> Iterator[Finding]:
    found: dict[str, list[str]] = {}
    for topic in facts.topics:
        for each in topic.partitions:
            for trouble in _troubles(topic, each):
                found.setdefault(trouble, []).append(f"{topic.topic}-{each.partition}")
    for trouble, (severity, what, do) in _TROUBLES.items():
        names = found.get(trouble)
        if names:
            text = f"{what} {counted(len(names), 'partition')}: {named(names)}"
            yield Finding("partitions", severity, text, do)


def _topics(facts: ClusterFacts) -> Iterator[Finding]:
    single, tight = [], []
    for topic in facts.topics:
        replicas = min((len(each.replicas) for each in topic.partitions), default=0)
        if replicas == 1 and len(facts.picture.brokers) > 1:
            single.append(topic.topic)
        elif replicas > 1 and topic.min_insync_replicas >= replicas:
            tight.append(topic.topic)
    if single:
        yield Finding(
            "topics",
            Severity.HINT,
            f"{counted(len(single), 'topic')} with one replica: {named(single)}; with its disk "
            "the records are gone",
            "`tailrace topics reassign --plan` gives them more replicas",
        )
    if tight:
        yield Finding(
            "topics",
            Severity.HINT,
            f"{counted(len(tight), 'topic')} with min.insync.replicas as large as the number of "
            f"replicas: {named(tight)}; every restart of a broker refuses writes",
            "`tailrace topics alter TOPIC --set min.insync.replicas=…` makes it smaller",
        )


def _leaders(facts: ClusterFacts) -> Iterator[Finding]:
    partitions = [each for topic in facts.topics for each in topic.partitions]
    led = [each.leader for each in partitions if each.leader >= 0]
    if not led or not facts.picture.brokers:
        return
    away = sum(Health.LEADER_NOT_PREFERRED in each.health for each in partitions)
    counts = {broker: led.count(broker) for broker in facts.picture.brokers}
    most = max(counts, key=lambda broker: counts[broker])
    share = len(led) / len(counts)
    is_skewed = counts[most] > SKEW * share and counts[most] - share >= SKEW_MIN
    if is_skewed and away:
        yield Finding(
            "leaders",
            Severity.WARNING,
            f"broker {most} leads {counts[most]} of {len(led)} partitions, and "
            f"{counted(away, 'partition')} are led by another replica than the first",
            "`tailrace topics elect-leaders` gives leaderships back",
        )
    elif is_skewed:
        ids = ",".join(map(str, sorted(counts)))
        yield Finding(
            "leaders",
            Severity.WARNING,
            f"broker {most} leads {counts[most]} of {len(led)} partitions, and they prefer it",
            f"`tailrace topics reassign --brokers {ids} --dry-run` shows how they would be spread",
        )
    elif away > NOT_PREFERRED * len(led) and away >= SKEW_MIN:
        yield Finding(
            "leaders",
            Severity.HINT,
            f"{counted(away, 'partition')} of {len(led)} are led by another replica than the first",
            "`tailrace topics elect-leaders` gives leaderships back",
        )


def _reassignments(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.moves is None:
        return
    first, second = facts.moves
    known = {each.name for each in first.progress.moves}
    for move in second.progress.moves:
        gone = [each for each in move.adding if each not in facts.picture.brokers]
        if gone:
            yield Finding(
                "reassignments",
                Severity.WARNING,
                f"{move.name} moves to {named(f'broker {each}' for each in gone)}, which is away",
                f"start it, or `tailrace topics reassign {move.topic} --cancel`",
            )
    old = [
        each
        for each in second.progress.moves
        if each.name in known
        and each.phase is not Phase.PLANNED
        and facts.now_ms - each.started_ms > MOVE_BEGINS_MS
    ]
    copied = first.progress.left_bytes - second.progress.left_bytes
    finished = len(known) - len({each.name for each in second.progress.moves} & known)
    seconds = (second.at_ms - first.at_ms) / 1_000
    if old and copied <= 0 and finished == 0:
        yield Finding(
            "reassignments",
            Severity.WARNING,
            f"{counted(len(old), 'reassignment')} stuck: nothing was copied in {seconds:.0f} s, "
            f"{size(second.progress.left_bytes)} are left: {named(each.name for each in old)}",
            "look whether leaders and new replicas are well and whether a throttle is too low "
            "(`tailrace config get brokers default`); `tailrace topics reassign --status` "
            "shows how far it is",
        )
    elif second.progress.moves:
        yield Finding(
            "reassignments",
            Severity.HINT,
            f"{counted(len(second.progress.moves), 'partition')} on the move, "
            f"{size(second.progress.left_bytes)} left",
            "`tailrace topics reassign --status` follows it",
        )


def _groups(facts: ClusterFacts) -> Iterator[Finding]:
    picture = facts.picture
    for number, why in facts.silent_coordinators.items():
        yield Finding(
            "groups",
            Severity.CRITICAL,
            f"coordinator {number} at {picture.coordinators[number]} does not answer here: {why}",
            "if it runs, clients do not reach what it advertises "
            "(coordinator.advertised.listeners): look at its log",
        )
    if not picture.coordinators and not picture.group_shards:
        yield Finding(
            "groups",
            Severity.HINT,
            "there is no coordinator: consumers cannot use groups",
            "start a `tailrace coordinator` if they should",
        )
        return
    unowned = [
        shard
        for shard, (owner, _) in enumerate(picture.group_shards)
        if owner not in picture.coordinators
    ]
    if unowned or not picture.coordinators:
        yield Finding(
            "groups",
            Severity.CRITICAL,
            f"{counted(len(unowned), 'shard')} of groups without a coordinator: their groups can "
            "neither join nor commit",
            "start coordinators; shards are given out by the active controller within a second",
        )


def _strays(facts: ClusterFacts) -> Iterator[Finding]:
    found = [
        each
        for _, told in sorted(facts.strays.items())
        if not isinstance(told, TailraceError)
        for each in told
    ]
    if not found:
        return
    brokers = sorted({each.broker for each in found})
    total = sum(each.size_bytes for each in found)
    soonest = min((each.kept_until_ms for each in found if each.kept_until_ms >= 0), default=-1)
    until = f"; the first goes at {iso_time(soonest)}" if soonest >= 0 else ""
    yield Finding(
        "strays",
        Severity.WARNING,
        f"{counted(len(found), 'replica')} ({size(total)}) set aside on "
        f"{named(f'broker {each}' for each in brokers)}: of "
        f"{named(dict.fromkeys(str(each.partition) for each in found))}, which the metadata store "
        f"does not know as theirs{until}",
        "`tailrace brokers strays` lists them. Is the store an older copy? Then take "
        "them back (`tailrace cluster recover --adopt TOPIC`, "
        "docs/store-recovery.md) before they expire",
    )


CHECKS: Final[tuple[tuple[str, Check], ...]] = (
    ("bootstrap", _bootstrap),
    ("controller", _controller),
    ("etcd", _etcd),
    ("store", _store),
    ("brokers", _brokers),
    ("replicas", _replicas),
    ("disks", _disks),
    ("files", _files),
    ("clocks", _clocks),
    ("partitions", _partitions),
    ("topics", _topics),
    ("leaders", _leaders),
    ("reassignments", _reassignments),
    ("groups", _groups),
    ("strays", _strays),
)

WELL: Final[Mapping[str, str]] = {
    "bootstrap": "every address that was given answers",
    "controller": "a controller is active and answers",
    "etcd": "etcd answers",
    "store": "every broker believes the metadata store",
    "brokers": "every broker answers and is ready",
    "replicas": "no replica is out of service",
    "disks": "there is room on all disks",
    "files": "no broker is near its limit of open files",
    "clocks": "clocks agree",
    "partitions": "every partition has a leader and all of its replicas in sync",
    "topics": "every topic survives the loss of a broker",
    "leaders": "leaderships are spread evenly",
    "reassignments": "no replica is on the move",
    "groups": "every shard of groups has a coordinator that answers",
    "strays": "no replica is set aside",
}
