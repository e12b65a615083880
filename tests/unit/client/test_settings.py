"""The settings of a producer."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from tailrace.client.settings import ProducerOptions, ProducerSettings
from tailrace.errors import InvalidConfig
from tailrace.record.codec import Compression


def test_the_names_a_program_can_give_are_those_there_are() -> None:
    names = [each.name for each in fields(ProducerSettings)]
    assert list(ProducerOptions.__annotations__) == names


def test_values_are_understood() -> None:
    assert ProducerSettings().acks_number == -1
    assert ProducerSettings(acks=-1).acks_number == -1
    assert ProducerSettings(acks="1", enable_idempotence=False).acks_number == 1
    assert ProducerSettings(compression_type="zstd").compression is Compression.ZSTD
    assert ProducerSettings().compression is Compression.NONE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acks": 2}, "acks=2"),
        ({"acks": 1, "enable_idempotence": True}, "enable_idempotence needs acks='all'"),
        ({"name": "n", "enable_idempotence": False}, "named producer"),
        ({"compression_type": "gzip"}, "gzip"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 10**7}, "batch_size=10000000"),
        ({"linger_ms": -1}, "linger_ms=-1"),
        ({"linger_ms": "5"}, "linger_ms='5'"),
        ({"buffer_memory": 1}, "buffer_memory=1"),
        ({"max_request_size": 10**9}, "max_request_size"),
        ({"max_in_flight_requests_per_connection": 6}, "from 1 to 5"),
        ({"delivery_timeout_ms": 3_600_000}, "delivery_timeout_ms"),
        ({"linger.ms": 5}, "do you mean linger_ms"),
        ({"colour": "red"}, "no setting colour"),
    ],
)
def test_what_cannot_be_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        ProducerSettings.of(options)


def test_idempotence_goes_by_itself_where_it_cannot_be() -> None:
    assert not ProducerSettings.of({"acks": 1}).enable_idempotence
    assert ProducerSettings.of({"acks": "all"}).enable_idempotence
    with pytest.raises(InvalidConfig, match="acks='all'"):
        ProducerSettings.of({"acks": 0, "name": "n"})


def test_smaller_limits_make_batches_smaller_by_themselves() -> None:
    assert ProducerSettings.of({}).batch_size == ProducerSettings().batch_size
    assert ProducerSettings.of({"max_request_size": 20_000}).batch_size == 20_000
    assert ProducerSettings.of({"buffer_memory": 50_000}).batch_size == 50_000
    with pytest.raises(InvalidConfig, match="max_request_size"):
        ProducerSettings.of({"max_request_size": "much"})
