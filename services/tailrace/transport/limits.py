"""What a server lets in: connections in all and from one address, message sizes, idle times. Pure.

A connection is known by its peer (`ipv4:10.0.0.7:50112`) and counts from its first call to the end
of its last one. Calls of the cluster's own control plane are not counted: a broker that has no room
for another client must still hear its controller.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tailrace.errors import TooManyConnections
from tailrace.transport.budget import BudgetLimits
from tailrace.transport.rpc import MESSAGE_BYTES_MAX

# Beyond the limit a connection is taken, so that its caller can be told why it is not served; this
# many of them, and those of controllers, may be open at a time. What comes after is closed.
SPARE_CONNECTIONS: Final = 64
# A message up to this much above the limit of requests is read, so that it can be answered.
_ENVELOPE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The limits of one server."""

    connections_max: int = 1_000
    connections_per_ip_max: int = 1_000
    streams_per_connection_max: int = 2_000
    request_bytes_max: int = MESSAGE_BYTES_MAX
    idle_ms: int = 600_000
    # What all connections may take together.
    budget: BudgetLimits = field(default_factory=BudgetLimits)
    # Methods whose names begin so are always served.
    exempt: tuple[str, ...] = ("/tailrace.v1.BrokerControlService/",)

    @property
    def message_bytes_max(self) -> int:
        """What is read at all, so that it can be answered."""
        return min(2 * self.request_bytes_max + _ENVELOPE_BYTES, MESSAGE_BYTES_MAX)

    def options(self) -> list[tuple[str, int]]:
        """As gRPC knows them."""
        return [
            ("grpc.max_receive_message_length", self.message_bytes_max),
            ("grpc.max_concurrent_streams", self.streams_per_connection_max),
            ("grpc.max_connection_idle_ms", self.idle_ms),
            (
                "grpc.max_allowed_incoming_connections",
                self.connections_max + SPARE_CONNECTIONS,
            ),
        ]


class Connections:
    """Counts the connections of one server by the calls that are open on them."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._calls: dict[str, int] = {}
        self._of_address: dict[str, int] = {}
        self.refused = 0

    def __len__(self) -> int:
        return len(self._calls)

    def is_counted(self, method: str) -> bool:
        return not method.startswith(self._limits.exempt)

    def is_full_for(self, peer: str) -> bool:
        return peer not in self._calls and len(self._calls) >= self._limits.connections_max

    def enter(self, peer: str, *, is_room_made: bool = False) -> TooManyConnections | None:
        """A call begins; says why it cannot be served. Call `leave` only when it was let in.

        `is_room_made`: another connection was closed for it, and is counted until its calls end.
        """
        calls = self._calls.get(peer, 0)
        if calls == 0:
            limits, address = self._limits, _address(peer)
            here = self._of_address.get(address, 0)
            if len(self._calls) >= limits.connections_max and not is_room_made:
                self.refused += 1
                return TooManyConnections(
                    f"max.connections={limits.connections_max} are open already"
                )
            if here >= limits.connections_per_ip_max:
                self.refused += 1
                return TooManyConnections(
                    f"max.connections.per.ip={limits.connections_per_ip_max} are open already "
                    f"from {address}"
                )
            self._of_address[address] = here + 1
        self._calls[peer] = calls + 1
        return None

    def leave(self, peer: str) -> None:
        calls = self._calls[peer] - 1
        if calls:
            self._calls[peer] = calls
            return
        del self._calls[peer]
        address = _address(peer)
        here = self._of_address[address] - 1
        if here:
            self._of_address[address] = here
        else:
            del self._of_address[address]


def _address(peer: str) -> str:
    return peer.rpartition(":")[0] or peer


SERVICE_LIMITS: Final = ServerLimits(
    connections_max=10_000,
    connections_per_ip_max=10_000,
    budget=BudgetLimits(bytes_max=256 << 20, calls_max=50_000),
)
"""Of controllers and coordinators, whose requests are small and whose clients are many."""
