"""The budget of one service process: what all connections together may take, shared fairly. Pure.

Bytes that were received and not delivered (unfinished messages, messages that no handler has read,
answers that wait for a window), calls that run, and frames that cost more than they carry are
counted by peer address (`Account`) and over all (`Budget`). Nobody is refused while there is room.
When there is none, the address that holds most pays: bytes are taken from the call that holds much
and made no progress for longest, calls from the connection that has most. So one peer, on however
many connections, cannot take what others need, and clients that share an address (NAT, one Spark
node) are told apart by what they hold.

Invariant: `Budget.bytes` is the sum of what its accounts hold, and so is `Budget.calls`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Final, Protocol

CHORE_WINDOW_S: Final = 2.0
# A host of IPv6 has a whole network of this size to itself.
IPV6_PREFIX_BITS: Final = 64
# Addresses without a connection that are remembered, for the chores they made.
IDLE_ACCOUNTS_MAX: Final = 1_024
# What a connection may do in a window when its address has used up all that it may.
CONNECTION_CHORES_MIN: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLimits:
    """What all connections of a process may take together."""

    bytes_max: int = 512 << 20
    calls_max: int = 20_000
    # Frames that cost more than they carry, in a window, of all connections of one address.
    address_chores_max: int = 20_000


class Holder(Protocol):
    """A stream that holds bytes."""

    held: int

    def shed(self, detail: str) -> None:
        """Give up what it holds, at once, and tell the caller."""


class Call(Protocol):
    """A call that runs."""

    def shed(self, detail: str) -> None:
        """End it, and tell the caller."""


class Account:
    """What the connections of one address hold."""

    __slots__ = (
        "_budget",
        "_chores",
        "_seen",
        "_since_s",
        "address",
        "bytes",
        "callers",
        "calls",
        "connections",
        "holders",
    )

    def __init__(self, budget: Budget, address: str) -> None:
        self._budget = budget
        self.address = address
        # How many are open now, and how many were in this window.
        self.connections = 0
        self._seen = 0
        self._chores = 0
        self._since_s = 0.0
        self.bytes = 0
        # Streams that hold bytes; the first made no progress for longest.
        self.holders: dict[Holder, None] = {}
        self.calls = 0
        # Calls by connection; the last is the newest.
        self.callers: dict[Hashable, dict[Call, None]] = {}

    # Bytes.

    def hold(self, holder: Holder, size: int) -> None:
        """The holder has received so much more. It may be the one that is shed for it."""
        if not holder.held:
            self.holders[holder] = None
        holder.held += size
        self.bytes += size
        budget = self._budget
        budget.bytes += size
        if budget.bytes > budget.limits.bytes_max:
            budget.shed_bytes()

    def release(self, holder: Holder, size: int) -> None:
        """So much was delivered: that is progress."""
        holder.held -= size
        self.bytes -= size
        self._budget.bytes -= size
        self.holders.pop(holder, None)
        if holder.held:
            self.holders[holder] = None

    def stalest(self) -> Holder | None:
        """Of those that hold much, the one that made no progress for longest.

        Much is half of the average: to give up what others hold beside would help nobody.
        """
        holders = self.holders
        least = self.bytes // (2 * len(holders)) if holders else 0
        return next((each for each in holders if each.held >= least), None)

    # Calls.

    def enter(self, caller: Hashable, call: Call) -> str:
        """A call begins on the connection `caller`; says why it cannot."""
        refusal = self._budget.room_for_call(self, caller)
        if not refusal:
            self.callers.setdefault(caller, {})[call] = None
            self.calls += 1
            self._budget.calls += 1
        return refusal

    def leave(self, caller: Hashable, call: Call) -> None:
        """A call has ended; one that was shed has left already."""
        running = self.callers.get(caller)
        if running is None or call not in running:
            return
        del running[call]
        if not running:
            del self.callers[caller]
        self.calls -= 1
        self._budget.calls -= 1

    # Frames that cost more than they carry.

    def is_calm(self, made: int, weight: int, now_s: float) -> bool:
        """Count chores of a connection that `made` so many in this window; whether it may go on.

        Beyond the limit of the address, each connection has its share of that limit. Connections
        that were closed within the window count: to connect again does not help.
        """
        self._look(now_s)
        self._chores += weight
        most = self._budget.limits.address_chores_max
        if self._chores <= most:
            return True
        return made <= max(most // max(self._seen, 1), CONNECTION_CHORES_MIN)

    def opened(self, weight: int, now_s: float) -> bool:
        """A connection is opened, which is a chore; False when it is one too many."""
        self._look(now_s)
        self._seen += 1
        self._chores += weight
        if self._chores > 2 * self._budget.limits.address_chores_max:
            return False
        self.connections += 1
        return True

    def closed(self) -> None:
        self.connections -= 1

    def is_forgettable(self, now_s: float) -> bool:
        return not (self.connections or self.bytes or self.calls) and (
            now_s - self._since_s >= CHORE_WINDOW_S
        )

    def _look(self, now_s: float) -> None:
        if now_s - self._since_s >= CHORE_WINDOW_S:
            self._since_s = now_s
            self._chores = 0
            self._seen = self.connections


class Budget:
    """What all connections of a process hold, by address."""

    def __init__(self, limits: BudgetLimits) -> None:
        self.limits = limits
        self.bytes = 0
        self.calls = 0
        # What was refused for want of room.
        self.shed = 0
        self._accounts: dict[str, Account] = {}

    def account(self, host: str, now_s: float) -> Account:
        """The account of an address, made when it is first heard of."""
        address = peer_address(host)
        found = self._accounts.get(address)
        if found is None:
            if len(self._accounts) >= IDLE_ACCOUNTS_MAX:
                self._forget(now_s)
            found = self._accounts[address] = Account(self, address)
        return found

    def _forget(self, now_s: float) -> None:
        accounts = self._accounts
        for address in [each for each in accounts if accounts[each].is_forgettable(now_s)]:
            del accounts[address]

    def shed_bytes(self) -> None:
        """Until what is held is within the limit."""
        limit = self.limits.bytes_max
        while self.bytes > limit:
            heaviest = max(self._accounts.values(), key=_bytes)
            victim = heaviest.stalest()
            if victim is None:
                return
            self.shed += 1
            victim.shed(
                f"{self.bytes} bytes were received and not delivered, "
                f"the limit is queued.max.request.bytes={limit}"
            )
            if victim.held:
                # It should have; nobody else is to pay for it.
                heaviest.release(victim, victim.held)

    def room_for_call(self, account: Account, caller: Hashable) -> str:
        """Make room at the cost of who has most; says why there is none."""
        limit = self.limits.calls_max
        if self.calls < limit:
            return ""
        detail = f"{self.calls} calls run, the limit is max.streams={limit}"
        heaviest = max(self._accounts.values(), key=_calls)
        if heaviest is not account and heaviest.calls <= account.calls + 1:
            heaviest = account
        callers = heaviest.callers
        busiest = max(callers, key=lambda each: len(callers[each]), default=None)
        mine = len(account.callers.get(caller, ()))
        self.shed += 1
        if busiest is None or (heaviest is account and len(callers[busiest]) <= mine + 1):
            return detail
        victim = next(reversed(callers[busiest]))
        heaviest.leave(busiest, victim)
        victim.shed(detail)
        return ""

    def heaviest_address(self) -> Account | None:
        """The one with most connections."""
        return max(self._accounts.values(), key=_connections, default=None)

    def busiest_address(self) -> Account | None:
        """The one with calls on most connections."""
        return max(self._accounts.values(), key=_callers, default=None)


def peer_address(host: str) -> str:
    """What is taken for one peer: an address, or the network of a host of IPv6."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    if mapped is not None:
        return str(mapped)
    if address.version == 4:
        return str(address)
    return str(ip_network((address, IPV6_PREFIX_BITS), strict=False))


def _bytes(account: Account) -> int:
    return account.bytes


def _calls(account: Account) -> int:
    return account.calls


def _connections(account: Account) -> int:
    return account.connections


def _callers(account: Account) -> int:
    return len(account.callers)
