"""Is a broker there: what refused, silent and broken connections mean."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from simulation.loop import LoopClock, SimLoop, run
from simulation.network import SimNetwork
from tailrace.controller.facts import Term
from tailrace.controller.health import Answer, HealthWatch, control_address, is_refused
from tailrace.controller.settings import ControllerSettings
from tailrace.meta.image import LiveBroker
from tailrace.meta.keys import BrokerRegistration
from tailrace.model import BrokerId
from tailrace.runtime import Tasks
from tailrace.transport.methods import CONTROL_HEALTH
from tailrace.transport.rpc import Stream
from tailrace.v1 import control_pb2

B1 = BrokerId(1)


class World:
    """A controller's health watch on one host, a broker's health service on another."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.network = SimNetwork(loop)
        self.controller = self.network.host("c", loop.process("c"))
        self.settings = ControllerSettings(controller_id=1)
        self.opened: list[control_pb2.OrderHeader] = []
        self.gone: list[tuple[int, int]] = []
        self.draining: list[tuple[int, int]] = []
        self.drains = False
        self.unfit = ""
        self.fitness: list[tuple[int, str]] = []
        self.silent = False
        self.ends = False
        self.tasks = Tasks(lambda name, error: self.failures.append((name, error)))
        self.failures: list[Any] = []
        self.watch: HealthWatch[BrokerId, LiveBroker] = HealthWatch(
            Term(1, 7, 70),
            self.settings,
            network=self.controller,
            clock=LoopClock(loop),
            rng=loop.rng,
            tasks=self.tasks,
            say=lambda _: None,
            on_gone=lambda live, _: self.gone.append((live.epoch, loop.now_ms)),
            on_draining=lambda broker, epoch: self.draining.append((broker, epoch)),
            on_fitness=lambda broker, unfit: self.fitness.append((broker, unfit)),
        )

    async def start_broker(self) -> None:
        self.process = self.loop.process("b")
        host = self.network.host("b", self.process)
        self.server = await host.serve("b:1", {CONTROL_HEALTH: self.health})

    async def health(
        self,
        request: control_pb2.HealthRequest,
        stream: Stream[control_pb2.HealthResponse, control_pb2.HealthRequest],
    ) -> None:
        self.opened.append(request.header)
        while not self.ends:
            if not self.silent:
                told = control_pb2.HealthResponse(
                    broker_id=1, draining=self.drains, unfit=self.unfit
                )
                await stream.send(told)
            await asyncio.sleep(1)


def live(epoch: int = 11) -> LiveBroker:
    registration = BrokerRegistration(
        broker_id=B1, host="b", port=1, link_host="b", link_port=2, incarnation="i"
    )
    return LiveBroker(registration, epoch, epoch)


def simulate(main: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def start(loop: SimLoop) -> None:
        world = World(loop)
        await world.start_broker()
        await main(world)
        assert world.failures == []
        await world.tasks.close()

    run(start, 1)


def test_one_stream_is_kept_to_each_life_of_a_broker() -> None:
    async def main(world: World) -> None:
        world.watch.update({B1: live()})
        await asyncio.sleep(30)
        world.watch.update({B1: live()})
        await asyncio.sleep(30)
        (header,) = world.opened
        assert (header.controller_epoch, header.broker_epoch) == (7, 11)
        world.watch.update({B1: live(12)})
        await asyncio.sleep(30)
        assert [each.broker_epoch for each in world.opened] == [11, 12]
        world.watch.update({})
        await asyncio.sleep(1)
        assert len(world.tasks) == 0
        assert world.gone == []

    simulate(main)


def test_what_a_broker_says_of_its_fitness_is_passed_on() -> None:
    async def main(world: World) -> None:
        world.unfit = "/a is slow"
        world.watch.update({B1: live()})
        await asyncio.sleep(0.5)
        world.unfit = ""
        await asyncio.sleep(1)
        assert world.fitness == [(B1, "/a is slow"), (B1, "")]

    simulate(main)


def test_a_killed_process_is_gone_within_50_ms() -> None:
    async def main(world: World) -> None:
        world.watch.update({B1: live()})
        await asyncio.sleep(5)
        killed_ms = world.loop.now_ms
        world.process.kill()
        await asyncio.sleep(0.05)
        ((epoch, gone_ms),) = world.gone
        assert epoch == 11
        assert gone_ms - killed_ms < 50
        # It is told again, until the registration is gone.
        await asyncio.sleep(5)
        assert len(world.gone) > 1

    simulate(main)


def test_a_refusal_counts_when_it_is_repeated() -> None:
    async def main(world: World) -> None:
        address = control_address(live())
        assert not await is_refused(world.controller, address, world.settings)
        await world.server.stop(grace_ms=0)
        assert await is_refused(world.controller, address, world.settings)
        looks = world.loop.create_task(is_refused(world.controller, address, world.settings))
        await asyncio.sleep(0.01)
        # It was only restarting its server.
        world.process.kill()
        await world.start_broker()
        assert not await looks

    simulate(main)


def test_silence_says_nothing() -> None:
    async def main(world: World) -> None:
        world.watch.update({B1: live()})
        await asyncio.sleep(5)
        world.network.partition(["c"], ["b"])
        await asyncio.sleep(60)
        assert world.gone == []
        world.network.heal()
        opened = len(world.opened)
        await asyncio.sleep(10)
        assert len(world.opened) > opened
        world.silent = True
        await asyncio.sleep(60)
        assert world.gone == []

    simulate(main)


def test_a_stream_that_ends_in_order_is_opened_again_but_not_in_a_loop() -> None:
    async def main(world: World) -> None:
        world.ends = True
        world.watch.update({B1: live()})
        await asyncio.sleep(10)
        assert 5 < len(world.opened) < 30
        assert world.gone == []

    simulate(main)


def test_a_broker_that_wants_to_stop_says_so() -> None:
    async def main(world: World) -> None:
        world.drains = True
        world.watch.update({B1: live()})
        await asyncio.sleep(0.1)
        assert world.draining == [(1, 11)]

    simulate(main)


@pytest.mark.parametrize("ends", [False, True])
def test_one_that_is_asked_and_says_anything_is_there(ends: bool) -> None:
    async def main(world: World) -> None:
        world.ends = ends
        assert await world.watch.ask(live()) is Answer.THERE

    simulate(main)


def test_one_that_is_asked_and_refuses_is_gone() -> None:
    async def main(world: World) -> None:
        world.process.kill()
        assert await world.watch.ask(live()) is Answer.GONE

    simulate(main)


def test_one_that_is_asked_and_does_not_answer_is_silent() -> None:
    async def main(world: World) -> None:
        world.process.pause()
        assert await world.watch.ask(live()) is Answer.SILENT
        world.process.resume()
        await asyncio.sleep(1)
        world.network.break_connections("c", "b")
        asked = world.loop.create_task(world.watch.ask(live()))
        await asyncio.sleep(0)
        world.network.break_connections("c", "b")
        assert await asked is Answer.SILENT

    simulate(main)
