"""A broker believes the controller that the store names, and tells a stranger nothing."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tailrace.errors import StoreUnavailable, Unreachable
from tailrace.meta.store import Delete
from tailrace.transport import methods
from tailrace.transport.rpc import Method
from tailrace.transport.wire import code_name, to_partition
from tailrace.v1 import broker_pb2
from tailrace.v1 import control_pb2 as pb
from tailrace.v1.common_pb2 import ClusterMetadata
from unit.broker.trio import T0, TOPIC_ID, Trio, simulate

ABSURD = 2**62


async def order(trio: Trio, header: pb.OrderHeader, *, port: int = 9095) -> tuple[str, str]:
    response = await trio.host.channel(f"b0:{port}").call(
        methods.CONTROL_UPDATE_METADATA,
        pb.UpdateMetadataRequest(header=header, metadata=ClusterMetadata(revision=1)),
        timeout_ms=1_000,
    )
    return code_name(response.error), response.message


def unimplemented(trio: Trio) -> list[str]:
    """Take what the network says of calls that nobody serves."""
    failures = list(trio.network.handler_failures)
    trio.network.handler_failures.clear()
    return [each for each in failures if "has no /tailrace" in each]


@simulate
async def test_a2_the_client_port_knows_no_control_calls(trio: Trio) -> None:
    await trio.start(0)
    calls: list[tuple[Method[Any, Any], Any]] = [
        (methods.CONTROL_LEADER_AND_ISR, pb.LeaderAndIsrRequest(header=trio.header(0))),
        (methods.CONTROL_STOP_REPLICA, pb.StopReplicaRequest(header=trio.header(0))),
        (methods.CONTROL_UPDATE_METADATA, pb.UpdateMetadataRequest(header=trio.header(0))),
        (methods.CONTROL_UPDATE_SETTINGS, pb.UpdateSettingsRequest(header=trio.header(0))),
    ]
    for method, request in calls:
        with pytest.raises(Unreachable):
            await trio.host.channel("b0:9092").call(method, request, timeout_ms=1_000)
    stream = trio.host.channel("b0:9092").open(
        methods.CONTROL_HEALTH, pb.HealthRequest(header=trio.header(0))
    )
    with pytest.raises(Unreachable):
        await stream.recv()
    assert len(unimplemented(trio)) == 5


@simulate
async def test_a2_the_control_port_knows_no_client_calls(trio: Trio) -> None:
    await trio.start(0)
    with pytest.raises(Unreachable):
        await trio.host.channel("b0:9095").call(
            methods.BROKER_LIST_OFFSETS, broker_pb2.ListOffsetsRequest(), timeout_ms=1_000
        )
    assert len(unimplemented(trio)) == 1


@simulate
async def test_a2_an_older_controller_is_served_where_the_upgrade_says_so(trio: Trio) -> None:
    await trio.start(0, control_on_client_port=True)
    header = trio.header(0)
    header.ClearField("broker_incarnation")
    assert await order(trio, header, port=9092) == ("", "")


@simulate
async def test_a2_an_absurd_epoch_is_not_remembered(trio: Trio) -> None:
    await trio.start(0)
    assert await order(trio, trio.header(0)) == ("", "")
    code, message = await order(trio, trio.header(0, controller_epoch=ABSURD))
    assert code == "NOT_CONTROLLER"
    assert re.search(r"\d", message) is None
    assert await order(trio, trio.header(0)) == ("", "")
    # While the doubt lasts the store is not asked again; after that the next real one is believed.
    await trio.elect(2)
    assert (await order(trio, trio.header(0, controller_epoch=2)))[0] == "NOT_CONTROLLER"
    await asyncio.sleep(0.2)
    assert await order(trio, trio.header(0, controller_epoch=2)) == ("", "")
    assert (await order(trio, trio.header(0)))[0] == "STALE_CONTROLLER"


@simulate
async def test_a2_refusals_tell_no_epochs_and_the_broker_says_them(trio: Trio) -> None:
    await trio.start(0)
    assert await order(trio, trio.header(0)) == ("", "")
    wrong_life, no_proof = trio.header(0), trio.header(0)
    wrong_life.broker_epoch += 1
    no_proof.ClearField("broker_incarnation")
    guess = trio.header(0)
    guess.broker_incarnation = "another"
    for header, expected in (
        (wrong_life, "STALE_BROKER"),
        (no_proof, "STALE_BROKER"),
        (guess, "STALE_BROKER"),
        (trio.header(0, controller_epoch=0), "STALE_CONTROLLER"),
    ):
        code, message = await order(trio, header)
        assert code == expected
        assert re.search(r"\d", message) is None, message
    assert trio.heard("refused: an order for another epoch of this broker")


@simulate
async def test_a2_another_controller_in_the_same_epoch_is_refused(trio: Trio) -> None:
    await trio.start(0)
    assert await order(trio, trio.header(0)) == ("", "")
    other = trio.header(0)
    other.controller_id = 3
    assert (await order(trio, other))[0] == "STALE_CONTROLLER"


@simulate
async def test_a2_a_stop_that_is_not_proven_deletes_nothing(trio: Trio) -> None:
    await trio.start(0)
    await trio.lead(0, 0, isr=(0,), replicas=(0,))
    await trio.produce()
    header = trio.header(0, controller_epoch=ABSURD)
    stop = pb.StopPartition(partition=to_partition(T0), topic_id=TOPIC_ID, delete=True)
    response = await trio.host.channel("b0:9095").call(
        methods.CONTROL_STOP_REPLICA,
        pb.StopReplicaRequest(header=header, partitions=[stop]),
        timeout_ms=1_000,
    )
    assert code_name(response.error) == "NOT_CONTROLLER"
    assert trio.hosted(0).log.log_end == 3


@simulate
async def test_a2_nobody_is_believed_while_the_store_names_nobody(trio: Trio) -> None:
    await trio.start(0)
    await trio.store.txn([], [Delete("/controller")])
    assert (await order(trio, trio.header(0)))[0] == "NOT_CONTROLLER"


@simulate
async def test_a2_without_the_store_the_confirmed_controller_goes_on_alone(trio: Trio) -> None:
    await trio.start(0)
    assert await order(trio, trio.header(0)) == ("", "")
    guard = trio.brokers[0].control.guard  # type: ignore[union-attr]

    class Away:
        async def get_many(self, _: object) -> None:
            raise StoreUnavailable("it is away")

    guard._store = Away()
    assert await order(trio, trio.header(0)) == ("", "")
    code, message = await order(trio, trio.header(0, controller_epoch=2))
    assert code == "STORE_UNAVAILABLE"
    assert re.search(r"\d", message) is None


@simulate
async def test_f42_the_same_controller_in_another_branch_of_the_store_is_refused(
    trio: Trio,
) -> None:
    """The store went back, and a controller with this id reigns in this epoch there, too."""
    await trio.start(0)
    await trio.elect(2, token="ours")
    ours = trio.header(0, controller_epoch=2, term_token="ours")
    assert await order(trio, ours) == ("", "")
    theirs = trio.header(0, controller_epoch=2, term_token="theirs")
    assert (await order(trio, theirs))[0] == "STALE_CONTROLLER"
    assert await order(trio, ours) == ("", "")


@simulate
async def test_f42_a_controller_of_a_store_that_went_back_is_not_confirmed(trio: Trio) -> None:
    """Nobody has looked at the store since; the guard does before it believes a new controller."""
    await trio.start(0)
    older = trio.etcd.copy()
    await trio.elect(2, token="ours")
    assert await order(trio, trio.header(0, controller_epoch=2, term_token="ours")) == ("", "")
    older.start()
    trio.store = older.connect()
    trio.brokers[0].verified._store = older.connect()
    await trio.elect(3, token="theirs")
    theirs = trio.header(0, controller_epoch=3, term_token="theirs")
    assert (await order(trio, theirs))[0] == "STORE_UNAVAILABLE"


@simulate
async def test_a_controller_of_an_older_version_after_a_newer_one_is_believed(trio: Trio) -> None:
    await trio.start(0)
    await trio.elect(2, token="ours")
    assert await order(trio, trio.header(0, controller_epoch=2, term_token="ours")) == ("", "")
    await trio.elect(3)
    assert await order(trio, trio.header(0, controller_epoch=3)) == ("", "")
