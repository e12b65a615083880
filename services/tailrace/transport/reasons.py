"""Why a server is out of reach, in words that people understand. Pure.

gRPC tells it in a language of its own, of subchannels and frames; what people can do something
about is one of a handful: nobody listens there, the name is not known, there is no way, no answer.
What is none of them is told as it came.
"""

from __future__ import annotations

import re
from typing import Final

_REASONS: Final = (
    ("connection refused", "it refused the connection: nobody listens there"),
    ("domain name not found", "the name of the host is not known"),
    ("errors resolving", "the name of the host could not be looked up"),
    ("dns resolution failed", "the name of the host could not be looked up"),
    ("network is unreachable", "there is no way to that network from here"),
    ("no route to host", "there is no way to that host from here"),
    ("before receiving settings", "it takes connections but does not answer as a server of ours"),
    ("http1.x server", "it answers, but not as a server of ours: another program listens there"),
    ("failed parsing http/2", "it answers, but not as a server of ours"),
    ("connect() timed out", "it did not answer: the host is down, or something swallows packets"),
    ("handshaker shutdown", "it did not answer: the host is down, or something swallows packets"),
    ("keepalive watchdog", "it fell silent"),
    ("ping timeout", "it fell silent"),
    ("connection reset", "it closed the connection"),
    ("broken pipe", "it closed the connection"),
    ("socket closed", "it closed the connection"),
    ("goaway", "it closed the connection"),
)
# Where gRPC says which of its own parts failed, before it comes to the point.
_PREFIX: Final = re.compile(r"^failed to connect to all addresses; last error: [A-Z_]+: ")


def plain_reason(details: str) -> str:
    """What gRPC's words mean; when that is not known the words themselves, without the noise."""
    lowered = details.lower()
    for sign, meaning in _REASONS:
        if sign in lowered:
            return meaning
    return _PREFIX.sub("", details)
