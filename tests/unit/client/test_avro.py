"""Avro with schemas that are given, and with schemas kept beside the data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulation.model_cluster import ModelCluster
from tailrace import Consumer, Producer
from tailrace.client.avro import AvroDeserializer, AvroSerializer, keep_schema, kept_schemas
from tailrace.client.background import background
from tailrace.errors import InvalidRequest
from tailrace.transport.grpc_network import GrpcNetwork

OLD: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "table", "type": "int"}],
}
NEW: dict[str, Any] = {
    **OLD,
    "fields": [*OLD["fields"], {"name": "tip", "type": "int", "default": 0}],
}


@pytest.fixture
def cluster() -> Iterator[ModelCluster]:
    network = GrpcNetwork()

    async def start() -> ModelCluster:
        found = ModelCluster(lambda _: network, address="127.0.0.1:0")
        await found.start()
        found.create("t", 1)
        return found

    running = background().wait(start())
    yield running
    background().wait(running.stop())
    background().wait(network.close())


def test_the_fingerprint_is_that_of_the_specification() -> None:
    assert AvroSerializer('"int"').fingerprint == 0x7275D51A3F395C8F
    data = AvroSerializer('"int"')(1)
    assert data == bytes.fromhex("c3018f5c393f1ad5757202")


def test_there_and_back_and_into_a_newer_schema(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(OLD))
    data = AvroSerializer(tmp_path / "order.avsc")({"table": 7})
    assert data is not None
    assert AvroDeserializer(OLD)(data) == {"table": 7}
    assert AvroDeserializer(OLD, reader=NEW)(data) == {"table": 7, "tip": 0}
    assert AvroSerializer(OLD)(None) is None
    with pytest.raises(ValueError, match="chair"):
        AvroSerializer(OLD)({"chair": 7})


def test_what_was_written_otherwise_is_told() -> None:
    data = AvroSerializer(NEW)({"table": 7, "tip": 1})
    assert data is not None
    with pytest.raises(InvalidRequest, match="not known here"):
        AvroDeserializer(OLD)(data)
    for wrong in (b"", b"{}", b"\xc3\x01short"):
        with pytest.raises(InvalidRequest, match="no single Avro object"):
            AvroDeserializer(OLD)(wrong)


def test_schemas_beside_the_data(cluster: ModelCluster) -> None:
    for schema in (OLD, NEW, OLD):
        keep_schema(cluster.bootstrap, schema)
    for schema, value in ((OLD, {"table": 1}), (NEW, {"table": 2, "tip": 3})):
        with Producer(cluster.bootstrap, value_serializer=AvroSerializer(schema)) as producer:
            producer.send("t", value)
    schemas = kept_schemas(cluster.bootstrap)
    assert sorted(schemas, key=str) == sorted([OLD, NEW], key=str)
    with Consumer(
        "t",
        bootstrap_servers=cluster.bootstrap,
        auto_offset_reset="earliest",
        value_deserializer=AvroDeserializer(*schemas, reader=NEW),
    ) as consumer:
        found: list[Any] = []
        while len(found) < 2:
            found += [each.value for each in consumer.poll(5)]
    assert found == [{"table": 1, "tip": 0}, {"table": 2, "tip": 3}]
