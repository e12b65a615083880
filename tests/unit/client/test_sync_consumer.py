"""The consumer that blocks, over gRPC, against a model cluster: threads, callbacks, forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from simulation.model_cluster import ModelCluster
from tailrace import Consumer, OffsetAndMetadata, Producer, TopicPartition
from tailrace.client.background import background
from tailrace.errors import ClientClosed, InvalidRequest, WokenUp
from tailrace.transport.grpc_network import GrpcNetwork

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def cluster() -> Iterator[ModelCluster]:
    network = GrpcNetwork()

    async def start() -> ModelCluster:
        found = ModelCluster(lambda _: network, address="127.0.0.1:0")
        await found.start()
        found.create("t", 2)
        return found

    running = background().wait(start())
    yield running
    background().wait(running.stop())
    background().wait(network.close())


def send(cluster: ModelCluster, count: int) -> None:
    with Producer(cluster.bootstrap, value_serializer="int") as producer:
        for number in range(count):
            producer.send("t", number, partition=number % 2)


def consumer_of(cluster: ModelCluster, *topics: str, **settings: Any) -> Consumer:
    return Consumer(
        *topics,
        bootstrap_servers=cluster.bootstrap,
        value_deserializer="int",
        **{"auto_offset_reset": "earliest", **settings},
    )


def test_polling_iterating_and_columns(cluster: ModelCluster) -> None:
    send(cluster, 3_000)
    with consumer_of(cluster, "t") as consumer:
        found: list[Any] = []
        while len(found) < 1_000:
            found += consumer.poll(5)
        for record in consumer:
            found.append(record)
            if len(found) == 1_700:
                break
        while len(found) < 3_000:
            found += consumer.poll(5)
        assert sorted(each.value for each in found) == list(range(3_000))
        for number in range(2):
            offsets = [each.offset for each in found if each.partition == number]
            assert offsets == list(range(1_500))
        assert consumer.poll(0.05) == []
        consumer.seek_to_beginning()
        assert sum(batch.num_rows for batch in consumer.batches(timeout=0.5)) == 3_000
        assert consumer.lag() == {T0: 0, T1: 0}
    with pytest.raises(ClientClosed):
        consumer.poll()


def test_callbacks_run_in_the_thread_that_polls_and_may_use_the_consumer(
    cluster: ModelCluster,
) -> None:
    send(cluster, 20)
    told: list[tuple[str, int, str]] = []

    class Listener:
        def on_assigned(self, partitions: list[TopicPartition]) -> None:
            told.append(("assigned", len(partitions), threading.current_thread().name))
            consumer.seek(T0, 8)

        def on_revoked(self, partitions: list[TopicPartition]) -> None:
            told.append(("revoked", len(partitions), threading.current_thread().name))
            consumer.commit()

        def on_lost(self, partitions: list[TopicPartition]) -> None:
            told.append(("lost", len(partitions), threading.current_thread().name))

    consumer = consumer_of(cluster, group_id="g", enable_auto_commit=False)
    consumer.subscribe("t", listener=Listener())
    found: list[Any] = []
    while len(found) < 12:
        found += consumer.poll(5)
    assert sorted(each.offset for each in found if each.partition == 0) == [8, 9]
    consumer.close()
    name = threading.current_thread().name
    assert told == [("assigned", 2, name), ("revoked", 2, name)]
    group = cluster.coordinators.groups["g"]
    assert {each: at.offset for each, at in group.offsets.items()} == {T0: 10, T1: 10}
    assert group.members == {}


def test_a_callback_that_fails_fails_the_poll(cluster: ModelCluster) -> None:
    class Broken:
        def on_assigned(self, partitions: list[TopicPartition]) -> None:
            raise LookupError("its own fault")

        def on_revoked(self, partitions: list[TopicPartition]) -> None: ...

        def on_lost(self, partitions: list[TopicPartition]) -> None: ...

    consumer = consumer_of(cluster, group_id="g")
    consumer.subscribe("t", listener=Broken())
    with pytest.raises(LookupError):
        consumer.poll(10)
    consumer.poll(0.1)
    consumer.close()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_in_a_callback_ends_the_poll_and_not_the_clients(
    cluster: ModelCluster, interruption: type[BaseException]
) -> None:
    class Impatient:
        def on_assigned(self, partitions: list[TopicPartition]) -> None:
            raise interruption

        def on_revoked(self, partitions: list[TopicPartition]) -> None: ...

        def on_lost(self, partitions: list[TopicPartition]) -> None: ...

    send(cluster, 2)
    consumer = consumer_of(cluster, group_id="g")
    consumer.subscribe("t", listener=Impatient())
    with pytest.raises(interruption):
        consumer.poll(10)
    found: list[Any] = []
    while len(found) < 2:
        found += consumer.poll(10)
    consumer.close()
    assert cluster.coordinators.groups["g"].members == {}


def test_a_callback_that_takes_longer_than_the_end_may(cluster: ModelCluster) -> None:
    class Slow:
        def on_assigned(self, partitions: list[TopicPartition]) -> None: ...

        def on_revoked(self, partitions: list[TopicPartition]) -> None:
            time.sleep(0.5)

        def on_lost(self, partitions: list[TopicPartition]) -> None: ...

    send(cluster, 2)
    consumer = consumer_of(cluster, group_id="g")
    consumer.subscribe("t", listener=Slow())
    while not consumer.assignment():
        consumer.poll(1)
    consumer.close(0.1)
    assert cluster.coordinators.groups["g"].members == {}


def test_records_that_come_in_the_moment_of_ctrl_c_come_again(cluster: ModelCluster) -> None:
    interrupted: list[bool] = []
    main = threading.main_thread().ident
    assert main is not None

    def slowly(data: bytes) -> bytes:
        if not interrupted:
            interrupted.append(True)
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(0.3)
        return data

    with Consumer(
        "t",
        bootstrap_servers=cluster.bootstrap,
        value_deserializer=slowly,
        auto_offset_reset="earliest",
    ) as consumer:
        sending = threading.Timer(0.3, send, (cluster, 10))
        sending.start()
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(60)
        sending.join()
        found: list[Any] = []
        while len(found) < 10:
            more = consumer.poll(5)
            assert more, "some are lost"
            found += more
    for number in range(2):
        assert [each.offset for each in found if each.partition == number] == list(range(5))


@pytest.mark.parametrize("is_there", [False, True])
def test_a_batch_that_comes_in_the_moment_of_ctrl_c_comes_again(
    cluster: ModelCluster, is_there: bool
) -> None:
    main = threading.main_thread().ident or 0

    class Interrupting:
        seen = 0

        def on_consume(self, partition: TopicPartition, records: int, size: int) -> None:
            self.seen += 1
            if self.seen == 2:
                signal.pthread_kill(main, signal.SIGINT)
                time.sleep(0.3)

        def on_commit(self, offsets: Any) -> None: ...

    if is_there:
        send(cluster, 10)
    with Consumer(
        "t",
        bootstrap_servers=cluster.bootstrap,
        auto_offset_reset="earliest",
        interceptors=[Interrupting()],
    ) as consumer:
        sending = threading.Timer(0.3, send, (cluster, 0 if is_there else 10))
        sending.start()
        found: list[Any] = []
        interrupted = 0
        while len(found) < 10:
            try:
                for each in consumer.batches(timeout=5):
                    found += zip(
                        each.column("partition").to_pylist(),
                        each.column("offset").to_pylist(),
                        strict=True,
                    )
            except KeyboardInterrupt:
                interrupted += 1
            else:
                break
        sending.join()
    assert interrupted == 1
    for number in range(2):
        assert [offset for each, offset in found if each == number] == list(range(5))


def test_wakeup_and_close_from_other_threads(cluster: ModelCluster) -> None:
    consumer = consumer_of(cluster, "t")
    timer = threading.Timer(0.2, consumer.wakeup)
    timer.start()
    with pytest.raises(WokenUp):
        consumer.poll(None)
    timer = threading.Timer(0.3, consumer.close)
    timer.start()
    with pytest.raises(ClientClosed):
        consumer.poll(None)
    timer.join()


def test_two_threads_at_once_are_refused(cluster: ModelCluster) -> None:
    consumer = consumer_of(cluster, "t")
    woken = threading.Event()

    def poll() -> None:
        try:
            consumer.poll(30.0)
        except WokenUp:
            woken.set()

    polling = threading.Thread(target=poll)
    polling.start()
    while not consumer.assignment():
        polling.join(0.01)
    with pytest.raises(InvalidRequest, match="two threads"):
        consumer.seek_to_end()
    with pytest.raises(InvalidRequest, match="two threads"):
        consumer.poll()
    consumer.wakeup()
    polling.join()
    assert woken.is_set()
    consumer.close()


def test_commits_from_a_program_without_asyncio(cluster: ModelCluster) -> None:
    send(cluster, 10)
    done = threading.Event()
    with consumer_of(cluster, "t", group_id="g", enable_auto_commit=False) as consumer:
        found: list[Any] = []
        while len(found) < 10:
            found += consumer.poll(5)
        consumer.commit_async({T0: OffsetAndMetadata(3)}, callback=lambda *_: done.set())
        assert done.wait(10)
        assert consumer.committed(T0)[T0].offset == 3
        consumer.commit()
        assert {each: at.offset for each, at in consumer.committed().items()} == {T0: 5, T1: 5}
        assert consumer.end_offsets([T0]) == {T0: 5}
        assert consumer.beginning_offsets([T0]) == {T0: 0}
        assert consumer.offsets_for_times({T0: 0}) == {T0: 0}
        consumer.pause(T0)
        assert consumer.paused() == {T0}
        consumer.resume(T0)
        assert consumer.metrics()["commits"] == 2
        consumer.unsubscribe()
        consumer.assign([T0])
        assert (consumer.assignment(), consumer.subscription()) == ({T0}, set())
        assert consumer.position(T0) == 5


def test_after_a_fork_it_belongs_to_the_parent(cluster: ModelCluster) -> None:
    consumer = consumer_of(cluster, "t")
    consumer.poll(0.1)
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            consumer.poll(0.1)
            os.write(writer, b"polled")
        except ClientClosed as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    assert b"before the fork" in os.read(reader, 200)
    os.close(reader)
    consumer.close()


def test_a_program_that_forgets_to_close_leaves_its_group_all_the_same(
    cluster: ModelCluster,
) -> None:
    code = (
        "from tailrace import Consumer; "
        f"consumer = Consumer('t', bootstrap_servers={cluster.bootstrap!r}, group_id='forgotten'); "
        "consumer.poll(0.1); "
        "[consumer.poll(0.1) for _ in range(100) if not consumer.assignment()]"
    )
    env = {"PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=env)
    group = cluster.coordinators.groups["forgotten"]
    assert (group.generation > 0, group.members) == (True, {})
