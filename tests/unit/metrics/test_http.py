from __future__ import annotations

import pytest

from tailrace.metrics.http import Answer, Request, parse, said


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        (b"GET /metrics HTTP/1.1", Request("/metrics", head_only=False)),
        (b"HEAD /livez HTTP/1.0", Request("/livez", head_only=True)),
        (b"GET /readyz?verbose=1 HTTP/1.1", Request("/readyz", head_only=False)),
        (b"GET /\xff HTTP/1.1", Request("/\ufffd", head_only=False)),
    ],
)
def test_what_is_asked_for(line: bytes, request_: Request) -> None:
    assert parse(line + b"\r\nHost: here\r\n\r\n") == request_


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"POST /metrics HTTP/1.1", 405),
        (b"GET /metrics HTTP/2", 400),
        (b"GET /metrics", 400),
        (b"GET http://elsewhere/ HTTP/1.1", 400),
        (b"\x16\x03\x01", 400),
        (b"", 400),
    ],
)
def test_what_cannot_be_served_has_its_answer(line: bytes, status: int) -> None:
    answer = parse(line + b"\r\n\r\n")
    assert isinstance(answer, Answer)
    assert answer.status == status
    assert answer.encoded().startswith(b"HTTP/1.1 %d " % status)


def test_an_answer_says_how_long_it_is_and_ends_the_connection() -> None:
    answer = said(200, "ok")
    head, _, body = answer.encoded().partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"HTTP/1.1 200 OK"
    assert b"Content-Length: 3" in head
    assert b"Connection: close" in head
    assert body == b"ok\n"
    assert answer.encoded(head_only=True) == head + b"\r\n\r\n"
