from __future__ import annotations

import pytest

from tailrace.console.http import FIELDS_MAX, Refusal, Request, answer, event, parse, refused

HOSTS = {"127.0.0.1:8787"}


def head(line: str, host: str = "127.0.0.1:8787") -> bytes:
    return f"{line}\r\nHost: {host}\r\nAccept: */*\r\n\r\n".encode()


def test_a_request_is_read() -> None:
    found = parse(head("GET /tail?topic=a%2Fb&search=x+y HTTP/1.1"), HOSTS)
    assert found == Request("/tail", {"topic": "a/b", "search": "x y"}, "127.0.0.1:8787")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (head("GET http://elsewhere/ HTTP/1.1"), 400),
        (head("POST / HTTP/1.1"), 405),
        (head("GET / HTTP/1.1", "evil.example:8787"), 403),
        (b"GET / HTTP/1.1\r\n\r\n", 403),
        (head("GET /?" + "&".join(f"a{n}=1" for n in range(FIELDS_MAX + 1)) + " HTTP/1.1"), 400),
    ],
)
def test_what_is_not_answered(data: bytes, status: int) -> None:
    found = parse(data, HOSTS)
    assert isinstance(found, Refusal)
    assert found.status == status
    assert refused(found).startswith(f"HTTP/1.1 {status} ".encode())


def test_pages_may_load_nothing_from_elsewhere() -> None:
    sent = answer(200, b"x", "text/html")
    assert b"default-src 'self'" in sent
    assert sent.endswith(b"Content-Length: 1\r\nConnection: close\r\n\r\nx")


def test_an_event() -> None:
    assert event("cluster", "{}") == b"event: cluster\ndata: {}\n\n"
