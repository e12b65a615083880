"""A broker: its parts put together, started and stopped in order.

All ports come from outside, so that the same class runs in a process of its own and in the
simulator. Start: learn the cluster's id (from the data folders; a new broker waits for the store),
recover the logs, listen, register as soon as the store is there and is the right one. Stop in
order: hand over leaderships, take the registration away, close the logs cleanly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from tailrace.broker.administration import ReplicaAdmin
from tailrace.broker.clients import ClientStreams
from tailrace.broker.control import ControlService
from tailrace.broker.controller_guard import ControllerGuard
from tailrace.broker.diagnosing import diagnosis
from tailrace.broker.disk_watch import DiskWatch
from tailrace.broker.disks import Disk
from tailrace.broker.fetching import FetchService
from tailrace.broker.guard import ProduceGuard
from tailrace.broker.housekeeping import Housekeeping
from tailrace.broker.live import LiveSettings
from tailrace.broker.metadata_copier import MetadataCopier, read_folders
from tailrace.broker.producer_ids import ProducerIdService
from tailrace.broker.quotas import Quotas, Rates
from tailrace.broker.recovery_facts import RecoveryFactsService
from tailrace.broker.registration import Life, NoAnswer, RegisteredBroker
from tailrace.broker.replicas import Replicas
from tailrace.broker.scrubbing import Scrubber
from tailrace.broker.service import MetadataService, OffsetService, ProduceService
from tailrace.broker.settings import BrokerSettings
from tailrace.broker.time_lookups import TimeLookups
from tailrace.broker.traces import TracedFetchStream, TracedProduceStream, traced_orders
from tailrace.clock import Clock
from tailrace.errors import (
    InvariantViolation,
    StorageError,
    StoreUnavailable,
    TailraceError,
    is_no_room,
)
from tailrace.log.data_folder import DataFolder, Identity
from tailrace.log.files import Files
from tailrace.log.manager import LogManager
from tailrace.log.report import ManagerReport
from tailrace.meta.copies import StoredMetadata, brokers_of
from tailrace.meta.keys import (
    CLUSTER,
    CONTROLLER,
    BrokerRegistration,
    ClusterRecord,
    ControllerRecord,
    broker_key,
    decode,
)
from tailrace.meta.lineage import Standing
from tailrace.meta.store import MetadataStore
from tailrace.meta.verified import FOLLOW_BROKERS_MS, Followed, VerifiedStore
from tailrace.metrics.common import StoreView
from tailrace.model import BrokerId
from tailrace.process import StartAnew
from tailrace.runtime import Blocking, Tasks
from tailrace.tracing import Tracer
from tailrace.transport import methods
from tailrace.transport.addresses import join_address, split_address
from tailrace.transport.rpc import Handler, Links, Method, Network, Probe, Server
from tailrace.v1 import broker_pb2, controller_pb2

STORE_RETRY_MS: Final = 500
NO_ROOM_RETRY_MS: Final = 1_000
STOP_GRACE_MS: Final = 500
HAND_OVER_CALL_MS: Final = 2_000
# How long a process that holds our registration has to say who it is.
LIFE_CALL_MS: Final = 1_000
HAND_OVER_PAUSE_MS: Final = 50
# When nobody can take over what is left for this long, to wait on helps nobody.
HAND_OVER_STALLED_MS: Final = 3_000
# How long the orders that say so may take once the controller has moved all leaderships.
RELIEVED_WAIT_MS: Final = 1_000
RELIEVED_POLL_MS: Final = 5


class Broker:
    """One broker. `failed` is set, with the reason in `failure`, when it cannot go on."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        files: Files,
        store: MetadataStore,
        network: Network,
        links: Callable[[LogManager], Links],
        clock: Clock,
        blocking: Blocking,
        rng: Random,
        new_id: Callable[[], str],
        say: Callable[[str], None],
        store_view: Callable[[], StoreView] = StoreView,
        tracer: Tracer | None = None,
    ) -> None:
        """`store_view` tells how calls to the store went; without it nothing is known of that."""
        self._settings = settings
        self._tracer = tracer
        self._store_view = store_view
        self._files = files
        self.verified = VerifiedStore(
            store,
            clock,
            say,
            followed=Followed(
                self._most_brokers, FOLLOW_BROKERS_MS, own_key=broker_key(settings.broker_id)
            ),
            changed=self._belief_changed,
        )
        self._store: MetadataStore = self.verified
        self._network = network
        self._make_links = links
        self._clock = clock
        self._blocking = blocking
        self._rng = rng
        self._new_id = new_id
        # Tells this start of the process from every other one.
        self._process = new_id()
        self._say = say
        self._tasks = Tasks(self._task_failed)
        self._servers: list[Server] = []
        self._cluster_id = ""
        self._draining = False
        self._manager: LogManager | None = None
        self._registration: RegisteredBroker | None = None
        self._registering: asyncio.Task[None] | None = None
        self._confirming: asyncio.Task[None] | None = None
        self.replicas: Replicas | None = None
        self.housekeeping: Housekeeping | None = None
        self.scrubber: Scrubber | None = None
        self.control: ControlService | None = None
        self.fetching: FetchService | None = None
        self.producing: ProduceService | None = None
        self.disks: DiskWatch | None = None
        self.copier: MetadataCopier | None = None
        self.metadata = MetadataService()
        self._producer_ids = ProducerIdService(settings.broker_id, self._store, lambda: self.epoch)
        self.clients = ClientStreams(
            clock,
            stall_max_ms=settings.client_stall_timeout_ms,
            idle_max_ms=settings.connections_max_idle_ms,
            say=say,
        )
        self.live = LiveSettings(settings.log_defaults, say)
        self.quotas = Quotas(settings.quota_defaults, self._rates)
        self.live.observe(lambda: self.quotas.refresh(clock.monotonic_ms()))
        self.failed = asyncio.Event()
        self.failure: BaseException | None = None
        self.address = ""

    async def start(self) -> ManagerReport:
        """Everything up to listening and registering; the registration may take longer."""
        found = await self._learn_cluster()
        manager, report = await self._open_logs()
        self._manager = manager
        links = self._make_links(manager)
        self.disks = disks = self._watch_disks(manager)
        self.replicas = replicas = Replicas(
            self._settings,
            manager,
            disks,
            store=self._store,
            links=links,
            clock=self._clock,
            blocking=self._blocking,
            tasks=self._tasks,
            rng=self._rng,
            identity=lambda: (self._cluster_id, self.epoch),
            incarnation=self._incarnation,
            process=self._process,
            say=self._say,
            live=self.live,
        )
        replicas.doubt(report.opened)
        replicas.counts.damage_found = len(report.damaged)
        await self._listen(replicas, links, disks)
        self._registration = self._register(report)
        self._registering = self._tasks.spawn("registration", self._registration.run())
        self.copier = copier = self._copy_metadata(found, manager, replicas)
        self._tasks.spawn("copy of the metadata", copier.run())
        self._tasks.spawn("identity of the store", self.verified.run())
        self._tasks.spawn("a rebuilt store", self._until_replaced())
        self._tasks.spawn("producer ids", self._producer_ids.run())
        self._tasks.spawn("replica clock", replicas.run())
        self._tasks.spawn("clients", self.clients.run())
        self._tasks.spawn("disks", disks.run())
        self._tasks.spawn("checkpoints", self._checkpoint_all(manager, replicas))
        self.housekeeping = housekeeping = Housekeeping(
            self._settings,
            manager,
            replicas,
            files=self._files,
            clock=self._clock,
            blocking=self._blocking,
            say=self._say,
        )
        self._tasks.spawn("retention", housekeeping.expire_forever())
        self._tasks.spawn("compaction", housekeeping.clean_forever())
        self.scrubber = scrubber = Scrubber(
            self._settings,
            replicas,
            clock=self._clock,
            blocking=self._blocking,
            say=self._say,
        )
        self._tasks.spawn("scrubbing", scrubber.scrub_forever())
        return report

    def _copy_metadata(
        self, found: StoredMetadata, manager: LogManager, replicas: Replicas
    ) -> MetadataCopier:
        return MetadataCopier(
            self.verified,
            self._files,
            folders=lambda: [each.path for each in manager.healthy],
            orders=replicas.orders,
            holds=manager.holds,
            found=found,
            clock=self._clock,
            blocking=self._blocking,
            say=self._say,
        )

    async def _until_replaced(self) -> None:
        await self.verified.replaced.wait()
        if self.copier is not None and self.verified.standing is not Standing.REPLACED:
            await self.copier.forget_witness()
        self._task_failed("the metadata store", StartAnew("the metadata store is another one"))

    def _most_brokers(self) -> int:
        """More than half of the brokers that this one knows of."""
        stored = StoredMetadata() if self.copier is None else self.copier.stored
        return len({*brokers_of(stored), self._settings.broker_id}) // 2 + 1

    def _belief_changed(self) -> None:
        self.metadata.doubt(self.verified.problem, self.verified.problem_since_wall_ms)

    def store_view(self) -> StoreView:
        """How the store answers, and whether it is believed."""
        return replace(self._store_view(), distrust=self.verified.problem)

    async def _open_logs(self) -> tuple[LogManager, ManagerReport]:
        """Recover the logs. A disk without any room is waited for: it must not end a broker."""
        identity = Identity(self._cluster_id, BrokerId(self._settings.broker_id), self._new_id())
        told = False
        while True:
            try:
                return await self._open_once(identity)
            except (OSError, TailraceError) as error:
                if not is_no_room(error):
                    raise
                if not told:
                    self._say(f"waiting: the logs cannot be opened without room on disk: {error}")
                    told = True
            await asyncio.sleep(NO_ROOM_RETRY_MS / 1000)

    async def _open_once(self, identity: Identity) -> tuple[LogManager, ManagerReport]:
        settings = self._settings
        manager = LogManager(
            self._files,
            settings.folders,
            identity=identity,
            log_config=lambda _: settings.log_defaults,
        )
        now_ms = self._clock.wall_ms()
        return manager, await self._blocking.run(lambda: manager.open(now_ms=now_ms))

    def _ordered(self) -> None:
        """Orders come to those only of whom nothing that they may have lost counts any more."""
        if self.copier is not None:
            self.copier.ordered()
        manager = self._manager_of_logs()
        if not manager.is_boot_confirmed and self._confirming is None:
            self._confirming = self._tasks.spawn("note the boot", self._confirm_boot(manager))

    async def _confirm_boot(self, manager: LogManager) -> None:
        try:
            await self._blocking.run(manager.confirm_boot)
        except OSError as error:
            # Until it is stored, with one of the next orders, a crash costs our place in all ISRs.
            self._say(f"the boot of this machine cannot be noted: {error}")
        finally:
            self._confirming = None

    def _watch_disks(self, manager: LogManager) -> DiskWatch:
        disks = DiskWatch(
            manager,
            self._files,
            self._settings.disk_limits,
            interval_ms=self._settings.disk_probe_interval_ms,
            clock=self._clock,
            blocking=self._blocking,
            tasks=self._tasks,
            say=self._say,
        )
        disks.observe(self._disk_changed)
        return disks

    def _disk_changed(self, disk: Disk) -> None:
        """Use a folder that has failed no longer; without any there is nothing left to do."""
        manager = self._manager
        if not disk.failure or manager is None:
            return
        failed = [each for each in manager.healthy if each.path == disk.path]
        if len(failed) == len(manager.healthy):
            self._task_failed("the last data folder", StorageError(f"{disk.path} {disk.trouble}"))
        for folder in failed:
            self._tasks.spawn(f"leave {folder.path}", self._leave_folder(manager, folder, disk))

    async def _leave_folder(self, manager: LogManager, folder: DataFolder, disk: Disk) -> None:
        # A sync may hang in it, and is waited for.
        await self._blocking.run(lambda: manager.fail_folder(folder, disk.failure))

    @property
    def epoch(self) -> int | None:
        return self._registration.epoch if self._registration is not None else None

    def why_not_ready(self) -> str:
        """What is missing until clients can be served; empty: nothing."""
        if self._draining:
            return "it is stopping, and hands its leaderships over"
        if not self._cluster_id:
            return "it waits for the cluster's id: etcd does not answer, or no controller was there"
        if self.replicas is None:
            return "its logs are being recovered"
        if not self._servers:
            return "it does not listen yet"
        if self.verified.problem:
            return f"the metadata store is not believed: {self.verified.problem}"
        return "it is not registered in etcd" if self.epoch is None else ""

    async def _diagnose(self, _: broker_pb2.DiagnoseRequest) -> broker_pb2.DiagnoseResponse:
        return diagnosis(
            self._settings,
            self._clock.wall_ms(),
            self.store_view(),
            self.why_not_ready(),
            incarnation="" if self._manager is None else self._manager.incarnation,
            process=self._process,
            distrusted_since_ms=self.verified.problem_since_wall_ms,
            out_of_service={} if self.replicas is None else self.replicas.out_of_service,
        )

    async def _ask_life(self, other: BrokerRegistration) -> Life | NoAnswer:
        """Ask who answers at the address of another registration."""
        address = join_address(other.host, other.port)
        channel = self._network.channel(address)
        try:
            told = await channel.call(
                methods.BROKER_DIAGNOSE, broker_pb2.DiagnoseRequest(), timeout_ms=LIFE_CALL_MS
            )
            return Life(told.broker_id, told.incarnation, told.process)
        except TailraceError:
            probe = await self._network.probe(address, timeout_ms=LIFE_CALL_MS)
            return NoAnswer.REFUSED if probe is Probe.REFUSED else NoAnswer.SILENT
        finally:
            await channel.close()

    def _rates(self, client_id: str) -> Rates:
        found = self.live.client(client_id)
        return Rates(found.producer_byte_rate, found.consumer_byte_rate, found.request_rate)

    async def hand_over(self) -> None:
        """Ask the controller to move our leaderships, until none can be moved or time is up."""
        self._draining = True
        fewest, since_ms = -1, self._clock.monotonic_ms()
        try:
            async with asyncio.timeout(self._settings.controlled_shutdown_timeout_ms / 1000):
                await self._announce_end()
                while self.epoch is not None:
                    left = await self._leaderships_left()
                    now_ms = self._clock.monotonic_ms()
                    if left == 0:
                        await self._until_relieved()
                        return
                    if left is not None and (fewest < 0 or left < fewest):
                        fewest, since_ms = left, now_ms
                    is_stalled = now_ms - since_ms >= HAND_OVER_STALLED_MS
                    if left is not None and (is_stalled or self._is_alone()):
                        self._say(f"nobody can take over {left} partitions: stopping all the same")
                        return
                    await asyncio.sleep(HAND_OVER_PAUSE_MS / 1000)
        except TimeoutError:
            self._say("leaderships could not be handed over in time, stopping all the same")

    async def _announce_end(self) -> None:
        """Nobody shall take us into an ISR any more: we would only leave it again."""
        if self._registration is not None:
            try:
                await self._registration.set_draining()
            except StoreUnavailable as error:
                self._say(f"the registration does not say that this broker stops: {error}")

    async def _until_relieved(self) -> None:
        """Wait for the orders themselves: as long as we believe to lead, clients wait for us."""
        deadline_ms = self._clock.monotonic_ms() + RELIEVED_WAIT_MS
        while self.replicas is not None and self.replicas.led():
            if self._clock.monotonic_ms() >= deadline_ms:
                self._say("the orders that relieve us did not come in time")
                return
            await asyncio.sleep(RELIEVED_POLL_MS / 1000)

    def _is_alone(self) -> bool:
        """Whether the controller's last picture shows no other broker."""
        brokers = self.metadata.metadata.brokers
        return all(each.id == self._settings.broker_id for each in brokers)

    async def stop(self) -> None:
        """Stop in order, after `hand_over` if there is a cluster to hand over to."""
        # First the registration: leaders wait for us as long as we are in their ISRs, so we go on
        # following them until the servers' grace is over and they have surely been told.
        await self._deregister()
        if self.replicas is not None:
            self.replicas.stop_leading()
        for server in self._servers:
            await server.stop(grace_ms=STOP_GRACE_MS)
        if self.replicas is not None:
            self.replicas.stop_serving()
        await self._tasks.close()
        if self._manager is not None:
            await self._blocking.run(lambda: self._close_logs(self._manager_of_logs()))

    def _close_logs(self, manager: LogManager) -> None:
        try:
            if self.replicas is not None:
                self.replicas.store_high_watermarks()
        except OSError as error:
            self._say(f"high watermarks were not written: {error}")
        try:
            manager.close()
        except (OSError, StorageError) as error:
            # What could not be written is found by the scan of the next start.
            self._say(f"not closed cleanly: {error}")

    async def _deregister(self) -> None:
        if self._registering is not None:
            self._registering.cancel()
            await asyncio.wait([self._registering])
        if self._registration is not None:
            try:
                await self._registration.close()
            except StoreUnavailable as error:
                self._say(f"the registration stays until its lease ends: {error}")

    async def _learn_cluster(self) -> StoredMetadata:
        """Learn which cluster this broker is of, and what it knows of the cluster's store."""
        folders = self._settings.folders.log_dirs
        witness, found = await self._blocking.run(
            lambda: read_folders(self._files, folders, self._say)
        )
        if witness is None:
            self._cluster_id = await self._learn_cluster_id()
        else:
            self._cluster_id, self.verified.witness = witness.cluster_id, witness
        return found

    async def _learn_cluster_id(self) -> str:
        told = False
        while True:
            try:
                entry = await self._store.get(CLUSTER)
                if entry is not None:
                    return decode(ClusterRecord, entry.value, key=CLUSTER).cluster_id
                problem = "no controller has started in this cluster yet"
            except StoreUnavailable as error:
                problem = f"the metadata store does not answer: {error}"
            if not told:
                self._say(f"waiting: {problem}")
                told = True
            await asyncio.sleep(STORE_RETRY_MS / 1000)

    async def _listen(self, replicas: Replicas, links: Links, disks: DiskWatch) -> None:
        settings = self._settings
        clients = self.clients
        tracer = self._tracer
        self.producing = produce = ProduceService(
            settings,
            replicas,
            self._clock,
            clients,
            self.quotas,
            ProduceGuard(replicas.get, self._store, blocking=self._blocking, clock=self._clock),
            streams=None if tracer is None else partial(TracedProduceStream, tracer),
        )
        self.fetching = fetch = FetchService(
            settings,
            replicas,
            self._blocking,
            clock=self._clock,
            clients=clients,
            quotas=self.quotas,
            streams=None if tracer is None else partial(TracedFetchStream, tracer),
        )
        offsets = OffsetService(replicas, TimeLookups(self._blocking))
        replica_admin = ReplicaAdmin(
            replicas,
            self._manager_of_logs(),
            self._blocking,
            stray_retention_ms=settings.stray_retention_ms,
        )
        self.control = control = self._control(replicas, disks)
        orders = self._order_handlers(control)
        recovery = self._recovery_facts(replicas)
        server = await self._network.serve(
            settings.listen,
            {
                methods.BROKER_PRODUCE: produce.produce,
                methods.BROKER_FETCH: fetch.fetch,
                methods.BROKER_LIST_OFFSETS: offsets.list_offsets,
                methods.BROKER_WATCH_METADATA: self.metadata.watch,
                methods.BROKER_DELETE_RECORDS: replica_admin.delete_records,
                methods.BROKER_DESCRIBE_REPLICAS: replica_admin.describe_replicas,
                methods.BROKER_DESCRIBE_STRAYS: replica_admin.describe_strays,
                methods.BROKER_DESCRIBE_DELETIONS: replica_admin.describe_deletions,
                methods.BROKER_DIAGNOSE: self._diagnose,
                methods.BROKER_ALLOCATE_PRODUCER_ID: self._producer_ids.allocate,
                **(orders if settings.control_on_client_port else {}),
            },
        )
        link_server = await links.listen(settings.link_listen, replicas.accept)
        control_server = await self._network.serve(
            settings.control_listen,
            {**orders, methods.CONTROL_READ_RECOVERY_FACTS: recovery.read},
        )
        self._servers = [server, link_server, control_server]
        self.address = server.address

    def _control(self, replicas: Replicas, disks: DiskWatch) -> ControlService:
        settings = self._settings
        return ControlService(
            settings.broker_id,
            replicas,
            self.metadata,
            self.live,
            disks,
            ControllerGuard(
                self._store,
                self._clock,
                self._say,
                look=self.verified.look,
                epoch=lambda: self.epoch,
                incarnation=self._incarnation,
                proof_needed=not settings.control_on_client_port,
            ),
            epoch=lambda: self.epoch,
            draining=lambda: self._draining,
            ordered=self._ordered,
            health_interval_ms=settings.health_interval_ms,
        )

    def _recovery_facts(self, replicas: Replicas) -> RecoveryFactsService:
        return RecoveryFactsService(
            self._settings.broker_id,
            self._manager_of_logs(),
            replicas,
            copier=lambda: self.copier,
            cluster_id=lambda: self._cluster_id,
            store_problem=lambda: self.verified.problem,
            blocking=self._blocking,
        )

    def _order_handlers(self, control: ControlService) -> dict[Method[Any, Any], Handler]:
        tracer = self._tracer
        return {
            methods.CONTROL_HEALTH: control.health,
            methods.CONTROL_LEADER_AND_ISR: control.leader_and_isr
            if tracer is None
            else traced_orders(tracer, control.leader_and_isr),
            methods.CONTROL_STOP_REPLICA: control.stop_replica,
            methods.CONTROL_UPDATE_METADATA: control.update_metadata,
            methods.CONTROL_UPDATE_SETTINGS: control.update_settings,
        }

    def _incarnation(self) -> str:
        return "" if self._registration is None else self._registration.facts.incarnation

    def _register(self, report: ManagerReport) -> RegisteredBroker:
        settings = self._settings
        host, port = split_address(settings.advertised or self._servers[0].address)
        link_host, link_port = split_address(settings.link_advertised or self._servers[1].address)
        control_host, control_port = split_address(
            settings.control_advertised or self._servers[2].address
        )
        return RegisteredBroker(
            self._store,
            BrokerRegistration(
                broker_id=BrokerId(settings.broker_id),
                host=host,
                port=port,
                link_host=link_host,
                link_port=link_port,
                incarnation=self._manager_of_logs().incarnation,
                process=self._process,
                rack=settings.rack,
                instance=settings.instance,
                tail_may_be_lost=report.tail_may_be_lost,
                control_host=control_host,
                control_port=control_port,
            ),
            process=self._process,
            ask=self._ask_life,
            lease_ttl_ms=settings.lease_ttl_ms,
            on_registered=self._registered,
            say=self._say,
        )

    def _manager_of_logs(self) -> LogManager:
        if self._manager is None:
            raise InvariantViolation("a broker listens and registers after its logs are open")
        return self._manager

    def _registered(self) -> None:
        if self.replicas is not None:
            self.replicas.say_hello_again()

    async def _leaderships_left(self) -> int | None:
        """One round with the controller: how many partitions are ours still, None: not known."""
        try:
            entry = await self._store.get(CONTROLLER)
            if entry is None:
                return None
            record = decode(ControllerRecord, entry.value, key=CONTROLLER)
            channel = self._network.channel(join_address(record.host, record.port))
            try:
                response = await channel.call(
                    methods.CONTROLLER_CONTROLLED_SHUTDOWN,
                    controller_pb2.ControlledShutdownRequest(
                        broker_id=self._settings.broker_id, broker_epoch=self.epoch or 0
                    ),
                    timeout_ms=HAND_OVER_CALL_MS,
                )
            finally:
                await channel.close()
        except TailraceError as error:
            self._say(f"handing over leaderships: {error}")
            await asyncio.sleep(HAND_OVER_PAUSE_MS / 1000)
            return None
        if response.error:
            self._say(f"handing over leaderships: {response.message}")
            return None
        return len(response.remaining)

    async def _checkpoint_all(self, manager: LogManager, replicas: Replicas) -> None:
        """Write down high watermarks and recovery points; sync what has waited long enough."""
        flushed_ms = self._clock.monotonic_ms()
        while True:
            await asyncio.sleep(self._settings.checkpoint_interval_ms / 1000)
            now_ms = self._clock.monotonic_ms()
            try:
                if now_ms - flushed_ms >= self._settings.flush_interval_ms:
                    flushed_ms = now_ms
                    await replicas.flush_all()
                await self._blocking.run(replicas.store_high_watermarks)
                await self._blocking.run(manager.checkpoint)
            except (OSError, StorageError) as error:
                # Checkpoints only spare work after a crash; the next round may find room again.
                self._say(f"checkpoints were not written: {error}")

    def _task_failed(self, name: str, error: BaseException) -> None:
        if not isinstance(error, StartAnew):
            self._say(f"{name} failed: {error!r}")
        self.failure = self.failure or error
        self.failed.set()
