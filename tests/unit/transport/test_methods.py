"""Every RPC of the protocol has its constant, and travels as the protocol says."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError

from tailrace.errors import InvalidRequest
from tailrace.transport import methods
from tailrace.transport.methods import ALL_METHODS
from tailrace.transport.rpc import (
    REQUEST_BYTES_MAX,
    REQUEST_ENTRIES_MAX,
    Kind,
    Method,
    joined,
)
from tailrace.v1 import broker_pb2, control_pb2, controller_pb2, group_pb2

FILES = [broker_pb2, control_pb2, controller_pb2, group_pb2]


def in_protocol() -> dict[str, MethodDescriptor]:
    return {
        f"/{service.full_name}/{method.name}": method
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def test_all_methods_of_the_protocol_are_here() -> None:
    assert sorted(in_protocol()) == sorted(method.name for method in ALL_METHODS)


def test_all_constants_are_listed() -> None:
    constants = [each for each in vars(methods).values() if isinstance(each, Method)]
    assert constants == list(ALL_METHODS)


@pytest.mark.parametrize("method", ALL_METHODS, ids=lambda method: method.name)
def test_kind_and_codecs_are_those_of_the_protocol(method: Method[Any, Any]) -> None:
    wanted = in_protocol()[method.name]
    streams = (wanted.client_streaming, wanted.server_streaming)
    assert {
        Kind.UNARY: (False, False),
        Kind.SERVER_STREAM: (False, True),
        Kind.BIDI_STREAM: (True, True),
    }[method.kind] == streams
    request, response = method.decode_request(b""), method.decode_response(b"")
    assert type(request).__name__ == wanted.input_type.name
    assert type(response).__name__ == wanted.output_type.name
    assert joined(method.encode_request(request)) == b""
    assert joined(method.encode_response(response)) == b""


def test_a6_a_request_has_so_many_entries_and_no_more() -> None:
    """Each of them costs its server something, and all are done in one turn or two."""
    request = broker_pb2.ListOffsetsRequest()
    for _ in range(REQUEST_ENTRIES_MAX):
        request.queries.add()
    method = methods.BROKER_LIST_OFFSETS
    assert len(method.decode_request(request.SerializeToString()).queries) == REQUEST_ENTRIES_MAX
    request.queries.add()
    with pytest.raises(InvalidRequest, match="10001 queries: at most 10000 go in one"):
        method.decode_request(request.SerializeToString())
    # Very many are not even made objects of.
    with pytest.raises(DecodeError, match="more than 10100 fields"):
        method.decode_request(b"\x0a\x00" * 100_000)


def test_a6_only_batches_and_what_controllers_tell_brokers_may_be_large() -> None:
    large = {each.name.split("/")[2] for each in ALL_METHODS if _is_large(each)}
    assert large == {"Produce", "LeaderAndIsr", "UpdateMetadata"}


def _is_large(method: Method[Any, Any]) -> bool:
    return method.request_bytes_max > 4 * REQUEST_BYTES_MAX
