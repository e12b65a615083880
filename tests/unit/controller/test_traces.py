"""A failover as a trace: noticed, fenced, elected, told, and over when the new leaders know."""

from __future__ import annotations

from opentelemetry.trace import SpanKind, StatusCode

from simulation.loop import LoopClock
from tailrace.controller.traces import NOTICED_MAX_MS, OPEN_MAX, FailoverTraces
from tailrace.meta.keys import NO_BROKER, LeaderChange, PartitionHistory, encode, history_key
from tailrace.meta.store import Operation, Put
from tailrace.model import BrokerId, LeaderEpoch, TopicId, TopicPartition
from tailrace.transport.wire import PartitionOrder
from unit.controller.cluster import Cluster, simulate
from unit.spans import Spans, about, notes

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


class FixedClock:
    """Stands still."""

    def wall_ms(self) -> int:
        return 5_000

    def monotonic_ms(self) -> int:
        return 5_000


def change(
    *, old: int = 1, new: int = 2, epoch: int = 1, cause: str = "broker 1: gone", noticed: int = 900
) -> LeaderChange:
    return LeaderChange(
        decided_ms=1_000,
        cause=cause,
        noticed_ms=noticed,
        old_leader=BrokerId(old),
        new_leader=BrokerId(new),
        leader_epoch=LeaderEpoch(epoch),
        old_isr=(BrokerId(1), BrokerId(2)),
        new_isr=(BrokerId(2),),
        candidates=(),
        controller_id=7,
        controller_epoch=3,
    )


def puts(*changes: tuple[TopicPartition, LeaderChange]) -> list[Operation]:
    return [
        Put(history_key(partition), encode(PartitionHistory((each,))))
        for partition, each in changes
    ]


def order(partition: TopicPartition = T0, *, leader: int = 2, epoch: int = 1) -> PartitionOrder:
    return PartitionOrder(
        partition=partition,
        topic_id=TopicId("id"),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        isr=(BrokerId(2),),
        elr=(),
        replicas=(BrokerId(1), BrokerId(2), BrokerId(3)),
        revision=9,
        leader_link="",
        config={},
    )


def elect(
    traces: FailoverTraces, *changes: tuple[TopicPartition, LeaderChange], done: bool = True
) -> None:
    with traces.around(puts(*changes)) as step:
        step.is_done = done


def made() -> tuple[Spans, FailoverTraces]:
    spans = Spans()
    return spans, FailoverTraces(spans.tracer, FixedClock())


def test_a_killed_leader_is_one_trace_from_notice_to_the_last_new_leader() -> None:
    spans = Spans()

    async def main(cluster: Cluster) -> None:
        cluster.traces = FailoverTraces(spans.tracer, LoopClock(cluster.loop))
        await cluster.start()
        await cluster.create("t", partitions=6)
        assert spans.all() == [], "a new topic is no failover"
        cluster.brokers[1].kill()
        await cluster.until(lambda: bool(spans.named("failover")))
        noticed_ms = cluster.history().changes[0].noticed_ms
        whole = spans.one("failover")
        assert whole.start_time == noticed_ms * 1_000_000
        assert about(whole, "cause") == "broker 1: connection refused, its process is gone"
        assert notes(whole) == ["fenced"]
        elected = spans.one("elect")
        assert about(elected, "partitions") == 2
        await cluster.until(lambda: len(spans.named("tell")) == 2)
        tells = spans.named("tell")
        assert {about(each, "broker") for each in tells} == {2, 3}
        assert sum(about(each, "leads") for each in tells) == 2  # type: ignore[misc]
        assert {each.kind for each in tells} == {SpanKind.CLIENT}
        assert all(each.parent == whole.context for each in [elected, *tells])

    simulate(main)


def test_what_moves_no_leader_is_no_failover() -> None:
    spans, traces = made()
    for each in (change(old=NO_BROKER), change(new=1), change(new=NO_BROKER)):
        elect(traces, (T0, each))
    assert traces.tell(BrokerId(2), [order()]) is None
    assert spans.all() == []


def test_one_that_was_not_committed_is_not_told() -> None:
    spans, traces = made()
    elect(traces, (T0, change()), done=False)
    assert traces.tell(BrokerId(2), [order()]) is None
    elect(traces, (T0, change()))
    traces.obeyed(BrokerId(2), order())
    assert spans.tree() == ["elect < failover", "failover"]


def test_brokers_may_be_told_before_the_outcome_is_known() -> None:
    spans, traces = made()
    with traces.around(puts((T0, change()))) as step:
        told = traces.tell(BrokerId(2), [order()])
        assert told is not None
        told.end()
        traces.obeyed(BrokerId(2), order())
        step.is_done = True
    assert sorted(spans.tree()) == ["elect < failover", "failover", "tell < failover"]


def test_transactions_for_one_reason_are_one_failover() -> None:
    spans, traces = made()
    elect(traces, (T0, change()))
    elect(traces, (T1, change(new=3)))
    traces.obeyed(BrokerId(3), order())
    traces.obeyed(BrokerId(2), order(epoch=0))
    assert spans.named("failover") == [], "neither a follower nor a former epoch counts"
    traces.obeyed(BrokerId(2), order())
    assert spans.named("failover") == []
    told = traces.tell(BrokerId(3), [order(T1, leader=3), order()])
    assert told is not None
    told.end("it could not be told")
    traces.obeyed(BrokerId(3), order(T1, leader=3))
    assert spans.tree() == [
        "elect < failover",
        "elect < failover",
        "tell < failover",
        "failover",
    ]
    assert spans.one("tell").status.status_code is StatusCode.ERROR


def test_who_was_elected_before_is_no_longer_waited_for() -> None:
    spans, traces = made()
    elect(traces, (T0, change()))
    elect(traces, (T0, change(old=2, new=3, epoch=2, cause="broker 2: gone")))
    (first,) = spans.named("failover")
    assert about(first, "cause") == "broker 1: gone"
    traces.obeyed(BrokerId(3), order(leader=3, epoch=2))
    assert len(spans.named("failover")) == 2


def test_what_was_noticed_long_ago_begins_when_it_was_decided() -> None:
    spans, traces = made()
    long_ago = 1_000 - NOTICED_MAX_MS - 1
    elect(traces, (T0, change(noticed=long_ago)))
    traces.obeyed(BrokerId(2), order())
    assert spans.one("failover").start_time == 1_000_000_000


def test_leaders_that_are_never_told_do_not_pile_up() -> None:
    spans, traces = made()
    for number in range(OPEN_MAX + 1):
        elect(traces, (TopicPartition("t", number), change(cause=f"reason {number}")))
    (oldest,) = spans.named("failover")
    assert about(oldest, "cause") == "reason 0"
    assert oldest.status.description == "1 new leaders were not told"
