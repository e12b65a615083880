"""The RPC port: calls and streams between processes, over gRPC or over a simulated network.

Messages are protobuf messages; a `Method` says how they travel, so that a hot path can travel as
raw bytes. A call that fails on the way raises `Unreachable`; one that took too long,
`RequestTimedOut`; what the other side refuses is told in its response, not here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

Q = TypeVar("Q")
R = TypeVar("R")
Q_contra = TypeVar("Q_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

MESSAGE_BYTES_MAX: Final = 72 << 20
# A request that carries no batches: to decode one of these holds the loop for some 20 ms at most.
REQUEST_BYTES_MAX: Final = 1 << 20
# Partitions, topics, members and so on in one request: what they cost is done in one turn or two.
REQUEST_ENTRIES_MAX: Final = 10_000
LINK_HEADER_BYTES_MAX: Final = 4 << 20
LINK_PAYLOAD_BYTES_MAX: Final = MESSAGE_BYTES_MAX

# A connection on which nothing came for KEEPALIVE_MS is asked whether it still lives, and is broken
# when no answer comes within the timeout.
KEEPALIVE_MS: Final = 10_000
KEEPALIVE_TIMEOUT_MS: Final = 5_000


Bytes: TypeAlias = bytes | memoryview
Encoded: TypeAlias = bytes | list[Bytes]
"""A message as it travels: whole, or in pieces of which the large ones lie where they were read."""


def joined(message: Encoded) -> bytes:
    """All of a message in one piece, for those who cannot send it otherwise."""
    return message if isinstance(message, bytes) else b"".join(message)


class Kind(Enum):
    """How many messages go each way."""

    UNARY = "one each way"
    SERVER_STREAM = "one there, many back"
    BIDI_STREAM = "many each way"


@dataclass(frozen=True, eq=False)
class Method(Generic[Q, R]):
    """One RPC: its full name (`/tailrace.v1.BrokerService/Produce`) and its two codecs.

    `request_bytes_max`: a server takes no larger request, however much its limits let in.
    """

    name: str
    kind: Kind
    encode_request: Callable[[Q], Encoded]
    decode_request: Callable[[Bytes], Q]
    encode_response: Callable[[R], Encoded]
    decode_response: Callable[[Bytes], R]
    request_bytes_max: int = MESSAGE_BYTES_MAX


class Stream(Protocol[Q_contra, R_co]):
    """One end of an open stream: `send` waits while the other side is behind.

    One task receives; any number may send. A `send` or `recv` that is cancelled (a timeout around
    it does that too) breaks the stream: a message may be half on its way.
    """

    async def send(self, message: Q_contra) -> None:
        """Raises Unreachable when the stream is broken."""

    async def recv(self) -> R_co | None:
        """The next message; None when the other side has finished in order, else Unreachable."""

    async def finish(self) -> None:
        """Say that no more will be sent. A server's stream ends when its handler returns."""

    def cancel(self) -> None:
        """Break the stream at once."""


class Channel(Protocol):
    """A connection to one address, made when first needed and again after it broke."""

    address: str

    async def call(self, method: Method[Q, R], request: Q, *, timeout_ms: int) -> R: ...

    def open(self, method: Method[Q, R], request: Q | None = None) -> Stream[Q, R]:
        """Open a stream; a SERVER_STREAM takes its one request here.

        It does not wait: when nobody can be reached, the first `send` or `recv` says so.
        """

    async def close(self) -> None:
        """Break all streams and calls that were made through this object."""


class Probe(Enum):
    """What a bare attempt to connect says about a process."""

    OPEN = "something listens"
    REFUSED = "nothing listens: the process is gone"
    SILENT = "no answer: nothing can be said"


Handler = Callable[..., Awaitable[Any]]
"""UNARY: `async (request) -> response`. Streams: `async (stream) -> None` for BIDI_STREAM,
`async (request, stream) -> None` for SERVER_STREAM. The stream ends in order when its handler
returns. A handler whose caller has gone (or broke the stream, or has timed out) is cancelled. One
that raises is logged, and the caller gets Unreachable with the reason."""


class CallRefused(Exception):
    """Raised by a handler that answers with a status of gRPC instead of a message."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


CALLER: Final[ContextVar[Callable[[], str]]] = ContextVar("CALLER", default=str)
"""In a handler: gives where the call comes from, as far as the network knows; for people."""


class Server(Protocol):
    """Something that listens."""

    address: str

    async def stop(self, *, grace_ms: int) -> None:
        """Take no new calls, let those under way finish within the grace, break the rest."""


class Network(Protocol):
    """Where a process reaches others and is reached."""

    def channel(self, address: str) -> Channel: ...

    async def serve(self, address: str, handlers: Mapping[Method[Any, Any], Handler]) -> Server:
        """Listen on `host:port`; port 0 takes a free one, which `Server.address` then tells.

        Raises AddressInUse when somebody else listens there.
        """

    async def probe(self, address: str, *, timeout_ms: int) -> Probe: ...


class Payload(Protocol):
    """Bytes of a file that are sent without being copied: `tailrace.log.segment.Slice`."""

    @property
    def path(self) -> str: ...

    @property
    def position(self) -> int: ...

    @property
    def size(self) -> int: ...


class Frame(Protocol):
    """A frame that arrived on a replica link.

    The payload stands in the link's own buffer and is overwritten by the next `recv`: write it to
    its log, or copy it, before that.
    """

    @property
    def header(self) -> bytes: ...

    @property
    def payload(self) -> memoryview: ...


class Link(Protocol):
    """One end of a replica link. `send` waits while the other side is behind (a named limit)."""

    peer: str

    async def send(self, header: bytes, payload: Sequence[Payload] = ()) -> None:
        """Raises Unreachable when the link is broken, StorageError when the payload is not there.

        Both leave it closed, as does being cancelled, since half a frame may be on its way. The
        bytes are those of the file while they are on their way: what cuts the file and writes
        anew there can change them. So the receiver checks them, and takes no newer epoch.
        """

    async def recv(self) -> Frame | None:
        """The next frame; None when the other side has closed between two frames.

        Raises Unreachable when the link is broken (CorruptFrame when by what came). One task
        receives. To cancel it does no harm.
        """

    def close(self) -> None:
        """At once; a `send` or `recv` under way raises Unreachable."""


class Links(Protocol):
    """Where replica links come from."""

    async def connect(self, address: str, *, timeout_ms: int) -> Link:
        """Raises Unreachable."""

    async def listen(self, address: str, accept: Callable[[Link], Awaitable[None]]) -> Server:
        """Call `accept` in a task of its own for each link that is opened, and close it after.

        Raises AddressInUse when somebody else listens there.
        """
