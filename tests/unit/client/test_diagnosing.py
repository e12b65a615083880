"""Brokers are asked how they are; who does not answer is told apart."""

from __future__ import annotations

from tailrace.client.diagnosing import BrokerCondition, condition_of
from tailrace.errors import DamagedLog, HighWatermarkConflict, TailraceError
from tailrace.model import TopicPartition
from tailrace.transport.wire import error_code
from tailrace.v1 import broker_pb2
from unit.client.test_operations import World, simulate


def test_the_clock_of_a_broker_is_compared_with_the_middle_of_the_call() -> None:
    told = condition_of(
        broker_pb2.DiagnoseResponse(broker_id=1, wall_ms=5_050), asked_ms=1_000, took_ms=100
    )
    assert (told.clock_ahead_ms, told.clock_doubt_ms) == (4_000, 51)


def test_all_brokers_are_asked_and_one_that_is_dead_is_an_error() -> None:
    async def main(world: World) -> None:
        told = await world.admin.diagnose_brokers()
        assert sorted(told) == [0, 1, 2, 3, 4]
        for each in told.values():
            assert isinstance(each, BrokerCondition)
            # Clocks of a simulated cluster are a little apart.
            assert abs(each.clock_ahead_ms) < 1_000
        world.cluster.brokers[1].kill()
        told = await world.admin.diagnose_brokers()
        assert 1 not in told or isinstance(told[1], TailraceError)
        assert isinstance(told[0], BrokerCondition)

    simulate(main)


def test_replicas_out_of_service_and_a_store_that_is_not_believed_are_told() -> None:
    about = broker_pb2.DiagnoseResponse(
        broker_id=1, store_problem="it is empty", store_problem_since_ms=77, out_of_service_count=9
    )
    for number, code in enumerate((DamagedLog.code, HighWatermarkConflict.code)):
        out = about.out_of_service.add(error=error_code(code), reason=f"reason {number}")
        out.partition.topic, out.partition.partition = "t", number
    told = condition_of(about, asked_ms=0, took_ms=0)
    assert (told.store_problem, told.store_problem_since_ms) == ("it is empty", 77)
    assert told.out_of_service_count == 9
    damaged, waiting = told.out_of_service
    assert (damaged.partition, str(damaged.error)) == (TopicPartition("t", 0), "reason 0")
    assert not damaged.waits_for_a_person
    assert waiting.waits_for_a_person
