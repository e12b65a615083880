"""Which followers this broker believes: those whose life is registered in the store.

A hello on a replica link claims a broker's id and the epoch of its registration. It counts when a
linearizable read of the registration shows that very epoch, and the incarnation that the hello
names; only then the session is made, so that a stranger can neither report for a broker (acks=all
and the ISR rest on reports) nor displace the link of the real one. The answer is kept for the life
it names: while the store is away, lives that were confirmed connect again, and no others.

Brokers that register no control port are of an older version and name no incarnation. The address
that a link comes from is not looked at: pods, sidecars and hosts with several addresses connect
from others than those they are registered with.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from tailrace.clock import Clock
from tailrace.errors import CorruptCheckpoint, StoreUnavailable
from tailrace.meta.keys import BrokerRegistration, broker_key, decode
from tailrace.meta.store import MetadataStore
from tailrace.v1 import replica_pb2 as pb

# After a hello that the store did not bear out, it is not asked about the next one for so long:
# guessing takes time, and a flood of hellos is no flood of reads.
DOUBT_MS: Final = 100
# Of so many brokers at most a confirmed life, and a doubt, are remembered.
BROKERS_MAX: Final = 10_000
SAY_INTERVAL_MS: Final = 1_000

V = TypeVar("V")


class _Life(NamedTuple):
    epoch: int
    # Empty: one of an older version, which does not name it.
    incarnation: str


class FollowerGuard:
    """Says of each hello whether it is to be believed."""

    def __init__(self, store: MetadataStore, clock: Clock, say: Callable[[str], None]) -> None:
        self._store = store
        self._clock = clock
        self._say = say
        self._said_ms: int | None = None
        self._asking = asyncio.Lock()
        self._lives: dict[int, _Life] = {}
        self._doubted_ms: dict[int, int] = {}
        self.refused = 0

    async def problem(self, hello: pb.ReplicaHello, peer: str) -> str:
        """Why a hello is not believed; empty: it is. Said here, and not to whoever asks."""
        problem = self._known(hello)
        if problem is None:
            async with self._asking:
                problem = self._known(hello)
                if problem is None:
                    problem = await self._ask(hello)
        if problem:
            self._refuse(f"link from {peer} as broker {hello.broker_id} refused: {problem}")
        return problem

    def _refuse(self, what: str) -> None:
        self.refused += 1
        now_ms = self._clock.monotonic_ms()
        if self._said_ms is None or now_ms - self._said_ms >= SAY_INTERVAL_MS:
            self._said_ms = now_ms
            self._say(f"{what} ({self.refused} refused so far)")

    def _known(self, hello: pb.ReplicaHello) -> str | None:
        """What can be said without the store; None: it has to be asked."""
        life = self._lives.get(hello.broker_id)
        if life is None or hello.broker_epoch > life.epoch:
            return None
        if hello.broker_epoch < life.epoch:
            return f"a life in epoch {life.epoch} has followed the one in {hello.broker_epoch}"
        return _mismatch(life, hello)

    async def _ask(self, hello: pb.ReplicaHello) -> str:
        broker_id, now_ms = hello.broker_id, self._clock.monotonic_ms()
        doubted_ms = self._doubted_ms.get(broker_id)
        if doubted_ms is not None and now_ms - doubted_ms < DOUBT_MS:
            return "the store did not bear out another hello of this id a moment ago"
        try:
            life = await self._registered(broker_id)
        except StoreUnavailable as error:
            return f"its registration cannot be confirmed, let it try again: {error}"
        except CorruptCheckpoint as error:
            return str(error)
        if life is not None and life.epoch == hello.broker_epoch:
            problem = _mismatch(life, hello)
            if not problem:
                _remember(self._lives, broker_id, life)
                self._doubted_ms.pop(broker_id, None)
                return ""
        else:
            registered = "nobody" if life is None else f"epoch {life.epoch}"
            problem = f"it claims epoch {hello.broker_epoch}, registered is {registered}"
        _remember(self._doubted_ms, broker_id, self._clock.monotonic_ms())
        return problem

    async def _registered(self, broker_id: int) -> _Life | None:
        if broker_id < 0:
            return None
        key = broker_key(broker_id)
        entry = await self._store.get(key)
        if entry is None:
            return None
        facts = decode(BrokerRegistration, entry.value, key=key)
        return _Life(entry.create_revision, facts.incarnation if facts.control_port else "")


def _mismatch(life: _Life, hello: pb.ReplicaHello) -> str:
    if not life.incarnation:
        return ""
    is_same = hmac.compare_digest(hello.incarnation.encode(), life.incarnation.encode())
    return "" if is_same else "it does not name the incarnation of that registration"


def _remember(what: dict[int, V], broker_id: int, value: V) -> None:
    what.pop(broker_id, None)
    if len(what) >= BROKERS_MAX:
        del what[next(iter(what))]
    what[broker_id] = value
