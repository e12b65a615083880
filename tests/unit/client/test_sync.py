"""The blocking clients, over gRPC, against a model cluster in another thread."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from simulation.model_cluster import Fate, ModelCluster
from tailrace import Admin, Producer, RecordMetadata
from tailrace.client.background import background
from tailrace.errors import (
    BufferFull,
    ClientClosed,
    InvalidConfig,
    InvalidRequest,
    InvalidTopic,
    RequestTimedOut,
    UnknownTopic,
    Unreachable,
)
from tailrace.transport.grpc_network import GrpcNetwork


class Running:
    """A model cluster in the loop of the clients; what it does is done in that loop."""

    def __init__(self) -> None:
        self.loop = background()
        self.cluster = self.loop.wait(self._start())

    async def _start(self) -> ModelCluster:
        network = GrpcNetwork()
        cluster = ModelCluster(lambda _: network, address="127.0.0.1:0")
        await cluster.start()
        cluster.create("t", 3)
        return cluster

    def call(self, work: Any, *args: Any, **named: Any) -> Any:
        async def run() -> Any:
            return work(*args, **named)

        return self.loop.wait(run())

    def stop(self) -> None:
        self.loop.wait(self.cluster.stop())

    @property
    def bootstrap(self) -> str:
        return ",".join(self.cluster.bootstrap)

    def values(self) -> list[bytes]:
        return [value for each in self.cluster.partitions.values() for value in each.records()]


@pytest.fixture
def running() -> Iterator[Running]:
    found = Running()
    yield found
    found.stop()


def test_a_record_is_sent_and_its_place_is_known(running: Running) -> None:
    with Producer(running.bootstrap) as producer:
        future = producer.send("t", b"hello", key=b"k", partition=1, timestamp_ms=7)
        assert future.result(timeout=10) == RecordMetadata("t", 1, 0, 7)
        assert future.done()
        assert future.exception() is None
        assert not future.cancel()
        assert not future.cancelled()


def test_many_threads_send_and_each_keeps_its_order(running: Running) -> None:
    with Producer(running.bootstrap) as producer:

        def send(thread: int) -> None:
            for number in range(300):
                producer.send("t", b"%d/%d" % (thread, number), partition=thread % 3)

        threads = [threading.Thread(target=send, args=(each,)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(timeout=20)
    found = running.values()
    for each in range(4):
        mine = [value for value in found if value.startswith(b"%d/" % each)]
        assert mine == [b"%d/%d" % (each, number) for number in range(300)]


def test_callbacks_are_called_and_must_not_wait(running: Running) -> None:
    told: list[Any] = []
    ended = threading.Event()
    with Producer(running.bootstrap) as producer:

        def callback(metadata: Any, error: Any) -> None:
            try:
                producer.flush()
            except RuntimeError as refused:
                told.append((metadata.offset, error, str(refused)))

        producer.send("t", b"a", partition=0, callback=callback).add_done_callback(
            lambda _: ended.set()
        )
        assert ended.wait(10)
    assert told == [(0, None, "a callback must not wait for the client that calls it")]


def test_serializers_run_where_the_record_is_sent(running: Running) -> None:
    with Producer(running.bootstrap, key_serializer="int", value_serializer="json") as producer:
        producer.send("t", {"a": 1}, key=5).result(10)
        with pytest.raises(TypeError):
            producer.send("t", {1, 2}, key=5)
        with pytest.raises(AttributeError):
            producer.send("t", {}, key="five")
    assert running.values() == [b'{"a":1}']
    with (
        Producer(running.bootstrap) as producer,
        pytest.raises(TypeError, match="give a serializer"),
    ):
        producer.send("t", "text")


def test_what_is_wrong_with_a_record_is_told_by_its_future(running: Running) -> None:
    told: list[Any] = []
    with Producer(running.bootstrap, max_block_ms=300) as producer:
        lost = producer.send("nowhere", b"x", callback=lambda *both: told.append(both))
        with pytest.raises(UnknownTopic, match="nowhere"):
            lost.result(10)
        with pytest.raises(InvalidRequest, match="partitions 0 to 2"):
            producer.send("t", b"x", partition=3).result(10)
        assert producer.send("t", b"x").result(10).topic == "t"
    assert [(metadata, type(error)) for metadata, error in told] == [(None, UnknownTopic)]


def test_arguments_that_make_no_sense_are_refused_by_the_call_itself(running: Running) -> None:
    with Producer(running.bootstrap) as producer:
        send: Any = producer.send
        for given, kind in (
            ((None, b"x"), TypeError),
            (("a b", b"x"), InvalidTopic),
            (("t", "text"), TypeError),
            (("t", b"x", None, ["ab"]), TypeError),
            (("t", b"x", None, None, -1), InvalidRequest),
            (("t", b"x", None, None, None, 1.5), TypeError),
        ):
            with pytest.raises(kind):
                send(*given)
        batch: Any = producer.send_batch
        for topic, columns in (("t", [b"x"]), (None, {"value": [b"x"]})):
            with pytest.raises(TypeError):
                batch(topic, columns)
        assert producer.send("t", b"x", headers={"a": b"1"}).result(10).topic == "t"


def test_who_waits_in_vain_is_told_what_for(running: Running) -> None:
    with Producer(running.bootstrap) as producer:
        assert producer.send("t", b"x").result(10).topic == "t"
        assert producer.trouble() == ""
        running.cluster.fate = lambda: Fate.REFUSED
        future = producer.send("t", b"x")
        with pytest.raises(TimeoutError, match=r"not acknowledged within 0\.3 s \(OVERLOADED: "):
            future.result(0.3)
        with pytest.raises(RequestTimedOut, match=r"not done within 0\.2 s \(OVERLOADED: "):
            producer.flush(timeout=0.2)
        running.cluster.fate = lambda: Fate.SERVED


def test_a_full_buffer_makes_send_wait_and_then_fail(running: Running) -> None:
    running.cluster.fate = lambda: Fate.IGNORED
    producer = Producer(
        running.bootstrap, buffer_memory=65_536, batch_size=65_536, max_block_ms=300
    )

    def fill() -> None:
        for _ in range(10_000):
            producer.send("t", bytes(1_000), partition=0)

    with pytest.raises(BufferFull):
        fill()
    producer.close(timeout=0.1)


def test_a_flush_that_takes_too_long_says_so(running: Running) -> None:
    running.cluster.fate = lambda: Fate.IGNORED
    producer = Producer(running.bootstrap)
    future = producer.send("t", b"x")
    with pytest.raises(RequestTimedOut):
        producer.flush(timeout=0.2)
    with pytest.raises(TimeoutError):
        future.result(timeout=0.1)
    producer.close(timeout=0.1)
    with pytest.raises(ClientClosed):
        future.result(timeout=5)


def test_tables_go_as_they_are_and_in_turn(running: Running) -> None:
    with Producer(running.bootstrap) as producer:
        producer.send("t", b"first", partition=0)
        table = pa.table({"value": [b"second", b"third"]})
        (batch,) = producer.send_batch("t", table, partition=0).result(10)
        assert (batch.base_offset, batch.records) == (1, 2)
    assert running.values() == [b"first", b"second", b"third"]


def test_a_named_producer_resumes_where_it_was(running: Running) -> None:
    with Producer(running.bootstrap, name="copier") as producer:
        producer.send("t", b"0", partition=0)
        state = producer.state(10)
        for number in range(1, 20):
            producer.send("t", b"%d" % number, partition=0)
    with Producer(running.bootstrap, name="copier") as producer:
        producer.resume(state)
        for number in range(1, 25):
            producer.send("t", b"%d" % number, partition=0)
    assert running.values() == [b"%d" % number for number in range(25)]


def test_after_close_nothing_works(running: Running) -> None:
    producer = Producer(running.bootstrap)
    producer.close()
    producer.close()
    with pytest.raises(ClientClosed, match="closed"):
        producer.send("t", b"x")
    with pytest.raises(ClientClosed):
        producer.flush()
    admin = Admin(running.bootstrap)
    admin.close()
    with pytest.raises(ClientClosed):
        admin.list_topics()


FORKING = """
import os, sys
from tailrace import Admin, Producer
from tailrace.errors import ClientClosed

