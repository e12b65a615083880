"""As much of HTTP/1.1 as a scrape and a probe need: one request, one answer, the end. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

HEADER_BYTES_MAX: Final = 8_192
PLAIN: Final = "text/plain; charset=utf-8"

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class Answer(NamedTuple):
    """What is sent back."""

    status: int
    body: bytes
    content_type: str = PLAIN

    def encoded(self, *, head_only: bool = False) -> bytes:
        """The bytes on the wire; the connection ends after them."""
        lines = [
            f"HTTP/1.1 {self.status} {_REASONS[self.status]}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if self.status == 405:
            lines.append("Allow: GET, HEAD")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        return head if head_only else head + self.body


class Request(NamedTuple):
    """Which page is asked for; what comes after a `?` is left away."""

    path: str
    head_only: bool


def said(status: int, text: str) -> Answer:
    """An answer for people: a sentence and a new line."""
    return Answer(status, f"{text}\n".encode())


def parse(header: bytes) -> Request | Answer:
    """Read the request line; the answer to one that cannot be served."""
    line = header.partition(b"\r\n")[0]
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1.") or not parts[1].startswith(b"/"):
        return said(400, "this is not an HTTP/1.1 request")
    method, target, _ = parts
    if method not in {b"GET", b"HEAD"}:
        return said(405, "only GET and HEAD are answered here")
    path = target.partition(b"?")[0].decode("ascii", errors="replace")
    return Request(path, head_only=method == b"HEAD")
