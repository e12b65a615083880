"""Keys and values in Avro: with a schema that is given, or with schemas kept beside the data.

A value is written in Avro's single-object encoding: a marker, the fingerprint of its schema
(CRC-64-AVRO), the body. So a reader knows which schema a value was written with, and Avro turns it
into the one that the reader wants. Schemas can be kept in a compacted topic of the same cluster
(`keep_schema`, `kept_schemas`), so that nobody needs another service for them.

Needs the `avro` extra.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, Final, TypeAlias

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from tailrace.client.sync import Admin, Producer
from tailrace.client.sync_consumer import Consumer
from tailrace.errors import InvalidRequest, TopicExists

Schema: TypeAlias = "str | Path | Mapping[str, Any] | Sequence[Any]"
"""A schema as Python has it, as JSON text, or as a file with it."""

SCHEMAS_TOPIC: Final = "schemas"
KEEP_TIMEOUT_S: Final = 30.0
READ_TIMEOUT_S: Final = 2.0

_MARKER: Final = b"\xc3\x01"
_HEAD: Final = Struct("<2sQ")


class AvroSerializer:
    """Turns what fits the schema into bytes; give it as `value_serializer` or `key_serializer`."""

    def __init__(self, schema: Schema) -> None:
        self.schema = _parsed(schema)
        self.fingerprint = _fingerprint(self.schema)
        self._head = _HEAD.pack(_MARKER, self.fingerprint)

    def __call__(self, value: Any) -> bytes | None:
        """None stays None: a tombstone. ValueError or TypeError for what does not fit."""
        if value is None:
            return None
        buffer = io.BytesIO()
        buffer.write(self._head)
        fastavro.schemaless_writer(buffer, self.schema, value, strict=True)
        return buffer.getvalue()


class AvroDeserializer:
    """Turns bytes into Python values, as `reader` wants them or as they were written."""

    def __init__(self, *schemas: Schema, reader: Schema | None = None) -> None:
        self._reader = None if reader is None else _parsed(reader)
        self._schemas: dict[int, Any] = {}
        for each in [*schemas, *([] if reader is None else [reader])]:
            self.add(each)

    def add(self, schema: Schema) -> None:
        """Values may be written with this schema too."""
        parsed = _parsed(schema)
        self._schemas[_fingerprint(parsed)] = parsed

    def __call__(self, data: bytes) -> Any:
        if len(data) < _HEAD.size or not data.startswith(_MARKER):
            raise InvalidRequest("this is no single Avro object: it does not begin as one")
        _, found = _HEAD.unpack_from(data)
        writer = self._schemas.get(found)
        if writer is None:
            raise InvalidRequest(
                f"it was written with schema {found:016x}, which is not known here: give it, or "
                "take `kept_schemas` anew"
            )
        body = io.BytesIO(data)
        body.seek(_HEAD.size)
        return fastavro.schemaless_reader(body, writer, self._reader)


def keep_schema(
    bootstrap_servers: str | Sequence[str], schema: Schema, *, topic: str = SCHEMAS_TOPIC
) -> None:
    """Write a schema down beside the data; the topic is made when it is not there."""
    with Admin(bootstrap_servers) as admin:
        if topic not in admin.list_topics():
            with suppress(TopicExists):
                admin.create_topic(topic, partitions=1, config={"cleanup.policy": "compact"})
    key = f"{AvroSerializer(schema).fingerprint:016x}".encode()
    with Producer(bootstrap_servers) as producer:
        text = json.dumps(_loaded(schema)).encode()
        producer.send(topic, text, key=key).result(timeout=KEEP_TIMEOUT_S)


def kept_schemas(
    bootstrap_servers: str | Sequence[str], *, topic: str = SCHEMAS_TOPIC
) -> list[Any]:
    """All schemas that are kept, for `AvroDeserializer(*kept_schemas(...))`."""
    with Consumer(
        topic,
        bootstrap_servers=bootstrap_servers,
        auto_offset_reset="earliest",
        value_deserializer="json",
    ) as consumer:
        found: dict[bytes, Any] = {}
        ends = consumer.end_offsets(consumer.assignment())
        while any(consumer.position(each) < end for each, end in ends.items()):
            found |= {each.key: each.value for each in consumer.poll(READ_TIMEOUT_S)}
    return [each for each in found.values() if each is not None]


def _loaded(schema: Schema) -> Any:
    """The schema as Python has it."""
    if isinstance(schema, Path):
        return json.loads(schema.read_text(encoding="utf-8"))
    if isinstance(schema, str) and schema.lstrip()[:1] in {"{", "[", '"'}:
        return json.loads(schema)
    return schema


def _parsed(schema: Schema) -> Any:
    return fastavro.parse_schema(_loaded(schema))


def _fingerprint(parsed: Any) -> int:
    # fastavro writes the eight bytes down in the order in which they are stored.
    text = fingerprint(to_parsing_canonical_form(parsed), "CRC-64-AVRO")
    return int.from_bytes(bytes.fromhex(text), "little")
