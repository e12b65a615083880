"""Random faults on groups, their coordinators and the cluster below, by seed; F30 and F31 by name.

TAILRACE_SEEDS=N runs N seeds, TAILRACE_SEED=n replays one, TAILRACE_TRACE=1 prints what happens.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from simulation.group_consumers import ConsumerRun, ShippedMember
from simulation.group_faults import GroupNemesis
from simulation.groups import SESSION_MS, GroupRun
from simulation.loop import SimLoop
from tailrace.client.membership import State
from tailrace.coordinator.records import Phase

pytestmark = pytest.mark.simulation

SEEDS = int(os.environ.get("TAILRACE_SEEDS", "300"))
SEEDS_PER_TEST = 15
# Members that are shipped consumers and read records: four times as dear.
CONSUMER_SEEDS = 20
FAULTS_S = 8.0
# A rebalance takes seconds where a member died or hangs; who stays hardly notices.
WAIT_MS_MAX = 100
FAILED = Path(__file__).with_name("failing_group_seeds")


def play(seed: int) -> GroupRun:
    loop = SimLoop(seed)
    if os.environ.get("TAILRACE_TRACE"):
        loop.note = lambda text: print(f"{loop.now_ms / 1000:9.3f} {text}")  # type: ignore[method-assign]

    async def main(loop: SimLoop) -> GroupRun:
        run = GroupRun(loop)
        nemesis = GroupNemesis(run, duration_s=FAULTS_S, rng=loop.fork_rng("nemesis"))
        await run.play(lambda _: nemesis.play())
        return run

    return loop.run(main)


def play_consumers(seed: int) -> ConsumerRun:
    async def main(loop: SimLoop) -> ConsumerRun:
        run = ConsumerRun(loop)
        nemesis = GroupNemesis(run, duration_s=FAULTS_S, rng=loop.fork_rng("nemesis"))
        await run.play(lambda _: nemesis.play())
        return run

    return SimLoop(seed).run(main)


def seeds() -> list[int]:
    if "TAILRACE_SEED" in os.environ:
        return [int(os.environ["TAILRACE_SEED"])]
    return list(range(SEEDS))


def failed_seeds() -> list[int]:
    lines = FAILED.read_text(encoding="utf-8").splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


@pytest.mark.seeded
@pytest.mark.parametrize(
    "chunk", [seeds()[at : at + SEEDS_PER_TEST] for at in range(0, len(seeds()), SEEDS_PER_TEST)]
)
def test_seeds(chunk: list[int]) -> None:
    for seed in chunk:
        try:
            play(seed)
        except Exception as error:
            error.add_note(f"replay: make sim SEED={seed} TRACE=1")
            raise


@pytest.mark.parametrize("seed", range(CONSUMER_SEEDS))
def test_shipped_consumers(seed: int) -> None:
    assert play_consumers(seed).witness.commits > 0


@pytest.mark.parametrize("seed", failed_seeds())
def test_seeds_that_failed_once(seed: int) -> None:
    play(seed)


@pytest.mark.parametrize("seed", range(5))
def test_f30_a_member_that_sleeps_beyond_its_session_commits_nothing(seed: int) -> None:
    async def script(run: GroupRun) -> None:
        sleeper = run.members[0]
        others = [m for m in run.members if m.group == sleeper.group and m is not sleeper]
        old, mine = sleeper.member_id, dict(sleeper.owned)
        sleeper.process.pause()
        # The others go on with its partitions, beyond what it had reached.
        async with asyncio.timeout(SESSION_MS / 1_000 + 10):
            while not mine.keys() <= {p for m in others for p in m.owned}:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await asyncio.sleep(2)
        reached = {p: run.witness.known(sleeper.group, p) for p in mine}
        assert all(reached[p] > mine[p] for p in mine)
        refused = run.witness.refused
        sleeper.process.resume()
        await asyncio.sleep(3)
        # Its commit of the old generation was refused, and it has come back as somebody new.
        assert run.witness.refused > refused
        assert sleeper.member_id != old

    loop = SimLoop(seed)
    loop.run(lambda loop: GroupRun(loop).play(script))


def test_a_member_that_stays_reads_on_while_the_group_rebalances() -> None:
    """Others come, die, leave, and the leader hangs just when all wait for it."""

    async def script(run: GroupRun) -> None:
        machines = {each: each._consumer._member.machine for each in run.members}  # type: ignore[attr-defined]
        leader = next(each for each, machine in machines.items() if machine.is_leader)
        stays, dies = [each for each in run.members if each is not leader]
        run.kill(dies)
        await asyncio.sleep(SESSION_MS / 1_000 + 1)
        comes = run.add(stays.group)
        while machines[leader].state is not State.JOINING:  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        # It divides the partitions: without it the others have joined, and get nothing.
        leader.process.pause()
        await asyncio.sleep(SESSION_MS / 1_000 + 2)
        leader.process.resume()
        await asyncio.sleep(2)
        comes.leaving = True
        run.members.remove(comes)
        await asyncio.sleep(2)
        assert isinstance(stays, ShippedMember)
        assert len(stays.waits_ms) > 50
        assert max(stays.waits_ms) <= WAIT_MS_MAX

    SimLoop(1).run(lambda loop: ConsumerRun(loop, groups=1, members=3).play(script))


@pytest.mark.parametrize("phase", [Phase.JOINING, Phase.SYNCING])
@pytest.mark.parametrize("seed", range(5))
def test_f31_a_coordinator_dies_in_mid_rebalance(seed: int, phase: Phase) -> None:
    async def script(run: GroupRun) -> None:
        nemesis = GroupNemesis(run, duration_s=0, rng=run.rng)
        if phase is Phase.SYNCING:
            # A leader that takes its time keeps the group between join and assignment.
            for member in run.members:
                member.slow_s = 0.5
        generation = run.members[0].generation
        run.add(run.members[0].group)
        async with asyncio.timeout(20):
            while True:
                busy = nemesis.busy()
                if busy and any(
                    group.facts.phase is phase
                    for shard in busy[0].coordinator.runtime.owned.values()  # type: ignore[union-attr]
                    for group in map(shard.shard.group, shard.shard.names())
                ):
                    break
                await asyncio.sleep(0.001)
        busy[0].kill()
        began_s = run.loop.time()
        for member in run.members:
            member.slow_s = 0.0
        while not run.is_whole() or run.members[0].generation <= generation:
            assert run.loop.time() - began_s < 15
            await asyncio.sleep(0.05)
        # The other coordinator took over at once, not when a lease or a session ended.
        assert run.loop.time() - began_s < SESSION_MS / 1_000 / 2

    SimLoop(seed).run(lambda loop: GroupRun(loop).play(script))


def test_a_deposed_coordinator_tells_nobody_anything_old() -> None:
    """It is cut off from etcd only: members reach it, and brokers do."""

    async def script(run: GroupRun) -> None:
        for node in run.cluster.coordinators:
            run.cluster.etcd.cut(node.name)
            await asyncio.sleep(8)
            run.cluster.etcd.heal(node.name)
            await asyncio.sleep(3)

    for seed in range(3):
        SimLoop(seed).run(lambda loop: GroupRun(loop).play(script))


def test_two_runs_of_one_seed_are_the_same() -> None:
    first, second = play(7), play(7)
    assert first.loop.now_ms == second.loop.now_ms
    assert first.witness.acknowledged == second.witness.acknowledged
