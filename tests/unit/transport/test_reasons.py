"""gRPC's words in those of people; the originals are as grpcio says them."""

from __future__ import annotations

import pytest

from tailrace.transport.reasons import plain_reason

CONNECT = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "


@pytest.mark.parametrize(
    ("details", "meaning"),
    [
        (
            CONNECT + "Failed to connect to remote host: Connection refused",
            "it refused the connection: nobody listens there",
        ),
        (
            "errors resolving x.invalid:1: [field:hostname lookup error: Domain name not found]",
            "the name of the host is not known",
        ),
        (
            CONNECT + "connection attempt timed out before receiving SETTINGS frame",
            "it takes connections but does not answer as a server of ours",
        ),
        (
            CONNECT + "Failed to connect to remote host: connect() timed out",
            "it did not answer: the host is down, or something swallows packets",
        ),
        ("Socket closed", "it closed the connection"),
        # What is not known is told as it came, without gRPC's own beginning.
        (CONNECT + "out of luck", "ipv4:127.0.0.1:1: out of luck"),
        ("the handler was cancelled", "the handler was cancelled"),
    ],
)
def test_reasons(details: str, meaning: str) -> None:
    assert plain_reason(details) == meaning
