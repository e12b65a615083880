"""A model cluster on real gRPC: what a Spark worker talks to, without Spark and without brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from simulation.model_cluster import ModelCluster, ModelPartition
from tailrace.client.background import background
from tailrace.record.build import BatchBuilder
from tailrace.transport.grpc_network import GrpcNetwork

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
KINDS: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()),
    "array<struct<key: string, value: binary>>": ArrayType(_HEADER),
}


def struct(**columns: str) -> StructType:
    """A schema without Spark's own parser, which needs a JVM; "!" stands for "not null"."""
    return StructType(
        [
            StructField(name, KINDS[kind.rstrip("!")], not kind.endswith("!"))
            for name, kind in columns.items()
        ]
    )


class Model:
    """The model cluster, driven from the thread of the test."""

    def __init__(self, cluster: ModelCluster) -> None:
        self.cluster = cluster

    @property
    def bootstrap(self) -> str:
        return ",".join(self.cluster.bootstrap)

    def create(self, topic: str, partitions: int = 1, *, append_time: bool = False) -> None:
        config = {"message.timestamp.type": "LogAppendTime"} if append_time else {}
        self.do(lambda: self.cluster.create(topic, partitions, **config))

    def delete(self, topic: str) -> None:
        self.do(lambda: self.cluster.delete(topic))

    def log(self, topic: str, partition: int = 0) -> ModelPartition:
        return self.cluster.get(topic, partition)

    def fill(self, topic: str, partition: int = 0, *batches: int, time_ms: int = 5) -> None:
        """Append batches of so many records; values are the offsets, keys one of three."""

        def append() -> None:
            log = self.log(topic, partition)
            for records in batches:
                builder = BatchBuilder()
                for number in range(log.end, log.end + records):
                    builder.append(b"%d" % number, b"k%d" % (number % 3), time_ms + number)
                log.store(builder.build(base_offset=log.end, leader_epoch=log.leader_epoch))
            log.commit(log.end)

        self.do(append)

    def do(self, work: Any) -> Any:
        async def call() -> Any:
            return work()

        return background().wait(call())


@pytest.fixture
def model() -> Iterator[Model]:
    async def start() -> ModelCluster:
        network = GrpcNetwork()
        cluster = ModelCluster(lambda _: network, address="127.0.0.1:0")
        await cluster.start()
        return cluster

    running = background().wait(start())
    yield Model(running)
    background().wait(running.stop())
