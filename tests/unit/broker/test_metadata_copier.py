"""A broker's own copy of the metadata: written when something is new, found at the next start."""

from __future__ import annotations

import asyncio

from simulation.storage import SimFiles
from tailrace.broker.metadata_copier import read_folders
from tailrace.meta.copies import FILE_NAME, FORMER_NAME, decode_copy
from tailrace.meta.keys import STAMP, Kind, encode_counter, place_of
from tailrace.meta.lineage import Standing, Witness
from tailrace.meta.memory import MemoryEtcd
from tailrace.meta.store import Put
from tailrace.process import StartAnew
from unit.broker.trio import CLUSTER_ID, T0, TOPIC_ID, Trio, simulate


async def copied(trio: Trio, number: int) -> None:
    copier = trio.brokers[number].copier
    assert copier is not None
    await copier.copy()


def files_of(trio: Trio, number: int) -> SimFiles:
    return trio.files[number]


@simulate
async def test_keys_and_orders_are_copied_and_found_again(trio: Trio) -> None:
    await trio.start()
    await trio.lead(1, 3, config={"retention.ms": "1000"})
    for number in trio.brokers:
        await copied(trio, number)
        stored = decode_copy(files_of(trio, number).read(f"/data/{FILE_NAME}"))
        assert stored.copy is not None
        kinds = {place.kind for each in stored.copy.entries if (place := place_of(each.key))}
        assert {Kind.CLUSTER, Kind.STATE, Kind.BROKER} <= kinds
        order = stored.orders[T0]
        assert (order.topic_id, order.state.leader, order.state.leader_epoch) == (TOPIC_ID, 1, 3)
        assert order.config == {"retention.ms": "1000"}
        witness, found = read_folders(files_of(trio, number), ["/data"], print)
        assert (witness, found) == (stored.copy.witness, stored)


@simulate
async def test_a_store_that_is_not_believed_never_gets_into_the_copy(trio: Trio) -> None:
    await trio.start()
    await trio.lead(1, 0)
    await copied(trio, 0)
    before = files_of(trio, 0).read(f"/data/{FILE_NAME}")
    broker = trio.brokers[0]
    broker.verified._store = MemoryEtcd().connect()
    await asyncio.sleep(10)
    assert broker.verified.standing is Standing.EMPTY
    assert "not believed" in broker.why_not_ready()
    assert files_of(trio, 0).read(f"/data/{FILE_NAME}") == before
    # What it has it still serves.
    assert trio.hosted(0).log.is_open


@simulate
async def test_a_copy_that_rotted_or_is_gone_is_not_used(trio: Trio) -> None:
    await trio.start()
    await copied(trio, 0)
    files = files_of(trio, 0)
    said: list[str] = []
    path = f"/data/{FILE_NAME}"
    data = files.read(path)
    file = files.open(path)
    file.write_at(len(data) // 2, [b"#"])
    file.close()
    witness, found = read_folders(files, ["/data"], said.append)
    assert witness is not None
    assert (witness.store_id, found.copy) == ("", None)
    assert "not used" in said[0]
    files.remove(path)
    witness, found = read_folders(files, ["/data"], said.append)
    assert witness is not None
    assert found.copy is None
    assert read_folders(files, ["/elsewhere"], said.append)[0] is None


@simulate
async def test_f42_a_broker_that_believed_an_older_branch_follows_most_of_the_others(
    trio: Trio,
) -> None:
    """It was away when the copy was made that it then took for what came since."""
    await trio.start()
    await trio.lead(1, 0)
    await copied(trio, 0)
    branch = trio.etcd.copy()
    trio.etcd.txn([], [Put(STAMP, encode_counter(5))])
    branch.start()
    branch.txn([], [Put(STAMP, encode_counter(9))])
    broker = trio.brokers[0]
    broker.verified._store = branch.connect()
    await broker.verified.look()
    await copied(trio, 0)
    broker.verified._store = trio.etcd.connect()
    await asyncio.sleep(10)
    assert broker.verified.standing is Standing.OLDER
    assert not broker.failed.is_set()
    await trio.until(broker.failed.is_set)
    assert isinstance(broker.failure, StartAnew)
    assert trio.heard("2 brokers have been registered in this store")
    witness, found = read_folders(files_of(trio, 0), ["/data"], print)
    assert witness == Witness(cluster_id=CLUSTER_ID)
    assert T0 in found.orders
    await trio.stop_broker(0)
    broker = await trio.start_broker(0)
    await trio.until(lambda: broker.epoch is not None)


@simulate
async def test_f42_one_other_broker_is_not_most_of_them(trio: Trio) -> None:
    await trio.start()
    await trio.lead(1, 0)
    await trio.stop_broker(2)
    del trio.brokers[2]
    trio.etcd.txn([], [Put(STAMP, encode_counter(5))])
    broker = trio.brokers[0]
    await broker.verified.look()
    trio.etcd.txn([], [Put(STAMP, encode_counter(4))])
    await asyncio.sleep(60)
    assert broker.verified.standing is Standing.OLDER
    assert broker.failure is None


@simulate
async def test_f43_the_copy_knows_the_cluster_when_the_file_that_says_it_is_gone(
    trio: Trio,
) -> None:
    """A broker that forgot its cluster would join whichever has founded itself in the store."""
    await trio.start()
    await copied(trio, 0)
    files = files_of(trio, 0)
    files.remove("/data/meta.properties")
    witness, found = read_folders(files, ["/data"], print)
    assert witness is not None
    assert witness.cluster_id == CLUSTER_ID
    assert found.copy is not None


@simulate
async def test_a_replica_without_an_order_keeps_nothing_out_of_the_copy(trio: Trio) -> None:
    await trio.start()
    await trio.lead(1, 3)
    # Refused: the log was written in a newer epoch.
    await trio.produce(to=1)
    await trio.stop_broker(1)
    broker = await trio.start_broker(1)
    await trio.until(lambda: broker.epoch is not None)
    await trio.lead(1, 2, to=(1,))
    assert trio.hosted(1).machine.leader_epoch == -1
    await copied(trio, 1)
    stored = decode_copy(files_of(trio, 1).read(f"/data/{FILE_NAME}"))
    assert stored.orders[T0].state.leader_epoch == 3


@simulate
async def test_the_witness_is_noted_while_a_copy_has_to_wait(trio: Trio) -> None:
    """On a busy machine a copy takes long, and the next one comes late: the witness does not."""
    await trio.start()
    await trio.lead(1, 0)
    copier = trio.brokers[0].copier
    assert copier is not None
    await copied(trio, 0)
    before = read_folders(files_of(trio, 0), ["/data"], print)[0]
    await trio.lead(1, 1, to=())
    await copier.note_witness()
    after, found = read_folders(files_of(trio, 0), ["/data"], print)
    assert before is not None
    assert after is not None
    assert after.revision > before.revision
    assert found.copy is not None
    assert found.copy.revision < after.revision


@simulate
async def test_a_broker_that_follows_others_keeps_its_newer_copy_beside(trio: Trio) -> None:
    await trio.start()
    await trio.lead(1, 0)
    await copied(trio, 0)
    stored = decode_copy(files_of(trio, 0).read(f"/data/{FILE_NAME}"))
    copier = trio.brokers[0].copier
    assert copier is not None
    await copier.forget_witness()
    assert decode_copy(files_of(trio, 0).read(f"/data/{FORMER_NAME}")).copy == stored.copy
    witness, found = read_folders(files_of(trio, 0), ["/data"], print)
    assert witness is not None
    assert (witness.revision, found.copy) == (0, None)
