"""Quotas of clients: how many bytes and requests a second each client id may have here. Pure.

A bucket may go into debt: a request that was read is served whole, and then nothing more is read
from that client until the debt is paid. So no request fails, whatever its size, and over time the
rate is kept to. A client that was quiet may have as much at once as it may have in BURST_MS.

Every stream of one client id shares one `ClientQuota`. Those without an open stream are forgotten
when their buckets are full again; when there are too many clients, new ones share one quota.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

NO_LIMIT: Final = -1
BURST_MS: Final = 1_000
# No client waits longer for one request, whatever it owes: it would give up.
THROTTLE_MAX_MS: Final = 60_000
CLIENTS_MAX: Final = 10_000


class Rates(NamedTuple):
    """What a client may have in a second; -1: as much as it likes."""

    produce_bytes: int = NO_LIMIT
    fetch_bytes: int = NO_LIMIT
    requests: int = NO_LIMIT

    def over(self, other: Rates) -> Rates:
        """These, and where they set no limit, the others."""
        return Rates(*(a if a != NO_LIMIT else b for a, b in zip(self, other, strict=True)))


NO_RATES: Final = Rates()


class Bucket:
    """Fills at a rate up to a burst; may be emptied below zero."""

    __slots__ = ("_level", "_rate", "_since_ms")

    def __init__(self, rate: int, now_ms: int) -> None:
        self._rate = rate
        self._level = rate * BURST_MS / 1_000
        self._since_ms = now_ms

    def take(self, amount: int, now_ms: int) -> None:
        self._fill(now_ms)
        self._level -= amount

    def owed_ms(self, now_ms: int) -> int:
        """How long it takes until nothing is owed."""
        self._fill(now_ms)
        if self._level >= 0:
            return 0
        return min(int(-self._level * 1_000 / self._rate) + 1, THROTTLE_MAX_MS)

    def set_rate(self, rate: int, now_ms: int) -> None:
        """From now on; what is owed is paid at the new rate."""
        self._fill(now_ms)
        self._rate = rate

    def is_full(self, now_ms: int) -> bool:
        self._fill(now_ms)
        return self._level >= self._rate * BURST_MS / 1_000

    def _fill(self, now_ms: int) -> None:
        elapsed_ms = now_ms - self._since_ms
        self._since_ms = now_ms
        burst = self._rate * BURST_MS / 1_000
        self._level = min(self._level + elapsed_ms * self._rate / 1_000, burst)


class ClientQuota:
    """The three buckets of one client; `is_limited` is False when it has none."""

    __slots__ = ("_fetch", "_produce", "_requests", "client_id", "is_limited", "streams")

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.streams = 0
        self.is_limited = False
        self._produce: Bucket | None = None
        self._fetch: Bucket | None = None
        self._requests: Bucket | None = None

    def set_rates(self, rates: Rates, now_ms: int) -> None:
        self._produce = _changed(self._produce, rates.produce_bytes, now_ms)
        self._fetch = _changed(self._fetch, rates.fetch_bytes, now_ms)
        self._requests = _changed(self._requests, rates.requests, now_ms)
        self.is_limited = bool(self._buckets())

    def produced(self, size: int, now_ms: int) -> int:
        """A produce request was served; how long the client has to wait for the next."""
        return _taken(((self._produce, size), (self._requests, 1)), now_ms)

    def fetched(self, size: int, now_ms: int) -> int:
        """Data was read for the client; how long it has to wait for more."""
        return _taken(((self._fetch, size),), now_ms)

    def requested(self, now_ms: int) -> int:
        """The client asked for something; how long it has to wait."""
        return _taken(((self._requests, 1),), now_ms)

    def produce_wait_ms(self, now_ms: int) -> int:
        """What it owes from before: nothing is served until then."""
        return _owed((self._produce, self._requests), now_ms)

    def fetch_wait_ms(self, now_ms: int) -> int:
        return _owed((self._fetch, self._requests), now_ms)

    def is_idle(self, now_ms: int) -> bool:
        """Whether to forget it makes no difference."""
        return self.streams == 0 and all(each.is_full(now_ms) for each in self._buckets())

    def _buckets(self) -> list[Bucket]:
        return [each for each in (self._produce, self._fetch, self._requests) if each is not None]


class Quotas:
    """The quotas of all clients."""

    def __init__(
        self,
        defaults: Rates,
        lookup: Callable[[str], Rates] = lambda _: NO_RATES,
        *,
        clients_max: int = CLIENTS_MAX,
    ) -> None:
        """`lookup`: what is set for a client; where that sets no limit, the defaults hold."""
        self._defaults = defaults
        self._lookup = lookup
        self._clients_max = clients_max
        self._clients: dict[str, ClientQuota] = {}
        self._nameless = ClientQuota("")

    def __len__(self) -> int:
        return len(self._clients)

    def enter(self, client_id: str, now_ms: int) -> ClientQuota:
        """A stream of this client begins."""
        found = self._clients.get(client_id)
        if found is None:
            if len(self._clients) >= self._clients_max:
                self._forget_idle(now_ms)
            if len(self._clients) >= self._clients_max:
                found = self._nameless
            else:
                found = self._clients[client_id] = ClientQuota(client_id)
            found.set_rates(self._rates(found.client_id), now_ms)
        found.streams += 1
        return found

    def leave(self, quota: ClientQuota, now_ms: int) -> None:
        quota.streams -= 1
        if quota.is_idle(now_ms):
            self._clients.pop(quota.client_id, None)

    def refresh(self, now_ms: int) -> None:
        """What `lookup` tells has changed."""
        for quota in (*self._clients.values(), self._nameless):
            quota.set_rates(self._rates(quota.client_id), now_ms)

    def _rates(self, client_id: str) -> Rates:
        return self._lookup(client_id).over(self._defaults)

    def _forget_idle(self, now_ms: int) -> None:
        for client_id in [each for each, q in self._clients.items() if q.is_idle(now_ms)]:
            del self._clients[client_id]


def _changed(bucket: Bucket | None, rate: int, now_ms: int) -> Bucket | None:
    if rate == NO_LIMIT:
        return None
    if bucket is None:
        return Bucket(rate, now_ms)
    bucket.set_rate(rate, now_ms)
    return bucket


def _taken(amounts: tuple[tuple[Bucket | None, int], ...], now_ms: int) -> int:
    wait_ms = 0
    for bucket, amount in amounts:
        if bucket is not None:
            bucket.take(amount, now_ms)
            wait_ms = max(wait_ms, bucket.owed_ms(now_ms))
    return wait_ms


def _owed(buckets: tuple[Bucket | None, ...], now_ms: int) -> int:
    return max((each.owed_ms(now_ms) for each in buckets if each is not None), default=0)