with Producer(sys.argv[1]) as producer, Admin(sys.argv[1]) as admin:
    producer.send("t", b"parent").result(10)
    child = os.fork()
    if child == 0:
        refused = 0
        for work in (lambda: producer.send("t", b"child"), producer.flush, admin.list_topics):
            try:
                work()
            except ClientClosed as error:
                refused += "before the fork" in str(error)
        producer.close()
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    producer.send("t", b"parent again").result(10)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_client_used_after_a_fork_raises_at_once(running: Running) -> None:
    # In a process of its own: this one may have imported gRPC before the clients.
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, running.bootstrap],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (run.returncode, run.stderr) == (3, "")
    assert sorted(running.values()) == [b"parent", b"parent again"]


def test_administration(running: Running) -> None:
    with Admin(running.bootstrap) as admin:
        made = admin.create_topic("new", partitions=2, config={"min.insync.replicas": "2"})
        assert (made.topic, len(made.partitions), made.min_insync_replicas) == ("new", 2, 2)
        assert admin.list_topics() == ["new", "t"]
        assert [each.topic for each in admin.describe_topics()] == ["new", "t"]
        assert admin.describe_topic("t").partitions[0].health == ()
        assert [each.broker_id for each in admin.describe_cluster().brokers] == [0, 1, 2]
        assert admin.list_offsets("t", "earliest")[2].offset == 0
        assert admin.explain("t", 0)[0].cause == "asked for t"
        admin.delete_topic("new")
        assert admin.list_topics() == ["t"]
        with pytest.raises(UnknownTopic):
            admin.describe_topic("new")


def test_nobody_is_there() -> None:
    admin = Admin("127.0.0.1:1", request_timeout_ms=300)
    with admin, pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        admin.list_topics()
    with pytest.raises(InvalidConfig, match="host:port"):
        Producer("nonsense")
    wrong: Any = {"linger.ms": 5}
    with pytest.raises(InvalidConfig, match="linger_ms"):
        Producer("127.0.0.1:1", **wrong)


def test_the_loop_is_shared_and_survives_its_clients() -> None:
    assert background() is background()

    async def name() -> str:
        return threading.current_thread().name

    assert background().wait(name()) == "tailrace"
    with pytest.raises(RequestTimedOut):
        background().wait(asyncio.sleep(5), 0.05)


@pytest.mark.parametrize("key", [None, b"k"])
def test_a_partitioner_that_raises_fails_the_record(running: Running, key: bytes | None) -> None:
    def moody(_: str, __: bytes | None, ___: int) -> int:
        raise KeyError("no idea")

    with Producer(running.bootstrap, partitioner=moody) as producer:
        future = producer.send("t", b"v", key)
        with pytest.raises(KeyError):
            future.result(10)
        # Whoever knows the partition is not held up.
        assert producer.send("t", b"v", partition=0).result(10).partition == 0
