"""A rebalance as a trace: its two phases, who joined, and how it ended."""

from __future__ import annotations

from tailrace.coordinator.records import (
    GroupFacts,
    GroupStored,
    Member,
    Phase,
    Position,
    PositionStored,
)
from tailrace.coordinator.traces import OPEN_MAX, RebalanceTraces
from tailrace.model import TopicPartition
from tailrace.transport import methods
from tailrace.v1 import group_pb2 as pb
from unit.coordinator.world import World, simulate
from unit.spans import Spans, about, notes

MEMBER = Member(
    member_id="m", session_timeout_ms=1, rebalance_timeout_ms=1, protocols=(("range", b""),)
)


def stored(phase: Phase, *, generation: int = 1, members: int = 1) -> GroupStored:
    facts = GroupFacts(
        phase=phase,
        generation=generation,
        members={f"m{number}": MEMBER for number in range(members)},
    )
    return GroupStored("g", facts)


def test_a_rebalance_is_two_phases_and_those_who_joined() -> None:
    spans = Spans()
    traces = RebalanceTraces(spans.tracer)
    traces.seen([stored(Phase.JOINING)])
    traces.joined("g", client_id="a", host="10.0.0.1")
    traces.joined("another", client_id="a", host="10.0.0.1")
    # A member that goes while the others join changes the facts, not the phase.
    traces.seen([stored(Phase.JOINING, members=0)])
    traces.seen([stored(Phase.SYNCING, generation=2, members=2)])
    traces.seen([stored(Phase.STABLE, generation=2, members=2)])
    assert spans.tree() == ["join < rebalance", "sync < rebalance", "rebalance"]
    whole = spans.one("rebalance")
    assert (about(whole, "group"), about(whole, "generation"), about(whole, "members")) == (
        "g",
        2,
        2,
    )
    assert notes(whole) == ["join"]


def test_what_is_no_rebalance_is_not_told() -> None:
    spans = Spans()
    traces = RebalanceTraces(spans.tracer)
    position = Position(1, -1, "", "", 0)
    traces.seen([PositionStored("g", TopicPartition("t", 0), position), stored(Phase.STABLE)])
    traces.seen([GroupStored("g", None)])
    traces.lost("g", "why")
    assert spans.all() == []


def test_a_group_that_is_left_or_lost_in_the_middle_ends_its_rebalance() -> None:
    spans = Spans()
    traces = RebalanceTraces(spans.tracer)
    traces.seen([stored(Phase.SYNCING)])
    traces.seen([stored(Phase.EMPTY, members=0)])
    assert spans.tree() == ["sync < rebalance", "rebalance"]
    traces.seen([stored(Phase.JOINING)])
    traces.lost("g", "shard 3 has another owner now")
    assert spans.named("rebalance")[1].status.description == "shard 3 has another owner now"


def test_no_more_than_so_many_are_told_at_a_time() -> None:
    spans = Spans()
    traces = RebalanceTraces(spans.tracer)
    for number in range(OPEN_MAX + 1):
        traces.seen([GroupStored(f"g{number}", stored(Phase.JOINING).facts)])
    for number in range(OPEN_MAX + 1):
        traces.lost(f"g{number}", "over")
    # The SDK keeps SPANS_WAITING_MAX of them; the last one was never begun.
    told = {about(each, "group") for each in spans.named("rebalance")}
    assert f"g{OPEN_MAX - 1}" in told
    assert f"g{OPEN_MAX}" not in told


def test_a_coordinator_tells_of_its_groups() -> None:
    spans = Spans()

    async def main(world: World) -> None:
        (node,) = world.cluster.coordinators
        node.kill()
        node.traces = RebalanceTraces(spans.tracer)
        node.start()
        joined = await world.join("g", client_id="somebody")
        await world.call(
            methods.GROUP_SYNC,
            pb.SyncGroupRequest(
                group="g",
                member_id=joined.member_id,
                generation=joined.generation,
                assignments=[pb.MemberAssignment(member_id=joined.member_id, assignment=b"x")],
            ),
        )
        assert spans.tree() == ["join < rebalance", "sync < rebalance", "rebalance"]
        assert about(spans.one("rebalance"), "members") == 1

    simulate(main)
