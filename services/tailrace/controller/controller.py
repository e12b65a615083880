"""A controller: stands by until `/controller` is free, takes it, and reigns until it is lost.

`/controller` elects, it does not protect: every write is guarded by the revision that made the key,
and every order carries the controller epoch, which is raised in the same transaction. So a
controller that was paused, cut off or declared dead while it was not can do no harm; it only has to
notice. A keep-alive that was answered proves nothing (a deposed leader of the store may have
answered it): each is followed by a linearizable read of the key. While nobody can be asked, and the
lease may be over, brokers are told nothing.

One that stands by looks whether the active one's process is there: when its address refuses
connections, nobody has to wait for the lease. It also remembers where the brokers are, so that it
can ask those whose registration is gone when it takes over from a store that was in trouble.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final, NamedTuple

from tailrace.clock import Clock
from tailrace.controller.admin_service import Reign
from tailrace.controller.facts import Term
from tailrace.controller.health import is_refused
from tailrace.controller.producers import ProducerIds
from tailrace.controller.reconciler import Reconciler
from tailrace.controller.retries import Backoff
from tailrace.controller.service import ControllerService
from tailrace.controller.settings import ControllerSettings
from tailrace.controller.traces import FailoverTraces
from tailrace.errors import (
    CorruptCheckpoint,
    InvariantViolation,
    LeaseLost,
    NotController,
    StoreUnavailable,
)
from tailrace.meta.image import ClusterImage, LiveBroker
from tailrace.meta.keys import (
    BROKERS,
    CLUSTER,
    CONTROLLER,
    CONTROLLER_EPOCH,
    STAMP,
    ClusterRecord,
    ControllerRecord,
    TermRecord,
    decode,
    decode_counter,
    encode,
    encode_counter,
    term_key,
)
from tailrace.meta.lineage import TERMS_MAX
from tailrace.meta.measured import MeasuredStore
from tailrace.meta.store import (
    CreatedAt,
    Delete,
    Entry,
    Guard,
    MetadataStore,
    ModifiedAt,
    Operation,
    Put,
)
from tailrace.meta.verified import FOLLOW_BROKERS_MS, Followed, VerifiedStore
from tailrace.metrics.common import StoreView
from tailrace.metrics.values import ControllerCounts
from tailrace.model import BrokerId
from tailrace.process import StartAnew
from tailrace.runtime import Tasks
from tailrace.transport.addresses import join_address, split_address
from tailrace.transport.rpc import Network, Server

# A lease is renewed this many times within its life.
RENEWALS_PER_LEASE: Final = 3
# How often one that stands by reads the key, should the watch have gone deaf.
STANDBY_POLL_MS: Final = 1_000
# How long a new controller waits before it takes producer ids ahead of need.
STOCK_DELAY_MS: Final = 1_000
STOP_GRACE_MS: Final = 500


class _Crown(NamedTuple):
    """A term, and the lease that it hangs on."""

    term: Term
    lease: int


class Controller:
    """One controller, active or standing by. `start`, then `run` until `stop`."""

    def __init__(
        self,
        settings: ControllerSettings,
        *,
        store: MetadataStore,
        network: Network,
        clock: Clock,
        rng: Random,
        say: Callable[[str], None],
        traces: FailoverTraces | None = None,
    ) -> None:
        self._traces = traces
        self._settings = settings
        self.verified = VerifiedStore(
            store,
            clock,
            say,
            followed=Followed(lambda: 1, max(FOLLOW_BROKERS_MS, 3 * settings.broker_lease_ttl_ms)),
        )
        self._store = MeasuredStore(self.verified, clock)
        self._network = network
        self._clock = clock
        self._rng = rng
        self._say = say
        self._service = ControllerService(settings, rng=rng, reign=self._reigning)
        self._server: Server | None = None
        self._tasks: Tasks | None = None
        self._ended: asyncio.Future[None] | None = None
        self._crown: _Crown | None = None
        self._reign: Reign | None = None
        self._active: ControllerRecord | None = None
        self._remembered: dict[BrokerId, LiveBroker] = {}
        self.address = ""
        self.counts = ControllerCounts()

    @property
    def term(self) -> Term | None:
        """The term in which this controller is active, as far as it knows."""
        return self._crown.term if self._crown is not None else None

    def store_view(self) -> StoreView:
        """How the store answers; for those who measure."""
        return replace(self._store.view(), distrust=self.verified.problem)

    @property
    def queue(self) -> dict[str, int]:
        """What waits for the active controller; for those who measure."""
        return self._reign.reconciler.queue if self._reign is not None else {}

    @property
    def image(self) -> ClusterImage | None:
        """What the active controller knows of the cluster."""
        return self._reign.reconciler.image if self._reign is not None else None

    async def start(self) -> None:
        """Listen. AddressInUse when somebody else does."""
        self._server = await self._network.serve(self._settings.listen, self._service.handlers())
        self.address = self._settings.advertised or self._server.address

    async def run(self) -> None:
        """Stand by and reign, in turn, until `stop`. Raises what made that impossible."""
        if self._server is None:
            raise InvariantViolation("a controller listens before it campaigns")
        self._ended = asyncio.get_running_loop().create_future()
        self._tasks = tasks = Tasks(self._task_failed)
        tasks.spawn("controller", self._stand_and_reign())
        tasks.spawn("identity of the store", self.verified.run())
        tasks.spawn("a rebuilt store", self._until_replaced())
        try:
            await self._ended
        finally:
            await tasks.close()

    async def stop(self) -> None:
        """Give the crown back, if we have it, and listen no more."""
        if self._tasks is not None:
            await self._tasks.close()
        crown, self._crown = self._crown, None
        if crown is not None:
            await self._resign(crown)
        if self._server is not None:
            await self._server.stop(grace_ms=STOP_GRACE_MS)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def _stand_and_reign(self) -> None:
        while True:
            crown = await self._campaign()
            self._crown = crown
            try:
                await self._rule(crown)
            except NotController as error:
                self._say(f"no longer the active controller: {error}")
            self._crown = None
            # What hangs on the lease is not ours any more, or should not be.
            await self._resign(crown)

    async def _until_replaced(self) -> None:
        await self.verified.replaced.wait()
        raise StartAnew("the metadata store is another one")

    def _reigning(self) -> Reign:
        if self._reign is not None:
            return self._reign
        active = self._active
        if self.verified.problem:
            raise NotController(
                "no controller can be active: the metadata store is not believed: "
                f"{self.verified.problem}"
            )
        if active is None:
            raise NotController("this controller stands by, and no other is known to be active")
        where = join_address(active.host, active.port)
        raise NotController(f"controller {active.controller_id} at {where} is the active one")

    # Standing by.

    async def _campaign(self) -> _Crown:
        """Wait for `/controller` to be free and take it."""
        backoff = Backoff(self._settings.retry_ms, self._settings.retry_max_ms, self._rng)
        # One token to a lease: an attempt that seemed to fail may have been done.
        lease, token = 0, ""
        while True:
            try:
                entry, revision = await self._holder()
                if entry is None:
                    self._active = None
                    if not lease:
                        lease = await self._store.grant_lease(self._settings.lease_ttl_ms)
                        token = self._new_id()
                    await self._take(lease, token)
                elif lease and entry.lease == lease:
                    return self._crowned(entry, token)
                else:
                    await self._stand_by(entry, revision)
                    # An old lease might end just after it was used.
                    lease = 0
                backoff.reset()
            except LeaseLost:
                lease = 0
            except StoreUnavailable as error:
                self._say(f"standing by: the metadata store does not answer: {error}")
                await asyncio.sleep(backoff.next_s())

    async def _holder(self) -> tuple[Entry | None, int]:
        """Whoever has the key, and the store's revision at which that was so."""
        snapshot = await self._store.snapshot(CONTROLLER)
        held = [entry for entry in snapshot.entries if entry.key == CONTROLLER]
        return (held[0] if held else None), snapshot.revision

    async def _take(self, lease: int, token: str) -> None:
        """Try once. Whether it worked, whatever was answered, the next look at the key tells."""
        keys = [CONTROLLER_EPOCH, CLUSTER, STAMP]
        counter, cluster, stamp = await self._store.get_many(keys)
        epoch, stamps = 1, 1
        if counter is not None:
            epoch = decode_counter(counter.value, key=CONTROLLER_EPOCH) + 1
        host, port = split_address(self.address)
        record = ControllerRecord(
            controller_id=self._settings.controller_id, epoch=epoch, host=host, port=port
        )
        if stamp is not None:
            stamps = decode_counter(stamp.value, key=STAMP) + 1
        guards: list[Guard] = [
            CreatedAt(CONTROLLER, 0),
            ModifiedAt(CONTROLLER_EPOCH, 0 if counter is None else counter.mod_revision),
            ModifiedAt(STAMP, 0 if stamp is None else stamp.mod_revision),
        ]
        term = TermRecord(controller_id=record.controller_id, token=token, stamp=stamps)
        operations: list[Operation] = [
            Put(CONTROLLER, encode(record), lease),
            Put(CONTROLLER_EPOCH, encode_counter(epoch)),
            Put(STAMP, encode_counter(stamps)),
            Put(term_key(epoch), encode(term)),
        ]
        if epoch > TERMS_MAX:
            operations.append(Delete(term_key(epoch - TERMS_MAX)))
        if cluster is None:
            guards.append(CreatedAt(CLUSTER, 0))
            founded = ClusterRecord(cluster_id=self._new_id(), store_id=self._new_id())
            operations.append(Put(CLUSTER, encode(founded)))
        else:
            guards.append(ModifiedAt(CLUSTER, cluster.mod_revision))
            found = decode(ClusterRecord, cluster.value, key=CLUSTER)
            if not found.store_id:
                # Founded by an older version, which gave stores no names.
                named = replace(found, store_id=self._new_id())
                operations.append(Put(CLUSTER, encode(named)))
        await self._store.txn(guards, operations)

    def _new_id(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"

    def _crowned(self, entry: Entry, token: str) -> _Crown:
        record = decode(ControllerRecord, entry.value, key=CONTROLLER)
        self._active = record
        self.counts.terms += 1
        self._say(f"active controller in epoch {record.epoch}")
        term = Term(record.controller_id, record.epoch, entry.create_revision, token)
        return _Crown(term, entry.lease)

    async def _stand_by(self, entry: Entry, revision: int) -> None:
        """Wait until this holder of the key has gone, and see to it when its process has."""
        try:
            self._active = active = decode(ControllerRecord, entry.value, key=CONTROLLER)
        except CorruptCheckpoint as error:
            self._say(str(error))
            self._active = active = None
        if self._tasks is None:
            raise InvariantViolation("standing by is a part of `run`")
        gone = asyncio.Event()
        watch = self._tasks.spawn("watch of the active controller", self._watch(revision, gone))
        try:
            remember_ms = self._clock.monotonic_ms()
            poll_ms = remember_ms + STANDBY_POLL_MS
            while not gone.is_set():
                if active is not None and await self._is_gone(active):
                    await self._depose(entry, active)
                    return
                if self._clock.monotonic_ms() >= poll_ms:
                    poll_ms += STANDBY_POLL_MS
                    now = await self._store.get(CONTROLLER)
                    if now is None or now.create_revision != entry.create_revision:
                        return
                    if poll_ms >= remember_ms:
                        remember_ms = poll_ms + self._settings.broker_lease_ttl_ms
                        await self._remember_brokers()
                try:
                    async with asyncio.timeout(self._probe_pause_s()):
                        await gone.wait()
                except TimeoutError:
                    pass
        finally:
            watch.cancel()

    async def _remember_brokers(self) -> None:
        image = ClusterImage.from_snapshot(await self._store.snapshot(BROKERS))
        self._remembered = {**self._remembered, **image.brokers}

    def _probe_pause_s(self) -> float:
        return self._settings.standby_probe_ms * self._rng.uniform(0.8, 1.2) / 1_000

    async def _watch(self, revision: int, gone: asyncio.Event) -> None:
        """Changes since the look, not since the key was written: that may be compacted away."""
        try:
            watch = self._store.watch(CONTROLLER, from_revision=revision + 1)
            async for batch in watch:
                if batch.compacted or any(change.key == CONTROLLER for change in batch.changes):
                    gone.set()
                    return
        except StoreUnavailable:
            # The poll goes on without it.
            return

    async def _is_gone(self, active: ControllerRecord) -> bool:
        address = join_address(active.host, active.port)
        if address == self.address:
            # A former life of this very controller: it is us who listen there now.
            return active.controller_id == self._settings.controller_id
        return await is_refused(self._network, address, self._settings)

    async def _depose(self, entry: Entry, active: ControllerRecord) -> None:
        self._say(f"controller {active.controller_id} is gone: its connection is refused")
        await self._store.txn([CreatedAt(CONTROLLER, entry.create_revision)], [Delete(CONTROLLER)])

    # Reigning.

    async def _rule(self, crown: _Crown) -> None:
        """Be the active controller until that is over: NotController."""
        reconciler = Reconciler(
            crown.term,
            self._settings,
            store=self._store,
            network=self._network,
            clock=self._clock,
            rng=self._rng,
            say=self._say,
            remembered=self._remembered,
            counts=self.counts,
            traces=self._traces,
        )
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def failed(_: str, error: BaseException) -> None:
            if not over.done():
                over.set_exception(error)
                # It is no loss when nobody hears of it: the reign may be ending already.
                over.exception()

        tasks = Tasks(failed)
        tasks.spawn("term", reconciler.run())
        tasks.spawn("lease", self._keep(crown, reconciler))
        producers = ProducerIds(crown.term, self._store)
        tasks.spawn("producer ids", self._stock(producers))
        self._reign = Reign(reconciler, producers)
        try:
            await over
        finally:
            self._reign = None
            self._active = None
            self._remembered = reconciler.registrations
            await tasks.close()

    async def _stock(self, producers: ProducerIds) -> None:
        # First come the elections that a new controller has to see to.
        await asyncio.sleep(STOCK_DELAY_MS / 1_000)
        await producers.keep_stocked()

    async def _keep(self, crown: _Crown, reconciler: Reconciler) -> None:
        """Renew the lease, and see after each time that the key is still ours."""
        loop = asyncio.get_running_loop()
        ttl_s = self._settings.lease_ttl_ms / 1_000
        doubt = loop.call_later(ttl_s, self._doubt, reconciler)
        backoff = Backoff(self._settings.retry_ms, self._settings.retry_max_ms, self._rng)
        stamped = 0
        try:
            while True:
                asked = loop.time()
                try:
                    await self._store.keep_alive(crown.lease)
                    revision = await self._check(crown.term)
                    if revision != stamped:
                        stamped = await self._stamp(crown.term)
                except LeaseLost as error:
                    raise NotController(f"the lease is gone: {error}") from error
                except StoreUnavailable:
                    await asyncio.sleep(backoff.next_s())
                    continue
                backoff.reset()
                doubt.cancel()
                doubt = loop.call_at(asked + ttl_s, self._doubt, reconciler)
                reconciler.confirm(revision)
                reconciler.suspicion.clear()
                try:
                    async with asyncio.timeout(ttl_s / RENEWALS_PER_LEASE):
                        await reconciler.suspicion.wait()
                except TimeoutError:
                    pass
        finally:
            doubt.cancel()

    def _doubt(self, reconciler: Reconciler) -> None:
        self._say("the lease may be over, and the store does not answer: telling brokers nothing")
        reconciler.doubt()

    async def _check(self, term: Term) -> int:
        """Read, linearizably, that the key is still ours; gives the store's revision."""
        snapshot = await self._store.snapshot(CONTROLLER)
        for entry in snapshot.entries:
            if entry.key == CONTROLLER and entry.create_revision == term.revision:
                return snapshot.revision
        raise NotController(f"{CONTROLLER} is another's, or nobody's")

    async def _stamp(self, term: Term) -> int:
        """Raise the store's stamp, since something has changed; gives the revision of that."""
        stamp = await self._store.get(STAMP)
        number = 0 if stamp is None else decode_counter(stamp.value, key=STAMP)
        guards: list[Guard] = [
            CreatedAt(CONTROLLER, term.revision),
            ModifiedAt(STAMP, 0 if stamp is None else stamp.mod_revision),
        ]
        result = await self._store.txn(guards, [Put(STAMP, encode_counter(number + 1))])
        return result.revision if result.succeeded else 0

    async def _resign(self, crown: _Crown) -> None:
        try:
            await self._store.revoke_lease(crown.lease)
        except StoreUnavailable as error:
            self._say(f"the lease ends by itself: {error}")

    def _task_failed(self, name: str, error: BaseException) -> None:
        if not isinstance(error, StartAnew):
            self._say(f"{name} failed: {error!r}")
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)
