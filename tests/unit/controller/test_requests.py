"""Requests wait for their turn; nothing is done for those who have given up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from tailrace.controller.requests import REQUESTS_MAX, Requests, Wanted
from tailrace.errors import (
    InvariantViolation,
    NotController,
    Overloaded,
    TopicExists,
)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.get_running_loop().create_task(work)
    await asyncio.sleep(0)
    return task


def test_first_come_first_served() -> None:
    async def scenario() -> None:
        asked = []
        requests = Requests(lambda: asked.append(1))

        def work(number: int) -> Any:
            async def do(_: Wanted) -> int:
                return number

            return do

        first = await spawn(requests.ask(work(1)))
        second = await spawn(requests.ask(work(2)))
        assert asked == [1, 1]
        await requests.serve_one()
        assert await first == 1
        assert not second.done()
        await requests.serve_one()
        assert await second == 2
        assert not requests

    run(scenario())


def test_what_a_request_raises_is_told_to_who_asked() -> None:
    async def scenario() -> None:
        requests = Requests(lambda: None)

        async def refuse(_: Wanted) -> None:
            raise TopicExists("there it is")

        asked = await spawn(requests.ask(refuse))
        await requests.serve_one()
        with pytest.raises(TopicExists):
            await asked

        async def break_down(_: Wanted) -> None:
            raise InvariantViolation("our own bug")

        asked = await spawn(requests.ask(break_down))
        with pytest.raises(InvariantViolation):
            await requests.serve_one()
        asked.cancel()

    run(scenario())


def test_nothing_is_done_for_one_who_gave_up_before_its_turn() -> None:
    async def scenario() -> None:
        requests = Requests(lambda: None)
        done = []

        async def work(_: Wanted) -> None:
            done.append(1)

        asked = await spawn(requests.ask(work))
        asked.cancel()
        await asyncio.sleep(0)
        await requests.serve_one()
        assert done == []

    run(scenario())


def test_nothing_more_is_done_for_one_who_gave_up_in_the_middle() -> None:
    async def scenario() -> None:
        requests = Requests(lambda: None)
        done = []

        async def work(check_wanted: Wanted) -> None:
            for step in range(10):
                check_wanted()
                done.append(step)
                await asyncio.sleep(0)

        asked = await spawn(requests.ask(work))
        serving = await spawn(requests.serve_one())
        asked.cancel()
        await serving
        assert len(done) < 10

    run(scenario())


def test_when_the_term_is_over_all_who_wait_are_told() -> None:
    async def scenario() -> None:
        requests = Requests(lambda: None)

        async def for_ever(_: Wanted) -> None:
            await asyncio.Event().wait()

        served = await spawn(requests.ask(for_ever))
        waiting = await spawn(requests.ask(for_ever))
        serving = await spawn(requests.serve_one())
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        requests.close()
        for asked in (served, waiting):
            with pytest.raises(NotController):
                await asked
        with pytest.raises(NotController):
            await requests.ask(for_ever)

    run(scenario())


def test_the_queue_has_a_limit() -> None:
    async def scenario() -> None:
        requests = Requests(lambda: None)

        async def work(_: Wanted) -> None: ...

        tasks = [await spawn(requests.ask(work)) for _ in range(REQUESTS_MAX)]
        with pytest.raises(Overloaded):
            await requests.ask(work)
        for task in tasks:
            task.cancel()

    run(scenario())
