"""What a header block may hold (RFC 9113, section 8)."""

from __future__ import annotations

import pytest

from tailrace.transport.http2.headers import BlockKind, Headers

REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/a/b")]


def test_what_a_block_is() -> None:
    assert Headers(REQUEST).kind is BlockKind.REQUEST
    full = [*REQUEST, (":authority", "x:1"), ("te", "trailers")]  # codespell:ignore
    assert Headers(full).kind is BlockKind.REQUEST
    assert Headers([(":status", "200"), ("x", "y")]).kind is BlockKind.RESPONSE
    assert Headers([("grpc-status", "0")]).kind is BlockKind.TRAILERS
    assert Headers([("x", "1"), ("x", "2")]) == {"x": "2"}
    assert Headers([*REQUEST, ("content-length", "12")]).length == 12
    assert Headers(REQUEST).length is None


A12 = {
    "uppercase": [*REQUEST, ("X-Test", "ok")],
    "a-space-in-a-name": [*REQUEST, ("x test", "ok")],
    "an-empty-name": [*REQUEST, ("", "ok")],
    "a-colon-in-a-name": [*REQUEST, ("x:y", "ok")],
    "a-line-break": [*REQUEST, ("x", "a\r\nb: c")],
    "a-null": [*REQUEST, ("x", "a\0b")],
    "a-space-before": [*REQUEST, ("x", " a")],
    "a-space-after": [*REQUEST, ("x", "a\t")],
    "unknown-pseudo": [*REQUEST, (":test", "ok")],
    "pseudo-of-a-response": [*REQUEST, (":status", "200")],
    "late-pseudo": [*REQUEST[:2], ("x", "y"), REQUEST[2]],
    "duplicate-method": [REQUEST[0], *REQUEST],
    "duplicate-scheme": [REQUEST[1], *REQUEST],
    "duplicate-path": [REQUEST[2], *REQUEST],
    "no-method": REQUEST[1:],
    "no-scheme": [REQUEST[0], REQUEST[2]],
    "no-path": REQUEST[:2],
    "empty-path": [*REQUEST[:2], (":path", "")],
    "connection": [*REQUEST, ("connection", "keep-alive")],
    "keep-alive": [*REQUEST, ("keep-alive", "1")],
    "proxy-connection": [*REQUEST, ("proxy-connection", "x")],
    "transfer-encoding": [*REQUEST, ("transfer-encoding", "chunked")],
    "upgrade": [*REQUEST, ("upgrade", "websocket")],
    "te": [*REQUEST, ("te", "trailers, deflate")],  # codespell:ignore
    "two-lengths": [*REQUEST, ("content-length", "1"), ("content-length", "2")],
    "no-length": [*REQUEST, ("content-length", "-1")],
    "extended-connect": [*REQUEST, (":protocol", "websocket")],
}


@pytest.mark.parametrize("name", A12)
def test_a12_malformed_blocks(name: str) -> None:
    headers = Headers(A12[name])
    assert headers.kind is BlockKind.MALFORMED
    assert headers.fault
