"""As much of HTTP/1.1 as the console needs: one GET a connection, a file or a stream. Pure.

The console shows records, so a page of another site must not be able to read it through somebody's
browser: only requests to the names that it is meant to be reached by are answered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

HEADER_BYTES_MAX: Final = 16_384
FIELDS_MAX: Final = 16

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
# Nothing is loaded from elsewhere, and nobody may show the console in a frame.
_SECURITY: Final = (
    "Content-Security-Policy: default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options: nosniff",
    "Referrer-Policy: no-referrer",
    "Cache-Control: no-store",
)


class Request(NamedTuple):
    """What is asked for."""

    path: str
    query: Mapping[str, str]
    host: str


class Refusal(NamedTuple):
    """Why nothing is answered."""

    status: int
    text: str


def parse(head: bytes, hosts: Collection[str]) -> Request | Refusal:
    """Read a request; `hosts` are the names, with ports, that it may be meant for (empty: any)."""
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or not parts[1].startswith("/"):
        return Refusal(400, "this is not an HTTP/1.1 request")
    method, target, _ = parts
    if method != "GET":
        return Refusal(405, "only GET is answered here: the console changes nothing")
    fields = {
        name.strip().lower(): value.strip()
        for name, colon, value in (line.partition(":") for line in lines)
        if colon
    }
    host = fields.get("host", "")
    if hosts and host not in hosts:
        return Refusal(403, f"the console is not called {host!r}: --allow-host adds a name")
    found = urlsplit(target)
    try:
        query = dict(parse_qsl(found.query, keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError:
        return Refusal(400, f"a request has at most {FIELDS_MAX} fields")
    return Request(unquote(found.path), query, host)


def answer(status: int, body: bytes, content_type: str) -> bytes:
    """A whole answer; the connection ends after it."""
    return _head(status, content_type, f"Content-Length: {len(body)}") + body


def refused(refusal: Refusal) -> bytes:
    return answer(refusal.status, f"{refusal.text}\n".encode(), "text/plain; charset=utf-8")


def stream_head() -> bytes:
    """The beginning of a stream of server-sent events."""
    return _head(200, "text/event-stream; charset=utf-8", "X-Accel-Buffering: no")


def event(name: str, data: str) -> bytes:
    """One event; `data` is JSON, which has no line breaks of its own."""
    return f"event: {name}\ndata: {data}\n\n".encode()


def _head(status: int, content_type: str, *more: str) -> bytes:
    lines = (
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {content_type}",
        *_SECURITY,
        *more,
        "Connection: close",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
