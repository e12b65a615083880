"""Every RPC of the protocol has its constant, and travels as the protocol says."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import MethodDescriptor

from tailrace.transport import methods
from tailrace.transport.methods import ALL_METHODS
from tailrace.transport.rpc import Kind, Method, joined
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
